"""Virtual time: it jumps when no task and no thread has anything to do, and not before."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import Actor, BadInputError, CallTimeoutError, MetaProcess, Threads
from ergo_py.testing import Deaf, Probe, VirtualClock
from ergo_py.testing.threads import Look
from tests.actors import Puppet, Recorder
from tests.support import needs_proc, running_node


def run(main: Callable[[], Awaitable[Any]], clock: VirtualClock | None = None) -> Any:
    return trio.run(main, clock=clock or VirtualClock())


def test_a_sleep_takes_only_virtual_time() -> None:
    async def main() -> float:
        for _ in range(50):
            await trio.sleep(100)
        return trio.current_time()

    clock = VirtualClock()

    assert run(main, clock) == 5_000
    assert clock.jumps == 50


ROOT = Path(__file__).parent.parent.parent

ALONE = """
import trio
from ergo_py.testing import Probe, VirtualClock, clock, threads
from tests.support import running_node

pauses, wait = [], clock.wait_all_tasks_blocked

async def counted(cushion):
    pauses.append(cushion)
    await wait(cushion)

async def main():
    async with running_node(limit=10**9) as node:
        probe = await Probe.start(node)
        for number in range(40):
            node.send_after(100, probe.pid, number)
            await probe.expect(number, timeout=101)
            if not number:  # what the start of the node needed
                pauses.clear()

clock.wait_all_tasks_blocked = counted
trio.run(main, clock=VirtualClock(cushion=0.2))
assert len(pauses) >= 39, pauses
print([pause for pause in pauses if pause >= 0.2], threads.look())
"""


def test_an_idle_node_does_not_slow_the_clock_down() -> None:
    # In a program of its own: a thread or a program that another test has left behind slows the
    # clock down.
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.stderr == ""
    assert done.stdout.startswith("[] "), done.stdout


def test_timers_fire_in_their_order_and_calls_time_out() -> None:
    async def main() -> None:
        async with running_node() as node:
            probe = await Probe.start(node)
            for delay in (30, 10, 20):
                node.send_after(delay, probe.pid, delay)
            found = await probe.expect_in_order(10, 20, 30, timeout=31)
            with pytest.raises(CallTimeoutError):
                await node.call(probe.pid, "no answer", timeout=5)

            assert found == [10, 20, 30]
            assert trio.current_time() == 35

    run(main)


class Reader(MetaProcess):
    """Sends its input on, after it has thought about it for longer than the clock is quiet for."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def start(self) -> None:
        with self.opened(self.sock):
            while data := self.sock.recv(100):
                end = time.perf_counter() + 0.05
                while time.perf_counter() < end:
                    pass
                self.send(self.parent, data)


def test_the_clock_does_not_jump_while_a_reader_thread_is_busy() -> None:
    heard: list[Any] = []

    class Owner(Recorder):
        async def init(self) -> None:
            await self.spawn_meta(Reader(ours))

        def handle_message(self, message: Any, sender: Any) -> None:
            heard.append((message, trio.current_time()))

    async def main() -> None:
        async with running_node() as node:
            await node.spawn(Owner)
            await trio.sleep(5)
            theirs.send(b"five")
            await trio.sleep(5)
            theirs.send(b"ten")
            await trio.sleep(1)

    ours, theirs = socket.socketpair()
    with theirs:
        run(main)

    assert heard == [(b"five", 5.0), (b"ten", 10.0)]


def test_the_clock_does_not_jump_while_a_worker_thread_sleeps_in_its_job() -> None:
    async def main() -> tuple[float, float]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            await trio.to_thread.run_sync(time.sleep, 0.1)
            during = trio.current_time()
        return during, trio.current_time()

    moments = run(main)

    assert moments == (0.0, 1.0)


def test_the_clock_does_not_jump_while_a_callback_sleeps_in_a_thread() -> None:
    class Blocking(Actor):
        def handle_call(self, request: Any, caller: Any) -> object:
            time.sleep(0.1)
            return threading.current_thread().name

    async def main() -> tuple[str, float]:
        async with running_node() as node:
            pid = await node.spawn(Blocking, dispatcher=Threads())
            thread = await node.call(pid, "where?", timeout=1)
            return thread, trio.current_time()

    thread, moment = run(main)

    assert thread.startswith("process-")
    assert moment == 0


def test_the_clock_jumps_past_a_worker_thread_that_waits_for_the_clock() -> None:
    async def main() -> float:
        await trio.to_thread.run_sync(trio.from_thread.run, trio.sleep, 60)
        return trio.current_time()

    assert run(main, VirtualClock(patience=0.05)) == 60


