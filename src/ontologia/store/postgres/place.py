"""Which database and schema a `postgresql://` URI means."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ontologia.errors import StoreOpenError

DEFAULT_SCHEMA = "ontologia"
_DEFAULTS = {
    "connect_timeout": "10",
    "fallback_application_name": "ontologia",
    # A server that vanished without a word, with its machine or its network, is noticed within
    # half a minute, whether one waits for its answer or sends it something.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")  # PostgreSQL cuts off what is longer
_BARE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_QUALIFIER = re.compile(r'\bontologia(?=\.)|"ontologia"')


class Place(NamedTuple):
    """Where a store is."""

    conninfo: str
    """What the driver is given, password included."""
    schema: str
    shown: str
    """The same for people and logs, without the password."""


def place_of(uri: str) -> Place:
    """The parts of a URI; `?schema=name` chooses another schema than `ontologia`."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise _unreadable("a [ or ] is no part of an IPv6 address") from None
    # A password with a special character ends there, and the rest of it is taken for a host, a
    # database or an option, which messages name.
    if parts.netloc.count("@") > 1 or "@" in parts.path + parts.query + parts.fragment:
        raise _unreadable("there is more than one @, or one after the host")
    options = parse_qsl(parts.query, keep_blank_values=True)
    schemas = [value for name, value in options if name == "schema"]
    schema = schemas[-1] if schemas else DEFAULT_SCHEMA
    if not _SCHEMA_NAME.fullmatch(schema):
        raise StoreOpenError(
            f"schema={schema!r} names no schema that Ontologia could use",
            hint="Letters, digits and _, at most 63; without ?schema= it is ontologia.",
        )
    if schema == "information_schema" or schema.startswith("pg_"):
        raise StoreOpenError(
            f"schema={schema!r} is one of PostgreSQL's own; nothing was changed",
            hint="Choose a name that is not information_schema and does not begin with pg_.",
        )
    if "\0" in uri:
        raise _unreadable("it holds U+0000")  # where libpq would stop reading
    for number, (name, _) in enumerate(options, 1):
        if name not in _known_options():
            raise _unreadable(f"option {number} after the ? has a name that libpq does not know")
    try:
        rest = urlencode([option for option in options if option[0] != "schema"], quote_via=quote)
        given = urlunsplit(parts._replace(query=rest))
        found = conninfo_to_dict(given)
        ours = {name: value for name, value in _DEFAULTS.items() if name not in found}
        conninfo = make_conninfo(given, **ours, client_encoding="utf8")
    except UnicodeError:  # half a letter
        raise _unreadable("it is no Unicode") from None
    except psycopg.ProgrammingError:
        percent = _BARE_PERCENT.search(uri)
        why = "a % comes without two hexadecimal digits" if percent else "libpq does not take it"
        raise _unreadable(why) from None
    ports = str(found.get("port") or 5432).split(",")
    if not all(port.isdigit() for port in ports):
        raise _unreadable("a port is no number")
    server = f"{found.get('host') or 'localhost'}:{found.get('port') or 5432}"
    return Place(conninfo, schema, f"postgresql://{server}/{found.get('dbname') or ''}")


@functools.cache
def _known_options() -> frozenset[str]:
    """Names that may come after the ? of a URI; `ssl=true` is JDBC's, and libpq takes it, too."""
    options = (each.keyword.decode() for each in pq.Conninfo.get_defaults())
    return frozenset({"schema", "ssl", *options})


def _unreadable(why: str) -> StoreOpenError:
    """What is wrong with a URI. Nothing of it is repeated, and the driver's own words neither."""
    return StoreOpenError(
        f"this PostgreSQL URI cannot be read: {why}",
        hint="postgresql://user:password@host:5432/database; quote special characters as %XX.",
    )


def with_settings(conninfo: str, settings: Iterable[str]) -> str:
    """Have connections begin with settings of the server's; one that the user gave wins."""
    ours = " ".join(f"-c {setting}" for setting in settings)
    given = conninfo_to_dict(conninfo).get("options") or ""
    return make_conninfo(conninfo, options=f"{ours} {given}".strip())


def qualified(statements: Mapping[str, str], schema: str) -> dict[str, str]:
    """Statements of the files for tables in this schema.

    The files name every table `ontologia.…`. A search_path would be shorter, but it belongs to the
    connection, and behind PgBouncer that is another one with every transaction.
    """
    return {name: _QUALIFIER.sub(f'"{schema}"', body) for name, body in statements.items()}
