"""A traced node sends contexts along, with every rule of mailboxes, calls and events unchanged. The
tracing here is a small one of its own, without OpenTelemetry.
"""

import contextvars
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from contextvars import Context, copy_context
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    LOOP,
    PID,
    Actor,
    Caller,
    Divert,
    Diverted,
    Node,
    NodeStoppedError,
    Overflow,
    Pool,
    PoolSpec,
    Priority,
    Published,
    Threads,
    Why,
)
from ergo_py._core.messaging.traces import Mark, TraceState, enter, leave
from tests.actors import Puppet, Recorder
from tests.support import THOROUGH, process_of, running_node

SPAN: contextvars.ContextVar[str | None] = contextvars.ContextVar("span", default=None)


class Spans:
    """Notes each callback with its number and the span in which its message was sent."""

    def __init__(self, sampled: bool = True) -> None:
        self.sampled = sampled
        self.found: list[tuple[str, str | None]] = []

    def start(self, node: str) -> None:
        pass

    def present(self) -> Any:
        return SPAN.get() or "?"

    def outside(self) -> Any:
        return "outside" if self.sampled else None

    def note_batch(self, process: Any, marks: Sequence[Mark], count: int) -> None:
        self.found.append((f"batch of {count}", ", ".join(mark.context for mark in marks)))

    def ids(self) -> tuple[str, str]:
        return "trace", SPAN.get() or "?"

    def fresh_context(self) -> Context:
        context = copy_context()
        context.run(enter, None)
        return context

    def serve(self, process: Any, mark: Mark, callback: str, message: object) -> "Span":
        name = f"{process.name or process.callbacks.behaviour}.{callback}"
        self.found.append((name, mark.context))
        return Span(name, process.id)


class Span:
    def __init__(self, name: str, pid: object) -> None:
        self.name, self.state = name, TraceState(pid)

    def __enter__(self) -> None:
        self.tokens = enter(self.state), SPAN.set(self.name)

    def __exit__(self, *_: object) -> None:
        self.state.close()
        leave(self.tokens[0])
        SPAN.reset(self.tokens[1])


async def test_messages_calls_requests_and_timers_carry_the_span(autojump_clock: MockClock) -> None:
    spans = Spans()
    async with running_node(tracing=spans) as node:
        second = await node.spawn(Answering, name="second")
        first = await node.spawn(Puppet, name="first")

        async def work(me: Puppet) -> object:
            me.send(second, "a")
            me.send("second", "b", priority=Priority.HIGH)
            await me.send_wait(second, "c")
            me.request(second, "d")
            me.send_after(1.0, second, "e")
            me.send_every(1.0, second, "f")
            return await me.call(second, "g", timeout=None)

        assert await node.call(first, work) == "g"
        await trio.sleep(1.5)
        node.send(first, lambda me: me.send("second", "again"))
        await wait_all_tasks_blocked()

    assert sorted(spans.found[1:]) == [
        ("first.handle_message", "outside"),
        *[("second.handle_call", "first.handle_call")] * 2,
        *[("second.handle_message", "first.handle_call")] * 4,
        ("second.handle_message", "first.handle_message"),
    ]


@pytest.mark.parametrize("sampled", [True, False])
async def test_the_trace_of_a_process_has_the_ids_of_messages_that_are_sampled(
    sampled: bool,
) -> None:
    async with running_node(tracing=Spans(sampled)) as node:
        second = await node.spawn(Answering)
        first = await node.spawn(Puppet, name="first")

        def work(me: Puppet) -> None:
            me.send(second, "text")
            me.send_after(0.0, second, 1.5)

        async with node.trace(first, limit=3, seconds=20) as entries:
            node.send(first, work)
            seen = [entry async for entry in entries]

    assert [(entry.callback, entry.message_type) for entry in seen] == [
        ("send", "str"),
        ("send_after", "float"),
        ("handle_message", "function"),
    ]
    expected = ("trace", "first.handle_message") if sampled else (None, None)
    assert [(entry.trace_id, entry.span_id) for entry in seen] == [expected] * 3


class Answering(Actor):
    def handle_message(self, message: object, sender: object) -> None: ...

    def handle_call(self, request: object, caller: Caller) -> object:
        return request