def test_the_clock_does_not_wait_again_for_an_abandoned_worker_thread() -> None:
    end = threading.Event()
    waits: list[float] = []

    class Counting(VirtualClock):
        def _must_wait_for(self, seen: Look) -> bool:
            found = super()._must_wait_for(seen)
            if found:
                waits.append(self.current_time())
            return found

    async def main() -> float:
        with trio.move_on_after(1):
            await trio.to_thread.run_sync(end.wait, abandon_on_cancel=True)
        for _ in range(20):
            await trio.sleep(1)
        return trio.current_time()

    try:
        moment = run(main, Counting(patience=0.5))
    finally:
        end.set()

    assert moment == 21
    assert set(waits) == {0.0}


def test_the_clock_does_not_jump_while_messages_of_threads_wait() -> None:
    heard: list[float] = []

    class Clocked(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            heard.append(trio.current_time())

    async def main() -> None:
        async with running_node() as node:
            pid = await node.spawn(Clocked)

            def send() -> None:
                for _ in range(20):
                    node.send(pid, "from a thread")
                    sum(range(10_000))

            thread = threading.Thread(target=send)
            thread.start()
            await trio.sleep(1)
            thread.join()
            await trio.sleep(1)

    run(main)

    assert heard == [0.0] * 20


@needs_proc
def test_the_clock_does_not_jump_while_a_child_program_computes() -> None:
    program = (
        "import os, time\nend = time.time() + 0.2\nwhile time.time() < end: pass\n"
        "os.write(1, b'done')\nos.read(0, 1)"
    )

    async def main() -> tuple[bytes, float]:
        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                lambda task_status: trio.run_process(  # noqa: ASYNC105 - the nursery awaits it
                    [sys.executable, "-S", "-c", program],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    capture_stdout=False,
                    check=False,
                    task_status=task_status,
                )
            )
            with trio.fail_after(60):
                said = await process.stdout.receive_some(100)
            moment = trio.current_time()
            await process.stdin.aclose()
            await process.stdout.aclose()
        return said, moment

    said, moment = run(main)

    assert (said, moment) == (b"done", 0.0)


def test_a_node_with_a_deaf_reader_is_down_at_once() -> None:
    deaf = Deaf()

    async def main() -> None:
        async with running_node() as node:
            pid = await node.spawn(Puppet)
            await node.call(pid, lambda me: me.spawn_meta(deaf, stop_timeout=60))

    clock = VirtualClock()
    try:
        run(main, clock)
    finally:
        deaf.release()

    assert 0 < clock.current_time() < 60


def test_wait_all_tasks_blocked_returns_before_the_jump() -> None:
    async def main() -> list[float]:
        moments = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 10)
            for _ in range(5):
                await wait_all_tasks_blocked()
                moments.append(trio.current_time())
        return [*moments, trio.current_time()]

    assert run(main) == [0.0] * 5 + [10.0]


@pytest.mark.parametrize("cushion", [0.0001, 0.001, 0.002])
def test_wait_all_tasks_blocked_with_the_same_cushion_returns_before_the_jump(
    cushion: float,
) -> None:
    async def main() -> list[float]:
        moments = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 10)
            for _ in range(20):
                with clock.held():
                    await wait_all_tasks_blocked(cushion)
                # Runnable from here on, like the rest of a test.
                await trio.lowlevel.checkpoint()
                moments.append(trio.current_time())
        return [*moments, trio.current_time()]

    clock = VirtualClock(cushion=cushion)

    assert run(main, clock) == [0.0] * 20 + [10.0]


def test_a_held_clock_stands_still_and_can_be_moved_by_hand() -> None:
    clock = VirtualClock()

    async def main() -> tuple[float, float]:
        async with trio.open_nursery() as nursery:
            with clock.held(), clock.held():
                nursery.start_soon(trio.sleep, 10)
                await wait_all_tasks_blocked(0.02)
                held = trio.current_time()
                clock.jump(3)
                await wait_all_tasks_blocked(0.02)
            by_hand = trio.current_time()
        return held, by_hand

    assert run(main, clock) == (0.0, 3.0)
    assert clock.current_time() == 10
    assert clock.jumps == 1
    assert repr(clock) == "<VirtualClock 10 s, 1 jumps>"


def test_without_a_deadline_the_clock_allows_longer_cushions() -> None:
    async def main() -> None:
        await wait_all_tasks_blocked(0.03)

    run(main)


@pytest.mark.parametrize("options", [{"cushion": 0}, {"patience": -1}])
def test_an_invalid_option_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(BadInputError):
        VirtualClock(**options)


async def test_the_fixture_virtual_clock_is_the_clock_of_the_test(
    virtual_clock: VirtualClock,
) -> None:
    await trio.sleep(1_000)

    assert trio.lowlevel.current_clock() is virtual_clock
    assert virtual_clock.current_time() == 1_000
