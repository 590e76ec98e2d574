"""Ontologia: typed, versioned state and a durable event bus in one database."""

from typing import TYPE_CHECKING, Any

from ontologia.migration.upgraders import load_upgraders, upgrader
from ontologia.runtime.session import Session
from ontologia.schema.entity import Entity
from ontologia.schema.field import Field
from ontologia.schema.relation import Relation, left, right

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig

__version__ = "0.1.0"

__all__ = [
    "Entity",
    "Field",
    "OntologiaConfig",
    "Relation",
    "Session",
    "left",
    "load_upgraders",
    "right",
    "upgrader",
]


def __getattr__(name: str) -> Any:
    # The library behind the settings takes a third of the time that everything else takes to
    # import; a program that only defines its types does not need it.
    if name == "OntologiaConfig":
        from ontologia.config import OntologiaConfig

        return OntologiaConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
