"""Messages through the C extension: references are returned, and tasks look as they do without
it.
"""

import gc
import sys
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import wait_all_tasks_blocked

import ergo_py
import ergo_py.info
from ergo_py import PID, Actor, ChildSpec, MetaProcess, Node, Overflow, Priority
from ergo_py._core.metas.outbox import Outbox
from ergo_py._core.runtime.parking import PARKED
from ergo_py._core.vocabulary.envelopes import MESSAGE
from ergo_py._core.vocabulary.options import Behind
from ergo_py.supervision import Decision
from tests.support import process_behind, process_of, running_node

pytestmark = pytest.mark.skipif(not ergo_py.info.is_fast, reason="the C extension is not installed")


class Payload:
    """A message for counts of references."""


class Plain(Actor):
    def handle_message(self, message: Any, sender: Any) -> None:
        pass


class AtOnce(Actor):
    async def handle_message(self, message: Any, sender: Any) -> None:
        pass


class Waits(Actor):
    async def handle_message(self, message: Any, sender: Any) -> None:
        await trio.lowlevel.checkpoint()
        await trio.sleep(0.0001)


class Fails(Actor):
    def handle_message(self, message: Any, sender: Any) -> None:
        raise KeyError(message)


class FailsLater(Actor):
    async def handle_message(self, message: Any, sender: Any) -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError(message)


class Keeps(Actor):
    """Looks at the envelope in progress, so that its tuple cannot be used again."""

    def init(self) -> None:
        self.seen: list[Any] = []

    def handle_message(self, message: Any, sender: Any) -> None:
        self.seen.append(process_behind(self).turn.handling)
        if len(self.seen) == 10:
            assert all(envelope[3] is message for envelope in self.seen)
            assert len({id(envelope) for envelope in self.seen}) == 10
            self.seen.clear()


class Sends(Actor):
    def handle_message(self, message: Any, sender: Any) -> None:
        to, payload, number = message
        for _ in range(number):
            assert self.send(to, payload)


async def served(node: Node, name: str | PID) -> None:
    """Wait until a process sleeps. It has no more messages then."""
    process = process_of(node, name)
    while process.task.custom_sleep_data is not PARKED:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("kind", [Plain, AtOnce, Waits, Fails, FailsLater, Keeps])
async def test_a_handled_message_leaves_no_references(kind: type[Actor]) -> None:
    async with running_node() as node:
        await node.supervise(
            [ChildSpec("served", kind, decide=lambda _error: Decision.RESUME)], name="tree"
        )
        sender = await node.spawn(Sends, name="sender")
        to, payload = process_of(node, "served").id, Payload()

        def references() -> list[int]:
            gc.collect()
            return [sys.getrefcount(thing) for thing in (payload, sender, to, None, MESSAGE)]

        counts = []
        for _ in range(4):
            node.send(sender, (to, payload, 300))
            await served(node, "sender")
            await served(node, "served")
            counts.append(references())

        assert process_of(node, "served").turn.handled == 4 * 300
        assert counts[1][:3] == counts[2][:3] == counts[3][:3]
        # The interpreter itself refers to these two more or less often.
        assert abs(counts[3][3] - counts[1][3]) < 300
        assert abs(counts[3][4] - counts[1][4]) < 300


async def test_many_messages_leave_no_memory_behind() -> None:
    async with running_node() as node:
        kinds = [Plain, AtOnce, Waits]
        receivers = [await node.spawn(kind, name=kind.__name__) for kind in kinds]
        sender = await node.spawn(Sends, name="sender")

        blocks = []
        for _ in range(6):
            for to in receivers:
                node.send(sender, (to, "text", 1_000))
            await served(node, "sender")
            for kind in kinds:
                await served(node, kind.__name__)
            gc.collect()
            blocks.append(sys.getallocatedblocks())

        assert max(blocks[2:]) - min(blocks[2:]) < 200


class Sleeps(Actor):
    async def handle_message(self, message: Any, sender: Any) -> None:
        await self.sleep()

    async def sleep(self) -> None:
        await trio.sleep_forever()


async def test_the_stack_of_a_waiting_callback_has_all_its_frames() -> None:
    async with running_node() as node:
        pid = await node.spawn(Sleeps)
        node.send(pid, "sleep")
        await wait_all_tasks_blocked()

        task = process_of(node, pid).task
        assert isinstance(task, trio.lowlevel.Task)
        names = [frame.f_code.co_name for frame, _ in task.iter_await_frames()]
        node.kill(pid)

        start = names.index("handle_message")
        assert names[start - 1] in ("serve", "serve_batches")
        assert names[start : start + 3] == ["handle_message", "sleep", "sleep_forever"]


