"""The reader: which code runs inside of it, and how its end is reported."""

import ctypes
import subprocess
import sys
import threading
from typing import Any

import pytest
import trio

from ergo_py import Crashed, Custom, MetaProcess, Normal, Reason
from tests._core.metas.metas import InTask, InThread, in_thread, owning
from tests.meta.support import meta_of


async def test_only_the_reader_thread_counts_as_the_reader() -> None:
    async with owning() as owned:
        meta = InThread()
        await owned.spawn(meta)

        seen = {
            "reader": await owned.in_reader(meta, lambda me: meta_of(me).reader.is_current()),
            "handler": await owned.in_handler(meta, lambda me: meta_of(me).reader.is_current()),
            "other thread": await in_thread(meta_of(meta).reader.is_current),
            "loop": meta_of(meta).reader.is_current(),
        }

        assert seen == {"reader": True, "handler": False, "other thread": False, "loop": False}


def size_of_this_stack() -> int:
    system, size, attributes = (
        ctypes.CDLL(None),
        ctypes.c_size_t(),
        ctypes.create_string_buffer(256),
    )
    system.pthread_self.restype = ctypes.c_void_p
    system.pthread_getattr_np(ctypes.c_void_p(system.pthread_self()), attributes)
    system.pthread_attr_getstacksize(attributes, ctypes.byref(size))
    system.pthread_attr_destroy(attributes)
    return size.value


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "pthread_getattr_np"), reason="this system does not tell"
)
async def test_a_reader_thread_has_a_small_stack_and_other_threads_the_usual_stack() -> None:
    async with owning() as owned:
        meta = InThread()
        before = await in_thread(size_of_this_stack)
        await owned.spawn(meta)

        size = await owned.in_reader(meta, lambda _: size_of_this_stack())

        assert size == 1792 * 1024
        assert threading.stack_size() == 0
        assert await in_thread(size_of_this_stack) == before


RUNAWAY = """
from ergo_py import Actor, MetaProcess, run

class Endless:
    def __getattr__(self, name):
        return getattr(self, name + "x")

class Reader(MetaProcess):
    def start(self):
        Endless().name

class Owner(Actor):
    async def init(self):
        self.monitor(await self.spawn_meta(Reader()))
    def handle_message(self, message, sender):
        self.stop(str(message.reason))

print(run(Owner, watchdog=None, log_output="none"))
"""


def test_an_endless_recursion_crashes_only_its_reader() -> None:
    """On a stack that is too small for it, it would crash the whole program. So it runs in a
    program of its own.
    """
    done = subprocess.run(
        [sys.executable, "-c", RUNAWAY], capture_output=True, text=True, timeout=200, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "crashed: RecursionError" in done.stdout


async def test_a_reader_task_knows_itself_and_the_tasks_below_it() -> None:
    async def look_below(me: Any) -> list[bool]:
        seen: list[bool] = []

        async def look() -> None:
            seen.append(meta_of(me).reader.is_current())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            async with trio.open_nursery() as inner:
                inner.start_soon(look)
        return seen

    from_callback: list[bool] = []
    async with owning() as owned:
        meta = InTask()
        await owned.spawn(meta)
        trio.lowlevel.current_trio_token().run_sync_soon(
            lambda: from_callback.append(meta_of(meta).reader.is_current())
        )

        below = await owned.in_reader(meta, look_below)
        seen = {
            "reader": await owned.in_reader(meta, lambda me: meta_of(me).reader.is_current()),
            "handler": await owned.in_handler(meta, lambda me: meta_of(me).reader.is_current()),
            "thread": await in_thread(meta_of(meta).reader.is_current),
            "loop": meta_of(meta).reader.is_current(),
        }

        assert below == [True, True]
        assert from_callback == [False]
        assert seen == {"reader": True, "handler": False, "thread": False, "loop": False}


async def test_a_start_that_ends_at_once_is_reported_with_its_reason() -> None:
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

        assert sorted(map(str, ended)) == sorted(
            map(str, [Normal(), Normal(), Crashed(error), Crashed(error)])
        )


async def test_an_opened_file_is_closed_even_if_the_node_ends_before_the_reader() -> None:
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


async def test_code_of_the_loop_between_tasks_does_not_count_as_the_reader() -> None:
    told: list[bool] = []
    done = trio.Event()

    async with owning() as owned:
        meta = InTask()
        await owned.spawn(meta)

        class Between(trio.abc.Instrument):
            """Called by the loop itself, when no task has its turn."""

            def before_io_wait(self, timeout: float) -> None:
                told.append(meta_of(meta).reader.is_current())
                trio.lowlevel.remove_instrument(self)

        trio.lowlevel.add_instrument(Between())
        with trio.move_on_after(0.01):
            await done.wait()
        await owned.until(lambda: bool(told))

    assert told == [False]


async def test_a_reader_task_that_returns_when_asked_to_end_keeps_the_reason_of_the_end() -> None:
    class Polls(MetaProcess):
        def __init__(self) -> None:
            self.reasons: list[Any] = []

        async def start(self) -> None:
            with trio.CancelScope(shield=True):
                while not self.stopping:  # noqa: ASYNC110 - as a reader does that never blocks
                    await trio.sleep(0.001)

        async def terminate(self, reason: Reason) -> None:
            self.reasons.append(reason)

    async with owning() as owned:
        meta = Polls()
        ended = await owned.end(await owned.spawn(meta), "asked")

        assert (ended, meta.reasons) == (Custom("asked"), [Custom("asked")])
