"""`MQTTTopics`: topics of an MQTT broker, with paho-mqtt."""

import os
import select
from collections import deque
from typing import Any, Unpack

from paho.mqtt import MQTTException
from paho.mqtt.client import MQTTMessage, error_string
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.public_names import show_public_names
from ..meta.checks import check_topic
from ..meta.mqtt_address import KEEP_ALIVE, MQTTAddress
from .bridge import Device, DeviceKeywords

__all__ = ["MQTTTopics"]


class MQTTTopics(Device):
    """Topics of an MQTT broker, in both directions. `Device.Data` has the
    ``paho.mqtt.client.MQTTMessage`` of each message, with its ``topic``, ``payload`` and
    ``retain``; `Device.Send` takes a topic and bytes, and a call returns when the broker has them
    (QoS 1); a refusal of the broker raises ``paho.mqtt.MQTTException``. The broker keeps no
    messages for a session that is gone: those of a gap are lost, but for the retained messages, and
    `Device.Lost` tells the gap. The items of an `MQTT` source are not lost.

    Args:
        url: the broker, such as ``mqtt://user:password@localhost:1883``, or ``mqtts://...``.
        topics: the topics to subscribe to; they may have wildcards, such as ``sensors/#``.
        options: those of `Device`.

    Raises:
        BadInputError: the address or a topic cannot be read.
    """

    kind = "mqtt"

    def __init__(self, url: str, *topics: str, **options: Unpack[DeviceKeywords]) -> None:
        super().__init__(**options)
        self._address = MQTTAddress("MQTTTopics(url)", url)
        self._topics = [check_topic("MQTTTopics(topics)", topic) for topic in topics]

    def open(self) -> None:
        """Connect, and subscribe."""
        self._heard: deque[MQTTMessage] = deque()
        self._answers: list[ReasonCode] = []
        client = self._address.make_client()
        client.on_connect = client.on_publish = lambda *call: self._answers.append(call[3])
        client.on_subscribe = lambda *call: self._answers.extend(call[3])
        client.on_message = lambda *call: self._heard.append(call[2])
        self._address.connect(client)
        self._client = client
        try:
            self._wait_for_answer()
            for topic in self._topics:
                client.subscribe(topic, qos=1)
                self._wait_for_answer()
            self._bell, self._ring = os.pipe()
        except BaseException:
            self._disconnect()
            raise
        os.set_blocking(self._ring, False)

    def _wait_for_answer(self, refusal: type[Exception] = ConnectionRefusedError) -> None:
        # A broker that does not answer at all ends this: paho tells that the connection is lost.
        while not self._answers:
            self._turn(1.0)
        if (answer := self._answers.pop()).is_failure:
            raise refusal(str(answer))

    def _turn(self, seconds: float) -> None:
        """Read the packets that come; write, and ping."""
        code = self._client.loop(seconds)
        # paho calls it a success that a broker says goodbye, and has no socket then.
        if code or self._client.socket() is None:
            raise ConnectionError(error_string(code or MQTTErrorCode.MQTT_ERR_CONN_LOST))

    def _disconnect(self) -> None:
        # paho leaves the socket open if it cannot say goodbye, and another until it is freed: the
        # cycle with its callbacks ends here.
        socket: Any = self._client.socket()
        if self._client.disconnect() != MQTTErrorCode.MQTT_ERR_NO_CONN:
            socket.close()
        del self._client

    def read(self) -> object:
        """The next message; None after ``wake``, or if the broker has sent something else."""
        # First the packets that paho has: encrypted, several come at once.
        if not self._heard:
            self._turn(0.0)
        if not self._heard:
            awaited: list[Any] = [self._client.socket(), self._bell]
            if self._bell in select.select(awaited, [], [], KEEP_ALIVE / 3)[0]:
                os.read(self._bell, 1000)
            self._turn(0.0)
        return self._heard.popleft() if self._heard else None

    def write(self, data: object) -> None:
        """Publish, and wait until the broker has the message."""
        match data:
            case (str(topic), bytes(payload)):
                self._client.publish(topic, payload, qos=1)
                # No OSError: a broker that refuses a topic is not lost.
                self._wait_for_answer(MQTTException)
            case _:
                raise BadInputError("Device.Send", data, 'a topic and bytes: ("lamp", b"on")')

    def wake(self) -> None:
        """Make ``read`` return."""
        os.write(self._ring, b"!")

    def close(self) -> None:
        """Disconnect."""
        self._disconnect()
        os.close(self._bell)
        os.close(self._ring)


show_public_names(__name__)
