"""`MQTT`: topics of an MQTT broker, as a source and as a sink."""

from typing import Final, Unpack

from paho.mqtt.client import Client, MQTTMessage, error_string
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from ..._core.vocabulary.public_names import show_public_names
from ...meta.checks import check_topic, host_of
from ...meta.mqtt_address import MQTTAddress
from ..item import Item
from .broker import BatchKeywords, Broker, Opened, decoded

__all__ = ["MQTT"]

_FOREVER: Final = 0xFFFFFFFF
"""The session does not expire."""


class MQTT(Broker[Client, tuple[int, int]]):
    """Topics of an MQTT broker, with QoS 1: a source, a sink, or ``poison``. Bodies are bytes.

    The broker keeps the items of a session while no pipeline takes them, from the first opening of
    the source on, and delivers unacknowledged items again when the pipeline connects. A session has
    a single pipeline at a time. The key of an item is the topic on which it came.

    An item that was given up without ``poison`` is not acknowledged: the source connects again when
    it has no other item, at most each 30 seconds, and takes it again.

    The broker sends no more unacknowledged items than the pipeline's ``most_unacknowledged``.
    Brokers have limits of their own: mosquitto sends 20 (``max_inflight_messages``). So many items
    that are given up each time hold up the others: use ``poison``.

    Args:
        url: the broker, such as ``mqtt://user:password@localhost:1883``, or ``mqtts://...``.
        topic: the topic; as a source it may have wildcards, such as ``orders/#``.
        session: as a source, the client id, by which the broker knows the session.
        options: as a sink, ``batch`` and ``within``, as those of `Sink`.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    sends_again_when_opened = True

    def __init__(
        self, url: str, topic: str, *, session: str = "", **options: Unpack[BatchKeywords]
    ) -> None:
        super().__init__(**options)
        self._address = MQTTAddress("MQTT(url)", url)
        self._topic = check_topic("MQTT(topic)", topic)
        self._session = session and self.named(session=session)[0]
        self.where: str = host_of(url)
        self.source_option: tuple[str, str] | None = ("session", session)
        self.sink_option: tuple[str, str, str] | None = ("topic", topic, "+#")

    def connect(self) -> Opened[Client]:
        """Connect, without waiting for the answer of the broker. paho starts no thread."""
        name = self._session
        client = self._address.make_client(name, manual_ack=True)
        client.on_connect = client.on_publish = lambda *call: self._answers.append(call[3])
        client.on_subscribe = client.on_unsubscribe = lambda *call: self._answers.extend(call[3])
        client.on_message = self._find
        wishes = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        wishes.SessionExpiryInterval = _FOREVER if name else 0
        wishes.ReceiveMaximum = self.prefetch
        self._answers: list[ReasonCode] = []
        self._address.connect(client, clean_start=not name, wishes=wishes)
        return client, client.disconnect

    def prepare(self) -> None:
        """Wait for the answer; as a source, subscribe."""
        self._wait_for(1)
        if self._session:
            self.link.subscribe(self._topic, qos=1)
            self._wait_for(1)

    def _wait_for(self, answers: int) -> None:
        # A broker that does not answer at all ends this: paho raises then.
        while len(self._answers) < answers:
            self._check(self.link.loop(1.0))
        refused = [answer for answer in self._answers if answer.is_failure]
        self._answers = []
        if refused:
            raise ConnectionRefusedError(f"{self._topic}: {refused[0]}")

    def _check(self, code: int) -> None:
        if code:
            raise ConnectionError(error_string(code))

    def _find(self, client: Client, _: object, message: MQTTMessage) -> None:
        topic = decoded(lambda: message.topic)
        place = (message.mid, message.qos)
        self.find([(message.payload, topic, place, message.dup, None)])

    def receive(self, most: int, seconds: float = 0.0) -> None:
        """Read the packets that have come, the answers to pings among them; write, and ping."""
        count = -1
        while count < len(self.found):
            count = len(self.found)
            self._check(self.link.loop(seconds))
            seconds = 0.0

    def keep_alive(self) -> None:
        """Answer the broker."""
        self.receive(0)

    def confirm(self, places: list[tuple[int, int]]) -> None:
        """Acknowledge items, and wait until the broker has read that."""
        for mid, qos in places:
            self._check(self.link.ack(mid, qos))
        # An acknowledgement has no answer, and a new connection of the session would overtake it.
        # The broker answers the next packet after it: one that changes nothing.
        self.link.unsubscribe("ergo_py/none")
        self._wait_for(1)

    def handle_batch(self, items: list[Item]) -> None:
        """Publish items, and wait until the broker has acknowledged all of them."""
        for item in items:
            labels = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            labels.UserProperty = [*self.lines_of(item).items()]
            self._check(self.link.publish(self._topic, item.body, 1, properties=labels).rc)
        self._wait_for(len(items))


show_public_names(__name__)
