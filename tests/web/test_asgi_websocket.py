"""`Mount` of ASGI applications: WebSockets."""

from typing import Any

import pytest
import trio

from ergo_py.web.parsing.frames import BINARY, CLOSE, TEXT
from tests.web.rig import Reply, Served, until
from tests.web.test_asgi import Message, Receive, Send, fails, mounted, sends_nonsense
from tests.web.test_websocket import Client, upgrade

# -- ASGI: WebSockets ------------------------------------------------------------------------------


async def shout(scope: Message, receive: Receive, send: Send) -> None:
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept", "subprotocol": (scope["subprotocols"] or [None])[0]})
    while (message := await receive())["type"] == "websocket.receive":
        if "text" in message:
            await send({"type": "websocket.send", "text": message["text"].upper()})
        else:
            await send({"type": "websocket.send", "bytes": message["bytes"][::-1]})
    ENDS.append(message)


ENDS: list[Message] = []


async def opened(served: Served, path: str, *fields: str) -> tuple[Client, Reply]:
    """A WebSocket."""
    peer = await served.dial()
    reply = await peer.ask(upgrade(path, *fields))
    assert reply.status == 101
    return Client(peer), reply


async def test_a_websocket_of_an_application_sends_and_receives() -> None:
    ENDS.clear()
    async with mounted(shout) as served:
        talker, reply = await opened(served, "/api/talk", "Sec-WebSocket-Protocol: one, two")
        assert reply.headers["sec-websocket-protocol"] == "one"
        await talker.send(TEXT, b"hello")
        assert await talker.next() == (TEXT, "HELLO", 0)
        await talker.send(BINARY, b"abc")
        assert await talker.next() == (BINARY, b"cba", 0)
        await talker.send(CLOSE, (3000).to_bytes(2, "big") + b"bye")
        assert await talker.next() == (CLOSE, "", 3000)
        await talker.peer.aclose()
        await until(lambda: ENDS)

    assert ENDS == [{"type": "websocket.disconnect", "code": 3000, "reason": "bye"}]


async def refuses(scope: Message, receive: Receive, send: Send) -> None:
    await send({"type": "websocket.close"})


async def refuses_in_words(scope: Message, receive: Receive, send: Send) -> None:
    await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
    await send({"type": "websocket.http.response.body", "body": b"no", "more_body": True})
    await send({"type": "websocket.http.response.body", "body": b"pe"})


async def never_decides(scope: Message, receive: Receive, send: Send) -> None:
    await receive()


@pytest.mark.parametrize(
    "app, status, text",
    [
        (refuses, 403, None),
        (refuses_in_words, 401, b"nope"),
        (never_decides, 500, None),
        (fails, 500, None),
        (sends_nonsense, 500, None),
    ],
)
async def test_an_application_refuses_a_websocket(app: Any, status: int, text: bytes) -> None:
    async with mounted(app) as served:
        peer = await served.dial()
        for _ in range(2):
            reply = await peer.ask(upgrade("/api"))

            assert reply.status == status
            assert text is None or reply.body == text


async def test_a_decision_about_a_websocket_that_takes_too_long_is_504() -> None:
    heard: list[Message] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        heard.append(await receive())
        with pytest.raises(OSError, match="the client has left"):
            await send({"type": "websocket.accept"})
        heard.append({})

    async with mounted(app, request_timeout=0.02) as served:
        assert (await served.ask(upgrade("/api"))).status == 504
        await until(lambda: len(heard) == 2)

    assert heard[0]["code"] == 1006


async def test_pages_of_other_origins_may_not_open_websockets_of_an_application() -> None:
    async with mounted(shout) as served:
        reply = await served.ask(upgrade("/api", "Origin: https://evil.example"))

    assert reply.status == 403


async def accepts_and_fails(scope: Message, receive: Receive, send: Send) -> None:
    await send({"type": "websocket.accept"})
    raise KeyError("secret")


async def accepts_and_returns(scope: Message, receive: Receive, send: Send) -> None:
    await send({"type": "websocket.accept"})


async def accepts_and_closes(scope: Message, receive: Receive, send: Send) -> None:
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": 4001, "reason": "over"})
    with pytest.raises(OSError, match="the client has left"):
        await send({"type": "websocket.send", "text": "late"})


@pytest.mark.parametrize(
    "app, code",
    [(accepts_and_fails, 1011), (accepts_and_returns, 1000), (accepts_and_closes, 4001)],
)
async def test_the_end_of_an_application_closes_its_websocket(app: Any, code: int) -> None:
    async with mounted(app) as served:
        talker, _ = await opened(served, "/api")
        kind, _, found = await talker.next()

        assert (kind, found) == (CLOSE, code)


async def test_an_application_that_does_not_receive_stops_the_reading() -> None:
    release = trio.Event()
    count = 0

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        nonlocal count
        await receive()
        await send({"type": "websocket.accept"})
        await release.wait()
        while (await receive())["type"] == "websocket.receive":
            count += 1

    async with mounted(app) as served:
        talker, _ = await opened(served, "/api")
        sent = 0
        with trio.move_on_after(0.3):
            while True:
                await talker.send(BINARY, bytes(60_000))
                sent += 1
        release.set()
        await until(lambda: count >= sent - 1)

    assert sent < 1_000


async def test_an_application_that_sends_much_waits_for_a_slow_client() -> None:
    sent = 0

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send({"type": "websocket.accept"})
        while True:
            await send({"type": "websocket.send", "bytes": bytes(100_000)})
            sent += 1

    async with mounted(app) as served:
        talker, _ = await opened(served, "/api")
        with trio.move_on_after(0.2):
            await trio.sleep_forever()
        stuck = sent
        for _ in range(3):
            assert await talker.next() == (BINARY, bytes(100_000), 0)

    assert stuck < 200
