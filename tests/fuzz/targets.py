"""The entrances, each as a function of bytes: it returns, or something is wrong.

An entrance lets through what it understands, and refuses the rest with an error of its own. Any
other exception is a finding, and so is an answer that does not hold.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from ontologia import OntologiaConfig, Schedule, Session, codec
from ontologia.actors.adapter import Lines
from ontologia.actors.message import Message
from ontologia.cli.main import app
from ontologia.errors import (
    ConfigError,
    InvalidValueError,
    ManifestError,
    OntologiaError,
    QueryError,
    StoreOpenError,
)
from ontologia.extensions.manifest import read_manifest
from ontologia.query.words import Words
from ontologia.runtime.session import core_of
from ontologia.runtime.transfer.importing import import_state
from ontologia.schema.event import event_of, payload_of
from ontologia.schema.typespec import TypeSpec
from ontologia.store.open import sqlite_path
from ontologia.store.postgres.place import place_of
from ontologia.testing import ManualClock
from tests.fuzz.world import Fuzzed, FuzzedEvent, FuzzedLink, ask_both, filled

DOCUMENTED = {0, 1, 2, 3, 4, 5, 6}
"""Exit codes of commands that nobody interrupts."""
READING = [
    each.split()
    for each in (
        *("info", "doctor", "diff", "why", "trace", "export", "commits", "commits show"),
        *("query entities", "query relations", "query traverse", "migrate", "schedules list"),
        *("schema sql", "schema export", "schema history", "import --dry-run"),
        *("events list-namespaces", "events sessions", "events show", "events inspect"),
        *("events consumers", "events stats", "events dead-letters", "extensions list"),
    )
]
"""Commands that change nothing, whatever is said to them, but for these options."""
CHANGING = {"--apply", "--models", "--output", "--repair", "--upgraders"}


def decoding(data: bytes) -> None:
    """JSON is decoded, and encoded again the same, or refused."""
    try:
        text = codec.encode(codec.decode(data))
    except InvalidValueError:
        return
    assert codec.encode(codec.decode(text)) == text
    assert json.dumps(json.loads(text)) == json.dumps(codec.decode(text))


def payloads(data: bytes) -> None:
    """A payload becomes an event, and the event a payload again, or is refused on either way.

    An event is made without a look at what no store keeps; that is looked for when it is stored.
    """
    try:
        again = payload_of(event_of(FuzzedEvent, data))
    except InvalidValueError:
        return
    assert payload_of(event_of(FuzzedEvent, again)) == again


def messages(data: bytes) -> None:
    """A line is a message, which is the same again when it is sent on; or it is refused."""
    try:
        message = Message.from_json(data)
        again = message.to_json()  # which refuses numbers that JSON has and orjson has not
    except InvalidValueError:
        return
    assert Message.from_json(again) == message


def lines(data: bytes) -> None:
    """However a stream is cut into pieces, its lines are the same, and no longer than the limit."""
    cut = random.Random(len(data))
    pieces, at = [], 0
    while at < len(data):
        step = cut.randrange(1, 9)
        pieces.append(data[at : at + step])
        at += step
    whole, parts = Lines(16), Lines(16)
    found = list(whole.feed(data))
    assert [line for piece in pieces for line in parts.feed(piece)] == found
    assert whole.end() == parts.end()
    assert all(line is None or len(line) <= 16 for line in found)


def manifests(data: bytes) -> None:
    """A manifest is understood, or refused with its problems."""
    path = _folder() / "manifest.yaml"
    path.write_bytes(data)
    with suppress(ManifestError):
        read_manifest(path)


def settings(data: bytes) -> None:
    """A file of settings is understood, or refused."""
    folder = _folder() / "settings"
    folder.mkdir(exist_ok=True)
    (folder / "ontologia.toml").write_bytes(data)
    with _working_in(folder), suppress(ConfigError):
        OntologiaConfig()


def places(data: bytes) -> None:
    """A URI names a place, or none; nothing is opened."""
    with suppress(StoreOpenError):
        sqlite_path(_text(data)).encode()
    with suppress(StoreOpenError):
        place = place_of(f"postgresql://{_text(data)}")
        assert "\0" not in place.conninfo


def crons(data: bytes) -> None:
    """A cron expression has a next tick or none; what is not one is refused."""
    cron, _, zone = _text(data).partition("\n")
    try:
        schedule = Schedule(FuzzedEvent(text="tick"), cron, tz=zone or None)
    except ConfigError:
        return
    now = datetime(2026, 1, 1, tzinfo=UTC)
    following = schedule.next_after(now)
    assert following is None or following > now
    assert len(schedule.key) == 32


def specs(data: bytes) -> None:
    """The schema of a type, as it may stand in a store that others write to."""
    try:
        spec = TypeSpec.from_json(_text(data))
        found = spec.hash
    except InvalidValueError:
        return
    assert TypeSpec.from_json(spec.to_json()).hash == found


def words(data: bytes) -> None:
    """A condition in words is refused, or the store and the evaluator answer it alike."""
    path, operator, value, *_ = (*_text(data).split("\n", 2), None, None)
    for cls in (Fuzzed, FuzzedLink):
        try:
            condition = Words(cls.__shape__).condition(path, operator or "", value)
        except QueryError:
            continue
        ask_both(_session(), cls, condition)


def imports(data: bytes) -> None:
    """Lines to import are made true, all of them, or none."""
    session = _session()
    head = session.head
    try:
        import_state(session, io.BytesIO(data), on_conflict="replace", dry_run=True)
    except OntologiaError:
        assert session.head == head
    assert session.head == head


def arguments(data: bytes) -> None:
    """Whatever a reading command is told: a documented exit code, no traceback, nothing changed."""
    which, *given = (part.decode(errors="surrogateescape") for part in data.split(b"\n"))
    session = _session()
    command = ["--datastore-uri", core_of(session).store.uri, *READING[len(which) % len(READING)]]
    command += [each for each in given if _reads(each)]
    before = session.head, sorted(_folder().iterdir())
    run(command)
    assert (session.head, sorted(_folder().iterdir())) == before


def run(command: list[str]) -> int:
    """Run a command in this process; its exit code, which is one of the documented."""
    with _working_in(_folder()):
        done = CliRunner().invoke(app, command)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code in DOCUMENTED, (command, done.exit_code)
    assert "--debug" in command or "Traceback (most recent call last)" not in done.output
    return done.exit_code


def _reads(argument: str) -> bool:
    """Whether a command with this argument still changes nothing, and asks no server."""
    option = argument.partition("=")[0]
    return option not in CHANGING and not option.startswith("-o") and "postgres" not in argument


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


@contextmanager
def _working_in(folder: Path) -> Generator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@cache
def _folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="fuzz-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@cache
def _session() -> Session:
    """A session on a file with a few objects in it, for all that is asked in this process."""
    config: Any = OntologiaConfig(clock=ManualClock())
    return filled(Session(f"sqlite:///{_folder() / 'fuzz.db'}", config=config))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "arguments": arguments,
    "crons": crons,
    "decoding": decoding,
    "imports": imports,
    "lines": lines,
    "manifests": manifests,
    "messages": messages,
    "payloads": payloads,
    "places": places,
    "settings": settings,
    "specs": specs,
    "words": words,
}
