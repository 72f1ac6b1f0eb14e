"""The lines that type checkers must accept, and the lines that they must refuse, of `stream`,
`call_stream` and `events`. Never run, only checked: see spawn_and_call.py.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, assert_type

from ergo_py import PID, Actor, Alias, Node, Published, Request, ask, exposed
from ergo_py.meta import Apply, Invoke
from ergo_py.streams import PartStream
from ergo_py.streams.events import EventStream
from ergo_py.streams.parts import CalledStream


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


async def rows_of_asyncio(_pool: Any, table: str) -> AsyncIterator[bytes]:
    yield table.encode()


async def count_of_asyncio(_pool: Any) -> int:
    return 1


def plain_count(_pool: Any) -> float:
    return 1.0


async def right_for_a_library_of_asyncio(node: Node, db: Alias) -> None:
    # mypy infers Any here, since the type of a coroutine contains Any.
    count: int = await node.call(db, Apply(count_of_asyncio))
    assert count
    assert_type(await node.call(db, Apply(plain_count)), float)
    assert_type(await node.call(db, Invoke("fetch")), Any)
    stream = node.call_stream(db, Apply(rows_of_asyncio, "users"))
    assert_type([row async for row in stream], list[bytes])
