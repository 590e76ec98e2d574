"""The console: what waits, what failed and why, and the verbs of an operator, in a browser.

`console(session, identify=...)` is an ASGI application: mount it in one of your own, or run it with
`ontologia console`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ontologia.web.console.access import Identify, User

if TYPE_CHECKING:
    from ontologia.runtime.session import Session
    from ontologia.web.console.app import Console

__all__ = ["User", "console"]


def console(
    session_or_uri: Session | str,
    *,
    token: str | None = None,
    identify: Identify | None = None,
    read_only: bool = False,
    models: str | None = None,
    redact: Iterable[str] = (),
    label: str | None = None,
    hosts: Iterable[str] | None = None,
) -> Console:
    """The console of a store, as an ASGI application.

    Closed by default: ConfigError without `token` and `identify`. With `token` there is a login page,
    which asks for it and for a name; `identify(scope)` says who sent a request, a `User`, or None
    for nobody, and may be async. Viewers change nothing; with `read_only` nobody does.

    `models` is a module with the types and events of the program. `redact` are keys of payloads,
    fields and arguments whose values are shown nowhere. `label` is on every page: `prod`. `hosts`
    are the names that a request's Host may have; by default those of this machine, or any with
    `identify` alone. A session stays the caller's; of a URI, close the console when done.
    """
    from ontologia.web.console.app import Console

    return Console(
        session_or_uri,
        token=token,
        identify=identify,
        read_only=read_only,
        models=models,
        redact=redact,
        label=label,
        hosts=hosts,
    )
