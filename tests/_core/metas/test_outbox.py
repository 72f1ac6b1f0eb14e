"""A reader waits for a slow receiver, and its messages are never lost in silence."""

import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    PID,
    Actor,
    Behind,
    Crashed,
    Custom,
    DeadLetter,
    Divert,
    Diverted,
    MailboxFullError,
    MetaProcess,
    NodeStoppedError,
    Normal,
    Overflow,
    Priority,
    Why,
)
from ergo_py._core.metas.outbox import Outbox
from ergo_py._core.metas.termination import Phase
from tests._core.metas.metas import (
    InTask,
    InTaskServedInThread,
    InThread,
    InThreadServedOnLoop,
    Owned,
    in_thread,
    owning,
)
from tests.actors import Failed, Recorder
from tests.meta.support import (
    is_parked,
    meta_of,
    queue_of,
    replace_queue,
    wait_at_receiver,
    wait_for_backlog,
)
from tests.support import process_of, router_of, running_node

BACKLOG = 5


class Slow(Actor):
    """Takes a message for each time it is let; the rest waits in its mailbox."""

    def __init__(self, heard: list[Any], let: "Let") -> None:
        self.heard = heard
        self.let = let

    async def handle_message(self, message: Any, sender: Any) -> None:
        await self.let.one()
        self.heard.append(message)


class Let:
    """Lets a receiver go on, some messages or all of them."""

    def __init__(self) -> None:
        self._tickets = 0.0
        self._changed = trio.Event()

    def go(self, count: float) -> None:
        self._tickets += count
        self._changed.set()
        self._changed = trio.Event()

    async def one(self) -> None:
        while self._tickets < 1:
            await self._changed.wait()
        self._tickets -= 1


class Scene:
    """A slow receiver and a reader that sends to it."""

    def __init__(self, owned: Owned, meta: Any, receiver: PID, heard: list[Any], let: Let) -> None:
        self.owned = owned
        self.node = owned.node
        self.meta = meta
        self.receiver = receiver
        self.heard = heard
        self.let = let
        self.poured = self.sent = 0

    async def pour(self, count: int, priority: Priority = Priority.NORMAL) -> None:
        """Have the reader begin to send numbers."""

        def send_all(me: Any) -> None:
            for number in range(count):
                me.send(self.receiver, number, priority=priority)
                self.sent += 1

        self.poured += count
        self.meta.give(send_all)

    async def stuck(self) -> int:
        """Wait until nothing moves any more; returns how many the reader could send."""
        before, quiet = (-1, False), 0
        # A reader that neither waits nor has sent everything was refused, or is slow: that takes
        # longer to tell.
        while quiet < 100:
            await wait_all_tasks_blocked(0.01)
            has_ended = self.sent == self.poured or is_parked(meta_of(self.meta).outbox)
            # At the second look: a reader that has just begun to wait has left messages that the
            # loop delivers in between.
            if has_ended and before == (self.sent, True):
                break
            quiet = quiet + 1 if before[0] == self.sent else 0
            before = self.sent, has_ended
        return self.sent


async def set_up(owned: Owned, meta: Any, receiver: dict[str, Any], **options: Any) -> Scene:
    heard: list[Any] = []
    let = Let()
    pid = await owned.node.spawn(partial(Slow, heard, let), shutdown=0.0, **receiver)
    await owned.spawn(meta, **{"backlog": BACKLOG, **options})
    return Scene(owned, meta, pid, heard, let)


RECEIVERS: dict[str, dict[str, Any]] = {
    "unbounded": {},
    "bounded, refuses": {"mailbox_size": 3},
    "bounded, waits": {"mailbox_size": 3, "overflow": Overflow.WAIT},
}

DEPTH = {"unbounded": BACKLOG, "bounded, refuses": 3, "bounded, waits": 3}
"""How many messages may be in the mailbox of each before a reader is behind."""

