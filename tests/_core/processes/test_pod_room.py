"""Waits for room in the mailbox of a process that shares the thread of the sender: the thread runs
the callbacks of the receiver meanwhile.
"""

from typing import Any

import pytest
import trio

from ergo_py import (
    PID,
    Actor,
    ChildSpec,
    Node,
    Overflow,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
    Threads,
)
from ergo_py.errors import DeadlockError
from tests.dispatched import AsyncDoer, Doer, heard
from tests.meta.owner import eventually
from tests.support import running_node

POD = Threads("pod")
CHILD = ChildSpec(
    "receiver", Doer, register=True, dispatcher=POD, mailbox_size=1, overflow=Overflow.WAIT
)
COUNT = 5
"""More messages than the mailbox of a receiver has room for."""


class Keeping(Actor):
    """A receiver without ``handle_call``."""

    def __init__(self, kept: list[Any]) -> None:
        self.kept = kept

    def handle_message(self, message: Any, sender: Any) -> None:
        self.kept.append(message)


async def narrow(node: Node, behaviour: Any = Doer, *args: Any) -> PID:
    """A process of the pod whose mailbox has room for a single message."""
    return await node.spawn(
        behaviour, *args, dispatcher=POD, mailbox_size=1, overflow=Overflow.WAIT
    )


def ring_in(error: BaseException | None) -> tuple[object, ...]:
    """The ring of the first error in a chain of crashes."""
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    assert isinstance(error, DeadlockError)
    assert str(error).startswith("this send_wait would wait forever: ")
    return error.ring


def by_process(me: Doer, to: PID, message: object) -> None:
    assert me.wait_for(me.send_wait(to, message))


def by_node(me: Doer, to: PID, message: object) -> None:
    assert me.wait_for(me.node.send_wait(to, message))


def by_plain_send(me: Doer, to: PID, message: object) -> None:
    assert me.send(to, message)


def by_service(me: Doer, _to: PID, message: object) -> None:
    assert me.wait_for(me.service("receiver").send_wait(message))


def by_service_of_node(me: Doer, _to: PID, message: object) -> None:
    assert me.wait_for(me.node.service("receiver").send_wait(message))


@pytest.mark.parametrize(
    "send", [by_process, by_node, by_plain_send, by_service, by_service_of_node]
)
async def test_a_full_receiver_in_the_pod_makes_room_in_the_thread_of_the_sender(
    send: Any,
) -> None:
    def send_all(me: Doer) -> None:
        for number in range(COUNT):
            send(me, receiver, number)

    async with running_node() as node:
        await node.spawn(Supervisor, SupervisorSpec([CHILD]))
        one = await node.spawn(Doer, dispatcher=POD)
        receiver = node.whereis("receiver")
        assert receiver is not None

        await node.call(one, send_all, timeout=30)

        assert await heard(node, receiver) == list(range(COUNT))


async def test_a_receiver_without_handle_call_makes_room_too() -> None:
    kept: list[Any] = []

    def send_all(me: Doer) -> None:
        for number in range(COUNT):
            by_process(me, receiver, number)

    async with running_node() as node:
        one = await node.spawn(Doer, dispatcher=POD)
        receiver = await narrow(node, Keeping, kept)

        await node.call(one, send_all, timeout=30)
        await eventually(lambda: len(kept) == COUNT)

        assert kept == list(range(COUNT))


async def test_tasks_of_a_callback_may_wait_for_room_at_the_same_time() -> None:
    async def send_all(me: Doer) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(COUNT):
                nursery.start_soon(me.send_wait, receivers[number % 2], number)

    async with running_node() as node:
        one = await node.spawn(Doer, dispatcher=POD)
        receivers = [await narrow(node), await narrow(node)]

        await node.call(one, send_all, timeout=30)

        told = [await heard(node, receiver) for receiver in receivers]
        assert sorted(told[0] + told[1]) == list(range(COUNT))


async def test_a_wait_for_room_of_the_own_mailbox_is_a_deadlock() -> None:
    def send_all(me: Doer) -> None:
        for number in range(COUNT):
            by_process(me, me.pid, number)

    async with running_node() as node:
        one = await narrow(node)

        with pytest.raises(TargetDownError) as caught:
            await node.call(one, send_all, timeout=30)

        assert ring_in(caught.value) == (one, one)


@pytest.mark.parametrize("send", [by_process, by_plain_send])
async def test_a_wait_for_room_of_a_caller_in_the_pod_is_a_deadlock(send: Any) -> None:
    def send_all(me: Doer) -> None:
        for number in range(COUNT):
            send(me, one, number)

    async with running_node() as node:
        one = await narrow(node)
        other = await node.spawn(Doer, dispatcher=POD)

        with pytest.raises(TargetDownError) as caught:
            await node.call(one, lambda me: me.call(other, send_all, timeout=30), timeout=30)

        assert ring_in(caught.value) == (other, one, other)


async def test_the_function_of_a_task_in_a_pod_cannot_wait_for_room_in_the_pod() -> None:
    kept: list[Any] = []
    async with running_node() as node:
        receiver = await narrow(node, Keeping, kept)

        def send_all() -> None:
            for number in range(COUNT):
                node.send(receiver, number)

        task = node.run_task(send_all, dispatcher=POD)
        with pytest.raises(DeadlockError) as caught:
            await task

        assert ring_in(caught.value) == (task.pid, receiver, task.pid)


async def test_a_wait_for_room_of_a_caller_on_the_loop_is_a_deadlock() -> None:
    async def send_all(me: AsyncDoer) -> None:
        for number in range(COUNT):
            await me.send_wait(one, number)

    async with running_node() as node:
        one = await node.spawn(AsyncDoer, mailbox_size=1, overflow=Overflow.WAIT)
        other = await node.spawn(AsyncDoer)

        with pytest.raises(TargetDownError) as caught:
            await node.call(one, lambda me: me.call(other, send_all, timeout=30), timeout=30)

        assert ring_in(caught.value) == (other, one, other)
