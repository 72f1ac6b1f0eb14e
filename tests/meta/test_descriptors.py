"""Readiness of descriptors, with real pipes and sockets."""

import os
import pty
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, Shutdown
from ergo_py.errors import UnhandledCallError
from ergo_py.meta.descriptors import Descriptors, FdLost, FdReadable, FdWritable, UnwatchFd, WatchFd
from tests.meta.owner import Owned, eventually, owning
from tests.support import THOROUGH, open_descriptors


class Pipe:
    def __init__(self) -> None:
        self.read, self.write = os.pipe()

    def __enter__(self) -> "Pipe":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self.read, self.write):
            os.close(fd)


def all_tasks() -> set[trio.lowlevel.Task]:
    root = trio.lowlevel.current_root_task()
    found, new = set[trio.lowlevel.Task](), [] if root is None else [root]
    while new:
        task = new.pop()
        found.add(task)
        new += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found


async def quiet(owned: Owned) -> None:
    """Nothing else comes."""
    with trio.move_on_after(0.05) as scope:
        await owned.next()
    assert scope.cancelled_caught, owned.heard[-1]


async def test_with_once_a_readable_descriptor_is_reported_once() -> None:
    with Pipe() as pipe:
        async with owning() as owned:
            watcher = await owned.spawn(Descriptors())
            await owned.node.call(watcher, WatchFd(pipe.read, once=True))
            await quiet(owned)

            os.write(pipe.write, b"x")

            assert await owned.next() == FdReadable(watcher, pipe.read)
            await quiet(owned)
            assert (await owned.node.inspect_meta(watcher))["watched"] == ""


async def test_a_descriptor_is_reported_repeatedly_until_it_is_read() -> None:
    with Pipe() as pipe:
        async with owning() as owned:
            watcher = await owned.spawn(Descriptors())
            await owned.node.call(watcher, WatchFd(pipe.read))

            os.write(pipe.write, b"xy")

            for _ in range(3):
                assert await owned.next() == FdReadable(watcher, pipe.read)
            assert await owned.node.call(watcher, UnwatchFd(pipe.read)) is True


async def test_a_slow_owner_gets_no_further_report_before_it_has_handled_the_last() -> None:
    with Pipe() as pipe:
        async with owning() as owned:
            watcher = await owned.spawn(Descriptors())
            await owned.node.call(watcher, WatchFd(pipe.read))
            go_on = await owned.hold()

            os.write(pipe.write, b"x")
            told = await owned.filled(1)
            info = await owned.node.inspect_meta(watcher)
            go_on()
            await owned.until(FdReadable)
            await owned.until(FdReadable)

            # The message, and behind it the mark that says when it was handled.
            assert told <= 2
            assert info["told"] == "1"


@pytest.mark.counted
async def test_both_directions_of_a_socket_are_reported_separately() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        async with owning() as owned:
            watcher = await owned.spawn(Descriptors())

            await owned.node.call(watcher, WatchFd(ours, writable=True, once=True))
            assert await owned.next() == FdWritable(watcher, ours.fileno())
            theirs.send(b"x")
            assert await owned.next() == FdReadable(watcher, ours.fileno())


async def test_a_terminal_can_be_watched() -> None:
    master, slave = pty.openpty()
    try:
        async with owning() as owned:
            watcher = await owned.spawn(Descriptors())
            await owned.node.call(watcher, WatchFd(master, once=True))

            os.write(slave, b"hello")

            assert await owned.next() == FdReadable(watcher, master)
    finally:
        os.close(master)
        os.close(slave)


async def test_a_descriptor_at_its_end_counts_as_readable() -> None:
    read, write = os.pipe()
    async with owning() as owned:
        watcher = await owned.spawn(Descriptors())
        await owned.node.call(watcher, WatchFd(read, once=True))

        os.close(write)

        assert await owned.next() == FdReadable(watcher, read)
    os.close(read)


async def test_an_unwatched_descriptor_is_not_reported_any_more() -> None:
    with Pipe() as pipe:
        async with owning() as owned:
            watcher = await owned.spawn(Descriptors())
            await owned.node.call(watcher, WatchFd(pipe.read))

            assert await owned.node.call(watcher, UnwatchFd(pipe.read)) is True
            assert await owned.node.call(watcher, UnwatchFd(pipe.read)) is False
            os.write(pipe.write, b"x")

            await quiet(owned)


async def test_requests_by_message_work_like_requests_by_call() -> None:
    with Pipe() as pipe:
        async with owning() as owned:
            watcher = await owned.spawn(Descriptors())
            os.write(pipe.write, b"x")

            owned.node.send(watcher, WatchFd(pipe.read))
            assert await owned.next() == FdReadable(watcher, pipe.read)
            owned.node.send(watcher, UnwatchFd(pipe.read))
            owned.node.send(watcher, "what?")

            assert await owned.node.call(watcher, UnwatchFd(pipe.read)) is False


