"""`check_idempotent`: a handler that is disturbed and tried again ends as one that is not."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ontologia.engine import runner
from ontologia.errors import HandlerError
from ontologia.runtime.handlers import Handler, ordered
from ontologia.runtime.session import Session
from ontologia.schema.event import Event
from ontologia.testing.endings import DISCARDED, HANDLED, Ending, differences
from ontologia.testing.faults import Fault, InjectedError, faults, named
from ontologia.testing.trials import Trial


def check_idempotent(
    handler: Callable[..., Any],
    event: Event,
    *,
    given: Callable[[Session], object] | Iterable[Any] = (),
    effects: Callable[[], object] | None = None,
    store: Callable[[], str] | None = None,
) -> None:
    """AssertionError unless the handler ends the same, wherever it is interrupted.

    The handler, made with `@on_event`, is run over the event undisturbed. Then it is run from the
    same beginning again and again, and disturbed once each time: its process dies before or after
    a `ctx.commit`, a `ctx.emit`, a `session.defer` or the acknowledgement, or an error is raised
    there. The event is delivered again until it is done, and then the current state, the events
    that were announced and the effects must be as without the disturbance. History, ids and times
    may differ.

    `given` is the beginning: objects that are there, or a function that is called with a session
    before each run and whose changes are committed; it also sets back what is outside. `effects`
    is called after each run, and what it returns is compared. Each run has an empty store, a
    SQLite file that is deleted afterwards; or `store` is called for the URI of another one.

    What the handler announces is not handled. A crash goes through it as an exception that only
    `finally` and `except BaseException` see.
    """
    __tracebackhide__ = True
    [known] = ordered([handler])
    if type(event) is not known.event_cls:
        raise HandlerError(f"{known.id} handles {known.event_cls.__name__}, got {event!r}")
    begin = given if callable(given) else _ensuring(list(given))

    def run(fault: Fault | None = None) -> tuple[Ending, list[str]]:
        with _place(store) as uri:
            trial = Trial(known, event, uri, fault)
            return trial.run(begin, effects or (lambda: None)), trial.boundaries.passed

    with _quiet():
        wanted, passed = run()
        _check_undisturbed(known, wanted, lambda: run()[0])
        failed: dict[str, list[str]] = {}
        for fault in faults(passed):
            found = differences(wanted, run(fault)[0])
            if found:
                failed.setdefault(_listed(found), []).append(_described(fault, passed))
    if failed:
        raise AssertionError(_message(known, failed))


def _ensuring(objects: list[Any]) -> Callable[[Session], None]:
    return lambda session: session.ensure(objects)


@contextmanager
def _place(store: Callable[[], str] | None) -> Generator[str]:
    if store is not None:
        yield store()
        return
    with tempfile.TemporaryDirectory(prefix="ontologia-") as folder:
        yield str(Path(folder) / "trial.db")


@contextmanager
def _quiet() -> Generator[None]:
    """The errors that are raised here on purpose are not worth a line in anybody's log."""

    def worthwhile(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], InjectedError))

    runner.log.addFilter(worthwhile)
    try:
        yield
    finally:
        runner.log.removeFilter(worthwhile)


def _check_undisturbed(handler: Handler, first: Ending, again: Callable[[], Ending]) -> None:
    __tracebackhide__ = True
    if first.fate != HANDLED and not first.fate.startswith(DISCARDED):
        raise AssertionError(f"{handler.id} was not disturbed, and yet its event {first.fate}")
    found = differences(first, again())
    if found:
        raise AssertionError(
            f"{handler.id} ended in two ways without being disturbed. Values that are made anew at "
            "each run do that (uuid4, the current time), and effects that given= does not set back:"
            f"\n{_listed(found)}"
        )


def _described(fault: Fault, passed: list[str]) -> str:
    article = "a crash" if fault.what == "crash" else "an error"
    return f"{article} {fault.when} {named(passed, fault.boundary)}"


def _listed(found: list[str]) -> str:
    return "\n".join(f"    {each}" for each in found)


def _message(handler: Handler, failed: dict[str, list[str]]) -> str:
    """Disturbances that came to the same are told together."""
    parts = [f"{handler.id} is not idempotent: tried again, it ends otherwise than undisturbed."]
    for found, where in failed.items():
        parts += [*(f"  After {each}" for each in where), found]
    return "\n".join(parts)
