"""Which store a URI means. The only place that knows the backends."""

from __future__ import annotations

import re
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, Protocol

from ontologia.clock import SYSTEM_CLOCK, Clock
from ontologia.errors import StoreOpenError

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig
    from ontologia.store.events.store import SqlEventStore
    from ontologia.store.protocol import Store

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")
_POSTGRES = ("postgresql", "postgres")


class WithEvents(Protocol):
    """An opened store of which only the events are used."""

    @property
    def events(self) -> SqlEventStore:
        """The event store."""
        ...

    def close(self) -> None:
        """Give up all connections. Closing again is nothing."""
        ...


def clock_of(uri: str) -> Clock:
    """The clock of a store whose user brings none: a server's time where there is a server."""
    if not _is_postgres(uri):
        return SYSTEM_CLOCK
    _check_driver()
    from ontologia.store.postgres.clock import clock_of
    from ontologia.store.postgres.place import place_of

    return clock_of(place_of(uri))


def open_store(uri: str, config: OntologiaConfig, clock: Clock, random: Random) -> Store:
    """Open the store a URI names, making or updating its tables.

    `sqlite:///app.db` and a bare path are files, `sqlite:////srv/app.db` has an absolute path,
    `sqlite://` and `:memory:` live in memory as long as the store is open. With
    `postgresql://user:password@host:port/database` the tables are in the schema `ontologia` of
    that database, or in the one that `?schema=` names.
    """
    if _is_postgres(uri):
        return _open_postgres(uri, config, clock, random)
    path = _sqlite_path(uri)
    from ontologia.store.sqlite.store import SQLiteStore

    return SQLiteStore(uri, path, config, clock, random)


def open_event_store(uri: str, config: OntologiaConfig, clock: Clock, random: Random) -> WithEvents:
    """Open what a URI names for its events alone."""
    return open_store(uri, config, clock, random)


def _open_postgres(uri: str, config: OntologiaConfig, clock: Clock, random: Random) -> Store:
    _check_driver()
    from ontologia.store.postgres.store import PostgresStore

    return PostgresStore(uri, config, clock, random)


def _check_driver() -> None:
    try:
        import_module("psycopg_pool")
    except ImportError as error:
        raise StoreOpenError(
            f"PostgreSQL needs the driver psycopg, which cannot be imported: {error}",
            hint="pip install 'ontologia[postgres]'",
        ) from error


def _is_postgres(uri: str) -> bool:
    scheme = _SCHEME.match(uri) if isinstance(uri, str) else None
    return scheme is not None and scheme[1].lower() in _POSTGRES


def _sqlite_path(uri: str) -> str:
    if not isinstance(uri, str) or not uri or "\0" in uri:
        raise StoreOpenError(f"{uri!r} names no database", hint="Give a path like app.db.")
    if not uri.isascii():
        _check_unicode(uri)
    scheme = _SCHEME.match(uri)
    if scheme is None:
        if uri.startswith(("file:", "sqlite:")):
            raise StoreOpenError(
                f"{uri} is neither a path nor a URI Ontologia knows",
                hint="Give a path like app.db, or sqlite:///app.db with three slashes.",
            )
        return uri
    if scheme[1].lower() != "sqlite":
        raise StoreOpenError(
            f"no store handles {scheme[1]}:// URIs",
            hint="Use sqlite:///path/to/file.db or postgresql://host/database.",
        )
    rest = uri[len("sqlite://") :]
    if "?" in rest:
        raise StoreOpenError(
            f"{uri} has options after a ?, and Ontologia knows none there",
            hint="Leave them out; settings are given as OntologiaConfig(...). A bare path may hold a ?.",
        )
    if rest in ("", "/", "/:memory:"):
        return ":memory:"
    if not rest.startswith("/"):
        raise StoreOpenError(
            f"{uri} names a host, and SQLite has none",
            hint=f"Three slashes for a relative path: sqlite:///{rest}.",
        )
    return rest[1:]


def _check_unicode(path: str) -> None:
    """Linux allows any bytes in the name of a file, which Python shows as halves of letters."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise StoreOpenError(
            f"{path!r} is no UTF-8, and SQLite opens no such file",
            hint="Give the file, or its folder, another name.",
        ) from error
