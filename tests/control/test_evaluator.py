"""Running typed input: values, output, errors, and names that last."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from ergo_py import Node
from ergo_py.control.evaluator import Evaluator
from tests.actors import Failed, Puppet, Recorder
from tests.support import running_node


class Screen:
    def __init__(self, node: Node) -> None:
        self.text = ""
        self.evaluator = Evaluator(node, self.write)

    def write(self, text: str) -> None:
        self.text += text

    async def type(self, source: str) -> str:
        """The output after this input."""
        self.text = ""
        await self.evaluator.run(source)
        return self.text


@asynccontextmanager
async def at_a_prompt() -> AsyncIterator[tuple[Node, Screen]]:
    async with running_node("demo@localhost") as node:
        screen = Screen(node)
        try:
            yield node, screen
        finally:
            screen.evaluator.close()


async def test_values_are_shown_and_names_persist(autojump_clock: MockClock) -> None:
    async with at_a_prompt() as (_, screen):
        assert await screen.type("x = 20") == ""
        assert await screen.type("x += 1; x * 2") == "42\n"
        assert await screen.type("_ + 1") == "43\n"
        assert await screen.type("None") == ""
        assert await screen.type("def f():\n    return x\n") == ""
        assert await screen.type("f()") == "21\n"
        assert await screen.type("") == ""


async def test_the_prompt_hints_at_a_missing_await_and_underscore_can_be_awaited(
    autojump_clock: MockClock,
) -> None:
    async with at_a_prompt() as (node, screen):
        await node.spawn(Puppet, name="puppet")

        assert "`await _` runs it" in await screen.type("node.inspect('puppet')")
        assert await screen.type("await _") == "{'heard': '0'}\n"


async def test_await_may_be_used_everywhere(autojump_clock: MockClock) -> None:
    async with at_a_prompt() as (node, screen):
        await node.spawn(Puppet, name="puppet")

        assert await screen.type("await node.inspect('puppet')") == "{'heard': '0'}\n"
        assert await screen.type("y = await node.inspect('puppet')\ny['heard']") == "'0'\n"
        assert (
            await screen.type("for _ in range(2):\n    await trio.sleep(1)\n    print('tick')\n")
            == "tick\ntick\n"
        )
        assert (
            await screen.type("[await node.inspect('puppet') for _ in range(1)]")
            == "[{'heard': '0'}]\n"
        )


async def test_an_error_is_shown_with_the_line_and_without_our_own_frames(
    autojump_clock: MockClock,
) -> None:
    async with at_a_prompt() as (_, screen):
        shown = await screen.type("a = 1\na / 0")

        assert shown.startswith("Traceback (most recent call last):\n")
        assert '  File "<input 1>", line 2, in <module>\n    a / 0\n' in shown
        assert shown.endswith("ZeroDivisionError: division by zero\n")
        assert "evaluating.py" not in shown
        assert "SyntaxError: invalid syntax" in await screen.type("1 +* 2")
        assert "SystemExit: 3" in await screen.type("raise SystemExit(3)")
        assert "KeyboardInterrupt" in await screen.type("raise KeyboardInterrupt")
        assert await screen.type("_error.args") == "()\n"


async def test_output_arrives_at_once_and_the_evaluation_can_be_cancelled(
    autojump_clock: MockClock,
) -> None:
    async with at_a_prompt() as (_, screen):
        with trio.move_on_after(5) as scope:
            await screen.type(
                "print('one', end=''); print('two', 'three', sep='-'); await trio.sleep_forever()"
            )

        assert scope.cancelled_caught
        assert screen.text == "onetwo-three\n"
        assert await screen.type("1") == "1\n"


async def test_the_prompt_gets_its_own_output_and_not_that_of_processes(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with at_a_prompt() as (node, screen):
        pid = await node.spawn(Puppet)
        screen.evaluator.names["chatter"] = lambda me: print("from a process")  # noqa: T201 - the point

        typed = await screen.type("def f():\n    print('from a function')\nf()")
        others = await screen.type(
            f"import sys\nawait node.call(pid({pid.number}), chatter)\nsys.stdout.write('by "
            "name')\n"
        )
        to_a_file = await screen.type("print('to a file', file=sys.stdout)")

        assert typed == "from a function\n"
        # The value of the last expression is shown, as everywhere.
        assert others == "7\n"
        assert to_a_file == ""
        assert capsys.readouterr().out == "from a process\nby nameto a file\n"


async def test_helpers_are_preloaded(autojump_clock: MockClock) -> None:
    async with at_a_prompt() as (node, screen):
        pid = await node.spawn(Recorder, name="recorder")
        victim = await node.spawn(Puppet)

        assert await screen.type(f"pid({pid.number}) == node.whereis('recorder')") == "True\n"
        assert await screen.type("alias(5)") == "<Alias 5 demo@localhost>\n"
        assert "recorder  Recorder" in await screen.type("ps()")
        assert "└─ Puppet" in await screen.type("tree()")
        assert await screen.type("tree") == await screen.type("tree()")

        def fail(me: Puppet) -> None:
            raise Failed("on purpose")

        node.send(victim, fail)
        await node.wait_ended(victim)
        assert "crashed: Failed: on purpose" in await screen.type("crashes()")
        assert await screen.type("Actor") == "<class 'ergo_py.Actor'>\n"


async def test_help_is_shown_at_the_prompt_and_input_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with at_a_prompt() as (_, screen):
        assert "Ask a process or meta-process to end" in await screen.type("help(node.send_exit)")
        assert "help(x) shows" in await screen.type("help()")
        assert await screen.type("help") == await screen.type("help()")
        for source in ("input('name? ')", "breakpoint()"):
            assert "would block the event loop" in await screen.type(source)


async def test_names_are_completed(autojump_clock: MockClock) -> None:
    async with at_a_prompt() as (_, screen):
        assert screen.evaluator.complete("node.inspect_m") == ["node.inspect_meta("]
        assert "Supervisor(" in screen.evaluator.complete("Superv")
        assert screen.evaluator.complete("nothing_like_this") == []
        assert screen.evaluator.complete("1 +") == []


async def test_long_values_are_broken_into_lines(autojump_clock: MockClock) -> None:
    async with at_a_prompt() as (_, screen):
        shown = await screen.type("{f'key {n}': 'x' * 30 for n in range(5)}")

        assert len(shown.splitlines()) == 5
        assert len((await screen.type("node.info()")).splitlines()) > 5


@pytest.mark.parametrize("source", ["node.stop()", "await node.spawn(Actor)"])
async def test_code_at_the_prompt_may_stop_the_node_or_spawn_a_process(
    source: str, autojump_clock: MockClock
) -> None:
    async with at_a_prompt() as (node, screen):
        await screen.type(source)

        assert node.stopping or node.processes()
