"""`no_leaks` and `Inventory`: find threads, descriptors and child programs that were not there
before.
"""

import gc
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import trio

from .._core.vocabulary.errors import ErgoError
from .._core.vocabulary.options import check_number
from .threads import children, is_idle_worker, other_threads

try:
    import resource
except ImportError:  # Windows has no limit that could be read
    resource = None  # type: ignore[assignment]

__all__ = ["Inventory", "LeakError", "no_leaks", "take_inventory"]

_PAUSE: Final = 0.005
_HARMLESS: Final = ("/dev/urandom", "/dev/random", ".py", ".pyc", ".so")
"""Suffixes of descriptor targets that the interpreter opens by itself."""
_MOST: Final = 65_536
"""Number of descriptors to try where the system has no list of the open descriptors."""
_HELPERS: Final = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Programs that the standard library keeps until the interpreter exits."""


class LeakError(ErgoError, AssertionError):
    """A resource was left behind, or a process crashed unexpectedly."""

    def __init__(self, left: list[str]) -> None:
        self.left: tuple[str, ...] = tuple(left)
        """A line for each."""
        super().__init__("\n".join(left))


@dataclass(frozen=True, slots=True)
class Inventory:
    """The resources of a program at a moment."""

    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[int, str]]
    children: frozenset[int]

    def left(self) -> list[str]:
        """The resources that exist now and did not then, a line each."""
        lines = [
            f"thread {thread.name!r} is left"
            for thread in other_threads()
            if thread not in self.threads and not is_idle_worker(thread)
        ]
        lines += [
            f"descriptor {number} is left: {target}"
            for number, target in sorted(_descriptors() - self.descriptors)
            if not target.endswith(_HARMLESS)
        ]
        lines += [
            f"child program {pid} is left: {command}"
            for pid, command in children().items()
            if pid not in self.children and not any(helper in command for helper in _HELPERS)
        ]
        return lines

    async def left_after(self, grace: float) -> list[str]:
        """The same, after up to ``grace`` real seconds for resources that are about to go."""
        deadline = time.perf_counter() + grace
        while (lines := self._collected()) and time.perf_counter() < deadline:
            # Sleep in real time: threads end in real time, regardless of the loop's clock; and no
            # other task needs the loop now.
            time.sleep(_PAUSE)  # noqa: ASYNC251
            await trio.lowlevel.checkpoint()
        return lines

    def left_after_blocking(self, grace: float) -> list[str]:
        """The same for synchronous code: it blocks the thread."""
        deadline = time.perf_counter() + grace
        while (lines := self._collected()) and time.perf_counter() < deadline:
            time.sleep(_PAUSE)
        return lines

    def _collected(self) -> list[str]:
        lines = self.left()
        if lines:
            # Unreferenced objects are closed when they are collected. Collect only if there is a
            # finding.
            gc.collect()
            lines = self.left()
        return lines


def take_inventory() -> Inventory:
    """Record the current threads, descriptors and child programs."""
    return Inventory(frozenset(threading.enumerate()), _descriptors(), frozenset(children()))


@contextmanager
def no_leaks(*, grace: float = 2.0) -> Iterator[Inventory]:
    """Fail if the block leaves threads, descriptors (sockets, pipes, files) or child programs
    behind.

    For code without a node, or with a node that the block opens and closes itself: a check around
    ``trio.run`` sees everything.

    Args:
        grace: real seconds that they may take to end.

    Raises:
        LeakError: names each of them.
    """
    __tracebackhide__ = True
    check_number("grace", grace, least=0.0)
    before = take_inventory()
    yield before
    left = before.left_after_blocking(grace)
    if left:
        raise LeakError(left)


def _descriptors() -> frozenset[tuple[int, str]]:
    """The open descriptors, each with its target, so that a reused number counts as a new
    descriptor.
    """
    found = set()
    for number in _open_numbers():
        try:
            try:
                target = os.readlink(f"/proc/self/fd/{number}")
            except FileNotFoundError:
                facts = os.fstat(number)
                target = f"device {facts.st_dev}, number {facts.st_ino}"
        except OSError:  # the descriptor of the listing itself
            continue
        found.add((number, target))
    return frozenset(found)


def _open_numbers() -> Iterable[int]:
    """The numbers of all open descriptors; where the system has no list of them, all possible
    numbers.
    """
    try:
        return map(int, os.listdir("/dev/fd"))
    except OSError:
        if resource is None:
            return range(_MOST)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return range(_MOST if most == resource.RLIM_INFINITY else min(most, _MOST))
