"""When the user's types change: what changed, who upgrades the objects, and doing it."""

from ontologia.migration.plan import (
    MigrationPreview,
    MigrationResult,
    _compute_migration_token,
    _compute_plan_hash,
)
from ontologia.migration.upgraders import _chain_upgraders, load_upgraders, upgrader

__all__ = [
    "MigrationPreview",
    "MigrationResult",
    "_chain_upgraders",
    "_compute_migration_token",
    "_compute_plan_hash",
    "load_upgraders",
    "upgrader",
]
