"""The same with anyio's plugin on the trio backend."""

import socket
import threading
import time
from typing import Any

import pytest
import trio

from ergo_py import Actor, MetaProcess, Node
from ergo_py.testing import Probe, VirtualClock, settle

pytestmark = pytest.mark.anyio
LEFT: list[Any] = []


@pytest.fixture
def anyio_backend(virtual_clock: VirtualClock) -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": virtual_clock}


class Fragile(Actor):
    def handle_message(self, message: Any, sender: Any) -> None:
        raise ValueError(message)


class Reader(MetaProcess):
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def start(self) -> None:
        with self.opened(self.sock):
            while data := self.sock.recv(100):
                end = time.perf_counter() + 0.02
                while time.perf_counter() < end:
                    pass
                self.send(self.parent, (data, threading.current_thread().name))


class Owner(Actor):
    def __init__(self, sock: socket.socket, heard: list[Any]) -> None:
        self.sock = sock
        self.heard = heard

    async def init(self) -> None:
        await self.spawn_meta(Reader(self.sock))

    def handle_message(self, message: Any, sender: Any) -> None:
        self.heard.append((message[0], trio.current_time()))


async def test_passes_clean(node: Node) -> None:
    probe = await Probe.start(node)
    node.send_after(3600, probe.pid, "an hour later")
    await probe.expect("an hour later", timeout=3601)
    assert trio.current_time() == 3600


async def test_passes_threads(node: Node) -> None:
    heard: list[Any] = []
    ours, theirs = socket.socketpair()
    with theirs:
        await node.spawn(Owner, ours, heard)
        await trio.sleep(5)
        theirs.send(b"five")
        await trio.sleep(5)
        assert heard == [(b"five", 5.0)]
        await trio.to_thread.run_sync(time.sleep, 0.05)
        assert trio.current_time() == 10
        await settle(node)


async def test_fails_crash(node: Node) -> None:
    pid = await node.spawn(Fragile)
    node.send(pid, "boom")
    await settle(node)


@pytest.mark.ergo_node(grace=0.05)
async def test_fails_socket(node: Node) -> None:
    LEFT.append(socket.socket())
