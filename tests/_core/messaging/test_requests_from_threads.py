"""Calls whose answers are futures, where they go wrong."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py._core.messaging.requests import ask
from ergo_py._core.vocabulary.envelopes import Priority
from tests.actors import Recorder
from tests.support import kernel_of, running_node


class Calls:
    """Notes the calls, and answers none."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.begun: list[Any] = []

    def note_thread(self, caller: Any) -> None:
        """Traces are none of this test's."""

    def begin(self, caller: Any, priority: Priority) -> None:
        if self.error is not None:
            raise self.error
        self.begun.append(caller)


def ask_through(calls: Any, node: Any, to: Any) -> Any:
    kernel = kernel_of(node)
    return ask(calls, kernel.router, kernel.pid, to, "request", None, Priority.NORMAL)


async def test_a_future_that_is_cancelled_at_once_makes_no_call() -> None:
    calls = Calls()
    async with running_node() as node:
        future = ask_through(calls, node, await node.spawn(Recorder))
        assert future.cancel()
        await wait_all_tasks_blocked()

        assert calls.begun == []


async def test_a_call_that_cannot_begin_fails_its_future() -> None:
    async with running_node() as node:
        future = ask_through(Calls(ValueError("no")), node, await node.spawn(Recorder))
        await wait_all_tasks_blocked()

        with pytest.raises(ValueError, match="no"):
            await trio.to_thread.run_sync(future.result, 10)


async def test_a_future_is_cancelled_after_the_end_of_its_node() -> None:
    calls = Calls()
    async with running_node() as node:
        future = ask_through(calls, node, await node.spawn(Recorder))
        await wait_all_tasks_blocked()
    assert len(calls.begun) == 1

    assert future.cancel()


async def test_an_answer_to_a_cancelled_future_is_dropped() -> None:
    calls = Calls()
    async with running_node() as node:
        future = ask_through(calls, node, await node.spawn(Recorder))
        await wait_all_tasks_blocked()
        assert future.cancel()

        assert calls.begun[0].settle("answer", None)
        assert future.cancelled()
