"""Actor: its default callbacks, and which callback is called for which address."""

from dataclasses import dataclass
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Alias,
    Caller,
    Name,
    Normal,
    Priority,
    Reason,
    Reject,
    Request,
    TargetDownError,
    UnhandledCallError,
)
from tests.support import Failed, Puppet, running_node


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


class Split(Actor):
    """Notes which callback was called, and with which address."""

    split_handle = True

    def __init__(self, log: list[Any]) -> None:
        self.log_ = log

    def handle_message(self, message: Any, sender: Any) -> None:
        self.log_.append(("pid", None, message))

    def handle_message_name(self, name: str, message: Any, sender: Any) -> None:
        self.log_.append(("name", name, message))

    async def handle_message_alias(self, alias: Alias, message: Any, sender: Any) -> None:
        self.log_.append(("alias", alias, message))

    def handle_call(self, request: Any, caller: Caller) -> object:
        return self.create_alias() if request == "alias" else ("pid", None, request)

    async def handle_call_name(self, name: str, request: Any, caller: Caller) -> object:
        return ("name", name, request)

    def handle_call_alias(self, alias: Alias, request: Any, caller: Caller) -> object:
        return ("alias", alias, request)


@pytest.mark.parametrize("inline_calls", [True, False])
@pytest.mark.parametrize("priority", list(Priority), ids=lambda priority: priority.name)
async def test_with_the_split_each_kind_of_address_has_its_callback(
    autojump_clock: MockClock, inline_calls: bool, priority: Priority
) -> None:
    log: list[Any] = []
    async with running_node(inline_calls=inline_calls) as node:
        pid = await node.spawn(Split, log, name="split", mailbox_size=50)
        alias = await node.call(pid, "alias")
        await wait_all_tasks_blocked()
        targets = [pid, "split", Name("split"), Name("split", node.name), alias]

        for number, target in enumerate(targets):
            node.send(target, number, priority=priority)
        await wait_all_tasks_blocked()
        answers = [await node.call(target, "?", priority=priority) for target in targets]

        addresses = [
            ("pid", None),
            ("name", "split"),
            ("name", "split"),
            ("name", "split"),
            ("alias", alias),
        ]
        assert log == [(kind, address, number) for number, (kind, address) in enumerate(addresses)]
        assert answers == [(kind, address, "?") for kind, address in addresses]


async def test_without_the_split_every_address_means_the_same_callback(
    autojump_clock: MockClock,
) -> None:
    log: list[Any] = []

    class Whole(Split):
        split_handle = False

    async with running_node() as node:
        pid = await node.spawn(Whole, log, name="whole")
        alias = await node.call(pid, "alias")

        for target in (pid, "whole", alias):
            node.send(target, 1)
        answers = [await node.call(target, "?") for target in (pid, "whole", alias)]

        assert log == [("pid", None, 1)] * 3
        assert answers == [("pid", None, "?")] * 3


async def test_a_split_without_a_callback_for_an_address_uses_the_general_callback(
    autojump_clock: MockClock,
) -> None:
    log: list[Any] = []

    class NamesOnly(Actor):
        split_handle = True

        async def handle_message(self, message: Any, sender: Any) -> None:
            log.append(("general", message))

        def handle_message_name(self, name: str, message: Any, sender: Any) -> None:
            log.append((name, message))

        async def handle_call(self, request: Any, caller: Caller) -> object:
            return self.create_alias() if request == "alias" else "general"

    async with running_node() as node:
        pid = await node.spawn(NamesOnly, name="names")
        alias = await node.call(pid, "alias")

        node.send("names", 1)
        node.send(alias, 2)
        answers = [await node.call("names", "?"), await node.call(alias, "?")]

        assert log == [("names", 1), ("general", 2)]
        assert answers == ["general", "general"]


async def test_split_callbacks_reject_defer_and_crash_like_the_others(
    autojump_clock: MockClock,
) -> None:
    callers: list[Caller] = []

    class Answering(Actor):
        split_handle = True

        def handle_call_name(self, name: str, request: Any, caller: Caller) -> object:
            if request == "reject":
                raise Reject(LookupError("refused"))
            if request == "crash":
                raise Failed("on purpose")
            callers.append(caller)
            return NO_REPLY

    async with running_node() as node:
        await node.spawn(Answering, name="split")
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await node.call("split", "defer"))

        with pytest.raises(LookupError, match="refused"):
            await node.call("split", "reject")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            node.reply(callers[0], "later")
        with pytest.raises(TargetDownError) as caught:
            await node.call("split", "crash")

        assert answers == ["later"]
        assert isinstance(caught.value.__cause__, Failed)


async def test_a_forwarded_message_has_the_address_of_its_new_receiver(
    autojump_clock: MockClock,
) -> None:
    log: list[Any] = []

    class Between(Actor):
        def __init__(self, to: Any) -> None:
            self.to = to

        def handle_message(self, message: Any, sender: Any) -> None:
            self.forward(self.to, message, sender)

        def handle_call(self, request: Any, caller: Caller) -> object:
            return self.forward(self.to, request, caller)

    async with running_node() as node:
        split = await node.spawn(Split, log, name="split")
        await node.spawn(Between, split, name="to the pid")
        by_pid = await node.spawn(Between, "split")

        node.send("to the pid", 1)
        node.send(by_pid, 2)
        answers = [await node.call("to the pid", "?"), await node.call(by_pid, "?")]
        await wait_all_tasks_blocked()

        assert sorted(log, key=str) == [("name", "split", 2), ("pid", None, 1)]
        assert answers == [("pid", None, "?"), ("name", "split", "?")]
