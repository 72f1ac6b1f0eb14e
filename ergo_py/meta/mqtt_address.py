"""`MQTTAddress`: the address of an MQTT broker, for both bridges to MQTT."""

from typing import Final
from urllib.parse import unquote, urlsplit

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties

from .checks import check_url

__all__ = ["KEEP_ALIVE", "MQTTAddress"]

KEEP_ALIVE: Final = 15
"""Seconds after which paho pings; after as many without an answer, the connection is lost."""
_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}


class MQTTAddress:
    """Makes clients of paho for a broker, and connects them.

    Raises:
        BadInputError: the address cannot be read.
    """

    def __init__(self, what: str, url: str) -> None:
        self._url = urlsplit(check_url(what, url, *_PORTS))

    def make_client(self, session: str = "", *, manual_ack: bool = False) -> Client:
        """A client with the credentials of the address. paho starts no thread."""
        url = self._url
        client = Client(
            CallbackAPIVersion.VERSION2, session, protocol=MQTTv5, manual_ack=manual_ack
        )
        if url.username is not None:
            client.username_pw_set(unquote(url.username), unquote(url.password or ""))
        if url.scheme == "mqtts":
            client.tls_set()
        return client

    def connect(
        self, client: Client, *, clean_start: bool = True, wishes: Properties | None = None
    ) -> None:
        """Connect, without waiting for the answer of the broker."""
        url = self._url
        host, port = url.hostname or "localhost", url.port or _PORTS[url.scheme]
        client.connect(host, port, KEEP_ALIVE, clean_start=clean_start, properties=wishes)
