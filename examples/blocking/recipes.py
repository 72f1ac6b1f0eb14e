"""Poll loops for a serial port and for a Kafka consumer. The libraries are not imported here;
protocols describe the methods that the loops need.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from ergo_py.meta import Poller


class SerialPort(Protocol):
    """The interface of pyserial: ``serial.Serial("/dev/ttyUSB0", 115200, timeout=None)``."""

    def readline(self) -> bytes: ...
    def cancel_read(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SerialLine:
    data: bytes


def serial_lines(port: SerialPort) -> Poller:
    """Each line of a serial port becomes a message. A read may block without a limit:
    ``cancel_read`` ends it.
    """

    def poll() -> SerialLine | None:
        data = port.readline()
        return SerialLine(data) if data else None

    return Poller(poll, wake=port.cancel_read, close=port.close)


class KafkaConsumer(Protocol):
    """The interface of confluent-kafka: ``confluent_kafka.Consumer({...})``, after
    ``subscribe([...])``.
    """

    def poll(self, timeout: float) -> Any: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def kafka_records(consumer: KafkaConsumer) -> Poller:
    """Each record becomes a message. A receiver that is behind slows down the polling, and with it
    the consumer (backpressure).
    """

    def poll() -> KafkaRecord | None:
        # Return twice a second, so that the stop does not wait for long: nothing else would wake
        # this call.
        found = consumer.poll(0.5)
        if found is None:
            return None
        if found.error() is not None:
            # The poller ends with this error, and the supervisor of its owner decides.
            raise ConnectionError(str(found.error()))
        return KafkaRecord(
            found.topic(), found.partition(), found.offset(), found.key(), found.value()
        )

    # Leave the group at the end, in the thread that polled: the other consumers take over at once.
    return Poller(poll, close=consumer.close)