async def test_a_timer_of_a_trace_that_finds_no_room_leaves_a_dead_letter(
    autojump_clock: MockClock,
) -> None:
    async with running_node(tracing=Spans(), recent_messages=2) as node:
        full = await node.spawn(Puppet, mailbox_size=1)
        gate = trio.Event()
        node.send(full, lambda _: gate.wait())
        await wait_all_tasks_blocked()
        node.send(full, "fills")
        first = await node.spawn(Puppet)
        await node.call(first, lambda me: me.send_after(1.0, full, "late"))
        await trio.sleep(2)
        gate.set()

        assert node.info().dead_letters == {Why.FULL: 1}


async def test_a_process_has_its_own_verbs_again_after_the_callback() -> None:
    async with running_node(tracing=Spans()) as node:
        pid = await node.spawn(Puppet)

        def verbs(me: Puppet) -> set[str]:
            return {"send", "send_after"} & set(vars(me))

        assert await node.call(pid, verbs) == {"send", "send_after"}
        seen: list[set[str]] = []
        actors: list[Puppet] = []
        await node.call(pid, lambda me: actors.extend([me]))
        seen.append(verbs(actors[0]))

        assert seen == [set()]
        await node.call(pid, lambda me: me.__dict__.update(send="refused"))
        assert vars(actors[0])["send"] == "refused"


async def test_a_background_task_goes_on_with_the_trace() -> None:
    spans = Spans()
    async with running_node(tracing=spans) as node:
        second = await node.spawn(Recorder, name="second")
        first = await node.spawn(Puppet, name="first")
        go, done = trio.Event(), trio.Event()

        async def later(me: Puppet) -> None:
            await go.wait()
            me.send(second, "late")
            await me.call(second, "late")
            done.set()

        await node.call(first, lambda me: me.start_task(partial(later, me)))
        await node.call(first, lambda me: None)
        go.set()
        await done.wait()
        await wait_all_tasks_blocked()

    for callback in ("second.handle_message", "second.handle_call"):
        assert (callback, "first.handle_call") in spans.found


class Hearing(Recorder):
    def init(self) -> None:
        self.subscribe("news")

    def handle_event(self, event: Published) -> None:
        self.heard.append(event.message)


async def test_events_carry_the_span_and_keep_their_rules() -> None:
    spans, heard, full = Spans(), list[Any](), list[Any]()
    async with running_node(tracing=spans) as node:
        first = await node.spawn(Puppet, name="first")
        await node.call(first, lambda me: me.register_event("news"))
        await node.spawn(Hearing, heard, name="second")
        slow = await node.spawn(Hearing, full, name="slow", mailbox_size=1)
        taken = await node.call(first, lambda me: [me.publish("news", n) for n in range(3)])
        await wait_all_tasks_blocked()

        assert heard == [0, 1, 2]
        assert (taken, full, node.process_info(slow).dropped) == ([2, 1, 1], [0], 2)
    assert spans.found.count(("second.handle_event", "first.handle_call")) == 3


async def test_a_thread_that_publishes_or_sends_does_so_without_harm() -> None:
    spans, heard = Spans(), list[Any]()
    async with running_node(tracing=spans) as node:
        first = await node.spawn(Threaded, name="first", dispatcher=Threads())
        await node.spawn(Hearing, heard, name="second")
        bounded = await node.spawn(Recorder, name="bounded", mailbox_size=5)
        assert await node.call(first, bounded) == 1
        await wait_all_tasks_blocked()

        assert sorted(heard) == ["news", "text"]
        assert await node.call(bounded, "heard") == ["text"]
    assert ("second.handle_message", "first.handle_call") in spans.found


class Threaded(Actor):
    def init(self) -> None:
        self.register_event("news")

    def handle_call(self, request: Any, caller: Caller) -> object:
        self.send("second", "text")
        self.send(request, "text")
        return self.publish("news", "news")


class Workers(Pool):
    def workers(self) -> PoolSpec:
        return PoolSpec(Puppet, size=1)


