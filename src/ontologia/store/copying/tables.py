"""Which tables a store has, and in which order their rows are read, compared and written.

Columns are not listed: each side is asked for those it has, and they must be the same. What both
databases keep in ways of their own goes by one name here: the fields of a current object are
`fields_json`, canonical text, from which each side makes the form that it searches.
"""

from __future__ import annotations

from typing import NamedTuple

FIELDS, SEARCHED = "fields_json", "fields"
"""What is copied of a current object, and the column that is made from it."""


class Table(NamedTuple):
    """A table to copy."""

    name: str
    order: str
    """A unique key, as ORDER BY wants it; both databases have an index in this order."""

    @property
    def number(self) -> str | None:
        """The column that numbers the rows, if they are numbered."""
        return self.order if self.order in ("id", "seq") else None

    @property
    def is_searched(self) -> bool:
        """Whether it holds current objects, whose fields are kept in two forms."""
        return self.name.endswith("_latest")


TABLES = (
    Table("commits", "id"),  # before the history, which refers to it
    Table("entity_history", "id"),
    Table("relation_history", "id"),
    Table("entity_latest", "entity_type, entity_key"),
    Table("relation_latest", "relation_type, left_key, right_key, instance_key"),
    Table("pending_migration", "plan_hash"),
    Table("staged_entities", "entity_type, entity_key"),
    Table("staged_relations", "relation_type, left_key, right_key, instance_key"),
    Table("staged_values", "type_kind, type_name, field, value_hash, object_key"),
    Table("schema_registry", "type_kind, type_name"),
    Table("schema_versions", "id"),
    Table("sessions", "session_id"),
    Table("events", "seq"),
    Table("dedup", "namespace, type, key"),
    Table("deferred_events", "id"),
    Table("schedule_fires", "namespace, schedule_key, tick"),
    Table("incoming", "seq"),
    Table("consumers", "id"),
    Table("subscriptions", "namespace, type, consumer_id"),
    Table("ready", "consumer_id, priority DESC, created_at, event_id"),
    Table("event_claims", "event_id, handler_id"),
    Table("attempts", "event_id, handler_id, attempt"),
    Table("dead_letters", "id"),
    Table("archives", "namespace, uri"),
    Table("restored", "event_id"),
    Table("replies", "namespace, key"),
    Table("intakes", "namespace, source, part"),
    Table("intake_messages", "namespace, source, name"),
)
LONG_KEY = """
SELECT entity_type, entity_key FROM entity_history WHERE octet_length(entity_key) > {most}
UNION ALL
SELECT relation_type, left_key || ':' || right_key || ':' || instance_key FROM relation_history
 WHERE octet_length(left_key) + octet_length(right_key) + octet_length(instance_key) > {most}
LIMIT 1"""
"""Finds a key of more than so many bytes."""
LEFT_OUT = {
    "locks": "whoever holds one writes to the source",
    "ontologia_layout": "a target has the layout of its own database",
}
NOT_CONTENT = ("sessions",)
"""A target may hold these: somebody opened it to see whether it is there."""
