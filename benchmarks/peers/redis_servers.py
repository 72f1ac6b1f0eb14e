"""The commands of ``examples/redis`` behind the streams of asyncio and of trio.

``python -m benchmarks.peers.redis_servers asyncio`` or ``… trio``. No actors, no supervision, no limits; the decoder and the
database are the same objects.
"""

import asyncio
import sys
from functools import partial

import trio

from ergo_py.meta import Decoder
from examples.redis.database import Database
from examples.redis.resp import RESP, array

__all__ = ["serve_on_asyncio", "serve_on_trio"]


def _replies(database: Database, decoder: Decoder, data: bytes) -> bytes:
    commands = decoder.feed(data)
    replies = database.execute(commands)
    while len(replies) < len(commands):  # a command of the session's, such as CONFIG
        replies += [array([]), *database.execute(commands[len(replies) + 1 :])]
    return b"".join(replies)


async def serve_on_asyncio() -> None:
    database = Database()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = RESP().decoder()
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
        decoder = RESP().decoder()
        try:
            while data := await stream.receive_some(65536):
                await stream.send_all(_replies(database, decoder, bytes(data)))
        except trio.BrokenResourceError:
            pass  # the client has left

    async with trio.open_nursery() as nursery:
        serving = partial(trio.serve_tcp, serve, 0, host="127.0.0.1", backlog=1024)
        listeners = await nursery.start(serving)
        print(f"listening at 127.0.0.1:{listeners[0].socket.getsockname()[1]}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "asyncio":
        asyncio.run(serve_on_asyncio())
    else:
        trio.run(serve_on_trio)
