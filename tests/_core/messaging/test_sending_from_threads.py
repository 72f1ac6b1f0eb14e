"""`send` and `send_wait` from other threads: order, bounds, nothing lost."""

import threading
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import PID, Actor, Divert, Diverted, MailboxFullError, Node, Overflow, Priority, Why
from ergo_py._core.tables.mailbox import Mailbox, Verdict
from ergo_py._core.vocabulary.envelopes import MESSAGE, Lane
from ergo_py.errors import TargetTypeError
from tests._core.runtime.from_threads import (
    PATIENCE,
    in_thread,
    in_threads,
    spawn_gated,
    until,
    waiters_at,
)
from tests.actors import Puppet, Recorder
from tests.support import running_node

# -- sending from threads --------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbered:
    thread: int
    number: int


class Collection:
    """The messages of a process, and an event that is set when all expected messages have come."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.got: list[Any] = []
        self.complete = trio.Event()

    def add(self, message: Any) -> None:
        self.got.append(message)
        if len(self.got) == self.expected:
            self.complete.set()

    def numbers_of(self, thread: int) -> list[int]:
        return [one.number for one in self.got if one.thread == thread]


class Collector(Actor):
    def __init__(self, collection: Collection) -> None:
        self.collection = collection

    def handle_message(self, message: Any, sender: Any) -> None:
        self.collection.add(message)


class AsyncCollector(Actor):
    def __init__(self, collection: Collection) -> None:
        self.collection = collection

    async def handle_message(self, message: Any, sender: Any) -> None:
        self.collection.add(message)


@pytest.mark.parametrize("behaviour", [Collector, AsyncCollector])
async def test_messages_of_each_thread_arrive_in_its_order(
    behaviour: type[Collector | AsyncCollector], switching_fast: None
) -> None:
    collection = Collection(6 * 1500)

    async with running_node() as node:
        pid = await node.spawn(behaviour, collection)

        def flood(thread: int) -> None:
            for number in range(1500):
                assert node.send(pid, Numbered(thread, number))

        await in_threads([partial(flood, thread) for thread in range(6)])
        await collection.complete.wait()

    for thread in range(6):
        assert collection.numbers_of(thread) == list(range(1500))


@pytest.mark.parametrize("by", ["pid", "name"])
async def test_a_threads_messages_keep_their_order_inside_each_priority(
    by: str, switching_fast: None
) -> None:
    collection = Collection(3 * 600)
    priorities = list(Priority)

    async with running_node() as node:
        pid = await node.spawn(Collector, collection, name="collector")
        target = pid if by == "pid" else "collector"

        def flood() -> None:
            for number in range(600):
                for priority in priorities:
                    node.send(target, Numbered(priority, number), priority=priority)

        await in_thread(flood)
        await collection.complete.wait()

    for priority in priorities:
        assert collection.numbers_of(priority) == list(range(600))


@pytest.mark.parametrize("size", [None, 1, 2, 20])
async def test_no_message_stays_unhandled_with_a_sleeping_process(
    size: int | None, switching_fast: None
) -> None:
    lost: list[tuple[int, int]] = []

    class Acknowledging(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            message.set()

    async with running_node() as node:
        pids = [
            await node.spawn(Acknowledging, mailbox_size=size, overflow=Overflow.WAIT)
            for _ in range(3)
        ]

        def one_at_a_time(thread: int) -> None:
            for number in range(300):
                done = threading.Event()
                node.send(pids[thread], done)
                if not done.wait(PATIENCE):
                    lost.append((thread, number))
                    return

        await in_threads([partial(one_at_a_time, thread) for thread in range(3)])

    assert lost == []


async def test_a_process_may_send_from_a_thread_as_itself() -> None:
    senders: list[Any] = []
    heard = trio.Event()

    class Sees(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            senders.append(sender)
            heard.set()

    async with running_node() as node:
        other = await node.spawn(Sees)
        pid = await node.spawn(Puppet)
        await node.call(pid, lambda me: in_thread(lambda: me.send(other, "from a thread")))
        await heard.wait()

    assert senders == [pid]


async def test_two_nodes_in_two_threads_send_to_each_other() -> None:
    heard: list[str] = []
    arrived = trio.Event()
    other_is_up = threading.Event()
    others: list[tuple[Node, PID]] = []
    let_go = threading.Event()

    class Echo(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            home, back, text = message
            home.send(back, f"{text}, answered by {self.node.name}")

    class Hears(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            heard.append(message)
            arrived.set()

    async def other() -> None:
        async with running_node("other@localhost") as node:
            others.append((node, await node.spawn(Echo)))
            other_is_up.set()
            await in_thread(lambda: let_go.wait(PATIENCE))

    async with running_node() as node, trio.open_nursery() as nursery:
        pid = await node.spawn(Hears)
        nursery.start_soon(in_thread, partial(trio.run, other))
        await in_thread(lambda: other_is_up.wait(PATIENCE))
        far, echo = others[0]
        far.send(echo, (node, pid, "hello"))
        await arrived.wait()
        let_go.set()

    assert heard == ["hello, answered by other@localhost"]


async def test_a_thread_that_sends_to_an_unknown_target_gets_false_and_a_dead_letter() -> None:
    async with running_node() as node:
        gone = await node.spawn(Recorder)
        node.kill(gone)
        while gone in node.processes():
            await trio.lowlevel.checkpoint()

        sent = [await in_thread(partial(node.send, to, "hello")) for to in (gone, "nobody")]
        info = node.info()

    assert sent == [False, False]
    assert info.dead_letters == {Why.NO_PROCESS: 2}


async def test_a_thread_gets_an_error_at_once_if_its_target_is_no_address() -> None:
    async with running_node() as node:
        with pytest.raises(TargetTypeError):
            await in_thread(lambda: node.send(42, "hello"))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


# -- bounded mailboxes -----------------------------------------------------------------------------


BOUND = 3


@pytest.mark.parametrize("priority", list(Priority))
async def test_a_full_mailbox_refuses_a_thread_and_the_error_has_the_message(
    priority: Priority,
) -> None:
    refused: list[MailboxFullError] = []

    async with running_node() as node:
        pid, gate = await spawn_gated(node, mailbox_size=BOUND)

        def flood() -> None:
            for number in range(10):
                try:
                    node.send(pid, number, priority=priority)
                except MailboxFullError as error:
                    refused.append(error)

        await in_thread(flood)
        depth = max(node.process_info(pid).lanes.values())
        info, dropped = node.info(), node.process_info(pid).dropped
        gate.opened.set()
        await trio.testing.wait_all_tasks_blocked()

    assert gate.heard == [0, 1, 2]
    assert [(error.target, error.message, error.limit) for error in refused] == [
        (pid, number, BOUND) for number in range(3, 10)
    ]
    assert depth == BOUND
    assert dropped == 7
    assert info.dead_letters == {Why.FULL: 7}


@pytest.mark.parametrize("priority", list(Priority))
async def test_a_place_reserved_for_a_thread_is_not_given_to_another_sender(
    priority: Priority,
) -> None:
    async with running_node() as node:
        pid, gate = await spawn_gated(node, mailbox_size=1)
        refused = []

        def send_while_the_loop_is_here() -> None:
            thread = threading.Thread(
                target=node.send, args=(pid, "from the thread"), kwargs={"priority": priority}
            )
            thread.start()
            thread.join(PATIENCE)

        send_while_the_loop_is_here()
        try:
            node.send(pid, "from the loop", priority=priority)
        except MailboxFullError as error:
            refused.append(error.message)
        gate.opened.set()
        await trio.testing.wait_all_tasks_blocked()
        await in_thread(partial(node.send, pid, "afterwards", priority=priority))
        await trio.testing.wait_all_tasks_blocked()

    assert refused == ["from the loop"]
    assert gate.heard == ["from the thread", "afterwards"]


async def test_an_idle_process_sleeps_until_a_message_with_a_reserved_place_arrives() -> None:
    heard: list[Any] = []

    class Logging(Recorder):
        def handle_log(self, record: object) -> None: ...

    async with running_node() as node:
        pid = await node.spawn(Logging, heard, mailbox_size=1, overflow=Overflow.WAIT)
        node.add_logger(pid)
        for _ in range(20):
            thread = threading.Thread(target=node.send, args=(pid, "from the thread"))
            thread.start()
            thread.join(PATIENCE)
            # The process has to look at its mailbox, where a sender waits for a place and the only
            # place is promised.
            node.log.warning("look")
            await node.send_wait(pid, "from the loop")
            await until(lambda: len(heard) % 2 == 0)

    assert heard == ["from the thread", "from the loop"] * 20


@pytest.mark.parametrize("lane", [Lane.MAIN, Lane.SYSTEM, Lane.URGENT])
def test_a_sender_that_saw_room_is_not_refused_because_a_thread_was_faster(
    lane: Lane,
) -> None:
    box = Mailbox(1, Overflow.WAIT)
    has_room = box.has_room(lane)
    promised = box.promise(lane)

    verdict, _ = box.admit(lane, (MESSAGE, None, None, "from the loop"))
    next_verdict, _ = box.admit(lane, (MESSAGE, None, None, "too many"))

    assert has_room
    assert promised
    assert verdict is Verdict.ACCEPTED
    assert next_verdict is Verdict.REFUSED


@pytest.mark.parametrize("bound", [1, 2, BOUND, 18, 40])
async def test_threads_wait_for_room_and_lose_neither_message_nor_order(
    bound: int, switching_fast: None
) -> None:
    collection = Collection(4 * 200)
    deepest = 0

    class Watching(Collector):
        def handle_message(self, message: Any, sender: Any) -> None:
            nonlocal deepest
            deepest = max(deepest, self.node.process_info(self.pid).lanes["main"])
            super().handle_message(message, sender)

    async with running_node() as node:
        pid = await node.spawn(Watching, collection, mailbox_size=bound, overflow=Overflow.WAIT)

        def flood(thread: int) -> None:
            for number in range(200):
                assert node.send(pid, Numbered(thread, number))

        await in_threads([partial(flood, thread) for thread in range(4)])
        await collection.complete.wait()
        info = node.info()

    for thread in range(4):
        assert collection.numbers_of(thread) == list(range(200))
    assert deepest <= bound
    assert not info.dead_letters


@pytest.mark.parametrize("end", ["the receiver", "the node"])
async def test_threads_that_wait_for_room_are_freed_if_there_is_never_room(end: str) -> None:
    results: list[bool] = []

    async with trio.open_nursery() as nursery, running_node() as node:
        pid, _ = await spawn_gated(node, mailbox_size=1, overflow=Overflow.WAIT)
        node.send(pid, "fills it")
        for _ in range(3):
            nursery.start_soon(in_thread, lambda: results.append(node.send(pid, "waits")))
        await until(lambda: waiters_at(node, pid) == 3)
        if end == "the receiver":
            node.kill(pid)
            await until(lambda: len(results) == 3)

    assert results == [False, False, False]
    counts = Counter(letter.why for letter in node.dead_letters())
    assert counts == {Why.STOPPING: 3, Why.UNHANDLED_AT_EXIT: 1}


@pytest.mark.parametrize(
    "overflow,heard,why",
    [
        (Overflow.DROP_NEWEST, [0, 1, 2], Why.FULL),
        (Overflow.DROP_OLDEST, [7, 8, 9], Why.DISPLACED),
    ],
)
async def test_excess_messages_of_a_thread_are_dropped_and_counted(
    overflow: Overflow, heard: list[int], why: Why
) -> None:
    async with running_node() as node:
        pid, gate = await spawn_gated(node, mailbox_size=BOUND, overflow=overflow)

        def flood() -> None:
            for number in range(10):
                node.send(pid, number)

        await in_thread(flood)
        dropped = await in_thread(lambda: node.process_info(pid).dropped)
        gate.opened.set()
        await trio.testing.wait_all_tasks_blocked()
        info = node.info()

    assert gate.heard == heard
    assert dropped == 7
    assert info.dead_letters == {why: 7}


async def test_excess_messages_of_a_thread_are_diverted() -> None:
    diverted: list[Any] = []

    async with running_node() as node:
        await node.spawn(Recorder, diverted, name="spare")
        pid, _ = await spawn_gated(node, mailbox_size=1, overflow=Divert(to="spare", tag="full"))

        def flood() -> None:
            for number in range(3):
                node.send(pid, number)

        await in_thread(flood)
        await until(lambda: len(diverted) == 2)

    assert diverted == [Diverted(pid, "full", 1, node.pid), Diverted(pid, "full", 2, node.pid)]
