"""The tables as they are after each transaction, as far as the rules need to know them."""

from __future__ import annotations

from ontologia.store.rows import TOMBSTONE
from ontologia_conformance.simulation.history import Change, Row, Transaction

Place = tuple[str, str]
"""An event and a handler."""
ObjectPlace = tuple[str, ...]
"""Kind, type and key of an object."""


class Model:
    """What history says is there."""

    def __init__(self) -> None:
        self.claims: dict[Place, Row] = {}
        self.events: dict[str, Row] = {}
        self.incoming: dict[str, int] = {}
        self.ready: set[tuple[int, str]] = set()
        self.consumers: dict[int, Row] = {}
        self.subscriptions: set[tuple[str, int]] = set()
        self.deferred: dict[int, Row] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.state: dict[ObjectPlace, str] = {}
        self.versions: dict[ObjectPlace, int] = {}
        self.past: dict[ObjectPlace, list[tuple[int, str | None]]] = {}
        """Every version of each object: commit and fields, None where it was deleted."""
        """The commit that wrote the current version; nothing where there is no object."""
        self.commits: list[int] = []
        self.letters: dict[int, Row] = {}

    def apply(self, transaction: Transaction) -> None:
        """Take over what a transaction wrote."""
        for change in transaction.changes:
            step = getattr(self, f"_{change.table}", None)
            if step is not None:
                step(change)

    def name_of(self, consumer_id: int) -> str:
        """A consumer's name."""
        return str(self.consumers[consumer_id]["name"])

    def places_of(self, event_id: str, consumer_id: int) -> int:
        """In how many places an event is for a consumer: one is right."""
        claim = self.claims.get((event_id, self.name_of(consumer_id)))
        open_or_over = claim is not None and any(
            claim[column] is not None for column in ("due_at", "ack_at", "dead_lettered_at")
        )
        return (
            self.incoming.get(event_id, 0) + ((consumer_id, event_id) in self.ready) + open_or_over
        )

    # -- tables -----------------------------------------------------------------------------------

    def _event_claims(self, change: Change) -> None:
        if change.old is not None:
            self.claims.pop((change.old["event_id"], change.old["handler_id"]), None)
        if change.new is not None:
            self.claims[change.new["event_id"], change.new["handler_id"]] = change.new

    def _events(self, change: Change) -> None:
        _replace(self.events, "id", change)

    def _incoming(self, change: Change) -> None:
        for row, number in ((change.old, -1), (change.new, 1)):
            if row is not None:
                self.incoming[row["event_id"]] = self.incoming.get(row["event_id"], 0) + number

    def _ready(self, change: Change) -> None:
        if change.old is not None:
            self.ready.discard((change.old["consumer_id"], change.old["event_id"]))
        if change.new is not None:
            self.ready.add((change.new["consumer_id"], change.new["event_id"]))

    def _consumers(self, change: Change) -> None:
        _replace(self.consumers, "id", change)

    def _subscriptions(self, change: Change) -> None:
        if change.old is not None:
            self.subscriptions.discard((change.old["type"], change.old["consumer_id"]))
        if change.new is not None:
            self.subscriptions.add((change.new["type"], change.new["consumer_id"]))

    def _deferred_events(self, change: Change) -> None:
        _replace(self.deferred, "id", change)

    def _dead_letters(self, change: Change) -> None:
        _replace(self.letters, "id", change)

    def _dedup(self, change: Change) -> None:
        if change.old is not None:
            self.keys.pop((change.old["type"], change.old["key"]), None)
        if change.new is not None:
            self.keys[change.new["type"], change.new["key"]] = change.new["event_id"]

    def _commits(self, change: Change) -> None:
        if change.new is not None:
            self.commits.append(change.new["id"])

    def _entity_history(self, change: Change) -> None:
        if change.new is not None:
            row = change.new
            self._set(("entity", row["entity_type"], row["entity_key"]), row)

    def _relation_history(self, change: Change) -> None:
        if change.new is not None:
            row = change.new
            key = (row["left_key"], row["right_key"], row["instance_key"])
            self._set(("relation", row["relation_type"], *key), row)

    def values(self, place: ObjectPlace, commit_id: int | None) -> set[str | None]:
        """What an object was at a commit; without one, whatever it ever was."""
        past = self.past.get(place, [])
        if commit_id is None:
            return {fields for _, fields in past} | {None}
        return {next((f for number, f in reversed(past) if number <= commit_id), None)}

    def _set(self, place: ObjectPlace, row: Row) -> None:
        deleted = row["fields_json"] == TOMBSTONE
        version = (row["commit_id"], None if deleted else row["fields_json"])
        self.past.setdefault(place, []).append(version)
        if deleted:
            self.state.pop(place, None)
            self.versions.pop(place, None)
        else:
            self.state[place] = row["fields_json"]
            self.versions[place] = row["commit_id"]


def _replace(
    rows: dict[object, Row] | dict[str, Row] | dict[int, Row], key: str, change: Change
) -> None:
    table: dict[object, Row] = rows  # type: ignore[assignment]  # pyright: ignore
    if change.old is not None:
        table.pop(change.old[key], None)
    if change.new is not None:
        table[change.new[key]] = change.new
