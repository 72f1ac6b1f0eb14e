"""Unhandled messages of a process: however many, all of them are accounted for, and other tasks run
meanwhile.
"""

import inspect
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Backoff,
    Caller,
    ChildSpec,
    Divert,
    Down,
    InitError,
    Node,
    Priority,
    TargetDownError,
    Why,
)
from ergo_py._core.processes.process import Process
from ergo_py._core.vocabulary.envelopes import FENCE, MAIN_LANE, MESSAGE
from ergo_py.errors import DeadlockError
from ergo_py.supervision import Fate, Redirect
from tests.actors import Deferring, Failed, Puppet, Recorder
from tests.support import counted_messages, process_of, replace_private, router_of, running_node

MANY = 2_000


class Stuck(Actor):
    """Handles none of its messages until its gate opens; then it fails."""

    def __init__(self, gate: trio.Event | None = None) -> None:
        self.gate = gate or trio.Event()

    async def handle_message(self, message: Any, sender: Any) -> None:
        await self.gate.wait()
        raise Failed(str(message))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock finds that a slice is over: so each chunk of the work is followed by
    a turn of others.
    """
    time = count()
    replace_private(monkeypatch, "clock of time slices", lambda: float(next(time)))


def total(node: Node) -> Counter[Why]:
    return Counter(node.info().dead_letters)


async def each_turn(node: Node, pid: PID, look: Callable[[int], object]) -> int:
    """Look at each turn of the scheduler until a process has ended. Returns how many turns there
    were.
    """
    turns = 0
    while pid in node.processes():
        look(turns)
        turns += 1
        await trio.lowlevel.checkpoint()
    return turns


# -- many messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", list(Priority))
async def test_many_messages_of_an_ending_process_are_counted_while_others_run(
    slow: None, priority: Priority
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Stuck, name="stuck")
        for number in range(MANY):
            node.send(pid, number, priority=priority)
        await wait_all_tasks_blocked()
        names: set[PID | None] = set()

        node.kill(pid)
        turns = await each_turn(node, pid, lambda _: names.add(node.whereis("stuck")))

        assert total(node) == {Why.UNHANDLED_AT_EXIT: MANY - 1}
        assert turns >= MANY // 256
        # It keeps its name as long as it has calls to answer, and a sender to that name learns that
        # it ends.
        assert names == {pid}
        assert node.whereis("stuck") is None


async def test_calls_among_many_messages_are_each_answered_once(slow: None) -> None:
    ends: list[str] = []

    async def ask(number: int) -> None:
        with pytest.raises(TargetDownError):
            await node.call("stuck", number, timeout=None)
        ends.append(f"call {number}")

    async with running_node() as node:
        pid = await node.spawn(Stuck, name="stuck")
        async with trio.open_nursery() as nursery:
            for number in range(600):
                node.send(pid, number)
                nursery.start_soon(ask, number)
            await wait_all_tasks_blocked()

            node.kill(pid)

        assert sorted(ends) == sorted(f"call {number}" for number in range(600))
        assert total(node) == {Why.UNHANDLED_AT_EXIT: 599}


async def test_many_deferred_calls_are_each_answered_once_while_others_run(slow: None) -> None:
    ends: list[int] = []

    async def ask(number: int) -> None:
        with pytest.raises(TargetDownError):
            await node.call(pid, number, timeout=None)
        ends.append(number)

    async with running_node() as node:
        pid = await node.spawn(Deferring)
        async with trio.open_nursery() as nursery:
            for number in range(600):
                nursery.start_soon(ask, number)
            await wait_all_tasks_blocked()

            node.kill(pid)
            turns = await each_turn(node, pid, lambda _: None)

        assert sorted(ends) == list(range(600))
        assert turns >= 600 // 256


async def test_a_watcher_gets_down_when_all_messages_are_accounted_for(slow: None) -> None:
    seen: list[Any] = []

    class Watcher(Actor):
        def init(self) -> None:
            self.monitor(pid)

        def handle_message(self, message: Any, sender: Any) -> None:
            assert isinstance(message, Down)
            seen.append((total(node)[Why.UNHANDLED_AT_EXIT], node.whereis("stuck")))

    async with running_node() as node:
        pid = await node.spawn(Stuck, name="stuck")
        await node.spawn(Watcher)
        for number in range(MANY):
            node.send(pid, number)
        await wait_all_tasks_blocked()

        node.kill(pid)
        await node.wait_ended(pid)
        await wait_all_tasks_blocked()

        assert seen == [(MANY - 1, None)]


@pytest.mark.parametrize("hurry", ["kill", "stop", "abandon"])
async def test_a_kill_an_abandoning_or_a_stop_in_the_middle_loses_no_message(
    slow: None, hurry: str
) -> None:
    answered: list[type] = []

    async def ask() -> None:
        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, "request", timeout=None)
        answered.append(type(caught.value))

    async with trio.open_nursery() as nursery, running_node() as node:
        pid = await node.spawn(Stuck)
        process = process_of(node, pid)
        for number in range(MANY):
            node.send(pid, number)
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()

        node.kill(pid)
        while total(node)[Why.UNHANDLED_AT_EXIT] < MANY // 2:
            await trio.lowlevel.checkpoint()
        is_in_the_middle = pid in node.processes()
        if hurry == "kill":
            node.kill(pid)
            node.kill(pid)
        elif hurry == "abandon":
            await process.abandon()
        else:
            node.stop()
            await trio.sleep_forever()
        await node.wait_ended(pid)

    assert is_in_the_middle
    assert answered == [TargetDownError]
    assert router_of(node).dead_letters.counts == {Why.UNHANDLED_AT_EXIT: MANY - 1}


async def test_messages_that_a_thread_appends_in_the_middle_are_accounted_for(slow: None) -> None:
    async with running_node() as node:
        pid = await node.spawn(Stuck)
        process = process_of(node, pid)
        for number in range(MANY):
            node.send(pid, number)
        await wait_all_tasks_blocked()

        def append_late(_turn: int) -> None:
            # As a thread does that has looked whether the process is open before it was not any
            # more.
            if not process.accepting:
                process.main.append((MESSAGE, node.pid, None, "late"))
                process.wake_from_any_thread()
                appended.append("late")

        appended: list[str] = []
        node.kill(pid)
        await each_turn(node, pid, append_late)

        assert len(appended) > 1
        assert total(node) == {Why.UNHANDLED_AT_EXIT: MANY - 1 + len(appended)}


async def test_many_messages_for_a_process_with_a_failing_init_are_counted(slow: None) -> None:
    class Flooded(Actor):
        async def init(self) -> None:
            for number in range(MANY):
                self.send(self.pid, number)
            raise Failed("no")

    async with running_node() as node:
        with pytest.raises(Exception, match="no"):
            await node.spawn(Flooded)

        assert total(node) == {Why.UNHANDLED_AT_EXIT: MANY}


async def test_many_redirected_messages_go_to_the_other_process_while_others_run(
    slow: None,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        await node.spawn(Recorder, heard, name="other")
        await node.supervise([ChildSpec("stuck", Stuck, mailbox=Redirect("other"))])
        pid = node.whereis("stuck")
        assert pid is not None
        for number in range(MANY):
            node.send(pid, number)
        await wait_all_tasks_blocked()

        node.kill(pid)
        turns = await each_turn(node, pid, lambda _: None)
        await wait_all_tasks_blocked()

        assert heard == list(range(1, MANY))
        assert turns >= MANY // 256


# -- other large tables ----------------------------------------------------------------------------


async def test_many_watchers_get_down_in_slices_and_each_once(slow: None) -> None:
    heard: list[Any] = []

    class Watcher(Actor):
        def __init__(self, target: Any) -> None:
            self.target = target

        def init(self) -> None:
            self.monitor(self.target)

        def handle_message(self, message: Any, sender: Any) -> None:
            heard.append(message.target)

    async with running_node() as node:
        pid = await node.spawn(Recorder)
        for _ in range(600):
            await node.spawn(Watcher, pid)
        process = process_of(node, pid)
        node.send_exit(pid)
        await process.wait_gone()
        # It is gone from all tables before any watcher gets its Down.
        assert pid not in node.processes()

        await wait_all_tasks_blocked()

        assert heard == [pid] * 600


async def test_all_watchers_of_a_name_get_down() -> None:
    heard: list[Any] = []

    class Watcher(Actor):
        def init(self) -> None:
            self.monitor("known")

        def handle_message(self, message: Any, sender: Any) -> None:
            heard.append(message.target.name)

    async with running_node() as node:
        parent = await node.spawn(Puppet)
        child = await node.call(parent, lambda me: me.spawn(Recorder, name="known"))
        for _ in range(300):
            await node.spawn(Watcher)
        await wait_all_tasks_blocked()

        node.send_exit(parent)
        await node.wait_ended(child)
        await wait_all_tasks_blocked()

        assert heard == ["known"] * 300


async def test_many_watchers_of_a_process_with_a_failing_init_get_down() -> None:
    heard: list[Any] = []

    class FailsLate(Actor):
        async def init(self) -> None:
            await gate.wait()
            raise Failed("no")

    class Watcher(Actor):
        def init(self) -> None:
            self.monitor("known")

        def handle_message(self, message: Any, sender: Any) -> None:
            heard.append(message.target.name)

    async def spawn() -> None:
        with pytest.raises(InitError):
            await node.spawn(FailsLate, name="known")

    gate = trio.Event()
    async with running_node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(spawn)
        await wait_all_tasks_blocked()
        for _ in range(300):
            await node.spawn(Watcher)
        await wait_all_tasks_blocked()

        gate.set()
        await wait_all_tasks_blocked()

        assert heard == ["known"] * 300


async def test_timers_links_and_subscriptions_of_an_ending_process_go_in_slices(slow: None) -> None:
    async with running_node() as node:
        targets = [await node.spawn(Recorder) for _ in range(300)]
        pid = await node.spawn(Puppet)

        def take_much(me: Any) -> None:
            for target in targets:
                me.monitor(target)
                me.send_after(1_000, target, "late")

        await node.call(pid, take_much)
        node.send_exit(pid)
        turns = await each_turn(node, pid, lambda _: None)

        assert turns >= 2
        assert (node.info().relations, node.info().timers) == (0, 0)


# -- to the successor ------------------------------------------------------------------------------


class Fails(Actor):
    """Fails at the first message, and again in its next life at "fail"."""

    def __init__(self, heard: list[Any], held: dict[str, Any] | None = None) -> None:
        self.heard = heard
        self.held = held or {}

    async def handle_message(self, message: Any, sender: Any) -> None:
        if message == "hold":
            await self.held["gate"].wait()
            raise Failed("held")
        if message == "fail":
            raise Failed("again")
        self.heard.append(message)

    async def handle_call(self, request: Any, caller: Caller) -> Any:
        return await request(self) if inspect.isfunction(request) else request


async def kept(
    node: Node, gate: trio.Event, heard: list[Any], size: int, **options: Any
) -> Process:
    """A child that holds ``size`` messages and fails when the gate opens; its unhandled messages
    are kept.
    """
    await node.supervise(
        [ChildSpec("a", Fails, heard, {"gate": gate}, mailbox=Fate.KEEP, **options)],
        intensity=10**6,
    )
    process: Any = router_of(node).resolve("a")
    node.send("a", "hold")
    await wait_all_tasks_blocked()
    for number in range(size):
        node.send("a", number)
    return process  # type: ignore[no-any-return]


async def test_a_successor_gets_the_whole_lane_and_not_message_by_message() -> None:
    heard: list[Any] = []
    gate = trio.Event()
    async with running_node() as node:
        first = await kept(node, gate, heard, MANY)
        lane = first.main

        gate.set()
        await node.wait_ended(first.id)
        await wait_all_tasks_blocked()

        second: Any = router_of(node).resolve("a")
        assert second is not first
        assert second.main is lane
        assert heard == list(range(MANY))


async def late(node: Node, process: Process) -> None:
    """Append as a thread does that has found the process open before it was not any more."""
    process.main.append((MESSAGE, node.pid, None, "late"))
    process.wake_from_any_thread()
    await wait_all_tasks_blocked()


async def test_messages_that_a_thread_appends_too_late_go_to_the_successor(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    gate = trio.Event()
    async with running_node(limit=10**6) as node:
        first = await kept(node, gate, heard, 3, backoff=Backoff(10.0, 10.0))
        gate.set()
        await node.wait_ended(first.id)
        assert node.whereis("a") is None

        await late(node, first)
        await trio.sleep(20)
        await late(node, first)

        assert heard == [0, 1, 2, "late", "late"]
        assert total(node) == {}


async def test_messages_that_a_thread_appends_after_the_slot_closed_are_dead_letters() -> None:
    heard: list[Any] = []
    gate = trio.Event()
    async with running_node() as node:
        first = await kept(node, gate, heard, 3)
        tree = node.supervisor(first.parent.id) if first.parent is not None else None
        assert tree is not None
        gate.set()
        await wait_all_tasks_blocked()
        second: Any = router_of(node).resolve("a")
        await tree.remove_child("a")

        await late(node, first)
        await late(node, second)

        assert total(node) == {Why.NO_PROCESS: 2}


async def test_a_call_that_arrives_in_the_lane_of_an_ended_process_is_answered() -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        process = process_of(node, pid)
        node.send_exit(pid)
        await node.wait_ended(pid)

        async def ask() -> None:
            with pytest.raises(TargetDownError):
                await node.call(other, "request", timeout=None)

        other = await node.spawn(Stuck)
        node.send(other, "hold")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            # As if it had been kept with the rest of a lane.
            process.main.append(process_of(node, other).main.popleft())
            process.wake_from_any_thread()
        node.kill(other)


async def test_a_kept_call_that_the_successor_defers_ends_with_it() -> None:
    heard: list[Any] = []
    gate = trio.Event()

    async def defer(me: Fails) -> Any:
        return NO_REPLY

    async def ask() -> None:
        with pytest.raises(TargetDownError):
            await node.call("a", defer, timeout=None)
        heard.append("answered")

    async with running_node() as node, trio.open_nursery() as nursery:
        first = await kept(node, gate, heard, 1)
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        gate.set()
        await node.wait_ended(first.id)
        await wait_all_tasks_blocked()
        assert heard == [0]

        node.send("a", "fail")
        await wait_all_tasks_blocked()

        assert heard == [0, "answered"]


async def test_a_kept_call_is_part_of_a_ring() -> None:
    heard: list[Any] = []
    gate = trio.Event()

    async def ask_back(me: Fails) -> Any:
        with pytest.raises(DeadlockError):
            await me.call(caller, "anything", timeout=None)
        return "answered"

    async with running_node() as node, trio.open_nursery() as nursery:
        first = await kept(node, gate, heard, 1)
        caller = await node.spawn(Puppet)

        async def ask() -> None:
            heard.append(
                await node.call(
                    caller, lambda me: me.call("a", ask_back, timeout=None), timeout=None
                )
            )

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        gate.set()
        await node.wait_ended(first.id)
        await wait_all_tasks_blocked()

        assert heard == [0, "answered"]


async def test_a_successor_gets_no_signal_meant_for_its_predecessor(slow: None) -> None:
    class Fence(Caller):
        def awaken(self) -> None:
            heard.append("fence")

    heard: list[Any] = []
    gate = trio.Event()
    async with running_node() as node:
        first = await kept(node, gate, heard, MANY)
        fence = Fence(node.pid, 1, "a", None)
        router_of(node).signal(first, MAIN_LANE, (FENCE, node.pid, fence, None))
        node.send("a", "last")

        gate.set()
        await node.wait_ended(first.id)
        await wait_all_tasks_blocked()

        assert isinstance(fence.error, TargetDownError)
        assert heard == ["fence", *range(MANY), "last"]


async def test_urgent_messages_are_kept_before_the_others_and_count_against_a_bound() -> None:
    heard: list[Any] = []
    gate = trio.Event()
    async with running_node() as node:
        first = await kept(node, gate, heard, 2, mailbox_size=10)
        node.send("a", "high", priority=Priority.HIGH)
        node.send("a", "highest", priority=Priority.MAX)

        gate.set()
        await node.wait_ended(first.id)
        await wait_all_tasks_blocked()

        second: Any = router_of(node).resolve("a")
        assert heard == ["highest", "high", 0, 1]
        assert counted_messages(second.mailbox, MAIN_LANE) == 0


@pytest.mark.parametrize("ends", ["the child", "the supervisor"])
async def test_many_kept_messages_without_a_successor_are_buried_while_others_run(
    ends: str, slow: None, autojump_clock: MockClock
) -> None:
    heard: list[Any] = []
    gate = trio.Event()
    answered: list[Any] = []

    async def ask() -> None:
        with pytest.raises(TargetDownError):
            await node.call("a", "request", timeout=None)
        answered.append("answered")

    async with running_node(limit=10**6) as node, trio.open_nursery() as nursery:
        first = await kept(node, gate, heard, MANY, backoff=Backoff(10.0, 10.0))
        node.send("a", "urgent", priority=Priority.MAX)
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        gate.set()
        await node.wait_ended(first.id)
        supervisor = first.parent
        assert supervisor is not None
        if ends == "the child":
            await node.supervisor(supervisor.id).remove_child("a")
        else:
            node.send_exit(supervisor.id)
            turns = await each_turn(node, supervisor.id, lambda _: None)
            assert turns >= MANY // 256
        await wait_all_tasks_blocked()

        assert total(node) == {Why.UNHANDLED_AT_EXIT: MANY + 1}
        assert answered == ["answered"]
        assert heard == []


# -- messages that raise when they are asked for their class ---------------------------------------


class Unbound:
    """A lazy proxy without an object behind it: every question raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("working outside of request context")


