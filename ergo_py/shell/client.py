"""The other end of control sockets: finding nodes, and asking them."""

import json
import os
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from .._core.runtime.bridge import wait_in_slices
from ..control.protocol import MAX_ANSWER, VERSION, ControlError, encode
from ..control.socket_paths import clean, sockets
from .exit_codes import Leave, Status

__all__ = ["Found", "Link", "choose", "find_nodes"]

_GREETING: Final = 2.0
"""Seconds that a node has to say who it is; its control thread needs none."""


class Link:
    """A connection to one node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._buffer = bytearray()
        self._number = 0
        self.node = ""
        self.os_pid = 0
        self.may: list[str] = []

    def open(self) -> None:
        """Connect.

        Raises:
            OSError: nobody is there, or says nothing.
            ControlError: the node does not want us.
        """
        self._sock.settimeout(_GREETING)
        self._connect(monotonic() + _GREETING)
        hello = self._receive(_GREETING)
        if "error" in hello:
            raise self._refused(hello["error"])
        if hello.get("ergo") != VERSION:
            raise ControlError(
                "version",
                f"{self.path} speaks version {hello.get('ergo')}, and this program {VERSION}",
            )
        match hello:
            case {"node": str(node), "os_pid": int(os_pid), "may": [*may]} if all(
                isinstance(one, str) for one in may
            ):
                self.node, self.os_pid, self.may = node, os_pid, may
            case _:
                raise self._not_understood()

    def _connect(self, end: float) -> None:
        while True:
            try:
                self._sock.connect(str(self.path))
                return
            except BlockingIOError:
                # So many want in that the system keeps no more of them waiting.
                if monotonic() > end:
                    raise
                sleep(0.05)

    def close(self) -> None:
        """Leave. The node goes on as if nobody had been there."""
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
        """Ask, and wait for the answer; ``out`` gets what is to be shown before.

        Raises:
            ControlError: the node refuses.
            ConnectionError: it went away.
            TimeoutError: it says nothing.
        """
        self._number += 1
        self._sock.settimeout(patience)
        self._sock.sendall(encode({"v": VERSION, "id": self._number, "do": do, "with": arguments}))
        while True:
            said = self._receive(patience)
            if said.get("id") != self._number and said.get("id") is not None:
                continue
            if "out" in said:
                if out is not None:
                    out(said["out"])
            elif said.get("ok"):
                return said.get("result")
            else:
                raise self._refused(said.get("error"))

    def cancel(self) -> None:
        """Have the node stop what it is doing for us; the answer says so."""
        self._sock.sendall(encode({"v": VERSION, "id": None, "do": "cancel"}))

    def wait_answer(self, out: Callable[[str], object]) -> None:
        """Wait for the answer to the last question once more, after the first wait was interrupted."""
        while True:
            said = self._receive(10.0)
            if said.get("id") == self._number:
                if "out" not in said:
                    return
                out(said["out"])

    def _receive(self, patience: float | None) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            if not wait_in_slices(self._has_something, patience):
                raise TimeoutError(f"{self.node or self.path} says nothing")
            data = self._sock.recv(65536)
            if not data:
                raise ConnectionError(f"{self.node or self.path} went away")
            self._buffer += data
            if len(self._buffer) > 2 * MAX_ANSWER:
                raise ConnectionError(f"{self.path} says more than a node may")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            raise self._not_understood() from None
        if not isinstance(said, dict):
            raise self._not_understood()
        return said

    def _refused(self, error: object) -> Exception:
        """The error that a node answered with."""
        match error:
            case {"code": str(code), "text": str(text), **more}:
                return ControlError(code, text, **{str(key): value for key, value in more.items()})
        return self._not_understood()

    def _not_understood(self) -> ConnectionError:
        return ConnectionError(f"{self.path} does not speak the language of control sockets")

    def _has_something(self, seconds: float) -> bool:
        return bool(select.select([self._sock], [], [], None if seconds < 0 else seconds)[0])


@dataclass(frozen=True, slots=True)
class Found:
    """A node that offers a control socket."""

    name: str
    os_pid: int
    path: Path
    may: tuple[str, ...]
    problem: str | None
    """Why it cannot be talked to."""


def find_nodes() -> list[Found]:
    """Every node of this user; sockets of dead ones are removed on the way."""
    clean()
    found = []
    for name, pid, path in sockets():
        link = Link(path)
        try:
            link.open()
        except (OSError, ControlError) as error:
            if not _is_alive(pid):
                # A copy of a program that has ended may still hold its socket.
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
    except (
        ProcessLookupError,
        OverflowError,
    ):  # no program can have a number as large as the file's name says
        return False
    except OSError:
        return True
    return True


def choose(name: str | None, os_pid: int | None) -> Link:
    """Connect to the node that is meant: by its name, by the part before the @, or because it is
    the only one.

    Raises:
        Leave: there is none, or there are several.
    """
    everybody = find_nodes()
    meant = [
        one
        for one in everybody
        if (name is None or name in (one.name, one.name.partition("@")[0]))
        and (os_pid is None or one.os_pid == os_pid)
    ]
    if len(meant) == 1:
        link = Link(meant[0].path)
        try:
            link.open()
        except ControlError as error:
            link.close()
            raise Leave(Status.of(error.code), f"{meant[0].name}: {error.text}") from None
        except OSError as error:
            link.close()
            raise Leave(Status.NO_ANSWER, f"{meant[0].name} does not answer: {error}") from None
        return link
    if meant:
        told = "\n".join(f"  {one.name}  --pid {one.os_pid}" for one in meant)
        raise Leave(Status.NO_NODE, f"several nodes are meant; say which:\n{told}")
    if everybody:
        asked = " and ".join(
            word
            for word in (
                f"the name {name!r}" if name else "",
                f"the program {os_pid}" if os_pid else "",
            )
            if word
        )
        told = "\n".join(f"  {one.name}  (program {one.os_pid})" for one in everybody)
        raise Leave(Status.NO_NODE, f"no node with {asked}; there are:\n{told}")
    raise Leave(
        Status.NO_NODE,
        "no node offers a control socket; start one with `ergo run --control look module:app`, "
        'or open_node(..., control="look")',
    )
