"""The models, commands and handlers of a program, for `serve` and `worker`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ontologia.cli.call import Call
from ontologia.cli.models import load_models
from ontologia.cli.outdated import refused, warn_of_migration

if TYPE_CHECKING:
    from ontologia.commands import Env

Modules = Annotated[
    list[str], typer.Argument(metavar="MODULE", help="Modules with models and handlers.")
]
Group = Annotated[
    str, typer.Option("--group", metavar="NAME", help="Whose events: each group has them all.")
]


@contextmanager
def application(call: Call, modules: list[str], group: str, *, working: bool) -> Generator[Env]:
    """An env with what these modules have. The store must be there.

    Where a worker is to handle events, types that are to be migrated first are an error.
    """
    from ontologia.commands import Env
    from ontologia.queues import open_queue

    found = [load_models(module) for module in modules]
    types = {
        "entity_types": [cls for each in found for cls in each.entity_types],
        "relation_types": [cls for each in found for cls in each.relation_types],
    }
    with call.writing(**types) as session:
        provider = session.config.default_message_broker_provider
        queue = None if provider == "none" else open_queue(provider, session=session, group=group)
        with Env(session, modules=modules, queue=queue or "none") as env:
            if working:
                with refused(call, session, found):
                    yield env
            else:
                for module in modules:
                    warn_of_migration(session, module)
                yield env
