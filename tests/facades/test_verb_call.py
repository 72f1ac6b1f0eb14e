"""A verb of an asyncio facade that is not awaited says so, and is a coroutine where it is."""

import asyncio
import gc
import subprocess
import sys
import warnings
from collections.abc import Coroutine
from typing import Any

import pytest

from ergo_py import Actor, Caller
from ergo_py.aio import open_node
from ergo_py.errors import TargetTypeError
from ergo_py.facades.verb_call import VerbCall


def begun(*steps: Any) -> VerbCall[Any]:
    async def begin() -> Any:
        for step in steps[:-1]:
            await asyncio.sleep(step)
        return steps[-1]

    return VerbCall("node", "AsyncioNode.tree", begin)


def test_a_verb_without_await_shows_the_line_to_write() -> None:
    call = begun(1)

    assert repr(call) == "<node.tree(…) has not begun: write `await node.tree(…)`>"
    with pytest.raises(
        AttributeError, match=r"write `result = await node\.tree\(…\)`, and `result\.children`"
    ):
        _ = call.children  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    call.close()
    assert repr(call) == "<node.tree(…)>"


async def iterate(call: Any) -> None:
    async for _ in call:
        pass


async def enter(call: Any) -> None:
    async with call:
        pass


def enter_plain(call: Any) -> None:
    with call:
        pass


@pytest.mark.parametrize(
    "use",
    [
        list,
        len,
        bool,
        int,
        float,
        range,
        sum,
        lambda call: call[0],
        lambda call: 1 in call,
        lambda call: call + 1,
        lambda call: 1 - call,
        lambda call: call * 2,
        lambda call: call / 2,
        lambda call: call < 3,
        lambda call: call >= 3,
        lambda call: call(),
        enter_plain,
        lambda call: iterate(call).send(None),
        lambda call: enter(call).send(None),
    ],
)
def test_a_verb_without_await_is_no_result(use: Any) -> None:
    call = begun([1])

    with pytest.raises(TypeError, match=r"`await` is missing: write `await node\.tree\(…\)`"):
        use(call)
    call.close()


def test_a_dropped_verb_warns_at_the_line_that_dropped_it() -> None:
    with pytest.warns(
        RuntimeWarning, match=r"nothing was done: write `await node\.tree\(…\)`"
    ) as caught:
        begun(1)  # type: ignore[unused-awaitable]

    assert [warning.filename for warning in caught] == [__file__]


def test_a_verb_that_was_awaited_closed_or_run_as_a_task_does_not_warn() -> None:
    async def main() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(begun(0, 1))
        return [
            await begun(0, 0, 2),
            task.result(),
            *await asyncio.gather(begun(3), begun(0, 4)),
            await asyncio.wait_for(begun(0, 5), 60),
        ]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asyncio.run(begun(6)) == 6
        assert asyncio.run(main(), debug=True) == [2, 1, 3, 4, 5]
        begun(7).close()
        gc.collect()


def test_a_task_of_asyncio_shows_the_verb_that_it_runs() -> None:
    async def main() -> str:
        task = asyncio.create_task(begun(0, 1))
        text = repr(task)
        await task
        return text

    assert "AsyncioNode.tree()" in asyncio.run(main())


def test_a_cancelled_task_cancels_the_verb() -> None:
    async def main() -> None:
        task = asyncio.create_task(begun(60, 1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_verb_is_a_coroutine_for_asyncio() -> None:
    call = begun(1)

    assert isinstance(call, Coroutine)
    assert asyncio.iscoroutine(call)
    call.close()


class Echo(Actor):
    def handle_call(self, request: Any, caller: Caller) -> Any:
        return request


@pytest.mark.counted
def test_a_verb_without_await_is_no_address() -> None:
    async def main() -> str:
        async with open_node(log_output="none", watchdog=None) as node:
            pid: Any = node.spawn(Echo)
            with pytest.raises(TargetTypeError) as caught:
                node.send(pid, "hello")
            assert await node.processes() == []
            return str(caught.value)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "write `await node.spawn(…)`" in asyncio.run(main())


PROMPT = """\
from ergo_py import Actor
from ergo_py.aio import open_node
opened = open_node(log_output="none", watchdog=None)
node = await opened.__aenter__()
node.spawn(Actor)
node.supervize([])
await opened.__aexit__(None, None, None)
"""


def test_the_prompt_of_asyncio_shows_the_missing_await() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "asyncio"],
        input=PROMPT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        encoding="utf-8",
        env={"PYTHONUTF8": "1", "PYTHON_BASIC_REPL": "1", "PATH": ""},
    )

    shown = done.stdout + done.stderr
    assert "<node.spawn(…) has not begun: write `await node.spawn(…)`>" in shown
    assert "AsyncioNode has no 'supervize'; did you mean `supervise`?" in shown
