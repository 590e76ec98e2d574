"""Sessions that work on a bucket: an object each, written with every heartbeat."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from ontologia import codec
from ontologia.clock import from_text, to_text
from ontologia.store.s3.layout import Keys
from ontologia.store.s3.objects import Objects


class Sessions:
    """Registers sessions, and lists them. Thread-safe."""

    def __init__(self, objects: Objects, ttl_ms: int) -> None:
        self._objects = objects
        self._clock = objects.clock
        self._ttl = timedelta(milliseconds=ttl_ms)
        self._mine: dict[str, tuple[str, dict[str, Any]]] = {}
        """The sessions of this process: namespace, and what is stored."""
        self._lock = threading.Lock()

    def register(self, session_id: str, namespace: str, metadata: dict[str, Any]) -> None:
        """Record a session; its start is kept when it is recorded again. One request, or two."""
        now = to_text(self._clock.now())
        with self._lock:
            before = self._mine.get(session_id)
        if before is None:
            shown, _ = self._objects.get_document(Keys(namespace).session(session_id))
        else:
            shown = before[1]
        self._write(
            namespace,
            {
                "session_id": session_id,
                "started_at": shown.get("started_at", now),
                "last_heartbeat": now,
                "metadata": metadata,
            },
        )

    def heartbeat(self, session_id: str) -> None:
        """Record that it is alive, if this process has registered it."""
        with self._lock:
            found = self._mine.get(session_id)
        if found is not None:
            self._write(found[0], {**found[1], "last_heartbeat": to_text(self._clock.now())})

    def end(self, session_id: str) -> None:
        """Record that it ended."""
        with self._lock:
            found = self._mine.pop(session_id, None)
        if found is None:
            return
        namespace, shown = found
        now = to_text(self._clock.now())
        metadata = {**shown["metadata"], "stopped_at": now}
        self._store(namespace, {**shown, "last_heartbeat": now, "metadata": metadata})

    def _write(self, namespace: str, shown: dict[str, Any]) -> None:
        self._store(namespace, shown)
        with self._lock:
            self._mine[shown["session_id"]] = (namespace, shown)

    def _store(self, namespace: str, shown: dict[str, Any]) -> None:
        self._objects.put_documents([(Keys(namespace).session(shown["session_id"]), shown)])

    def list(self, namespace: str) -> list[dict[str, Any]]:
        """The sessions of a namespace, the newest first. A listing, and one request for each."""
        bucket, now = self._objects.bucket, self._clock.now()
        listed = [each.key for each in bucket.listing(Keys(namespace).sessions)]
        shown: list[dict[str, Any]] = []
        for stored in self._objects.each(bucket.get, listed):
            if stored is None:
                continue
            values = codec.decode(stored.body)
            metadata = values["metadata"]
            silent = now - from_text(values["last_heartbeat"])
            shown.append(
                {
                    "session_id": values["session_id"],
                    "hostname": metadata.get("hostname"),
                    "pid": metadata.get("pid"),
                    "started_at": values["started_at"],
                    "last_heartbeat": values["last_heartbeat"],
                    "stopped_at": metadata.get("stopped_at"),
                    "is_dead": silent > self._ttl and "stopped_at" not in metadata,
                    "metadata": metadata,
                }
            )
        return sorted(shown, key=lambda each: each["started_at"], reverse=True)


def alive_among(listed: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The metadata of those that are alive."""
    return {
        each["session_id"]: each["metadata"]
        for each in listed
        if not each["is_dead"] and each["stopped_at"] is None
    }
