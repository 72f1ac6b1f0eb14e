"""`Link`: a blocking connection to a control socket. `find_nodes`: the search for nodes."""

import os
import select
import socket
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from .conversation import GREETING, READ_SIZE, Output, Transport
from .protocol import ControlError
from .socket_paths import clean, sockets

__all__ = ["Found", "Link", "find_nodes"]

_SLICE: Final = 0.2
"""Seconds that a wait for an answer blocks at a time."""


class Link(Transport):
    """A connection to a node, for threads that may block."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def open(self) -> None:
        """Connect.

        Raises:
            OSError: no node listens there, or it does not answer.
            ControlError: the node refuses the connection.
        """
        self._sock.settimeout(GREETING)
        end = monotonic() + GREETING
        while True:
            try:
                self._sock.connect(str(self.path))
                break
            except BlockingIOError:
                # The accept queue is full: the system refuses further connections for now.
                if monotonic() > end:
                    raise
                sleep(0.05)
        self._receive(GREETING, None)

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
        out: Output | None = None,
        **arguments: object,
    ) -> Any:
        """Send a request and wait for the answer; ``out`` gets output that arrives before the
        answer.

        Raises:
            ControlError: the node refuses.
            ConnectionError: the node closed the connection.
            TimeoutError: the node does not answer.
        """
        self._sock.settimeout(patience)
        self._send(self.conversation.ask(do, arguments))
        return self._receive(patience, out)

    def cancel(self) -> None:
        """Cancel the request in progress; its answer confirms that."""
        self._send(self.conversation.cancel())

    def wait_answer(self, out: Output) -> None:
        """Wait again for the answer to the last request, after the first wait was interrupted."""
        with suppress(ControlError):
            self._receive(10.0, out)

    def _send(self, data: bytes) -> None:
        try:
            self._sock.sendall(data)
        except BrokenPipeError:
            # A broken pipe is left to mean the reader of the command's output, such as `head`.
            raise ConnectionResetError(
                f"{self.node or self.path} has closed the connection"
            ) from None

    def _receive(self, patience: float | None, out: Output | None) -> object:
        answer = self.conversation.answer(out)
        while answer is None:
            if not self._has_input(patience):
                raise TimeoutError(f"{self.node or self.path} does not answer")
            answer = self.conversation.feed(self._sock.recv(READ_SIZE), out)
        return answer.result

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
