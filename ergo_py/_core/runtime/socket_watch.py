"""`SocketWatch`: a task waits for the same socket again and again.

``trio.lowlevel.wait_readable`` tells the system about each wait, and every wake-up runs through six
coroutines of trio. A watch tells the system once, and a wake-up runs through one.

trio notes an event of a socket in its table of waiting tasks. A watch stands in that table in place
of trio's entry, which is all that this module knows of the inside of trio. `unmet` compares the
installed trio with the trio that the module was written for. With any other trio, and where trio
does not use epoll, a watch calls ``wait_readable``.
"""

import select
from collections.abc import Awaitable
from contextlib import suppress
from time import perf_counter
from typing import Any, Final

import trio
from trio.lowlevel import current_task, wait_readable

from .parking import park_as

__all__ = ["SocketWatch", "unmet"]


_SystemClock: Final = getattr(trio._core._run, "SystemClock", None)
_MOMENT: Final = 0.001
"""Seconds of a wait within a turn: the shortest that epoll knows."""
# Not measured: with more events, the array that epoll fills would be larger for each look, and
# mostly empty.
_EVENTS: Final = 8
"""Events to read in a look. Mostly one socket is ready; further ones wait for the next look."""
_SHORT: Final = 0.001
"""A wait that was shorter is followed by waits within the turn."""
_TURN: Final = 0.005
"""Seconds after which a turn ends at the latest, so that trio looks at its deadlines."""


class SocketWatch:
    """Waits for a socket. The task that creates it is the task that waits."""

    __slots__ = (
        "_began",
        "_descriptor",
        "_is_silent",
        "_epoll",
        "_may_poll",
        "_poll_until",
        "_reschedule",
        "_runner",
        "_table",
        "_task",
    )

    read_task: Final = None
    write_task: Final = None
    """For trio: no task of trio's own waits here."""

    def __init__(self, descriptor: int) -> None:
        """``descriptor`` must not be waited for in any other way."""
        self._descriptor = descriptor
        self._task: Any = current_task()
        self._runner = runner = self._task._runner
        self._reschedule = runner.reschedule
        self._may_poll = False
        self._is_silent = False
        """The system does not report events until the next wait."""
        self._began = 0.0
        self._poll_until = 0.0
        """Until then the task may wait within its turn: the last wait was short."""
        self._epoll: Any = None
        self._table: dict[int, Any] | None = None
        io = runner.io_manager
        if not unmet(io):
            with suppress(OSError):  # the first wait finds the error, too
                try:
                    io._epoll.register(descriptor, select.EPOLLIN)
                except FileExistsError:  # a task has waited for it before
                    io._epoll.modify(descriptor, select.EPOLLIN)
                self._epoll, self._table = io._epoll, io._registered
                # As a guest, trio waits in a thread; a virtual clock has to see all waits.
                self._may_poll = not runner.is_guest and type(runner.clock) is _SystemClock

    def poll(self) -> bool:
        """Wait for the socket in this turn of the task, for a millisecond at most. True if it is
        readable. Call this only while no other task is ready; an event of any other descriptor
        ends the wait.
        """
        # A task in `wait_all_tasks_blocked` waits for a pass of the loop without work, which a wait
        # within the turn would put off.
        if perf_counter() >= self._poll_until or self._runner.waiting_for_idle:
            return False
        events = self._epoll.poll(_MOMENT, _EVENTS)
        if len(events) == 1 and events[0][0] == self._descriptor:
            return True
        if events:
            self._runner.io_manager.process_events(events)
        return False

    def wait(self) -> Awaitable[None]:
        """Wait until the socket is readable, or has failed. May return too early. The task reads
        the socket before it waits for anything else: an unread socket keeps the loop awake.
        """
        if self._table is None:
            return wait_readable(self._descriptor)  # noqa: ASYNC105 - the caller awaits it
        if self._is_silent:
            self._is_silent = False
            self._epoll.modify(self._descriptor, select.EPOLLIN)
        self._began = perf_counter()
        # trio removes an entry with each event.
        self._table[self._descriptor] = self
        return park_as(self._task, self)

    @property
    def current_flags(self) -> int:
        """For trio: it has nothing to change at the epoll."""
        return 0

    @current_flags.setter
    def current_flags(self, _flags: int) -> None:
        # trio notes an event.
        task = self._task
        if task.custom_sleep_data is self:
            now = perf_counter()
            is_busy = self._may_poll and now - self._began < _SHORT
            self._poll_until = now + _TURN if is_busy else 0.0
            self._reschedule(task, self)
        else:
            # The wait was cancelled. The loop must not be woken again and again meanwhile.
            self._is_silent = True
            self._epoll.modify(self._descriptor, select.EPOLLONESHOT)

    def close(self) -> None:
        """End the watch, before the socket is closed."""
        table, self._table = self._table, None
        self._may_poll, self._poll_until = False, 0.0
        if table is not None:
            if table.get(self._descriptor) is self:
                del table[self._descriptor]
            with suppress(OSError, ValueError):  # the socket, or trio's loop, is closed
                self._epoll.unregister(self._descriptor)


_NAMES: Final = {
    "process_events": {
        "EPOLLIN",
        "EPOLLOUT",
        "_core",
        "_force_wakeup",
        "_force_wakeup_fd",
        "_registered",
        "_update_registrations",
        "current_flags",
        "drain",
        "read_task",
        "reschedule",
        "select",
        "write_task",
    },
    "_update_registrations": {
        "EPOLLIN",
        "EPOLLONESHOT",
        "EPOLLOUT",
        "OSError",
        "_epoll",
        "_registered",
        "current_flags",
        "modify",
        "read_task",
        "register",
        "select",
        "wake_all",
        "write_task",
    },
}
"""The names that trio uses where it notes an event. Another name would be a step that this module
does not know.
"""


def unmet(io: object) -> str:
    """How ``io``, which waits for the sockets of trio's loop, differs from the trio of this module;
    empty if a socket can be watched.
    """
    kind = type(io)
    known = _known.get(kind)
    if known is None:
        known = _known[kind] = _difference(kind)
    return known


def _difference(kind: type) -> str:
    if kind.__name__ != "EpollIOManager":
        return f"trio waits with {kind.__name__}"
    for method, names in _NAMES.items():
        found = getattr(getattr(kind, method, None), "__code__", None)
        if found is None or set(found.co_names) != names:
            return f"{method} of trio {trio.__version__} has other steps"
    return ""


_known: Final[dict[type, str]] = {}
