"""Settings: a keyword, else `ONTOLOGIA_*` in the environment, else a file, else the default.

The file is `ontologia.toml`, or the table `[tool.ontologia]` of `pyproject.toml`, in the working
directory. A name that no setting has is an error in all three places.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic import Field as Setting
from pydantic_core import PydanticCustomError

from ontologia.clock import Clock
from ontologia.errors import ConfigError, shown

_PREFIX = "ONTOLOGIA_"
_SECRET = ("kafka_options", "datastore_uri", "archive_uri")
"""Settings whose values are in no message: they may hold passwords."""
_MOST = 100 * 365 * 24 * 3600 * 1000
"""A hundred years in milliseconds: longer, clocks and locks do not count."""
_Positive = Annotated[int, Setting(gt=0, le=_MOST)]
_NotNegative = Annotated[int, Setting(ge=0, le=_MOST)]


def _options(given: Any) -> Any:
    """Options as a dict; ValueError, without them, for what is none."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            # The error of the parser has the text.
            raise PydanticCustomError("options", "the text is not JSON") from None
    if not isinstance(given, dict):
        raise PydanticCustomError("options", "a table of names and values, as JSON an object")
    for name, value in given.items():
        if not isinstance(value, str | int | float):
            raise PydanticCustomError(
                "options", "{name} is no text, number or boolean", {"name": str(name)}
            )
    return given


class OntologiaConfig(BaseModel):
    """All settings of a session; every one has a default that suits most programs."""

    # Not pydantic-settings': with asyncio, TLS and argparse it takes 4 MB in every process.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        arbitrary_types_allowed=True,
        validate_default=True,
        hide_input_in_errors=True,  # ConfigError says it, where it is not secret
    )

    datastore_uri: Annotated[str | None, Setting(repr=False)] = None
    """Where a program may find its database; a `Session` is always given its own."""
    default_namespace: Annotated[str, Setting(min_length=1, max_length=200)] = "default"
    """Namespace of a session that names none."""

    lock_timeout_ms: _NotNegative = 5_000
    """How long a commit waits for other writers, or a read for a lock, before `LockContentionError`."""
    migration_lock_timeout_ms: _NotNegative = 10_000
    """The same for migrations and other long writes."""
    migration_at_once: _NotNegative = 1_000
    """The most objects a breaking migration upgrades in one transaction; more are upgraded in the
    background."""
    migration_wait_for_old_sessions_ms: _NotNegative = 0
    """How long a migration in the background waits, before new versions become current, for live
    sessions that opened with the types as they were; 0 does not wait."""
    statement_timeout_ms: _NotNegative = 600_000
    """How long PostgreSQL may work on one statement; 0 is no limit. SQLite has none."""
    lock_lease_ms: _Positive = 30_000
    """Lease of a long write; renewed every third of it while the write lives."""
    commit_max_retries: _NotNegative = 3
    """How often a commit that lost against another is repeated; SQLite never needs to."""
    auto_migrate: Literal["none", "compatible"] = "none"
    """Whether a session applies compatible changes of its types when it opens."""
    max_batch_size: _Positive = 10_000
    """The most objects one commit may hold."""

    event_poll_interval_ms: _NotNegative = 1_000
    """Pause of the loop after `max_events_per_iteration`; 0 lifts the rate limit."""
    event_claim_limit: _Positive = 100
    """The most events one handler claims at a time; 10 to 50 where many sessions share the work."""
    max_events_per_iteration: _Positive = 1_000
    """The most events, over all handlers, between two pauses of the loop."""
    event_claim_lease_ms: _Positive = 30_000
    """How long a handler has an event to itself; 2 to 3 times the longest handler."""
    ack_batch_size: _Positive = 100
    """The most acknowledgements that are written together; none waits longer than 5 ms."""
    event_retention_ms: _Positive = 604_800_000
    """How long finished events are kept: 7 days."""
    event_gc_interval_ms: _Positive = 3_600_000
    """How often a running session collects finished events."""
    archive_uri: Annotated[str | None, Setting(repr=False)] = None
    """Where `why`, `trace` and `inspect` look for archived events: `s3://bucket/prefix`."""
    session_heartbeat_interval_ms: _Positive = 5_000
    """How often a running session says that it is alive."""
    session_ttl_ms: _Positive = 60_000
    """After this silence a session counts as dead."""
    event_max_attempts: _Positive = 10
    """How often a handler is given an event before it is buried."""
    event_max_conflicts: _Positive = 25
    """How often in a row a conflict, or a busy database, ends a run of a handler before that is a failure."""
    event_backoff_base_ms: _NotNegative = 250
    """The wait after a failure is this, doubled with every attempt ..."""
    event_backoff_max_ms: _NotNegative = 30_000
    """... and at most this, plus up to 100 ms of chance."""
    max_event_chain_depth: _NotNegative = 20
    """The most hops in a chain of events. A deferred event (a second or more) begins at 0 again."""
    handler_durability: Literal["commit", "ack"] = "commit"
    """When a handler's commit is on disk: when it returns, or at the latest with the event's ack."""
    keep_tracebacks: bool = True
    """Whether the traceback of a handler's failed attempt is stored, at most 8 kB of it."""
    max_payload_bytes: _Positive = 1_048_576
    """The most bytes of JSON an event's fields may have."""
    shutdown_grace_ms: _NotNegative = 5_000
    """How long a stopping session waits for coroutines and worker threads, a server for clients."""
    shutdown_command_grace_ms: _NotNegative = 30_000
    """How long a stopping server waits for commands after that. What they have not committed then is not written."""
    max_abandoned_threads: _NotNegative = 8
    """How many threads of a process may be stuck in handlers past their timeouts, before a run ends.

    One event keeps at most a quarter of them: until they return, that process does not run it.
    """

    max_connections: _Positive = 512
    """The most connections a server has; fewer if the limit on open files leaves no room for them."""
    max_connections_per_peer: _NotNegative = 128
    """The most connections of one address to a server; 0 is no limit, for one behind a proxy."""

    default_message_broker_provider: Annotated[str, Setting(min_length=1)] = "store"
    """Where named events are queued: `store`, `inmemory`, `kafka`, or `none` for nowhere."""
    kafka_bootstrap_servers: str | None = None
    """Kafka's brokers as `host:port`, several with commas between."""
    kafka_topic: Annotated[str, Setting(min_length=1)] = "ontologia"
    """The topic of the queue on Kafka, and how the names of its retry and dead-letter topics begin."""
    kafka_options: Annotated[dict[str, Any], BeforeValidator(_options), Setting(repr=False)] = {}
    """Properties of librdkafka (`sasl.password`): a table, in the environment JSON text. Never shown."""

    clock: Annotated[Any, Setting(exclude=True)] = None
    """The clock of everything, by keyword only; `ontologia.testing.ManualClock` for tests."""
    random: Annotated[Random | None, Setting(exclude=True)] = None
    """The source of randomness, by keyword only; a seeded `random.Random` for tests."""

    def __init__(self, **values: Any) -> None:
        given = _environment(type(self)) | values
        for table in _tables():
            given = table | given
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ConfigError(_explain(error, type(self))) from error
        if self.clock is not None and not isinstance(self.clock, Clock):
            raise ConfigError(f"clock must have now(), monotonic() and sleep(), got {self.clock!r}")


def _tables() -> list[dict[str, Any]]:
    """The settings in the working directory's files, the one that counts more first."""
    tables = [_read(Path("ontologia.toml"))]
    project = _read(Path("pyproject.toml")).get("tool", {})
    tables.append(project.get("ontologia", {}))
    for table in tables:
        if not isinstance(table, dict):
            raise ConfigError(  # it is not repeated, and may be a URI with a password
                f"[tool.ontologia] in pyproject.toml is a table, got a {type(table).__name__}"
            )
    return tables


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _environment(config: type[OntologiaConfig]) -> dict[str, Any]:
    """The settings in the environment, as text; pydantic makes numbers of it."""
    found: dict[str, Any] = {}
    for variable, text in os.environ.items():
        if not variable.upper().startswith(_PREFIX):
            continue
        name = variable[len(_PREFIX) :].lower()
        if name in config.model_fields:
            found[name] = text
        # ONTOLOGIA_TEST_… belongs to the test suite, ONTOLOGIA_EXT_… to extensions, ONTOLOGIA_TOKEN
        # to `ontologia serve`: a secret is no setting.
        elif (
            variable.startswith(_PREFIX)
            and not name.startswith(("test_", "ext_"))
            and name != "token"
        ):
            raise ConfigError(f"{variable} is not a setting{_nearest(name, config)}")
    return found


def _explain(error: ValidationError, config: type[OntologiaConfig]) -> str:
    lines: list[str] = []
    for problem in error.errors():
        name = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            lines.append(f"{name} is not a setting{_nearest(name, config)}")
        elif problem["loc"][:1] and problem["loc"][0] in _SECRET:
            lines.append(f"{name}: {problem['msg']}")
        else:
            lines.append(f"{name}: {problem['msg']}, got {shown(problem['input'])}")
    return "; ".join(lines)


def _nearest(name: str, config: type[OntologiaConfig]) -> str:
    close = difflib.get_close_matches(name, config.model_fields, n=1)
    return f"; did you mean {close[0]}?" if close else ""
