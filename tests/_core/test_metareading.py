"""The reader: who is inside of it, and how its end is told."""

import threading
from typing import Any

import trio

from ergo_py import Crashed, MetaProcess, Normal
from ergo_py._core.metareading import in_reader
from tests._core.metas import InTask, InThread, in_thread, owning


async def test_a_reader_thread_knows_itself_and_nobody_else_is_taken_for_it() -> None:
    async with owning() as owned:
        meta = InThread()
        await owned.spawn(meta)

        seen = {
            "reader": await owned.in_reader(meta, lambda me: in_reader(me._meta)),
            "handler": await owned.in_handler(meta, lambda me: in_reader(me._meta)),
            "other thread": await in_thread(lambda: in_reader(meta._meta)),
            "loop": in_reader(meta._meta),
        }

        assert seen == {"reader": True, "handler": False, "other thread": False, "loop": False}


async def test_a_reader_task_knows_itself_and_the_tasks_below_it() -> None:
    async def look_below(me: Any) -> list[bool]:
        seen: list[bool] = []

        async def look() -> None:
            seen.append(in_reader(me._meta))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            async with trio.open_nursery() as inner:
                inner.start_soon(look)
        return seen

    from_callback: list[bool] = []
    async with owning() as owned:
        meta = InTask()
        await owned.spawn(meta)
        trio.lowlevel.current_trio_token().run_sync_soon(lambda: from_callback.append(in_reader(meta._meta)))

        below = await owned.in_reader(meta, look_below)
        seen = {
            "reader": await owned.in_reader(meta, lambda me: in_reader(me._meta)),
            "handler": await owned.in_handler(meta, lambda me: in_reader(me._meta)),
            "thread": await in_thread(lambda: in_reader(meta._meta)),
            "loop": in_reader(meta._meta),
        }

        assert below == [True, True]
        assert from_callback == [False]
        assert seen == {"reader": True, "handler": False, "thread": False, "loop": False}


async def test_a_start_that_ends_before_anybody_looks_is_told_all_the_same() -> None:
    ended: list[Any] = []

    class Brief(MetaProcess):
        def __init__(self, error: Exception | None = None) -> None:
            self.error = error

        def start(self) -> None:
            if self.error is not None:
                raise self.error

        def terminate(self, reason: Any) -> None:
            ended.append(reason)

    class BriefTask(Brief):
        async def start(self) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
            Brief.start(self)

    async with owning() as owned:
        error = ValueError("brief")
        for meta in (Brief(), BriefTask(), Brief(error), BriefTask(error)):
            await owned.spawn(meta)
        await owned.until(lambda: owned.node.metas() == [])

        assert sorted(map(str, ended)) == sorted(map(str, [Normal(), Normal(), Crashed(error), Crashed(error)]))


async def test_what_was_opened_is_closed_even_if_the_node_is_gone_before_the_reader() -> None:
    closed = threading.Event()

    class Thing:
        def close(self) -> None:
            closed.set()

    class Outlives(MetaProcess):
        def start(self) -> None:
            self.opened(Thing())
            held.wait(20)

    held = threading.Event()
    async with owning() as owned:
        await owned.spawn(Outlives(), stop_timeout=0.01)
    before = closed.is_set()
    held.set()

    assert not before
    assert await in_thread(lambda: closed.wait(20))
