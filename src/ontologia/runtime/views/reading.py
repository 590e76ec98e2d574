"""A session that only reads: it is not in the list of sessions, and registers nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ontologia.errors import NotFoundError, StoreOpenError
from ontologia.migration.versions import TypeVersions
from ontologia.runtime.core import Core
from ontologia.runtime.delta import DeltaMaker
from ontologia.runtime.reader import Reader
from ontologia.runtime.session import Session, ThreadUnits
from ontologia.schema.registry import Registry
from ontologia.store.copying.refusals import NoStore, OldLayout
from ontologia.store.copying.sides import open_source
from ontologia.store.events import checks
from ontologia.store.newer import NewerLayout

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig
    from ontologia.schema.entity import Entity
    from ontologia.schema.relation import Relation


class _ReadingCore(Core):
    """Writes no row of its session."""

    def _register(self) -> None:
        """Leave nothing behind."""

    def end_session(self) -> None:
        """It was never in the list."""


class _CoreBeside(Core):
    """The same store with types of its own, which are those that the store has now.

    Classes made of stored schemas would otherwise be registered in the program's session, where they
    would be in the place of its own, and stay as they are when a schema changes.
    """

    def __init__(self, core: Core) -> None:
        vars(self).update(vars(core))
        self._beside = core
        self.registry = Registry()
        self.versions = TypeVersions(
            core.store, self.registry, core.session_id, core.versions.upgraders
        )
        self.deltas = DeltaMaker(self.registry, self.versions)
        self.reader = Reader(core.store, self.registry, self.versions)

    def check_open(self) -> None:
        self._beside.check_open()


class ReadingSession(Session):
    """For what shows and changes nothing: it writes no row, and registers no type."""

    _core_type = _ReadingCore

    @classmethod
    def beside(cls, session: Session, namespace: str) -> ReadingSession:
        """For views of another namespace: shares the connections of a session. No I/O.

        Types are as they are stored, whatever classes the session has. It ends with that session, which is the one to close.
        """
        made = cls.__new__(cls)
        vars(made).update(vars(session))
        made.namespace = checks.name("namespace", namespace)
        made._core = _CoreBeside(session._core)
        made._threads = ThreadUnits(made._core)
        return made

    @classmethod
    def with_types(
        cls,
        session: Session,
        namespace: str,
        entity_types: Sequence[type[Entity]],
        relation_types: Sequence[type[Relation[Any, Any]]],
    ) -> ReadingSession:
        """The same, with the types of a program in the place of the session's. Registers nothing."""
        made = cls.beside(session, namespace)
        registry = Registry()
        for each in (*entity_types, *relation_types):
            registry.add(each)
        made._core = session._core.with_types(registry)
        made._threads = ThreadUnits(made._core)
        return made


def refused_layout(uri: str, config: OntologiaConfig) -> tuple[int | None, int] | None:
    """The layout of a store that is not opened for it, and the one that this program has.

    None if it has this program's. Raises what `check_store` raises of anything else. Writes nothing.
    """
    try:
        check_store(uri, config)
    except NewerLayout as error:
        return error.found, error.known
    except StoreOpenError as error:
        if isinstance(error.__cause__, OldLayout):
            return error.__cause__.found, error.__cause__.known
        raise
    return None


def check_store(uri: str, config: OntologiaConfig) -> None:
    """NotFoundError unless there is a store, StoreOpenError if its layout is old. Writes nothing."""
    try:
        open_source(uri, config).close()
    except NoStore as error:
        raise NotFoundError(
            f"there is no store at {error.shown}: {error.why}; nothing was created",
            hint="ontologia init makes one; --datastore-uri names another.",
        ) from error
    except OldLayout as error:
        raise StoreOpenError(
            f"{error.shown} has layout {error.found}, and this program has {error.known}; nothing "
            f"was changed",
            hint="ontologia init brings it up to date, if it is older.",
        ) from error
