"""``python -m benchmarks replacements``: peers connect, ask once and leave, while the server at
their address is replaced again and again. With ``--web`` they ask a web server.

Each next server begins before the last one drains, as in a deployment. The servers share a
listening socket (``sock=``), or with ``--port`` each opens a socket of its own at a shared port
(``reuse_port=True``). Every peer must be served, and none may be refused or reset.
"""

import argparse
import multiprocessing
import socket
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from os import getloadavg
from time import perf_counter
from typing import Literal

import trio

from ergo_py import PID, Actor, Alias, Drain, Node, Shutdown, open_node
from ergo_py.meta import TCP, TCPServer
from ergo_py.web import HTTPRequest, Response, WebServer

__all__ = ["Owner", "main", "replace"]

Reader = Literal["task", "thread"]
_CLIENTS = 2
"""Programs of peers, each with a single peer at a time."""
_QUESTION = {False: b"hello", True: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"}
_ANSWER = {False: b"hello", True: b"HTTP/1.1 200 "}
_PAUSE = 0.02
"""Seconds from a replacement to the next. Without a pause, replacing took most of the time."""


class Owner(Actor):
    """Owns a server of a generation, and answers."""

    def __init__(self, server: TCPServer | WebServer) -> None:
        self.server = server

    async def init(self) -> None:
        self.alias = await self.spawn_meta(self.server)

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        if isinstance(message, TCP.Data):
            self.send(message.connection, TCP.Send(message.data))

    def handle_call(self, request: object, caller: object) -> Alias | Response:
        return Response(200, "hello") if isinstance(request, HTTPRequest) else self.alias


async def replace(node: Node, old: PID, server: TCPServer | WebServer) -> tuple[PID, int]:
    """Start the next server, drain the last one and stop it. Returns the owner of the next, and how
    many connections the last one had to cut.
    """
    new = await node.spawn(Owner, server)
    alias: Alias = await node.call(old, "alias")
    cut = await node.call(alias, Drain(60.0), timeout=None)
    node.send_exit(old, Shutdown())
    return new, cut


def _ask(
    address: tuple[str, int], count: int, web: bool, outcomes: "multiprocessing.Queue[object]"
) -> None:
    """Peers, one after another."""
    question, answer = _QUESTION[web], _ANSWER[web]
    seen: Counter[str | bytes] = Counter()
    for _ in range(count):
        try:
            with socket.create_connection(address, timeout=60) as peer:
                peer.sendall(question)
                found = peer.recv(1000)
                seen["served" if found.startswith(answer) else found[9:12] or "closed"] += 1
        except OSError as error:
            seen[type(error).__name__] += 1
    outcomes.put(seen)


async def _measure(
    peers: int, reader: Reader, port: bool, web: bool
) -> tuple[Counter[str], int, int]:
    first = socket.create_server(("127.0.0.1", 0), backlog=1024, reuse_port=port)
    address = first.getsockname()
    make: Callable[[], TCPServer | WebServer]
    make = partial(WebServer) if web else partial(TCPServer, reader=reader)
    if port:
        first.close()
        make = partial(make, *address, reuse_port=True)
    else:
        make = partial(make, sock=first)
    seen: Counter[str] = Counter()
    replaced = cut = 0
    outcomes: multiprocessing.Queue[Counter[str]] = multiprocessing.Queue()
    async with open_node("replaced@localhost", log_output="none") as node:
        owner = await node.spawn(Owner, make())
        share = peers // _CLIENTS
        clients = [
            multiprocessing.Process(target=_ask, args=(address, share, web, outcomes), daemon=True)
            for _ in range(_CLIENTS)
        ]
        for client in clients:
            client.start()
        while any(client.is_alive() for client in clients) and outcomes.qsize() < _CLIENTS:
            owner, more = await replace(node, owner, make())
            replaced, cut = replaced + 1, cut + more
            await trio.sleep(_PAUSE)
        for _ in clients:
            seen += await trio.to_thread.run_sync(outcomes.get)
    first.close()
    return seen, replaced, cut


def main() -> int:
    """Replace servers until all peers have asked. 1 if a peer was not served."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks replacements", description=__doc__)
    parser.add_argument("--peers", type=int, default=100_000)
    parser.add_argument("--reader", choices=("task", "thread"), default="task")
    parser.add_argument("--port", action="store_true", help="a socket of its own for each server")
    parser.add_argument("--web", action="store_true", help="a WebServer, and a request of HTTP")
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    began = perf_counter()
    seen, replaced, cut = trio.run(
        _measure, options.peers, options.reader, options.port, options.web
    )
    print(
        f"{sum(seen.values())} peers in {perf_counter() - began:.0f} s, {replaced} servers "
        f"replaced, {cut} connections cut, load {getloadavg()[0]:.1f}: {dict(seen)}"
    )
    return 0 if set(seen) == {"served"} else 1


if __name__ == "__main__":
    sys.exit(main())
