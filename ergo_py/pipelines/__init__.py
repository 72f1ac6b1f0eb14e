"""Pipelines: items of a broker on their way from a source through stages to a sink, acknowledged
and bounded. See docs/pipelines.md.
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .brokers.amqp import AMQP
    from .brokers.jet_stream import JetStream
    from .brokers.kafka import Kafka
    from .brokers.mqtt import MQTT
    from .brokers.postgres_queue import PostgresQueue
    from .brokers.redis_stream import RedisStream
    from .brokers.sqlite_queue import SQLiteQueue
    from .database import ToDatabase
    from .item import Item
    from .lanes import Retry
    from .pipeline import Pipeline
    from .source import Source
    from .steps import Batch, Sink, Stage, ToActor

__all__ = [
    "AMQP",
    "MQTT",
    "Batch",
    "Item",
    "JetStream",
    "Kafka",
    "Pipeline",
    "PostgresQueue",
    "RedisStream",
    "Retry",
    "SQLiteQueue",
    "Sink",
    "Source",
    "Stage",
    "ToActor",
    "ToDatabase",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "brokers.amqp": "AMQP",
            "brokers.jet_stream": "JetStream",
            "brokers.kafka": "Kafka",
            "brokers.mqtt": "MQTT",
            "brokers.postgres_queue": "PostgresQueue",
            "brokers.redis_stream": "RedisStream",
            "brokers.sqlite_queue": "SQLiteQueue",
            "database": "ToDatabase",
            "item": "Item",
            "lanes": "Retry",
            "pipeline": "Pipeline",
            "source": "Source",
            "steps": "Batch Sink Stage ToActor",
        },
        {
            "AMQP": "amqp",
            "JetStream": "jetstream",
            "Kafka": "kafka",
            "MQTT": "mqtt",
            "PostgresQueue": "postgres",
            "RedisStream": "redis",
        },
    )
