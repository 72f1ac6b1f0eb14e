"""Calls in a circle are refused, and so are calls from a place where no answer can come."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    PID,
    Actor,
    Caller,
    CallTimeoutError,
    Killed,
    Name,
    NotAllowedError,
    Reject,
    TargetDownError,
    Threads,
)
from ergo_py.errors import DeadlockError
from ergo_py.info import State
from tests._core.messaging.servers import (
    AsyncServer,
    PlainServer,
    Way,
    asleep,
    crash,
    echo,
    forward_to,
    keep,
    kept_by,
)
from tests.actors import Failed, Puppet
from tests.support import running_node


async def nap(me: Any, seconds: float) -> None:
    await trio.sleep(seconds)


# -- C5: deadlocks ---------------------------------------------------------------------------------


async def deadlock_of(me: Actor, target: Any, request: Any) -> tuple[object, ...]:
    with pytest.raises(DeadlockError) as caught:
        await me.call(target, request, timeout=None)
    return caught.value.ring


@pytest.mark.parametrize("inline_calls", [True, False])
async def test_a_call_of_a_process_to_itself_is_a_deadlock_however_addressed(
    autojump_clock: MockClock, inline_calls: bool
) -> None:
    async with running_node(inline_calls=inline_calls) as node:
        puppet = await node.spawn(Puppet, name="me")
        alias = await node.call(puppet, lambda me: me.create_alias())

        rings = [
            await node.call(puppet, lambda me, target=target: deadlock_of(me, target, None))
            for target in (puppet, "me", Name("me"), Name("me", "test@localhost"), alias)
        ]

        assert rings == [(puppet, puppet)] * 5


@pytest.mark.parametrize("inline_calls", [True, False])
@pytest.mark.parametrize("length", [2, 3, 5])
async def test_a_ring_of_waiting_processes_is_a_deadlock_that_names_it(
    autojump_clock: MockClock, inline_calls: bool, length: int
) -> None:
    async with running_node(inline_calls=inline_calls) as node:
        puppets = [await node.spawn(Puppet) for _ in range(length)]

        def ask(me: Puppet, rest: list[PID]) -> Any:
            if not rest:
                return deadlock_of(me, puppets[0], None)
            return me.call(rest[0], lambda it: ask(it, rest[1:]), timeout=None)

        began = trio.current_time()

        ring = await node.call(puppets[0], lambda me: ask(me, puppets[1:]), timeout=None)

        assert ring == (puppets[-1], *puppets)
        assert trio.current_time() == began
        assert len(node.processes()) == length


@pytest.mark.parametrize("length", [1, 2, 3])
async def test_a_ring_of_calls_through_the_node_is_a_deadlock(
    autojump_clock: MockClock, length: int
) -> None:
    async with running_node() as node:
        puppets = [await node.spawn(Puppet) for _ in range(length)]

        async def ask(me: Puppet, rest: list[PID]) -> Any:
            if rest:
                return await node.call(rest[0], lambda it: ask(it, rest[1:]), timeout=None)
            with pytest.raises(DeadlockError) as caught:
                await node.call(puppets[0], None, timeout=None)
            return caught.value.ring

        ring = await node.call(puppets[0], lambda me: ask(me, puppets[1:]), timeout=None)

        assert ring == (puppets[-1], *puppets)


async def test_a_process_that_calls_through_the_node_waits_for_a_response(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        asking, asked = await node.spawn(Puppet), await node.spawn(Puppet)

        def look(_: Puppet) -> State:
            return node.process_info(asking).state

        during = await node.call(asking, lambda me: node.call(asked, look))

        assert during is State.WAIT_RESPONSE
        assert node.process_info(asking).state is State.SLEEP


async def test_a_call_by_a_callbacks_nursery_task_does_not_change_the_process_state(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        asking, asked = await node.spawn(Puppet), await node.spawn(Puppet)

        async def ask_in_a_task_of_its_own(me: Puppet) -> Any:
            answers: list[Any] = []

            async def ask() -> None:
                answers.append(await node.call(asked, lambda it: node.process_info(asking).state))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
            return answers

        assert await node.call(asking, ask_in_a_task_of_its_own) == [State.RUNNING]


async def test_an_init_that_calls_through_the_node_keeps_its_parent_waiting(
    autojump_clock: MockClock,
) -> None:
    rings: list[tuple[object, ...]] = []

    class Child(Actor):
        async def init(self) -> None:
            await self.node.call(other, None)
            rings.append(await deadlock_of(self, self.parent, None))

    async with running_node() as node:
        other, parent = await node.spawn(Puppet), await node.spawn(Puppet)

        child = await node.call(parent, lambda me: me.spawn(Child))

        assert rings == [(child, parent, child)]


async def test_the_text_of_a_deadlock_names_the_processes_and_a_way_out(
    autojump_clock: MockClock,
) -> None:
    async def text_of(me: Puppet) -> str:
        with pytest.raises(DeadlockError) as caught:
            await me.call(me.pid, None)
        return str(caught.value)

    async with running_node() as node:
        puppet = await node.spawn(Puppet)

        text = await node.call(puppet, text_of)

        assert f"{puppet} → {puppet}" in text
        assert "NO_REPLY" in text


async def test_a_ring_closed_by_a_forward_is_a_deadlock_for_the_caller(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        puppet = await node.spawn(Puppet)
        server = await asleep(node, way.server)

        ring = await node.call(
            puppet, lambda me: deadlock_of(me, server, forward_to(puppet, echo(1)))
        )

        assert ring == (puppet, puppet)
        assert await node.call(server, echo("alive")) == "alive"


class Threaded(Actor):
    """Has a thread for its messages; its calls are served on the loop."""

    def handle_message(self, message: object, sender: object) -> None:
        pass

    async def handle_call(self, request: Any, caller: Caller) -> object:
        return await request(self)


async def test_a_ring_through_a_process_with_a_thread_is_a_deadlock(way: Way) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        threaded = await node.spawn(Threaded, dispatcher=Threads())
        server = await asleep(node, way.server)

        ring = await node.call(
            threaded, lambda me: deadlock_of(me, server, forward_to(threaded, echo(1)))
        )

        assert ring == (threaded, threaded)


async def test_a_ring_through_a_call_that_was_forwarded_is_a_deadlock(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        first, third = await node.spawn(Puppet), await node.spawn(Puppet)
        server = await asleep(node, way.server)
        request = lambda me, caller: me.forward(  # noqa: E731
            third, lambda it: deadlock_of(it, first, None), caller
        )

        ring = await node.call(first, lambda me: me.call(server, request, timeout=None))

        assert ring == (third, first, third)


async def test_an_init_that_calls_its_waiting_parent_is_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    rings: list[tuple[object, ...]] = []

    class Child(Actor):
        async def init(self) -> None:
            rings.append(await deadlock_of(self, self.parent, None))

    async with running_node() as node:
        parent = await node.spawn(Puppet)

        child = await node.call(parent, lambda me: me.spawn(Child), timeout=None)

        assert rings == [(child, parent, child)]


async def test_a_ring_through_a_spawn_and_a_third_process_is_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    class Child(Actor):
        def __init__(self, third: PID) -> None:
            self.third = third

        async def init(self) -> None:
            rings.append(
                await self.call(
                    self.third, lambda me: deadlock_of(me, self.parent, None), timeout=None
                )
            )

    rings: list[tuple[object, ...]] = []
    async with running_node() as node:
        parent, third = await node.spawn(Puppet), await node.spawn(Puppet)

        child = await node.call(parent, lambda me: me.spawn(Child, third), timeout=None)

        assert rings == [(third, parent, child, third)]


async def test_the_init_of_a_grandchild_that_calls_the_waiting_grandparent_is_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    rings: list[tuple[object, ...]] = []

    class Grandchild(Actor):
        def __init__(self, grandparent: PID) -> None:
            self.grandparent = grandparent

        async def init(self) -> None:
            rings.append(await deadlock_of(self, self.grandparent, None))

    class Child(Actor):
        async def init(self) -> None:
            self.child = await self.spawn(Grandchild, self.parent)

        def handle_call(self, request: Any, caller: Caller) -> PID:
            return self.child

    async with running_node() as node:
        parent = await node.spawn(Puppet)

        child = await node.call(parent, lambda me: me.spawn(Child), timeout=None)

        assert rings == [
            (await node.call(child, None), parent, child, await node.call(child, None))
        ]


async def test_an_init_may_call_a_process_that_does_not_wait_for_it(
    autojump_clock: MockClock, way: Way
) -> None:
    class Child(Actor):
        def __init__(self, server: PID) -> None:
            self.server = server

        async def init(self) -> None:
            self.answer = await self.call(self.server, echo("ready"))

        def handle_call(self, request: Any, caller: Caller) -> object:
            return self.answer

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        parent = await node.spawn(Puppet)

        child = await node.call(parent, lambda me: me.spawn(Child, server))

        assert await node.call(child, None) == "ready"


async def test_a_deferred_call_is_no_edge_of_a_ring(autojump_clock: MockClock, way: Way) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        waiting, third = await node.spawn(Puppet), await node.spawn(Puppet)
        node.send_after(
            1, server, lambda me: me.send(third, lambda it: it.reply(me.kept[0], "from the third"))
        )
        answers: list[object] = []

        # The process that deferred calls its waiting caller, which is allowed: a third process
        # answers both.
        node.send(waiting, lambda me: _note(answers, me.call(server, keep)))
        await wait_all_tasks_blocked()
        caller = await node.spawn(Puppet)
        node.send(caller, lambda me: _note(answers, me.call(waiting, lambda _: "after the first")))
        await trio.sleep(2)

        assert answers == ["from the third", "after the first"]


async def _note(answers: list[object], coming: Any) -> None:
    answers.append(await coming)


async def test_a_process_that_deferred_a_call_may_call_its_waiting_caller(
    autojump_clock: MockClock,
) -> None:
    """A waits for B, which has deferred and now calls A: no deadlock, since C answers A."""
    answers: list[object] = []

    async with running_node() as node:
        b, a, c = await node.spawn(AsyncServer), await node.spawn(Puppet), await node.spawn(Puppet)

        async def then_call_a(me: Any, caller: Caller) -> object:
            return await me.call(a, lambda _: "a is free")

        node.send(a, lambda me: _note(answers, me.call(b, keep, timeout=None)))
        await wait_all_tasks_blocked()
        [caller] = await kept_by(node, b)()
        node.send_after(1, c, lambda me: me.reply(caller, "c answered"))
        answers.append(await node.call(b, then_call_a))

        assert answers == ["c answered", "a is free"]


async def test_tasks_of_a_handlers_nursery_may_call_without_being_a_ring(
    autojump_clock: MockClock,
) -> None:
    """A task that a callback started does not hold the process up, so long as the callback comes to
    its end.
    """
    answers: list[object] = []

    async with running_node() as node:
        puppet, other = await node.spawn(Puppet), await node.spawn(Puppet)

        async def both(me: Puppet) -> None:
            async def ask(number: int) -> None:
                answers.append(await me.call(other, lambda it: it.send(me.pid, number)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, 1)
                nursery.start_soon(ask, 2)
                state = node.process_info(me.pid).state
            answers.append(state)

        await node.call(puppet, both)

        assert answers == [True, True, State.RUNNING]
        assert sorted(await node.call(puppet, None)) == [1, 2]


async def test_a_task_of_a_handlers_nursery_may_call_while_another_process_waits_for_it(
    autojump_clock: MockClock,
) -> None:
    answers: list[object] = []

    async with running_node() as node:
        puppet, other = await node.spawn(Puppet), await node.spawn(Puppet)

        async def ask_back(it: Puppet) -> object:
            # Not a ring: the callback of the first does not wait for its nursery yet, and cancels
            # it.
            return await it.call(puppet, lambda _: "answered", timeout=5)

        async def start_and_return(me: Puppet) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: _note(answers, me.call(other, ask_back, timeout=1)))
                await trio.sleep(0.5)
                nursery.cancel_scope.cancel()

        await node.call(puppet, start_and_return)
        await wait_all_tasks_blocked()

        assert answers == []
        assert set(node.processes()) == {puppet, other}
        assert node.info().crashed == 0


async def test_a_ring_ends_when_the_call_that_closed_it_has_ended(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        a, b = await node.spawn(Puppet), await node.spawn(Puppet)

        async def give_up(me: Puppet) -> None:
            with pytest.raises(CallTimeoutError):
                await me.call(b, lambda it: nap(it, 2), timeout=1)

        node.send(a, give_up)
        await trio.sleep(1.5)
        answer = await node.call(b, lambda it: it.call(a, lambda _: "free again"))

        assert answer == "free again"
        assert await node.call(server, echo(1)) == 1


# -- C6: callers -----------------------------------------------------------------------------------


async def test_a_call_from_a_thread_has_the_same_results_as_a_call_from_a_task(way: Way) -> None:
    def reject(me: Any, caller: Caller) -> object:
        raise Reject(LookupError("no such key"))

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server, name="server")

        def ask() -> list[object]:
            results: list[object] = [
                node.call_from_thread("server", echo(1)),
                node.call_from_thread(server, echo(None)),
            ]
            for request in (reject, crash):
                try:
                    node.call_from_thread(server, request)
                except Exception as error:
                    results.append(error)
            try:
                node.call_from_thread(server, echo(1))
            except TargetDownError as error:
                results.append(error)
            return results

        one, none, rejected, crashed, gone = await trio.to_thread.run_sync(ask)

        assert (one, none) == (1, None)
        assert isinstance(rejected, LookupError)
        assert isinstance(crashed, TargetDownError)
        assert isinstance(crashed.__cause__, Failed)
        assert isinstance(gone, TargetDownError)


async def test_a_thread_that_waits_for_an_answer_is_woken_by_its_callees_death() -> None:
    async with running_node() as node:
        server = await node.spawn(AsyncServer)
        entered = trio.Event()

        async def wait(me: Any, caller: Caller) -> None:
            entered.set()
            await trio.sleep_forever()

        def ask() -> object:
            with pytest.raises(TargetDownError) as caught:
                node.call_from_thread(server, wait, timeout=None)
            return caught.value.reason

        reasons: list[object] = []

        async def in_thread() -> None:
            reasons.append(await trio.to_thread.run_sync(ask))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread)
            await entered.wait()
            node.kill(server)

        assert reasons == [Killed()]


async def test_a_call_that_times_out_in_a_thread_leaves_a_late_reply() -> None:
    async with running_node() as node:
        server = await asleep(node, PlainServer)

        def ask() -> float:
            with pytest.raises(CallTimeoutError) as caught:
                node.call_from_thread(server, keep, timeout=0.01)
            return caught.value.timeout

        timeout = await trio.to_thread.run_sync(ask)
        [caller] = await kept_by(node, server)()

        assert timeout == 0.01
        assert node.reply(caller, 1) is False
        assert node.info().late_replies == 1


async def test_a_blocking_call_on_the_loops_thread_is_refused_and_suggests_await_node_call(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        server = await asleep(node, PlainServer)

        with pytest.raises(NotAllowedError, match=r"await node\.call"):
            node.call_from_thread(server, echo(1))
