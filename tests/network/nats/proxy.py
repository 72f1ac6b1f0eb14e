"""A proxy between a node and a NATS server that cuts, stalls and trickles."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import trio

__all__ = ["Proxy", "open_proxy"]


class Proxy:
    """Passes the bytes of all connections on, with the faults that the test asks for."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._flowing = trio.Event()
        self._flowing.set()
        self._reading = trio.Event()
        self._reading.set()
        self._random: Random | None = None
        self._scopes: set[trio.CancelScope] = set()
        self.port = 0
        self.connections = 0
        """How many connections were made."""
        self.waiting = 0
        """Bytes that the proxy has read and not passed on."""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """End all connections, in the middle of whatever they send."""
        for scope in list(self._scopes):
            scope.cancel()

    def stall(self) -> None:
        """Pass nothing on, in both directions, and keep all connections open."""
        self._flowing = trio.Event()

    def stall_reader(self) -> None:
        """Pass nothing on from the server to the node, and read nothing more from the server."""
        self._reading = trio.Event()

    def trickle(self, seed: int) -> None:
        """Pass a few bytes on at a time, of a random number."""
        self._random = Random(seed)

    def flow(self) -> None:
        """Pass everything on again."""
        self._flowing.set()
        self._reading.set()
        self._random = None

    async def serve(self, client: trio.SocketStream) -> None:
        """Serve a connection."""
        self.connections += 1
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                async with (
                    client,
                    await trio.open_tcp_stream("127.0.0.1", self._target) as server,
                    trio.open_nursery() as nursery,
                ):
                    nursery.start_soon(self._pump, client, server, False, nursery.cancel_scope)
                    nursery.start_soon(self._pump, server, client, True, nursery.cancel_scope)
            except OSError:  # the server is away
                return
            finally:
                self._scopes.discard(scope)

    async def _pump(
        self,
        source: trio.SocketStream,
        sink: trio.SocketStream,
        is_to_node: bool,
        scope: trio.CancelScope,
    ) -> None:
        try:
            while data := await source.receive_some(65536):
                self.waiting += len(data)
                while data:
                    await self._flowing.wait()
                    if is_to_node:
                        await self._reading.wait()
                    size = len(data) if self._random is None else self._random.randint(1, 40)
                    part, data = data[:size], data[size:]
                    await sink.send_all(part)
                    self.waiting -= len(part)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            scope.cancel()


@asynccontextmanager
async def open_proxy(target: int) -> AsyncIterator[Proxy]:
    """A proxy for the server at a port of the loopback interface."""
    async with trio.open_nursery() as nursery:
        proxy = Proxy(target)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy.port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, proxy.serve, listeners)
        yield proxy
        nursery.cancel_scope.cancel()
