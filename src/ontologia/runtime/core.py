"""`Core`: what the parts of the package share of one session."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
from collections.abc import Callable, Mapping
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ontologia.clock import Clock
from ontologia.engine.consumer import Consumer
from ontologia.engine.scheduler import Scheduler
from ontologia.errors import (
    ConnectionLostError,
    DiskFullError,
    OntologiaError,
    QueryError,
    QueryTypeError,
    ReadOnlyError,
    SessionClosedError,
    shown,
)
from ontologia.ids import Ids
from ontologia.migration.apply import Migration
from ontologia.migration.background import MigrationProgress
from ontologia.migration.plan import MigrationResult
from ontologia.migration.versions import TypeVersions
from ontologia.query.builder import commit_hint
from ontologia.runtime.commits import Commits, check_head
from ontologia.runtime.delta import Delta, DeltaMaker
from ontologia.runtime.intents import Intents, stale_of
from ontologia.runtime.reader import Reader
from ontologia.schema.registry import Registry
from ontologia.schema.shape import Shape
from ontologia.schema.upgraders import Upgrader, UpgraderKey
from ontologia.store.events import checks
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.open import clock_of, open_store
from ontologia.store.staging import PendingMigration
from ontologia.store.turn import Turns

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig
    from ontologia.engine.engine import Engine
    from ontologia.engine.outbox import Outbox
    from ontologia.store.events.store import EventStore
    from ontologia.store.s3 import S3EventStore

log = logging.getLogger(__name__)
LARGEST_COMMIT_ID = 2**63 - 1  # no database counts further


class Core:
    """The store of one session, and what reads and writes it. Thread-safe.

    Users have a `Session`, which is a facade of this; `core_of(session)` gives the package's own
    code its core. Opening it registers the classes of `registry`, makes their indexes and writes
    the row of the session.
    """

    def __init__(
        self,
        uri: str,
        config: OntologiaConfig,
        namespace: str,
        registry: Registry,
        upgraders: Mapping[UpgraderKey, Upgrader],
        instance: Mapping[str, Any],
        event_store: str | None = None,
    ) -> None:
        self.config = config
        self.namespace = namespace
        self.clock: Clock = config.clock or clock_of(uri)
        self.random: random.Random = config.random or random.SystemRandom()
        self.session_id = Ids(self.clock, self.random).new()
        self.closed = False
        self.engine: Engine | None = None
        """The engine of `Session.run`, while it runs."""
        self.on_close: list[Callable[[], None]] = []
        """Closes what uses this session; called before it is closed."""
        self.instance: dict[str, Any] = {
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            **instance,
        }
        """The metadata of the row of the session, besides what it runs."""
        self.reruns = Turns()
        """Of functions that `transact` calls again, by the object they had a conflict about."""
        self.running: list[Consumer] = []
        """What engines of the session run; twice, if two of them do."""
        self.registry = registry
        self._indexed: set[Shape] = set()
        self.store = open_store(uri, config, self.clock, self.random)
        try:
            self.versions = TypeVersions(self.store, registry, self.session_id, upgraders)
            self.store.events.upgraders = self.versions.upgraders
            self.deltas = DeltaMaker(registry, self.versions)
            self.reader = Reader(self.store, registry, self.versions)
            self.commits = Commits(
                self.store, self.versions, config, self.clock, self._prepare_types
            )
            self.scheduler = Scheduler(self.store.events, namespace, self.clock)
            self._register()
            self._open_bucket(event_store)
        except BaseException:
            self.store.close()
            raise

    def _open_bucket(self, uri: str | None) -> None:
        """Have handlers get their events from a bucket, and carry those of the database there."""
        self.bucket: S3EventStore | None = None
        self.outbox: Outbox | None = None
        if uri is None:
            return
        from ontologia.engine.outbox import Outbox  # only for those who have a bucket
        from ontologia.store.s3 import S3EventStore

        self.bucket = S3EventStore(uri, config=self.config, clock=self.clock, random=self.random)
        self.bucket.upgraders = self.versions.upgraders
        try:
            self.bucket.probe()
        except ConnectionLostError as error:
            log.warning("events wait in the database: %s", error.args[0])
        outbox = Outbox(self, self.bucket)
        try:
            outbox.open()
        except (DiskFullError, ReadOnlyError) as error:
            log.warning("no events are carried to %s: %s", uri, error.args[0])
            return
        self.outbox = outbox

    @property
    def deliveries(self) -> EventStore | S3EventStore:
        """The event store whose events handlers get."""
        return self.bucket or self.store.events

    def _register(self) -> None:
        try:
            self.versions.register(list(self.registry))
            self._prepare_types()
            self.register_session()
        except (DiskFullError, ReadOnlyError) as error:
            # It can be read; a write raises.
            level = logging.INFO if isinstance(error, ReadOnlyError) else logging.WARNING
            log.log(level, "opened for reading only: %s", error.args[0])

    def _prepare_types(self) -> None:
        """Make the indexes of types that were registered since the last call.

        With `auto_migrate` their compatible changes are applied first.
        """
        if len(self._indexed) == len(self.registry):
            return
        if self.config.auto_migrate == "compatible":
            owner_id = f"{self.session_id}:{threading.get_ident()}"
            self.migration().apply_compatible(owner_id, self.metadata())
        for shape in self.registry:
            if shape in self._indexed:
                continue
            for name, field in shape.fields.items():
                # Keys have an index anyway.
                if field.index and name not in (shape.key, shape.instance_key):
                    kind = shape.types[name].kind
                    fill = self.versions.standing(shape).fills.get(name)
                    self.store.ensure_index(shape.kind, shape.name, name, kind, fill)
            self._indexed.add(shape)

    def with_types(self, registry: Registry) -> Core:
        """The same core with other types, for reading: it has the same store, and registers nothing."""
        made = copy(self)
        made.registry = registry
        made.versions = TypeVersions(self.store, registry, self.session_id, self.versions.upgraders)
        made.deltas = DeltaMaker(registry, made.versions)
        made.reader = Reader(self.store, registry, made.versions)
        return made

    # -- the session ----------------------------------------------------------------------------

    def register_session(self, **more: Any) -> None:
        """Write the row of the session, with what it runs and `more` metadata."""
        running = list(self.running)
        metadata = self.instance | more
        if hashes := self.versions.hashes():
            metadata["types"] = hashes
        if running:
            types = {each for consumer in running for each in consumer.types}
            metadata["consumers"] = list(dict.fromkeys(each.name for each in running))
            metadata["event_types"] = sorted(types - {ALL_TYPES})
        if schedules := self.scheduler.described():
            metadata["schedules"] = schedules
        self.store.events.register_session(self.session_id, self.namespace, metadata)

    def end_session(self) -> None:
        """Write that the session has ended."""
        self.store.events.end_session(self.session_id)

    def check_open(self) -> None:
        """SessionClosedError if the session is closed."""
        if self.closed:
            raise SessionClosedError("the session is closed", hint="Open another Session.")

    @property
    def stopping(self) -> bool:
        """Whether `Session.run` was told to stop, and waits for handlers to return."""
        engine = self.engine
        return engine is not None and engine.stopping

    def close(self) -> None:
        """Close what uses the session, write its end and close the store.

        A server that does not answer is waited for seconds at most; then the end is not written.
        """
        if self.outbox is not None:
            self.outbox.close()
        self.store.hurry()
        for close in list(self.on_close):
            close()
        if self.bucket is not None:
            self.bucket.close()
        self.closed = True
        try:
            self.end_session()
        except OntologiaError as error:
            # Only listings of sessions show it, which is no reason to fail here.
            log.info("the end of session %s was not written: %s", self.session_id, error)
        finally:
            self.store.close()

    # -- units of work --------------------------------------------------------------------------

    def new_intents(self, *, checked: bool = False) -> Intents:
        """An empty queue of intents for this store."""
        return Intents(self.registry, self.store.store_id, checked=checked)

    def metadata(self) -> dict[str, Any]:
        """What the metadata of every commit of the session says."""
        return {"namespace": self.namespace, "session_id": self.session_id}

    def preview(self, intents: Intents, expected_head: int | None) -> Delta:
        """The delta that a commit of these intents would write, or what it would raise."""
        queue = intents.snapshot()
        self.commits.check_size(queue)
        with self.store.read() as reader:
            check_head(expected_head, reader.head())
            outdated = [d for d in self.versions.diffs(reader) if (d.kind, d.name) in queue]
            if outdated:
                raise self.versions.outdated(outdated)
            try:
                found = self.commits.preview(reader, queue, intents.reads)
            except OntologiaError as error:
                intents.mark_stale(queue, stale_of(error))
                raise
            return self.deltas.make(found)

    # -- commits --------------------------------------------------------------------------------

    def commit_of(self, as_of: object) -> int:
        """The commit that a caller's `as_of` means."""
        if isinstance(as_of, datetime):
            return self.store.commit_at(checks.instant("as_of", as_of))
        number = commit_number("as_of", as_of, "a commit number or an aware datetime")
        if not 0 <= number <= LARGEST_COMMIT_ID:
            raise QueryError(f"as_of takes a commit number from 0 on, got {shown(as_of)}")
        return number

    def migrate(
        self,
        token: str | None,
        force: bool = False,
        record: dict[str, Any] | None = None,
        *,
        follow: bool = False,
        progress: Callable[[MigrationProgress], None] | None = None,
        rate: float | None = None,
    ) -> MigrationResult:
        """Apply the migration; with the `record` of an operator there is a commit in any case."""
        # Two threads of a session are two owners: each must wait for the other's lease.
        owner_id = f"{self.session_id}:{threading.get_ident()}"
        result = self.migration().apply(
            owner_id,
            token=token,
            force=force,
            follow=follow,
            metadata=self.metadata(),
            record=record,
            progress=progress,
            rate=rate,
        )
        self._indexed.clear()
        self._prepare_types()
        return result

    def migration(self) -> Migration:
        """The migration of the store to the registered classes."""
        holder = f"{self.instance.get('hostname')}, process {self.instance.get('pid')}"
        return Migration(
            *(self.store, self.registry, self.versions, self.clock, self.config, holder)
        )

    def abort_migration(self) -> PendingMigration | None:
        """Take back a migration in the background; what it was, None if there is none."""
        return self.migration().abort(f"{self.session_id}:{threading.get_ident()}")


def commit_number(what: str, value: object, kind: str = "commit numbers") -> int:
    """A caller's commit number, which must be an int; the commit need not exist."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise QueryTypeError(f"{what} takes {kind}, got {shown(value)}", hint=commit_hint(value))
    return value
