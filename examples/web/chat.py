"""A chat in the browser: REST, WebSockets and server-sent events over a supervised room. If the
room crashes, all connections stay open.

    python examples/web/chat.py [PORT]

and then http://127.0.0.1:8080/ in a browser, or the commands of the README.
"""

import json
import sys
from dataclasses import asdict, dataclass

import trio

from ergo_py import PID, Actor, Alias, Caller, ChildSpec, Down, Node, Ref, Reject, Supervisor, run
from ergo_py.errors import ProcessUnknownError
from ergo_py.web import WS, HTTPError, HTTPRequest, Response, Route, WebServer

__all__ = ["Chat", "Door", "Room", "Visitor"]

PAGE = """<!doctype html>
<meta charset="utf-8"><title>Chat</title>
<form><input name="text" autofocus placeholder="Say something"></form><ul></ul>
<script>
  const socket = new WebSocket(`ws://${location.host}/talk?name=browser`)
  socket.onmessage = message => {
    const line = document.createElement("li"), said = JSON.parse(message.data)
    line.textContent = `${said.name}: ${said.text}`
    document.querySelector("ul").append(line)
  }
  document.forms[0].onsubmit = event => {
    event.preventDefault()
    socket.send(event.target.text.value)
    event.target.reset()
  }
</script>
"""
KEPT = 100
LONGEST = 1_000


@dataclass(frozen=True)
class Join:
    """Hear all lines from now on."""


@dataclass(frozen=True)
class Say:
    """A line that all members of the room get."""

    name: str
    text: str

    def __str__(self) -> str:
        return json.dumps(asdict(self))


class Room(Actor):
    """Keeps the last lines, and sends each line to all members. It answers requests below
    ``/messages``, and never touches a socket.
    """

    def __init__(self) -> None:
        self.lines: list[Say] = []
        self.members: set[PID] = set()
        self.readers: dict[Ref, Alias] = {}

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case Join() if isinstance(sender, PID):
                self.members.add(sender)
                self.monitor(sender)
            case Say():
                self.say(message)
            case Down(member) if isinstance(member, PID):
                self.members.discard(member)
            case HTTPRequest.Gone(_, ref):
                self.readers.pop(ref, None)

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case HTTPRequest("GET", ("messages",)):
                return Response.json(
                    [{"name": line.name, "text": line.text} for line in self.lines]
                )
            case HTTPRequest("POST", ("messages",)):
                self.say(read_line(request))
                return Response(201)
            case HTTPRequest("GET", ("messages", "events")):
                self.readers[request.ref] = request.connection
                return Response.events()
        raise Reject(HTTPError(404))

    def hand_over(self) -> object:  # to the next version of the program: `ergo upgrade`
        return [(line.name, line.text) for line in self.lines]

    def take_over(self, state: list[tuple[str, str]]) -> None:
        self.lines = [Say(name, text) for name, text in state]

    def say(self, line: Say) -> None:
        self.lines = [*self.lines[1 - KEPT :], line]
        for member in self.members:
            self.send(member, line)
        for ref, connection in self.readers.items():
            self.send(connection, Response.Event(ref, str(line), id=str(len(self.lines))))


def read_line(request: HTTPRequest) -> Say:
    """The line in the body of a request; a body that is none is status 400."""
    match request.json():
        case {"name": str(name), "text": str(text)} if 0 < len(text) <= LONGEST:
            return Say(name[:30], text)
    raise Reject(HTTPError(400, f'write {{"name": …, "text": …}}, at most {LONGEST} characters'))


class Visitor(Actor):
    """The actor of a WebSocket: it lives as long as its connection."""

    connection: Alias

    def init(self) -> None:
        self.name = "?"
        self.join()

    def join(self) -> None:
        try:
            self.monitor("room")
            self.send("room", Join())
        except ProcessUnknownError:  # the room is starting again
            self.send_after(0.05, self.pid, Join())

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case WS.Connected(_, HTTPRequest() as request):
                self.name = request.query.get("name", "?")[:30]
            case WS.Text(_, text):
                self.send("room", Say(self.name, text[:LONGEST]))
            case Say():
                self.send(self.connection, WS.Send(str(message)))
            case Down() | Join():
                self.join()


class Door(Actor):
    """Owns the web server, and answers with the page."""

    def __init__(self, port: int) -> None:
        self.server = WebServer(
            "127.0.0.1",
            port,
            routes=[
                Route("/"),
                Route("/messages", to="room", max_body=10_000),
                Route("/talk", websocket=Visitor, max_message=10_000),
            ],
            max_connections=1_000,
            sock="chat",
        )

    async def init(self) -> None:
        await self.spawn_meta(self.server)

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case HTTPRequest("GET", ()):
                return Response.html(PAGE)
            case "port":
                return self.server.local.port
        raise Reject(HTTPError(404))


class Chat(Supervisor):
    """The room and the door, each restarted for itself."""

    def __init__(self, port: int) -> None:
        super().__init__([ChildSpec("room", Room), ChildSpec("door", Door, port)])


async def main(node: Node) -> None:
    await node.spawn(Chat, int(sys.argv[1]) if len(sys.argv) > 1 else 8080, name="chat")
    print(f"http://127.0.0.1:{await node.call('door', 'port')}/", flush=True)
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="chat@localhost")
