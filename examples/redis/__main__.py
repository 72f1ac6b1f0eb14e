"""A server that speaks the protocol of Redis: strings, counters, expiry, lists with BLPOP, publish and subscribe.

    python -m examples.redis [PORT] [thread|task]

and then, in another terminal, ``redis-cli -p 6380``.
"""

import sys
from collections.abc import Sequence
from math import inf
from typing import Literal

import trio

from ergo_py import PID, Actor, Alias, ChildSpec, Down, Node, run
from ergo_py.meta import TCPFrames, TCPProtocolError, TCPSend, TCPServer, TCPSet, WhenSlow

from .database import CommandError, Database
from .resp import OK, RESP, Command, array, bulk, error, integer
from .store import Channels, Execute, Pop, Publish, Store, Subscribe, Unsubscribe

PORT = 6380
LINGER = 5.0


class Session(Actor):
    """Serves one connection: the store executes commands, the session does those that wait or listen."""

    def __init__(self) -> None:
        self.listening = 0
        self.watches_channels = False

    def init(self) -> None:
        self.store, self.channels = self.service("store"), self.service("channels")

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case TCPFrames(_, commands):
                await self.serve(commands)
            case TCPProtocolError(connection, detail):
                self.send(connection, TCPSend(error(f"ERR Protocol error: {detail}")))
            case Down():
                self.stop()  # the channels have failed, and know no listener any more: the client has to subscribe again

    async def serve(self, commands: Sequence[Command]) -> None:
        """Execute the commands of one read in order; as many as the store knows go to it in one call."""
        while commands:
            replies = [] if self.listening else await self.store.call(Execute(commands))
            if replies:
                self.send(self.connection, TCPSend(b"".join(replies)))
            if len(replies) == len(commands):
                return
            name, *words = commands[len(replies)]
            commands = commands[len(replies) + 1 :]
            if reply := await self.obey(name.upper(), words):
                self.send(self.connection, TCPSend(reply))

    async def obey(self, name: bytes, words: list[bytes]) -> bytes:
        match name, words:
            case b"SUBSCRIBE", [_, *_]:
                if not self.watches_channels:
                    self.monitor("channels")
                    self.watches_channels = True
                self.listening = await self.channels.call(Subscribe(self.connection, words))
                return b""
            case b"UNSUBSCRIBE", _:
                self.listening = await self.channels.call(Unsubscribe(self.connection, words))
                return b""
            case b"PING", [*payload] if len(payload) < 2:
                if self.listening:
                    return array([bulk(b"pong"), bulk(payload[0] if payload else b"")])
                return bulk(payload[0]) if payload else b"+PONG\r\n"
            case b"QUIT", _:
                self.stop()
                return OK
            case _ if self.listening:
                return error("ERR only (UN)SUBSCRIBE, PING and QUIT are allowed while the connection listens")
            case ((b"BLPOP" | b"BRPOP"), [*keys, limit]) if keys:
                return await self.pop(keys, limit, left=name == b"BLPOP")
            case b"PUBLISH", [channel, payload]:
                return integer(await self.channels.call(Publish(channel, payload)))
            case b"INFO", _:
                facts = await self.node.inspect("store")
                return bulk("\r\n".join(f"{name}:{value}" for name, value in facts.items()).encode())
            case b"HELLO", _:
                return error("NOPROTO this server speaks RESP2 only")
            case b"ECHO", [text]:
                return bulk(text)
            case ((b"SELECT" | b"CLIENT"), _):
                return OK
            case ((b"COMMAND" | b"CONFIG"), _):
                return array([])
        return error(f"ERR unknown command '{name.decode(errors='replace')}', or wrong arguments")

    async def pop(self, keys: list[bytes], limit: bytes, left: bool) -> bytes:
        try:
            seconds = float(limit)
            if not 0 <= seconds < inf:
                raise ValueError(seconds)
        except ValueError:
            return error("ERR timeout is not a float or out of range")
        # A client that closes its side while it waits has left. After other commands it may still read their replies.
        self.send(self.connection, TCPSet(linger=0.0))
        try:
            popped = await self.store.call(Pop(keys, left, seconds or None), timeout=None)
        except CommandError as refusal:
            return error(str(refusal))
        finally:
            self.send(self.connection, TCPSet(linger=LINGER))
        return array(map(bulk, popped)) if popped else b"*-1\r\n"


class Door(Actor):
    """Owns the server, which makes a session for each connection."""

    def __init__(self, port: int, reader: Literal["thread", "task"]) -> None:
        self.server = TCPServer(
            "127.0.0.1",
            port,
            receiver=Session,
            framing=RESP(),
            batch=True,
            last_word=True,
            reader=reader,
            when_slow=WhenSlow.DROP,
            linger=LINGER,
        )

    async def init(self) -> None:
        await self.spawn_meta(self.server)
        print(f"listening at {self.server.local}", flush=True)


async def main(node: Node) -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else PORT
    reader: Literal["thread", "task"] = "thread" if sys.argv[2:] == ["thread"] else "task"
    children = [
        ChildSpec("store", Store, Database()),
        ChildSpec("channels", Channels),
        ChildSpec("door", Door, port, reader),
    ]
    await node.supervise(children, name="root")
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="redis@localhost")