@pytest.mark.parametrize("overflow", [Overflow.RAISE, Overflow.DROP_NEWEST, Overflow.WAIT])
async def test_a_full_mailbox_treats_messages_of_a_trace_as_others(overflow: Overflow) -> None:
    outcomes: list[list[str]] = []
    for tracing in (None, Spans()):
        async with running_node(tracing=tracing) as node:
            first = await node.spawn(Puppet)
            full = await node.spawn(Puppet, mailbox_size=1, overflow=overflow)
            pool = await node.spawn(Workers)
            gate = trio.Event()
            for each in (full, pool):
                node.send(each, lambda _, gate=gate: gate.wait())
            await wait_all_tasks_blocked()
            node.send(full, "fills")

            async def work(me: Puppet, full: Any = full, pool: Any = pool) -> list[str]:
                return [
                    await outcome(lambda: me.send(full, 1)),
                    await outcome(lambda: me.call(full, 2, timeout=0.01)),
                    await outcome(lambda: me.send_wait(full, 3, timeout=0.01)),
                    await outcome(lambda: me.send(pool, 4)),
                    await outcome(lambda: me.call(pool, 5, timeout=0.01)),
                    await outcome(lambda: me.call("nowhere", 6)),
                    await outcome(lambda: me.call(me.pid, 7)),
                    await outcome(lambda: beside(me)),
                    await outcome(lambda: me.send("nowhere", 8)),
                ]

            outcomes.append(await node.call(first, work))
            gate.set()

    assert outcomes[0] == outcomes[1]


