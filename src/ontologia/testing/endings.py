"""How a run ended: the state, the events and the effects it left, and how two endings differ."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from ontologia import codec
from ontologia.delivery.dead_letter import EventDeadLetter
from ontologia.runtime.session import Session, core_of
from ontologia.store.rows import RawChange

HANDLED = "was handled"
DISCARDED = "was discarded"
_ALL = 2**31 - 1
_LONGEST = 300  # characters of one value in a message


class Ending(NamedTuple):
    """What is left, without what no two runs have in common: ids, times and numbers of commits."""

    fate: str
    """What became of the event itself: HANDLED, or why it is a dead letter."""
    objects: dict[str, dict[str, str]]
    """What is true of each object: JSON by field, by the object's name."""
    events: Counter[str]
    """Events as type and JSON, announced or waiting for their time."""
    effects: Any


def ending_of(session: Session, event_id: str, before: Counter[str], effects: Any) -> Ending:
    """How it stands now; `before` are the events that were there from the beginning."""
    changes = core_of(session).store.changes_between(0, session.head)
    return Ending(
        _fate(session.event_store.inspect_event(event_id) or {}),
        {_name(each): _fields(each.after) for each in changes if each.after is not None},
        events_in(session) - before,
        effects,
    )


def _fate(event: dict[str, Any]) -> str:
    [claim] = event["claims"]
    if not claim["dead_lettered_at"]:
        return HANDLED
    discarded = event["attempts"][-1]["outcome"] == "discarded"
    return f"{DISCARDED if discarded else 'failed for good'}: {claim['last_error']}"


def events_in(session: Session) -> Counter[str]:
    """Every event of the session's namespace, but for those that announce dead letters."""
    journal = session.event_store.journal
    stored = journal.entries(session.namespace, limit=_ALL)
    stored += journal.deferred(session.namespace, status="scheduled", until=None, limit=_ALL)
    return Counter(
        f"{each['topic']} {codec.encode(each['payload'])}"
        for each in stored
        if each["topic"] != EventDeadLetter.__event_type__
    )


def _name(change: RawChange) -> str:
    return " ".join((change.type_name, ":".join(part for part in change.key if part)))


def _fields(text: str) -> dict[str, str]:
    return {name: codec.encode(value) for name, value in codec.decode_stored(text).items()}


def differences(wanted: Ending, got: Ending) -> list[str]:
    """How `got` differs, one line each; [] if it does not."""
    found: list[str] = []
    if got.fate != wanted.fate:
        found.append(f"the event {_short(got.fate)}; undisturbed it {_short(wanted.fate)}")
    for name in sorted({*wanted.objects, *got.objects}):
        found += _between(name, wanted.objects.get(name), got.objects.get(name))
    for event in sorted(wanted.events.keys() | got.events.keys()):
        if got.events[event] != wanted.events[event]:
            times = f"{_times(got.events[event])}; undisturbed {_times(wanted.events[event])}"
            found.append(f"event {_short(event)}: announced {times}")
    if got.effects != wanted.effects:
        shown = f"{_short(repr(got.effects))}; undisturbed {_short(repr(wanted.effects))}"
        found.append(f"effects: {shown}")
    return found


def _between(name: str, wanted: dict[str, str] | None, got: dict[str, str] | None) -> list[str]:
    if wanted is None:
        return [f"{name}: is there; undisturbed it is not"]
    if got is None:
        return [f"{name}: is not there; undisturbed it is"]
    return [
        f"{name}: {field} is {_short(got.get(field, 'missing'))}; "
        f"undisturbed {_short(wanted.get(field, 'missing'))}"
        for field in sorted({*wanted, *got})
        if wanted.get(field) != got.get(field)
    ]


def _times(count: int) -> str:
    return ("never", "once", "twice")[count] if count < 3 else f"{count} times"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
