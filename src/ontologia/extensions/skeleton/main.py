"""Greets whoever asks."""


class Extension:
    """The host makes one of these, and gives it its context."""

    async def initialize(self, context):
        self._ctx = context
        context.subscribe_event("my_extension.asked", self._on_asked)

    async def _on_asked(self, event):
        greeting = self._ctx.settings["greeting"]
        name = event.payload.get("name", "world")
        await self._ctx.emit("my_extension.answered", {"text": f"{greeting}, {name}!"})
