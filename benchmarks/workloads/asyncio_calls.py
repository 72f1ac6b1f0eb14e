"""Calls of coroutines on an asyncio loop in another thread, from tasks of trio."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import trio

from ergo_py import Actor, Alias, Caller, open_node
from ergo_py.meta import AsyncioCalls, Invoke
from ergo_py.meta.asyncio_thread import default_loop_factory

from ..clocks import Stopwatch
from ..harness import Case, Figures, Goal, Line, on_loop

Call = Callable[[], Awaitable[object]]


class Library:
    async def answer(self) -> int:
        return 1


class Owner(Actor):
    async def init(self) -> None:
        self.calls = await self.spawn_meta(AsyncioCalls(Library()))

    def handle_call(self, request: object, caller: Caller) -> Alias:
        return self.calls


async def _measure(call: Call, at_once: int, size: int) -> Figures:
    async def some() -> None:
        for _ in range(size // at_once):
            await call()

    await call()
    watch = Stopwatch()
    with watch:
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(some)
    return watch.each(size // at_once * at_once)


@asynccontextmanager
async def _calls() -> AsyncIterator[Call]:
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        owner = await node.spawn(Owner)
        calls = await node.call(owner, "calls")
        yield lambda: node.call(calls, Invoke("answer"))


@contextmanager
def _loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = default_loop_factory()()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _ergo(at_once: int, size: int) -> Figures:
    async with _calls() as call:
        return await _measure(call, at_once, size)


async def _by_hand(at_once: int, size: int) -> Figures:
    library, token = Library(), trio.lowlevel.current_trio_token()
    with _loop_thread() as loop:

        async def call() -> Any:
            done = trio.Event()
            future = asyncio.run_coroutine_threadsafe(library.answer(), loop)
            future.add_done_callback(lambda _: token.run_sync_soon(done.set))
            try:
                await done.wait()
            except trio.Cancelled:
                future.cancel()
                raise
            return future.result()

        return await _measure(call, at_once, size)


async def _blocked(size: int) -> Figures:
    library, watch = Library(), Stopwatch()
    with _loop_thread() as loop, watch:
        for _ in range(size):
            asyncio.run_coroutine_threadsafe(library.answer(), loop).result()
    return watch.each(size)


def _case(at_once: int) -> Case:
    name = "run_coroutine_threadsafe"
    return Case(
        name=f"call of an asyncio coroutine, {at_once} at once",
        about=(
            "a task of trio awaits a coroutine on an asyncio loop in another thread, and can be "
            f"cancelled; {name}: by hand, and a thread that blocks for the result"
        ),
        unit="µs",
        size=2_000,
        least=128,
        variants={
            "ergo": on_loop(_ergo, at_once),
            name: on_loop(_by_hand, at_once),
            **({} if at_once > 1 else {"blocked thread": on_loop(_blocked)}),
        },
        lines=[
            Line("AsyncioCalls", "ergo", goals=(Goal("by hand", 1.2, name),)),
            *([] if at_once > 1 else [Line("a thread that blocks", "blocked thread")]),
        ],
        rounds=3,
        reference=name,
    )


CASES = [_case(1), _case(64)]
