"""Sockets of ZeroMQ that talk to a socket of the test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("zmq", reason="needs pyzmq")

import zmq

from ergo_py import Alias, Backoff, BadInputError, Node
from ergo_py.devices import ZMQ, Device
from ergo_py.testing.bridges import DeviceRig
from ergo_py.testing.bridges.devices import DeviceRule
from tests.meta.owner import eventually, owning
from tests.meta.wires import MovableClock

RULES = [
    rule
    for rule in DeviceRig.RULES
    if rule.__name__ in ("frames_and_orders_keep_their_order", "a_stop_leaves_nothing_behind")
]
"""A socket of ZeroMQ cannot be unplugged: it connects again by itself."""


class Peer(DeviceRig):
    """The socket of the test, which is there before the bridge."""

    def __init__(self, path: Path) -> None:
        self._address = f"ipc://{path}/zmq"
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
        self._socket.bind(self._address)
        self._got: list[int] = []

    def bridge(self, *, reopen: Backoff, stuck_after: float) -> ZMQ:
        return ZMQ(
            zmq.PAIR,
            lambda socket: socket.connect(self._address),
            reopen=reopen,
            stuck_after=stuck_after,
        )

    def plug(self) -> None:
        pass

    def unplug(self) -> None:
        self._socket.close(0)

    def emit(self, number: int) -> None:
        self._socket.send_multipart([b"frame", b"%d" % number])

    def number_in(self, data: object) -> int:
        assert isinstance(data, list)
        return int(data[1])

    def order(self, number: int) -> list[bytes]:
        return [b"%d" % number]

    def taken(self) -> list[int]:
        while self._socket.poll(0):
            self._got.append(int(self._socket.recv()))
        return self._got


@pytest.fixture
def peer(short_path: Path) -> Iterator[Peer]:
    peer = Peer(short_path)
    yield peer
    peer.unplug()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
async def test_a_socket_of_zeromq_keeps_the_rules_of_devices(peer: Peer, rule: DeviceRule) -> None:
    await rule(peer)


async def test_an_address_in_use_is_a_lost_device() -> None:
    holder: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.REP)
    with holder:
        port = holder.bind_to_random_port("tcp://127.0.0.1")
        address = f"tcp://127.0.0.1:{port}"
        async with owning() as owned:
            await owned.spawn(
                ZMQ(zmq.REP, lambda socket: socket.bind(address), reopen=Backoff(0.001, 0.001))
            )
            assert "in use" in (await owned.until(Device.Lost)).why
            holder.unbind(address)
            await owned.until(Device.Opened)


async def test_a_write_without_a_peer_is_interrupted_and_then_has_another_socket(
    short_path: Path, clock: MovableClock
) -> None:
    address = f"ipc://{short_path}/jobs"
    failed: list[Device.ClosedError] = []

    async def write(node: Node, device: Alias) -> None:
        with pytest.raises(Device.ClosedError) as caught:
            await node.call(device, Device.Send(b"lost"), timeout=None)
        failed.append(caught.value)

    async with owning(limit=1100.0) as owned, trio.open_nursery() as nursery:
        device = await owned.spawn(
            ZMQ(
                zmq.PUSH,
                lambda socket: socket.bind(address),
                reopen=Backoff(0.0, 0.0),
                stuck_after=1000.0,
            )
        )
        await owned.until(Device.Opened)
        nursery.start_soon(write, owned.node, device)
        await eventually(lambda: owned.node.meta_info(device).callback is not None)
        clock.move(1001)

        assert isinstance(await owned.next(), Device.Lost)
        assert isinstance(await owned.next(), Device.Opened)
        assert owned.node.info().threads_abandoned == 0
        worker: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        with worker:
            worker.connect(address)
            await owned.node.call(device, Device.Send(b"done"), timeout=None)
            assert await trio.to_thread.run_sync(worker.recv) == b"done"

    assert len(failed) == 1


async def test_a_publisher_reaches_a_subscriber(short_path: Path) -> None:
    address = f"ipc://{short_path}/news"

    def subscribe(socket: "zmq.Socket[bytes]") -> None:
        socket.bind(address)
        socket.subscribe(b"a")

    async with owning() as owned:
        subscriber = await owned.spawn(ZMQ(zmq.SUB, subscribe))
        await owned.until(Device.Opened)
        publisher = await owned.spawn(ZMQ(zmq.PUB, lambda socket: socket.connect(address)))
        await owned.until(Device.Opened)
        with pytest.raises(BadInputError, match="bytes"):
            await owned.node.call(publisher, Device.Send("text"))

        # A publisher drops the messages from before the subscription reaches it.
        heard: list[object] = []
        while not heard:
            await owned.node.call(publisher, Device.Send(b"b: no"))
            await owned.node.call(publisher, Device.Send(b"a: yes"))
            if (await owned.node.inspect_meta(subscriber))["frames_in"] != "0":
                heard.append((await owned.next()).data)
        assert heard == [[b"a: yes"]]


def test_a_socket_of_no_type_or_without_a_function_is_refused() -> None:
    given: Any = 4711
    with pytest.raises(BadInputError, match=r"ZMQ\(socket\): got 4711.*zmq\.SUB"):
        ZMQ(given, lambda _: None)
    with pytest.raises(BadInputError, match=r"ZMQ\(setup\): got 4711.*a function"):
        ZMQ(zmq.SUB, given)
