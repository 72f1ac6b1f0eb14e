"""Actor: its default callbacks, and which callback is called for which address."""

from dataclasses import dataclass
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import PID, Actor, Caller, Name, Normal, Priority, Reason, Reject, Request
from ergo_py.errors import UnhandledCallError
from tests.actors import Puppet
from tests.support import running_node


@dataclass(frozen=True)
class Add:
    amount: int


@dataclass(frozen=True)
class Total(Request[int]):
    """The sum so far."""


class PlainCounter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.total = start

    def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case Add(amount):
                self.total += amount

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Total():
                return self.total
        raise Reject(LookupError(f"no answer to {request!r}"))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"total": str(self.total)}


class AsyncCounter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.total = start

    async def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case Add(amount):
                await trio.lowlevel.checkpoint()
                self.total += amount

    async def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Total():
                await trio.lowlevel.checkpoint()
                return self.total
        raise Reject(LookupError(f"no answer to {request!r}"))

    async def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"total": str(self.total)}


@pytest.mark.parametrize("inline_calls", [True, False])
@pytest.mark.parametrize("counter", [PlainCounter, AsyncCounter])
async def test_an_actor_handles_messages_calls_rejections_and_inspections(
    autojump_clock: MockClock, counter: Any, inline_calls: bool
) -> None:
    async with running_node(inline_calls=inline_calls) as node:
        pid = await node.spawn(counter, 5, name="counter")

        node.send(pid, Add(3))
        node.send("counter", Add(4))
        total = await node.call(pid, Total(), timeout=1)
        with pytest.raises(LookupError, match="no answer to 'what'"):
            await node.call("counter", "what")
        seen = await node.inspect("counter")

        assert total == 12
        assert seen == {"total": "12"}
        assert await node.call(pid, Total()) == 12


# -- callbacks that are not overridden -------------------------------------------------------------


class Silent(Actor):
    """Overrides nothing."""


async def test_an_actor_without_callbacks_lives_and_ends(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Silent)
        child = await node.spawn(Puppet)

        seen = await node.inspect(pid)
        node.kill(child)
        node.send_exit(pid, Normal())
        reason = await node.wait_ended(pid)

        assert seen == {}
        assert reason == Normal()


async def test_an_unhandled_message_is_logged_with_its_type_and_counted(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_node(log_output="json", log_level="warning") as node:
        pid = await node.spawn(Silent, name="silent")

        node.send(pid, Add(3))
        await wait_all_tasks_blocked()
        logged = capsys.readouterr().err

        assert '"event": "unhandled message"' in logged
        assert '"message_type": "Add"' in logged
        assert str(pid) in logged
        assert "amount" not in logged
        assert node.process_info(pid).unhandled == 1


async def test_an_unhandled_call_is_rejected_at_once_and_counted(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Silent)

        with pytest.raises(
            UnhandledCallError, match=r"Silent at .* has no handle_call, so it cannot answer Total"
        ):
            await node.call(pid, Total(), timeout=None)

        assert trio.current_time() == 0
        assert node.process_info(pid).unhandled == 1
        assert pid in node.processes()


async def test_a_subclass_may_call_the_default_callbacks(autojump_clock: MockClock) -> None:
    class Partly(Actor):
        def handle_message(self, message: Any, sender: Any) -> Any:
            return super().handle_message(message, sender)

        def handle_call(self, request: Any, caller: Caller) -> object:
            return super().handle_call(request, caller)

    async with running_node() as node:
        pid = await node.spawn(Partly)
        await wait_all_tasks_blocked()

        node.send(pid, 1)
        with pytest.raises(UnhandledCallError):
            await node.call(pid, 1)

        assert node.process_info(pid).unhandled == 2


async def test_callbacks_may_be_inherited_and_mixed(autojump_clock: MockClock) -> None:
    order: list[str] = []

    class Logged:
        async def terminate(self, reason: Reason) -> None:
            order.append("terminate")

    class Base(Actor):
        def init(self) -> None:
            order.append("init")

        def handle_message(self, message: Any, sender: Any) -> None:
            order.append("message")

    class Mixed(Logged, Base):
        pass

    async with running_node() as node:
        pid = await node.spawn(Mixed)
        node.send(pid, 1)
        await wait_all_tasks_blocked()
        node.send_exit(pid, Normal())
        await wait_all_tasks_blocked()

    assert order == ["init", "message", "terminate"]


# -- by address ------------------------------------------------------------------------------------


@pytest.mark.parametrize("inline_calls", [True, False])
@pytest.mark.parametrize("priority", list(Priority), ids=lambda priority: priority.name)
async def test_each_kind_of_address_reaches_the_same_callback(
    autojump_clock: MockClock, inline_calls: bool, priority: Priority
) -> None:
    heard: list[Any] = []

    class Addressed(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            heard.append(message)

        def handle_call(self, request: Any, caller: Caller) -> object:
            return self.create_alias() if request == "alias" else request

    async with running_node(inline_calls=inline_calls) as node:
        pid = await node.spawn(Addressed, name="addressed", mailbox_size=50)
        alias = await node.call(pid, "alias")
        await wait_all_tasks_blocked()
        targets = [pid, "addressed", Name("addressed"), Name("addressed", node.name), alias]

        for number, target in enumerate(targets):
            node.send(target, number, priority=priority)
        await wait_all_tasks_blocked()
        answers = [await node.call(target, "?", priority=priority) for target in targets]

        assert heard == [0, 1, 2, 3, 4]
        assert answers == ["?"] * 5
