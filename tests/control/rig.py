"""A node with a control socket in a directory of the test's own, and a client that knows nothing
but sockets and JSON.
"""

import json
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from ergo_py import Node
from ergo_py.control.connection import Limits
from ergo_py.control.server import Server
from tests.support import running_node, short_directory

__all__ = ["Impatient", "Quick", "Wire", "in_thread", "runtime_directory", "served"]

T = TypeVar("T")


@pytest.fixture(autouse=True)
def runtime_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of the test's own for control sockets."""
    with short_directory() as path:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
        yield path


class Quick(Limits):
    """A test must not wait long. But a loop that a busy machine gives no time is not blocked."""

    clients = 4
    line = 0.3
    writing = 0.3
    idle = 60.0
    patience = 20.0
    glance = 20.0


class Impatient(Quick):
    """For tests that block the loop."""

    patience = 0.4
    glance = 0.15


@asynccontextmanager
async def served(
    permissions: str = "look,act,attach", limits: type[Limits] = Quick, **options: Any
) -> AsyncIterator[tuple[Node, Server]]:
    async with running_node(**options) as node:
        server = Server(node, frozenset(permissions.split(",")), limits)
        server.start()
        try:
            yield node, server
        finally:
            await trio.to_thread.run_sync(server.close)
            assert not server.path.exists()


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Clients block, so they have threads."""
    return await trio.to_thread.run_sync(function, *args)


class Wire:
    """A single connection."""

    def __init__(self, path: Path | str, timeout: float = 20.0) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout)
        self._connect(os.fspath(path), time.monotonic() + timeout)
        self.file = self.sock.makefile("rb")
        self.number = 0

    def _connect(self, path: str, end: float) -> None:
        while True:
            try:
                self.sock.connect(path)
                return
            except BlockingIOError:  # too many want in
                if time.monotonic() > end:
                    self.sock.close()
                    raise
                time.sleep(0.01)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()
        self.sock.close()

    def say(self, data: bytes) -> None:
        self.sock.sendall(data)

    def hear(self) -> Any:
        """The next line; None if there is none any more."""
        try:
            line = self.file.readline()
        except ConnectionResetError:
            return None
        return json.loads(line) if line else None

    def ask(self, do: str, **arguments: object) -> Any:
        """The result, or the error."""
        self.number += 1
        self.say(
            json.dumps({"v": 1, "id": self.number, "do": do, "with": arguments}).encode() + b"\n"
        )
        while True:
            said = self.hear()
            assert said is not None, "the connection is closed"
            if "out" not in said:
                assert said["id"] == self.number
                return said["result"] if said["ok"] else said["error"]

    def show(self, source: str) -> str:
        """The output of a prompt after this input."""
        self.number += 1
        self.say(
            json.dumps(
                {"v": 1, "id": self.number, "do": "eval", "with": {"source": source}}
            ).encode()
            + b"\n"
        )
        text = ""
        while "out" in (said := self.hear()):
            text += said["out"]
        assert said["ok"], said
        return text
