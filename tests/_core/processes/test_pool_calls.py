"""Calls between processes that share several threads: once all threads wait, they run the callbacks
of the processes that are waited for.
"""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
import trio

from ergo_py import PID, CallTimeoutError, Node, TargetDownError, Threads
from ergo_py._core.runtime.dispatcher_threads import _DEPTH
from ergo_py.errors import DeadlockError
from tests.actors import Failed
from tests.dispatched import Doer, Gate
from tests.meta.owner import eventually
from tests.support import process_of, running_node

PAIR = Threads("pool", 2)
EACH = pytest.mark.parametrize("where", [Threads("pod"), PAIR], ids=str)


async def spawned(node: Node, count: int, where: Threads = PAIR) -> list[PID]:
    return [await node.spawn(Doer, dispatcher=where) for _ in range(count)]


def threads_of(*path: Any) -> Any:
    """A function that has a process ask the next process of the path, and so on. The answer is the
    list of their threads.
    """

    def answer(me: Doer) -> list[int]:
        here = threading.get_ident()
        if not path:
            return [here]
        first, *rest = path
        return [here, *me.wait_for(me.call(first, threads_of(*rest), timeout=30))]

    return answer


def first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


@asynccontextmanager
async def waiting_beside(node: Node) -> AsyncIterator[None]:
    """A callback waits in one of the two threads, for nothing that this pool could do."""
    waits, over = trio.Event(), trio.Event()

    async def wait() -> None:
        waits.set()
        await over.wait()

    (beside,) = await spawned(node, 1)
    node.send(beside, lambda me: me.wait_for(wait()))
    await waits.wait()
    try:
        yield
    finally:
        over.set()


@pytest.mark.parametrize("size", [2, 3])
async def test_a_chain_of_calls_is_longer_than_the_pool_has_threads(size: int) -> None:
    async with running_node() as node:
        pids = await spawned(node, size + 3, Threads("pool", size))

        threads = await node.call(pids[0], threads_of(*pids[1:]), timeout=30)

        # Each in a free thread, as long as there is one; then in the thread of the direct caller.
        assert len(set(threads[:size])) == size
        assert threads[size:] == [threads[size - 1]] * 3
        assert node.info().dispatcher_threads == size


async def test_a_ring_of_calls_in_a_pool_is_a_deadlock() -> None:
    async with running_node() as node:
        for length in (1, 2, 3, 4):
            first, *others = await spawned(node, length)
            with pytest.raises(TargetDownError) as caught:
                await node.call(first, threads_of(*others, first), timeout=30)

            error = first_cause(caught.value)
            assert isinstance(error, DeadlockError)
            assert set(error.ring) == {first, *others}


async def test_a_callback_that_was_queued_is_served_once_the_last_thread_waits() -> None:
    gate, over = Gate(), trio.Event()

    def block_and_wait(me: Doer) -> None:
        gate()
        me.wait_for(over.wait())

    async with running_node() as node, trio.open_nursery() as nursery:
        busy, one, other = await spawned(node, 3)
        answers: list[Any] = []

        async def begin() -> None:
            answers.extend(await node.call(one, threads_of(other), timeout=30))

        node.send(busy, block_and_wait)
        await gate.wait_reached()
        nursery.start_soon(begin)
        await eventually(lambda: process_of(node, other).job is not None)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        gate.opened.set()
        await eventually(lambda: bool(answers))
        over.set()

        assert len(set(answers)) == 1


async def test_a_call_in_a_pool_with_a_free_thread_ends_at_its_timeout() -> None:
    gate = Gate()

    def try_it(me: Doer) -> bool:
        with pytest.raises(CallTimeoutError):
            me.wait_for(me.call(other, gate, timeout=0.001))
        return gate.opened.is_set()

    async with running_node() as node:
        one, other = await spawned(node, 2)

        # The callee blocks in the other thread, and the caller does not wait for it.
        assert await node.call(one, try_it, timeout=30) is False
        gate.opened.set()


@EACH
async def test_a_callee_above_its_caller_cannot_ask_it_after_its_timeout(where: Threads) -> None:
    gate, rings = Gate(), list[Any]()

    def ask_back(me: Doer) -> None:
        gate()
        with pytest.raises(DeadlockError) as caught:
            me.wait_for(me.call(one, "all", timeout=30))
        rings.append(caught.value.ring)

    def try_it(me: Doer) -> str:
        with pytest.raises(CallTimeoutError):
            me.wait_for(me.call(other, ask_back, timeout=0.001))
        return "too late"

    async with (
        running_node() as node,
        waiting_beside(node) if where == PAIR else nullcontext(),
        trio.open_nursery() as nursery,
    ):
        one, other = await spawned(node, 2, where)
        answers: list[Any] = []

        async def begin() -> None:
            answers.append(await node.call(one, try_it, timeout=30))

        nursery.start_soon(begin)
        await gate.wait_reached()
        callee = process_of(node, other)
        await eventually(lambda: process_of(node, one).waiting is callee)
        gate.opened.set()
        await eventually(lambda: bool(answers))

        assert answers == ["too late"]
        assert rings == [(other, one, other)]


@EACH
async def test_a_caller_with_an_answer_still_waits_for_the_callback_above_it(
    where: Threads,
) -> None:
    gate = Gate()
    async with (
        running_node() as node,
        waiting_beside(node) if where == PAIR else nullcontext(),
        trio.open_nursery() as nursery,
    ):
        one, other = await spawned(node, 2, where)

        async def begin() -> None:
            await node.call(one, lambda me: me.call(other, gate, timeout=None), timeout=30)

        nursery.start_soon(begin)
        await gate.wait_reached()
        caller, callee = process_of(node, one), process_of(node, other)
        call: Any = caller.waiting

        # The task of the caller has not run since.
        call.settle("early", None)
        assert caller.waiting is callee

        gate.opened.set()
        await eventually(lambda: caller.waiting is None)


async def test_a_crash_in_a_pool_of_waiting_threads_is_told_to_the_caller() -> None:
    def fail(_me: Any) -> None:
        raise Failed("the callee")

    async with running_node() as node, waiting_beside(node):
        one, other = await spawned(node, 2)

        with pytest.raises(TargetDownError) as caught:
            await node.call(one, lambda me: me.call(other, fail, timeout=30), timeout=30)

        assert isinstance(first_cause(caught.value), Failed)


async def test_calls_nest_in_each_thread_of_a_pool_up_to_a_bound() -> None:
    async with running_node() as node:
        # The first waits in a thread, and the others in the other thread.
        pids = await spawned(node, _DEPTH + 2)

        assert len(await node.call(pids[1], threads_of(*pids[2:]), timeout=30)) == _DEPTH + 1
        with pytest.raises(TargetDownError) as caught:
            await node.call(pids[0], threads_of(*pids[1:]), timeout=30)

        error = first_cause(caught.value)
        assert isinstance(error, DeadlockError)
        assert error.ring == (pids[-2], pids[-1], pids[-2])