class Proxied(Actor):
    """Answers with the request; a message ends it."""

    def handle_call(self, request: object, caller: Caller) -> object:
        return request

    def handle_message(self, message: object, sender: object) -> None:
        if message is not None:
            raise Failed


async def test_an_unhandled_lazy_proxy_is_a_dead_letter_and_the_node_goes_on() -> None:
    async with running_node() as node:
        fragile, bystander = await node.spawn(Proxied), await node.spawn(Recorder)

        for message in ("crash", Unbound(), Unbound()):
            node.send(fragile, message)
        while fragile in node.processes():
            await trio.lowlevel.checkpoint()

        assert await node.call(bystander, "still there?") == []
        assert total(node)[Why.UNHANDLED_AT_EXIT] == 2
        assert node.send(fragile, Unbound()) is False
        assert total(node)[Why.NO_PROCESS] == 1


async def test_a_lazy_proxy_is_a_request_and_a_reply() -> None:
    proxy = Unbound()
    async with running_node() as node:
        server = await node.spawn(Proxied)
        asker = await node.spawn(Puppet)

        async def ask(me: Puppet) -> bool:
            return await me.call(server, proxy) is proxy

        assert await node.call(server, proxy) is proxy  # inline
        assert await node.call(asker, ask)
        node.send(server, None)
        assert await node.call(server, proxy) is proxy  # behind a message, in the mailbox


async def test_a_lazy_proxy_that_finds_a_full_mailbox_is_diverted() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        await node.spawn(Recorder, heard, name="overflow")
        full = await node.spawn(Stuck, mailbox_size=1, overflow=Divert("overflow", "full"))

        node.send(full, Unbound())
        node.send(full, Unbound())
        await wait_all_tasks_blocked()

        assert [type(each).__name__ for each in heard] == ["Diverted"]
        node.kill(full)  # it would not stop before its time limit
