"""Where everything lies under a prefix, and what is in it.

    <namespace>/events/<event id>.json              the event, never changed
    <namespace>/unfinished/<order>!<id>!<type>      while a consumer has not finished it
    <namespace>/backlog/<handler>/<order>!<id>!<type>  from before the consumer came
    <namespace>/claims/<event id>/<handler>.json    how far one consumer is with it
    <namespace>/dead-letters/<order>!<id>!<handler>.json
    <namespace>/lineage/<event id>.json             what does not fit into the event's metadata
    <namespace>/sessions/<session id>.json
    <namespace>/index/index.json                    the last event of each handler
    <namespace>/index/consumers.json                who subscribes to what
    <namespace>/archive/<event id>.json             of an archive: the event is never deleted

Names are percent-encoded. A marker's key sorts by priority, time and id, so that one listing has
what is to be done, in order; its ETag changes when another process should look at the event again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from ontologia import codec
from ontologia.clock import to_text
from ontologia.delivery.lifecycle import ClaimTimes, lease_is_valid
from ontologia.errors import InvalidValueError
from ontologia.ids import made_at
from ontologia.store.rows import EventRow
from ontologia.store.s3.bucket import Listed, Stored, decoded, encoded

_HIGHEST = 2**31 - 1
_DIGITS = len("20260101000000000000")  # of a time, to the microsecond
_LARGEST_METADATA = 2_000  # bytes; S3 allows 2,048
_ELSEWHERE = "elsewhere"  # the metadata of an event whose lineage is an object of its own
_MOST_FAILURES = 20  # attempts that a claim remembers
_METADATA = {
    "source": "source",
    "correlation_id": "correlation",
    "causation_id": "causation",
    "tenant_id": "tenant",
    "dedup_key": "dedup-key",
    "occurred_at": "occurred-at",
}


class Marker(NamedTuple):
    """An event that some consumer has not finished, as its key says it. In order when sorted."""

    urgency: int
    """Less is first."""
    time: str
    id: str
    type: str
    etag: str = ""
    """Another one when something about the event's claims changed."""

    @property
    def priority(self) -> int:
        """The event's priority."""
        return _HIGHEST - self.urgency

    @property
    def created_at(self) -> str:
        """The event's time."""
        date, day = self.time[:8], self.time[8:]
        return f"{date[:4]}-{date[4:6]}-{date[6:]}T{day[:2]}:{day[2:4]}:{day[4:6]}.{day[6:]}+00:00"

    @property
    def name(self) -> str:
        """The last part of its key."""
        return f"{self.urgency:010}-{self.time}!{encoded(self.id)}!{encoded(self.type)}"


def marker_of(row: EventRow) -> Marker:
    """The marker of an event."""
    return Marker(_HIGHEST - row.priority, _time_digits(row.created_at), row.id, row.type)


def listed_marker(listed: Listed) -> Marker | None:
    """The marker that a listing shows; None for what is none."""
    parts = listed.key.rpartition("/")[2].split("!")
    order, _, time = parts[0].partition("-")
    if len(parts) != 3 or not (order.isdecimal() and time.isdecimal() and len(time) == _DIGITS):
        return None
    return Marker(int(order), time, decoded(parts[1]), decoded(parts[2]), listed.etag)


def _time_digits(text: str) -> str:
    return "".join(filter(str.isdecimal, text))[:_DIGITS]


