"""Ontologia: typed, versioned state and a durable event bus in one database."""

from ontologia.config import OntologiaConfig
from ontologia.migration.upgraders import load_upgraders, upgrader
from ontologia.runtime.session import Session
from ontologia.schema.entity import Entity
from ontologia.schema.field import Field
from ontologia.schema.relation import Relation, left, right

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