class Cancelled(Actor):
    """Notes how its callback was ended."""

    def __init__(self, ends: list[str]) -> None:
        self.ends = ends

    async def handle_message(self, message: Any, sender: Any) -> None:
        try:
            await trio.sleep_forever()
        except BaseException as error:
            self.ends.append(type(error).__name__)
            raise


async def test_a_kill_cancels_a_callback_that_has_begun_to_wait() -> None:
    ends: list[str] = []
    async with running_node() as node:
        pid = await node.spawn(Cancelled, ends)
        node.send(pid, "sleep")
        await wait_all_tasks_blocked()

        node.kill(pid)

        await wait_all_tasks_blocked()
        assert ends == ["Cancelled"]


class Decorated(Actor):
    """Its callback is async and returns an awaitable of its own."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    async def handle_message(self, message: Any, sender: Any) -> None:
        self.heard.append(message)


class Awaitable:
    def __init__(self, coroutine: Any) -> None:
        self.coroutine = coroutine

    def __await__(self) -> Any:
        return self.coroutine.__await__()


async def test_a_callback_may_return_any_awaitable(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    original = Decorated.handle_message
    async with running_node() as node:
        pid = await node.spawn(Decorated, heard)
        monkeypatch.setattr(
            Decorated, "handle_message", lambda self, *given: Awaitable(original(self, *given))
        )

        for number in range(3):
            node.send(pid, number)
        await wait_all_tasks_blocked()

        assert heard == [0, 1, 2]


async def test_a_flood_of_own_messages_grows_the_lane_that_is_being_served() -> None:
    class Grows(Actor):
        def handle_message(self, message: int, sender: Any) -> None:
            heard.append(message)
            for _ in range(2 if message < 9 else 0):
                self.send(self.pid, message + 1)

    heard: list[int] = []
    async with running_node() as node:
        pid = await node.spawn(Grows)
        node.send(pid, 0)
        await wait_all_tasks_blocked()

        assert heard == sorted(heard)
        assert len(heard) == 2**10 - 1
        assert process_of(node, pid).sent == 2**10 - 2


async def test_a_trace_sees_the_messages_of_a_running_process() -> None:
    async with running_node() as node:
        pid = await node.spawn(Plain)
        node.send(pid, "before")
        await wait_all_tasks_blocked()

        async with node.trace(pid) as trace:
            node.send(pid, "first")
            node.send(pid, "second")
            seen = [await anext(aiter(trace)) for _ in range(2)]
        node.send(pid, "after")
        await wait_all_tasks_blocked()

        assert [entry.callback for entry in seen] == ["handle_message"] * 2
        assert process_of(node, pid).turn.handling is None
        assert not process_of(node, pid).main


async def test_waiting_senders_are_admitted_while_a_batch_is_served() -> None:
    async with running_node() as node:
        pid = await node.spawn(Waits, mailbox_size=2, overflow=Overflow.WAIT)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(node.send_wait, pid, number)
        await served(node, pid)

        assert process_of(node, pid).turn.handled >= 20


class InPassing(MetaProcess):
    """Serves most messages in the turn of their sender."""

    def __init__(self) -> None:
        self.served: list[tuple[str, object]] = []
        self._serve_in_passing = self.serve

    async def start(self) -> None:
        await trio.sleep_forever()

    def serve(self, message: object, sender: object) -> bool:
        if message == "fail":
            raise KeyError(message)
        if message == "later":
            return False
        self.served.append(("in passing", sender))
        return True

    async def handle_message(self, message: object, sender: object) -> None:
        self.served.append(("in its turn", sender))


class Owner(Sends):
    def __init__(self, meta: InPassing) -> None:
        self.meta = meta

    async def init(self) -> None:
        await self.spawn_meta(self.meta)


@pytest.mark.parametrize("before", [0, 255, 256, 300, 2**30 - 5, 2**30 - 2, 2**60, 2**62])
async def test_a_number_read_from_a_counter_stays_the_same(before: int) -> None:
    async with running_node() as node:
        sink = await node.spawn(Plain)
        source = process_of(node, await node.spawn(Sends))
        source.sent = before
        read = before
        for number in range(1, 5):
            read, time = source.sent, source.turn.running_time
            shown = repr(time)
            node.send(source.id, (sink, "message", 1))
            await served(node, source.id)
            assert (read, source.sent) == (before + number - 1, before + number)
            assert repr(time) == shown
        del read
        node.send(source.id, (sink, "message", 3))
        await served(node, source.id)
        await served(node, sink)

        assert source.sent == before + 7
        assert process_of(node, sink).handled == 7


async def test_a_message_names_its_sender() -> None:
    class Witness(Actor):
        def init(self) -> None:
            self.senders: list[PID] = []

        def handle_message(self, message: Any, sender: PID) -> None:
            self.senders.append(sender)

        def handle_call(self, request: Any, caller: Any) -> list[PID]:
            return self.senders

    class Callee(Actor):
        """Sends in the turn of its caller, inside the caller's callback."""

        def init(self) -> None:
            mates.append(self)

        def handle_call(self, request: PID, caller: Any) -> str:
            self.send(request, "inline")
            return "done"

    class Steps(Actor):
        async def handle_call(self, request: PID, caller: Any) -> str:
            self.send(request, "in a step")
            return "done"

    class Asker(Actor):
        async def handle_message(self, message: Any, sender: PID) -> None:
            for each in (callee, stepping):
                self.send(witness, "before")
                await self.call(each, witness)
                self.send(witness, "after")
            mates[0].send(witness, "with the verb of another process")
            await trio.lowlevel.checkpoint()
            self.send(witness, "after a wait")
            await self.call(callee, witness)
            mates[0].send(witness, "with the verb of another process, after a wait")
            self.send(witness, "at the end")

    mates: list[Actor] = []
    async with running_node() as node:
        witness = await node.spawn(Witness)
        callee, stepping = await node.spawn(Callee), await node.spawn(Steps)
        asker = await node.spawn(Asker)
        await wait_all_tasks_blocked()

        node.send(asker, "go")
        await wait_all_tasks_blocked()

        first, second = (asker, callee, asker), (asker, stepping, asker)
        senders = await node.call(witness, "senders")
        assert senders == [*first, *second, callee, asker, callee, callee, asker]

        # Between callbacks the extension remembers no process of a behaviour.
        behaviour = process_of(node, witness).behaviour_itself  # which has run last
        process_of(node, callee).make_behaviour(lambda: behaviour, ())
        behaviour.send(witness, "as another process")
        await wait_all_tasks_blocked()
        assert behaviour.senders == [callee]


