"""Events on the wire: CloudEvents 1.0, for Kafka and S3 and for programs in other languages.

A Kafka message has the attributes as headers (`ce_id`, `ce_type`, ...) and the payload as its value:
the binary mode of CloudEvents. An object on S3 is one JSON document with both: the structured mode.
Lineage, tenant and priority are extension attributes, which other programs may leave out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ontologia import codec
from ontologia.clock import from_text, to_text
from ontologia.errors import InvalidValueError, shown
from ontologia.store.events import checks

SPEC_VERSION = "1.0"
STRUCTURED = "application/cloudevents+json"
_JSON = "application/json"
_PRIORITY = 100
_LARGEST = 2**31 - 1
# Extension attributes of CloudEvents have names of lower-case letters and digits.
_TEXTS = {
    "rootid": "root_event_id",
    "correlationid": "correlation_id",
    "causationid": "causation_id",
    "tenantid": "tenant_id",
    "namespace": "namespace",
}
_NUMBERS = {"chaindepth": "chain_depth", "priority": "priority"}
_HEADERS = [(f"ce_{attribute}", name) for attribute, name in (_TEXTS | _NUMBERS).items()]
_ATTRIBUTES = {
    f"ce_{attribute}": attribute
    for attribute in ("specversion", "id", "type", "source", "time", *_TEXTS, *_NUMBERS)
}
"""By header: those that are read."""
_SPEC_VERSION = ("ce_specversion", SPEC_VERSION.encode())
_CONTENT_TYPE = ("content-type", _JSON.encode())
# RFC 3339; `fromisoformat` also reads other forms of ISO 8601, such as weeks.
_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", re.ASCII | re.IGNORECASE
)


class Message(NamedTuple):
    """One event as it crosses from one system to another."""

    id: str
    type: str
    source: str
    """Where it comes from: a URI reference."""
    time: datetime
    """When it happened."""
    payload: str
    """A JSON object, as canonical text."""
    root_event_id: str | None = None
    """The first event of the chain; None if this is the first."""
    chain_depth: int = 0
    correlation_id: str | None = None
    causation_id: str | None = None
    tenant_id: str | None = None
    namespace: str | None = None
    """The namespace that it was stored in, if it was stored."""
    priority: int = _PRIORITY

    @property
    def root(self) -> str:
        """The first event of the chain: what keeps a chain in order where it is the key."""
        return self.root_event_id or self.id


def headers_of(message: Message) -> list[tuple[str, bytes]]:
    """The headers of a Kafka message in binary mode; its value is the payload."""
    headers = [
        _SPEC_VERSION,
        ("ce_id", message.id.encode()),
        ("ce_type", message.type.encode()),
        ("ce_source", message.source.encode()),
        ("ce_time", to_text(message.time).encode()),
    ]
    for header, name in _HEADERS:
        value = getattr(message, name)
        if value is not None:
            headers.append((header, str(value).encode()))
    headers.append(_CONTENT_TYPE)
    return headers


def read_message(
    headers: Iterable[tuple[str, bytes | None]], value: bytes | None, written_at: datetime
) -> Message:
    """The event of a Kafka message, in binary or in structured mode.

    An event without a time of its own has that of the message, `written_at`. InvalidValueError,
    with what is wrong, if it is no CloudEvent.
    """
    attributes: dict[str, str] = {}
    name, media_type = "", _JSON
    try:
        for name, content in headers:
            text = (content or b"").decode()
            attribute = _ATTRIBUTES.get(name) or _ATTRIBUTES.get(name.lower())
            if attribute is not None:
                attributes[attribute] = text
            elif name.lower() == _CONTENT_TYPE[0]:
                media_type = text
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"header {shown(name):.100} is not UTF-8") from error
    if media_type != _JSON:
        media_type = media_type.partition(";")[0].strip().lower()
        if media_type == STRUCTURED:
            return read_document(value or b"", written_at)
        if not _is_json(media_type):
            raise InvalidValueError(
                f"content-type is {shown(media_type):.100}, and a payload is a JSON object",
                hint=f"Send {_JSON}.",
            )
    return _message(attributes, _object("the value", codec.decode(value or b"")), written_at)


def document_of(message: Message) -> bytes:
    """The event as one JSON document: structured mode."""
    document: dict[str, Any] = dict(_attributes(message))
    document |= {"datacontenttype": _JSON, "data": codec.decode_stored(message.payload)}
    return codec.encode(document, where=f"event {message.id}").encode()


def read_document(content: bytes, written_at: datetime) -> Message:
    """The event of a JSON document in structured mode, written at that time; see `read_message`."""
    document = dict(_object("a structured CloudEvent", codec.decode(content)))
    if not _is_json(str(document.get("datacontenttype", _JSON)).lower()):
        raise InvalidValueError(
            f"datacontenttype is {shown(document['datacontenttype']):.100}, "
            "and a payload is a JSON object"
        )
    return _message(document, _object("data", document.pop("data", None)), written_at)


def _attributes(message: Message) -> Iterable[tuple[str, str | int]]:
    yield "specversion", SPEC_VERSION
    yield "id", message.id
    yield "type", message.type
    yield "source", message.source
    yield "time", to_text(message.time)
    for attribute, name in (_TEXTS | _NUMBERS).items():
        value = getattr(message, name)
        if value is not None:
            yield attribute, value


def _message(
    attributes: Mapping[str, Any], payload: dict[str, Any], written_at: datetime
) -> Message:
    if (version := attributes.get("specversion", SPEC_VERSION)) != SPEC_VERSION:
        raise InvalidValueError(
            f"specversion is {shown(version):.100}; version {SPEC_VERSION} is understood"
        )
    for name in ("id", "type", "source"):
        if name not in attributes:
            raise InvalidValueError(f"a CloudEvent has the attribute {name}, and this one has none")
    time = attributes.get("time")
    return Message(
        checks.name("id", attributes["id"]),
        checks.name("type", attributes["type"]),
        checks.name("source", attributes["source"], longest=2_000),
        written_at if time is None else _instant(time),
        codec.encode(payload, where="data"),
        _text(attributes, "rootid"),
        _number(attributes, "chaindepth", 0, least=0),
        _text(attributes, "correlationid"),
        _text(attributes, "causationid"),
        _text(attributes, "tenantid"),
        _text(attributes, "namespace"),
        _number(attributes, "priority", _PRIORITY, least=-_LARGEST),
    )


def _text(attributes: Mapping[str, Any], name: str) -> str | None:
    value: Any = attributes.get(name)
    return None if value is None else checks.name(name, value)


def _instant(value: Any) -> datetime:
    """An instant of RFC 3339; one without an offset is taken to be in UTC."""
    try:
        if not _RFC_3339.fullmatch(value):
            raise ValueError
        instant = from_text(value.upper())
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"time is an instant of RFC 3339, got {shown(value):.100}"
        ) from error
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _number(attributes: Mapping[str, Any], name: str, default: int, *, least: int) -> int:
    value: Any = attributes.get(name, default)
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError as error:
            raise InvalidValueError(f"{name} is a whole number, got {shown(value):.100}") from error
    return checks.whole(name, value, least, _LARGEST)


def _object(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValueError(f"{what} is a JSON object, got {shown(value):.200}")
    return value


def _is_json(media_type: str) -> bool:
    kind = media_type.partition(";")[0].strip()
    return kind == _JSON or kind.endswith("+json")
