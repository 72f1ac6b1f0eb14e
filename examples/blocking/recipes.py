"""Poll loops for libraries that are not imported here: what they need of a serial port and of a
Kafka consumer is written down.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from ergo_py.meta import Poller


class SerialPort(Protocol):
    """As pyserial has it: ``serial.Serial("/dev/ttyUSB0", 115200, timeout=None)``."""

    def readline(self) -> bytes: ...
    def cancel_read(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SerialLine:
    data: bytes


def serial_lines(port: SerialPort) -> Poller:
    """Each line of a serial port becomes a message. It blocks for as long as it likes:
    ``cancel_read`` ends it.
    """

    def poll() -> SerialLine | None:
        data = port.readline()
        return SerialLine(data) if data else None

    return Poller(poll, wake=port.cancel_read, close=port.close)


class KafkaConsumer(Protocol):
    """As confluent-kafka has it: ``confluent_kafka.Consumer({...})``, after ``subscribe([...])``."""

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
    """Each record becomes a message. A receiver that is behind holds the polling up, and with it
    the consumer.
    """

    def poll() -> KafkaRecord | None:
        # It comes back twice a second, so that the stop does not wait for long: nothing else would
        # wake it.
        found = consumer.poll(0.5)
        if found is None:
            return None
        if found.error() is not None:
            # The poller ends with this, and whoever supervises its owner decides.
            raise ConnectionError(str(found.error()))
        return KafkaRecord(
            found.topic(), found.partition(), found.offset(), found.key(), found.value()
        )

    # Leaving the group in the end, in the thread that polled, lets the others take over at once.
    return Poller(poll, close=consumer.close)
