"""The reports of a crash: in the log, in the error of a failed spawn and of a failed call."""

import json
import re
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    LOOP,
    Actor,
    Caller,
    ChildSpec,
    InitError,
    Node,
    RestartPolicy,
    TargetDownError,
    Threads,
    open_node,
)
from ergo_py.info import Dispatcher
from tests.actors import Frozen
from tests.support import running_node


class Fragile(Actor):
    """Fails in the callback that it is given."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.check("__init__")

    def check(self, callback: str) -> None:
        if callback == self.where:
            raise ValueError(f"fails in {callback}")

    async def init(self) -> None:
        self.check("init")

    def post_start(self) -> None:
        self.check("post_start")

    def handle_message(self, message: Any, sender: Any) -> None:
        self.check("handle_message")

    async def handle_call(self, request: Any, caller: Caller) -> object:
        self.check("handle_call")
        return None


def without_times(text: str) -> str:
    return re.sub(r"line \d+", "line N", re.sub(r"^\d\d:\d\d:\d\d", "TIME", text))


@pytest.mark.parametrize(
    "where, fields",
    [
        ("post_start", "callback=post_start"),
        ("handle_message", "callback=handle_message message_type=int"),
    ],
)
async def test_the_console_shows_the_line_of_the_program_and_the_error_once(
    where: str, fields: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with trio.fail_after(30):
        async with open_node("demo@localhost", watchdog=None, log_output="console") as node:
            pid = await node.spawn(Fragile, where)
            node.send(pid, 5)
            await wait_all_tasks_blocked()
            [crash] = node.crashes()

            waiting = " waiting=1" if where == "post_start" else ""
            assert without_times(capsys.readouterr().err) == (
                "TIME [error    ] process crashed pid='<PID 1 demo@localhost>' node=demo@localhost "
                f'behaviour=Fragile {fields}{waiting} advice="it is not supervised, so it does not '
                "come back: await node.supervise([ChildSpec('fragile', Fragile)])\"\n"
                "  Traceback (most recent call last):\n"
                f'    File "{__file__}", line N, in {where}\n'
                f'      self.check("{where}")\n'
                f'    File "{__file__}", line N, in check\n'
                '      raise ValueError(f"fails in {callback}")\n'
                f"  ValueError: fails in {where}\n"
            )
            of = " of int" if where == "handle_message" else ""
            assert f"Fragile in {where}{of}: crashed" in str(crash)


@pytest.mark.parametrize("where", ["__init__", "init"])
async def test_the_error_of_a_failed_spawn_ends_with_the_line_of_the_program(where: str) -> None:
    with trio.fail_after(30):
        async with open_node(watchdog=None, log_output="none") as node:
            with pytest.raises(InitError) as caught:
                await node.spawn(Fragile, where)

            printed = "".join(traceback.format_exception(caught.value))
            cause, _, effect = printed.partition("direct cause of the following")
            assert cause.startswith(f"ValueError: fails in {where}\n")
            assert effect.count(f"fails in {where}") == 1
            assert effect.endswith('    raise ValueError(f"fails in {callback}")\n')
            assert "ergo_py" not in effect.partition("ergo_py.InitError: ")[2]


async def test_the_error_of_a_failed_call_ends_with_the_line_of_the_program() -> None:
    with trio.fail_after(30):
        async with open_node(watchdog=None, log_output="none") as node:
            pid = await node.spawn(Fragile, "handle_call")
            with pytest.raises(TargetDownError) as caught:
                await node.call(pid, 5)

            printed = "".join(traceback.format_exception(caught.value))
            effect = printed.partition("direct cause of the following")[2]
            assert effect.count("fails in handle_call") == 1
            assert effect.endswith('    raise ValueError(f"fails in {callback}")\n')


class Wordy(Actor):
    """Fails with a long text."""

    async def post_start(self) -> None:
        raise ValueError("x" * 30_000)


class Parent(Actor):
    """Has a child without a supervisor: this process has to care for it."""

    async def init(self) -> None:
        await self.spawn(Wordy, name="child")


class Failing(Actor):
    """Fails in a background task."""

    def post_start(self) -> None:
        async def fail() -> None:
            raise ValueError("y" * 30_000)

        self.start_task(fail)


async def test_only_a_process_without_a_supervisor_does_not_come_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with trio.fail_after(30):
        async with open_node(watchdog=None, log_output="json") as node:
            await node.spawn(Wordy, name="wordy")
            await node.spawn(Failing)
            await node.spawn(Parent)
            await node.supervise([ChildSpec("kept", Wordy, restart=RestartPolicy.TEMPORARY)])
            await wait_all_tasks_blocked()

    told = {line.get("name"): line.get("advice") for line in crash_lines(capsys)}
    assert told == {
        "wordy": "it is not supervised, so it does not come back: "
        "await node.supervise([ChildSpec('wordy', Wordy)])",
        None: "it is not supervised, so it does not come back: "
        "await node.supervise([ChildSpec('failing', Failing)])",
        "child": None,
        "kept": None,
    }


async def test_a_long_text_of_an_exception_is_cut_in_the_log_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    crashes: list[Any] = []
    with trio.fail_after(30):
        async with open_node(watchdog=None, log_output="json") as node:
            await node.spawn(Wordy)
            await node.spawn(Failing)
            await wait_all_tasks_blocked()
            crashes = node.crashes()

    lines = crash_lines(capsys)
    assert len(lines) == len(crashes) == 2
    for line in lines:
        assert "characters …]" in line["error"]
        assert len(line["error"]) < 1100
        assert len(line["exception"]) < 3000
    for crash in crashes:
        assert len(str(crash.reason)) > 30_000


def crash_lines(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    return [line for line in lines if "crashed" in line["event"]]


class Freezing(Actor):
    """Raises a frozen error in the callback that it is given."""

    def __init__(self, where: str) -> None:
        self.where = where

    def init(self) -> None:
        if self.where == "init":
            raise Frozen

    def handle_call(self, request: Any, caller: Caller) -> object:
        raise Frozen


def freeze(_item: object = None) -> None:
    raise Frozen


async def freeze_later(_item: object) -> None:
    raise Frozen


@pytest.mark.parametrize("where", [LOOP, Threads("pod")], ids=str)
async def test_an_error_that_refuses_assignments_fails_its_process_only(where: Dispatcher) -> None:
    async with running_node() as node:
        with pytest.raises(InitError) as init:
            await node.spawn(Freezing, "init", dispatcher=where)
        pid = await node.spawn(Freezing, "handle_call", dispatcher=where)
        with pytest.raises(TargetDownError) as call:
            await node.call(pid, 1)

        assert not node.stopping
    assert isinstance(init.value.error, Frozen)
    assert isinstance(call.value.__cause__, Frozen)
    assert "raise Frozen" in "".join(init.value.__notes__ + call.value.__notes__)


async def run_plainly(node: Node) -> None:
    await node.run_task(freeze)


async def run_async(node: Node) -> None:
    await node.run_task(freeze_later, 1)


async def run_stream(node: Node) -> None:
    async for _ in node.map_stream(freeze_later, [1]):
        """Not reached."""


@pytest.mark.parametrize("run", [run_plainly, run_async, run_stream])
async def test_an_error_that_refuses_assignments_fails_its_task_only(
    run: Callable[[Node], Awaitable[None]],
) -> None:
    async with running_node() as node:
        with pytest.raises(Frozen):
            await run(node)
        await wait_all_tasks_blocked()

        assert not node.stopping


class HidingError(Exception):
    """Refuses to tell its class, as a lazy proxy does outside of its context."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            raise RuntimeError("no class")
        return super().__getattribute__(name)


class Hiding(Actor):
    """Raises the error."""

    def handle_message(self, message: Any, sender: Any) -> None:
        raise HidingError

    def handle_call(self, request: Any, caller: Caller) -> Any:
        return "alive"


async def test_an_exception_that_refuses_to_tell_its_class_ends_its_process_only() -> None:
    async with open_node("a@x", log_level="critical") as node:
        failing, other = await node.spawn(Hiding), await node.spawn(Hiding)
        node.send(failing, 1)
        await wait_all_tasks_blocked()

        with pytest.raises(TargetDownError):
            await node.call(failing, 1)
        assert await node.call(other, 1) == "alive"
