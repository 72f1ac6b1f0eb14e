"""Calls between processes that share a single thread: the thread of the waiting caller runs the
callbacks of the callee.
"""

import threading
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    PID,
    Caller,
    CallTimeoutError,
    ChildSpec,
    Crashed,
    Node,
    Priority,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
    Threads,
)
from ergo_py._core.runtime.dispatcher_threads import _DEPTH
from ergo_py.errors import DeadlockError, InitTimeoutError
from tests.actors import Failed
from tests.dispatched import AsyncDoer, Doer, Gate, heard
from tests.meta.owner import eventually
from tests.support import process_of, running_node

POD = Threads("pod")


async def spawned(node: Node, count: int, **options: Any) -> list[PID]:
    return [await node.spawn(Doer, dispatcher=POD, **options) for _ in range(count)]


def its_thread(_me: Any) -> int:
    return threading.get_ident()


def ask(*path: Any, last: Any = its_thread) -> Any:
    """A function that has a process ask the next process of the path, and so on. The last answers
    with its thread, or does something else.
    """
    if not path:
        return last
    first, *rest = path
    return lambda me: me.call(first, ask(*rest, last=last), timeout=30)


async def answer_behind_mail(node: Node, gate: Gate, pid: PID, work: Any, receiver: PID) -> Any:
    """Have a process stop at the gate, send a message to another, and go on. The answer."""
    answers: list[Any] = []

    async def begin() -> None:
        answers.append(await node.call(pid, work, timeout=30))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(begin)
        await gate.wait_reached()
        node.send(receiver, "before")
        await wait_all_tasks_blocked()
        gate.opened.set()
    return answers[0]


def cause_of(error: BaseException | None) -> BaseException | None:
    """The first error of a chain of crashes."""
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    return error


async def test_a_call_inside_a_pod_is_answered_in_the_thread_of_the_caller() -> None:
    async with running_node() as node:
        one, other = await spawned(node, 2)

        assert await node.call(one, ask(other)) == await node.call(one, ask())
        assert node.info().dispatcher_threads == 1


async def test_mail_before_a_call_inside_a_pod_is_handled_before_it() -> None:
    gate = Gate()

    def tell_and_ask(me: Doer) -> Any:
        gate()
        me.send(other, "of the caller")
        me.send(other, "urgent", priority=Priority.HIGH)
        return me.call(other, "all")

    async with running_node() as node, trio.open_nursery() as nursery:
        one, other = await spawned(node, 2)
        answers: list[Any] = []

        async def begin() -> None:
            answers.append(await node.call(one, tell_and_ask, timeout=30))

        nursery.start_soon(begin)
        await gate.wait_reached()
        node.send(other, "of the node")
        await wait_all_tasks_blocked()
        gate.opened.set()
        await eventually(lambda: bool(answers))

        assert sorted(answers[0]) == ["of the caller", "of the node", "urgent"]
        assert answers[0].index("of the node") < answers[0].index("of the caller")


async def test_a_ring_of_calls_inside_a_pod_is_a_deadlock() -> None:
    async with running_node() as node:
        for length in (1, 2, 3):
            first, *others = await spawned(node, length)
            with pytest.raises(TargetDownError) as caught:
                await node.call(first, ask(*others, first))

            error = cause_of(caught.value)
            assert isinstance(error, DeadlockError)
            assert set(error.ring) == {first, *others}


async def test_a_process_outside_of_the_pod_may_call_back_into_it() -> None:
    async with running_node() as node:
        one, other = await spawned(node, 2)
        between = await node.spawn(AsyncDoer)
        elsewhere = await node.spawn(Doer, dispatcher=Threads("others"))

        threads = [
            await node.call(one, ask(*path)) for path in ((), (between, other), (elsewhere, other))
        ]

        assert len(set(threads)) == 1


@pytest.mark.parametrize("is_queued", [False, True])
async def test_a_process_between_may_wait_before_the_pod_does(is_queued: bool) -> None:
    gate = Gate()
    async with running_node() as node, trio.open_nursery() as nursery:
        one, other = await spawned(node, 2)
        between = await node.spawn(AsyncDoer)
        answers: list[Any] = []

        async def begin(pid: PID, request: Any) -> None:
            answers.append(await node.call(pid, request, timeout=30))

        def wait_and_ask(me: Doer) -> Any:
            gate()
            return me.call(between, ask(other) if not is_queued else "all", timeout=30)

        nursery.start_soon(begin, one, wait_and_ask)
        await gate.wait_reached()
        node.send(other, "before")
        if is_queued:
            nursery.start_soon(begin, between, ask(other))
        await wait_all_tasks_blocked()
        gate.opened.set()
        await eventually(lambda: len(answers) == 1 + is_queued)

        assert await heard(node, other) == ["before"]


