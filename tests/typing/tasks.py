"""The lines that type checkers must accept, and the lines that they must refuse, of `run_task` and
`map_stream`. Never run, only checked: see spawn_and_call.py.
"""

from typing import assert_type

from ergo_py import Actor, Node, Threads, first_of
from ergo_py.tasks import FailedItem, Task, TaskResult
from ergo_py.tasks.stream import MapStream


async def fetch(url: str, retries: int = 3) -> bytes:
    return url.encode()


def count(text: str) -> int:
    return len(text)


async def right_for_a_node(node: Node) -> None:
    tasks = [node.run_task(fetch, "a")]
    assert_type(tasks, list[Task[bytes]])
    assert_type(await node.run_task(fetch, "a", 5, timeout=1, name="fetch"), bytes)
    assert_type(await node.run_task(count, "a", dispatcher=Threads()), int)
    assert_type(node.run_task(count, "a", under="tasks", reply_to=node.pid).result(), int)
    first = [await first_of(node.run_task(count, "a"), node.run_task(count, "b"))]
    assert_type(first, list[Task[int]])
    assert_type(node.map_stream(fetch, ["a"]), MapStream[bytes])
    async for length in node.map_stream(count, ["a"], at_once=2, ordered=False):
        assert_type(length, int)
    async for page in node.map_stream(fetch, ["a"], on_failure=FailedItem):
        assert_type(page, bytes | FailedItem[str])


async def wrong_for_a_node(node: Node) -> None:
    _ = node.run_task(fetch, 5)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    _ = node.run_task(count)  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue, reportArgumentType]
    (await node.run_task(fetch, "a")).as_integer_ratio()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    node.run_task(count, "a", timeout="soon")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    node.map_stream(count, [1, 2])  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    node.map_stream(fetch, ["a"], at_once="many")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


class Right(Actor):
    async def size(self, url: str) -> int:
        return len(await self.run_task(fetch, url))

    async def handle_message(self, message: str, sender: object) -> None:
        assert_type(await self.run_task(self.size, message), int)
        tasks = [self.run_task(self.size, message)]
        assert_type(tasks, list[Task[int]])
        assert_type(self.map_stream(self.size, [message]), MapStream[int])

    def take(self, result: TaskResult[int]) -> None:
        assert_type(result.result(), int)
        assert_type(result.value, int | None)
        assert_type(result.error, BaseException | None)
