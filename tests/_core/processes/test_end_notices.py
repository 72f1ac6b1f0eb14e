"""The notice that a process has ended: behind its messages after a normal end, before them after a
failure.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    Actor,
    Alias,
    Behind,
    ChildSpec,
    Crashed,
    Down,
    EventName,
    Exit,
    Killed,
    MailboxFullError,
    MetaProcess,
    Node,
    Normal,
    Overflow,
    Pool,
    PoolSpec,
    Reason,
    RestartPolicy,
    Shutdown,
)
from ergo_py.blocking import open_node as open_blocking_node
from ergo_py.info import Dispatcher
from ergo_py.supervision import Fate
from tests.actors import Failed, Puppet
from tests.dispatched import Doer, everywhere
from tests.support import kernel_of, running_node

MANY = 200
ENDS: dict[str, Reason] = {"normal": Normal(), "shutdown": Shutdown("done")}
NODES: dict[str, dict[str, Any]] = {
    "as usual": {},
    "without inline calls": {"inline_calls": False},
    "without direct hand-off": {"direct_handoff": False},
    "observed": {"observer": lambda _event: None},
}
RECEIVERS: dict[str, dict[str, Any]] = {
    "unbounded": {},
    "bounded, far from full": {"mailbox_size": 10 * MANY},
    "bounded, nearly full": {"mailbox_size": MANY + 2},
    "bounded, drops the oldest": {"mailbox_size": 2 * MANY, "overflow": Overflow.DROP_OLDEST},
}


class Watcher(Actor):
    """Watches in each way, and notes what arrives. Serves nothing while its gate is closed."""

    def __init__(self, heard: list[Any], gate: trio.Event | None = None) -> None:
        self.heard = heard
        self.gate = gate

    def init(self) -> None:
        self.trap_exit = True

    async def handle_message(self, message: Any, sender: Any) -> None:
        if callable(message):
            act: Any = message
            await act(self)
        elif message == "wait":
            assert self.gate is not None
            await self.gate.wait()
        else:
            self.heard.append(message)

    async def handle_call(self, request: Any, caller: Any) -> Any:
        return await request(self)

    async def handle_child_exit(self, child: Any, reason: Reason) -> None:
        self.heard.append(("child exit", reason))

    async def handle_event(self, event: Any) -> None:
        self.heard.append(event.message)


class Performer(Actor):
    """Awaits the functions that it is sent."""

    async def handle_message(self, message: Any, sender: Any) -> None:
        await message(self)


def speak(to: Any, count: int, end: Any) -> Any:
    """Something for an actor to do: send numbers, and then end."""

    def act(me: Any) -> None:
        for number in range(count):
            me.send(to, number)
        end(me)

    return act


def stop(reason: Reason) -> Any:
    return lambda me: me.stop(reason)


def fail(_me: Any) -> None:
    raise Failed("on purpose")


async def nothing(_me: Any) -> None:
    """Something for a watcher to do that takes no time."""


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a thread does."""
    while not condition():  # noqa: ASYNC110 - a condition, not an event
        await trio.sleep(0.001)


def hold(node: Node, to: Any) -> trio.Event:
    """Keep a watcher busy until the event is set."""
    gate = trio.Event()

    async def wait(_me: Any) -> None:
        await gate.wait()

    node.send(to, wait)
    return gate


async def watched_child(watcher: Any, behaviour: type[Actor], **options: Any) -> Any:
    """Spawn a child of the watcher that it also links to and monitors."""

    async def spawn(me: Any) -> Any:
        pid = await me.spawn(behaviour, link=True, **options)
        me.monitor(pid)
        return pid

    return await watcher(spawn)


@everywhere
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("receiver", RECEIVERS)
async def test_a_normal_end_is_reported_after_the_messages(
    where: Dispatcher, end: str, receiver: str
) -> None:
    heard: list[Any] = []
    gate = trio.Event()
    async with running_node() as node:
        to = await node.spawn(Watcher, heard, gate, **RECEIVERS[receiver])
        child = await watched_child(lambda do: node.call(to, do), Doer, dispatcher=where)
        node.send(to, "wait")
        node.send(child, speak(to, MANY, stop(ENDS[end])))
        await node.wait_ended(child)
        gate.set()
        await node.call(to, nothing)

        assert heard[:MANY] == list(range(MANY))
        notices = heard[MANY:]
        assert len(notices) == 3
        assert Down(child, ENDS[end]) in notices
        assert Exit(child, ENDS[end]) in notices
        assert ("child exit", ENDS[end]) in notices


