"""Turns what is asked for now into an event for later, which survives a restart in between."""


class Extension:
    async def initialize(self, context):
        self._ctx = context
        context.subscribe_event("reminder.asked", self._on_asked)

    async def _on_asked(self, event):
        text, seconds = event.payload["text"], event.payload["seconds"]
        await self._ctx.schedule_at(seconds, "reminder.due", {"text": f"Reminder: {text}"})
