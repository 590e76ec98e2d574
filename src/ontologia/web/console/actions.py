"""The verbs of an operator: a page that asks, and a POST that does it and records who and why.

A verb is a function that reads what is meant from a request, and says what would be done: `Asked`. The
page that asks and the POST call the same one, the POST with the fields that the page was given.
How a verb is added: such a function, named in `VERBS`; pages offer it by `m.verb("Text", "name", ...)`.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ontologia import codec
from ontologia.clock import from_text, to_text
from ontologia.errors import InvalidValueError, NotFoundError
from ontologia.runtime.operator import Operator
from ontologia.runtime.views.dead_letters import FailureGroup, failure_groups, selection
from ontologia.runtime.views.paging import BOUND, Count, bounded, cursor, place
from ontologia.runtime.views.times import ago, span
from ontologia.store.database import ReadDeadline
from ontologia.store.doctor import REPAIR as REPAIRED
from ontologia.store.events import checks
from ontologia.store.events.operations import Selection
from ontologia.web.console.access import VIA, RefusedError
from ontologia.web.console.jobs import CLEANUP, EXAMINE, REPAIR, Done, Job
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console

_COUNTING = 0.6  # seconds that the preview counts
_GROUPING = 10.0  # seconds that a group is gathered in, when something is done to it
_COMMANDS = 5  # commands that are shown
_TYPES = 5  # types of events that are shown with their counts


@dataclass(frozen=True)
class Asked:
    """What would be done, and how."""

    title: str
    """`Pause pay`."""
    what: str
    """What that does, in a sentence or two."""
    commands: list[str]
    """The same on the command line."""
    do: Callable[[Operator], object]
    """Does it; what comes back that is false means that nothing was to be done."""
    button: str
    back: tuple[str, dict[str, Any]]
    """The page to go on with."""
    fields: dict[str, str | list[str]] = field(default_factory=dict[str, "str | list[str]"])
    """What the POST is told; the rest of the request is not."""
    danger: bool = False
    """It cannot be undone."""
    bulk: bool = False
    """It may concern many; then, and of danger, a reason is required."""
    nothing: str = "Nothing was to be done."
    close_to: bool = False
    """The command means nearly the same."""
    job: bool = False
    """It is begun, and goes on in the background."""
    form: str | None = None
    """The template of further fields."""

    @property
    def needs_reason(self) -> bool:
        """Whether it is done for a reason alone."""
        return self.danger or self.bulk


Verb = Callable[[PageRequest], Asked]


def routes(console: Console) -> list[Route]:
    """Two routes for each verb: `ask_NAME`, and `do_NAME`, which a console that only reads lacks."""
    found: list[Route] = []
    for name, verb in VERBS.items():
        found += [
            console.page(f"/ask/{name}", _asking(name, verb), name=f"ask_{name}"),
            console.action(f"/do/{name}", _doing(name, verb), name=f"do_{name}"),
        ]
    return found


def _asking(name: str, verb: Verb) -> Callable[[PageRequest], Response]:
    def ask(request: PageRequest) -> Response:
        if not request.may_change:
            raise RefusedError(403, f"{request.user.name} is a viewer, and changes nothing")
        return _page(request, name, verb(request))

    return ask


def _doing(name: str, verb: Verb) -> Callable[[PageRequest], Response]:
    def do(request: PageRequest) -> Response:
        asked = verb(request)
        reason = (request.value("reason") or "").strip() or None
        if asked.needs_reason and reason is None:
            return _page(request, name, asked, status=400, wrong="Say why; it is recorded.")
        operator = Operator(
            request.console.session,
            request.user.name,
            reason=reason,
            namespace=request.namespace,
            via=VIA,
        )
        done = asked.do(operator)
        route, query = asked.back
        if asked.job:
            return RedirectResponse(request.link(route, as_of=None, **query), 303)
        if not operator.recorded:
            said = done if isinstance(done, str) else asked.nothing
            url = request.link(route, as_of=None, **query)
            return page(request, "nothing.html", title=asked.title, message=said, back=url)
        numbers = [operator.recorded[0], *operator.recorded[1:][-1:]]
        url = request.link(route, as_of=None, done=[str(each) for each in numbers], **query)
        return RedirectResponse(url, 303)

    return do


def _page(
    request: PageRequest, name: str, asked: Asked, *, status: int = 200, wrong: str | None = None
) -> Response:
    route, query = asked.back
    return page(
        request,
        "ask.html",
        title=asked.title,
        status=status,
        live=False,
        asked=asked,
        action=request.link(f"do_{name}", namespace=None, as_of=None),
        back=request.link(route, as_of=None, **query),
        wrong=wrong,
        reason=request.value("reason") or "",
    )


def _command(
    request: PageRequest,
    words: tuple[str, ...],
    *arguments: str,
    recorded: bool = False,
    **options: str | None,
) -> str:
    """A command line that does the same, to be copied; with a reason to fill in if it is `recorded`."""
    if recorded:
        options["reason"] = "TEXT"
    options["namespace"] = None if request.namespace == "default" else request.namespace
    given = [(f"--{name.replace('_', '-')}", value) for name, value in options.items()]
    return command_line(
        words, arguments, [(name, value) for name, value in given if value is not None]
    )


def command_line(
    words: Sequence[str], arguments: Sequence[str], options: Iterable[tuple[str, str]]
) -> str:
    """A command of `ontologia` as a shell takes it; any text may be an argument or a value."""
    said = ["ontologia", *words]
    for option, value in options:
        said += [f"{option}={value}"] if value.startswith("-") else [option, value]
    if any(each.startswith("-") for each in arguments):
        said.append("--")
    return shlex.join([*said, *arguments])


def _required(request: PageRequest, name: str) -> str:
    found = request.value(name)
    if found is None:
        raise InvalidValueError(f"the request does not say which {name} is meant")
    return found


# -- handlers ---------------------------------------------------------------------------------------


def _pause(request: PageRequest) -> Asked:
    handler = _required(request, "handler")
    return Asked(
        f"Pause {handler}",
        "It is given no more events until it is resumed, in any process; what it has at the moment "
        "it finishes. Events wait for it meanwhile.",
        [_command(request, ("events", "pause"), handler)],
        lambda operator: operator.pause(handler),
        "Pause",
        ("handlers", {}),
        {"handler": handler},
        nothing=f"{handler} was paused already.",
    )


def _resume(request: PageRequest) -> Asked:
    handler = _required(request, "handler")
    return Asked(
        f"Resume {handler}",
        "It is given what waits for it again.",
        [_command(request, ("events", "resume"), handler)],
        lambda operator: operator.resume(handler),
        "Resume",
        ("handlers", {}),
        {"handler": handler},
        nothing=f"{handler} was not paused.",
    )


def _forget(request: PageRequest) -> Asked:
    handler = _required(request, "handler")

    def forget(operator: Operator) -> bool:
        operator.forget(handler)
        return True

    return Asked(
        f"Forget {handler}",
        "The handler and what waits for it are removed; what it finished stays on record. It is "
        "refused while a live session runs it. If it comes back, it is new, and gets retained events.",
        [_command(request, ("events", "forget"), handler, recorded=True)],
        forget,
        "Forget",
        ("handlers", {}),
        {"handler": handler},
        danger=True,
    )


# -- events -----------------------------------------------------------------------------------------


def _replay(request: PageRequest) -> Asked:
    event_id = _required(request, "id")
    return Asked(
        "Replay an event",
        f"Event {event_id} is stored again under a new id, for all its handlers: also those that "
        "have finished it process it once more.",
        [_command(request, ("events", "replay"), recorded=True, event_id=event_id)],
        lambda operator: operator.replay(event_id),
        "Replay",
        ("event", {"id": event_id}),
        {"id": event_id},
        bulk=True,
    )


def _cancel(request: PageRequest) -> Asked:
    which = _required(request, "id")
    return Asked(
        "Cancel an event",
        f"Event {which} is taken back, if no handler has begun or finished it. What it was is in the "
        "record.",
        [_command(request, ("events", "cancel"), which, recorded=True)],
        lambda operator: operator.cancel(which),
        "Cancel the event",
        ("events", {}),
        {"id": which},
        danger=True,
    )


def _emit(request: PageRequest) -> Asked:
    kind, payload = request.value("type") or "", request.value("payload") or "{}"
    delay, key = request.value("delay"), request.value("dedup_key")
    cls = None
    if kind and request.console.models.event_types:
        cls = request.console.models.event_type(kind)

    def emit(operator: Operator) -> str:
        value = codec.decode(payload)
        if not isinstance(value, dict):
            raise InvalidValueError("the payload of an event is a JSON object; nothing was stored")
        codec.check(value, "payload")
        made = operator.emit(
            kind, value, cls=cls, delay=None if delay is None else span(delay), dedup_key=key
        )
        return f"Event {made.event_id} has this dedup key already; nothing was stored."

    commands = (
        [_command(request, ("emit",), kind, payload, recorded=True, delay=delay, dedup_key=key)]
        if kind
        else []
    )
    return Asked(
        "Emit an event",
        "The event is stored for all handlers that subscribe to its type.",
        commands,
        emit,
        "Emit",
        ("events", {}),
        bulk=True,
        form="emit.html",
    )


def _fire(request: PageRequest) -> Asked:
    key = _required(request, "key")
    return Asked(
        "Fire a schedule",
        f"The event of schedule {key} is emitted now, beside its ticks.",
        [_command(request, ("schedules", "fire"), key)],
        lambda operator: operator.fire(key),
        "Fire",
        ("later" if request.has("later") else "events", {}),
        {"key": key},
    )


# -- dead letters -----------------------------------------------------------------------------------


def letter_token(handler: str, event_id: str) -> str:
    """A dead letter of a list, as its checkbox says it."""
    return cursor(handler, event_id)


def group_token(group: FailureGroup) -> str:
    """A failure group, as its button says it."""
    return cursor(group.handler, group.exception, str(group.frame or ""))


@dataclass(frozen=True)
class _Meant:
    """Dead letters: what a form chose, pinned to a time."""

    title: str
    selections: list[Selection]
    options: list[dict[str, str | None]]
    """Of commands that mean the same."""
    fields: dict[str, str | list[str]]
    bulk: bool = True
    close_to: bool = False


def _meant(request: PageRequest) -> _Meant:
    """Those that are ticked, a group, or all that fit the filter of the list.

    Only those that died before the preview: the page and the POST mean the same.
    """
    pinned = request.value("until")
    until = request.now if pinned is None else _instant(pinned)
    fields: dict[str, str | list[str]] = {"until": to_text(until)}
    if tokens := request.values("letter"):
        return _ticked(tokens, until, fields | {"letter": tokens})
    if (token := request.value("group")) is not None:
        return _group(request, token, until, fields | {"group": token})
    given = {name: request.value(name) for name in ("id", "handler", "type", "error")}
    since = request.value("since")
    from_ = (
        None if since is None else ago(request.now, since) if pinned is None else _instant(since)
    )
    which = selection(given["id"], given["handler"], given["type"], given["error"], since=from_)
    which = which._replace(until=until)
    kept = fields | {name: text for name, text in given.items() if text is not None}
    if from_ is not None:
        kept["since"] = to_text(from_)
    conditions: dict[str, str | None] = {
        "event_id": given["id"],
        "handler": given["handler"],
        "type": given["type"],
        "error": given["error"],
        "newer_than": since if pinned is None else None,
    }
    of = [f"{name.replace('_', ' ')} {text}" for name, text in conditions.items() if text]
    return _Meant(
        f"all dead letters with {', '.join(of)}" if of else "all dead letters of the namespace",
        [which],
        [conditions] if of else [],
        kept,
    )


def _ticked(tokens: list[str], until: datetime, fields: dict[str, str | list[str]]) -> _Meant:
    by_handler: defaultdict[str, list[str]] = defaultdict(list)
    for token in tokens:
        handler, event_id = place(token, str, str)
        by_handler[handler].append(event_id)
    options: list[dict[str, str | None]] = [
        {"event_id": event_id, "handler": handler}
        for handler, ids in by_handler.items()
        for event_id in ids
    ]
    return _Meant(
        "the dead letter" if len(tokens) == 1 else f"{len(tokens)} dead letters",
        [
            Selection(handler=handler, until=until, event_ids=tuple(ids))
            for handler, ids in by_handler.items()
        ],
        options,
        fields,
        bulk=len(tokens) > 1,
    )


def _group(
    request: PageRequest, token: str, until: datetime, fields: dict[str, str | list[str]]
) -> _Meant:
    handler, exception, frame = place(token, str, str, str)
    found = failure_groups(
        request.session,
        Selection(handler=handler, until=until),
        seconds=_GROUPING if request.form else _COUNTING,
    )
    ids = next(
        (
            each.event_ids
            for each in found.groups
            if (each.exception, str(each.frame or "")) == (exception, frame)
        ),
        None,
    )
    if ids is None:
        raise NotFoundError(
            f"there are no dead letters of {handler} with {exception} any more; nothing was changed"
        )
    return _Meant(
        f"the dead letters of {handler} with {exception}" + (f" at {frame}" if frame else ""),
        [Selection(handler=handler, until=until, event_ids=tuple(ids))],
        [{"handler": handler, "error": exception}],
        fields,
        close_to=True,
    )


def _retry(request: PageRequest) -> Asked:
    meant = _meant(request)
    counted = _counted(request, meant)

    def retry(operator: Operator) -> bool:
        return sum(operator.retry(each).retried for each in meant.selections) > 0

    rest = ""
    if counted.left:
        rest = (
            f" {counted.left:,} more stay: the event is not retained, or nobody subscribes to it."
        )
    return Asked(
        f"Retry {meant.title}",
        f"{_letters(counted.retriable)} back to the handlers, with a fresh set of attempts.{rest}",
        _commands(request, "retry", meant),
        retry,
        f"Retry {counted.retriable}",
        ("dead_letters", {}),
        meant.fields,
        bulk=meant.bulk,
        nothing="None of them is there any more, or none of them can be retried.",
        close_to=meant.close_to,
    )


def _dismiss(request: PageRequest) -> Asked:
    meant = _meant(request)
    found = _counted(request, meant)
    number = Count(found.retriable.number + found.left, found.retriable.exact)

    def dismiss(operator: Operator) -> bool:
        return sum(operator.dismiss(each) for each in meant.selections) > 0

    return Asked(
        f"Dismiss {meant.title}",
        f"{_letters(number)} off the list. The handlers never get those events again; the events stay "
        "as long as they are retained.",
        _commands(request, "dismiss", meant),
        dismiss,
        f"Dismiss {number}",
        ("dead_letters", {}),
        meant.fields,
        danger=True,
        nothing="None of them is there any more.",
        close_to=meant.close_to,
    )


@dataclass(frozen=True)
class _Counted:
    retriable: Count
    left: int
    """Of those that were counted: could not be retried."""


def _counted(request: PageRequest, meant: _Meant) -> _Counted:
    """How many are meant, for the page that asks; the POST does it, and counts nothing before."""
    counts = {True: 0, False: 0}
    exact = True
    if not request.form:
        operator = Operator(request.console.session, "preview", namespace=request.namespace)
        deadline = ReadDeadline(_COUNTING)
        for which in meant.selections:
            for _, possible in operator.dead_letters(which):
                if sum(counts.values()) >= BOUND or deadline.passed:
                    exact = False
                    break
                counts[possible] += 1
    return _Counted(Count(counts[True], exact), counts[False])


def _letters(number: Count) -> str:
    return "1 dead letter goes" if str(number) == "1" else f"{number} dead letters go"


def _commands(request: PageRequest, verb: str, meant: _Meant) -> list[str]:
    words = ("events", verb)
    recorded = verb == "dismiss" or meant.bulk
    if not meant.options:
        return [_command(request, (*words, "--all"), recorded=True)]
    found = [
        _command(request, words, recorded=recorded, **options)
        for options in meant.options[:_COMMANDS]
    ]
    more = len(meant.options) - len(found)
    return found + ([f"# and {more} more of them"] if more else [])


def _instant(text: str) -> datetime:
    try:
        when = checks.instant("the time of a preview", from_text(text))
        return when.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidValueError(f"{text[:100]!r} is no time of a preview") from error


# -- the store --------------------------------------------------------------------------------------


def _repair(request: PageRequest) -> Asked:
    jobs = request.console.jobs
    examined = jobs.last(EXAMINE, None)
    if examined is None or examined.running or examined.error is not None:
        raise InvalidValueError(
            "the store was not examined since this console began, so what a repair would mend is "
            "not counted; nothing was changed",
            hint="Examine it first, on the page Health.",
        )
    meant = [each for each in examined.found if REPAIRED in each.remedy]
    found = "; ".join(f"{each.what} ({each.where}): {each.count:,}" for each in meant)

    def begin(operator: Operator) -> Job:
        return jobs.start(
            REPAIR,
            "repair the store",
            lambda _: Done(operator.repair(), _recorded(operator)),
            by=operator.name,
        )

    return Asked(
        "Repair the store",
        "What is derived is made again, of every namespace, in one transaction, in which nobody else "
        f"writes. The last examination found {found or 'nothing that a repair mends'}.",
        [_command(request, ("doctor", "--repair"), recorded=True)],
        begin,
        "Repair",
        ("health", {}),
        bulk=True,
        job=True,
    )


def _cleanup(request: PageRequest) -> Asked:
    age, event_type = _required(request, "before"), request.value("type")
    pinned = request.value("until")
    until = ago(request.now, age) if pinned is None else _instant(pinned)
    if event_type is not None:
        checks.name("an event's type", event_type)
    counts: dict[str, int] = {}
    if not request.form:
        retention = request.session.event_store.retention
        counts = retention.count_old(
            request.namespace, until, event_type=event_type, most=BOUND + 1
        )
    number = bounded(sum(counts.values()), BOUND)
    types = ", ".join(f"{name} {count:,}" for name, count in list(counts.items())[:_TYPES])
    more = f" and {len(counts) - _TYPES:,} more types" if len(counts) > _TYPES else ""
    title = f"Delete events older than {age}" + (f" of type {event_type}" if event_type else "")
    fields: dict[str, str | list[str]] = {"until": to_text(until), "before": age}

    def begin(operator: Operator) -> Job:
        def work(job: Job) -> Done:
            deleted = 0

            def progress(portion: int) -> None:
                nonlocal deleted
                deleted += portion
                job.tell(f"{deleted:,} events deleted")

            done = operator.cleanup(until, progress, event_type=event_type)
            return Done({"deleted": done}, _recorded(operator))

        return request.console.jobs.start(
            CLEANUP, title, work, by=operator.name, namespace=request.namespace
        )

    return Asked(
        title,
        f"{number} events from before {until:%Y-%m-%d %H:%M:%S} UTC{f': {types}{more}' if types else ''}. "
        "They are deleted with all that is kept about them, finished or not, except those being "
        "worked on; dead letters stay on their list.",
        [_command(request, ("events", "cleanup"), recorded=True, before=age, type=event_type)],
        begin,
        f"Delete {number}",
        ("health", {}),
        fields | ({"type": event_type} if event_type else {}),
        danger=True,
        job=True,
    )


def _recorded(operator: Operator) -> int | None:
    return operator.recorded[-1] if operator.recorded else None


VERBS: dict[str, Verb] = {
    "repair": _repair,
    "cleanup": _cleanup,
    "pause": _pause,
    "resume": _resume,
    "forget": _forget,
    "replay": _replay,
    "cancel": _cancel,
    "emit": _emit,
    "fire": _fire,
    "retry": _retry,
    "dismiss": _dismiss,
}