async def test_a_callback_of_a_pod_may_spawn_into_the_pod() -> None:
    async with running_node() as node:
        (one,) = await spawned(node, 1)
        log: list[Any] = []

        child = await node.call(one, lambda me: me.spawn(Doer, log, dispatcher=POD))

        assert log == [("init", await node.call(one, ask()))]
        assert await node.call(one, ask(child)) == log[0][1]


async def test_a_callback_of_a_pod_may_spawn_into_the_pod_through_its_node() -> None:
    rings: list[Any] = []

    class Asking(Doer):
        def init(self) -> None:
            with pytest.raises(DeadlockError) as caught:
                self.wait_for(self.call(one, "all", timeout=10))
            rings.append(caught.value.ring)

    async with running_node() as node:
        (one,) = await spawned(node, 1)
        log: list[Any] = []

        child = await node.call(one, lambda me: me.node.spawn(Doer, log, dispatcher=POD))
        asking = await node.call(one, lambda me: me.node.spawn(Asking, dispatcher=POD))

        assert log == [("init", await node.call(one, ask()))]
        assert await node.call(one, ask(child)) == log[0][1]
        assert rings == [(asking, one, asking)]


async def test_the_crash_of_a_callee_in_the_pod_is_told_and_the_callee_restarts() -> None:
    def fail(_me: Any) -> None:
        raise Failed("the callee")

    def try_both(me: Doer) -> Any:
        with pytest.raises(TargetDownError) as caught:
            me.wait_for(me.call("callee", fail))
        return caught.value.reason

    spec = SupervisorSpec([ChildSpec("callee", Doer, register=True, dispatcher=POD)])
    async with running_node() as node:
        await node.spawn(Supervisor, spec)
        (one,) = await spawned(node, 1)

        reason = await node.call(one, try_both)

        assert isinstance(reason, Crashed)
        assert isinstance(reason.error, Failed)
        callee = node.service("callee")
        assert await callee.call(ask()) == await node.call(one, ask("callee"))


async def test_the_callback_of_the_callee_may_end_after_the_timeout_of_the_caller() -> None:
    gate = Gate()

    def try_it(me: Doer) -> str:
        with pytest.raises(CallTimeoutError):
            me.wait_for(me.call(other, gate, timeout=0.001))
        return "too late"

    async with running_node() as node, trio.open_nursery() as nursery:
        one, other = await spawned(node, 2)
        answers: list[Any] = []

        async def begin() -> None:
            answers.append(await node.call(one, try_it, timeout=30))

        nursery.start_soon(begin)
        await gate.wait_reached()
        callee = process_of(node, other)
        await eventually(lambda: process_of(node, one).waiting is callee)
        assert answers == []
        gate.opened.set()
        await eventually(lambda: bool(answers))

        assert answers == ["too late"]


async def test_tasks_of_a_callback_may_call_into_the_pod_at_the_same_time() -> None:
    gate, answers = Gate(), list[Any]()

    async def ask_all(me: Doer) -> None:
        async def note(pid: PID, request: Any) -> None:
            answers.append(await me.call(pid, request, timeout=30))

        async def begin_more() -> None:
            await gate.wait_reached()
            nursery.start_soon(note, third, "all")
            await note(outside, "all")
            await wait_all_tasks_blocked()
            gate.opened.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, other, gate)
            nursery.start_soon(begin_more)

    async with running_node() as node:
        one, other, third = await spawned(node, 3)
        outside = await node.spawn(AsyncDoer)

        await node.call(one, ask_all, timeout=30)

        assert answers == [[], "through", []]


@pytest.mark.parametrize("order", ["0", "00", "01", "0120"])
async def test_tasks_of_a_process_between_may_call_into_the_pod_at_once(order: str) -> None:
    threads: list[int] = []

    async def ask_all(me: AsyncDoer) -> int:
        async def note(pid: PID) -> None:
            threads.append(await me.call(pid, its_thread, timeout=30))

        async with trio.open_nursery() as nursery:
            for index in order:
                nursery.start_soon(note, others[int(index)])
        return len(threads)

    async with running_node() as node:
        one, *others = await spawned(node, 4)
        between = await node.spawn(AsyncDoer)
        here = await node.call(one, its_thread)

        assert await node.call(one, ask(between, last=ask_all), timeout=60) == len(order)

        assert threads == [here] * len(order)