async def beside(me: Puppet) -> None:
    """A task in a nursery of the callback calls the process itself."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(me.call, me.pid, "ring")


async def outcome(attempt: Callable[[], Any]) -> str:
    try:
        result = attempt()
        return str(result if isinstance(result, bool) else await result)
    except Exception as error:
        while isinstance(error, ExceptionGroup):
            (error,) = error.exceptions
        return type(error).__name__


async def test_a_call_that_waits_for_room_is_answered_in_its_span(
    autojump_clock: MockClock,
) -> None:
    spans = Spans()
    async with running_node(tracing=spans) as node:
        first = await node.spawn(Puppet, name="first")
        full = await node.spawn(Puppet, name="full", mailbox_size=1, overflow=Overflow.WAIT)
        gate = trio.Event()
        node.send(full, lambda _: gate.wait())
        await wait_all_tasks_blocked()
        node.send(full, "fills")

        async def work(me: Puppet) -> object:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(open_later)
                return await me.call(full, "asked", timeout=None)

        async def open_later() -> None:
            await trio.sleep(1)
            gate.set()

        assert await node.call(first, work) == ["fills"]
    assert ("full.handle_call", "first.handle_call") in spans.found


async def test_a_task_of_a_callback_calls_with_the_trace() -> None:
    spans = Spans()
    async with running_node(tracing=spans) as node:
        second = await node.spawn(Answering, name="second")
        first = await node.spawn(Puppet, name="first")

        async def work(me: Puppet) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(me.call, second, 1)

        await node.call(first, work)
    assert ("second.handle_call", "first.handle_call") in spans.found


async def test_forwarded_calls_and_diverted_messages_arrive() -> None:
    spans = Spans()
    async with running_node(tracing=spans) as node:
        third = await node.spawn(Answering, name="third")
        second = await node.spawn(Forwarding, third, name="second")
        first = await node.spawn(Puppet, name="first")
        assert await node.call(first, lambda me: me.call(second, 9)) == 9
        assert ("third.handle_call", "second.handle_call") in spans.found

        heard: list[Any] = []
        await node.spawn(Recorder, heard, name="overflow")
        full = await node.spawn(Puppet, mailbox_size=1, overflow=Divert("overflow"))
        await node.call(first, lambda me: [me.send(full, n) for n in range(3)])
        await wait_all_tasks_blocked()
        assert [type(each) for each in heard] == [Diverted, Diverted]


class Forwarding(Actor):
    def __init__(self, to: Any) -> None:
        self.to = to

    def handle_call(self, request: object, caller: Caller) -> object:
        return self.forward(self.to, request, caller)


async def test_messages_that_are_not_sampled_have_no_span() -> None:
    spans = Spans(sampled=False)
    async with running_node(tracing=spans) as node:
        pid = await node.spawn(Puppet)
        archive = await node.spawn(Recorder)
        await node.call(pid, lambda me: me.send_after(0.0, archive, 1))
        await node.call(pid, lambda me: me.call(archive, 2))

    assert spans.found == []


async def test_a_process_that_a_callback_spawns_begins_without_the_trace() -> None:
    spans = Spans()
    async with running_node(tracing=spans) as node:
        first = await node.spawn(Puppet, name="first")
        archive = await node.spawn(Recorder, name="archive")
        child = await node.call(first, lambda me: me.spawn(Sending, archive))
        spans.sampled = False
        node.send(child, "go")
        await wait_all_tasks_blocked()

    assert ("archive.handle_message", "first.handle_call") not in spans.found


class Sending(Actor):
    def __init__(self, to: Any) -> None:
        self.to = to

    def handle_message(self, message: object, sender: object) -> None:
        self.send(self.to, message)


async def test_a_stopped_node_refuses_a_call_of_a_trace() -> None:
    async with running_node(tracing=Spans()) as node:
        pid = await node.spawn(Recorder)
    with pytest.raises(NodeStoppedError):
        await node.call(pid, 1)


async def test_an_observed_traced_node_shows_messages_and_spans() -> None:
    spans, seen = Spans(), list[Any]()
    async with running_node(tracing=spans, observer=seen.append) as node:
        second = await node.spawn(Answering, name="second")
        first = await node.spawn(Puppet, name="first")
        assert await node.call(first, lambda me: me.call(second, 1)) == 1

    assert ("second.handle_call", "first.handle_call") in spans.found
    assert {type(sight).__name__ for sight in seen} == {"Spawned", "Stopped", "Sent", "Delivered"}


def test_a_state_left_in_another_context_does_no_harm() -> None:
    token = copy_context().run(enter, TraceState(None))

    leave(token)


# -- several parts of the kernel change the verbs of a process -------------------------------------


class Busy(Actor):
    """Sends each message on. Starts a background task if it is told so."""

    def __init__(self, to: PID) -> None:
        self.to = to

    def handle_message(self, message: Any, sender: object) -> None:
        if message == "start":
            self.start_task(trio.sleep_forever)
        self.send(self.to, message)


def own_verbs(node: Node, pid: PID) -> set[str]:
    return set(vars(process_of(node, pid).behaviour_itself)) & {"send", "send_after", "reply"}


@pytest.mark.parametrize("dispatcher", [LOOP, Threads()], ids=str)
@pytest.mark.parametrize("sampled", [True, False])
async def test_parts_that_change_the_verbs_of_a_process_come_and_go_in_any_order(
    dispatcher: Any, sampled: bool
) -> None:
    chance = random.Random(5)
    heard: list[Any] = []
    async with running_node(tracing=Spans(sampled)) as node:
        sink = await node.spawn(Recorder, heard)
        pid = await node.spawn(Busy, sink, dispatcher=dispatcher)
        before = own_verbs(node, pid)
        stacks: list[AsyncExitStack] = []
        sent: list[str] = []

        async def tell(message: str) -> None:
            sent.append(message)
            node.send(pid, message)
            while heard != sent:
                await trio.lowlevel.checkpoint()

        for _ in range(40):
            choice = chance.randrange(4)
            if choice == 0:
                stacks.append(AsyncExitStack())
                await stacks[-1].enter_async_context(node.trace(pid))
            elif choice == 1 and stacks:
                await stacks.pop(chance.randrange(len(stacks))).aclose()
            await tell("start" if choice == 2 else "message")
        for stack in stacks:
            await stack.aclose()
        await tell("message")

        # A process with background tasks looks for a trace between its callbacks, too.
        kept = {"send", "send_after"} if sampled else set[str]()
        assert own_verbs(node, pid) == before | kept


@pytest.mark.parametrize("dispatcher", [LOOP, Threads()], ids=str)
async def test_a_process_with_a_background_task_is_traced_many_times(dispatcher: Any) -> None:
    heard: list[Any] = []
    spans = Spans()
    async with running_node(tracing=spans) as node:
        sink = await node.spawn(Recorder, heard)
        pid = await node.spawn(Busy, sink, dispatcher=dispatcher)
        node.send(pid, "start")

        for number in range(1_000 if THOROUGH else 350):
            async with node.trace(pid):
                node.send(pid, number)
                while heard[-1:] != [number]:
                    await trio.lowlevel.checkpoint()

        spans.sampled = False  # a message without a trace goes through all verbs
        async with node.trace(pid) as trace:
            node.send(pid, "last")
            entry = await anext(aiter(trace))
        assert (entry.callback, entry.to) == ("send", sink)
