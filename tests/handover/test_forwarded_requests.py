"""HTTP requests to processes that have moved to the next program."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import PID, Actor, Alias, Caller, ChildSpec, Reject
from ergo_py.handover.channel import connect as connect_to_program
from ergo_py.meta.sockets.messages import Endpoint
from ergo_py.web import HTTPError, HTTPRequest, Response
from ergo_py.web.messages.responses import upgrade_response
from ergo_py.web.parsing.http1 import Head
from tests.handover.test_moved_connections import own_sockets, take_over
from tests.handover.test_moved_processes import Gate, old_program
from tests.handover.test_succession import place

__all__ = ["own_sockets", "place"]


ANSWERS = (
    Response(200, b"bytes"),
    Response(200, "text", {"content-type": "text/plain; charset=utf-8"}),
    Response(404, "", {"content-type": "text/plain; charset=utf-8", "x-last": "\xe9"}),
    upgrade_response("a WebSocket is here"),
)


class Room(Actor):
    """Answers requests, and moves."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        assert isinstance(message, HTTPRequest.Gone)
        self.seen.remove(message.ref)

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case "seen":
                return len(self.seen)
            case HTTPRequest("GET", ("text",)):
                return Response(200, "hello", [("x-room", "1")])
            case HTTPRequest("POST", ("json", name)):
                assert not request.gone
                facts = [name, request.json(), dict(request.query), request.headers["x-peer"]]
                return Response.json([*facts, str(request.peer), request.host, request.version])
            case HTTPRequest("GET", ("facts",)):
                peer = [type(request.peer).__name__, request.peer]
                return Response.json([*peer, request.target, request.head.path])
            case HTTPRequest("GET", ("answers", number)):
                return ANSWERS[int(number)]
            case HTTPRequest("GET", ("events",)):
                self.seen.append(request.ref)
                return Response.events()
            case HTTPRequest():
                raise Reject(HTTPError(404, "not here"))
        return None

    def hand_over(self) -> object:
        return None

    def take_over(self, state: object) -> None:
        """Take nothing."""


def request(
    method: str,
    *path: str,
    body: bytes = b"",
    length: int | None = 0,
    peer: Endpoint | str = "p",
    base: str = "",
) -> HTTPRequest:
    target = "/" + "/".join(path) + "?a=1"
    head = Head(method, base + target, False, [("x-peer", "7")], {"x-peer": "7"})
    head.path, head.length = target, length
    connection = Alias("old@localhost", 1, 1)
    return HTTPRequest(method, path, head, body, connection=connection, peer=peer, host="h")


async def test_requests_to_a_moved_process_are_answered_by_the_next_program(place: Path) -> None:
    drained, begun = trio.Event(), trio.Event()
    children = [ChildSpec("room", Room), ChildSpec("gate", Gate, drained, begun)]
    async with old_program(children) as (old, start):
        new = await start([ChildSpec("room", Room)])
        await begun.wait()

        async def ask(given: HTTPRequest) -> Any:
            return await old.node.call("room", given)

        text = await ask(request("GET", "text"))
        assert (text.status, text.body, text.headers) == (200, b"hello", (("x-room", "1"),))
        assert text.head == Response(200, "hello", [("x-room", "1")]).head
        answer = await ask(request("POST", "json", "ann", body=b"[1]", length=3))
        assert answer.body == b'["ann",[1],{"a":"1"},"7","p","h","1.1"]'
        assert answer.head == Response.json([]).head
        assert (await ask(request("GET", "nowhere"))).body == b"not here\n"

        far, near = Endpoint("::1", 5), "/run/peer"
        facts = await ask(request("GET", "facts", peer=far, base="http://h"))
        assert facts.body == b'["Endpoint",["::1",5],"http://h/facts?a=1","/facts?a=1"]'
        facts = await ask(request("GET", "facts", peer=near))
        assert facts.body == b'["str","/run/peer","/facts?a=1","/facts?a=1"]'
        for number, given in enumerate(ANSWERS):
            assert await ask(request("GET", "answers", str(number))) == given

        # A stream would need the connection, which is in the old program: the peer asks again.
        stream = await ask(request("GET", "events"))
        assert (stream.status, stream.headers) == (503, (("retry-after", "1"),))
        assert await new.node.call("room", "seen") == 0
        with pytest.raises(HTTPError, match="503"):
            await ask(request("POST", "json", "ann", length=3))
        with pytest.raises(HTTPError, match="503"):
            await ask(request("POST", "json", "ann", length=None))  # chunks that nobody has read
        empty = request("POST", "nowhere", length=None)
        empty.take_body(b"")
        assert (await ask(empty)).status == 404
        drained.set()
        await old.has_ended.wait()


async def test_a_request_gets_503_when_the_next_program_has_ended(
    place: Path, autojump_clock: Any
) -> None:
    drained, begun = trio.Event(), trio.Event()
    children = [ChildSpec("room", Room), ChildSpec("gate", Gate, drained, begun)]
    async with old_program(children) as (old, _):
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            await take_over(channel, ["room"])
        await begun.wait()
        with pytest.raises(HTTPError, match="503"):
            await old.node.call("room", request("GET", "text"))
        drained.set()
        await old.has_ended.wait()
