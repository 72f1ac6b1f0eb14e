"""Obituaries: the facts that a node remembers of ended processes."""

import dataclasses
from collections import deque
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    Actor,
    BadInputError,
    ChildSpec,
    Crashed,
    Custom,
    InitError,
    Killed,
    MetaProcess,
    Normal,
    RestartLimit,
    Shutdown,
    TargetDownError,
)
from ergo_py._core.tables.obituaries import Obituaries, Obituary
from ergo_py._core.vocabulary.envelopes import MESSAGE
from ergo_py.errors import ProcessUnknownError
from tests.actors import Failed, Puppet, Recorder
from tests.meta.support import meta_of
from tests.support import crash_sites, kernel_of, process_of, running_node


class Bomb(Actor):
    def handle_message(self, message: Any, sender: Any) -> None:
        if message == "hold":
            return
        raise Failed(str(message))


class FailsInInit(Actor):
    async def init(self) -> None:
        raise Failed("no device")


class FailingReader(MetaProcess):
    async def start(self) -> None:
        raise Failed("the line is dead")


class Owner(Actor):
    async def init(self) -> None:
        await self.spawn_meta(FailingReader())


async def test_a_crash_is_remembered_with_its_callback_and_messages(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Bomb, name="bomb")
        for message in ("hold", "secret", 3, 4.0):
            node.send(pid, message)

        await node.wait_ended(pid)

        (one,) = node.crashes()
        assert (one.pid, one.name, one.behaviour) == (pid, "bomb", "Bomb")
        assert one.reason == Crashed(Failed("secret"))
        assert "raise Failed(str(message))" in one.traceback
        assert (one.callback, one.message_type, one.handled) == ("handle_message", "str", 2)
        assert (one.waiting, one.left) == (("int", "float"), 2)
        assert str(one) == f"{pid} 'bomb' Bomb in handle_message of str: crashed: Failed: secret"


async def test_processes_that_ended_well_do_not_push_out_failed_processes(
    autojump_clock: MockClock,
) -> None:
    async with running_node(obituaries=2) as node:
        bomb = await node.spawn(Bomb)
        node.send(bomb, "now")
        await node.wait_ended(bomb)
        others = [await node.spawn(Puppet) for _ in range(3)]
        for pid in others:
            node.send(pid, lambda me: me.stop())
            await node.wait_ended(pid)

        ended = node.ended()

        assert [one.pid for one in node.crashes()] == [bomb]
        assert [one.pid for one in ended] == [bomb, *others[1:]]
        assert [one.failed for one in ended] == [True, False, False]
        assert ended[-1].reason == Normal()
        assert ended[-1].traceback == ""
        assert node.ended(1) == ended[-1:]
        assert node.ended(0) == []


