"""A chat: an actor for each connection, and a supervised room. If the room crashes, all connections
stay open.

    python examples/tcp/chat.py [PORT]

and then ``nc 127.0.0.1 7777`` in two other terminals.
"""

import sys
from dataclasses import dataclass

import trio

from ergo_py import (
    PID,
    Actor,
    Alias,
    Caller,
    ChildSpec,
    Down,
    InitError,
    Node,
    Reject,
    Request,
    Supervisor,
    run,
)
from ergo_py.errors import ProcessUnknownError
from ergo_py.meta import TCP, Delimiter, TCPServer

__all__ = ["Chat", "Door", "Room", "Session"]


# -- what is said to the room, and by it -----------------------------------------------------------


@dataclass(frozen=True)
class Join(Request[list[str]]):
    """Take part under a name; the answer is the names of the others."""

    name: str


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Heard:
    """A line that all members of the room see."""

    text: str


class Room(Actor):
    """Knows its members, and sends each line to all of them. It never touches a socket."""

    def __init__(self) -> None:
        self.members: dict[PID, str] = {}

    def handle_call(self, request: object, caller: Caller) -> object:
        match request, caller.pid:
            case Join(name), PID() as member:
                if name in self.members.values():
                    raise Reject(ValueError(f"there is a {name} already"))
                others = list(self.members.values())
                self.tell_all(f"* {name} came in")
                self.members[member] = name
                self.monitor(member)
                return others
        raise Reject(LookupError("the room only lets people in"))

    def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case Say("/crash") if sender in self.members:
                raise RuntimeError(f"{self.members[sender]} asked for it")
            case Say(text) if sender in self.members:
                self.tell_all(f"{self.members[sender]}: {text}")
            case Down(PID() as member):
                self.tell_all(f"* {self.members.pop(member)} left")

    def tell_all(self, text: str) -> None:
        for member in self.members:
            self.send(member, Heard(text))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"members": ", ".join(self.members.values()) or "nobody"}


class Session(Actor):
    """Serves a single peer. It starts with the connection and ends with it."""

    def __init__(self) -> None:
        self.name = ""
        self.connection: Alias

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case TCP.Connected(connection):
                self.connection = connection
                self.show("* what is your name?")
            case TCP.Data(_, line):
                await self.heard(line.decode(errors="replace").strip())
            case Heard(text):
                self.show(text)
            case Down(_, reason):
                # The connection stays open. The service waits until the room is back.
                self.show(f"* the room is gone ({reason})")
                await self.join()

    async def heard(self, text: str) -> None:
        if not text:
            return
        if not self.name:
            self.name = text
            await self.join()
        elif text == "/quit":
            self.show("* goodbye")
            self.stop()
        elif text == "/tree":
            self.show(str(self.node.tree()))
        elif text.startswith("/inspect"):
            await self.look_into(text.removeprefix("/inspect").strip())
        elif text.startswith("/") and text != "/crash":
            self.show(
                "* there are /tree, /inspect [name], /crash and /quit; everything else is said to "
                "the room"
            )
        else:
            self.service("room").send(Say(text))

    async def look_into(self, name: str) -> None:
        """Show the state of this connection, or of the process with a name."""
        try:
            facts = await (self.node.inspect(name) if name else self.inspect_meta(self.connection))
        except ProcessUnknownError:
            facts = {name: "there is nobody of that name"}
        self.show("\n".join(f"{key:>12}: {value}" for key, value in facts.items() if value))

    async def join(self) -> None:
        try:
            others = await self.service("room").call(Join(self.name))
        except ValueError as error:
            self.show(f"* {error}; what is your name?")
            self.name = ""
            return
        self.monitor("room")
        self.show(
            f"* you are in, with {', '.join(others) or 'nobody else'}; /help says what you can do"
        )

    def show(self, text: str) -> None:
        self.send(self.connection, TCP.Send(text.encode() + b"\n"))


class Door(Actor):
    """Owns the server, which spawns a session for each connection. A peer that does not read is
    disconnected.
    """

    def __init__(self, port: int, fallback: bool = False) -> None:
        self.port = port
        self.fallback = fallback
        self.local = ""

    async def init(self) -> None:
        try:
            await self.open(self.port)
        except InitError:
            if not self.fallback:
                raise
            await self.open(0)

    async def open(self, port: int) -> None:
        server = TCPServer(
            "127.0.0.1",
            port,
            receiver=Session,
            framing=Delimiter(b"\n", max_frame=2000),
            max_connections=1000,
            when_slow=TCP.WhenSlow.DROP,
        )
        await self.spawn_meta(server)
        self.local = str(server.local)

    def handle_call(self, request: object, caller: Caller) -> str:
        return self.local

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"listens at": self.local}


class Chat(Supervisor):
    """The room and the door: if either crashes, the supervisor restarts it, and the other keeps
    running.
    """

    def __init__(self, port: int, fallback: bool = False) -> None:
        super().__init__([ChildSpec("room", Room), ChildSpec("door", Door, port, fallback)])


async def main(node: Node) -> None:
    await node.spawn(Chat, int(sys.argv[1]) if len(sys.argv) > 1 else 7777, name="chat")
    print(f"the chat is at {await node.call('door', 'where?')}", flush=True)
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="chat@localhost")
