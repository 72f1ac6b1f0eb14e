"""The counters of a node, summed by behaviour: right, bounded, and readable from any thread."""

import threading
import time
from collections.abc import Callable
from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import Actor, ChildSpec, LogRecord, Node, Supervisor, SupervisorSpec, Why
from ergo_py.meta import TCP, TCPConnection, TCPServer
from ergo_py.telemetry.figures import BehaviourFigures, Figures, read_figures
from tests.actors import Puppet, Recorder
from tests.meta.support import meta_of
from tests.support import kernel_of, process_behind, process_of, running_node
from tests.web.rig import until


async def in_thread(function: Callable[[], Any]) -> Any:
    return await trio.to_thread.run_sync(function)


class Fragile(Actor):
    """Ends with a crash at the message ``crash``, in order at ``stop``."""

    def handle_message(self, message: object, sender: object) -> None:
        if message == "crash":
            raise ValueError("told to")
        if message == "stop":
            self.stop()


async def test_messages_of_living_and_ended_processes_are_summed_by_behaviour() -> None:
    async with running_node() as node:
        first, second = await node.spawn(Fragile), await node.spawn(Fragile)
        recorder = await node.spawn(Recorder)
        for to, messages in ((first, ["a", "crash"]), (second, ["b", "stop"]), (recorder, "xyz")):
            for message in messages:
                node.send(to, message)
        await wait_all_tasks_blocked()

        figures = await in_thread(lambda: read_figures(node))

        fragile, recorders = figures.behaviours["Fragile"], figures.behaviours["Recorder"]
        # The signal of a stop is handled, too.
        assert (fragile.processes, fragile.handled, fragile.crashed) == (0, 5, 1)
        assert (recorders.processes, recorders.handled, recorders.crashed) == (1, 3, 0)
        assert fragile.busy > 0
        assert (figures.spawned, figures.processes, figures.handled) == (3, 1, 8)


async def test_waiting_messages_and_waiting_calls_are_counted() -> None:
    async with running_node() as node:
        pid, asker = await node.spawn(Puppet), await node.spawn(Puppet)
        gate = trio.Event()

        async def hold(_: Puppet) -> None:
            await gate.wait()

        node.send(pid, hold)
        await wait_all_tasks_blocked()
        for _ in range(3):
            node.send(pid, "later")
        node.send(asker, lambda me: me.call(pid, "heard"))
        await wait_all_tasks_blocked()

        figures = await in_thread(lambda: read_figures(node))
        gate.set()

        assert (figures.behaviours["Puppet"].mailbox, figures.behaviours["Puppet"].longest) == (
            4,
            4,
        )
        assert (figures.mailbox, figures.loop.calls_waiting) == (4, 1)


async def test_dead_letters_are_counted_by_cause() -> None:
    async with running_node() as node:
        pid = await node.spawn(Fragile)
        node.send(pid, "stop")
        await wait_all_tasks_blocked()
        node.send(pid, "too late")
        node.send(pid, "again")

        figures = await in_thread(lambda: read_figures(node))

        assert figures.dead_letters == dict.fromkeys((why.name.lower() for why in Why), 0) | {
            "no_process": 2
        }


class Shop(Supervisor):
    def children(self) -> SupervisorSpec:
        return SupervisorSpec([ChildSpec("till", Fragile)])


