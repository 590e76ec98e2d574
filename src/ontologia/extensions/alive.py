"""Whether another process is still there. Only what is certain counts: in doubt it is."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ontologia.clock import from_text

_LINUX = platform.system() == "Linux"
_GONE = ("Z", "X")


def mark() -> dict[str, Any]:
    """What a session leaves on record so that its process can be looked for."""
    return {"pid": os.getpid(), "machine": _machine(), "process_started": _started(os.getpid())}


def is_dead(
    last_heartbeat: str | None, metadata: Mapping[str, Any], now: datetime, ttl: timedelta
) -> bool:
    """Whether a session is over: it ended, it is silent for too long, or its process is gone."""
    if last_heartbeat is None or "stopped_at" in metadata:
        return True
    return now - from_text(last_heartbeat) > ttl or _is_gone(metadata)


def _is_gone(metadata: Mapping[str, Any]) -> bool:
    pid, machine = metadata.get("pid"), metadata.get("machine")
    if machine is None or machine != _machine() or not isinstance(pid, int):
        return False  # of other machines, and other containers, nothing can be seen from here
    if _LINUX:
        return _started(pid) != metadata.get("process_started")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _machine() -> str | None:
    """A name for everything whose processes can be seen from here; None if that is not known."""
    if _LINUX:
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return (
                f"{boot} {os.readlink('/proc/self/ns/pid')}"  # a container has numbers of its own
            )
        except OSError:
            return None
    return platform.node() if os.name == "posix" else None


def _started(pid: int) -> str | None:
    """When a process began, in ticks of its machine; None if it is gone, or nothing says so."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold anything
    return None if fields[0] in _GONE else fields[19]
