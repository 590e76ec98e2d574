"""An agent without a model: it knows that the first sentence often says it all."""


class Extension:
    async def initialize(self, context):
        self._ctx = context

    async def run(self, event):
        sentences = event.payload["text"].split(". ")
        self._ctx.logger.info("task %s has %d sentences", event.id, len(sentences))
        return f"In short: {sentences[0].rstrip('.')}."
