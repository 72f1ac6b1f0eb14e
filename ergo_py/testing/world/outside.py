"""`Entrances`: what comes from outside of a world raises at the line where it enters.

Python reports sockets, programs and files that are written to an audit hook. A hook cannot be
removed, so a single hook asks for the world that runs. Threads and sleeps are not reported by each
Python: their functions are replaced while a world runs.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio

from ..._core.runtime.bridge import get_ident
from ..._core.vocabulary.errors import ErgoError

__all__ = ["Entrances", "OutsideError"]

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
}
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT


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


class Entrances:
    """Refuses what comes from outside while a world runs, in its thread."""

    def __init__(self) -> None:
        self._thread = 0
        self.errors: list[OutsideError] = []
        """The refused uses, the first first. A process may have caught the exception."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Refuse inside the block."""
        self._thread = get_ident()
        cache: Any = trio._core._thread_cache
        replaced = [
            (threading.Thread, "start", self._refusing("a thread", threading.Thread.start)),
            (time, "sleep", self._refusing("real time", time.sleep)),
            # An idle worker thread of an earlier run would take a job without a start.
            (cache, "THREAD_CACHE", cache.ThreadCache()),
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
        def refuse(*args: Any) -> Any:
            if get_ident() == self._thread:
                self._refuse(thing, 3)
            return function(*args)

        return refuse

    def look(self, event: str, args: tuple[Any, ...]) -> None:
        """Raise if a call is refused."""
        thing = _REFUSED.get(event)
        if event == "open" and len(args) == 3 and (args[2] or 0) & _WRITING:
            thing = f"the file {args[0]!r}"
        if thing is not None and get_ident() == self._thread:
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
