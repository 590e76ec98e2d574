"""`ontologia init` and `ontologia info`: make a store, and say what is in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ontologia.cli.call import Call, core_of
from ontologia.cli.output import cell, say, show_facts, show_json, show_rows
from ontologia.delivery.lifecycle import EVENT_STATUSES

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

_DEFAULT = "sqlite:///app.db"
_DONE = {"nothing": "was made", "old": "was brought up to date", "store": "was there already"}


def init(
    call: Call,
    uri: Annotated[
        str | None,
        typer.Argument(
            metavar="URI",
            help="A path, sqlite:///app.db or postgresql://user@host/database.",
            show_default="as --datastore-uri, or sqlite:///app.db",
        ),
    ] = None,
) -> None:
    """Make a store: the tables, and nothing in them.

    A store that is there already stays as it is; one of an older version is brought up to date.

    Example: ontologia init sqlite:///app.db
    """
    from random import SystemRandom

    from ontologia.store.open import clock_of, open_store

    named = call.named_uri if uri is None else uri
    place = _DEFAULT if named is None else named
    if place in (":memory:", "sqlite://", "sqlite:///", "sqlite:///:memory:"):
        raise typer.BadParameter("a store in memory is gone when this program ends")
    before = _found(place, call)
    store = open_store(place, call.config, clock_of(place), SystemRandom())
    try:
        about = store.inventory.about()
    finally:
        store.close()
    if call.json:
        done = {"created": before == "nothing", "upgraded": before == "old"}
        show_json({"uri": store.uri, **done, "layout": about.layout})
        return
    say(f"{store.uri} {_DONE[before]}: {about.backend}, layout {about.layout}")
    shown = "postgresql://…" if place.startswith("postgres") else place  # it may have a password
    option = "" if place == _DEFAULT else f" --datastore-uri {shown}"
    typer.echo(
        f'Next: Session("{shown}") in a program, ontologia info{option} for what is in it, or '
        "ontologia demo to see one at work.",
        err=True,
    )


def _found(uri: str, call: Call) -> Literal["nothing", "old", "store"]:
    from ontologia.errors import NotFoundError, StoreOpenError
    from ontologia.runtime.views.reading import check_store
    from ontologia.store.copying.refusals import OldLayout

    try:
        check_store(uri, call.config)
    except NotFoundError:
        return "nothing"
    except StoreOpenError as error:  # what else is wrong with it, opening it will say
        return "old" if isinstance(error.__cause__, OldLayout) else "nothing"
    return "store"


def info(
    call: Call,
    stats: Annotated[
        bool, typer.Option("--stats", help="Count objects and events; reads all of them.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Show the types with their fields.")
    ] = False,
) -> None:
    """Say what a store is and what is in it.

    Without --stats nothing is counted, and the answer comes at once, however large the store.
    --stats costs a look at every current object and every retained event. Of relays and intakes of
    the namespace there is the lag: of a relay what waits now, of an intake what was left of its
    source when it last stored something.

    Example: ontologia info --stats --schema
    """
    from ontologia.clock import to_text
    from ontologia.runtime.views import store

    with call.reading() as session:
        facts = _facts(session)
        types = _types(session, stats, schema)
        namespaces = _namespaces(session) if stats else None
        relays = [{"relay": each.uri, "lag": each.lag} for each in store.relays(session)]
        intakes = [
            {"intake": each.uri, "lag": each.lag, "as_of": to_text(each.as_of)}
            for each in store.intakes(session)
        ]
    if call.json:
        carried = {"relays": relays, "intakes": intakes}
        counted = {"namespaces": namespaces} if stats else {}
        show_json(facts | {"types": types} | carried | counted)
        return
    show_facts(call, facts | {"size": _size(facts["size"]), "types": len(types)})
    if types and (stats or schema):
        say("")
        _show_types(call, types, stats, schema)
    if namespaces:
        say("")
        names = ["namespace", "sessions", *EVENT_STATUSES, "dead_letters"]
        columns = [name.replace("_", " ").capitalize() for name in names]
        show_rows(call, columns, namespaces, names=names)
    for rows, names in ((relays, ["relay", "lag"]), (intakes, ["intake", "lag", "as_of"])):
        if rows:
            say("")
            columns = [name.replace("_", " ").capitalize() for name in names]
            show_rows(call, columns, rows, names=names)


def _facts(session: Session) -> dict[str, Any]:
    from ontologia.runtime.views.store import store_facts

    facts = store_facts(session)
    return {
        "store": facts.uri,
        "backend": facts.backend,
        **({} if facts.durability is None else {"durability": facts.durability}),
        "layout": facts.layout,
        "size": facts.bytes,
        "head": facts.head,
        "last_commit": facts.last_commit_at,
        **({} if (pending := session.pending_migration()) is None else {"migration": str(pending)}),
    }


def _types(session: Session, stats: bool, schema: bool) -> list[dict[str, Any]]:
    from ontologia import codec

    with core_of(session).store.inventory.read() as contents:
        types = contents.types()
        counts = contents.counts() if stats else {}
    rows: list[dict[str, Any]] = []
    for each in types:
        row: dict[str, Any] = {"kind": each.kind, "name": each.name, "version": each.version}
        if stats:
            row["objects"] = counts.get((each.kind, each.name), 0)
        if schema:
            row["schema"] = codec.decode_stored(each.schema_json)
        rows.append(row)
    return rows


def _show_types(call: Call, types: list[dict[str, Any]], stats: bool, schema: bool) -> None:
    names = ["name", "kind", "version", *(["objects"] if stats else [])]
    if schema:
        names.append("fields")
        for row in types:
            row["fields"] = _fields(row["schema"])
    show_rows(call, [name.capitalize() for name in names], types, names=names)


def _fields(schema: dict[str, Any]) -> str:
    """`id: str (key), name: str`"""
    from ontologia.schema.diff import field_changes
    from ontologia.schema.typespec import TypeSpec

    spec = TypeSpec("", "", schema.get("fields") or {})
    shown = {each.name: cell(each.after) for each in field_changes(None, spec)}
    ends = [f"{schema['left']} → {schema['right']}"] if schema.get("left") else []
    mark = {schema.get("key"): " (key)"}
    return ", ".join(ends + [f"{name}: {kind}{mark.get(name, '')}" for name, kind in shown.items()])


def _namespaces(session: Session) -> list[dict[str, Any]]:
    from ontologia.clock import to_text

    core = core_of(session)
    counts = core.store.inventory.count_events(to_text(core.clock.now()))
    rows: list[dict[str, Any]] = []
    for each in session.event_store.list_namespaces():
        name = each["namespace"]
        statuses = {status: counts.get(name, {}).get(status, 0) for status in EVENT_STATUSES}
        rows.append(
            {
                "namespace": name,
                "sessions": each["sessions"],
                **statuses,
                "dead_letters": each["dead_letters"],
            }
        )
    return rows


def _size(number: int) -> str:
    """`12.3 MB`"""
    size = float(number)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
