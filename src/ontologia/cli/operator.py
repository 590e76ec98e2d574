"""Who is at the terminal, for the record of what was done."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ontologia.cli.call import Call

if TYPE_CHECKING:
    from ontologia.runtime.operator import Operator
    from ontologia.runtime.session import Session

Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="For the record.")]


@contextmanager
def operating(
    call: Call, reason: str | None, *, reading: bool = False
) -> Generator[tuple[Session, Operator]]:
    """A session, and the verbs of whoever is at the terminal."""
    from ontologia.runtime.operator import Operator

    with call.reading() if reading else call.writing() as session:
        yield session, Operator(session, operator(), reason=reason)


def record(action: str, reason: str | None, **arguments: object) -> dict[str, object]:
    """What the commit of a command says beside its counts; refuses a reason that cannot be kept."""
    from ontologia.runtime.operator import checked_reason

    said: dict[str, object] = {"operator": operator(), "action": action, "arguments": arguments}
    return said if checked_reason(reason) is None else said | {"reason": reason}


def operator() -> str:
    """`user@host`."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user need not have a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
