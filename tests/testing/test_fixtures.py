"""A node for a test: the checks after it is down."""

import asyncio
import os
from typing import Any

import pytest
import trio

from ergo_py import Actor, BadInputError, MetaProcess, NotAllowedError, TargetDownError
from ergo_py.network import Memory
from ergo_py.testing import Deaf, checked_node, checked_nodes, expect_crash
from ergo_py.testing.leaks import LeakError
from tests.actors import Failed, Puppet, Recorder, Stubborn
from tests.support import needs_proc


class Broken(Actor):
    def handle_message(self, message: Any, sender: Any) -> None:
        raise Failed(message)


async def test_a_node_with_processes_that_end_in_order_passes() -> None:
    with trio.fail_after(30):
        async with checked_node("mine@localhost", max_processes=5) as node:
            await node.spawn(Puppet)
            name, limit = node.name, node.info().max_processes

    assert (name, limit) == ("mine@localhost", 5)


async def test_an_unexpected_crash_fails() -> None:
    with (
        trio.fail_after(30),
        pytest.raises(LeakError, match=r"Broken crashed: .*Failed: by accident"),
    ):
        async with checked_node(log_output="none") as node:
            pid = await node.spawn(Broken)
            node.send(pid, "by accident")
            await node.wait_ended(pid)


async def test_an_expected_crash_passes() -> None:
    with trio.fail_after(30):
        async with checked_node(log_output="none") as node:
            pid = await node.spawn(Broken)
            async with expect_crash(node, Failed):
                node.send(pid, "on purpose")
        async with checked_node(log_output="none", expect_crash=Failed) as node:
            pid = await node.spawn(Broken)
            node.send(pid, "on purpose")
            await node.wait_ended(pid)


async def test_a_crash_expected_of_the_whole_test_must_come() -> None:
    with (
        trio.fail_after(30),
        pytest.raises(LeakError, match="any number of crashes with Failed, but there was none"),
    ):
        async with checked_node(expect_crash=[Failed]):
            pass


async def test_a_process_that_does_not_end_is_named() -> None:
    with (
        trio.fail_after(20),
        pytest.raises(LeakError, match=r"Stubborn did not even end when it was killed"),
    ):
        async with checked_node(log_output="none", stop_timeout=0.1) as node:
            pid = await node.spawn(Stubborn, shutdown=0.05, terminate_timeout=0.05)
            node.send(pid, "go")
            await trio.testing.wait_all_tasks_blocked()


async def test_a_process_that_had_to_be_killed_is_named() -> None:
    with trio.fail_after(20), pytest.raises(LeakError, match=r"process .*Puppet had to be killed"):
        async with checked_node(log_output="none") as node:
            pid = await node.spawn(Puppet, shutdown=0.05)
            node.send(pid, lambda me: trio.sleep(3600))  # noqa: ASYNC105 - awaited by the puppet
            await trio.testing.wait_all_tasks_blocked()


async def test_a_reader_thread_that_ignores_the_stop_is_named() -> None:
    deaf = Deaf()

    with trio.fail_after(20), pytest.raises(LeakError) as failure:
        async with checked_node(log_output="none", grace=0.05) as node:
            pid = await node.spawn(Puppet)
            await node.call(pid, lambda me: me.spawn_meta(deaf, stop_timeout=0.05))
    deaf.release()

    assert "Deaf" in str(failure.value)
    assert "thread 'ergo-deaf-" in str(failure.value)


@needs_proc
async def test_a_descriptor_that_a_meta_process_forgot_is_named() -> None:
    ends: list[int] = []

    class Forgetful(MetaProcess):
        async def start(self) -> None:
            ends.extend(os.pipe())

    with trio.fail_after(30), pytest.raises(LeakError, match="is left: pipe:"):
        async with checked_node(grace=0.05) as node:
            pid = await node.spawn(Puppet)
            alias = await node.call(pid, lambda me: me.spawn_meta(Forgetful()))
            await node.wait_ended(alias)
    for end in ends:
        os.close(end)


async def test_a_failure_of_the_test_itself_hides_leaks() -> None:
    with trio.fail_after(30), pytest.raises(ZeroDivisionError):
        async with checked_node(log_output="none") as node:
            pid = await node.spawn(Broken)
            node.send(pid, "crash")
            raise ZeroDivisionError


async def test_a_node_that_the_test_itself_stops_is_checked_as_well() -> None:
    with trio.fail_after(30), pytest.raises(LeakError, match="Failed: before the end"):
        async with checked_node(log_output="none") as node:
            pid = await node.spawn(Broken)
            node.send(pid, "before the end")
            await node.wait_ended(pid)
            node.stop()
            await trio.sleep_forever()


def test_another_event_loop_is_refused_with_the_line_to_write() -> None:
    async def main() -> None:
        async with checked_node():
            pass

    with pytest.raises(NotAllowedError, match="anyio_backend"):
        asyncio.run(main())


async def test_a_value_that_is_no_exception_class_is_refused() -> None:
    wrong: Any = ["Failed"]

    with pytest.raises(BadInputError):
        async with checked_node(expect_crash=wrong):
            pass


async def test_several_nodes_are_checked_together() -> None:
    with pytest.raises(LeakError) as caught:
        async with checked_nodes("a@test", "b@test", network=Memory()) as (a, b):
            puppet = await a.spawn(Puppet)
            await b.spawn(Recorder)
            a.send(puppet, lambda _: 1 / 0)

    assert [line.partition(": ")[2] for line in caught.value.left] == [
        "crashed: ZeroDivisionError: division by zero"
    ]
    async with checked_nodes("a@test", "b@test", network=Memory(), expect_crash=ValueError) as two:
        assert [node.name for node in two] == ["a@test", "b@test"]
        with pytest.raises(TargetDownError):
            await two[0].call(await two[0].spawn(Puppet), raise_it)


def raise_it(_: object) -> None:
    raise ValueError
