"""Our client of NATS beside the client of the NATS project: both see the same messages."""

import asyncio
from typing import Any

import nats
import trio

from ergo_py.network.carriers.nats.client import Client
from ergo_py.network.carriers.nats.login import ServerAddress
from ergo_py.network.carriers.nats.wire import Message, ServerInfo
from tests.network.nats.server import NatsServer
from tests.network.pairs import until

SCRIPT = [
    *((f"d.{number % 7}", bytes([number % 256]) * (number * 37 % 5000)) for number in range(200)),
    ("d.empty", b""),
    ("d.lines", b"PUB x 1\r\ny\r\n" * 50),
    ("d.large", bytes(range(256)) * 4000),
]


class Heard:
    """The handler of a client that remembers its messages."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, int, bytes]] = []
        self.is_connected = False

    def connected(self, _info: ServerInfo) -> None:
        self.is_connected = True

    def begin_pass(self, reader: object) -> None:
        assert reader is trio.lowlevel.current_task()

    def end_pass(self, reader: object) -> bool:
        assert reader is trio.lowlevel.current_task()
        return True

    def message(self, message: Message) -> None:
        self.messages.append((message.subject, message.reply, message.status, message.payload))

    def disconnected(self, why: str) -> None:
        raise AssertionError(why)

    def refused(self, text: str) -> None:
        raise AssertionError(text)


async def test_both_clients_see_the_same_messages(shared_server: NatsServer) -> None:
    heard = Heard()
    client = Client(
        [ServerAddress.parse(shared_server.url)],
        heard,
        name="ours",
        subscriptions=["theirs.>", "inbox.*"],
        credentials=None,
        context=None,
        tls_first=False,
        patience=5.0,
    )
    seen: list[tuple[str, str, bytes]] = []
    is_listening = trio.Event()
    token = trio.lowlevel.current_trio_token()

    async def theirs() -> None:
        """Listen to our messages, then publish the same ones, with headers on every second."""
        other = await nats.connect(shared_server.url, max_reconnect_attempts=0)
        done = asyncio.Event()

        async def note(message: Any) -> None:
            if message.subject == "ours.probe":
                token.run_sync_soon(is_listening.set)
                return
            seen.append((message.subject, message.reply, message.data))
            if len(seen) == len(SCRIPT):
                done.set()

        await other.subscribe("ours.>", cb=note)
        # The ping of its flush may overtake the subscription; a publication does not.
        await other.publish("ours.probe", b"")
        await asyncio.wait_for(done.wait(), 60)
        for number, (subject, payload) in enumerate(SCRIPT):
            headers = {"Number": str(number)} if number % 2 else None
            await other.publish(f"theirs.{subject}", payload, reply="back.1", headers=headers)
        await other.drain()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        await until(lambda: heard.is_connected)
        nursery.start_soon(trio.to_thread.run_sync, lambda: asyncio.run(theirs()))
        await is_listening.wait()
        for subject, payload in SCRIPT:
            client.publish(f"ours.{subject}", "inbox.x", payload)
        await client.flush()
        await until(lambda: len(heard.messages) == len(SCRIPT))
        # A subject without a listener: the server answers to the reply subject.
        client.publish("nowhere", "inbox.nowhere", b"")
        await until(lambda: len(heard.messages) > len(SCRIPT))
        nursery.cancel_scope.cancel()

    assert seen == [(f"ours.{subject}", "inbox.x", payload) for subject, payload in SCRIPT]
    assert heard.messages == [
        *((f"theirs.{subject}", "back.1", 0, payload) for subject, payload in SCRIPT),
        ("inbox.nowhere", "", 503, b""),
    ]
