"""`MQTT`: topics of an MQTT broker, as a source and as a sink."""

from collections.abc import Callable
from typing import Final, Unpack
from urllib.parse import unquote, urlsplit

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import show_public_names
from ..item import Item
from .broker import BatchKeywords, Broker, missing

try:
    from paho.mqtt.client import Client, MQTTMessage, MQTTv5, error_string
    from paho.mqtt.enums import CallbackAPIVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode
except ImportError as error:
    raise missing("MQTT", "paho-mqtt", "mqtt") from error

__all__ = ["MQTT"]

_FOREVER: Final = 0xFFFFFFFF
"""The session does not expire."""
_NO_TOPIC: Final = "ergo_py/none"
"""A topic that no session subscribes."""
_KEEP_ALIVE: Final = 15
"""Seconds after which paho pings; after as many without an answer, the connection is lost."""


_properties: Callable[[int], Properties] = Properties
"""With a type, which the class of paho lacks."""


class _Link:
    """A client that works in the thread that calls it: paho starts no thread."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def turn(self, seconds: float) -> None:
        """Wait for a packet, and handle it. Write, and answer pings."""
        self.check(self.client.loop(seconds))

    def check(self, code: int) -> None:
        """Raise for a code of paho that tells a failure."""
        if code:
            raise ConnectionError(error_string(code))

    def close(self) -> None:
        """Disconnect: the broker keeps the session."""
        self.client.disconnect()


class MQTT(Broker[_Link]):
    """Topics of an MQTT broker, with QoS 1: a source, a sink, or ``poison``. Bodies are bytes.

    The broker keeps the items of a session while no pipeline takes them, from the first opening of
    the source on, and delivers unacknowledged items again when the pipeline connects. A session has
    a single pipeline at a time. The key of an item is the topic on which it came. An item that was
    given up without ``poison`` stays with the connection, and counts as ``prefetch``.

    Args:
        url: the broker, such as ``mqtt://user:password@localhost:1883``, or ``mqtts://...``.
        topic: the topic; as a source it may have wildcards, such as ``orders/#``.
        session: as a source, the client id, by which the broker knows the session.
        prefetch: as a source, the most items that the broker sends before their acknowledgement.
            Brokers have limits of their own: mosquitto sends 20 (``max_inflight_messages``).
        options: as a sink, ``batch`` and ``within``, as those of `Sink`.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    def __init__(
        self,
        url: str,
        topic: str,
        *,
        session: str = "",
        prefetch: int = 1000,
        **options: Unpack[BatchKeywords],
    ) -> None:
        super().__init__(**options)
        check_number("prefetch", prefetch, least=1, most=65_535, whole=True)
        self._url, self._topic, self._session = urlsplit(url), topic, session
        if self._url.scheme not in ("mqtt", "mqtts") or not self._url.hostname:
            raise BadInputError(
                "MQTT(url)", url.rpartition("@")[2], "mqtt://host:1883, or mqtts://host"
            )
        self._prefetch = prefetch
        self._answers: list[ReasonCode] = []
        self._unconfirmed: set[int] = set()

    def connect(self) -> _Link:
        """Connect, without waiting for the answer of the broker."""
        url = self._url
        client = Client(
            CallbackAPIVersion.VERSION2, self._session, protocol=MQTTv5, manual_ack=True
        )
        if url.username is not None:
            client.username_pw_set(unquote(url.username), unquote(url.password or ""))
        if url.scheme == "mqtts":
            client.tls_set()
        client.on_connect = lambda *call: self._answers.append(call[3])
        client.on_subscribe = lambda *call: self._answers.extend(call[3])
        client.on_unsubscribe = lambda *call: self._answers.extend(call[3])
        client.on_message = self._find
        client.on_publish = self._confirm
        wishes = _properties(PacketTypes.CONNECT)
        wishes.SessionExpiryInterval = _FOREVER if self._session else 0
        wishes.ReceiveMaximum = self._prefetch
        port = url.port or (8883 if url.scheme == "mqtts" else 1883)
        host, is_clean = url.hostname or "", not self._session
        client.connect(host, port, _KEEP_ALIVE, clean_start=is_clean, properties=wishes)
        return _Link(client)

    def open(self) -> None:
        """Connect; as a source, subscribe."""
        self._answers, self._unconfirmed = [], set()
        super().open()
        self._wait_accepted()
        if self._session:
            self.link.client.subscribe(self._topic, qos=1)
            self._wait_accepted()

    def _wait_accepted(self) -> None:
        self._wait_until(lambda: bool(self._answers))
        answer = self._answers.pop()
        if answer.is_failure:
            raise ConnectionRefusedError(f"{self._topic}: {answer}")

    def _wait_until(self, holds: Callable[[], bool]) -> None:
        # A broker that does not answer at all ends this: paho raises then.
        while not holds():
            self.link.turn(1.0)

    def _find(self, client: Client, _: object, message: MQTTMessage) -> None:
        receipt = self.receipt(message.mid, message.qos)
        self.found.append(Item(message.payload, message.topic, receipt, message.dup))

    def take(self, most: int) -> list[Item]:
        """Return items that the broker has sent."""
        if not self._session:
            raise BadInputError("MQTT(session=…)", "", "the client id of the session, for a source")
        self.keep_alive()
        return self.take_found(most)

    def wait(self, seconds: float) -> None:
        """Wait until the broker sends an item."""
        self.link.turn(seconds)

    def keep_alive(self) -> None:
        """Read the packets that have come, the answers to pings among them."""
        count = -1
        while count < len(self.found):
            count = len(self.found)
            self.link.turn(0.0)

    def ack(self, items: list[Item]) -> None:
        """Acknowledge items, and wait until the broker has read that."""
        current = self.of_this_opening(items)
        for mid, qos in current:
            self.link.check(self.link.client.ack(mid, qos))
        if current:
            # An acknowledgement has no answer, and a new connection of the session would overtake
            # it. The broker answers the next packet after it: one that changes nothing.
            self.link.client.unsubscribe(_NO_TOPIC)
            self._wait_until(lambda: bool(self._answers))
            self._answers.clear()

    def handle_batch(self, items: list[Item]) -> None:
        """Publish items, and wait until the broker has acknowledged all of them."""
        self._unconfirmed = {self._publish(item) for item in items}
        self._wait_until(lambda: not self._unconfirmed)
        if self._answers:
            raise ConnectionRefusedError(f"{self._topic}: {self._answers.pop()}")

    def _publish(self, item: Item) -> int:
        labels = _properties(PacketTypes.PUBLISH)
        labels.UserProperty = [(name, str(text)) for name, text in self.labels_of(item).items()]
        sent = self.link.client.publish(self._topic, item.body, qos=1, properties=labels)
        self.link.check(sent.rc)
        mid: int = sent.mid
        return mid

    def _confirm(self, _: object, __: object, mid: int, answer: ReasonCode, *___: object) -> None:
        self._unconfirmed.discard(mid)
        if answer.is_failure:
            self._answers.append(answer)


show_public_names(__name__)
