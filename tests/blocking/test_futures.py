"""`ask`: a call whose answer is a future, for other event loops."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from ergo_py import NO_REPLY, Actor, CallTimeoutError, NodeStoppedError, Reject, TargetDownError
from ergo_py._core.tables.pending_calls import Caller
from ergo_py.blocking import open_node
from ergo_py.blocking.loop_thread import OwnedNode


class Counter(Actor):
    def __init__(self) -> None:
        self.total = 0
        self.callers: list[Caller] = []

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case int():
                self.total += request
                return self.total
            case "reject":
                raise Reject(KeyError("no"))
            case "settled":
                return [caller.settled for caller in self.callers]
        self.callers.append(caller)
        return NO_REPLY


@pytest.fixture
def node() -> Iterator[OwnedNode]:
    with open_node("ask@localhost", log_output="none") as node:
        node.spawn(Counter, name="counter")
        yield node


def test_the_answer_comes_as_a_future(node: OwnedNode) -> None:
    assert node.ask("counter", 5).result(60) == 5
    assert node.ask("counter", 5).result(60) == 10


def test_asyncio_waits_for_many_answers_at_once(node: OwnedNode) -> None:
    async def ask_all() -> list[int]:
        futures = [asyncio.wrap_future(node.ask("counter", 1)) for _ in range(100)]
        answers: list[int] = await asyncio.gather(*futures)
        return answers

    assert sorted(asyncio.run(ask_all())) == list(range(1, 101))


def test_errors_of_a_call_are_errors_of_its_future(node: OwnedNode) -> None:
    with pytest.raises(KeyError):
        node.ask("counter", "reject").result(60)
    with pytest.raises(TargetDownError):
        node.ask("missing", 1).result(60)
    with pytest.raises(CallTimeoutError):
        node.ask("counter", "later", timeout=0.01).result(60)


def test_a_cancelled_future_abandons_its_call(node: OwnedNode) -> None:
    future = node.ask("counter", "later", timeout=None)
    while node.call("counter", "settled") != [False]:
        pass
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result(60)
    while node.call("counter", "settled") != [True]:
        pass


def test_a_node_that_has_stopped_is_not_asked() -> None:
    with open_node("ask@localhost", log_output="none") as node:
        pid = node.spawn(Counter)
        waiting = node.ask(pid, "later", timeout=None)
    with pytest.raises(TargetDownError):
        waiting.result(60)
    with pytest.raises(NodeStoppedError):
        node.ask(pid, 1)
