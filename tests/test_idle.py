"""Idle timeouts: an actor is told once when nothing has arrived for a while."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ergo_py import Actor, BadInputError, Caller, Normal, Published, Threads, ask, exposed
from ergo_py.testing import Alone
from tests.support import running_node


class Session(Actor):
    def __init__(self, seconds: float | None = 10.0) -> None:
        self.seconds = seconds
        self.idle: list[float] = []

    def init(self) -> None:
        self.set_idle_timeout(self.seconds)

    def handle_message(self, message: Any, sender: Any) -> Any:
        if callable(message):
            message(self)

    def handle_call(self, request: Any, caller: Caller) -> object:
        return list(self.idle)

    def handle_idle(self) -> Any:
        self.idle.append(trio.current_time())

    @exposed
    def touch(self) -> None: ...


class AsyncSession(Session):
    async def handle_message(self, message: Any, sender: Any) -> None:
        if isinstance(message, float):
            await trio.sleep(message)

    async def handle_idle(self) -> None:
        await trio.lowlevel.checkpoint()
        self.idle.append(trio.current_time())


class AsyncIdle(Session):
    async def handle_idle(self) -> None:
        await trio.lowlevel.checkpoint()
        self.idle.append(trio.current_time())


@pytest.mark.parametrize("cls", [Session, AsyncSession, AsyncIdle])
async def test_an_idle_actor_is_told_once_until_the_next_message(
    cls: type[Session], autojump_clock: MockClock
) -> None:
    async with running_node(limit=1e6) as node:
        began = trio.current_time()
        pid = await node.spawn(cls)
        for _ in range(4):
            await trio.sleep(6)
            node.send(pid, "busy")
        await trio.sleep(100)
        first = await node.call(pid, "all")
        await trio.sleep(100)
        await node.call(pid, ask(Session.touch))
        second = await node.call(pid, "all")

    assert [moment - began for moment in first] == pytest.approx([34.0])
    assert [moment - began for moment in second] == pytest.approx([34.0, 134.0])


async def test_calls_methods_and_events_count_as_activity(autojump_clock: MockClock) -> None:
    class Listening(Session):
        def init(self) -> None:
            super().init()
            self.subscribe("news")

        def handle_event(self, event: Published) -> None: ...

    async with running_node(limit=1e6) as node:
        node.open_topic("news")
        pid = await node.spawn(Listening)
        for _ in range(3):
            await trio.sleep(6)
            await node.call(pid, "all")
            await trio.sleep(6)
            node.publish("news", 1)
            await trio.sleep(6)
            await node.call(pid, ask(Session.touch))

        assert await node.call(pid, "all") == []


async def test_the_time_counts_from_the_end_of_a_long_callback(autojump_clock: MockClock) -> None:
    async with running_node(limit=1e6) as node:
        began = trio.current_time()
        pid = await node.spawn(AsyncSession)
        node.send(pid, 25.0)
        await trio.sleep(100)
        idle = await node.call(pid, "all")

    assert [moment - began for moment in idle] == pytest.approx([35.0])


async def test_an_idle_actor_may_stop(autojump_clock: MockClock) -> None:
    class Ending(Session):
        def handle_idle(self) -> None:
            self.stop()

    async with running_node(limit=1e6) as node:
        pid = await node.spawn(Ending)

        assert await node.wait_ended(pid) == Normal()
        assert node.dead_letters() == []


async def test_the_timeout_can_be_changed_and_switched_off(autojump_clock: MockClock) -> None:
    async with running_node(limit=1e6) as node:
        began = trio.current_time()
        off, changed = await node.spawn(Session), await node.spawn(Session)
        node.send(off, lambda me: me.set_idle_timeout(None))
        node.send(changed, lambda me: me.set_idle_timeout(40.0))
        await trio.sleep(100)
        assert await node.call(off, "all") == []
        idle = await node.call(changed, "all")

    assert [moment - began for moment in idle] == pytest.approx([40.0])


async def test_an_actor_with_a_thread_has_an_idle_timeout() -> None:
    class InThread(Actor):
        def init(self) -> None:
            self.set_idle_timeout(0.01)

        def handle_idle(self) -> None:
            self.stop()

    async with running_node() as node:
        pid = await node.spawn(InThread, dispatcher=Threads())

        assert await node.wait_ended(pid) == Normal()


@pytest.mark.parametrize("seconds", [0, -1, "soon", True])
async def test_a_wrong_timeout_is_refused(seconds: Any) -> None:
    alone = Alone(Session, seconds)
    with pytest.raises(BadInputError, match="idle timeout"):
        await alone.init()


async def test_a_behaviour_alone_records_its_idle_timeout() -> None:
    alone = Alone(Session, 5.0)
    await alone.init()

    assert alone.idle_timeout == 5.0
