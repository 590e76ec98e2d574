"""Where nothing was found: whether the namespace or the handler may not be the one that was meant.

Said on stderr, to a reader only; the answer and the exit code are what they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ontologia.cli.output import harmless

if TYPE_CHECKING:
    from ontologia.cli.call import Call
    from ontologia.runtime.session import Session

_NAMED = 5


def tell_of_other_namespaces(call: Call, session: Session) -> None:
    """Name some namespaces that have events, if this one has nothing."""
    if call.json:
        return
    found = session.event_store.listings.elsewhere(session.namespace, _NAMED + 1)
    if found:
        named = ", ".join(map(harmless, found[:_NAMED])) + (", …" if len(found) > _NAMED else "")
        typer.echo(
            f"nothing in namespace {session.namespace!r}; there are events in: {named}", err=True
        )


def tell_of_unknown_handler(call: Call, session: Session, handler: str | None) -> None:
    """Say if no consumer of this name is known, and which one is called nearly the same."""
    if call.json or handler is None:
        return
    import difflib

    known = [row["name"] for row in session.event_store.list_consumers(session.namespace)]
    if handler in known:
        return
    close = difflib.get_close_matches(handler, known, n=1)
    helps = f"; did you mean {harmless(close[0])}?" if close else ""
    typer.echo(
        f"there is no consumer {handler} in namespace {session.namespace!r}{helps}", err=True
    )
