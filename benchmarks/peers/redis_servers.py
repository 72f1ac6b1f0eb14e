"""The commands of ``examples/redis`` behind the streams of asyncio and of trio.

``python -m benchmarks.peers.redis_servers asyncio``, ``… trio`` or ``… hand``. No actors, no
supervision, no limits; the decoder and the database are the same objects. ``hand`` is the least
that a server with a trio task for each connection can do: plain sockets, a single poller for all of
them, and a task that sleeps and is woken as a process does.
"""

import asyncio
import socket
import sys
from collections import deque
from functools import partial

import trio
from trio.lowlevel import current_task, wait_readable

from ergo_py._core.runtime.parking import TrioTurns, park, wake
from ergo_py.meta import Decoder
from ergo_py.meta.poller import SocketPoller
from examples.guide.framing import Resp
from examples.redis.database import Database
from examples.redis.resp import array

__all__ = ["serve_by_hand", "serve_on_asyncio", "serve_on_trio"]


def _replies(database: Database, decoder: Decoder, data: bytes) -> bytes:
    commands = decoder.feed(data)
    replies = database.execute(commands)
    while len(replies) < len(commands):  # a command of the session's, such as CONFIG
        replies += [array([]), *database.execute(commands[len(replies) + 1 :])]
    return b"".join(replies)


async def serve_on_asyncio() -> None:
    database = Database()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = Resp().decoder()
        try:
            while data := await reader.read(65536):
                writer.write(_replies(database, decoder, data))
                await writer.drain()
        except ConnectionError:
            pass  # the client has left
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(f"listening at 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def serve_on_trio() -> None:
    database = Database()

    async def serve(stream: trio.SocketStream) -> None:
        decoder = Resp().decoder()
        try:
            while data := await stream.receive_some(65536):
                await stream.send_all(_replies(database, decoder, bytes(data)))
        except trio.BrokenResourceError:
            pass  # the client has left

    async with trio.open_nursery() as nursery:
        serving = partial(trio.serve_tcp, serve, 0, host="127.0.0.1", backlog=1024)
        listeners = await nursery.start(serving)
        print(f"listening at 127.0.0.1:{listeners[0].socket.getsockname()[1]}", flush=True)


async def serve_by_hand() -> None:
    database = Database()

    async def serve(sock: socket.socket) -> None:
        """Wait for data that the poller's turn has read; answer in a turn of its own."""
        task, decoder, queue = current_task(), Resp().decoder(), deque[bytes]()

        def read() -> bool:
            try:
                data = sock.recv(65536)
            except BlockingIOError:
                return True
            except OSError:  # the client has left
                data = b""
            queue.append(data)
            wake(task)
            return bool(data)

        with sock:
            nursery.start_soon(poller.watch, sock, read)
            while True:
                await park(task, queue)
                while queue:
                    if not (data := queue.popleft()):
                        return
                    sock.send(_replies(database, decoder, data))

    async with trio.open_nursery() as nursery:
        poller = SocketPoller(nursery.start_soon)
        poller.open(TrioTurns())
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            listener.setblocking(False)
            print(f"listening at 127.0.0.1:{listener.getsockname()[1]}", flush=True)
            while True:
                await wait_readable(listener)
                sock, _ = listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                nursery.start_soon(serve, sock)


SERVERS = {
    "asyncio": lambda: asyncio.run(serve_on_asyncio()),
    "trio": lambda: trio.run(serve_on_trio),
    "hand": lambda: trio.run(serve_by_hand),
}

if __name__ == "__main__":
    SERVERS[sys.argv[1]]()
