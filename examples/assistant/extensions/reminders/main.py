"""Turns a sentence into an event for later, which survives a restart in between.

A handler may be called twice with one event, after a crash. So the key of a reminder is made from
the number of the message, which is the same each time, and whoever is told of a due reminder looks
first whether it was told before.
"""

from .sentences import understood


class Extension:
    async def initialize(self, context):
        self._ctx = context
        context.subscribe_event("user.message", self._on_message)
        context.subscribe_event("reminder.due", self._on_due)

    async def _on_message(self, event):
        wish = understood(event.payload["text"], said_at=event.created_at)
        if wish is None:
            return  # somebody else may understand it
        reminder = {"id": f"reminder-{event.id}", "text": wish.what, "due": wish.due.isoformat()}
        if await self._find(reminder["id"]):
            return
        # First the timer, then the note that it is set. After a crash in between there are two
        # timers, of which one finds that it was told already; the other way round there might be
        # none.
        await self._ctx.schedule_at(wish.seconds, "reminder.due", reminder)
        await self._ctx.ensure("Reminder", reminder)
        await self._say(f"I will remind you to {wish.what}.")

    async def _on_due(self, event):
        reminder = await self._find(event.payload["id"]) or event.payload
        if not reminder.get("told"):
            await self._ctx.ensure("Reminder", {**reminder, "told": True})
            await self._say(f"It is time to {reminder['text']}!")

    async def _find(self, key):
        return await self._ctx.query("Reminder").where(("id", "=", key)).first()

    async def _say(self, text):
        """What was queued, and what is said about it, are one transaction."""
        await self._ctx.commit(event={"topic": "assistant.said", "payload": {"text": text}})
