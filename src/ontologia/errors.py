"""Every error Ontologia raises.

OntologiaError
├── ConfigError                  a setting that does not exist or cannot be
│   └── ConfigTypeError          ... because of its type
├── DefinitionError              a class that cannot be stored as it is written
├── InvalidValueError            a value that does not fit its field, or that JSON cannot carry
│   ├── InvalidTypeError         ... because it is of the wrong type
│   └── AnswerError              ... which a command's handler returned
├── QueryError                   a question that makes no sense
│   └── QueryTypeError           ... because of the type of a value in it
├── MetadataUnavailableError     meta() of an object that was not read from a store
├── EndpointDeleted              .left or .right of a relation whose entity is gone
├── SessionClosedError
├── BatchSizeExceededError
├── HeadMismatchError
├── SchemaOutdatedError
├── LockContentionError          somebody else was writing for too long
├── StateConflictError           an object was changed by another commit after it was read
├── ObjectExistsError            an object was to be created, and exists (also RecordExists)
├── UncommittedChangesError      a handler returned without committing what it queued
├── UniqueViolationError         two objects would have one value of a unique field
├── LockLostError                the lease of a long write ran out under it
├── LeaseExpiredError            a handler was too slow; another session may have its event
├── AbandonedThreadsError        too many handlers did not return within their timeouts
├── EventLoopLimitError          a chain of events became too long
├── HandlerError                 a handler that cannot be run as it is given
├── UnknownReceiptError          a delivery that this queue does not have, or not any more
├── PermissionDeniedError        an extension tried what its manifest does not allow
├── ConsumerBusyError            a consumer that a live session runs cannot be forgotten
├── AlreadyStartedError          an event that a consumer has, or has ended, cannot be cancelled
├── MigrationError
│   ├── MigrationTokenError
│   ├── MissingUpgraderError
│   ├── NewerEventError          an event that a newer version of its class wrote
│   └── UpgraderError            an upgrader raised, or gave what its type does not allow
├── CommandHandlerNotFound       nobody carries out commands of this name
├── DuplicateHandler             a command with two handlers
├── IdempotencyKeyReused         a key that stands for another request
├── NotFoundError                what was asked for by its name or number is not there
│   └── RecordNotFound           ... a record, by its id
├── ExtensionError               an extension that cannot be loaded, or does not do what it should
│   └── ManifestError            ... because of its manifest
├── AgentError                   an agent's endpoint gave no answer
├── ActorBootError               capabilities that cannot be run as they are written
├── CopyError                    a store was not copied, or not to its end
├── TransferError                state was not exported or imported; the store is as it was
│   └── ImportConflictError      what an import would change is there already, and differs
├── BrokerError                  a message broker refused: login, rights, a missing topic
└── DatabaseError                the database said no; its own error is the cause
    ├── IntegrityError
    ├── StoreOpenError           no database can be opened there
    ├── ConnectionLostError      the server went away; it may be back soon
    ├── ReadTimeoutError         a read took longer than the time it was given
    ├── ReadOnlyError
    │   └── StandbyError         the server is a standby; it may be promoted soon
    └── DiskFullError

A message says what happened, to what and what was left behind. `hint`, where there is one, says
what helps; it is printed under the message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class OntologiaError(Exception):
    """The root of all errors raised by Ontologia."""

    hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n  hint: {self.hint}" if self.hint else message

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries in pools; their constructors take facts, not the message.
        return _remade, (type(self), self.args, self.__dict__)


def shown(value: object) -> str:
    """A value as a message shows it. Some cannot be: Python writes no integer of 5,000 digits."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a message about a value must not fail because of it
        return f"<{type(value).__name__} that cannot be shown>"


def _remade(
    cls: type[OntologiaError], args: tuple[Any, ...], facts: dict[str, Any]
) -> OntologiaError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(facts)
    return error


class ConfigError(OntologiaError, ValueError):
    """A setting that does not exist, or a value it cannot have."""


class ConfigTypeError(ConfigError, TypeError):
    """A setting or an argument of a constructor has the wrong type."""


class DefinitionError(OntologiaError, TypeError):
    """A class that cannot be stored as it is written."""


class InvalidValueError(OntologiaError, ValueError):
    """A value that does not fit its field, or that JSON cannot carry."""


class InvalidTypeError(InvalidValueError, TypeError):
    """An argument of the wrong type."""


