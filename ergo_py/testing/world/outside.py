"""`Entrances`: what comes from outside of a world raises at the line where it enters.

Python reports sockets, programs and files that are written to an audit hook. A hook cannot be
removed, so a single hook asks for the world that runs. Threads and sleeps are not reported by each
Python: their functions are replaced while a world runs.
"""

import os
import random
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol

import trio
import trio._threads
from outcome import Outcome

from ..._core.runtime.bridge import get_ident
from ..._core.vocabulary.errors import ErgoError

__all__ = ["EPOCH", "Entrances", "OutsideError"]

_REFUSED: Final = {
    "socket.connect": "a connection to another program",
    "socket.bind": "a socket that other programs reach",
    "socket.getaddrinfo": "the address of a host",
    "socket.gethostbyname": "the address of a host",
    "subprocess.Popen": "another program",
    "os.exec": "another program",
    "os.posix_spawn": "another program",
    "os.system": "another program",
    "os.fork": "a copy of the program",
    "sqlite3.connect": "a database in a file",
}
_TLS: Final = "TLS, whose keys are random numbers of the operating system"
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT


EPOCH: Final = 1_767_225_600.0
"""The time of day when a world begins: the first of January 2026, in UTC."""


class OutsideError(ErgoError, RuntimeError):
    """Code in a world used something from outside of it, which no seed repeats."""

    def __init__(self, thing: str, place: str) -> None:
        self.place = place
        """The file and line of the code."""
        super().__init__(
            f"{place} uses {thing}, which comes from outside of the world and would differ in each "
            "run; give the code a stand-in in this test, such as ergo_py.testing.Replay for a "
            "meta-process, or WorldNode.disk for a file"
        )


class Threads(Protocol):
    """The threads of a world."""

    def is_inside(self) -> bool:
        """Whether a thread of this world asks."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Let time of the world pass in a thread of it."""
        ...

    def start_thread_soon(
        self,
        function: Callable[[], Any],
        deliver: Callable[[Outcome[Any]], object],
        name: str | None = None,
    ) -> None:
        """Stand in for the worker threads of trio."""
        ...

    def send_message_to_trio(self, token: object, message: object, /) -> Any:
        """Stand in for the way of ``trio.from_thread``."""
        ...


class Entrances:
    """Refuses what comes from outside while a world runs, in its loop and in its threads."""

    def __init__(self, seed: int, threads: Threads, now: Callable[[], float]) -> None:
        self._random = random.Random(repr((seed, "urandom")))
        self._threads = threads
        self._now = now
        """The seconds of the node that asks."""
        self._loop = 0
        self.errors: list[OutsideError] = []
        """The refused uses, the first first. A process may have caught the exception."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Refuse inside the block."""
        self._loop = get_ident()
        seeding = self._seeding(random.Random.seed)
        replaced = [
            (threading.Thread, "start", self._refusing("a thread", threading.Thread.start)),
            (ssl.SSLContext, "wrap_bio", self._refusing(_TLS, ssl.SSLContext.wrap_bio)),
            (time, "sleep", self._sleeping(time.sleep)),
            (time, "time", self._time_of_day(time.time)),
            (os, "urandom", self._random_bytes(os.urandom)),
            # Of the module `secrets`; `uuid4` and the keys of a WebSocket ask `os`.
            (random, "_urandom", self._random_bytes(os.urandom)),
            (random.Random, "seed", seeding),
            (random, "seed", partial(seeding, vars(random)["_inst"])),
            (trio._core._thread_cache, "THREAD_CACHE", self._threads),
            (trio._threads, "_send_message_to_trio", self._threads.send_message_to_trio),
        ]
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
        with _hook.asking(self):
            try:
                for owner, name, value in replaced:
                    setattr(owner, name, value)
                yield
            finally:
                for owner, name, value in before:
                    setattr(owner, name, value)

    def _refusing(self, thing: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*args: Any, **options: Any) -> Any:
            if self._is_inside():
                self._refuse(thing, 3)
            return function(*args, **options)

        return refuse

    def _sleeping(self, function: Callable[[float], None]) -> Callable[[float], None]:
        def sleep(seconds: float) -> None:
            if self._threads.is_inside():
                self._threads.sleep(seconds)
                return
            if self._is_inside():
                self._refuse("real time", 3)
            function(seconds)

        return sleep

    def _time_of_day(self, function: Callable[[], float]) -> Callable[[], float]:
        """Answers of a web server, for example, carry the time of day."""
        return lambda: EPOCH + self._now() if self._is_inside() else function()

    def _random_bytes(self, function: Callable[[int], bytes]) -> Callable[[int], bytes]:
        return lambda size: self._random.randbytes(size) if self._is_inside() else function(size)

    def _seeding(self, function: Callable[..., None]) -> Callable[..., None]:
        def seed(numbers: random.Random, a: Any = None, version: int = 2) -> None:
            if a is None and self._is_inside():
                a = self._random.getrandbits(128)
            function(numbers, a, version)

        return seed

    def _is_inside(self) -> bool:
        return get_ident() == self._loop or self._threads.is_inside()

    def look(self, event: str, args: tuple[Any, ...]) -> None:
        """Raise if a call is refused."""
        thing = _REFUSED.get(event)
        if event == "open" and len(args) == 3 and (args[2] or 0) & _WRITING:
            thing = None if _is_name(args[0]) else f"the file {args[0]!r}"
        if event == "sqlite3.connect" and args[0] == ":memory:":
            return
        if thing is not None and self._is_inside():
            self._refuse(thing, 4)

    def _refuse(self, thing: str, depth: int) -> None:
        place = _place(depth)
        if place is not None:
            self.errors.append(OutsideError(thing, place))
            raise self.errors[-1]


class _Hook:
    """The audit hook of the program, and the world that it asks."""

    def __init__(self) -> None:
        self._asked: Entrances | None = None
        self._is_installed = False

    @contextmanager
    def asking(self, entrances: Entrances) -> Iterator[None]:
        """Ask these entrances inside the block."""
        if not self._is_installed:
            sys.addaudithook(self._audit)
            self._is_installed = True
        before, self._asked = self._asked, entrances
        try:
            yield
        finally:
            self._asked = before

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self._asked is not None:
            self._asked.look(event, args)


_hook: Final = _Hook()


def _is_name(path: object) -> bool:
    """Whether it is the file with the name of a thread, which each thread of a node writes."""
    return isinstance(path, str) and path.startswith("/proc/self/task/")


def _place(depth: int) -> str | None:
    """The innermost line outside of Python's library; None inside of an import, which writes
    compiled modules.
    """
    frame: Any = sys._getframe(depth)
    found = None
    while frame is not None:
        name, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        if name.startswith("importlib"):
            return None
        if found is None and not file.startswith(_LIBRARY) and not file.startswith("<frozen"):
            found = f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return found


_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep
