"""What a crash, a trace and a report of the watchdog look like with the C extension, and without
it: the same, except for the frames of the kernel in a stack.
"""

import re
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import ergo_py
from ergo_py import Actor, Caller, Crashed, Down
from ergo_py._core.inspection.watchdog import look_at_loop
from ergo_py.info import BlockedReport
from tests._core.speed.test_calls_on_both import TWINS
from tests.support import router_of, running_node


class Acts(Actor):
    """Fails, or looks at itself as the watchdog does."""

    def __init__(self, look: Any) -> None:
        self.look = look

    def act(self, wanted: str) -> object:
        if wanted == "fail":
            raise ValueError("a fault")
        return self.look()


class Plain(Acts):
    def handle_message(self, message: Any, sender: Any) -> None:
        self.act(message)

    def handle_call(self, request: Any, caller: Caller) -> object:
        return self.act(request)


class Asynchronous(Acts):
    async def handle_message(self, message: Any, sender: Any) -> None:
        self.act(message)

    async def handle_call(self, request: Any, caller: Caller) -> object:
        return self.act(request)


class Witness(Actor):
    """Monitors the others, and keeps how they ended."""

    def __init__(self, ends: list[str]) -> None:
        self.ends = ends

    def handle_call(self, request: Any, caller: Caller) -> object:
        self.monitor(request)
        return request

    def handle_message(self, message: Any, sender: Any) -> None:
        if isinstance(message, Down) and isinstance(message.reason, Crashed):
            self.ends.append(message.reason.traceback)


def shown(report: BlockedReport | None) -> list[object]:
    assert report is not None
    # Two lines for each frame. Those of the kernel differ.
    frames = re.findall(r'  File "(.*)", line \d+, in (\w+)\n', report.stack)
    own = [name for path, name in frames if path == __file__]
    return [report.behaviour, report.callback, report.message_type, own]


async def see_all() -> list[object]:
    """Every text, for each kind of behaviour and each way to reach it."""
    seen: list[object] = []
    async with running_node() as node:
        bridge, ends = router_of(node).bridge, list[str]()
        witness = await node.spawn(Witness, ends)

        def look() -> None:
            seen.append(shown(look_at_loop(bridge, 1.0)))

        for kind in (Plain, Asynchronous):
            pid = await node.spawn(kind, look)
            await wait_all_tasks_blocked()
            async with node.trace(pid, contents=True) as trace:
                node.send(pid, "look")
                await wait_all_tasks_blocked()
                await node.call(pid, "look")
                entries = aiter(trace)
                for _ in range(2):
                    entry = await anext(entries)
                    seen.append((entry.callback, entry.message_type, entry.message, entry.error))
            await wait_all_tasks_blocked()
            await node.call(pid, "look")
            for ends_with_call in (False, True):
                pid = await node.spawn(kind, look)
                await node.call(witness, pid)
                await wait_all_tasks_blocked()
                if ends_with_call:
                    with pytest.raises(ergo_py.TargetDownError):
                        await node.call(pid, "fail")
                else:
                    node.send(pid, "fail")
                await wait_all_tasks_blocked()
        seen += ends
    return seen


def test_texts_of_both_builds_are_the_same() -> None:
    first = trio.run(see_all)
    with pytest.MonkeyPatch.context() as replaced:
        for owner, name, value in TWINS:
            replaced.setattr(owner, name, value)
        in_python = trio.run(see_all)

    assert first == in_python
    crashes = [text for text in first if isinstance(text, str)]
    assert len(crashes) == 4
    assert all("in act" in text and "ValueError: a fault" in text for text in crashes)
    reports = [facts for facts in first if isinstance(facts, list)]
    assert [facts[1] for facts in reports] == ["handle_message", "handle_call", "handle_call"] * 2
    assert all(facts[3][-2:] == ["act", "look"] for facts in reports)
