"""The examples in the docstrings of the servers run as they are printed, but for their ports."""

import inspect
import re
import socket
import textwrap
from typing import Any

import trio

from ergo_py import Node
from ergo_py.meta import Endpoint, TCPServer, UDPServer
from tests.support import running_node


def examples(thing: type) -> list[str]:
    """The literal blocks of a docstring."""
    text = inspect.getdoc(thing) or ""
    return [
        textwrap.dedent(block) for block in re.findall(r"::\n\n((?:    .*\n|\n)+)", text + "\n")
    ]


async def listening(node: Node, source: str, actor: str, names: dict[str, Any]) -> Endpoint:
    """Spawn the actor of an example at a free port, and return the endpoint of its server."""
    source = re.sub(r"\b(7777|7778|8125)\b", "0", source).replace("0.0.0.0", "127.0.0.1")
    exec(source, names)
    before = set(node.metas())
    await node.spawn(names[actor])
    (alias,) = set(node.metas()) - before
    host, port = (await node.inspect_meta(alias))["local"].rsplit(":", 1)
    return Endpoint(host, int(port))


async def ask(at: Endpoint, question: bytes) -> bytes:
    async with await trio.open_tcp_stream(*at) as stream:
        await stream.send_all(question)
        return await stream.receive_some()


async def test_the_examples_of_tcp_server_run() -> None:
    echo, sessions = examples(TCPServer)
    names: dict[str, Any] = {}
    async with running_node() as node:
        assert await ask(await listening(node, echo, "Echo", names), b"hello") == b"hello"

        door = await listening(node, sessions, "Door", names)
        assert await ask(door, b"first\n") == b"1 first\n"
        assert await ask(door, b"another session\n") == b"1 another session\n"


async def test_the_example_of_udp_server_runs() -> None:
    (echo,) = examples(UDPServer)
    async with running_node() as node:
        at = await listening(node, echo, "Echo", {})
        with trio.socket.socket(type=socket.SOCK_DGRAM) as peer:
            await peer.sendto(b"hello", at)
            assert await peer.recv(100) == b"hello"
