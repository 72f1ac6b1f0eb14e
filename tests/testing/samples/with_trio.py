"""Tests as a user would write them, with pytest-trio; test_plugin.py runs them and knows which must
fail.
"""

import os
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
import trio

from ergo_py import Actor, Node
from ergo_py.testing import Deaf, Probe, VirtualClock, expect_crash, settle

pytestmark = pytest.mark.trio
LEFT: list[Any] = []


class Fragile(Actor):
    def handle_message(self, message: Any, sender: Any) -> None:
        raise ValueError(message)


class Owner(Actor):
    async def init(self) -> None:
        await self.spawn_meta(Deaf(), stop_timeout=0.01)


async def test_passes_clean(node: Node) -> None:
    probe = await Probe.start(node)
    node.send(probe.pid, "hello")
    assert await probe.expect(str) == "hello"
    assert node.name == "test@localhost"


@pytest.mark.ergo_node(name="mine@localhost", max_processes=1)
async def test_passes_options(node: Node) -> None:
    assert node.name == "mine@localhost"
    assert node.info().max_processes == 1


async def test_passes_expected_crash(node: Node) -> None:
    pid = await node.spawn(Fragile)
    async with expect_crash(node, ValueError):
        node.send(pid, "boom")


@pytest.mark.ergo_node(expect_crash=ValueError)
async def test_passes_marked_crash(node: Node) -> None:
    pid = await node.spawn(Fragile)
    node.send(pid, "boom")
    await settle(node)


async def test_passes_virtual_time(node: Node, virtual_clock: VirtualClock) -> None:
    probe = await Probe.start(node)
    node.send_after(3600, probe.pid, "an hour later")
    await probe.expect("an hour later", timeout=3601)
    assert trio.current_time() == virtual_clock.current_time() == 3600


async def test_passes_without_any_fixture() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


async def test_fails_crash(node: Node) -> None:
    pid = await node.spawn(Fragile)
    node.send(pid, "boom")
    await settle(node)


@pytest.mark.ergo_node(expect_crash=(OSError, ValueError))
async def test_fails_no_crash(node: Node) -> None:
    pid = await node.spawn(Fragile)
    node.send(pid, "boom")
    await settle(node)


@pytest.mark.ergo_node(grace=0.05)
async def test_fails_thread(node: Node) -> None:
    threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()


@pytest.mark.ergo_node(grace=0.05)
async def test_fails_socket(node: Node) -> None:
    LEFT.append(socket.socket())


@pytest.mark.ergo_node(grace=0.05)
async def test_fails_descriptor(node: Node) -> None:
    LEFT.append(os.pipe())


@pytest.mark.ergo_node(grace=0.05)
async def test_fails_child(node: Node) -> None:
    nothing = subprocess.DEVNULL
    program = [sys.executable, "-S", "-c", "import time; time.sleep(1)"]
    LEFT.append(subprocess.Popen(program, stdout=nothing, stderr=nothing))  # noqa: ASYNC220 - a careless test


@pytest.mark.ergo_node(grace=0.05)
async def test_fails_meta(node: Node) -> None:
    await node.spawn(Owner)


async def test_fails_process(node: Node) -> None:
    class Busy(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await trio.sleep(3600)

    pid = await node.spawn(Busy, shutdown=0.01)
    node.send(pid, "go")
    await trio.testing.wait_all_tasks_blocked()