# A reader's thread fills an unbounded mailbox itself, and then waits until half of that is gone.
# For a bounded mailbox it queues, and waits until half of that queue is gone.
DEPTHS = {
    "unbounded": range(BACKLOG // 2, BACKLOG + 1),
    "bounded, refuses": range(2, 4),
    "bounded, waits": range(2, 4),
}
QUEUED = {
    "unbounded": range(1),
    "bounded, refuses": range(BACKLOG // 2 + 1, BACKLOG + 2),
    "bounded, waits": range(BACKLOG // 2 + 1, BACKLOG + 2),
}


# -- waiting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("receiver", RECEIVERS)
async def test_a_reader_waits_for_a_slow_receiver_and_loses_no_message(receiver: str) -> None:
    async with owning() as owned:
        scene = await set_up(owned, InThread(), RECEIVERS[receiver])
        await scene.pour(100)

        sent = await scene.stuck()
        info = scene.node.meta_info(scene.meta.id)
        depth = scene.node.process_info(scene.receiver).lanes["main"]
        scene.let.go(1000)
        await owned.until(lambda: len(scene.heard) == 100)

        # At most: a message in progress, the receiver's mailbox, a waiting message, and the
        # backlog.
        assert depth in DEPTHS[receiver]
        assert sent == 1 + depth + info.backlog
        assert info.backlog in QUEUED[receiver]
        assert (info.reader_waits, info.backlog_dropped) == (True, 0)
        assert scene.heard == list(range(100))
        assert not scene.node.info().dead_letters
        assert scene.node.meta_info(scene.meta.id).messages_out == 100


async def test_a_reader_does_not_overtake_the_message_that_the_loop_delivers() -> None:
    class Interrupted(Outbox):
        """Its reader sends again, once, in the middle of each delivery."""

        __slots__ = ()

        def _hand_over(self, entry: Any) -> None:
            if entry[1] < 10:
                self.put(entry[0], entry[1] + 10, Priority.NORMAL)
            super()._hand_over(entry)

    async with owning() as owned:
        scene = await set_up(owned, InThread(), {})
        outbox = Interrupted(
            router_of(scene.node), scene.receiver, BACKLOG, Behind.WAIT, lambda: None
        )
        scene.let.go(1000)

        queue_of(outbox).append((scene.receiver, 1, Priority.NORMAL))
        outbox.flush()
        await owned.until(lambda: len(scene.heard) == 2)

        assert scene.heard == [1, 11]


async def test_a_reader_keeps_its_order_between_waiting_and_continuing() -> None:
    heard: list[Any] = []
    async with owning() as owned:
        meta = InThread()
        receiver = await owned.node.spawn(Recorder, heard, name="ada")
        await owned.spawn(meta, backlog=BACKLOG)

        def send_all(me: Any) -> None:
            for number in range(3000):
                me.send("ada" if number % 3 else receiver, number)

        meta.give(send_all)
        await owned.until(lambda: len(heard) == 3000)

        assert heard == list(range(3000))


@pytest.mark.parametrize("receiver", RECEIVERS)
async def test_the_bound_holds_for_every_priority(receiver: str) -> None:
    async with owning() as owned:
        scene = await set_up(owned, InThread(), RECEIVERS[receiver])
        await scene.pour(100, Priority.HIGH)
        sent = await scene.stuck()
        depth = scene.node.process_info(scene.receiver).lanes["system"]
        scene.let.go(1000)
        await owned.until(lambda: len(scene.heard) == 100)

        assert depth in (DEPTH[receiver] - 1, DEPTH[receiver])
        assert sent <= 1 + DEPTH[receiver] + 1 + BACKLOG
        assert scene.heard == list(range(100))


async def test_readers_of_the_same_bounded_receiver_take_turns() -> None:
    async with owning() as owned:
        scene = await set_up(owned, InThread(), RECEIVERS["bounded, refuses"])
        other = InThread()
        await owned.spawn(other, backlog=BACKLOG)
        await scene.pour(50)
        other.give(
            lambda me: [me.send(scene.receiver, ("other", number)) for number in range(50)] and None
        )
        await scene.stuck()
        await owned.until(lambda: owned.node.meta_info(other.id).reader_waits)

        scene.let.go(1000)
        await owned.until(lambda: len(scene.heard) == 100)

        assert [one for one in scene.heard if isinstance(one, int)] == list(range(50))
        assert [one for one in scene.heard if isinstance(one, tuple)] == [
            ("other", number) for number in range(50)
        ]
        # Neither had to wait until the other was done.
        assert {type(one) for one in scene.heard[:40]} == {int, tuple}


@pytest.mark.parametrize("overflow", [Overflow.DROP_NEWEST, Overflow.DROP_OLDEST])
async def test_a_bounded_receiver_that_drops_does_not_block_a_reader(overflow: Overflow) -> None:
    async with owning() as owned:
        scene = await set_up(owned, InThread(), {"mailbox_size": 3, "overflow": overflow})
        await scene.pour(100)
        await owned.until(lambda: scene.sent == 100)
        await scene.stuck()
        scene.let.go(1000)
        await wait_all_tasks_blocked()

        assert len(scene.heard) == 4
        assert sum(scene.node.info().dead_letters.values()) == 96


async def test_a_bounded_receiver_that_diverts_does_not_block_a_reader() -> None:
    async with owning() as owned:
        others: list[Any] = []
        let = Let()
        let.go(1000)
        await owned.node.spawn(partial(Slow, others, let), name="others")
        scene = await set_up(owned, InThread(), {"mailbox_size": 3, "overflow": Divert("others")})
        await scene.pour(20)
        await owned.until(lambda: len(others) == 16)

        assert all(isinstance(one, Diverted) and one.origin == scene.receiver for one in others)


async def test_a_receiver_that_ends_frees_the_reader_and_its_messages_become_dead_letters() -> None:
    async with owning() as owned:
        scene = await set_up(owned, InThread(), {})
        await scene.pour(100)
        await scene.stuck()

        scene.node.kill(scene.receiver)
        await owned.until(lambda: scene.sent == 100)
        results = await owned.in_reader(scene.meta, lambda me: me.send(scene.receiver, "late"))
        await owned.until(lambda: scene.node.meta_info(scene.meta.id).backlog == 0)

        letters = scene.node.info().dead_letters
        assert results is False
        # A message was in progress when the receiver was killed.
        assert sum(letters.values()) == 100
        assert all(letter.sender == scene.meta.id for letter in scene.node.dead_letters())


async def test_messages_to_an_unknown_receiver_are_dead_letters_in_order() -> None:
    async with owning() as owned:
        meta = InThread()
        await owned.spawn(meta)
        sent = await owned.in_reader(
            meta, lambda me: [me.send("nobody", number) for number in range(3)]
        )
        await owned.until(lambda: len(owned.node.dead_letters()) == 3)

        assert sent == [False] * 3
        assert [letter.why for letter in owned.node.dead_letters()] == [Why.NO_PROCESS] * 3


@pytest.mark.parametrize("reader", ["thread", "task"])
async def test_a_readers_message_to_a_free_name_never_reaches_a_later_holder(
    reader: str,
) -> None:
    heard: list[Any] = []
    async with owning() as owned:
        meta: Any = InThread() if reader == "thread" else InTask()
        scene = await set_up(
            owned,
            meta,
            {"mailbox_size": 1, "overflow": Overflow.WAIT},
            when_behind=Behind.DROP_OLDEST,
        )
        await scene.pour(4)
        await scene.stuck()

        # Those before it wait for a receiver that is full.
        early = await owned.in_reader(meta, lambda me: me.send("service", "early"))
        owned.node.register("service", await owned.node.spawn(Recorder, heard))
        late = await owned.in_reader(meta, lambda me: me.send("service", "late"))
        owned.node.kill(scene.receiver)
        await owned.until(lambda: "late" in heard)

        assert (early, late) == (False, True)
        assert heard == ["late"]


@pytest.mark.parametrize("receiver", RECEIVERS)
async def test_a_stop_ends_the_waiting(receiver: str) -> None:
    async with owning() as owned:
        scene = await set_up(owned, InThread(), RECEIVERS[receiver], stop_timeout=40.0)
        await scene.pour(100)
        await scene.stuck()

        began = time.perf_counter()
        reason = await owned.end(scene.meta.id, "asked")
        seconds = time.perf_counter() - began
        depth = scene.node.process_info(scene.receiver).lanes["main"]

        letters = sum(scene.node.info().dead_letters.values())
        assert reason == Custom("asked")
        assert seconds < 20
        # A message is in progress at the receiver; each of the others is in its mailbox or a dead
        # letter.
        assert 1 + depth + letters == 100
        if receiver == "unbounded":
            assert depth >= 2 * BACKLOG


async def test_a_node_that_stops_ends_the_waiting() -> None:
    with trio.fail_after(20):
        async with owning() as owned:
            scene = await set_up(owned, InThread(), {"mailbox_size": 3}, stop_timeout=5.0)
            await scene.pour(100)
            await scene.stuck()

    assert scene.meta.notes[-1][0] == "terminate"


async def test_messages_of_a_reader_that_returned_reach_a_slow_receiver() -> None:
    async with owning() as owned:
        scene = await set_up(owned, InThread(), {"mailbox_size": 3}, stop_timeout=0.01)
        scene.meta.give(
            lambda me: [me.send(scene.receiver, number) for number in range(8)] and None
        )
        scene.meta.give(None)
        # It waits for the receiver, not for any limit of its own; so its state shows that it has
        # not ended.
        await trio.sleep(0.1)
        alive = scene.node.metas()
        scene.let.go(1000)
        await owned.until(lambda: scene.node.metas() == [])

        assert alive == [scene.meta.id]
        await owned.until(lambda: scene.heard == list(range(8)))
        assert scene.meta.notes[-1] == ("terminate", Normal())


async def test_a_returning_reader_that_waits_for_its_outbox_is_freed_by_a_stop() -> None:
    async with owning() as owned:
        for meta in (InThread(), InTask()):
            scene = await set_up(owned, meta, {"mailbox_size": 1})
            scene.meta.give(
                lambda me, scene=scene: (
                    [me.send(scene.receiver, number) for number in range(5)] and None
                )
            )
            scene.meta.give(None)
            await owned.until(lambda scene=scene: scene.node.meta_info(scene.meta.id).backlog == 3)  # type: ignore[misc]

            assert await owned.end(scene.meta.id, "asked") == Custom("asked")


async def test_messages_a_reader_sent_before_it_crashed_arrive() -> None:
    def send_then_fail(me: Any) -> None:
        for number in range(500):
            me.send(me.parent, number)
        raise Failed

    async with owning() as owned:
        meta = InThread()
        await owned.spawn(meta)
        meta.give(send_then_fail)
        await owned.until(lambda: owned.node.metas() == [])
        await wait_all_tasks_blocked()

        assert owned.heard == list(range(500))
        assert meta.notes[-1] == ("terminate", Crashed(Failed()))


# -- the other policies ----------------------------------------------------------------------------


@pytest.mark.parametrize("receiver", RECEIVERS)
@pytest.mark.parametrize("colour", [InThread, InTask])
async def test_a_reader_may_drop_the_newest(receiver: str, colour: type[Any]) -> None:
    async with owning() as owned:
        scene = await set_up(owned, colour(), RECEIVERS[receiver], when_behind=Behind.DROP_NEWEST)
        await owned.in_reader(scene.meta, lambda me: me.send(scene.receiver, "first"))
        await wait_all_tasks_blocked()
        results = await owned.in_reader(
            scene.meta, lambda me: [me.send(scene.receiver, number) for number in range(100)]
        )
        await scene.stuck()
        info = scene.node.meta_info(scene.meta.id)
        scene.let.go(1000)
        await wait_all_tasks_blocked()

        kept = [number for number, sent in enumerate(results) if sent]
        assert scene.heard == ["first", *kept]
        assert kept[0] == 0
        assert len(kept) < 100
        assert info.backlog_dropped == 100 - len(kept)
        assert scene.node.info().dead_letters == {Why.FULL: 100 - len(kept)}


@pytest.mark.parametrize("receiver", RECEIVERS)
@pytest.mark.parametrize("colour", [InThread, InTask])
async def test_a_reader_may_drop_the_oldest(receiver: str, colour: type[Any]) -> None:
    async with owning() as owned:
        scene = await set_up(owned, colour(), RECEIVERS[receiver], when_behind=Behind.DROP_OLDEST)
        # Fill mailbox and queue. While the loop still takes messages off the queue, the reader may
        # drop one although there is room again.
        await owned.in_reader(
            scene.meta, lambda me: [me.send(scene.receiver, number) for number in range(50)]
        )
        await scene.stuck()
        results = await owned.in_reader(
            scene.meta, lambda me: [me.send(scene.receiver, number) for number in range(50, 100)]
        )
        await scene.stuck()
        dropped = scene.node.meta_info(scene.meta.id).backlog_dropped
        scene.let.go(1000)
        await wait_all_tasks_blocked()

        assert all(results)
        assert scene.heard[-BACKLOG:] == list(range(100 - BACKLOG, 100))
        assert scene.heard == sorted(scene.heard)
        assert dropped == 100 - len(scene.heard) > 0
        assert scene.node.info().dead_letters == {Why.FULL: dropped}


@pytest.mark.parametrize("receiver", RECEIVERS)
@pytest.mark.parametrize("colour", [InThread, InTask])
async def test_a_reader_may_end_its_meta_process(receiver: str, colour: type[Any]) -> None:
    async with owning() as owned:
        scene = await set_up(owned, colour(), RECEIVERS[receiver], when_behind=Behind.STOP)
        scene.meta.give(
            lambda me: [me.send(scene.receiver, number) for number in range(100)] and None
        )
        await owned.until(lambda: scene.node.metas() == [])
        scene.let.go(1000)
        await wait_all_tasks_blocked()

        reason = scene.meta.notes[-1][1]
        assert reason == Custom(f"its receivers were more than {BACKLOG} messages behind")
        assert scene.heard == list(range(len(scene.heard)))
        assert len(scene.heard) + sum(scene.node.info().dead_letters.values()) == 100


@pytest.mark.parametrize("way", ["put", "offer"])
async def test_a_reader_that_ends_its_meta_process_sends_no_message_after_the_gap(way: str) -> None:
    ends: list[None] = []
    async with owning() as owned:
        scene = await set_up(owned, InThread(), {})
        outbox = Outbox(
            router_of(scene.node), scene.receiver, BACKLOG, Behind.STOP, lambda: ends.append(None)
        )
        send = partial(getattr(outbox, way), scene.receiver, priority=Priority.NORMAL)
        results: list[bool] = []
        while not ends:
            results.append(send(len(results)))
            await wait_all_tasks_blocked()
        scene.let.go(1000)
        await owned.until(lambda: len(outbox) == 0)

        late = send("late")
        await wait_all_tasks_blocked()

        assert results == [True] * (len(results) - 1) + [False]
        assert late is False
        assert scene.heard == list(range(len(results) - 1))
        assert scene.node.info().dead_letters == {Why.FULL: 2}


# -- readers that are tasks ------------------------------------------------------------------------


@pytest.mark.parametrize("receiver", RECEIVERS)
async def test_a_reader_that_is_a_task_waits_with_send_wait(receiver: str) -> None:
    async with owning() as owned:
        scene = await set_up(owned, InTask(), RECEIVERS[receiver])

        async def send_all(me: Any) -> None:
            for number in range(100):
                assert await me.send_wait(scene.receiver, number)
                scene.sent += 1

        scene.meta.give(send_all)
        sent = await scene.stuck()
        depth = scene.node.process_info(scene.receiver).lanes["main"]
        scene.let.go(1000)
        await owned.until(lambda: len(scene.heard) == 100)

        assert depth in (DEPTH[receiver] - 1, DEPTH[receiver])
        assert sent == 1 + depth
        assert scene.heard == list(range(100))
        assert not scene.node.info().dead_letters


@pytest.mark.parametrize("receiver", RECEIVERS)
async def test_a_reader_that_is_a_task_and_cannot_wait_is_refused_past_the_bound(
    receiver: str,
) -> None:
    async with owning() as owned:
        scene = await set_up(owned, InTask(), RECEIVERS[receiver])

        def send_all(me: Any) -> int:
            for number in range(100):
                try:
                    me.send(scene.receiver, number)
                except MailboxFullError:
                    return number
            return 100

        accepted = await owned.in_reader(scene.meta, send_all)
        scene.let.go(1000)
        await owned.until(lambda: len(scene.heard) == accepted)

        assert accepted == DEPTH[receiver] + 1 + BACKLOG
        assert scene.heard == list(range(accepted))
        assert scene.node.info().dead_letters == {Why.FULL: 1}


async def test_the_bound_holds_for_tasks_that_the_reader_has_started() -> None:
    async with owning() as owned:
        scene = await set_up(owned, InTask(), {})

        async def send_from_below(me: Any) -> None:
            async def send() -> None:
                with pytest.raises(MailboxFullError):
                    for number in range(100):
                        me.send(scene.receiver, number)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)

        await owned.in_reader(scene.meta, send_from_below)


async def test_send_wait_does_not_overtake_queued_messages() -> None:
    async with owning() as owned:
        scene = await set_up(owned, InTask(), {})

        async def send_both_ways(me: Any) -> None:
            for number in range(8):
                me.send(scene.receiver, number)
            await me.send_wait(scene.receiver, 8)

        scene.meta.give(send_both_ways)
        await scene.stuck()
        scene.let.go(1000)
        await owned.until(lambda: len(scene.heard) == 9)

        assert scene.heard == list(range(9))


async def test_a_send_that_waits_returns_when_its_receiver_ends() -> None:
    async with owning() as owned, trio.open_nursery() as nursery:
        scene = await set_up(owned, InTask(), {"mailbox_size": 1})
        results: list[Any] = []

        async def send_some(me: Any) -> None:
            results.extend([await me.send_wait(scene.receiver, number) for number in range(3)])

        nursery.start_soon(owned.in_reader, scene.meta, send_some)
        await scene.stuck()
        scene.node.kill(scene.receiver)
        await owned.until(lambda: bool(results))

        assert results == [True, True, False]
        assert scene.node.info().dead_letters[Why.STOPPING] == 1


async def test_a_send_that_is_cancelled_while_it_waits_is_not_delivered() -> None:
    async with owning() as owned:
        scene = await set_up(owned, InTask(), {"mailbox_size": 1})

        async def give_up(me: Any) -> None:
            for number in range(2):
                await me.send_wait(scene.receiver, number)
                await wait_all_tasks_blocked()
            with trio.move_on_after(0.01):
                await me.send_wait(scene.receiver, "cancelled")

        await owned.in_reader(scene.meta, give_up)
        scene.let.go(1000)
        await wait_all_tasks_blocked()

        assert scene.heard == [0, 1]


# -- both sides ------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", [InThread, InThreadServedOnLoop, InTask, InTaskServedInThread])
@pytest.mark.parametrize("receiver", ["unbounded", "bounded, waits"])
async def test_the_handler_does_not_overtake_the_reader(colour: type[Any], receiver: str) -> None:
    async with owning() as owned:
        scene = await set_up(owned, colour(), RECEIVERS[receiver])
        accepted = DEPTH[receiver] + (
            0 if receiver == "unbounded" and meta_of(scene.meta).reader.has_thread else BACKLOG
        )
        await owned.in_reader(
            scene.meta, lambda me: [me.send(scene.receiver, number) for number in range(accepted)]
        )
        if receiver == "unbounded":
            await owned.in_handler(scene.meta, lambda me: me.send(scene.receiver, "handler"))
            scene.let.go(1000)
        else:
            # There the handler waits for room in a thread, and is refused on the loop; in a task it
            # may wait, too.
            scene.let.go(1000)
            await owned.in_handler(scene.meta, lambda me: me.send(scene.receiver, "handler"))
        await owned.until(lambda: len(scene.heard) == accepted + 1)

        assert scene.heard == [*range(accepted), "handler"]


@pytest.mark.parametrize("colour", [InThread, InThreadServedOnLoop])
async def test_receivers_of_the_reader_do_not_block_the_handler(colour: type[Any]) -> None:
    async with owning() as owned:
        scene = await set_up(owned, colour(), {})
        await scene.pour(100)
        await scene.stuck()

        await owned.in_handler(scene.meta, lambda me: me.send(owned.owner, "past the queue"))
        await owned.until(lambda: owned.heard == ["past the queue"])

        scene.let.go(1000)


# -- left behind -----------------------------------------------------------------------------------


async def test_a_reader_that_floods_while_it_is_stopping_is_bounded() -> None:
    class Ignores(MetaProcess):
        def __init__(self) -> None:
            self.ended = threading.Event()

        def start(self) -> None:
            while not self.ended.is_set():
                self.send(receiver, "flood")
                time.sleep(0)

    async with owning() as owned:
        let = Let()
        receiver = await owned.node.spawn(partial(Slow, [], let), shutdown=0.0)
        meta = Ignores()
        await owned.spawn(meta, backlog=BACKLOG, stop_timeout=30)
        await owned.until(lambda: owned.node.meta_info(meta.id).reader_waits)
        outbox = meta_of(meta).outbox
        owned.node.send_exit(meta.id)
        deepest = 0
        while owned.node.metas():
            deepest = max(deepest, len(outbox))
            if outbox.dropped > 100:
                meta.ended.set()
            await trio.sleep(0.001)

        assert deepest <= BACKLOG + 2
        assert outbox.dropped > 0


async def test_a_thread_that_sends_after_the_end_of_the_node_gets_an_error() -> None:
    errors: list[BaseException] = []

    class Outlives(MetaProcess):
        def start(self) -> None:
            held.wait(20)
            try:
                self.send(self.parent, "late")
            except NodeStoppedError as error:
                errors.append(error)
            finally:
                ended.set()

    held, ended = threading.Event(), threading.Event()
    async with owning() as owned:
        meta = Outlives()
        await owned.spawn(meta, stop_timeout=0.01)
        # As if it had passed the look at whether it may still send.
        await owned.end(meta.id)
        meta_of(meta).reader.abandoned = False
        meta_of(meta).ending.phase = Phase.RELEASED
    held.set()
    ended.wait(20)

    assert len(errors) == 1


def reasons(letters: list[DeadLetter]) -> Iterator[Why]:
    for letter in letters:
        yield letter.why


async def test_a_late_message_of_an_abandoned_reader_is_a_dead_letter() -> None:
    class Slips(InThread):
        pass

    async with owning() as owned:
        meta = Slips()
        await owned.spawn(meta)
        await owned.end(meta.id)

        # As if the thread had looked whether it may send, and had been held up before it did.
        queue_of(meta_of(meta).outbox).append((owned.owner, "slipped", Priority.NORMAL))
        meta_of(meta).outbox.flush()
        await wait_all_tasks_blocked()

        assert owned.heard == []
        assert list(reasons(owned.node.dead_letters())) == [Why.STOPPING]


# -- steps that fall between each other ------------------------------------------------------------


class Vanishing(deque[Any]):
    """A queue from which the other side takes the last entry between the look and the grasp."""

    def popleft(self) -> Any:
        super().popleft()
        raise IndexError("pop from an empty deque")


class Changing(deque[Any]):
    """A queue that the other side changes while it is looked through."""

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("deque mutated during iteration")


@asynccontextmanager
async def outbox_alone(queue: deque[Any]) -> AsyncIterator[tuple[Outbox, Owned]]:
    async with owning() as owned:
        outbox = Outbox(router_of(owned.node), owned.node.pid, 1, Behind.DROP_OLDEST, lambda: None)
        replace_queue(outbox, queue)
        yield outbox, owned


async def test_a_reader_that_finds_its_oldest_delivered_does_not_drop_it() -> None:
    async with outbox_alone(Vanishing()) as (outbox, owned):
        queue_of(outbox).append((owned.owner, "delivered meanwhile", Priority.NORMAL))

        taken = outbox.put(owned.owner, "new", Priority.NORMAL)

        assert taken
        assert (outbox.dropped, len(outbox)) == (0, 1)
        queue_of(outbox).clear()


async def test_a_loop_that_finds_the_oldest_dropped_delivers_no_message() -> None:
    async with outbox_alone(Vanishing()) as (outbox, owned):
        queue_of(outbox).append((owned.owner, "dropped meanwhile", Priority.NORMAL))

        outbox.flush()
        await wait_all_tasks_blocked()

        assert (outbox.sent, len(outbox), owned.heard) == (0, 0, [])


async def test_an_outbox_notified_of_room_twice_delivers_its_message_once() -> None:
    async with outbox_alone(deque()) as (outbox, owned):
        queue_of(outbox).append((owned.owner, "once", Priority.NORMAL))

        outbox.settle(True)
        outbox.settle(True)
        await wait_all_tasks_blocked()

        assert owned.heard == ["once"]
        assert outbox.sent == 1


async def test_messages_beyond_the_limit_wait_and_the_waiter_hears_when_all_are_delivered() -> None:
    class Heard:
        told: list[bool] = []

        def settle(self, admitted: bool, /) -> None:
            self.told.append(admitted)

    async with owning() as owned:
        heard, let, waiter = list[Any](), Let(), Heard()
        to = await owned.node.spawn(Slow, heard, let)
        outbox = Outbox(router_of(owned.node), owned.node.pid, 1, Behind.WAIT, lambda: None)
        for number in range(5):
            assert outbox.offer(to, number, Priority.NORMAL, beyond_limit=True)
        with pytest.raises(MailboxFullError):
            outbox.offer(to, "no room", Priority.NORMAL)
        outbox.when_empty(waiter)
        await wait_all_tasks_blocked()
        assert (len(outbox) > 0, waiter.told) == (True, [])

        let.go(5)
        await wait_all_tasks_blocked()
        assert (heard, waiter.told) == ([0, 1, 2, 3, 4], [True])


async def test_a_message_of_the_handler_on_the_loop_comes_after_queued_messages() -> None:
    async with outbox_alone(deque()) as (outbox, owned):
        queue_of(outbox).append((owned.owner, "of the reader", Priority.NORMAL))

        queued = outbox.follow(owned.owner, "of the handler", Priority.NORMAL)
        await wait_all_tasks_blocked()

        # The queued message is delivered by now, so the other may be sent at once.
        assert not queued
        assert owned.heard == ["of the reader"]


async def test_a_queue_that_changes_during_a_search_counts_as_holding_the_receiver() -> None:
    async with outbox_alone(Changing()) as (outbox, owned):
        queue_of(outbox).append((owned.owner, "of the reader", Priority.NORMAL))

        queued = await in_thread(
            lambda: outbox.follow(owned.owner, "of the handler", Priority.NORMAL)
        )
        await wait_all_tasks_blocked()

        assert queued
        assert owned.heard == ["of the reader", "of the handler"]


async def test_a_reader_that_finds_all_delivered_before_it_waits_does_not_wait() -> None:
    class Emptied(Outbox):
        """All is delivered between the first look and the second."""

        looks = 0

        def __len__(self) -> int:
            self.looks += 1
            return 1 if self.looks == 2 else 0

    async with owning() as owned:
        outbox = Emptied(router_of(owned.node), owned.node.pid, 1, Behind.WAIT, lambda: None)

        await in_thread(outbox.wind_up)

        assert outbox.looks == 4
        assert not outbox.reader_waits


async def test_a_handlers_message_to_another_receiver_does_not_wait_behind_the_reader() -> None:
    async with outbox_alone(deque()) as (outbox, owned):
        other = await owned.node.spawn(Recorder)
        queue_of(outbox).append((owned.owner, "of the reader", Priority.NORMAL))

        queued = await in_thread(lambda: outbox.follow(other, "of the handler", Priority.NORMAL))

        assert not queued
        assert [message for _, message, _ in queue_of(outbox)] == ["of the reader"]
        queue_of(outbox).clear()


@pytest.mark.parametrize("queued", [False, True], ids=["keeps up", "is behind"])
async def test_put_many_delivers_after_messages_sent_before(queued: bool) -> None:
    heard: list[Any] = []
    async with outbox_alone(deque()) as (outbox, owned):
        receiver = await owned.node.spawn(Recorder, heard)
        outbox.backlog = 10
        if queued:
            queue_of(outbox).append((receiver, "before", Priority.NORMAL))

        await in_thread(lambda: outbox.put_many(receiver, ["one", "two"], Priority.NORMAL))
        await owned.until(lambda: len(heard) == 2 + queued)

        assert heard == ["before", "one", "two"][not queued :]
        # Behind another message the first is queued; the loop may deliver it before the second.
        assert outbox.direct in ((0, 1) if queued else (2,))


@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.HIGH])
@pytest.mark.parametrize("target", ["pid", "name", "bounded", "nobody"])
async def test_put_many_on_the_loop_delivers_like_separate_sends(
    autojump_clock: MockClock, target: str, priority: Priority
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        options: dict[str, Any] = {"mailbox_size": 10} if target == "bounded" else {}
        pid = await node.spawn(Recorder, heard, name="ada", **options)
        to = {"name": "ada", "nobody": "nobody"}.get(target, pid)
        outbox = Outbox(router_of(node), node.pid, 10, Behind.WAIT, lambda: None)

        outbox.put_many(to, [1, 2, 3], priority)
        await wait_all_tasks_blocked()

        assert heard == ([] if target == "nobody" else [1, 2, 3])
        assert sum(node.info().dead_letters.values()) == (3 if target == "nobody" else 0)
        assert outbox.sent + outbox.direct == 3


async def test_a_reader_delivers_directly_only_if_its_outbox_and_its_waiter_are_empty() -> None:
    async with owning() as owned:
        scene = await set_up(owned, InThread(), {})
        outbox = Outbox(router_of(scene.node), scene.node.pid, 1, Behind.WAIT, lambda: None)
        tries: list[bool] = []

        def try_another() -> None:
            tries.append(outbox.deliver(owned.owner, len(tries), Priority.NORMAL))

        try_another()
        await owned.until(lambda: len(owned.heard) == 1)
        queue_of(outbox).append((scene.receiver, "in its hands", Priority.NORMAL))
        try_another()
        outbox.flush()
        await wait_all_tasks_blocked()
        queue_of(outbox).extend(
            (scene.receiver, text, Priority.NORMAL) for text in ("in its mailbox", "at the door")
        )
        outbox.flush()
        queued, waiting = len(queue_of(outbox)), len(outbox)
        try_another()
        scene.let.go(1000)
        await owned.until(lambda: len(scene.heard) == 3)
        try_another()
        await owned.until(lambda: len(owned.heard) == 2)

        assert (queued, waiting) == (0, 1)
        assert tries == [True, False, False, True]
        assert owned.heard == [0, 3]


async def test_a_reader_does_not_overtake_a_message_that_the_loop_takes_back() -> None:
    tries: list[bool] = []

    class Watched(deque[Any]):
        def appendleft(self, entry: Any, /) -> None:
            # The door is empty by now, and so is the queue.
            tries.append(outbox.deliver(owned.owner, "second", Priority.NORMAL))
            super().appendleft(entry)

    async with owning() as owned:
        scene = await set_up(owned, InThread(), {})
        outbox = Outbox(router_of(scene.node), scene.node.pid, 1, Behind.WAIT, lambda: None)
        replace_queue(outbox, Watched())
        scene.node.send(scene.receiver, "in its hands")
        await wait_all_tasks_blocked()
        scene.node.send(scene.receiver, "in its mailbox")

        queue_of(outbox).append((scene.receiver, "first", Priority.NORMAL))
        outbox.flush()
        outbox.rush()
        scene.let.go(1000)
        await owned.until(lambda: len(scene.heard) == 3)

        assert tries == [False]


async def test_a_reader_delivers_no_message_directly_after_close() -> None:
    async with outbox_alone(deque()) as (outbox, owned):
        before = outbox.deliver(owned.owner, "before", Priority.NORMAL)
        await owned.until(lambda: len(owned.heard) == 1)

        outbox.close()
        after = [outbox.deliver(owned.owner, "after", Priority.NORMAL)]
        outbox.flush()
        after.append(outbox.deliver(owned.owner, "after", Priority.NORMAL))
        await wait_all_tasks_blocked()

        assert (before, after) == (True, [False, False])
        assert owned.heard == ["before"]


async def test_a_reader_that_finds_room_before_it_waits_does_not_wait() -> None:
    class Drained(deque[Any]):
        """The loop delivers between the first look and the second."""

        looks = 0

        def __len__(self) -> int:
            self.looks += 1
            return 1 if self.looks == 1 else 0

    queue = Drained()
    async with outbox_alone(queue) as (outbox, _owned):
        await in_thread(lambda: wait_for_backlog(outbox))

        assert queue.looks == 3
        assert not outbox.reader_waits


async def test_a_reader_does_not_wait_at_a_receiver_that_has_ended() -> None:
    async with outbox_alone(deque()) as (outbox, _owned):
        with trio.fail_after(60):
            await in_thread(lambda: wait_at_receiver(outbox, SimpleNamespace(accepting=False)))


async def test_a_reader_does_not_wait_at_a_receiver_that_has_caught_up() -> None:
    async with outbox_alone(deque()) as (outbox, owned):
        with trio.fail_after(60):
            await in_thread(lambda: wait_at_receiver(outbox, process_of(owned.node, owned.owner)))
