"""A program that carries out commands with a queue on Kafka, to be killed.

python -m tests.relay.dispatching STORE SERVERS TOPIC FIRST
"""

from __future__ import annotations

import itertools
import sys

from ontologia import OntologiaConfig, Session
from ontologia.commands import Command, Env
from ontologia.queues.kafka import KafkaEventQueue
from tests.integration.freight import application


def main(store: str, servers: str, topic: str, first: int) -> None:
    config = OntologiaConfig(event_claim_lease_ms=400)
    session = Session(store, "shop", config=config)
    env = Env(session, modules=[application()], queue=KafkaEventQueue(servers, topic))
    shipments = env.models["freight.shipment"]
    for number, _ in zip(itertools.count(first), sys.stdin, strict=False):  # one for each line
        shipments.create({"id": f"s{number}", "reference": "r"})
        if number % 3 == 2:  # this one is taken back, with what it emitted
            try:
                env.dispatch(Command("shipment.fail", {}, "freight.shipment", f"s{number}"))
            except LookupError:
                continue
        env.dispatch(Command("shipment.confirm", {}, "freight.shipment", f"s{number}"))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