async def test_the_error_about_a_regular_file_suggests_file_reader(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    async with owning() as owned:
        watcher = await owned.spawn(Descriptors())
        with path.open() as file, Path("/dev/null").open(encoding="utf-8") as null:  # noqa: ASYNC230
            with pytest.raises(BadInputError, match="FileReader"):
                await owned.node.call(watcher, WatchFd(file))
            with pytest.raises(BadInputError, match="sockets, pipes and terminals"):
                await owned.node.call(watcher, WatchFd(null))
            owned.node.send(watcher, WatchFd(file))
            lost = await owned.until(FdLost)

            assert lost.fd == file.fileno()
            assert "FileReader" in lost.reason


async def test_invalid_and_already_watched_descriptors_are_refused() -> None:
    with Pipe() as pipe:
        async with owning() as owned:
            watcher = await owned.spawn(Descriptors())
            await owned.node.call(watcher, WatchFd(pipe.read))

            with pytest.raises(BadInputError, match="not watched yet"):
                await owned.node.call(watcher, WatchFd(pipe.read))
            with pytest.raises(BadInputError, match="readable=True"):
                await owned.node.call(watcher, WatchFd(pipe.write, readable=False))
            with pytest.raises(BadInputError):
                await owned.node.call(watcher, WatchFd(-1))
            with pytest.raises(OSError, match="Bad file descriptor"):
                await owned.node.call(watcher, WatchFd(99_999))
            with pytest.raises(BadInputError):
                Descriptors(receiver=7)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            for nothing in (10**20, "stdin", Closed()):
                with pytest.raises(BadInputError):
                    await owned.node.call(watcher, WatchFd(nothing))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            with pytest.raises(UnhandledCallError):
                await owned.node.call(watcher, "watch!")


class Closed:
    """As a file that was closed."""

    def fileno(self) -> int:
        raise ValueError("I/O operation on closed file")


@pytest.mark.parametrize("what", ["a closed socket", "a closed file", -1])
async def test_a_closed_descriptor_is_reported_as_lost_and_others_stay_watched(
    what: object,
) -> None:
    with Pipe() as pipe:
        async with owning() as owned:
            watcher = await owned.spawn(Descriptors())
            await owned.node.call(watcher, WatchFd(pipe.read))
            closed = socket.socket()
            closed.close()
            gone: Any = {"a closed socket": closed, "a closed file": Closed()}.get(str(what), what)

            owned.node.send(watcher, UnwatchFd(gone))
            answer = await owned.node.call(watcher, UnwatchFd(gone))
            owned.node.send(watcher, WatchFd(gone))

            assert answer is False
            assert (await owned.until(FdLost)).fd == -1
            os.write(pipe.write, b"x")
            assert (await owned.until(FdReadable)).fd == pipe.read


async def test_a_descriptor_with_a_reused_number_is_reported_as_lost() -> None:
    with Pipe() as pipe, Pipe() as other:
        async with owning() as owned:
            watcher = await owned.spawn(Descriptors())
            await owned.node.call(watcher, WatchFd(pipe.read))
            go_on = await owned.hold()
            os.write(pipe.write, b"x")
            await owned.filled(1)

            # Closed, and its number given to another file, without a word to the watcher.
            os.dup2(other.read, pipe.read)
            go_on()

            lost = await owned.until(FdLost)
            assert lost.fd == pipe.read
            assert (await owned.node.inspect_meta(watcher))["watched"] == ""


async def test_a_descriptor_that_another_task_waits_for_is_reported_as_lost() -> None:
    with Pipe() as pipe:
        async with owning() as owned:
            watcher = await owned.spawn(Descriptors())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.lowlevel.wait_readable, pipe.read)
                await trio.testing.wait_all_tasks_blocked()

                await owned.node.call(watcher, WatchFd(pipe.read))
                lost = await owned.until(FdLost)
                nursery.cancel_scope.cancel()

            assert "another task" in lost.reason


@pytest.mark.no_cover
async def test_many_descriptors_leave_no_descriptor_and_no_task() -> None:
    async with owning(limit=500) as owned:
        watcher = await owned.spawn(Descriptors())
        before, tasks = open_descriptors(), all_tasks()

        for round_ in range(10_000 if THOROUGH else 300):
            with Pipe() as pipe:
                owned.node.send(watcher, WatchFd(pipe.read))
                if round_ % 100 == 0:
                    os.write(pipe.write, b"x")
                    await owned.until(FdReadable)
                assert await owned.node.call(watcher, UnwatchFd(pipe.read), timeout=60)

        assert open_descriptors() <= before
        # The handler came with the first request, and with it the task that lets it go when there
        # are no more.
        assert Counter(task.name for task in all_tasks() - tasks) <= Counter(
            ["Descriptors", "idle handlers"]
        )
        assert (await owned.node.inspect_meta(watcher))["watched"] == ""


async def test_a_missing_receiver_of_reports_causes_no_flood_of_dead_letters() -> None:
    with Pipe() as pipe:
        async with owning() as owned:
            owned.node.register("listener", owned.owner)
            watcher = await owned.spawn_elsewhere(Descriptors(receiver="listener"))
            os.write(pipe.write, b"x")
            await owned.node.call(watcher, WatchFd(pipe.read))
            assert await owned.next() == FdReadable(watcher, pipe.read)

            owned.node.unregister("listener")
            await eventually(lambda: len(owned.node.dead_letters()) >= 2)

            assert len(owned.node.dead_letters()) < 10


async def test_a_stop_unwatches_every_descriptor() -> None:
    with Pipe() as pipe:
        async with owning() as owned:
            watcher = await owned.spawn(Descriptors())
            await owned.node.call(watcher, WatchFd(pipe.read))
            await owned.node.call(watcher, WatchFd(pipe.write, readable=False, writable=True))
            await owned.until(FdWritable)

            owned.node.send_exit(watcher)

            assert await owned.down() == Shutdown()
            # Free for others again.
            await trio.lowlevel.wait_writable(pipe.write)
