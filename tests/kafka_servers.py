"""Kafka of a test's own, and what is in it, for what a queue does not tell."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, TopicPartition

from ontologia_conformance.kafka_servers import MockKafka
from ontologia_conformance.queue_world import messages, real_kafka

__all__ = ["MockKafka", "committed", "messages", "real_kafka", "send"]


def committed(
    servers: str, topic: str, group: str = "default", partitions: int = 4
) -> dict[int, tuple[int, str]]:
    """The offsets of a group, with their metadata, by the number of the partition."""
    reader = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    try:
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        found = reader.committed(asked, timeout=30)
        return {at.partition: (at.offset, at.metadata or "") for at in found if at.offset >= 0}
    finally:
        reader.close()


def send(
    servers: str, topic: str, value: bytes | None, headers: dict[str, Any], key: bytes | None = None
) -> None:
    """Send a message as a program in another language would."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    producer.produce(topic, value, key, headers=list(headers.items()))
    assert producer.flush(30) == 0
