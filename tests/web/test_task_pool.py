"""Tasks that serve many requests of applications, in sequence."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest
import trio
from trio.lowlevel import checkpoint, current_task

from ergo_py.web import Mount
from ergo_py.web.task_pool import TaskPool
from tests.web.rig import get, serving

word: ContextVar[str] = ContextVar("word", default="none")


@asynccontextmanager
async def pool() -> AsyncIterator[TaskPool]:
    """A pool whose tasks must end with it."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:

            def start(work: Callable[[], Awaitable[None]]) -> None:
                nursery.start_soon(work)

            made = TaskPool(start)
            yield made
            made.close()


async def settle() -> None:
    for _ in range(5):
        await checkpoint()


async def test_a_task_serves_many_requests_in_sequence() -> None:
    seen: list[object] = []

    async def work() -> None:
        seen.append(current_task())
        await checkpoint()

    async with pool() as tasks:
        for _ in range(3):
            tasks.run(work())
            await settle()
    assert len(seen) == 3
    assert len({*seen}) == 1


async def test_a_request_does_not_see_the_context_variables_of_another() -> None:
    seen: list[str] = []

    async def work(text: str) -> None:
        seen.append(word.get())
        word.set(text)
        await checkpoint()
        seen.append(word.get())

    async with pool() as tasks:
        for text in ("a", "b"):
            tasks.run(work(text))
            await settle()
    assert seen == ["none", "a", "none", "b"]


async def test_requests_at_once_have_tasks_of_their_own_and_few_tasks_wait() -> None:
    go, tasks_before = trio.Event(), trio.lowlevel.current_statistics().tasks_living
    done = 0

    async def work() -> None:
        nonlocal done
        await go.wait()
        done += 1

    async with pool() as tasks:
        for _ in range(100):
            tasks.run(work())
        await settle()
        go.set()
        await settle()
        assert done == 100
        assert trio.lowlevel.current_statistics().tasks_living == tasks_before + 64


async def test_a_cancelled_request_ends_its_task_only() -> None:
    seen: list[str] = []

    async def work(text: str) -> None:
        running.append(tasks.current())
        try:
            await trio.sleep_forever()
        finally:
            seen.append(text)

    running: list[Any] = []
    async with pool() as tasks:
        tasks.run(work("a"))
        tasks.run(work("b"))
        await settle()
        running[0].cancel()
        await settle()
        assert len(seen) == 1
        running[1].cancel()


async def test_a_cancelled_nursery_ends_the_tasks_that_wait() -> None:
    async def work() -> None:
        await checkpoint()

    async with trio.open_nursery() as nursery:
        tasks = TaskPool(nursery.start_soon)
        tasks.run(work())
        await settle()
        nursery.cancel_scope.cancel()
    tasks.close()


@pytest.mark.parametrize("leaks", ["scope", "nursery"])
async def test_a_scope_that_an_application_leaves_open_is_closed(leaks: str) -> None:
    kept: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        if scope["path"] == "/leak":
            opened: Any = trio.CancelScope() if leaks == "scope" else trio.open_nursery()
            kept.append(opened)
            if leaks == "scope":
                opened.__enter__()
                opened.cancel()
            else:
                nursery = await opened.__aenter__()
                nursery.start_soon(trio.sleep_forever)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async with serving(routes=[Mount("/", asgi=app)]) as served:
        for path in ("/leak", "/", "/leak", "/"):
            assert (await served.ask(get(path))).body == b"ok"
