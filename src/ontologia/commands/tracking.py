"""Changes of tracked fields, found in what a commit turns out to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ontologia import codec
from ontologia.store.rows import RawChange


def changed_fields(
    changes: Sequence[RawChange], tracked: Mapping[str, frozenset[str]]
) -> Iterator[dict[str, Any]]:
    """`model_key record_id field old_value new_value` of every tracked field of an update.

    Compared as text, as the store does; what a command sets and sets back is no change.
    """
    for change in changes:
        fields = tracked.get(change.type_name) if change.kind == "entity" else None
        if not fields or change.before is None or change.after is None:
            continue
        before, after = codec.decode_stored(change.before), codec.decode_stored(change.after)
        for name in sorted(fields):
            old, new = before.get(name), after.get(name)
            if codec.encode(old) != codec.encode(new):
                yield {
                    "model_key": change.type_name,
                    "record_id": change.key[0],
                    "field": name,
                    "old_value": old,
                    "new_value": new,
                }
