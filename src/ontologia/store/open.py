"""Which store a URI means. The only place that knows the backends."""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, Protocol

from ontologia.clock import SYSTEM_CLOCK, Clock
from ontologia.errors import StoreOpenError

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig
    from ontologia.store.events.archives import Archive
    from ontologia.store.events.store import EventStore
    from ontologia.store.protocol import Store

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")
_POSTGRES = ("postgresql", "postgres")
# What is no URI and was never meant as a path: `host=db password=x`, `DB_PASS=x`, `user:password@host/db`,
# a line of .pgpass, and a URI in quotes, after other text or with a slash too few. What begins with / or .
# is a path.
_SETTING = re.compile(
    r"(?:^|[\s;?&])(?:PG)?(?:host|hostaddr|port|user|username|uid|passfile|dbname|database|server|"
    r"service|sslmode|data source)\s*=",
    re.IGNORECASE,
)
_SECRET = re.compile(
    r"""(?:^|[\s;?&{,"'-])(?:[\w.-]*(?:password|passwd|pwd)|(?:[\w.-]*[_.-]|db|pg)?pass)["']?\s*[=:]""",
    re.IGNORECASE,
)
_PGPASS = re.compile(r"[^/:]*(?:\\:[^/:]*)*:(?:\d+|\*):[^/:]+:[^/:]+:.")
_CREDENTIALS = re.compile(r"[^/\s]*:[^\s]*@|^//[^/]*@")
_ALMOST = re.compile(r"(?:jdbc:|postgres(?:ql)?(?::|//))", re.IGNORECASE)
_PATH = re.compile(r"\.|/(?!/)|[A-Za-z]:[\\/]")  # the last on Windows
_PASSWORD = re.compile(r"//.*@", re.DOTALL)


class WithEvents(Protocol):
    """An opened store of which only the events are used."""

    @property
    def events(self) -> EventStore:
        """The event store."""
        ...

    def close(self) -> None:
        """Give up all connections. Closing again is nothing."""
        ...


def clock_of(uri: str) -> Clock:
    """The clock of a store whose user brings none: a server's time where there is a server."""
    if not is_postgres(uri):
        return SYSTEM_CLOCK
    check_driver()
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
    store = _opened(uri, config, clock, random)
    if config.archive_uri is not None:
        store.events.archives.open = partial(open_archive, config.archive_uri)
    return store


def _opened(uri: str, config: OntologiaConfig, clock: Clock, random: Random) -> Store:
    if is_postgres(uri):
        return _open_postgres(uri, config, clock, random)
    path = sqlite_path(uri)
    from ontologia.store.sqlite.store import SQLiteStore

    return SQLiteStore(uri, path, config, clock, random)


def open_event_store(uri: str, config: OntologiaConfig, clock: Clock, random: Random) -> WithEvents:
    """Open what a URI names for its events alone."""
    return open_store(uri, config, clock, random)


def open_archive(uri: str) -> Archive:
    """Open an archive of events, `s3://bucket/prefix`. Sends no request."""
    from ontologia.store.s3.archive import Archive

    return Archive(uri)


def _open_postgres(uri: str, config: OntologiaConfig, clock: Clock, random: Random) -> Store:
    check_driver()
    from ontologia.store.postgres.store import PostgresStore

    return PostgresStore(uri, config, clock, random)


def check_driver() -> None:
    try:
        import_module("psycopg_pool")
    except ImportError as error:
        raise StoreOpenError(
            f"PostgreSQL needs the driver psycopg, which cannot be imported: {error}",
            hint="pip install 'ontologia[postgres]'",
        ) from error


def is_postgres(uri: str) -> bool:
    scheme = _SCHEME.match(uri) if isinstance(uri, str) else None
    return scheme is not None and scheme[1].lower() in _POSTGRES


def sqlite_path(uri: str) -> str:
    given: object = uri
    if not isinstance(given, str):  # not repeated: bytes may have a password, too
        kind = type(given).__name__
        raise StoreOpenError(f"a {kind} names no database", hint="Give text, a path like app.db.")
    _check_connection_string(uri)
    if not uri or "\0" in uri:
        raise StoreOpenError(f"{uri!r} names no database", hint="Give a path like app.db.")
    if not uri.isascii():
        _check_unicode(uri)
    scheme = _SCHEME.match(uri)
    if scheme is None:
        if uri.startswith(("file:", "sqlite:")):
            raise StoreOpenError(
                f"{_redacted(uri)} is neither a path nor a URI Ontologia knows",
                hint="Give a path like app.db, or sqlite:///app.db with three slashes.",
            )
        return uri
    if scheme[1].lower() != "sqlite":
        raise StoreOpenError(
            f"no store handles {scheme[1]}:// URIs",
            hint="Use sqlite:///path/to/file.db or postgresql://host/database.",
        )
    rest = uri[len("sqlite://") :]
    _check_connection_string(rest.removeprefix("/"), schemes=False)
    if "?" in rest:
        raise StoreOpenError(
            f"{_redacted(uri)} has options after a ?, and Ontologia knows none there",
            hint="Leave them out; settings are given as OntologiaConfig(...). A bare path may hold a ?.",
        )
    if rest in ("", "/", "/:memory:"):
        return ":memory:"
    if not rest.startswith("/"):
        raise StoreOpenError(
            f"{_redacted(uri)} names a host, and SQLite has none",
            hint=f"Three slashes for a relative path: {_redacted('sqlite:///' + rest)}.",
        )
    return rest[1:]


def _check_connection_string(uri: str, *, schemes: bool = True) -> None:
    """StoreOpenError for what would be a file with a password in its name; nothing is repeated.

    Without `schemes` it is a path, so that one that begins like another URI is refused, too.
    """
    meant = uri.strip("\"'`<> \t\r\n\v\f\0\ufeff")
    if _PATH.match(uri):
        return
    if schemes and _SCHEME.match(meant) is not None:
        found = meant != uri
    else:
        found = (
            "://" in meant
            or any(each.search(meant) for each in (_SETTING, _SECRET, _CREDENTIALS))
            or any(each.match(meant) for each in (_ALMOST, _PGPASS))
        )
    if found:
        raise StoreOpenError(
            "this is neither a path nor a URI that Ontologia knows; it looks like a connection "
            "string, so it is not repeated here, and nothing was created",
            hint="postgresql://user:password@host:5432/database, without quotes or spaces around "
            "it. A file of such a name is ./ and the name.",
        )


def _redacted(uri: str) -> str:
    """The same without what may be secret: credentials, and options."""
    before, mark, _ = _PASSWORD.sub("//…@", uri).partition("?")
    return f"{before}?…" if mark else before


def _check_unicode(path: str) -> None:
    """Linux allows any bytes in the name of a file, which Python shows as halves of letters."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise StoreOpenError(
            f"{path!r} is no UTF-8, and SQLite opens no such file",
            hint="Give the file, or its folder, another name.",
        ) from error
