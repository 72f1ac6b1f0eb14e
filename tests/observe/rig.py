"""A server of the page at a free port, and clients that know nothing but sockets and JSON."""

import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import trio
from websockets.sync.client import ClientConnection, connect

from ergo_py import Node
from ergo_py.observe.node_list import Plan
from ergo_py.observe.server import Listening, Server, Url
from tests.support import running_node

__all__ = ["TOKEN", "Page", "http", "in_thread", "observed", "page_of", "serving"]

T = TypeVar("T")

TOKEN = "a-token-of-this-test"


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Clients block, so they have threads."""
    return await trio.to_thread.run_sync(function, *args)


@asynccontextmanager
async def serving(plan: Plan | None = None, **options: Any) -> AsyncIterator[str]:
    """The address of a page in a node of its own."""
    async with running_node("observe@localhost") as node:
        server = await node.spawn(Server, plan or Plan(TOKEN), Listening(port=0, **options))
        yield await node.call(server, Url())


@asynccontextmanager
async def observed(
    plan: Plan | None = None, permissions: str = "look,act", **options: Any
) -> AsyncIterator[tuple[Node, str]]:
    """A node with a control socket, and the address of a page that shows it."""
    async with (
        running_node("shop@localhost", control=permissions, **options) as node,
        serving(plan) as url,
    ):
        yield node, url


class Page:
    """A page without a browser."""

    def __init__(self, url: str, token: str | None = TOKEN, **options: Any) -> None:
        base, _, _ = url.partition("/#")
        self._context = connect(base.replace("http", "ws", 1) + "/ws", max_size=None, **options)
        self.socket: ClientConnection = self._context.__enter__()
        self._number = 0
        self.views: dict[str, dict[str, Any]] = {}
        self.errors: dict[str, Any] = {}
        self.nodes: list[dict[str, Any]] = []
        if token is not None:
            self.say({"hello": 1, "token": token})

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._context.__exit__(None, None, None)

    def say(self, message: Any) -> None:
        self.socket.send(json.dumps(message))

    def hear(self, timeout: float = 20.0) -> dict[str, Any]:
        """The next message; views and nodes are noted."""
        said: dict[str, Any] = json.loads(self.socket.recv(timeout))
        if said.get("push") == "nodes":
            self.nodes = said["nodes"]
        elif said.get("push") == "view":
            self.errors.pop(said["view"], None)
            if "error" in said:
                self.errors[said["view"]] = said["error"]
            else:
                before = {} if said.get("whole") else self.views[said["view"]]
                self.views[said["view"]] = merged(before, said["patch"])
        return said

    def until(self, is_done: Callable[[], object]) -> None:
        """Read until something holds."""
        while not is_done():
            self.hear()

    def close_code(self) -> int:
        """The code with which the server closes."""
        try:
            while True:
                self.socket.recv(20.0)
        except Exception:  # any end of the connection
            code = self.socket.close_code
            assert code is not None
            return code

    def ask(self, do: str, node: str = "shop@localhost", **arguments: Any) -> Any:
        """The result, or the error."""
        return self.ask_all(do, node, **arguments)[-1]

    def ask_all(self, do: str, node: str = "shop@localhost", **arguments: Any) -> list[Any]:
        """The output, and then the result or the error."""
        self._number += 1
        self.say({"id": self._number, "do": do, "node": node, "with": arguments})
        found: list[Any] = []
        while True:
            said = self.hear()
            if said.get("id") == self._number:
                if "out" not in said:
                    return [*found, said["result"] if said["ok"] else said["error"]]
                found.append(said["out"])

    def watch(self, node: str = "shop@localhost", **views: Any) -> None:
        """Watch views, each given by its kind and arguments."""
        self.ask("watch", node, views=views)


def merged(value: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """RFC 7396, as its section 2 has it."""
    result = dict(value)
    for key, new in patch.items():
        if new is None:
            result.pop(key, None)
        elif isinstance(new, dict):
            known = result.get(key)
            result[key] = merged(known if isinstance(known, dict) else {}, new)
        else:
            result[key] = new
    return result


def page_of(url: str, work: Callable[[Page], T], **options: Any) -> T:
    """Do something with a page."""
    with Page(url, **options) as page:
        return work(page)


def http(url: str, path: str = "/", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, fields and body of a request whose head is given."""
    place = urlsplit(url)
    assert place.hostname is not None
    fields = {"host": place.netloc, "connection": "close", **headers}
    with socket.create_connection((place.hostname, place.port or 80), 20) as sock:
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
        sock.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
        data = b""
        # A refused request may be followed by a reset.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 20, 0))
        while piece := sock.recv(65536):
            data += piece
            if b"\r\n\r\n" in data and "upgrade" in headers:
                break
    top, _, body = data.partition(b"\r\n\r\n")
    first, *lines = top.decode().split("\r\n")
    found = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), found, body
