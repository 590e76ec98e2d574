"""The index object of a namespace: the last event of each handler, for people and other programs."""

from __future__ import annotations

import logging
import threading

from ontologia.errors import DatabaseError
from ontologia.store.s3.layout import Keys
from ontologia.store.s3.objects import Objects

log = logging.getLogger(__name__)
_EVERY = 1.0  # seconds between two writes of this process
_RACES = 3  # that a write may lose; the next one has it, too


class Index:
    """Writes the index after acks, at most once a second. Nothing depends on it. Thread-safe."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._clock = objects.clock
        self._noted: dict[str, dict[str, tuple[str, str]]] = {}
        """By namespace and handler: the event that was acked last, and when."""
        self._written_at: float | None = None
        self._lock = threading.Lock()

    def note(self, namespace: str, handler_id: str, event_id: str, acked_at: str) -> None:
        """An event was acked."""
        with self._lock:
            self._noted.setdefault(namespace, {})[handler_id] = (event_id, acked_at)

    def write(self, *, all_of_it: bool = False) -> None:
        """Write what was noted, if the last write was long enough ago. Two requests a namespace."""
        with self._lock:
            now = self._clock.monotonic()
            last = self._written_at
            if not self._noted or (not all_of_it and last is not None and now - last < _EVERY):
                return
            noted, self._noted, self._written_at = self._noted, {}, now
        for namespace, handlers in noted.items():
            try:
                self._write(namespace, handlers)
            except DatabaseError as error:
                log.warning("the index of %r was not written: %s", namespace, error.args[0])

    def _write(self, namespace: str, handlers: dict[str, tuple[str, str]]) -> None:
        key = Keys(namespace).index
        for _ in range(_RACES):
            shown, etag = self._objects.get_document(key)
            listed = shown.get("handlers", {})
            for handler_id, (event_id, acked_at) in handlers.items():
                if acked_at >= listed.get(handler_id, {}).get("last_ack_at", ""):
                    listed[handler_id] = {"last_ack_event_id": event_id, "last_ack_at": acked_at}
            last = max(listed.values(), key=lambda each: each["last_ack_at"])
            new = {
                "namespace": namespace,
                "last_processed_event_id": last["last_ack_event_id"],
                "last_processed_at": last["last_ack_at"],
                "handlers": listed,
            }
            if new == shown or self._objects.put_document(key, new, etag) is not None:
                return
