"""Who is at the terminal, for the record of what was done."""

from __future__ import annotations


def record(action: str, reason: str | None, **arguments: object) -> dict[str, object]:
    """What the commit of a command says beside its counts."""
    said: dict[str, object] = {"operator": operator(), "action": action, "arguments": arguments}
    return said if reason is None else said | {"reason": reason}


def operator() -> str:
    """`user@host`."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user need not have a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