@pytest.mark.parametrize("options", NODES.values(), ids=NODES)
async def test_a_normal_end_is_reported_after_the_messages_on_each_kind_of_node(
    options: dict[str, Any],
) -> None:
    heard: list[Any] = []
    async with running_node(**options) as node:
        to = await node.spawn(Watcher, heard)
        for _ in range(20):
            child = await watched_child(lambda do: node.call(to, do), Puppet)
            node.send(child, speak(to, 3, stop(Normal())))
            await wait_all_tasks_blocked()

        assert len(heard) == 20 * 6
        for first in range(0, len(heard), 6):
            assert heard[first : first + 3] == [0, 1, 2]


@everywhere
@pytest.mark.parametrize("end", ["crash", "kill"])
async def test_a_failure_is_reported_before_the_waiting_messages(
    where: Dispatcher, end: str
) -> None:
    heard: list[Any] = []
    gate = trio.Event()
    async with running_node() as node:
        to = await node.spawn(Watcher, heard, gate)
        child = await watched_child(lambda do: node.call(to, do), Doer, dispatcher=where)
        node.send(to, "wait")
        await wait_all_tasks_blocked()
        node.send(child, speak(to, 5, fail if end == "crash" else lambda me: None))
        if end == "kill":
            await node.call(child, lambda me: None)
            node.kill(child)
        await node.wait_ended(child)
        gate.set()
        await node.call(to, nothing)

        assert heard[3:] == list(range(5))
        reasons = {getattr(each, "reason", None) or each[1] for each in heard[:3]}
        assert reasons == ({Crashed(Failed("on purpose"))} if end == "crash" else {Killed()})


async def test_a_link_without_trap_exit_does_not_wait_behind_messages() -> None:
    heard: list[Any] = []
    gate = trio.Event()

    class Linked(Watcher):
        def init(self) -> None:
            self.trap_exit = False

    async with running_node() as node:
        to = await node.spawn(Linked, heard, gate)
        other = await node.spawn(Puppet)

        async def link(me: Any) -> None:
            me.link(other)

        await node.call(to, link)
        node.send(to, "wait")
        node.send(to, "never served")
        await wait_all_tasks_blocked()
        await node.call(other, stop(Shutdown()))
        await wait_all_tasks_blocked()
        gate.set()
        await wait_all_tasks_blocked()

        assert heard == []
        assert to not in node.processes()


# -- bounded mailboxes -----------------------------------------------------------------------------


@pytest.mark.parametrize("overflow", [Overflow.RAISE, Overflow.WAIT, Overflow.DROP_OLDEST])
async def test_notices_take_no_place_in_a_bounded_mailbox_and_are_not_lost(
    overflow: Overflow,
) -> None:
    heard: list[Any] = []
    gate = trio.Event()
    async with running_node() as node:
        to = await node.spawn(Watcher, heard, gate, mailbox_size=2, overflow=overflow)
        others = [await node.spawn(Puppet) for _ in range(5)]

        async def watch(me: Any) -> None:
            for other in others:
                me.monitor(other)

        await node.call(to, watch)
        node.send(to, "wait")
        await wait_all_tasks_blocked()
        node.send(to, 1)
        for other in others[:4]:
            await node.call(other, stop(Normal()))
        node.send(to, 2)
        await node.call(others[4], stop(Normal()))
        await wait_all_tasks_blocked()
        depth = node.process_info(to).lanes["main"]
        if overflow is not Overflow.DROP_OLDEST:
            with pytest.raises(MailboxFullError):
                node.send(to, 3)
        else:
            node.send(to, 3)
        gate.set()
        await wait_all_tasks_blocked()
        node.send(to, 4)
        node.send(to, 5)
        await wait_all_tasks_blocked()

        downs = [Down(other, Normal()) for other in others]
        assert depth == 7
        gate = hold(node, to)
        await wait_all_tasks_blocked()
        for number in range(2):
            node.send(to, number)
        assert node.process_info(to).dropped == 1
        if overflow is not Overflow.DROP_OLDEST:
            with pytest.raises(MailboxFullError):
                node.send(to, "too many")
        else:
            node.send(to, "too many")
        assert node.process_info(to).dropped == 2
        gate.set()
        if overflow is Overflow.DROP_OLDEST:
            assert heard == [*downs[:4], 2, downs[4], 3, 4, 5]
        else:
            assert heard == [1, *downs[:4], 2, downs[4], 4, 5]


