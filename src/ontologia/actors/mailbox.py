"""The mailbox of an actor: messages wait in it, and are handed over one at a time."""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING

from ontologia.actors.lanes import others_turn
from ontologia.actors.message import OUTCOMES, REQUESTS, Message
from ontologia.actors.parts import readable, told
from ontologia.actors.worker import ErrorEvent, MessageEvent

if TYPE_CHECKING:
    from ontologia.actors.actor import Actor

at_hand: ContextVar[Message | None] = ContextVar("at_hand", default=None)
"""The message that the code which runs is a consequence of, also in tasks that it started."""


class Mailbox:
    """What waits for an actor, and the task that works it off."""

    __slots__ = ("_actor", "_answered", "_asleep", "_in_hand", "_messages", "_worker", "stopped")

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._messages: deque[Message] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._asleep: asyncio.Future[None] | None = None
        self._in_hand: Message | None = None
        self._answered = False
        self.stopped = False

    def __len__(self) -> int:
        """How many messages wait or are being handled."""
        return len(self._messages) + (self._in_hand is not None)

    def put(self, message: Message) -> None:
        """Add a message; returns at once."""
        self._messages.append(message)
        if self._worker is None:
            name = f"actor {type(self._actor).__name__}"
            self._worker = asyncio.create_task(self._work(), name=name)
        elif self._asleep is not None and not self._asleep.done():
            self._asleep.set_result(None)

    def note_answer(self, request_id: str | None) -> None:
        """The actor answered this; perhaps it is the message in hand."""
        if self._in_hand is not None and self._in_hand.metadata.id == request_id:
            self._answered = True

    async def stop(self) -> None:
        """Cancel what is being handled, and forget the rest."""
        self.stopped = True
        self._messages.clear()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])

    async def _work(self) -> None:
        actor, messages = self._actor, self._messages
        while True:
            if not messages:
                await others_turn()  # where one message comes the next is often near
            if not messages:
                self._asleep = asyncio.get_running_loop().create_future()
                await self._asleep
                self._asleep = None
            self._in_hand = message = messages.popleft()
            self._answered = False
            at_hand.set(message)
            try:
                doing = (actor.outcome if message.kind in OUTCOMES else actor.handle)(message)
                if doing is not None:  # as from a plain def, which is done by now
                    await doing
            except BaseException as error:
                # sys.exit() and a cancellation inside are the handler's, not the loop's.
                contained = isinstance(error, Exception | SystemExit | asyncio.CancelledError)
                if self.stopped or not contained:
                    raise
                self._fault(message, error)
            self._in_hand = None
            if actor.on_done is not None:
                actor.on_done(message)
            if messages:
                await others_turn()  # a full mailbox must not keep the others waiting

    def _fault(self, message: Message, error: BaseException) -> None:
        said = told(error)
        if message.kind in REQUESTS and not self._answered:
            answer = message.error(500, f"{message.type} failed: {said}")
            self._actor.dispatch(MessageEvent(answer))
        where = readable("".join(traceback.format_exception(error)))
        self._actor.dispatch(ErrorEvent(said, cause=message, traceback=where))
