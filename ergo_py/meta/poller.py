"""`SocketPoller`: a single task that waits for many sockets. Each wake-up of the loop serves all
that are ready.

``trio.lowlevel.wait_readable`` costs a system call and a turn of the scheduler for each read of
each socket. Reader tasks share an epoll instead, which the loop watches like any descriptor; plain
functions read the ready sockets in a single turn. Where there is no epoll, each reader waits by
itself.
"""

import select
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ClassVar, Final

import trio
from trio.lowlevel import Task, current_task, notify_closing, wait_readable

from .._core import sources
from .._core.runtime.parking import TrioTurns, park_as, wake_with, yield_turn
from .._core.runtime.time_slices import SLICE

__all__ = ["SocketPoller", "watch_alone"]

_AT_ONCE: Final = 64
"""Sockets to ask epoll for in a call."""
_ENDS_AT_ONCE: Final = 8
"""Watches that may end before other tasks run: each wakes a task, which mostly ends a connection,
and that costs a hundred times as much as a read.
"""

Start = Callable[[Callable[[], Awaitable[None]]], None]
Readable = Callable[[], bool]
"""Reads once, without waiting. False ends the watch: the reader itself has something to wait
for.
"""


Ended = Callable[[Exception | None], None]
"""Called when a watch has ended by itself, with the exception that ``readable`` has raised."""


class _WatchedSocket:
    __slots__ = ("ended", "failure", "readable", "sock", "task")

    def __init__(
        self, sock: socket.socket, readable: Readable, task: Task | None, ended: Ended | None
    ) -> None:
        self.sock: socket.socket = sock
        self.readable: Readable = readable
        self.task: Task | None = task
        """The reader; None if there are only functions."""
        self.ended: Ended | None = ended
        self.failure: Exception | None = None