class AnswerError(InvalidValueError):
    """What a command's handler returned cannot be given as JSON; the command was not carried out."""


class QueryError(OntologiaError, ValueError):
    """A question that makes no sense."""


class QueryTypeError(QueryError, TypeError):
    """A value in a question has the wrong type for the field it is compared with."""


class MetadataUnavailableError(OntologiaError):
    """meta() was asked of an object that was not read from a store."""

    hint = "Objects from session.query() carry metadata; objects you construct do not."


class EndpointDeleted(OntologiaError):
    """The entity at this end of the relation does not exist in the state that was read."""

    def __init__(self, relation: str, side: str, type_name: str, key: str) -> None:
        self.relation, self.side, self.type_name, self.key = relation, side, type_name, key
        super().__init__(
            f"the {side} end of {relation} does not exist: {type_name} {key!r} was deleted or never "
            f"committed; the relation itself is intact",
            hint=f"Delete the relation too, or commit the entity; it must be a {type_name} itself, "
            f"not a subclass.",
        )


class SessionClosedError(OntologiaError, RuntimeError):
    """The session was closed and its connections are gone."""


class BatchSizeExceededError(OntologiaError, ValueError):
    """One commit holds more intents than max_batch_size allows."""

    def __init__(self, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(
            f"{size} objects are queued and max_batch_size is {limit}; nothing was written and the "
            f"queue is as it was",
            hint="Commit in smaller steps, or raise OntologiaConfig(max_batch_size=...).",
        )


class HeadMismatchError(OntologiaError, RuntimeError):
    """The store has moved on: the head is not the commit the caller expected."""

    def __init__(
        self,
        *,
        expected: int | None = None,
        actual: int | None = None,
        max_retries: int | None = None,
    ) -> None:
        self.expected, self.actual, self.max_retries = expected, actual, max_retries
        what = (
            f"expected head {shown(expected)}, the store is at {actual}"
            if max_retries is None
            else f"the commit lost against others {max_retries} times"
        )
        super().__init__(
            f"{what}; nothing was written and the queue is as it was",
            hint="Read the current state again, decide again, and commit again.",
        )


class SchemaOutdatedError(OntologiaError, RuntimeError):
    """A registered class and the stored schema of its type differ."""

    hint = (
        "Preview with session.migrate() or ontologia migrate --models MODULE, then apply it with "
        "the token that the preview gives."
    )

    def __init__(self, diffs: Sequence[object]) -> None:
        self.diffs = list(diffs)
        super().__init__(
            "the store has another schema than this program: " + "; ".join(map(str, self.diffs))
        )


class LockContentionError(OntologiaError, TimeoutError):
    """Somebody else was writing for longer than the caller would wait."""

    def __init__(self, holder: str, waited_ms: float, *, what: str = "commit") -> None:
        self.holder, self.waited_ms = holder, waited_ms
        super().__init__(
            f"{what} waited {waited_ms:.0f} ms for {holder}; nothing was written and what was "
            f"queued is still queued",
            hint="Try again, or raise lock_timeout_ms if writes of that length are normal.",
        )


class StateConflictError(OntologiaError, RuntimeError):
    """Another commit changed an object after it was read."""

    # `type_name` and `key` name the object, `read` is the version it was read at and `found` the
    # current one (commits; 0 where there was, or is, none), `written_by` the handler, command or
    # session that wrote the current one. `conflicts` has `(type_name, key, read, found)` of every
    # object in question.

    def __init__(
        self,
        type_name: str,
        key: str | Sequence[str],
        *,
        read: int | None = None,
        found: int | None = None,
        deleted_at: int | None = None,
        written_by: str | None = None,
        conflicts: Sequence[tuple[str, str, int, int]] = (),
        handler: bool = False,
        only_read: bool = False,
    ) -> None:
        self.type_name, self.key = type_name, _joined(key)
        self.read, self.found, self.deleted_at = read, found, deleted_at
        self.written_by, self.conflicts = written_by, list(conflicts)
        by = f" by {written_by}" if written_by else ""
        if found is None:
            what = "was changed by another commit after it was read"
        elif not found:
            commit = f" in commit {deleted_at}" if deleted_at else ""
            what = f"was read at version {read} and deleted{commit}{by}"
        elif not read:
            what = f"did not exist when it was read, and was created in commit {found}{by}"
        else:
            what = f"was read at version {read} and changed in commit {found}{by}"
        more = f", and so were {len(self.conflicts) - 1} more" if len(self.conflicts) > 1 else ""
        super().__init__(
            f"{type_name} {self.key!r} {what}{more}; nothing was written and the queue is as it was",
            hint=(
                "The handler is run again on fresh state."
                if handler
                else "Read it again, decide again and commit again: session.transact() does that."
            )
            + (
                " This unit checks all that it has read (reads='checked'), written or not."
                if only_read
                else " ensure and delete with overwrite=True write whatever is there."
            ),
        )


class ObjectExistsError(OntologiaError, RuntimeError):
    """An object was to be created, and there is one with the same key."""

    def __init__(self, type_name: str, key: str | Sequence[str], *, queued: bool = False) -> None:
        self.type_name, self.key = type_name, _joined(key)
        what = (
            f"{type_name} {self.key!r} is queued in this unit of work already"
            if queued
            else f"there is a {type_name} {self.key!r} already; nothing was written"
        )
        super().__init__(
            what, hint="Give it another key, or change the one that is there: ensure(), update()."
        )


RecordExists = ObjectExistsError
"""The name that commands have for it."""


def _joined(key: str | Sequence[str]) -> str:
    return key if isinstance(key, str) else ":".join(part for part in key if part)


class UncommittedChangesError(OntologiaError, RuntimeError):
    """A handler, or a block, ended with objects queued that it did not commit."""

    def __init__(
        self, handler_id: str, objects: Sequence[str], *, refused: Sequence[str] = ()
    ) -> None:
        self.handler_id, self.objects = handler_id, [*refused, *objects]
        if refused:
            what = (
                f"a commit failed to write {_some(refused)}, and {_some(objects)} was queued since"
            )
        else:
            what = f"{handler_id} ended without committing what it queued: {_some(objects)}"
        super().__init__(
            f"{what}; nothing of it was written",
            hint="End with commit(), or drop the changes with discard().",
        )


def _some(objects: Sequence[str]) -> str:
    more = f" and {len(objects) - 5} more" if len(objects) > 5 else ""
    return ", ".join(objects[:5]) + more


class UniqueViolationError(OntologiaError, ValueError):
    """Two objects of a type would have the same value of a field that is `unique=True`."""

    def __init__(self, type_name: str, field: str, value: object, key: str, holder: str) -> None:
        self.type_name, self.field, self.value = type_name, field, value
        self.key, self.holder = key, holder
        super().__init__(
            f"{type_name}.{field} is unique, and {shown(value)} of {type_name} {key!r} is the value "
            f"of {type_name} {holder!r}; nothing was written",
            hint="Give it another value, or change the other object in the same commit.",
        )


class LockLostError(OntologiaError, RuntimeError):
    """The lease of a long write ran out, or was taken away, before the write was done."""

    def __init__(self, lock_name: str, owner_id: str) -> None:
        self.lock_name, self.owner_id = lock_name, owner_id
        super().__init__(
            f"{owner_id} no longer holds {lock_name!r}; nothing was written",
            hint="Raise lock_lease_ms if this machine pauses for longer than the lease.",
        )


class MigrationError(OntologiaError, RuntimeError):
    """A migration was refused or failed; the store is as it was."""


class MigrationTokenError(MigrationError):
    """The token is missing, unreadable, or was given for another plan or another head."""

    hint = "Preview with session.migrate() and pass the token it returns."


class MissingUpgraderError(MigrationError):
    """Stored objects cannot be brought to the current version: a step is missing."""

    def __init__(
        self, type_name: str, missing_versions: Iterable[int], *, reading: bool = False
    ) -> None:
        self.type_name = type_name
        self.missing_versions = list(missing_versions)
        first = self.missing_versions[0]
        versions = ", ".join(map(str, self.missing_versions))
        left = "what was stored then cannot be read as it would be now"
        super().__init__(
            f"no upgrader for {type_name} from version {versions}; "
            f"{left if reading else 'nothing was written'}",
            hint=f'Write one: @upgrader("{type_name}", from_version={first}) on a function from the '
            f"old fields (a dict) to the new ones. If there is one, import its module "
            f"(--upgraders on the command line).",
        )


class NewerEventError(MigrationError):
    """An event was written by a newer version of its class than this program has."""

    def __init__(self, event_type: str, event_id: str, version: int, own: int) -> None:
        self.event_type, self.event_id, self.version, self.own = event_type, event_id, version, own
        super().__init__(
            f"event {event_id} has version {version} of {event_type}, and this program's class is "
            f"version {own}; the event waits for a newer program, which reads it at a later attempt",
            hint="Deploy the program that has the newer class. If that came after the last attempt, "
            "retry the dead letter.",
        )


class UpgraderError(MigrationError):
    """An upgrader raised, or gave fields that the new class does not accept."""

    def __init__(self, type_name: str, key: str, problem: str, *, reading: bool = False) -> None:
        self.type_name, self.key = type_name, key
        left = "this version of it cannot be read" if reading else "nothing was written"
        super().__init__(f"upgrading {type_name} {key!r}: {problem}; {left}")


class NotFoundError(OntologiaError, LookupError):
    """What was asked for by its name or number is not there."""


class ExtensionError(OntologiaError, RuntimeError):
    """An extension that cannot be loaded, or does not do what it should."""


class ManifestError(ExtensionError, ValueError):
    """A manifest that does not fit; `problems` has a line for each thing that is wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class ActorBootError(OntologiaError, ValueError):
    """Capabilities that cannot be run as they are written; `problems` has a line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        listed = "".join(f"\n  - {each}" for each in self.problems)
        super().__init__(f"the actor loop was not started, and no adapter took input:{listed}")


class AgentError(OntologiaError, RuntimeError):
    """The endpoint of an agent gave no answer; the message says what it said, never its key."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status, self.retry_after = status, retry_after


class CopyError(OntologiaError, RuntimeError):
    """A store was not copied to another database, or not to its end."""


class TransferError(OntologiaError, ValueError):
    """State was not exported or imported: a file cannot be read, or does not fit the store."""


class ImportConflictError(TransferError):
    """An import holds objects that the store has with other fields."""

    def __init__(self, conflicts: int, first: str) -> None:
        self.conflicts, self.first = conflicts, first
        super().__init__(
            f"of what is in the file, {conflicts:,} differ from what the store has, first {first}; "
            f"nothing was written",
            hint="Leave them as they are with --on-conflict skip, or take the file's with "
            "--on-conflict replace.",
        )


class BrokerError(OntologiaError, RuntimeError):
    """A message broker refused a login, a right or a request; the client's own error is the cause."""


class DatabaseError(OntologiaError, RuntimeError):
    """The database refused; the driver's own error is the cause."""


class IntegrityError(DatabaseError):
    """A constraint of the database does not allow this."""


class StoreOpenError(DatabaseError):
    """No store can be opened there."""


class ConnectionLostError(DatabaseError):
    """The server was lost, or cannot be reached any more; a run waits until it is back."""


class ReadTimeoutError(DatabaseError):
    """A read took longer than the time it was given."""

    def __init__(self, place: str, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(
            f"{place}: the read was ended after the {seconds:g} s it was given; nothing was changed",
            hint="Ask for less, or give it more time.",
        )


class ReadOnlyError(DatabaseError):
    """The database cannot be written to."""


class StandbyError(ReadOnlyError):
    """The server is a standby, which only answers; a run waits until it is promoted."""


class DiskFullError(DatabaseError):
    """There is no room left for the database to grow."""


class LeaseExpiredError(OntologiaError, RuntimeError):
    """The lease on an event ran out, or was taken over, before its handler was done."""

    def __init__(self, handler_id: str, event_id: str) -> None:
        self.handler_id, self.event_id = handler_id, event_id
        super().__init__(
            f"{handler_id} no longer has event {event_id}: its lease ran out; nothing was written, "
            f"and the event is delivered again",
            hint="Give the handler a lease of 2 or 3 times its longest run, "
            "@on_event(..., lease=...), have it renewed with renew=True, or call ctx.renew().",
        )


class AbandonedThreadsError(OntologiaError, RuntimeError):
    """More handlers than max_abandoned_threads are stuck past their timeouts."""

    def __init__(self, count: int, limit: float) -> None:
        self.count, self.limit = count, limit
        super().__init__(
            f"{count} threads are stuck in handlers past their timeouts, and max_abandoned_threads is "
            f"{limit}; the run has ended, and what it had not begun is released",
            hint="Start the program again: Python cannot end a thread. The log and `ontologia events "
            "inspect EVENT` say where the handlers were.",
        )


class EventLoopLimitError(OntologiaError, RuntimeError):
    """An event would be deeper in its chain than max_event_chain_depth."""

    def __init__(self, event_type: str, depth: int, limit: int, root_event_id: str) -> None:
        self.event_type, self.depth, self.limit = event_type, depth, limit
        self.root_event_id = root_event_id
        super().__init__(
            f"{event_type} would be hop {depth} of the chain that began with event "
            f"{root_event_id}, and max_event_chain_depth is {limit}; it was not stored",
            hint="Handlers that emit events for each other never end. Raise "
            "OntologiaConfig(max_event_chain_depth=...) only for a chain that does end; an event "
            "deferred by a second or more begins a new count.",
        )


class HandlerError(OntologiaError, TypeError):
    """A handler, or a list of them, that cannot be run as it is given."""


class UnknownReceiptError(OntologiaError, LookupError):
    """A queue has no delivery in flight with this receipt handle: there is nothing to end."""

    hint = (
        "A receipt is used once. If the handler was slower than its lease, raise "
        "event_claim_lease_ms to 2 or 3 times the longest one."
    )

    def __init__(self, receipt_handle: object) -> None:
        self.receipt_handle = receipt_handle
        super().__init__(
            f"receipt {receipt_handle!r:.100} is not in flight: it is not one of this queue's, was "
            f"used before, or its lease ran out; nothing was changed"
        )


class PermissionDeniedError(OntologiaError, PermissionError):
    """An extension tried what the `permissions` of its manifest do not allow."""

    def __init__(self, extension_id: str, action: str, name: str) -> None:
        self.extension_id = extension_id
        self.action = action
        self.name = name
        super().__init__(
            f"extension {extension_id} may not {_ACTIONS.get(action, action)} {name}; "
            f"nothing was done",
            hint=f"Add to its manifest: permissions.{action}: - {name}",
        )


_ACTIONS = {"subscribe": "subscribe to"}


class ConsumerBusyError(OntologiaError, RuntimeError):
    """A consumer cannot be forgotten, or adopted by another, while a live session runs it."""

    def __init__(
        self, name: str, namespace: str, sessions: Sequence[str], left: str = "it was not forgotten"
    ) -> None:
        self.name, self.namespace, self.sessions = name, namespace, list(sessions)
        super().__init__(
            f"{name} in namespace {namespace!r} is run by {len(self.sessions)} live session(s): "
            f"{', '.join(self.sessions)}; {left}",
            hint="Stop them first; a session that died counts as live until session_ttl_ms is over.",
        )


class AlreadyStartedError(OntologiaError, RuntimeError):
    """An event cannot be cancelled while a session has it, or once a consumer has ended it."""

    def __init__(self, event_id: str, *, ended: Sequence[str], held: Sequence[str]) -> None:
        self.event_id, self.ended, self.held = event_id, list(ended), list(held)
        if ended:
            why = f"was finished or buried by {', '.join(ended)}"
            helps = "What waits for another handler can be held back with ontologia events pause."
        else:
            by = f" by {', '.join(held)}" if held else ""
            why = f"is claimed at this moment{by}"
            helps = "It can be cancelled once an attempt has failed, before the next one."
        super().__init__(
            f"event {event_id} {why}; it was not cancelled",
            hint=f"{helps} ontologia events inspect --event-id {event_id} shows how far it is.",
        )


class CommandHandlerNotFound(OntologiaError, LookupError):
    """No handler is registered for a command of this name."""


class DuplicateHandler(OntologiaError, TypeError):
    """A command has one handler; a second one was given."""


class IdempotencyKeyReused(OntologiaError, ValueError):
    """An idempotency key came with another request than the first time."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"the idempotency key {key!r} was used for another request; nothing was done",
            hint="A key stands for one request. Use a new one for another.",
        )


class RecordNotFound(NotFoundError):
    """There is no record of this model with this id."""

    def __init__(self, model_key: str, record_ids: Sequence[str]) -> None:
        self.model_key, self.record_ids = model_key, list(record_ids)
        which = ", ".join(map(repr, self.record_ids[:3]))
        more = f" and {len(self.record_ids) - 3} more" if len(self.record_ids) > 3 else ""
        super().__init__(f"{model_key} has no record {which}{more}")
