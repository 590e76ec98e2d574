"""The statements that make a schema's tables and its roles, as text for those who apply them.

Three roles: the owner makes the tables and upgrades them, a worker reads and writes rows, a reader
reads them. The latter two can be granted to the roles that programs log in with.
"""

from __future__ import annotations

from urllib.parse import quote

from ontologia.errors import StoreOpenError
from ontologia.store.postgres.database import lock_key
from ontologia.store.postgres.layout import LAYOUT, PARTS, layout_statements
from ontologia.store.postgres.place import place_of

_LONGEST = 63 - len("_worker")

_ROLES = """\
-- Roles, made unless they are there. Give them to those who log in:
--   GRANT {schema}_worker TO app;
--   GRANT {schema}_reader TO dashboard;
DO $$
BEGIN
    IF to_regrole('"{schema}_worker"') IS NULL THEN
        CREATE ROLE "{schema}_worker" NOLOGIN;
    END IF;
    IF to_regrole('"{schema}_reader"') IS NULL THEN
        CREATE ROLE "{schema}_reader" NOLOGIN;
    END IF;
END $$;

GRANT USAGE ON SCHEMA "{schema}" TO "{schema}_worker", "{schema}_reader";
GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO "{schema}_worker", "{schema}_reader";
GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO "{schema}_worker";
-- Which layout the tables have is the owner's to say.
REVOKE INSERT, UPDATE, DELETE ON "{schema}".ontologia_layout FROM "{schema}_worker";
-- `ontologia copy` asks for the next numbers.
GRANT SELECT ON ALL SEQUENCES IN SCHEMA "{schema}" TO "{schema}_worker", "{schema}_reader";
-- The same for tables that the role which runs this makes later.
ALTER DEFAULT PRIVILEGES IN SCHEMA "{schema}"
    GRANT SELECT ON TABLES TO "{schema}_worker", "{schema}_reader";
ALTER DEFAULT PRIVILEGES IN SCHEMA "{schema}"
    GRANT INSERT, UPDATE, DELETE ON TABLES TO "{schema}_worker";
ALTER DEFAULT PRIVILEGES IN SCHEMA "{schema}"
    GRANT SELECT ON SEQUENCES TO "{schema}_worker", "{schema}_reader";
"""


def ddl(schema: str) -> str:
    """Everything that opening a database would run; afterwards opening it writes no table.

    It can be applied again, and brings the tables of an older version up to date.
    """
    _check(schema)
    sql = layout_statements(schema)
    # Programs that open the database meanwhile wait for the end of it.
    lock = sql["lock"].replace("%(key)s", str(lock_key("layout", schema)))
    version = sql["set_layout"].replace("%(version)s", str(LAYOUT))
    parts = [lock, *(sql[name] for name in PARTS), version]
    return "BEGIN;\n\n" + "\n\n".join(parts) + "\n\nCOMMIT;\n"


def roles(schema: str) -> str:
    """The roles of workers and readers, and what they may do."""
    _check(schema)
    if len(schema) > _LONGEST:
        raise StoreOpenError(
            f"schema {schema} has too long a name for roles that are named after it",
            hint=f"At most {_LONGEST} characters, since PostgreSQL cuts off names at 63.",
        )
    return _ROLES.format(schema=schema)


def _check(schema: str) -> None:
    """StoreOpenError unless a URI could name this schema."""
    place_of(f"postgresql://localhost/?schema={quote(schema, safe='')}")
