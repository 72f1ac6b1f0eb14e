"""`TargetDownError.begun`: whether a callback has begun to handle the request of a failed call."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import PID, Actor, Caller, Node, Overflow, StateMachine, TargetDownError
from ergo_py.state_machine import state
from tests._core.messaging.servers import AsyncServer, Way, asleep, crash, echo, forward_to, keep
from tests.network.pairs import TYPES, Total, make_network, two_nodes
from tests.support import running_node


async def wait_for_ever(me: Any, caller: Caller) -> None:
    await trio.sleep_forever()


async def begun(node: Node, to: Any, request: object) -> bool:
    """Whether the request of a call, which fails, has begun."""
    with pytest.raises(TargetDownError) as caught:
        await node.call(to, request, timeout=None)
    return caught.value.begun


def killing(node: Node, pid: PID) -> Callable[[], Awaitable[None]]:
    """Kills a process when nothing else can go on."""

    async def kill() -> None:
        await wait_all_tasks_blocked()
        node.kill(pid)

    return kill


async def begun_at_the_end(
    node: Node, to: Any, requests: list[Any], end: Callable[[], Awaitable[None]]
) -> list[bool]:
    """The same for requests that are under way when the callee ends, in the order of requests."""
    results: dict[int, bool] = {}

    async def call(number: int, request: object) -> None:
        results[number] = await begun(node, to, request)

    async with trio.open_nursery() as nursery:
        for number, request in enumerate(requests):
            nursery.start_soon(call, number, request)
            await wait_all_tasks_blocked()
        await end()
    return [results[number] for number in range(len(requests))]


async def test_a_call_to_a_process_that_does_not_exist_has_not_begun(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        ended = await asleep(node, way.server)
        node.kill(ended)
        await wait_all_tasks_blocked()

        assert not await begun(node, "nobody", echo(1))
        assert not await begun(node, ended, echo(1))


async def test_a_call_with_a_crashing_handler_has_begun(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        assert await begun(node, await asleep(node, way.server), crash)


async def test_queued_calls_of_a_killed_process_have_not_begun(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        server = await asleep(node, AsyncServer)

        results = await begun_at_the_end(
            node,
            server,
            [keep, wait_for_ever, echo(1), echo(2)],
            killing(node, server),
        )

        assert results == [True, True, False, False]


async def test_queued_calls_of_a_crashed_process_have_not_begun(
    autojump_clock: MockClock,
) -> None:
    now = trio.Event()

    async def crash_later(me: Any, caller: Caller) -> None:
        await now.wait()
        crash(me, caller)

    async def release() -> None:
        now.set()

    async with running_node() as node:
        server = await asleep(node, AsyncServer)

        results = await begun_at_the_end(
            node, server, [keep, crash_later, echo(1), echo(2)], release
        )

        assert results == [True, True, False, False]


async def test_a_call_that_waits_for_room_has_not_begun(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        server = await asleep(node, AsyncServer, mailbox_size=1, overflow=Overflow.WAIT)

        results = await begun_at_the_end(
            node,
            server,
            [wait_for_ever, echo(1), echo(2)],
            killing(node, server),
        )

        assert results == [True, False, False]


async def test_a_forwarded_call_has_begun_also_if_its_new_callee_has_not(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)

        assert await begun(node, server, forward_to("nobody", echo(1)))


class Later(StateMachine):
    """Postpones calls until it is told to handle them, and then waits in the first."""

    @state
    def closed(self, message: object, sender: object) -> None:
        if message == "open":
            self.become("opened")
        else:
            self.postpone()

    @state
    async def opened(self, message: object, sender: object) -> None:
        await trio.sleep_forever()


@pytest.mark.parametrize("messages", [[], ["open"]], ids=["put aside", "queued again"])
async def test_a_postponed_call_has_begun(autojump_clock: MockClock, messages: list[str]) -> None:
    async with running_node() as node:
        machine = await asleep(node, Later)

        async def end() -> None:
            for message in messages:
                node.send(machine, message)
            await killing(node, machine)()

        results = await begun_at_the_end(node, machine, ["a", "b"], end)

        assert results == [True, True]


class Remote(Actor):
    """Is called from another node."""

    async def handle_call(self, request: object, caller: Caller) -> object:
        await trio.sleep_forever()


async def test_the_caller_on_another_node_learns_whether_its_call_has_begun(
    autojump_clock: MockClock,
) -> None:
    async with two_nodes(make_network("memory", types=TYPES)) as (a, b):
        server = await b.spawn(Remote)

        results = await begun_at_the_end(a, server, [Total(), Total()], killing(b, server))
        gone = await begun(a, server, Total())

        assert (results, gone) == ([True, False], False)
