"""A NATS server in memory, for tests with virtual time. Each host of a URL is a way to the server
that tests cut.
"""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import memory_stream_pair

__all__ = ["FakeServer", "open_fake_server"]

_PUBLISH = re.compile(rb"PUB (\S+)(?: (\S+))? (\d+)")
NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"


class _Client:
    """A connection, as the server sees it."""

    def __init__(self, host: str, stream: trio.abc.Stream) -> None:
        self.host = host
        self.stream = stream
        self.subscriptions: list[tuple[str, bytes]] = []
        self.scope = trio.CancelScope()
        self.is_ghost = False
        """The server has not noticed that the connection is broken."""
        self.outbox, self.waiting = trio.open_memory_channel[bytes](100_000)

    def matches(self, subject: str) -> list[bytes]:
        """The numbers of the subscriptions to a subject."""
        words = subject.split(".")
        return [
            number
            for pattern, number in self.subscriptions
            if len(words) == len(pattern.split("."))
            and all(p in ("*", w) for p, w in zip(pattern.split("."), words, strict=True))
        ]


class FakeServer:
    """Passes messages on, and says if no client listens."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._clients: list[_Client] = []
        self._cut: set[str] = set()
        self.subscribed: Callable[[str], object] = lambda host: None
        """Called with the host of a client that subscribes."""
        self.published: list[tuple[str, bytes]] = []
        """Subject and payload of all messages."""

    async def connect(self, host: str, _port: int) -> trio.abc.Stream:
        """As ``trio.open_tcp_stream``."""
        await trio.lowlevel.checkpoint()
        if host in self._cut:
            raise ConnectionRefusedError("the way is cut")
        near, far = memory_stream_pair()
        self._nursery.start_soon(self._serve, _Client(host, far))
        return near

    def cut(self, *hosts: str) -> None:
        """End the connections over these ways, and refuse others."""
        self._cut.update(hosts)
        for client in self._clients:
            if client.host in hosts:
                client.scope.cancel()

    def mend(self, *hosts: str) -> None:
        """Admit connections over these ways again."""
        self._cut.difference_update(hosts)

    def lose(self, host: str) -> None:
        """Pass nothing on over the connections of a way, and keep them open. The server does not
        notice, and believes that their clients listen.
        """
        for client in self._clients:
            client.is_ghost = client.is_ghost or client.host == host

    def publish(self, subject: str, payload: bytes, reply: str = "", echo: object = None) -> None:
        """Pass a message on to all clients that listen, without the client ``echo``."""
        self.published.append((subject, payload))
        head = f"{subject} %b {reply} " if reply else f"{subject} %b "
        is_heard = False
        for client in self._clients:
            for number in client.matches(subject):
                if client is not echo:
                    is_heard = True
                    start = b"MSG " + head.encode() % number
                    self._send(client, start + b"%d\r\n%b\r\n" % (len(payload), payload))
        if not is_heard and reply:
            for client in self._clients:
                for number in client.matches(reply):
                    size = len(NO_RESPONDERS)
                    head = f"HMSG {reply} {number.decode()} {size} {size}\r\n"
                    self._send(client, head.encode() + NO_RESPONDERS + b"\r\n")

    def _send(self, client: _Client, data: bytes) -> None:
        if not client.is_ghost:
            client.outbox.send_nowait(data)

    async def _serve(self, client: _Client) -> None:
        self._clients.append(client)
        self._send(client, b'INFO {"headers": true}\r\n')
        try:
            with client.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, client)
                    await self._read(client)
                    nursery.cancel_scope.cancel()
        finally:
            self._clients.remove(client)
            await trio.aclose_forcefully(client.stream)

    async def _write(self, client: _Client) -> None:
        async for data in client.waiting:
            try:
                await client.stream.send_all(data)
            except trio.BrokenResourceError:
                return

    async def _read(self, client: _Client) -> None:
        data = b""
        while more := await client.stream.receive_some(65536):
            if client.is_ghost:
                continue
            data += more
            while b"\r\n" in data:
                line, _, rest = data.partition(b"\r\n")
                if found := _PUBLISH.fullmatch(line):
                    size = int(found[3])
                    if len(rest) < size + 2:
                        break
                    reply = (found[2] or b"").decode()
                    self.publish(found[1].decode(), rest[:size], reply, client)
                    rest = rest[size + 2 :]
                elif line == b"PING":
                    self._send(client, b"PONG\r\n")
                elif line.startswith(b"SUB "):
                    _, subject, number = line.split()
                    client.subscriptions.append((subject.decode(), number))
                    self.subscribed(client.host)
                data = rest
        if client.is_ghost:
            await trio.sleep_forever()


@asynccontextmanager
async def open_fake_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeServer]:
    """A server to which all connections of the test lead."""
    async with trio.open_nursery() as nursery:
        server = FakeServer(nursery)
        monkeypatch.setattr(trio, "open_tcp_stream", server.connect)
        yield server
        nursery.cancel_scope.cancel()
