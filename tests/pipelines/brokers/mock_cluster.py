"""The mock cluster of confluent-kafka, and its rig."""

from collections.abc import Sequence

from confluent_kafka import Consumer, Producer, TopicPartition

from ergo_py.pipelines import Item, Kafka
from ergo_py.testing.bridges import SourceRig

__all__ = ["Cluster", "KafkaRig"]


class Cluster:
    """Lives in a producer of this program, and listens on a port. It cannot be killed."""

    def __init__(self) -> None:
        self._producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock"})
        [broker] = self._producer.list_topics(timeout=10).brokers.values()
        self.servers = f"{broker.host}:{broker.port}"

    def rig(self, topic: str) -> "KafkaRig":
        """A topic, which keeps the cluster alive."""
        rig = KafkaRig(self.servers, topic)
        rig.cluster = self
        return rig


class KafkaRig(SourceRig):
    cluster: Cluster

    def __init__(self, servers: str, topic: str) -> None:
        self.servers, self.topic = servers, topic
        # The cluster makes a topic when a producer asks for it.
        Producer({"bootstrap.servers": self.servers}).list_topics(topic, timeout=10)

    def source(self) -> Kafka:
        settings = {"session.timeout.ms": 6000, "fetch.wait.max.ms": 10}
        return Kafka(self.servers, self.topic, group="test", settings={**settings})

    def put(self, bodies: Sequence[bytes]) -> None:
        # A key for all: a single partition keeps the order.
        Kafka(self.servers, self.topic).put(*[Item(body, "key") for body in bodies])

    def left(self) -> int:
        reader = Consumer({"bootstrap.servers": self.servers, "group.id": "test"})
        try:
            known = reader.list_topics(self.topic, timeout=10).topics[self.topic].partitions
            places = [TopicPartition(self.topic, number) for number in known]
            count = 0
            for place in reader.committed(places, timeout=10):
                first, end = reader.get_watermark_offsets(place, timeout=10)
                count += end - max(first, place.offset)
            return count
        finally:
            reader.close()