async def test_a_meta_process_serves_messages_in_passing_and_leaves_no_references() -> None:
    meta = InPassing()
    async with running_node() as node:
        owner = await node.spawn(Owner, meta, name="owner")
        to, payload = meta.id, Payload()
        counts = []
        for _ in range(3):
            node.send(owner, (to, payload, 300))
            await served(node, "owner")
            gc.collect()
            counts.append((sys.getrefcount(payload), sys.getrefcount(to)))

        assert process_of(node, "owner").sent == 900
        assert meta.served == [("in passing", owner)] * 900
        assert counts[0][0] == counts[1][0] == counts[2][0]
        assert abs(counts[2][1] - counts[1][1]) < 10

        meta.served.clear()
        for message in ("now", "later", "now"):
            node.send(owner, (to, message, 1))
        await wait_all_tasks_blocked()
        # The third message does not overtake the second.
        assert [how for how, _ in meta.served] == ["in passing", "in its turn", "in its turn"]
        assert process_of(node, "owner").sent == 903

        node.send(owner, (to, "fail", 1))
        await wait_all_tasks_blocked()
        assert [crash.callback for crash in node.crashes()] == ["handle_message"]


async def test_a_message_to_the_alias_of_a_process_waits_for_its_turn() -> None:
    async with running_node() as node:
        receiver = await node.spawn(Plain, name="receiver")
        alias = process_of(node, "receiver").make_alias()
        sender = await node.spawn(Sends, name="sender")
        node.send(sender, (alias, "message", 5))
        await served(node, "sender")
        await served(node, receiver)

        assert process_of(node, receiver).turn.handled == 5


async def test_an_outbox_delivers_to_its_receiver_until_that_is_behind() -> None:
    async with running_node() as node:
        to = await node.spawn(Plain, name="receiver")
        process, payload = process_of(node, to), Payload()
        sender = process.make_alias()
        outbox = Outbox(process.router, sender, 4, Behind.WAIT, lambda: None)
        await wait_all_tasks_blocked()
        before = sys.getrefcount(payload)

        done = [outbox.deliver(to, payload, Priority.NORMAL) for _ in range(6)]
        waiting = list(process.main)
        assert done == [True] * 4 + [False] * 2
        assert waiting == [(MESSAGE, sender, to, payload)] * 4
        assert outbox.direct == 4
        assert not outbox.deliver(to, payload, Priority.HIGH)
        waiting.clear()
        await served(node, to)
        assert process.turn.handled == 4
        assert outbox.deliver(to, payload, Priority.NORMAL)
        await wait_all_tasks_blocked()
        gc.collect()

        assert sys.getrefcount(payload) == before