async def test_a_killed_callee_in_the_pod_is_told_to_its_caller() -> None:
    waits = trio.Event()

    async def answer_never(_me: Any) -> None:
        waits.set()
        await trio.sleep_forever()

    def try_it(me: Doer) -> str:
        with pytest.raises(TargetDownError):
            me.wait_for(
                me.call(other, lambda it: it.call(outside, answer_never, timeout=None), timeout=30)
            )
        return "down"

    async with running_node() as node, trio.open_nursery() as nursery:
        one, other = await spawned(node, 2)
        outside = await node.spawn(AsyncDoer)
        answers: list[Any] = []

        async def begin() -> None:
            answers.append(await node.call(one, try_it, timeout=30))

        nursery.start_soon(begin)
        await waits.wait()
        node.kill(other)
        await eventually(lambda: bool(answers))

        assert answers == ["down"]
        assert await node.call(one, ask()) > 0
        node.kill(outside)


async def test_plain_mail_of_an_async_callee_is_handled_before_the_call() -> None:
    gate = Gate()

    class Mixed(Doer):
        async def handle_call(self, request: Any, caller: Caller) -> Any:
            return list(self.heard)

    def wait_and_ask(me: Doer) -> Any:
        gate()
        return me.call(mixed, "all", timeout=30)

    async with running_node() as node:
        (one,) = await spawned(node, 1)
        mixed = await node.spawn(Mixed, dispatcher=POD)

        assert await answer_behind_mail(node, gate, one, wait_and_ask, mixed) == ["before"]


async def test_a_call_may_be_forwarded_inside_the_pod() -> None:
    gate = Gate()

    class Passing(Doer):
        def handle_call(self, request: Any, caller: Caller) -> Any:
            return self.forward(third, request, caller)

    def wait_and_ask(me: Doer) -> Any:
        gate()
        return me.call(passing, "all", timeout=30)

    async with running_node() as node:
        one, third = await spawned(node, 2)
        passing = await node.spawn(Passing, dispatcher=POD)

        assert await answer_behind_mail(node, gate, one, wait_and_ask, third) == ["before"]


async def test_a_process_between_may_call_back_later() -> None:
    gate, may_go_on = Gate(), trio.Event()

    async def wait_here(_me: Any) -> None:
        await may_go_on.wait()

    def wait_and_ask(me: Doer) -> Any:
        gate()
        return me.call(between, ask(other), timeout=30)

    async with running_node() as node, trio.open_nursery() as nursery:
        one, other = await spawned(node, 2)
        between = await node.spawn(AsyncDoer)
        answers: list[Any] = []

        async def begin() -> None:
            answers.append(await node.call(one, wait_and_ask, timeout=30))

        node.send(between, wait_here)
        nursery.start_soon(begin)
        await gate.wait_reached()
        node.send(other, "before")
        await wait_all_tasks_blocked()
        gate.opened.set()
        await eventually(lambda: process_of(node, one).waiting is not None)
        await wait_all_tasks_blocked()
        may_go_on.set()
        await eventually(lambda: bool(answers))

        assert await heard(node, other) == ["before"]


async def test_the_caller_holds_the_thread_again_after_a_call_inside_the_pod() -> None:
    gate = Gate()

    def ask_and_block(me: Doer) -> None:
        me.wait_for(me.call(other, "all"))
        gate()

    async with running_node() as node:
        one, other = await spawned(node, 2)
        node.send(one, ask_and_block)
        await gate.wait_reached()

        assert process_of(node, other).waiting is process_of(node, one)
        gate.opened.set()


async def test_a_deferred_call_inside_the_pod_is_answered_by_a_later_callback() -> None:
    rings: list[Any] = []

    class Deferring(Doer):
        def handle_call(self, request: Any, caller: Caller) -> Any:
            self.caller = caller
            self.send(self.pid, "answer")
            return NO_REPLY

        def handle_message(self, message: Any, sender: Any) -> None:
            try:
                self.wait_for(self.call(one, "all", timeout=30))
            except DeadlockError as error:
                rings.append(error.ring)
            self.reply(self.caller, "later")

    async with running_node() as node:
        (one,) = await spawned(node, 1)
        deferring = await node.spawn(Deferring, dispatcher=POD)

        assert await node.call(one, lambda me: me.call(deferring, "question")) == "later"
        assert rings == [(deferring, one, deferring)]


