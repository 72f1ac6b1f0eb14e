"""The lines that type checkers must accept, and the lines that they must refuse, of `stream`,
`call_stream` and `events`. Never run, only checked: see spawn_and_call.py.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, assert_type

from ergo_py import (
    PID,
    Actor,
    CalledStream,
    EventStream,
    Node,
    PartStream,
    Published,
    Request,
    ask,
    exposed,
)


@dataclass(frozen=True)
class Rows(Request[PartStream[str]]):
    table: str


class Database(Actor):
    @exposed
    def rows(self, table: str) -> PartStream[bytes]:
        return self.stream(self.produce(table))

    async def produce(self, table: str) -> AsyncIterator[bytes]:
        yield table.encode()

    def numbers(self) -> PartStream[int]:
        return self.stream([1, 2, 3], credit=5)


async def right_for_a_node(node: Node, pid: PID) -> None:
    assert_type(node.call_stream(pid, Rows("a")), CalledStream[str])
    assert_type(node.call_stream(pid, ask(Database.rows, "a")), CalledStream[bytes])
    assert_type(node.call_stream(pid, "anything"), CalledStream[Any])
    assert_type(await node.call(pid, Rows("a")), PartStream[str])
    async for row in node.call_stream(pid, Rows("a"), credit=3, timeout=None):
        assert_type(row, str)
    assert_type(node.events(), dict[str, int])
    assert_type(node.events("prices"), EventStream)
    async for event in node.events("prices", max_waiting=5):
        assert_type(event, Published)


async def wrong_for_a_node(node: Node, pid: PID) -> None:
    node.call_stream(pid, Rows("a"), credit="many")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    (await anext(node.call_stream(pid, Rows("a")))).as_integer_ratio()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    node.events(5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    node.publish("prices")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
