"""Settling: everything that can be done is done, by tasks and by threads."""

import os
import socket
import threading
import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import Actor, Caller, MetaProcess, Node
from ergo_py.network import Memory
from ergo_py.testing import Probe, VirtualClock, busy, delaying, settle
from ergo_py.testing.settlement import UnsettledError
from tests.actors import Puppet, Recorder
from tests.support import needs_proc, running_node


class Chain(Actor):
    """Sends the next smaller number to itself, until there is nothing left."""

    def __init__(self, done: list[int]) -> None:
        self.done = done

    def handle_message(self, message: int, sender: Any) -> None:
        if message:
            self.send(self.pid, message - 1)
        else:
            self.done.append(message)


class Worker(MetaProcess):
    """Handles its messages in a worker thread, slowly, and sends them to its owner."""

    async def start(self) -> None:
        await trio.sleep_forever()

    def handle_message(self, message: Any, sender: Any) -> None:
        time.sleep(0.05)
        self.send(self.parent, message)


class Lines(MetaProcess):
    """Reads from a socket in a thread, thinks for a while, and tells its owner."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def start(self) -> None:
        with self.opened(self.sock):
            while data := self.sock.recv(100):
                end = time.perf_counter() + 0.03
                while time.perf_counter() < end:
                    pass
                self.send(self.parent, data)


async def owner_of(node: Node, heard: list[Any], meta: MetaProcess) -> Any:
    pid = await node.spawn(Puppet, heard)
    return await node.call(pid, lambda me: me.spawn_meta(meta))


async def test_a_chain_of_messages_has_ended_when_a_node_has_settled() -> None:
    done: list[int] = []
    async with running_node() as node:
        pid = await node.spawn(Chain, done)
        node.send(pid, 2_000)

        await settle(node)

        assert done == [0]


async def test_settle_waits_for_a_worker_thread_of_a_meta_process() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        alias = await owner_of(node, heard, Worker())
        for number in range(3):
            node.send(alias, number)

        await settle(node)

        assert heard == [0, 1, 2]


@needs_proc
async def test_settle_waits_for_a_busy_reader_thread() -> None:
    heard: list[Any] = []
    ours, theirs = socket.socketpair()
    with theirs:
        async with running_node() as node:
            await owner_of(node, heard, Lines(ours))
            await settle(node)
            theirs.send(b"a line")

            await settle(node)

            assert heard == [b"a line"]


async def test_settle_waits_for_a_worker_thread_of_any_task() -> None:
    heard: list[Any] = []

    def work() -> None:
        time.sleep(0.05)
        node.send(pid, "done")

    async with running_node() as node, trio.open_nursery() as nursery:
        pid = await node.spawn(Recorder, heard)
        nursery.start_soon(trio.to_thread.run_sync, work)

        await settle(node)

        assert heard == ["done"]


async def test_settle_waits_for_messages_of_other_threads() -> None:
    heard: list[Any] = []

    def send() -> None:
        for number in range(100):
            node.send(pid, number)

    async with running_node() as node:
        pid = await node.spawn(Recorder, heard)
        thread = threading.Thread(target=send)
        thread.start()

        await settle(node)

        assert heard == list(range(100))
        thread.join()


async def test_a_process_that_waits_in_a_callback_is_named_when_the_time_is_over() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet, name="sleeper", shutdown=0.01)
        node.send(pid, lambda me: trio.sleep(3600))  # noqa: ASYNC105 - awaited by the puppet
        await wait_all_tasks_blocked()

        with pytest.raises(
            UnsettledError, match=r"sleeper.* is running, in handle_message"
        ) as failure:
            await settle(node, timeout=0.05)
        await settle(node, except_for=["sleeper"])

    assert sum("sleeper" in line for line in failure.value.busy) == 1


async def test_settle_does_not_wait_for_a_suspended_process() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard)
        await node.suspend(pid)
        node.send(pid, "waits")

        await settle(node)
        suspended = list(heard)
        await node.resume(pid)
        await settle(node)

    assert (suspended, heard) == ([], ["waits"])


async def test_restless_processes_are_named_after_a_timeout_in_real_time(
    mock_clock: MockClock,
) -> None:
    class PingPong(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            self.send(self.pid, message)

    async with running_node() as node:
        pid = await node.spawn(PingPong, name="restless")
        node.send(pid, "ball")

        with pytest.raises(UnsettledError, match="restless"):
            await settle(node, timeout=0.05)

        node.kill(pid)
        await settle(node)


async def test_the_error_mentions_busy_tasks_that_are_no_processes(
    mock_clock: MockClock,
) -> None:
    async def spin() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    async with running_node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(spin)

        with pytest.raises(UnsettledError, match="tasks that are no process"):
            await settle(node, timeout=0.02)

        nursery.cancel_scope.cancel()


async def test_a_thread_that_computes_is_named_and_may_be_ignored() -> None:
    goes_on = [True]

    def compute() -> None:
        # It calls nothing: where there is no /proc, the frame of a thread that stands at a call
        # does not tell that it goes on.
        while goes_on:
            pass

    async with running_node() as node:
        thread = threading.Thread(target=compute, name="computer")
        thread.start()
        try:
            with pytest.raises(UnsettledError, match="thread computer is at work"):
                await settle(node, timeout=0.05)
            await settle(node, ignore=["computer"])
        finally:
            goes_on.clear()
            thread.join()


def test_virtual_time_stands_still_while_a_node_settles() -> None:
    heard: list[Any] = []

    async def main() -> None:
        async with running_node() as node:
            pid = await node.spawn(Recorder, heard)
            node.send_after(1, pid, "later")
            node.send(pid, "now")

            await settle(node)

            assert (heard, trio.current_time()) == (["now"], 0)
            await trio.sleep(2)
            assert heard == ["now", "later"]

    trio.run(main, clock=VirtualClock())


async def test_busy_lists_busy_processes_without_waiting() -> None:
    async with running_node() as node:
        probe = await Probe.start(node)
        alias = await owner_of(node, [], delaying(Worker, 60)())
        node.send(probe.pid, "unread")
        node.send(alias, "slow")

        told = "\n".join(busy(node))

    assert "<Probe" in told
    assert "1 in its mailbox" in told
    assert "<Worker" in told


async def test_a_message_that_waits_for_a_full_receiver_is_not_settled() -> None:
    class Eager(MetaProcess):
        def start(self) -> None:
            for number in range(5):
                self.send(self.parent, number)
            self.wait_readable(self.reading)

        def init(self) -> None:
            self.reading, self.writing = os.pipe()

        def terminate(self, reason: Any) -> None:
            os.close(self.reading)
            os.close(self.writing)

    class Slow(Actor):
        async def init(self) -> None:
            await self.spawn_meta(Eager())

        async def handle_message(self, message: Any, sender: Any) -> None:
            await trio.sleep(3600)

        def handle_call(self, request: Any, caller: Caller) -> object:
            return None

    async with running_node() as node:
        await node.spawn(Slow, mailbox_size=1, shutdown=0.01)
        busy = ""
        while "not delivered" not in busy:  # its thread has not come so far yet
            with pytest.raises(UnsettledError) as failure:
                await settle(node, timeout=0.1)
            busy = "\n".join(failure.value.busy)

    assert "Slow" in busy


async def test_several_nodes_settle_together(virtual_clock: VirtualClock) -> None:
    heard: list[Any] = []
    network = Memory()
    async with (
        running_node("a@test", network=network, limit=1000) as a,
        running_node("b@test", network=network, limit=1000) as b,
    ):
        last = await b.spawn(Recorder, heard)
        gate = trio.Event()

        class Passer(Actor):
            async def handle_message(self, message: Any, sender: Any) -> None:
                await gate.wait()
                self.send(last, message)

        passer = await b.spawn(Passer)
        for number in range(5):
            a.send(passer, number)
        await settle(a)
        with pytest.raises(UnsettledError, match=r"b@test.* is running, in handle_message"):
            await settle(a, b, timeout=0.05)
        gate.set()
        await settle(a, b)
        assert heard == [0, 1, 2, 3, 4]
        network.cut("a@test", "b@test")
        a.send(passer, 5)
        await settle(a, b)

        assert heard == [0, 1, 2, 3, 4]
        assert virtual_clock.current_time() == 0
