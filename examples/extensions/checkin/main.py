"""Two subscribers of one topic: the agent speaks, and a handler schedules the next step."""


class Extension:
    async def initialize(self, context):
        self._ctx = context
        context.subscribe_event("checkin.started", self._schedule_next)

    async def run(self, event):
        """The agent. It could ask a model; here it has one question."""
        step, total = event.payload["step"], event.payload["total"]
        return f"Check-in {step} of {total}: {self._ctx.agent['instructions']}"

    async def _schedule_next(self, event):
        step, total = event.payload["step"], event.payload["total"]
        if step < total:
            pause = self._ctx.settings["pause"]
            await self._ctx.schedule_at(
                pause, "checkin.started", {"step": step + 1, "total": total}
            )
