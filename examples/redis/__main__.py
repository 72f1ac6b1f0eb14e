"""A server that speaks the protocol of Redis: strings, counters, expiry, lists with BLPOP,
publish/subscribe.

    python -m examples.redis [PORT] [thread|task]

and then, in another terminal, ``redis-cli -p 6380``.
"""

import sys
from collections.abc import Sequence
from math import inf
from typing import Literal

import trio

from ergo_py import PID, Actor, Alias, ChildSpec, Group, Node, run
from ergo_py.meta import TCP, TCPServer

from ..guide.framing import Resp
from .database import Database
from .resp import OK, Command, array, bulk, error, integer
from .store import Execute, Pop, Store

LINGER = 5.0


class Session(Actor):
    """Serves a connection: the store executes most commands, the session those that wait or
    subscribe.
    """

    def __init__(self) -> None:
        self.channels: dict[bytes, Group] = {}

    def init(self) -> None:
        self.store = self.service("store")

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case TCP.Frames(_, commands):
                await self.serve(commands)
            case bytes(channel), bytes(payload):
                self.write(array(map(bulk, [b"message", channel, payload])))
            case TCP.ProtocolError(_, detail):
                self.write(error(f"ERR Protocol error: {detail}"))

    def write(self, reply: bytes) -> None:
        self.send(self.connection, TCP.Send(reply))

    async def serve(self, commands: Sequence[Command]) -> None:
        """Execute the commands of a read in order; as many as the store knows go to it in a single
        call.
        """
        while commands:
            replies = [] if self.channels else await self.store.call(Execute(commands))
            if replies:
                self.write(b"".join(replies))
            if len(replies) == len(commands):
                return
            name, *words = commands[len(replies)]
            self.write(await self.obey(name.upper(), words))
            commands = commands[len(replies) + 1 :]

    async def obey(self, name: bytes, words: list[bytes]) -> bytes:
        match name, words:
            case b"SUBSCRIBE", [_, *_]:
                return b"".join(map(self.listen, words))
            case b"UNSUBSCRIBE", _:
                return b"".join(map(self.leave, words or [*self.channels])) or self.leave(None)
            case b"QUIT", _:
                self.stop()
                return OK
            case b"PING", [] | [_] if self.channels:
                return array(map(bulk, [b"pong", *(words or [b""])]))
            case _ if self.channels:
                return error("ERR only (UN)SUBSCRIBE, PING and QUIT are allowed while listening")
            case b"BLPOP", [_, *_, limit]:
                return await self.pop(words[:-1], limit)
            case b"PUBLISH", [channel, payload]:
                return integer(self.node.group(channel).broadcast((channel, payload)))
            case b"INFO", _:
                facts = await self.node.inspect("store")
                return bulk("\r\n".join(map(":".join, facts.items())).encode())
        return error(f"ERR unknown command '{name.decode(errors='replace')}', or wrong arguments")

    def listen(self, channel: bytes) -> bytes:
        self.channels[channel] = self.node.group(channel)
        self.channels[channel].join(self.pid)
        return array([bulk(b"subscribe"), bulk(channel), integer(len(self.channels))])

    def leave(self, channel: bytes | None) -> bytes:
        if channel in self.channels:
            self.channels.pop(channel).leave(self.pid)
        return array([bulk(b"unsubscribe"), bulk(channel), integer(len(self.channels))])

    async def pop(self, keys: list[bytes], limit: bytes) -> bytes:
        try:
            seconds = float(limit)
            if not 0 <= seconds < inf:
                raise ValueError(seconds)
        except ValueError:
            return error("ERR timeout is not a float or out of range")
        # A client that closes its side while it waits has left. After other commands it may still
        # read their replies.
        self.send(self.connection, TCP.Set(linger=0.0))
        reply = b"*-1\r\n"
        with trio.move_on_after(seconds or inf):
            reply = await self.store.call(Pop(keys), timeout=None)
        self.send(self.connection, TCP.Set(linger=LINGER))
        return reply


class Door(Actor):
    """Owns the server, which spawns a session for each connection."""

    def __init__(self, port: int, reader: Literal["thread", "task"]) -> None:
        self.server = TCPServer(
            "127.0.0.1",
            port,
            receiver=Session,
            framing=Resp(),
            batch=True,
            last_word=True,
            reader=reader,
            when_slow=TCP.WhenSlow.DROP,
            linger=LINGER,
        )

    async def init(self) -> None:
        await self.spawn_meta(self.server)
        print(f"listening at {self.server.local}", flush=True)


async def main(node: Node) -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 6380
    reader: Literal["thread", "task"] = "thread" if sys.argv[2:] == ["thread"] else "task"
    store = ChildSpec("store", Store, Database())
    await node.supervise([store, ChildSpec("door", Door, port, reader)], name="root")
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="redis@localhost")