async def test_a_sender_that_waited_for_room_is_heard_before_its_end() -> None:
    heard: list[Any] = []
    gate = trio.Event()

    async def send_and_stop(me: Any) -> None:
        for number in range(5):
            await me.send_wait(to, number)
        me.stop()

    async with running_node() as node:
        to = await node.spawn(Watcher, heard, gate, mailbox_size=2, overflow=Overflow.WAIT)
        child = await watched_child(lambda do: node.call(to, do), Performer)
        node.send(to, "wait")
        await wait_all_tasks_blocked()
        node.send(child, send_and_stop)
        await wait_all_tasks_blocked()
        gate.set()
        await wait_all_tasks_blocked()

        assert heard[:5] == list(range(5))
        assert len(heard) == 8


async def test_messages_sent_in_a_thread_of_a_callback_arrive_before_the_end() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        # A bounded mailbox that drops: messages of threads reach it through the loop.
        to = await node.spawn(Watcher, heard, mailbox_size=100, overflow=Overflow.DROP_NEWEST)
        child = await watched_child(lambda do: node.call(to, do), Performer)

        async def act(me: Any) -> None:
            def send() -> None:
                for number in range(10):
                    me.send(to, number)

            # Joined here, so that the loop does not run between the sends and the end.
            thread = threading.Thread(target=send)
            thread.start()
            thread.join()
            me.stop()

        node.send(child, act)
        await wait_all_tasks_blocked()

        assert heard[:10] == list(range(10))
        assert len(heard) == 13


# -- relations and lanes ---------------------------------------------------------------------------


async def test_the_end_of_an_event_is_reported_after_its_last_publication() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        to = await node.spawn(Watcher, heard)
        producer = await node.spawn(Puppet)
        await node.call(producer, lambda me: me.register_event("ticks"))

        async def subscribe(me: Any) -> None:
            me.subscribe("ticks")

        await node.call(to, subscribe)

        def publish_and_stop(me: Any) -> None:
            me.publish("ticks", "last")
            me.stop()

        await node.call(producer, publish_and_stop)
        await wait_all_tasks_blocked()

        assert heard == ["last", Down(EventName("ticks", node.name), Normal())]


async def test_a_notice_that_waits_is_not_delivered_after_demonitor() -> None:
    heard: list[Any] = []
    gate = trio.Event()
    async with running_node() as node:
        to = await node.spawn(Watcher, heard, gate)
        other = await node.spawn(Puppet)

        async def monitor(me: Any) -> None:
            me.monitor(other)

        async def demonitor(me: Any) -> None:
            me.demonitor(other)

        await node.call(to, monitor)
        node.send(to, "wait")
        node.send(to, demonitor)
        await wait_all_tasks_blocked()
        await node.call(other, stop(Normal()))
        await wait_all_tasks_blocked()
        waiting = node.process_info(to).lanes["main"]
        gate.set()
        await wait_all_tasks_blocked()

        assert waiting == 2
        assert heard == []
        assert len(kernel_of(node).relations) == 0


async def test_a_waiting_notice_is_shown_as_the_callback_that_gets_it() -> None:
    gate = trio.Event()
    async with running_node() as node:
        to = await node.spawn(Watcher, [], gate)
        child = await watched_child(lambda do: node.call(to, do), Puppet)
        node.send(to, "wait")
        await wait_all_tasks_blocked()
        node.send(child, stop(Normal()))
        await wait_all_tasks_blocked()

        shown = [(each.lane, each.callback, each.sender) for each in node.peek(to)]
        gate.set()

        assert shown == [
            ("main", "handle_message", child),
            ("main", "exit", child),
            ("main", "handle_child_exit", child),
        ] or shown == [
            ("main", "exit", child),
            ("main", "handle_message", child),
            ("main", "handle_child_exit", child),
        ]