async def test_restarts_are_counted_by_the_name_in_the_specification(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        await node.spawn(Shop)
        for _ in range(2):
            node.send("till", "crash")
            await trio.sleep(5)

        figures = read_figures(node)

        assert figures.restarts == {"till": 2}
        assert figures.behaviours["Fragile"].crashed == 2


async def test_bytes_of_open_and_closed_connections_are_summed_by_server() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        owner = await node.spawn(Puppet, heard)
        server = TCPServer()
        await node.call(owner, lambda me: me.spawn_meta(server))
        connection = TCPConnection.connect(*server.local)
        client = await node.call(owner, lambda me: me.spawn_meta(connection))
        node.send(client, TCP.Send(b"12345"))
        await until(lambda: any(getattr(message, "data", b"") == b"12345" for message in heard))

        open_ones = read_figures(node)
        node.send(client, TCP.Close())
        await until(lambda: not read_figures(node).connections.get("TCPConnection"))
        closed = read_figures(node)

        assert open_ones.connections == {"TCPServer": 1, "TCPConnection": 1}
        assert open_ones.traffic["TCPServer"] == (5, 0)
        assert closed.traffic["TCPConnection"] == (0, 5)
        assert closed.behaviours["TCPServer"].metas == 1


class Listener(Actor):
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def handle_log(self, record: LogRecord) -> None:
        self.lines.append(record.event)


async def test_more_than_200_behaviours_are_counted_together_and_said_once() -> None:
    lines: list[str] = []
    async with running_node() as node:
        node.add_logger(await node.spawn(Listener, lines), "warning")
        for number in range(230):
            await node.spawn(type(f"Made{number}", (Recorder,), {}))

        first = await in_thread(lambda: read_figures(node))
        await in_thread(lambda: read_figures(node))
        await wait_all_tasks_blocked()

        assert [line for line in lines if "200 behaviours" in line] == lines
        assert len(lines) == 1
        assert len(first.behaviours) == 201
        assert first.behaviours["other"].processes == 231 - 200
        assert first.processes == 231


async def test_more_than_200_children_or_servers_are_said_once_each() -> None:
    lines: list[str] = []
    async with running_node() as node:
        node.add_logger(await node.spawn(Listener, lines), "warning")
        past = kernel_of(node).lifetimes.past
        for number in range(230):
            past.count_restart(f"child {number}")
            past.server_label(f"Server{number}")

        figures = await in_thread(lambda: read_figures(node))
        await in_thread(lambda: read_figures(node))
        await wait_all_tasks_blocked()

        assert figures.restarts["other"] == 30
        assert len(figures.traffic) == 201
        assert lines == [
            "metrics have more than 200 children; the rest is counted together",
            "metrics have more than 200 servers; the rest is counted together",
        ]


LIVES = st.lists(
    st.tuples(
        st.sampled_from(["spawn", "send", "stop", "crash", "kill", "postpone"]), st.integers(0, 9)
    ),
    max_size=25,
)


@given(lives=LIVES)
def test_no_counter_falls_in_any_life(lives: list[tuple[str, int]]) -> None:
    async def main() -> None:
        async with running_node() as node:
            pids = [await node.spawn(Fragile)]
            before = read_figures(node)
            for deed, number in lives:
                await act(node, pids, deed, number)
                now = read_figures(node)
                assert_not_below(now, before)
                before = now
            await wait_all_tasks_blocked()
            assert_not_below(read_figures(node), before)

    trio.run(main)


async def act(node: Node, pids: list[Any], deed: str, number: int) -> None:
    pid = pids[number % len(pids)]
    if deed == "spawn":
        pids.append(await node.spawn(Fragile))
    elif deed == "kill":
        node.kill(pid)
    else:
        for _ in range(number):
            node.send(pid, "work")
        node.send(pid, deed)
    if number % 2:
        await wait_all_tasks_blocked()


def assert_not_below(now: Figures, before: Figures) -> None:
    for name, then in before.behaviours.items():
        found = now.behaviours[name]
        assert found.handled >= then.handled
        assert found.sent >= then.sent
        assert found.busy >= then.busy
        assert found.crashed >= then.crashed
    assert now.spawned >= before.spawned


async def test_a_sum_that_falls_by_itself_is_shown_unchanged() -> None:
    """A process takes a postponed message out of its count again."""
    async with running_node() as node:
        pid = await node.spawn(Postponing)
        node.send(pid, "first")
        await wait_all_tasks_blocked()
        during: list[Figures] = []
        node.send(pid, lambda: during.append(read_figures(node)))
        await wait_all_tasks_blocked()
        after = read_figures(node)

        assert during[0].behaviours["Postponing"].handled == 2
        assert after.behaviours["Postponing"].handled == 2


class Postponing(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        if callable(message):
            message()
            # As a state machine postpones: it is counted when it is handled again.
            process_behind(self).turn.postpone()


async def test_a_blocked_loop_is_read_from_a_thread() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        found: list[Figures] = []
        done = threading.Event()

        def read() -> None:
            found.append(read_figures(node))
            done.set()

        def block(_: Puppet) -> bool:
            threading.Thread(target=read).start()
            return done.wait(30)

        assert await node.call(pid, block)
        assert found[0].behaviours["Puppet"] == BehaviourFigures(
            processes=1,
            handled=1,
            busy=found[0].behaviours["Puppet"].busy,
        )


async def test_a_young_reading_serves_again() -> None:
    async with running_node() as node:
        first = read_figures(node)

        assert read_figures(node, max_age=60.0) is first
        assert read_figures(node) is not first


async def test_the_watchdog_measures_the_delay_of_the_loop() -> None:
    async with running_node(watchdog=0.02) as node:
        pid = await node.spawn(Puppet)
        await until(lambda: max_delay(read_figures(node)) is not None)
        await node.call(pid, lambda _: time.sleep(0.3))
        await until(lambda: (max_delay(read_figures(node)) or 0.0) >= 0.1)
        assert read_figures(node).loop.times_blocked >= 1


def max_delay(figures: Figures) -> float | None:
    delay = figures.loop.delay
    assert delay is not None
    bounds = [0.0, *delay.bounds]
    return max((bounds[at] for at, count in enumerate(delay.counts) if count), default=None)


async def test_a_process_that_leaves_the_tables_twice_is_counted_once() -> None:
    async with running_node() as node:
        owner = await node.spawn(Puppet)
        server = TCPServer()
        await node.call(owner, lambda me: me.spawn_meta(server))
        process, meta = process_of(node, owner), meta_of(server)
        node.kill(owner)
        await node.wait_ended(owner)
        before = read_figures(node).behaviours

        process.kernel.lifetimes.past.take(
            *(process.router.processes, process.id, process.callbacks.behaviour),
            *(process.turn.handled, process.sent, process.turn.running_time),
        )
        meta.leave_table()

        assert read_figures(node).behaviours == before
