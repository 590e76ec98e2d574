"""When the user's types change: what changed, who upgrades the objects, and doing it."""

# The documents spell some of these names with an underscore.
from ontologia.migration.background import MigrationProgress
from ontologia.migration.plan import MigrationPreview, MigrationResult
from ontologia.migration.plan import compute_migration_token as _compute_migration_token
from ontologia.migration.plan import compute_plan_hash as _compute_plan_hash
from ontologia.schema.upgraders import chain_upgraders as _chain_upgraders
from ontologia.schema.upgraders import load_upgraders, upgrader
from ontologia.store.staging import PendingMigration

__all__ = [
    "MigrationPreview",
    "MigrationProgress",
    "MigrationResult",
    "PendingMigration",
    "_chain_upgraders",
    "_compute_migration_token",
    "_compute_plan_hash",
    "load_upgraders",
    "upgrader",
]