async def test_a_crash_in_the_callback_of_a_notice_names_that_callback() -> None:
    class Fragile(Actor):
        def handle_child_exit(self, child: Any, reason: Reason) -> None:
            raise Failed("on purpose")

        async def handle_call(self, request: Any, caller: Any) -> Any:
            return await self.spawn(Puppet)

    async with running_node() as node:
        pid = await node.spawn(Fragile)
        child = await node.call(pid, "spawn")
        await node.call(child, stop(Normal()))
        await wait_all_tasks_blocked()

        assert [(crash.pid, crash.callback) for crash in node.crashes()] == [
            (pid, "handle_child_exit")
        ]


async def test_a_successor_inherits_messages_and_no_notices() -> None:
    heard: list[Any] = []
    gate = trio.Event()

    class Failing(Watcher):
        async def handle_message(self, message: Any, sender: Any) -> None:
            if message == "wait":
                await gate.wait()
                raise Failed("on purpose")
            await super().handle_message(message, sender)

    async with running_node() as node:
        await node.supervise(
            [ChildSpec("a", Failing, heard, gate, mailbox=Fate.KEEP, mailbox_size=3)]
        )
        others = [await watched_child(lambda do: node.call("a", do), Puppet) for _ in range(3)]
        node.send("a", "wait")
        await wait_all_tasks_blocked()
        for number, other in enumerate(others):
            node.send("a", number)
            await node.call(other, stop(Normal()))
        await wait_all_tasks_blocked()
        gate.set()
        await wait_all_tasks_blocked()

        assert heard == [0, 1, 2]
        assert node.process_info("a").lanes["main"] == 0


async def test_a_supervisor_restarts_a_child_that_ended_normally_before_its_messages() -> None:
    started: list[Any] = []

    class Worker(Puppet):
        def init(self) -> None:
            started.append(self.pid)

    async with running_node() as node:
        tree = await node.supervise(
            [
                ChildSpec("kept", Worker, restart=RestartPolicy.PERMANENT),
                ChildSpec("done", Worker, restart=RestartPolicy.TRANSIENT),
            ]
        )
        await node.suspend(tree.pid)
        for number in range(5):
            node.send(tree.pid, number)
        for name in ("kept", "done"):
            await node.call(name, stop(Normal()))
        await wait_all_tasks_blocked()

        shown = [(each.lane, each.callback) for each in node.peek(tree.pid)]
        await node.resume(tree.pid)
        await wait_all_tasks_blocked()

        assert shown[:2] == [("system", "supervision")] * 2
        assert len(started) == 3
        assert [child.name for child in tree.children() if child.pid is not None] == ["kept"]


async def test_a_pool_that_drops_the_oldest_keeps_the_notices_of_its_workers() -> None:
    heard: list[Any] = []
    gate = trio.Event()
    async with running_node() as node:
        other = await node.spawn(Puppet)

        async def monitor(me: Any) -> None:
            me.monitor(other)

        spec = PoolSpec(Watcher, heard, gate, size=1, mailbox_size=2, overflow=Overflow.DROP_OLDEST)
        await node.spawn(Pool, spec, name="pool")
        await node.call("pool", monitor)
        node.send("pool", "wait")
        await wait_all_tasks_blocked()
        await node.call(other, stop(Normal()))
        for number in range(4):
            node.send("pool", number)
        gate.set()
        await wait_all_tasks_blocked()

        assert heard == [Down(other, Normal()), 2, 3]


# -- meta-processes --------------------------------------------------------------------------------


class Talking(MetaProcess):
    """Sends numbers from its reader, from its handler and from its termination."""

    def __init__(self, to: Any, gate: threading.Event, last: list[Any]) -> None:
        self.to = to
        self.gate = gate
        self.last = last

    def start(self) -> None:
        self.gate.wait(20)
        for number in range(MANY):
            self.send(self.to, number)

    def terminate(self, reason: Reason) -> None:
        for word in self.last:
            self.send(self.to, word)

    def unblock(self) -> None:
        self.gate.set()