class SocketPoller:
    """Serves the reader tasks of a server. Everything here happens on the loop."""

    watch_type: ClassVar[type[_WatchedSocket]] = _WatchedSocket
    """For the C extension."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._epoll: select.epoll | None = None
        self._turns = TrioTurns()
        self._watches: dict[int, _WatchedSocket] = {}
        self._paused: dict[int, _WatchedSocket | None] = {}
        """The watches of paused sockets; None while the reader has something else to wait for."""
        self._scope: trio.CancelScope | None = None
        self.is_open: bool = False
        """Whether sockets can be watched."""

    def open(self, turns: TrioTurns) -> None:
        """Open the epoll before there are connections: if no descriptor is left, the server fails
        to start, and not its connections.

        Raises:
            OSError: no descriptor is left.
        """
        self._epoll = select.epoll()
        self._turns = turns
        self.is_open = True

    async def watch(self, sock: socket.socket, readable: Readable) -> None:
        """Call ``readable`` whenever the socket is readable, until it returns False."""
        if self._epoll is None:
            # The server was closed without waiting for its connections.
            await watch_alone(sock, readable, self._turns)
            return
        task = current_task()
        watch = self.add(sock, readable, None, task)
        fd = sock.fileno()
        try:
            await park_as(task, watch)
        finally:
            self._forget(fd, watch)
        if watch.failure is not None:
            raise watch.failure

    def add(
        self,
        sock: socket.socket,
        readable: Readable,
        ended: Ended | None = None,
        task: Task | None = None,
    ) -> _WatchedSocket:
        """Do the same without waiting, mostly without a task. Without ``ended`` and ``task``,
        ``readable`` must not raise. This watch takes the place of another of the same socket.
        """
        assert self._epoll is not None
        watch, fd = _WatchedSocket(sock, readable, task, ended), sock.fileno()
        if fd in self._paused:
            self._paused[fd] = watch
            return watch
        former = self._watches.get(fd)
        # A socket that was closed under its watch has left its number to this one.
        if former is None or former.sock is not sock:
            with suppress(FileExistsError):  # both objects stand for the same open socket
                self._epoll.register(fd, select.EPOLLIN)
        self._watches[fd] = watch
        if self._scope is None:
            self._scope = trio.CancelScope()
            self._start(self._serve)
        return watch

    def drop(self, sock: socket.socket) -> None:
        """Watch a socket no longer that was added."""
        fd = sock.fileno()
        watch = self._watches.get(fd) or self._paused.get(fd)
        if watch is not None:
            self._forget(fd, watch)

    def pause(self, fd: int) -> None:
        """Watch a socket no longer until :meth:`resume`. A reader that has still to wait for its
        receiver parks when it would watch the socket again.
        """
        watch = self._watches.get(fd)
        if watch is not None:
            self._forget(fd, watch)
        self._paused[fd] = watch

    def is_paused(self, fd: int) -> bool:
        """Whether the reader of a paused socket waits for nothing but bytes."""
        return self._paused.get(fd) is not None

    def resume(self, fd: int) -> None:
        """Watch a paused socket again."""
        watch = self._paused.pop(fd, None)
        if watch is not None and self._epoll is not None:
            self._epoll.register(fd, select.EPOLLIN)
            self._watches[fd] = watch

    def close(self) -> None:
        """Close the epoll. No task may be watching."""
        if self._scope is not None:
            self._scope.cancel()
        if self._epoll is not None:
            notify_closing(self._epoll)
            self._epoll.close()
            self._epoll = None
            self.is_open = False

    def _forget(self, fd: int, watch: _WatchedSocket) -> None:
        if self._paused.get(fd) is watch:
            self._paused[fd] = None
        if self._watches.get(fd) is watch:
            del self._watches[fd]
            if self._epoll is not None:
                try:
                    self._epoll.unregister(fd)
                except OSError:  # the reader has closed its socket, which ends the watch, too
                    return

    async def _serve(self) -> None:
        assert self._scope is not None
        turns, task = self._turns, current_task()
        with self._scope:
            while (epoll := self._epoll) is not None:
                try:
                    await wait_readable(epoll)
                except trio.ClosedResourceError:  # by close(): the node is ending
                    return
                ready = epoll.poll(0, _AT_ONCE)
                is_root = turns.begin(task, len(ready) > 1)
                try:
                    done = self._read_some(ready, 0)
                    while done < len(ready):
                        if is_root:
                            turns.serve(task)
                        await yield_turn(task)
                        is_root = turns.begin(task, True)
                        done = self._read_some(ready, done)
                except BaseException:
                    turns.end(task)
                    raise
                if is_root:
                    turns.serve(task)

    def _read_some(self, ready: list[tuple[int, int]], first: int) -> int:
        """Read the ready sockets from the index ``first`` on, until other tasks have to run.
        Returns the index of the next socket to read.
        """
        watches, end, left = self._watches, sources.slice_clock() + SLICE, _ENDS_AT_ONCE
        done = first
        for fd, _ in ready[first:] if first else ready:
            done += 1
            watch = watches.get(fd)
            if watch is None:
                continue
            try:
                keeps_watching = watch.readable()
            except Exception as error:
                # Only the reader of this socket fails.
                watch.failure = error
                keeps_watching = False
            if not keeps_watching:
                self._end_watch(fd, watch)
                left -= 1
            if not left or sources.slice_clock() >= end:
                break
        return done

    def _end_watch(self, fd: int, watch: _WatchedSocket) -> None:
        """Tell the reader of a socket that is not watched any more."""
        self._forget(fd, watch)
        if watch.task is not None:
            wake_with(watch.task, watch)
        elif watch.ended is not None:
            watch.ended(watch.failure)


async def watch_alone(sock: socket.socket, readable: Readable, turns: TrioTurns) -> None:
    """The same for a reader without a poller."""
    task = current_task()
    while True:
        await wait_readable(sock)
        is_root = turns.begin(task)
        try:
            keeps_watching = readable()
        except BaseException:
            turns.end(task)
            raise
        if is_root:
            turns.serve(task)
        if not keeps_watching:
            await yield_turn(task)
            return
