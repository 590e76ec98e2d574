"""The first contact with a server: what kind of server it is, or why there is none.

A pool would try for a long time and say nothing. One connection made by hand says why not, and
tells what has to be known before any other is made.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import psycopg

from ontologia.errors import StoreOpenError
from ontologia.store.postgres.clock import ServerClock
from ontologia.store.postgres.place import Place
from ontologia.store.waker import readable

_OLDEST = 15
_GREETING = b"""
SELECT pg_backend_pid(), pg_is_in_recovery(), current_setting('server_encoding')"""
_HINTS = {
    # What libpq or the server says, and what helps; the first that fits counts.
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|no such user": (
        "The server does not let this user in: check user, password and the server's "
        "pg_hba.conf. A password with special characters is quoted as %XX in a URI; ~/.pgpass "
        "works, too."
    ),
    r"does not support SSL": (
        "The URI asks for TLS (sslmode=...) and the server offers none: turn it on there "
        "(ssl=on), or leave sslmode out if the network is your own."
    ),
    r"SSL required": (
        "The server takes encrypted connections only: add sslmode=require to the URI."
    ),
    r"certificate|SSL error|sslrootcert": (
        "sslrootcert=/path/to/ca.crt names whom to trust, sslrootcert=system the machine's "
        "own; with sslmode=verify-full the host in the URI must be the one in the "
        "certificate."
    ),
    r'database ".*" does not exist|no such database': (
        "Make it with CREATE DATABASE, or check the name after the last / of the URI."
    ),
    r'role ".*" does not exist': (
        "Make it with CREATE ROLE ... LOGIN, or check the user in the URI."
    ),
    r"unsupported startup parameter": (
        "A pooler is there that takes no such setting: leave it out of the URI, or name it in the "
        "pooler's ignore_startup_parameters."
    ),
    r"too many (clients|connections)|connection slots|no more connections allowed": (
        "All connections of the server are taken: a session takes up to 16 of them. Raise "
        "max_connections, end what is idle, or put PgBouncer before the server."
    ),
    r"[Nn]ame or service not known|could not translate host|[Nn]o address|name resolution|Errno -": (
        "The host in the URI is not known here: check its spelling, or the DNS."
    ),
    r"[Rr]efused|No such file or directory": (
        "Nothing listens there: check host and port, and that the server runs."
    ),
    r"timeout|timed out": (
        "The host does not answer: check host, port and firewall. connect_timeout= in the URI "
        "sets how long it is waited for."
    ),
    r"starting up|shutting down|recovery|not yet accepting": (
        "The server is just starting or stopping: try again in a moment."
    ),
}
_DEFAULT_HINT = "Check host, port, user, password and database, and that the server runs."


class Server(NamedTuple):
    """What was found out about a server."""

    pooled: bool
    """Whether there is a pooler in between, so that a connection is not always the same one."""
    standby: bool
    """Whether it was a standby, which can be read only; it may have been promoted since."""


def first_contact(place: Place, clock: ServerClock | None = None) -> Server:
    """Connect once, and look; sets the clock. StoreOpenError says why it cannot be."""
    try:
        with psycopg.connect(place.conninfo, prepare_threshold=None) as connection:
            # A standby knows no SERIALIZABLE, which may be the default.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            version = connection.info.server_version // 10_000
            if version < _OLDEST:
                raise StoreOpenError(
                    f"{place.shown} is PostgreSQL {version}, and Ontologia needs {_OLDEST} or later; "
                    f"nothing was changed",
                    hint="Upgrade the server, or use another one.",
                )
            [(process, standby, encoding)] = connection.execute(_GREETING).fetchall()
            if encoding != "UTF8":
                raise StoreOpenError(
                    f"{place.shown} keeps text as {encoding}, and Ontologia needs UTF8; nothing was "
                    f"changed",
                    hint="Make another database: CREATE DATABASE name ENCODING 'UTF8' TEMPLATE "
                    "template0.",
                )
            if clock is not None:
                clock.measure(connection)
            # A pooler cannot give away the process of a connection that it has not chosen yet.
            return Server(connection.info.backend_pid != process, standby)
    except psycopg.Error as error:
        raise unreachable(place.shown, error) from error


def has_died(connection: psycopg.Connection[Any]) -> bool:
    """Whether a connection that waited in the pool came to its end; costs a look at its socket.

    Nothing else comes by itself on a connection of which nothing was asked.
    """
    return connection.closed or bool(readable([connection.fileno()], 0))


def why_not(place: Place) -> psycopg.Error | None:
    """Connect once: what goes wrong; None if nothing does."""
    try:
        psycopg.connect(place.conninfo).close()
    except psycopg.Error as error:
        return error
    return None


def unreachable(shown: str, error: psycopg.Error) -> StoreOpenError:
    """No connection can be had; `shown` is the database without its password."""
    said = " ".join(str(error).split())
    hint = next((hint for sign, hint in _HINTS.items() if re.search(sign, said)), _DEFAULT_HINT)
    return StoreOpenError(f"no connection to {shown}: {said}", hint=hint)