class TalkingInTask(MetaProcess):
    """The same with a reader that is a task."""

    def __init__(self, to: Any, gate: threading.Event, last: list[Any]) -> None:
        self.to = to
        self.gate = gate
        self.last = last

    async def start(self) -> None:
        while not self.gate.is_set():  # noqa: ASYNC110 - an event of threads, as in the other reader
            await trio.sleep(0.001)
        for number in range(MANY):
            await self.send_wait(self.to, number)

    async def terminate(self, reason: Reason) -> None:
        for word in self.last:
            self.send(self.to, word)


@pytest.mark.parametrize("meta", [Talking, TalkingInTask])
@pytest.mark.parametrize("receiver", [*RECEIVERS, "bounded, waits"])
async def test_the_normal_end_of_a_meta_process_is_reported_after_its_messages(
    meta: Any, receiver: str
) -> None:
    heard: list[Any] = []
    begins = threading.Event()
    options = RECEIVERS.get(receiver, {"mailbox_size": 3, "overflow": Overflow.WAIT})
    # A mailbox that is full refuses the last words: the termination does not wait for it.
    last = ["last"] if receiver in RECEIVERS else []
    async with running_node() as node:
        to = await node.spawn(Watcher, heard, **options)

        async def own(me: Any) -> Alias:
            alias: Alias = await me.spawn_meta(
                meta(me.pid, begins, last), backlog=8, when_behind=Behind.WAIT
            )
            me.monitor(alias)
            return alias

        alias = await node.call(to, own)
        begins.set()
        await until(lambda: ("child exit", Normal()) in heard[-2:])

        assert heard[:-2] == [*range(MANY), *last]
        assert {Down(alias, Normal()), ("child exit", Normal())} == set(heard[-2:])


async def test_messages_sent_in_a_thread_arrive_before_the_end_of_a_meta_process() -> None:
    heard: list[Any] = []

    class Threaded(MetaProcess):
        def __init__(self, to: Any) -> None:
            self.to = to

        async def start(self) -> None:
            # Joined here, so that the loop does not run between the sends and the end.
            thread = threading.Thread(target=self.speak)
            thread.start()
            thread.join()

        def speak(self) -> None:
            for number in range(10):
                self.send(self.to, number)

    async with running_node() as node:
        to = await node.spawn(Watcher, heard, mailbox_size=100, overflow=Overflow.DROP_NEWEST)

        async def own(me: Any) -> None:
            await me.spawn_meta(Threaded(me.pid))

        await node.call(to, own)
        await wait_all_tasks_blocked()

        assert heard == [*range(10), ("child exit", Normal())]


async def test_the_crash_of_a_meta_process_is_reported_before_its_waiting_messages() -> None:
    heard: list[Any] = []
    gate = trio.Event()

    class Failing(MetaProcess):
        def __init__(self, to: Any) -> None:
            self.to = to

        async def start(self) -> None:
            await self.send_wait(self.to, "wait")
            await self.send_wait(self.to, "waiting")
            raise Failed("on purpose")

    async with running_node() as node:
        to = await node.spawn(Watcher, heard, gate)

        async def own(me: Any) -> None:
            await me.spawn_meta(Failing(me.pid))

        await node.call(to, own)
        await until(lambda: not node.metas())
        await wait_all_tasks_blocked()
        gate.set()
        await wait_all_tasks_blocked()

        assert heard == [("child exit", Crashed(Failed("on purpose"))), "waiting"]


# -- synchronous code ------------------------------------------------------------------------------


class Summary(Actor):
    """Collects the results of a child, and answers when the child has ended."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.ended = False

    async def init(self) -> None:
        await self.spawn(Calculation, self.pid)

    def handle_message(self, message: Any, sender: Any) -> None:
        assert not self.ended
        self.results.append(message)

    def handle_child_exit(self, child: Any, reason: Reason) -> None:
        self.ended = True

    def handle_call(self, request: Any, caller: Any) -> Any:
        return self.ended, list(self.results)


class Calculation(Actor):
    """Sends its results and stops."""

    def __init__(self, to: Any) -> None:
        self.to = to

    def post_start(self) -> None:
        for number in range(MANY):
            self.send(self.to, number)
        self.stop()


def test_a_blocking_node_reports_a_normal_end_after_the_messages() -> None:
    with open_blocking_node("summary@localhost", log_output="none") as node:
        for _ in range(20):
            pid = node.spawn(Summary)
            ended, results = False, []
            while not ended:
                ended, results = node.call(pid, "results")
            assert results == list(range(MANY))
