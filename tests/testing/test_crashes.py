"""Crashes: expected crashes are waited for, the others are noted."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ergo_py import Actor, BadInputError, Crashed, MetaProcess
from ergo_py.testing import expect_crash
from ergo_py.testing.crashes import CrashLog, watch_crashes
from tests.actors import Puppet
from tests.support import kernel_of, running_node


class Fragile(Actor):
    async def handle_message(self, message: Any, sender: Any) -> None:
        await trio.sleep(0.5)
        raise message


async def test_a_crash_in_time_is_handed_to_the_test(autojump_clock: MockClock) -> None:
    error = ValueError("no such luck")
    async with running_node() as node:
        pid = await node.spawn(Fragile)

        async with expect_crash(node, ValueError, match="such") as expected:
            node.send(pid, error)

        log = watch_crashes(node)

    [crash] = expected.crashes
    assert (crash.pid, crash.behaviour) == (pid, "Fragile")
    assert isinstance(crash.reason, Crashed)
    assert expected.errors == [error]
    assert log.unexpected == []


@pytest.mark.parametrize(
    "error, complaint",
    [
        (None, "and no others"),
        (KeyError("x"), "another crash: .*KeyError"),
        (ValueError("other"), "another crash: .*other"),
    ],
)
async def test_a_missing_or_different_crash_fails(
    autojump_clock: MockClock, error: Exception | None, complaint: str
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Fragile)

        with pytest.raises(
            AssertionError,
            match=f"expected 1 crash with ValueError matching 'such' within 1 s(?s:.*){complaint}",
        ):
            async with expect_crash(node, ValueError, match="such"):
                if error is not None:
                    node.send(pid, error)
        log = watch_crashes(node)

    assert len(log.unexpected) == (error is not None)


async def test_a_surplus_crash_is_unexpected_unless_any_number_is_expected(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        log = watch_crashes(node)

        async with expect_crash(node, ValueError, count=2) as two:
            for pid in [await node.spawn(Fragile) for _ in range(3)]:
                node.send(pid, ValueError())
            await trio.sleep(1)
        after_two = len(log.unexpected)
        async with expect_crash(node, count=None) as many:
            for pid in [await node.spawn(Fragile) for _ in range(3)]:
                node.send(pid, ValueError())
            await trio.sleep(1)

    assert (len(two.crashes), after_two) == (2, 1)
    assert (len(many.crashes), len(log.unexpected)) == (3, 1)


async def test_the_crash_of_a_meta_process_counts(autojump_clock: MockClock) -> None:
    class Broken(MetaProcess):
        async def start(self) -> None:
            raise OSError("unplugged")

    async with running_node() as node:
        pid = await node.spawn(Puppet)

        async with expect_crash(node, OSError) as expected:
            alias = await node.call(pid, lambda me: me.spawn_meta(Broken()))

    assert [one.pid for one in expected.crashes] == [alias]


async def test_an_earlier_crash_listener_still_gets_crashes(autojump_clock: MockClock) -> None:
    heard: list[object] = []
    async with running_node() as node:
        kernel_of(node).lifetimes.on_crash = heard.append
        pid = await node.spawn(Fragile)

        async with expect_crash(node, ValueError):
            node.send(pid, ValueError())

    assert len(heard) == 1


async def test_a_value_that_is_no_exception_class_is_refused(autojump_clock: MockClock) -> None:
    wrong: Any = ValueError("an instance")
    async with running_node() as node:
        with pytest.raises(BadInputError):
            async with expect_crash(node, wrong):
                pass

    assert CrashLog().expected == []
