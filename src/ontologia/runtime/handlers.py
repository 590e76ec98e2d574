"""Handlers: functions that react to events of one class."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from ontologia.delivery.retry import Backoff, RetryPolicy, handler_policy
from ontologia.errors import HandlerError, InvalidTypeError, InvalidValueError
from ontologia.schema.event import Event, types_of

if TYPE_CHECKING:
    from types import FrameType

    from ontologia.config import OntologiaConfig
    from ontologia.runtime.context import HandlerContext

E = TypeVar("E", bound=Event)
R = TypeVar("R", bound=Awaitable[None] | None)
Seconds: TypeAlias = float | timedelta
MARK = "__ontologia_handler__"
_RENEWED_MS = 3600 * 1000.0  # the timeout of a handler whose lease is renewed
_LONGEST = 365 * 24 * 3600  # seconds


class Delivery(NamedTuple):
    """How one handler is given its events in one run."""

    lease_ms: float
    policy: RetryPolicy
    timeout_ms: float | None
    """How long it may run; None for until its lease ends."""
    renew: bool
    """Whether its lease is renewed while it runs."""


class Options(NamedTuple):
    """What `on_event` says of deliveries to one handler; None leaves it to the settings."""

    lease_ms: float | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    timeout_ms: float | None = None
    renew: bool = False


class Handler(NamedTuple):
    """A function with what `on_event` said about it."""

    id: str
    """Its name as a consumer, the same in every process."""
    event_cls: type[Event]
    priority: int
    function: Callable[[Any], Any]
    reads: Literal["checked"] | None = None
    """Whether what it reads must be unchanged when it commits."""
    replaced: Callable[[Any], Any] | None = None
    """The handler that had its name in the module, until the same module defined this one."""
    options: Options = Options()
    formerly: tuple[str, ...] = ()
    """Names that it had before, whose claims are its own."""

    @property
    def event_type(self) -> str:
        """The type under which its events are stored."""
        return self.event_cls.__event_type__

    @property
    def event_types(self) -> tuple[str, ...]:
        """All types under which its events may be stored: that, and those that the class had before."""
        return types_of(self.event_cls)

    @property
    def place(self) -> str:
        """Where it was written: module and function, file and line."""
        return _place(self.function)

    def delivery(self, config: OntologiaConfig) -> Delivery:
        """Its own options, completed by the settings."""
        lease_ms, max_attempts, backoff, timeout_ms, renew = self.options
        policy = handler_policy(config, max_attempts, backoff)
        lease_ms = lease_ms or config.event_claim_lease_ms
        if timeout_ms is not None and timeout_ms > lease_ms and not renew:
            raise HandlerError(
                f"{self.id} has a timeout of {timeout_ms / 1000:g} s and a lease of "
                f"{lease_ms / 1000:g} s, after which it can write nothing",
                hint="Raise lease=, or add renew=True, which renews it while the handler runs.",
            )
        return Delivery(lease_ms, policy, timeout_ms, renew)


def on_event(
    event_cls: type[E],
    *,
    priority: int = 100,
    name: str | None = None,
    reads: Literal["checked"] | None = None,
    lease: Seconds | None = None,
    max_attempts: int | None = None,
    backoff: tuple[Seconds, Seconds] | None = None,
    renew: bool = False,
    timeout: Seconds | None = None,
    formerly: Sequence[str] = (),
) -> Callable[[Callable[[HandlerContext[E]], R]], Callable[[HandlerContext[E]], R]]:
    """Make a function a handler for events of this class; `run` is given it.

    Handlers with a higher priority get their events first. The handler's name, `module:function`
    unless `name` says otherwise, is what the store remembers it by: a function that is renamed
    or moved without a `name` is a new handler, which is given everything that is retained. Unless
    `formerly` has its old names: then what it had finished, and what waited, is its own. While a live
    session runs an old name, this handler waits.

    With `reads="checked"`, every object that the handler reads must be unchanged when it commits, as
    in `session.unit(reads="checked")`.

    `lease`, `max_attempts` and `backoff=(base, max)` are this handler's own instead of the settings
    `event_claim_lease_ms`, `event_max_attempts`, `event_backoff_base_ms` and `event_backoff_max_ms`;
    times are seconds or a timedelta. With `renew=True` the lease is renewed while the handler runs.

    A handler that has not returned after `timeout` is cancelled if it is `async def`; otherwise its
    thread is left alone and another one goes on with other events. The attempt counts as failed, and
    can write nothing any more. Without `timeout` that is so shortly before its lease ends, a tenth
    of it and at most a second; with `renew=True` after an hour.
    """
    if inspect.isroutine(event_cls):
        raise TypeError(
            f"on_event takes an Event class: write @on_event(SomeEvent) above {event_cls!r}"
        )
    if not (isinstance(event_cls, type) and issubclass(event_cls, Event)) or event_cls is Event:
        raise TypeError(
            f"on_event takes an Event class, got {event_cls!r}; handlers for names and commands "
            f"are made with ontologia.commands.api.on_event"
        )
    if event_cls.__shape__.abstract:
        raise TypeError(f"{event_cls.__name__} is abstract: no event of exactly that class exists")
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise TypeError(f"priority is a whole number, got {priority!r}")
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"name is text, got {name!r}")
    if reads not in (None, "checked"):
        wrong = InvalidValueError if isinstance(reads, str) else InvalidTypeError
        raise wrong(f"reads is 'checked' or left out, got {reads!r}")
    options = _options(lease, max_attempts, backoff, renew=renew, timeout=timeout)
    if isinstance(formerly, str) or not isinstance(formerly, Sequence):
        raise InvalidTypeError(
            f"formerly is a list of names, got {formerly!r}",
            hint="Write formerly=['module:function'].",
        )
    for old in formerly:
        if not isinstance(old, str) or not old:
            raise InvalidTypeError(f"formerly is a list of names, which are text, got {old!r}")

    def decorate(function: Callable[[HandlerContext[E]], R]) -> Callable[[HandlerContext[E]], R]:
        if not callable(function):
            raise TypeError(f"on_event decorates a function, got {function!r}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function!r} yields: a handler returns, and would never be run")
        if not _takes_a_context(function):
            raise TypeError(
                f"{function!r} is called with one argument, ctx: HandlerContext"
                f"[{event_cls.__name__}], and takes {inspect.signature(function)}"
            )
        if not hasattr(function, "__dict__"):
            raise TypeError(f"{function!r} cannot be marked as a handler; wrap it in a function")
        known: Handler | None = vars(function).get(MARK)
        if known is not None:
            raise TypeError(
                f"{known.id} handles {known.event_type} already; write one function for each event"
            )
        identity = name or _identity(function)
        if identity in formerly:
            raise InvalidValueError(f"{identity} is called so now; formerly has its other names")
        caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - no public name gives it
        handler = Handler(
            *(identity, event_cls, priority, function, reads),
            replaced=_replaced(function, caller),
            options=options,
            formerly=tuple(dict.fromkeys(formerly)),
        )
        setattr(function, MARK, handler)
        return function

    return decorate


def _options(lease: Any, max_attempts: Any, backoff: Any, *, renew: Any, timeout: Any) -> Options:
    if max_attempts is not None:
        if isinstance(max_attempts, bool) or not isinstance(max_attempts, int):
            raise InvalidTypeError(f"max_attempts is a whole number, got {max_attempts!r}")
        if max_attempts < 1:
            raise InvalidValueError(f"max_attempts is at least 1, got {max_attempts!r}")
    waits = None
    if backoff is not None:
        if not isinstance(backoff, tuple | list) or len(backoff) != 2:
            raise InvalidTypeError(f"backoff is (base, max), got {backoff!r}")
        base, cap = (_milliseconds("backoff", each, least=0) for each in backoff)
        if base > cap:
            raise InvalidValueError(f"backoff is (base, max), and base is the larger: {backoff!r}")
        waits = Backoff(round(base), round(cap))
    if not isinstance(renew, bool):
        raise InvalidTypeError(f"renew is True or False, got {renew!r}")
    lease_ms = None if lease is None else _milliseconds("lease", lease)
    timeout_ms = _RENEWED_MS if renew else None
    if timeout is not None:
        timeout_ms = _milliseconds("timeout", timeout)
    return Options(lease_ms, max_attempts, waits, timeout_ms, renew)


def _milliseconds(what: str, value: Any, *, least: float = 0.001) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidTypeError(f"{what} takes seconds or a timedelta, got {value!r}")
    if not (math.isfinite(seconds) and least <= seconds <= _LONGEST):
        lowest = "not negative" if least == 0 else "at least 1 ms"
        raise InvalidValueError(f"{what} is {lowest} and at most a year, got {value!r}")
    return seconds * 1000


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    inner = inspect.unwrap(function)
    return inner.func if isinstance(inner, functools.partial) else inner


def _identity(function: Callable[..., Any]) -> str:
    inner = _inner(function)
    return f"{inner.__module__}:{getattr(inner, '__qualname__', type(inner).__qualname__)}"


def _place(function: Callable[..., Any]) -> str:
    inner = _inner(function)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    where = f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
    return f"{_identity(function)}{where}"


def _replaced(function: Callable[..., Any], frame: FrameType) -> Callable[..., Any] | None:
    """The handler whose name in a module this one takes, if the same text defines both.

    The text is the code that is being run: an older version of the module, which is being loaded
    again, or another cell of a notebook, has functions of its own. A loop has the same one twice.
    """
    if frame.f_locals is not frame.f_globals:
        return None  # a function or a class: its names are not looked through for handlers
    inner = _inner(function)
    before: Any = frame.f_globals.get(getattr(inner, "__name__", ""))
    if not isinstance(getattr(before, MARK, None), Handler):
        return None
    code = getattr(_inner(before), "__code__", None)
    if code is None or code is getattr(inner, "__code__", None):
        return None
    return before if any(each is code for each in frame.f_code.co_consts) else None


def _takes_a_context(function: Callable[..., Any]) -> bool:
    """Whether it can be called with one argument, as far as can be told; a method with self, too."""
    within, _, _ = getattr(function, "__qualname__", "").rpartition(".")
    in_a_class = bool(within) and not within.endswith("<locals>")
    try:
        signature = inspect.signature(function)
    except ValueError:  # one of C, which does not say
        return True
    for given in ((None,), (None, None))[: 2 if in_a_class else 1]:
        with suppress(TypeError):
            signature.bind(*given)
            return True
    return False


class Function(Protocol):
    """What a type checker makes of a list of functions that take different contexts."""

    __code__: CodeType


def ordered(functions: Iterable[object]) -> list[Handler]:
    """The handlers of a run, the most urgent first; HandlerError if they cannot run together."""
    if isinstance(functions, type) or callable(functions) or not isinstance(functions, Iterable):
        raise HandlerError(
            f"handlers takes a list of handlers, got {functions!r}", hint="Write [handler]."
        )
    handlers: dict[str, Handler] = {}
    for function in functions:
        handler = getattr(function, MARK, None)
        if not isinstance(handler, Handler):
            raise HandlerError(
                f"{function!r} is no handler", hint="Decorate it with @on_event(SomeEvent)."
            )
        # The mark may have come with what is around the function, or below its object.
        handler = handler._replace(function=cast("Callable[..., Any]", function))
        if handler.id in handlers:
            raise _ambiguous(handlers[handler.id], handler)
        handlers[handler.id] = handler
    _check_former_names(handlers)
    return sorted(handlers.values(), key=lambda each: (-each.priority, each.id))


def _check_former_names(handlers: Mapping[str, Handler]) -> None:
    claimed: dict[str, Handler] = {}
    for handler in handlers.values():
        for old in handler.formerly:
            other = handlers.get(old) or claimed.setdefault(old, handler)
            if other is not handler:
                raise HandlerError(
                    f"{handler.place} was formerly {old}, and so is, or was, {other.place}",
                    hint="One handler goes on with what another had. Take the name out of one "
                    "`formerly`, or do not run both.",
                )


def _ambiguous(first: Handler, second: Handler) -> HandlerError:
    if first.place == second.place:
        return HandlerError(
            f"two handlers are called {first.id}, and both are {first.place}",
            hint="Give it once; methods of two objects need functions around them, by other names.",
        )
    return HandlerError(
        f"two handlers are called {first.id}: {first.place} and {second.place}",
        hint="The store knows a handler by its name. Give one of them another: "
        "@on_event(..., name='...').",
    )


def event_registry(handlers: Iterable[Handler]) -> dict[str, type[Event]]:
    """The class of each stored type that these handlers are given."""
    registry: dict[str, type[Event]] = {}
    for handler in handlers:
        for event_type in handler.event_types:
            known = registry.setdefault(event_type, handler.event_cls)
            if known is not handler.event_cls:
                raise HandlerError(
                    f"{known!r} and {handler.event_cls!r} are, or were, both stored as "
                    f"{event_type!r}",
                    hint="Rename one, or give it a type of its own: __event_type__ = '...'. A type "
                    "that is one class's is not formerly another's.",
                )
    return registry
