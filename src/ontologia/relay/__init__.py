"""Relays and intakes: events of a store to other systems, and events of other systems to a store.

Relay(session, "kafka://broker:9092/shop.events").run()
Intake(session, "s3://bucket/events").run_until_empty()
"""

from ontologia.relay.endpoints import (
    Arrival,
    Portion,
    Progress,
    Source,
    Target,
    open_source,
    open_target,
)
from ontologia.relay.intake import REFUSED, Intake
from ontologia.relay.relay import Relay

__all__ = [
    "REFUSED",
    "Arrival",
    "Intake",
    "Portion",
    "Progress",
    "Relay",
    "Source",
    "Target",
    "open_source",
    "open_target",
]
