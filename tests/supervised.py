"""Children for tests of supervision: they write down their starts and ends, and end the way they
are told to.
"""

from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import Actor, ChildSpec, Node, Reason
from ergo_py._core.vocabulary.info import Phase
from ergo_py.info import ChildInfo
from ergo_py.supervision.handle import SupervisorHandle
from tests.actors import Failed

__all__ = ["Child", "Deaf", "Fragile", "Log", "crash", "info_of", "phases", "three"]

Log = list[Any]


class Child(Actor):
    """Writes down when it starts and ends, and ends the way it is told to."""

    def __init__(self, log: Log, label: str = "") -> None:
        self.log_of_test = log
        self.label = label
        self.heard: Log = []

    async def init(self) -> None:
        self.log_of_test.append(f"+{self.label}")

    def terminate(self, reason: Reason) -> None:
        self.log_of_test.append(f"-{self.label}")

    def handle_message(self, message: Any, sender: Any) -> None:
        if isinstance(message, Exception):
            raise message
        if isinstance(message, Reason):
            self.stop(message)
            return
        self.heard.append(message)

    def handle_call(self, request: Any, caller: Any) -> Any:
        if isinstance(request, Exception):
            raise request
        return list(self.heard)


class Fragile(Child):
    """Starts only as often as there are successes left in a list that the test holds."""

    def __init__(self, log: Log, successes: list[bool], label: str = "") -> None:
        super().__init__(log, label)
        self.successes = successes

    async def init(self) -> None:
        await super().init()
        if not self.successes or not self.successes.pop(0):
            raise Failed(f"start of {self.label}")


class Deaf(Actor):
    """Does not take an exit until the event is set: it is busy."""

    def __init__(self, hears: trio.Event) -> None:
        self.hears = hears

    async def handle_message(self, message: Any, sender: Any) -> None:
        await self.hears.wait()


def three(log: Log, **options: Any) -> list[ChildSpec]:
    return [ChildSpec(name, Child, log, name, **options) for name in "abc"]


async def crash(node: Node, name: str) -> None:
    """Have a child fail, and wait until its supervisor has dealt with it."""
    node.send(name, Failed(name))
    await wait_all_tasks_blocked()


def info_of(tree: SupervisorHandle, name: str) -> ChildInfo:
    return next(child for child in tree.children() if child.name == name)


def phases(tree: SupervisorHandle) -> dict[str, Phase]:
    return {child.name: child.phase for child in tree.children()}