async def test_other_processes_of_the_pod_wait_until_the_callback_returns() -> None:
    order: list[str] = []
    waits, may_answer = trio.Event(), trio.Event()

    async def answer_later(_me: Any) -> None:
        waits.set()
        await may_answer.wait()

    def wait_and_note(me: Doer) -> None:
        me.wait_for(me.call(outside, answer_later, timeout=30))
        order.append("caller")

    async with running_node() as node:
        one, other = await spawned(node, 2)
        outside = await node.spawn(AsyncDoer)
        node.send(one, wait_and_note)
        await waits.wait()
        node.send(other, lambda _me: order.append("other"))
        await wait_all_tasks_blocked()
        may_answer.set()
        await heard(node, other)

        assert order == ["caller", "other"]


async def test_trio_from_thread_works_in_a_callback_after_its_call_inside_the_pod() -> None:
    def ask_and_sleep(me: Doer) -> Any:
        me.wait_for(me.call(other, lambda _it: trio.from_thread.run(trio.sleep, 0)))
        trio.from_thread.run(trio.sleep, 0)
        return "slept"

    async with running_node() as node:
        one, other = await spawned(node, 2)

        assert await node.call(one, ask_and_sleep) == "slept"


async def test_calls_nest_in_a_pod_up_to_a_bound() -> None:
    async with running_node() as node:
        pids = await spawned(node, _DEPTH + 1)

        assert await node.call(pids[0], ask(*pids[1:-1])) > 0
        with pytest.raises(TargetDownError) as caught:
            await node.call(pids[0], ask(*pids[1:]))

        assert isinstance(cause_of(caught.value), DeadlockError)


async def test_spawns_nest_in_a_pod_up_to_a_bound() -> None:
    async with running_node() as node:
        pids = await spawned(node, _DEPTH)

        with pytest.raises(TargetDownError) as caught:
            path = ask(*pids[1:], last=lambda me: me.spawn(Doer, [], dispatcher=POD))
            await node.call(pids[0], path)

        assert isinstance(cause_of(caught.value), DeadlockError)


async def test_call_from_thread_in_a_pod_waits_as_the_process_that_calls() -> None:
    def ask_in_three_ways(me: Doer) -> list[Any]:
        return [
            me.node.call_from_thread(other, its_thread),
            me.node.service("supervised").call_from_thread(its_thread),
            me.service("supervised").call_from_thread(its_thread),
        ]

    def ask_oneself(me: Doer) -> None:
        me.node.call_from_thread(me.pid, "all", timeout=None)

    spec = SupervisorSpec([ChildSpec("supervised", Doer, register=True, dispatcher=POD)])
    async with running_node() as node:
        await node.spawn(Supervisor, spec)
        one, other = await spawned(node, 2)

        assert set(await node.call(one, ask_in_three_ways)) == {await node.call(one, ask())}
        with pytest.raises(TargetDownError) as caught:
            await node.call(one, ask_oneself)

        error = cause_of(caught.value)
        assert isinstance(error, DeadlockError)
        assert error.ring == (one, one)


async def test_the_function_of_a_task_in_a_pod_cannot_ask_the_pod() -> None:
    async with running_node() as node:
        (one,) = await spawned(node, 1)

        def ask_the_pod() -> Any:
            return node.call_from_thread(one, "all", timeout=10)

        task = node.run_task(ask_the_pod, dispatcher=POD)
        with pytest.raises(DeadlockError) as caught:
            await task

        assert caught.value.ring == (task.pid, one, task.pid)


async def told_by_a_start_in_a_held_pod(node: Node, holder: PID, kind: type[Doer]) -> str:
    """Start a child of `kind` while a callback of `holder` waits for it, and return the error."""
    child = ChildSpec("child", kind, dispatcher=POD, init_timeout=0.05)

    def supervise(me: Doer) -> str:
        try:
            me.wait_for(me.node.supervise([child]))
        except InitTimeoutError as error:
            return str(error)
        return "served"

    told: str = await node.call(holder, supervise, timeout=30)
    return told


async def test_a_start_inside_a_held_pod_fails_with_the_name_of_the_holder() -> None:
    async with running_node() as node:
        [one] = await spawned(node, 1)

        told = await told_by_a_start_in_a_held_pod(node, one, Doer)

        assert f"a callback of {process_of(node, one)} holds its thread" in told


class Waiting(Doer):
    async def init(self) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        await trio.sleep_forever()


async def test_an_async_start_that_waits_beside_a_held_pod_names_no_holder() -> None:
    async with running_node() as node:
        [one] = await spawned(node, 1)

        told = await told_by_a_start_in_a_held_pod(node, one, Waiting)

        assert "init of Waiting took more than 0.05 s" in told
        assert "holds its thread" not in told