class Keys:
    """The keys of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.root = encoded(namespace)
        self.events = f"{self.root}/events"
        self.unfinished = f"{self.root}/unfinished"
        self.backlogs = f"{self.root}/backlog"
        self.claims = f"{self.root}/claims"
        self.dead_letters = f"{self.root}/dead-letters"
        self.sessions = f"{self.root}/sessions"
        self.records = f"{self.root}/archive"
        self.index = f"{self.root}/index/index.json"
        self.consumers = f"{self.root}/index/consumers.json"

    def event(self, event_id: str) -> str:
        return f"{self.events}/{encoded(event_id)}.json"

    def lineage(self, event_id: str) -> str:
        return f"{self.root}/lineage/{encoded(event_id)}.json"

    def marker(self, marker: Marker) -> str:
        return f"{self.unfinished}/{marker.name}"

    def backlog(self, handler_id: str) -> str:
        return f"{self.backlogs}/{encoded(handler_id)}"

    def claims_of(self, event_id: str) -> str:
        return f"{self.claims}/{encoded(event_id)}"

    def claim(self, event_id: str, handler_id: str) -> str:
        return f"{self.claims_of(event_id)}/{encoded(handler_id)}.json"

    def dead_letter(self, failed_at: str, event_id: str, handler_id: str) -> str:
        # The newest is listed first.
        order = 10**_DIGITS - 1 - int(_time_digits(failed_at))
        return (
            f"{self.dead_letters}/{order:0{_DIGITS}}!{encoded(event_id)}!{encoded(handler_id)}.json"
        )

    def session(self, session_id: str) -> str:
        return f"{self.sessions}/{encoded(session_id)}.json"


def name_of(listed: Listed) -> str:
    """The name that the last part of a key stands for."""
    return decoded(listed.key.rpartition("/")[2].removesuffix(".json"))


# -- events ---------------------------------------------------------------------------------------


class EventObjects(NamedTuple):
    """An event as it is stored."""

    body: bytes
    metadata: dict[str, str]
    lineage: bytes | None
    """An object of its own, for lineage that is too long for metadata."""


def event_objects(row: EventRow) -> EventObjects:
    """The objects that an event is stored as; InvalidValueError if its payload is no JSON."""
    shown = {
        "id": row.id,
        "namespace": row.namespace,
        "type": row.type,
        "payload": codec.decode(row.payload),
        "created_at": row.created_at,
        "priority": row.priority,
        "root_event_id": row.root_event_id,
        "chain_depth": row.chain_depth,
        "available_at": row.created_at,
    }
    lineage: dict[str, str] = {
        name: str(getattr(row, column))
        for column, name in _METADATA.items()
        if getattr(row, column) is not None
    }
    # Metadata travels in headers, which have no other characters.
    metadata = {name: quote(value, safe=":/@+,=") for name, value in lineage.items()}
    body = codec.encode_checked(shown).encode()
    if sum(map(len, [*metadata, *metadata.values()])) <= _LARGEST_METADATA:
        return EventObjects(body, metadata, None)
    return EventObjects(body, {"lineage": _ELSEWHERE}, codec.encode_checked(lineage).encode())


def has_lineage_object(stored: Stored) -> bool:
    """Whether the lineage of an event is an object of its own."""
    return stored.metadata.get("lineage") == _ELSEWHERE


def event_row(
    namespace: str, marker_id: str, stored: Stored, lineage: Stored | None = None
) -> EventRow:
    """The event of an object. One that is none has the object's bytes as its payload."""
    if lineage is None:
        values = {name: unquote(value) for name, value in stored.metadata.items()}
    else:
        values = codec.decode(lineage.body)
    more = {column: values.get(name) for column, name in _METADATA.items()}
    try:
        shown = codec.decode(stored.body)
        root = str(shown["root_event_id"])
        return EventRow(
            marker_id,
            namespace,
            str(shown["type"]),
            codec.encode(shown["payload"], where="payload"),
            str(shown["created_at"]),
            int(shown["priority"]),
            root,
            int(shown["chain_depth"]),
            **{**more, "correlation_id": more["correlation_id"] or root},
        )
    except (InvalidValueError, KeyError, TypeError, ValueError):
        return EventRow(marker_id, namespace, "", stored.body, "", 100, marker_id, 0)


# -- claims ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimDoc:
    """How far one consumer is with one event."""

    event_id: str
    handler_id: str
    session_id: str
    token: str | None
    """Of the lease; None when nobody has one."""
    claimed_at: str
    lease_until: str
    available_at: str
    started_at: str | None = None
    read_commit: int | None = None
    attempts: int = 0
    conflicts: int = 0
    last_error: str | None = None
    ack_at: str | None = None
    dead_lettered_at: str | None = None
    failures: tuple[dict[str, Any], ...] = ()
    """The last attempts that did not succeed."""

    @property
    def ended(self) -> bool:
        """Whether the consumer has finished the event, one way or the other."""
        return self.ack_at is not None or self.dead_lettered_at is not None

    @property
    def due_at(self) -> str:
        """From when on it can be claimed, unless it has ended."""
        return self.available_at if self.token is None else self.lease_until

    @property
    def times(self) -> ClaimTimes:
        """What decides its state."""
        return ClaimTimes(self.lease_until, self.available_at, self.ack_at, self.dead_lettered_at)

    def is_held(self, now: str, *, session_id: str | None = None, token: str | None = None) -> bool:
        """Whether the lease is valid, and theirs if a session or a token is named."""
        return (
            not self.ended
            and self.token is not None
            and token in (None, self.token)
            and session_id in (None, self.session_id)
            and lease_is_valid(self.lease_until, now)
        )

    def failed(
        self, now: str, attempt: int, outcome: str, error: str | None, traceback: str | None = None
    ) -> ClaimDoc:
        """The same with one attempt more that did not succeed."""
        failure = {
            "attempt": attempt,
            "started_at": self.started_at,
            "ended_at": now,
            "read_commit": self.read_commit,
            "outcome": outcome,
            "error": error,
            "traceback": traceback,
        }
        return replace(self, failures=(*self.failures, failure)[-_MOST_FAILURES:])

    def body(self, nonce: str) -> bytes:
        """What is stored. With a fresh nonce no two bodies, and so no two ETags, are equal."""
        return codec.encode_checked({**asdict(self), "nonce": nonce}).encode()


_CLAIM_FIELDS = [field.name for field in fields(ClaimDoc)]


def claim_doc(body: bytes) -> ClaimDoc:
    """The claim of an object; InvalidValueError if it is none."""
    shown = codec.decode(body)
    try:
        values: dict[str, Any] = {name: shown[name] for name in _CLAIM_FIELDS}
        values["failures"] = tuple(values["failures"])
        return ClaimDoc(**values)
    except (KeyError, TypeError) as error:
        raise InvalidValueError(f"a claim in the bucket cannot be read: {error}") from error


def id_time(event_id: str) -> str | None:
    """When an id of version 7 was made; None for another id."""
    found = made_at(event_id)
    return None if found is None else to_text(found)
