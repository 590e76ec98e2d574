"""`ontologia schema drop`: take a type out of a store."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ontologia.cli.call import Call, core_of
from ontologia.cli.operator import Reason, record
from ontologia.cli.output import counted, say, show_json
from ontologia.cli.schema import KindOption, TypeName, find_type

if TYPE_CHECKING:
    from ontologia.migration.drop import Dropped, DropPlan


def drop(
    call: Call,
    type: TypeName,
    kind: KindOption = None,
    with_objects: Annotated[
        bool, typer.Option("--with-objects", help="Delete its current objects first.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Do it.")] = False,
    token: Annotated[
        str | None, typer.Option("--token", metavar="TOKEN", help="What the preview gave.")
    ] = None,
    reason: Reason = None,
) -> None:
    """Take a type out of the store.

    Without --apply nothing is written: it says what would happen, and gives the token for that. A
    type that has current objects is refused, unless --with-objects deletes them in the same
    transaction. The history stays, and can be asked for as before. The commit says who did it.

    Example: ontologia schema drop Customer --apply --token 5fb0…
    """
    from ontologia.migration.drop import TypeDrop

    if apply != (token is not None):
        raise typer.BadParameter("--apply and --token go together; without both, it is a preview")
    if token is None:
        with call.reading() as session:
            key = find_type(session, type, kind)[0]
            plan = TypeDrop(core_of(session).store).plan(*key, with_objects=with_objects)
        named = ["--kind", kind.value] if kind else []
        also = ["--with-objects"] if with_objects else []
        _show_plan(call, plan, call.again("schema", "drop", type, *named, *also))
        return
    with call.writing() as session:
        key = find_type(session, type, kind)[0]
        said = record("schema drop", reason, kind=key[0], type=type, with_objects=with_objects)
        done = TypeDrop(core_of(session).store).apply(
            session.session_id,
            *key,
            token=token,
            with_objects=with_objects,
            metadata=core_of(session).metadata() | said,
        )
    _show_done(call, done)


def _show_plan(call: Call, plan: DropPlan, again: str) -> None:
    if call.json:
        show_json(asdict(plan))
        return
    say(f"{plan.kind} {plan.name}, version {plan.version}, would be dropped")
    say(f"{counted(plan.objects, 'object')} would be deleted, in commit {plan.head + 1}")
    say(f"token: {plan.token}")
    say(f"To do it: {again} --apply --token {plan.token}")


def _show_done(call: Call, done: Dropped) -> None:
    if call.json:
        show_json(asdict(done))
        return
    say(f"{done.kind} {done.name} was dropped, in commit {done.commit_id}")
    if done.objects:
        say(f"deleted with it: {counted(done.objects, 'object')}")
