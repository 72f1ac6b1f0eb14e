"""Tasks in the test kit: a behaviour alone requests them, and a test gives their results."""

from typing import Any

import pytest

from ergo_py import Actor, BadInputError, NotAllowedError
from ergo_py.tasks import Task
from ergo_py.testing import Alone
from tests.actors import Failed


async def fetch(url: str) -> str:
    return url


class Reader(Actor):
    def __init__(self) -> None:
        self.tasks: list[Task[Any]] = []

    def handle_message(self, message: Any, sender: Any) -> None:
        self.tasks.append(self.run_task(fetch, message, timeout=5))

    async def handle_call(self, request: Any, caller: Any) -> Any:
        return await self.tasks[0]


async def test_a_behaviour_alone_records_its_tasks_and_gets_their_results() -> None:
    alone = Alone(Reader)
    await alone.message("a")
    await alone.message("b")
    first, second = alone.tasks

    first.finish("page")
    second.fail(Failed())

    assert (first.function, first.args, first.done) == (fetch, ("a",), True)
    assert await alone.behaviour.tasks[0] == "page"
    with pytest.raises(Failed):
        await alone.behaviour.tasks[1]


async def test_a_behaviour_alone_may_cancel_its_tasks() -> None:
    alone = Alone(Reader)
    await alone.message("a")

    alone.behaviour.tasks[0].cancel()

    assert alone.tasks[0].done


async def test_a_behaviour_alone_is_refused_wrong_arguments_and_streams() -> None:
    class Wrong(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            _ = self.run_task(message)

    class Streaming(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            async for _ in self.map_stream(fetch, ["a"]):
                """Not reached."""

    class Background(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            self.start_task(fetch, "a")

    with pytest.raises(BadInputError):
        await Alone(Wrong).message(5)
    with pytest.raises(NotAllowedError, match="with a node"):
        await Alone(Streaming).message("go")
    background = Alone(Background)
    await background.message("go")
    with pytest.raises(NotAllowedError, match="no result"):
        background.tasks[0].finish(5)
