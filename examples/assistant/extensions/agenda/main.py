"""Reads what another extension wrote. They share the state, and know nothing of each other."""


class Extension:
    async def initialize(self, context):
        self._ctx = context
        context.subscribe_event("user.message", self._on_message)

    async def _on_message(self, event):
        text = event.payload["text"].strip().lower().rstrip("?!.")
        if text == "what is planned":
            await self._tell()
        elif text == "forget everything":
            await self._forget()

    async def _tell(self):
        waiting = self._ctx.query("Reminder").where(("told", "=", False)).order_by("due")
        found = [reminder["text"] for reminder in await waiting.collect()]
        await self._say(f"You want to {', and to '.join(found)}." if found else "Nothing.")

    async def _forget(self):
        try:
            for reminder in await self._ctx.query("Reminder").collect():
                await self._ctx.delete("Reminder", reminder["id"])
        except PermissionError as error:  # the manifest does not say that it may
            await self._say(f"I cannot do that: {error.args[0]}")
        else:
            await self._ctx.commit()
            await self._say("Done.")

    async def _say(self, text):
        await self._ctx.emit("assistant.said", {"text": text})
