"""The lines that type checkers must accept, and the lines that they must refuse, of `ask`, `cast`
and `spec`. Never run, only checked: see spawn_and_call.py.
"""

from typing import assert_type

from ergo_py import PID, Actor, ChildSpec, Node, PoolSpec, ask, exposed
from ergo_py._core.vocabulary.messages import Relay
from ergo_py.methods import MethodCall, MethodCast, cast


class Counter(Actor):
    def __init__(self, start: int, *, step: int = 1) -> None:
        self.total = start * step

    @exposed
    def add(self, amount: int, *, twice: bool = False) -> int:
        return amount

    @exposed
    async def label(self, prefix: str = "") -> str:
        return prefix


async def right_for_a_node(node: Node, pid: PID) -> None:
    assert_type(ask(Counter.add, 3, twice=True), MethodCall[int, Counter | Relay[Counter]])
    assert_type(cast(Counter.add, 3), MethodCast)
    assert_type(await node.call(pid, ask(Counter.add, 3)), int)
    assert_type(await node.call(pid, ask(Counter.label, prefix="a")), str)
    assert_type(await node.service("counter").call(ask(Counter.label)), str)
    assert_type(await node.spawn(Counter.spec(1, step=3), name="counter"), PID[Counter])
    ChildSpec("counter", Counter.spec(1, step=3), shutdown=1)
    PoolSpec(Counter.spec(1), size=3)
    node.send(pid, cast(Counter.add, 3))


async def wrong_for_a_node(node: Node, pid: PID) -> None:
    ask(Counter.add, "x")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    ask(Counter.add, 3, thrice=True)  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]
    cast(Counter.add)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    (await node.call(pid, ask(Counter.add, 3))).upper()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    Counter.spec("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Counter.spec(1, steps=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
