"""`Link`: the client of control sockets, and the search for nodes."""

import json
import os
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from .protocol import MAX_ANSWER, VERSION, ControlError, encode
from .socket_paths import clean, sockets

__all__ = [
    "Found",
    "Link",
    "find_nodes",
    "read_answer",
    "read_greeting",
    "read_refusal",
]

_GREETING: Final = 2.0
"""Seconds a node has for its greeting; its control thread normally answers at once."""
_SLICE: Final = 0.2
"""Seconds that a wait for an answer blocks at a time."""


def read_answer(line: bytes, path: Path) -> dict[str, Any]:
    """Parse a line from a node.

    Raises:
        ConnectionError: it is no JSON object.
    """
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        raise _not_understood(path) from None
    if not isinstance(answer, dict):
        raise _not_understood(path)
    return answer


def read_greeting(hello: dict[str, Any], path: Path) -> tuple[str, int, list[str]]:
    """The name of the node, the number of its program, and its permissions.

    Raises:
        ControlError: the node refuses the connection, or has another version.
        ConnectionError: it is no greeting.
    """
    if "error" in hello:
        raise read_refusal(hello["error"], path)
    if hello.get("ergo") != VERSION:
        raise ControlError(
            "version", f"{path} speaks version {hello.get('ergo')}, and this program {VERSION}"
        )
    match hello:
        case {"node": str(node), "os_pid": int(os_pid), "may": [*may]} if all(
            isinstance(permission, str) for permission in may
        ):
            return node, os_pid, may
    raise _not_understood(path)


def read_refusal(error: object, path: Path) -> Exception:
    """The error that a node answered with."""
    match error:
        case {"code": str(code), "text": str(text), **more}:
            return ControlError(code, text, **{str(key): value for key, value in more.items()})
    return _not_understood(path)


def _not_understood(path: Path) -> ConnectionError:
    return ConnectionError(f"{path} does not speak the protocol of control sockets")


class Link:
    """A connection to a node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._buffer = bytearray()
        self._number = 0
        self._other: str | None = None
        """The node that gets the requests, if it is another node."""
        self.node = ""
        self.os_pid = 0
        self.may: list[str] = []

    def open(self) -> None:
        """Connect.

        Raises:
            OSError: no node listens there, or it does not answer.
            ControlError: the node refuses the connection.
        """
        self._sock.settimeout(_GREETING)
        self._connect(monotonic() + _GREETING)
        hello = self._receive(_GREETING)
        self.node, self.os_pid, self.may = read_greeting(hello, self.path)

    def _connect(self, end: float) -> None:
        while True:
            try:
                self._sock.connect(str(self.path))
                return
            except BlockingIOError:
                # The accept queue is full: the system refuses further connections for now.
                if monotonic() > end:
                    raise
                sleep(0.05)

    def pass_on(self, node: str) -> None:
        """Have the node pass all further requests on to another node of its network."""
        self._other = self.node = node

    def close(self) -> None:
        """Disconnect. The node continues unaffected."""
        self._sock.close()

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(
        self,
        do: str,
        *,
        patience: float | None = 30.0,
        out: Callable[[str], object] | None = None,
        **arguments: object,
    ) -> Any:
        """Send a request and wait for the answer; ``out`` gets output that arrives before the
        answer.

        Raises:
            ControlError: the node refuses.
            ConnectionError: the node closed the connection.
            TimeoutError: the node does not answer.
        """
        self._number += 1
        if self._other is not None:
            do, arguments = "at", {"node": self._other, "do": do, "with": arguments}
        self._sock.settimeout(patience)
        self._sock.sendall(encode({"v": VERSION, "id": self._number, "do": do, "with": arguments}))
        while True:
            answer = self._receive(patience)
            if answer.get("id") != self._number and answer.get("id") is not None:
                continue
            if "out" in answer:
                if out is not None:
                    out(answer["out"])
            elif answer.get("ok"):
                return answer.get("result")
            else:
                raise read_refusal(answer.get("error"), self.path)

    def cancel(self) -> None:
        """Cancel the request in progress; its answer confirms that."""
        self._sock.sendall(encode({"v": VERSION, "id": None, "do": "cancel"}))

    def wait_answer(self, out: Callable[[str], object]) -> None:
        """Wait again for the answer to the last request, after the first wait was interrupted."""
        while True:
            answer = self._receive(10.0)
            if answer.get("id") == self._number:
                if "out" not in answer:
                    return
                out(answer["out"])

    def _receive(self, patience: float | None) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            if not self._has_input(patience):
                raise TimeoutError(f"{self.node or self.path} does not answer")
            data = self._sock.recv(65536)
            if not data:
                raise ConnectionError(f"{self.node or self.path} closed the connection")
            self._buffer += data
            if len(self._buffer) > 2 * MAX_ANSWER:
                raise ConnectionError(f"{self.path} sent more than the protocol allows")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return read_answer(bytes(line), self.path)

    def _has_input(self, patience: float | None) -> bool:
        """Wait for input. In slices: a Ctrl-C that arrives just before ``select`` blocks does not
        wake it.
        """
        end = inf if patience is None else monotonic() + patience
        while not select.select([self._sock], [], [], max(0.0, min(_SLICE, end - monotonic())))[0]:
            if monotonic() >= end:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Found:
    """A node that offers a control socket."""

    name: str
    os_pid: int
    path: Path
    may: tuple[str, ...]
    problem: str | None
    """Why it cannot be reached."""


def find_nodes() -> list[Found]:
    """Every node of this user. Removes the sockets of dead nodes."""
    clean()
    found = []
    for name, pid, path in sockets():
        link = Link(path)
        try:
            link.open()
        except (OSError, ControlError) as error:
            if not _is_alive(pid):
                # A forked child of a dead program may still hold its socket.
                path.unlink(missing_ok=True)
                continue
            problem = "does not answer" if isinstance(error, TimeoutError) else str(error)
            found.append(Found(name, pid, path, (), problem))
        else:
            found.append(Found(link.node, link.os_pid, path, tuple(link.may), None))
        finally:
            link.close()
    return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        # OverflowError: the number in the file name is too large for a process id.
        return False
    except OSError:
        return True
    return True
