"""`MQTTTopics`: the rules of devices on mosquitto, whose program is the plug."""

import os
import signal
import subprocess
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import trio

pytest.importorskip("paho", reason="needs paho-mqtt")

from ergo_py import Backoff, BadInputError
from ergo_py.devices import Device, MQTTTopics
from ergo_py.pipelines import MQTT
from ergo_py.testing.bridges import DeviceRig
from ergo_py.testing.bridges.devices import DeviceRule
from tests.meta.owner import owning
from tests.pipelines.brokers.rigs import put
from tests.pipelines.brokers.servers import MosquittoServer, Rig, missing, started


class Station(DeviceRig):
    """A broker that runs while the device is plugged; it keeps the orders for the test."""

    def __init__(self, server: MosquittoServer) -> None:
        self._server, self._orders = server, Rig(server, "orders")
        self._url = server.text("").split('"')[1]
        self._got: list[int] = []
        server.stop(signal.SIGTERM)
        self._pid = server.place / "pid"
        self._command = server.command()
        with (server.place / "settings").open("a", encoding="utf-8") as settings:
            settings.write(f"\npid_file {self._pid}\n")

    def bridge(self, *, reopen: Backoff, stuck_after: float) -> MQTTTopics:
        return MQTTTopics(self._url, "frames", reopen=reopen, stuck_after=stuck_after)

    def plug(self) -> None:
        # A daemon: a rule that ends with a plugged device leaves no program of its own.
        subprocess.run([*self._command, "-d"], check=True, stderr=subprocess.DEVNULL)
        self._until(is_ready=True)

    def unplug(self) -> None:
        os.kill(int(self._pid.read_text(encoding="utf-8")), signal.SIGTERM)
        self._until(is_ready=False)

    def _until(self, *, is_ready: bool) -> None:
        while self._server.is_ready() != is_ready:
            time.sleep(0.01)

    def close(self) -> None:
        if self._server.is_ready():
            self.unplug()

    def emit(self, number: int) -> None:
        put(MQTT(self._url, "frames"), [b"%d" % number])

    def number_in(self, data: Any) -> int:
        return int(data.payload)

    def order(self, number: int) -> object:
        return ("orders", b"%d" % number)

    def taken(self) -> list[int]:
        source = self._orders.source()
        source.open()
        source.wait(0.05)
        items = source.take(100)
        source.ack(items)
        source.close()
        self._got += [int(item.body) for item in items]
        return self._got


@pytest.mark.skipif(
    "ERGO_BROKERS" not in os.environ, reason="`python -m benchmarks brokers` starts the servers"
)
@pytest.mark.parametrize("rule", DeviceRig.RULES, ids=lambda rule: rule.__name__)
async def test_topics_keep_the_rules_of_devices(rule: DeviceRule) -> None:
    if reason := missing("mosquitto"):
        pytest.skip(reason)
    with started("mosquitto") as server:
        assert isinstance(server, MosquittoServer)
        station = Station(server)
        try:
            await rule(station)
        finally:
            station.close()


async def test_an_absent_broker_is_a_lost_device() -> None:
    async with owning() as owned:
        await owned.spawn(MQTTTopics("mqtt://127.0.0.1:1", "frames"))

        assert "ConnectionRefusedError" in (await owned.until(Device.Lost)).why


async def test_a_broker_that_says_goodbye_is_a_lost_device() -> None:
    """As some do when they stop, or when an administrator ends a session."""
    welcome, goodbye = b"\x20\x03\0\0\0", b"\xe0\x02\x98\0"
    listener = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(welcome + goodbye)

    async with owning() as owned, trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answer, listener)
        port = listener[0].socket.getsockname()[1]
        await owned.spawn(MQTTTopics(f"mqtt://127.0.0.1:{port}", reopen=Backoff(0.0, 0.0)))

        for _ in range(2):
            assert isinstance(await owned.next(), Device.Opened)
            assert "lost" in (await owned.next()).why
        nursery.cancel_scope.cancel()


def test_a_refused_message_is_an_answer_and_a_refused_connection_is_a_lost_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from paho.mqtt import MQTTException

    granted, refused = (SimpleNamespace(is_failure=value) for value in (False, True))
    client, topics = MagicMock(), MQTTTopics("mqtt://localhost")
    client.connect.side_effect = lambda *_, **__: client.on_connect(None, None, None, granted)
    client.publish.side_effect = lambda *_, **__: client.on_publish(None, None, 1, refused)
    monkeypatch.setattr("ergo_py.meta.mqtt_address.Client", lambda *_, **__: client)
    topics.open()
    with pytest.raises(MQTTException) as found:
        topics.write(("secret", b"1"))
    topics.close()
    client.connect.side_effect = lambda *_, **__: client.on_connect(None, None, None, refused)

    assert not isinstance(found.value, topics.lost_by)
    with pytest.raises(ConnectionRefusedError):
        topics.open()


@pytest.mark.parametrize("data", ["text", ("topic", 1), ("topic",)])
def test_a_message_needs_a_topic_and_bytes(data: object) -> None:
    with pytest.raises(BadInputError, match="a topic and bytes"):
        MQTTTopics("mqtt://localhost", "frames").write(data)