async def test_a_killed_process_and_a_process_that_was_asked_to_end_have_different_reasons(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        killed, asked = await node.spawn(Recorder), await node.spawn(Recorder)
        node.kill(killed)
        await node.wait_ended(killed)
        node.send_exit(asked)
        await node.wait_ended(asked)

        assert [(one.pid, one.reason, one.callback) for one in node.crashes()] == [
            (killed, Killed(), None)
        ]
        assert node.ended()[-1].reason == Shutdown()


async def test_a_process_that_failed_in_its_init_is_remembered_too(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        with pytest.raises(InitError):
            await node.spawn(FailsInInit)

        (one,) = node.crashes()
        assert (one.behaviour, one.callback) == ("FailsInInit", "init")
        assert "no device" in one.traceback


async def test_a_meta_process_that_failed_is_remembered_with_its_alias(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        owner = await node.spawn(Owner)
        for alias in node.metas():
            await node.wait_ended(alias)

        (one,) = node.crashes()
        assert (one.behaviour, one.name, one.callback, one.message_type) == (
            "FailingReader",
            None,
            "start",
            None,
        )
        assert one.pid != owner
        assert one.reason == Crashed(Failed("the line is dead"))


async def test_a_supervised_child_is_remembered_with_its_restarts(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        await node.supervise([ChildSpec("bomb", Bomb)], intensity=5)
        service = node.service("bomb")
        for number in range(3):
            await service.send_wait(number)
            pid = node.whereis("bomb")
            if pid is not None:
                await node.wait_ended(pid)

        assert [one.restarts for one in node.crashes()] == [0, 1, 2]


async def test_a_node_may_keep_no_obituaries_and_refuses_invalid_numbers(
    autojump_clock: MockClock,
) -> None:
    async with running_node(obituaries=0) as node:
        pid = await node.spawn(Recorder)
        node.kill(pid)
        await node.wait_ended(pid)

        assert node.crashes() == []
        with pytest.raises(BadInputError, match="count"):
            node.crashes(-1)
    with pytest.raises(BadInputError, match="obituaries"):
        async with running_node(obituaries=-1):
            pass


class Asked(Actor):
    def handle_call(self, request: Any, caller: Any) -> object:
        raise Failed("asked too much")


@pytest.mark.parametrize("inline", [True, False])
async def test_a_crash_in_a_call_is_remembered_where_it_was(
    inline: bool, autojump_clock: MockClock
) -> None:
    async with running_node(inline_calls=inline) as node:
        pid = await node.spawn(Asked)
        with pytest.raises(TargetDownError):
            await node.call(pid, 5)
        await wait_all_tasks_blocked()

        (one,) = node.crashes()

        assert (one.callback, one.message_type) == ("handle_call", "int")


async def test_the_types_of_the_last_messages_are_remembered_if_the_node_is_configured_to(
    autojump_clock: MockClock,
) -> None:
    async with running_node(recent_messages=3) as node:
        pid = await node.spawn(Puppet)

        def fail(me: Puppet) -> None:
            raise Failed("now")

        for message in ("a", 1, 2.5, "b"):
            node.send(pid, message)
        await node.call(pid, b"asked")
        state = await node.get_state(pid)
        node.send(pid, fail)
        await node.wait_ended(pid)

        assert node.crashes()[0].recent == ("str", "bytes", "function")
        assert state == {"heard": ["a", 1, 2.5, "b"]}
        assert kernel_of(node).watches == {}


async def test_wait_ended_returns_the_reason_of_an_ended_process_while_it_is_remembered(
    autojump_clock: MockClock,
) -> None:
    async with running_node(obituaries=2) as node:
        pids = [await node.spawn(Puppet, name=f"puppet {number}") for number in range(4)]
        node.kill(pids[0])
        for pid in pids[1:]:
            node.send_exit(pid)
            await wait_all_tasks_blocked()

        assert await node.wait_ended(pids[0]) == Killed()
        assert await node.wait_ended(pids[2]) == await node.wait_ended(pids[3]) == Shutdown()
        # A name belongs to its present holder, and processes before the last two are forgotten.
        for unknown in (pids[1], "puppet 3", node.pid):
            with pytest.raises(ProcessUnknownError):
                await node.wait_ended(unknown)


def test_the_traceback_of_a_supervisor_that_gave_up_is_the_traceback_of_its_child() -> None:
    crashed = Crashed(Failed("of the child"))
    obituary = Obituary(
        **{
            **{field.name: None for field in dataclasses.fields(Obituary)},
            "reason": RestartLimit("child", 3, 5.0, crashed),
        }  # type: ignore[arg-type]
    )

    assert obituary.traceback == crashed.traceback


class CountingLane(deque[Any]):
    """A lane that counts how many of its envelopes are looked at, and cannot be copied or walked
    through.
    """

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)

    def __iter__(self) -> NoReturn:
        raise AssertionError("a walk through the whole lane")

    copy = __copy__ = __iter__


async def test_a_bounded_number_of_unhandled_messages_is_inspected() -> None:
    async with running_node() as node:
        pid = await node.spawn(Bomb)
        process = process_of(node, pid)
        box = process.mailbox
        lane = box.main = CountingLane((MESSAGE, pid, None, number) for number in range(1_000))

        process.reason = Killed()
        kernel_of(node).lifetimes.obituaries.note(process, process.handled, process.handling)

        (one,) = node.crashes()
        assert (one.left, one.waiting) == (1_000, ("int",) * 5)
        assert lane.looks == 5
        process.reason, box.main = None, process.main


async def test_a_thread_may_take_messages_while_unhandled_messages_are_inspected() -> None:
    class Emptied(CountingLane):
        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            self.clear()
            return found

    async with running_node() as node:
        pid = await node.spawn(Bomb)
        process = process_of(node, pid)
        box = process.mailbox
        box.main = Emptied((MESSAGE, pid, None, number) for number in range(3))

        process.reason = Killed()
        kernel_of(node).lifetimes.obituaries.note(process, process.handled, process.handling)

        (one,) = node.crashes()
        assert one.waiting == ("int",)
        process.reason, box.main = None, process.main


class Bridge(MetaProcess):
    async def start(self) -> None:
        await trio.sleep_forever()

    async def handle_message(self, message: Any, sender: Any) -> None:
        if message == "crash":
            raise Failed("on purpose")
        # As a connection does after its peer has gone.
        meta_of(self).ending.excuse()
        self.stop(message)


async def test_meta_processes_ended_by_others_do_not_push_out_failed_meta_processes() -> None:
    async with running_node(obituaries=2) as node:
        owner = await node.spawn(Puppet)
        bomb = await node.spawn(Bomb)
        node.send(bomb, "crash")
        await node.wait_ended(bomb)
        lost = [await node.call(owner, lambda me: me.spawn_meta(Bridge())) for _ in range(3)]
        for alias in lost:
            node.send(alias, "reset by the peer")
            await node.wait_ended(alias)

        assert [one.pid for one in node.crashes()] == [bomb]
        assert [one.pid for one in node.ended()] == [bomb, *lost[1:]]
        assert node.ended()[-1].reason == Custom("reset by the peer")
        assert await node.wait_ended(lost[-1]) == Custom("reset by the peer")


async def test_meta_processes_of_an_owner_do_not_push_out_its_crash() -> None:
    async with running_node(obituaries=2) as node:
        owner = await node.spawn(Puppet)
        bridges = [await node.call(owner, lambda me: me.spawn_meta(Bridge())) for _ in range(5)]

        node.send(owner, lambda me: 1 / 0)
        await node.wait_ended(owner)

        assert [one.pid for one in node.crashes()] == [owner]
        assert {one.pid for one in node.ended()} == {owner, *bridges[:2]}


async def test_the_crash_of_a_blameless_meta_process_counts() -> None:
    async with running_node() as node:
        owner = await node.spawn(Puppet)
        bridge = Bridge()
        alias = await node.call(owner, lambda me: me.spawn_meta(bridge))

        meta_of(bridge).ending.excuse()
        node.send(alias, "crash")
        await node.wait_ended(alias)

        assert [one.pid for one in node.crashes()] == [alias]


def test_an_error_during_an_end_does_not_count_as_its_cause() -> None:
    obituaries = Obituaries(10)
    ending = SimpleNamespace(reason=Killed(), id=1)

    obituaries.note_crash(ending, "handle_message", "str")

    assert crash_sites(obituaries) == {}
