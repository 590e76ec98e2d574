"""What a migration would do, and the token that says somebody has seen it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from ontologia.schema.diff import TypeDiff, serialize_diff
from ontologia.store.unique import Duplicates


@dataclass(frozen=True, slots=True)
class MigrationPreview:
    """What `migrate(dry_run=False, token=preview.token)` would do; false when that is nothing."""

    diffs: list[TypeDiff]
    token: str
    head: int
    objects: dict[str, int] = field(default_factory=dict[str, int])
    """How many current objects of each type would be written anew."""
    missing_upgraders: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Steps that must be written first, by type: the versions they start from."""
    duplicates: dict[str, list[Duplicates]] = field(default_factory=dict[str, list[Duplicates]])
    """What keeps fields from being unique, by type; applying is refused while there is any."""

    def __bool__(self) -> bool:
        return bool(self.diffs)

    def __str__(self) -> str:
        if not self.diffs:
            return "nothing to migrate"
        lines: list[str] = []
        for diff in self.diffs:
            lines.append(str(diff))
            lines += [f"  {name} is breaking: {reason}" for name, reason in diff.breaking]
            if diff.compatible:
                lines.append("  compatible: applies at once, without an upgrader")
        lines += [f"{name}: {count} objects to write anew" for name, count in self.objects.items()]
        for name, versions in self.missing_upgraders.items():
            lines.append(
                f"missing upgraders for {name}: from version {', '.join(map(str, versions))}"
            )
        for name, found in self.duplicates.items():
            lines += [f"{name}.{each}" for each in found]
        return "\n".join([*lines, f"token: {self.token}"])


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """What a migration did; false when there was nothing to do."""

    types: list[str]
    versions: dict[str, int]
    """The new current version of each type."""
    commit_id: int | None
    """The commit with the upgraded objects; None if there were none."""
    objects: int = 0
    """Number of objects that were written anew."""

    def __bool__(self) -> bool:
        return bool(self.types)


def compute_plan_hash(diffs: Sequence[TypeDiff]) -> str:
    """SHA-256 of the plan in canonical form; the same in every process."""
    canonical = json.dumps(
        [serialize_diff(diff) for diff in diffs], sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(canonical.encode()).hexdigest()


def compute_migration_token(plan_hash: str, head_commit_id: int | None) -> str:
    """The token for a plan made at a head."""
    raw = f"{plan_hash}:{head_commit_id if head_commit_id else 'none'}"
    return base64.urlsafe_b64encode(raw.encode()).decode()
