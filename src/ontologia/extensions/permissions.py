"""What an extension may do: the topics and the entity types that its manifest names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ontologia.errors import ConfigError, ConfigTypeError, PermissionDeniedError

ACTIONS = ("publish", "subscribe", "read", "write")


@dataclass(frozen=True, slots=True)
class Permissions:
    """The names that each action is allowed for; what is not named is refused.

    An extension without a `permissions` section has none of these, and may do everything.
    """

    publish: frozenset[str] = field(default_factory=frozenset[str])
    subscribe: frozenset[str] = field(default_factory=frozenset[str])
    read: frozenset[str] = field(default_factory=frozenset[str])
    write: frozenset[str] = field(default_factory=frozenset[str])

    @classmethod
    def of(cls, given: Permissions | Mapping[str, Any] | None) -> Permissions | None:
        """From the section of a manifest, with a list of names for each action; None stays None."""
        if given is None or isinstance(given, Permissions):
            return given
        if not isinstance(given, Mapping):
            raise ConfigTypeError(f"permissions are lists of names by action, got {given!r:.200}")
        unknown = [name for name in given if name not in ACTIONS]
        if unknown:
            raise ConfigError(f"there is no permission {unknown[0]!r}; there are {_LISTED}")
        return cls(**{action: _names(action, names) for action, names in given.items()})

    def allow(self, action: str, name: str) -> bool:
        """Whether the action is allowed for this name."""
        allowed: frozenset[str] = getattr(self, action)
        return name in allowed


def check(permissions: Permissions | None, extension_id: str, action: str, name: str) -> None:
    """PermissionDeniedError, with the line that the manifest lacks, unless it is allowed."""
    if permissions is not None and not permissions.allow(action, name):
        raise PermissionDeniedError(extension_id, action, name)


def _names(action: str, names: Any) -> frozenset[str]:
    listed = [] if names is None else names
    if isinstance(listed, str) or not all(isinstance(name, str) for name in listed):
        raise ConfigTypeError(f"permissions.{action} is a list of names, got {names!r:.200}")
    return frozenset(listed)


_LISTED = ", ".join(ACTIONS)
