"""A session that only looks: it is not in the list of sessions, and registers nothing."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from ontologia.runtime.session import Session
from ontologia.store.copying.sides import open_source

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig
    from ontologia.schema.shape import Shape


class Visitor(Session):
    """For commands that read: whatever they are asked, they change nothing."""

    def _arrive(self, shapes: list[Shape]) -> None:
        """Leave nothing behind."""


def check_store(uri: str, config: OntologiaConfig) -> None:
    """StoreOpenError unless there is a store of the current layout. Writes nothing."""
    closing(open_source(uri, config)).__exit__(None, None, None)
