"""The end of a session: an actor that a server made for a connection ends with it, even if it
waits.
"""

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import NO_REPLY, PID, Actor, Alias, Caller, Node, Normal, Reason, Shutdown
from ergo_py.meta.sockets.messages import (
    Cause,
    TCPClose,
    TCPConnected,
    TCPData,
    TCPDisconnected,
    TCPSend,
)
from ergo_py.meta.sockets.streams.reader import StreamReader
from ergo_py.meta.sockets.streams.sessions import end_session
from tests.actors import Puppet
from tests.meta.wires import Mail, Wire, serve, until, wired_node
from tests.support import process_of, running_node


class Store(Actor):
    """Has nothing to give before it is told so, and puts every question off until then."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []
        self.answers: list[bool] = []

    def handle_call(self, request: Any, caller: Caller) -> object:
        if request == "answers":
            return self.answers
        if request == "waiting":
            return len(self.callers)
        self.callers.append(caller)
        return NO_REPLY

    def handle_message(self, message: Any, sender: Any) -> None:
        self.answers += [self.reply(caller, message) for caller in self.callers]
        self.callers.clear()


class Asking(Actor):
    """A session that asks for each thing that its peer says, and waits for as long as it takes."""

    def __init__(
        self, store: Any, ends: list[Reason], mail: Mail, timeout: float | None = None
    ) -> None:
        self.store = store
        self.ends = ends
        self.mail = mail
        self.timeout = timeout

    async def handle_message(self, message: Any, sender: Any) -> None:
        self.mail.add(message)
        if isinstance(message, TCPData):
            answer = await self.call(self.store, message.data, timeout=self.timeout)
            self.send(message.connection, TCPSend(answer))

    def terminate(self, reason: Reason) -> None:
        self.ends.append(reason)


async def waiting(node: Node, wire: Wire, count: int, **options: Any) -> Any:
    """A server with ``count`` sessions that all wait for the store; their store, peers and ends."""
    ends: list[Reason] = []
    mail = Mail()
    store = await node.spawn(Store)
    server, _ = await serve(node, wire, receiver=partial(Asking, store, ends, mail), **options)
    peers = [wire.dial_plain(server) for _ in range(count)]
    for peer in peers:
        peer.sendall(b"pop")
    await mail.wait_for(TCPData, count)
    while await node.call(store, "waiting") < count:
        await trio.lowlevel.checkpoint()
    return server, store, peers, ends


@pytest.mark.parametrize("leave", ["close", "server"])
async def test_a_session_that_waits_for_an_answer_ends_with_its_connection(
    wire: Wire, leave: str
) -> None:
    async with wired_node() as node:
        server, store, peers, ends = await waiting(node, wire, 20, linger=0.05, max_connections=20)

        if leave == "server":
            node.send_exit(server.id, Shutdown())
        for peer in peers:
            peer.close()
        await until(lambda: len(ends) == 20)

        assert ends == [Normal()] * 20
        assert server.connections == 0
        node.send(store, b"element")
        # The store knows that it still has it.
        assert await node.call(store, "answers") == [False] * 20
        assert node.crashes() == []


async def test_a_connection_survives_a_timeout_between_two_checks(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []

    def look(reader: StreamReader) -> bool:
        looks.append(is_impatient(reader))
        if len(looks) > 1:
            return looks[-1]
        # The reader was a little early, and is then kept from running until the time is over.
        while (patience := reader.patience()) is not None and patience >= 0:
            pass
        return False

    is_impatient = StreamReader.is_impatient
    monkeypatch.setattr(StreamReader, "is_impatient", look)
    async with wired_node() as node:
        _, _, [peer], ends = await waiting(node, wire, 1, linger=0.01)
        peer.close()
        await until(lambda: ends)

        assert ends == [Normal()]
        assert len(looks) > 1
        assert node.crashes() == []


async def test_a_session_that_waits_for_an_answer_does_not_delay_its_owner(
    wire: Wire,
) -> None:
    async with wired_node() as node:
        _, _, peers, ends = await waiting(node, wire, 20)

    assert ends == [Shutdown()] * 20
    assert node.exit_report is not None
    assert node.exit_report.killed == ()
    for peer in peers:
        assert peer.recv(1) == b""
        peer.close()


async def test_a_call_that_is_under_way_is_finished_before_the_session_ends(wire: Wire) -> None:
    begun, over = trio.Event(), trio.Event()

    class Slow(Actor):
        async def handle_call(self, request: Any, caller: Caller) -> object:
            begun.set()
            await over.wait()
            return b"done"

    class Asks(Asking):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await super().handle_message(message, sender)
            self.mail.add((type(message), "done"))

    ends: list[Reason] = []
    mail = Mail()
    async with wired_node() as node:
        slow = await node.spawn(Slow)
        server, _ = await serve(node, wire, receiver=partial(Asks, slow, ends, mail), linger=0.05)
        async with await wire.dial(server) as peer:
            await peer.send_all(b"work")
            await begun.wait()
        await until(lambda: server.connections == 0)

        over.set()
        await until(lambda: ends)

    assert ends == [Normal()]
    assert [one for one in mail.heard if isinstance(one, tuple)] == [
        (TCPConnected, "done"),
        (TCPData, "done"),
        (TCPDisconnected, "done"),
    ]
    assert mail.of(TCPDisconnected)[0].reason is Cause.EOF


async def test_a_session_that_ends_by_itself_leaves_no_dead_letter(wire: Wire) -> None:
    ends: list[Reason] = []

    class Polite(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            if isinstance(message, TCPData):
                self.send(message.connection, TCPSend(b"goodbye"))
                self.stop()

        def terminate(self, reason: Reason) -> None:
            ends.append(reason)

    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=Polite)
        for _ in range(5):
            async with await wire.dial(server) as peer:
                await peer.send_all(b"quit")
                assert await peer.receive_some() == b"goodbye"

        await until(lambda: len(ends) == 5)
        assert node.dead_letters() == []


async def test_a_send_to_a_connection_that_has_just_ended_is_no_dead_letter(
    wire: Wire,
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire)
        async with await wire.dial(server):
            connection = (await mail.first(TCPConnected)).connection
        await mail.first(TCPDisconnected)
        await until(lambda: len(node.metas()) == 1)

        assert not node.send(connection, TCPSend(b"too late"))
        assert not node.send(connection, TCPClose())

        assert node.dead_letters() == []
        assert node.info().late_messages == 2


# -- callbacks that go on after the connection has ended -------------------------------------------


class Guest(Puppet):
    """A session with a connection that ends when a test says so."""

    def __init__(self, ends: list[tuple[float, Reason]]) -> None:
        super().__init__()
        self.ends = ends

    def terminate(self, reason: Reason) -> None:
        self.ends.append((trio.current_time(), reason))


async def rest(_: Guest) -> None:
    await trio.sleep(2)


def disconnect(node: Node, pid: PID) -> None:
    end_session(process_of(node, pid), Alias(node.name, 1, 1))


@pytest.mark.counted
async def test_a_callback_that_never_returns_is_cut_off_after_the_shutdown_time(
    autojump_clock: MockClock,
) -> None:
    ends: list[tuple[float, Reason]] = []
    async with running_node() as node:
        guest = await node.spawn(Guest, ends, shutdown=3)
        node.send(guest, lambda me: trio.Event().wait())
        await wait_all_tasks_blocked()

        disconnect(node, guest)
        await node.wait_ended(guest)

    assert ends == [(3, Normal())]


async def test_a_session_handles_all_messages_of_its_peer_however_long_that_takes(
    autojump_clock: MockClock,
) -> None:
    ends: list[tuple[float, Reason]] = []
    async with running_node() as node:
        guest = await node.spawn(Guest, ends, shutdown=3)
        for _ in range(10):
            node.send(guest, rest)
        await wait_all_tasks_blocked()

        disconnect(node, guest)
        await node.wait_ended(guest)

    assert ends == [(20, Normal())]


async def test_a_suspended_session_ends_when_it_is_resumed(autojump_clock: MockClock) -> None:
    ends: list[tuple[float, Reason]] = []
    async with running_node() as node:
        guest = await node.spawn(Guest, ends, shutdown=3)
        await node.suspend(guest)
        await wait_all_tasks_blocked()

        disconnect(node, guest)
        await trio.sleep(20)
        await node.resume(guest)
        await node.wait_ended(guest)

    assert ends == [(20, Normal())]


async def test_a_session_that_begins_to_wait_later_ends_too(
    autojump_clock: MockClock,
) -> None:
    ends: list[tuple[float, Reason]] = []
    async with running_node() as node:
        store = await node.spawn(Store)
        guest = await node.spawn(Guest, ends, shutdown=3)
        node.send(guest, rest)
        node.send(guest, lambda me: me.call(store, "pop", timeout=None))
        await wait_all_tasks_blocked()

        disconnect(node, guest)
        await node.wait_ended(guest)

    assert ends == [(3, Normal())]


async def test_a_session_waits_for_a_call_with_a_timeout_before_it_ends(
    autojump_clock: MockClock,
) -> None:
    ends: list[tuple[float, Reason]] = []
    answers: list[Any] = []

    async def save(me: Guest) -> None:
        answers.append(await me.call(store, "save", timeout=100))

    async with running_node() as node:
        store = await node.spawn(Store)
        guest = await node.spawn(Guest, ends, shutdown=3)
        node.send(guest, save)
        await wait_all_tasks_blocked()

        disconnect(node, guest)
        await trio.sleep(50)
        node.send(store, "saved")
        await node.wait_ended(guest)

    assert answers == ["saved"]
    assert ends == [(50, Normal())]


async def test_a_kill_after_the_end_of_the_connection_keeps_the_normal_reason(
    autojump_clock: MockClock,
) -> None:
    ends: list[tuple[float, Reason]] = []
    async with running_node() as node:
        store = await node.spawn(Store)
        guest = await node.spawn(Guest, ends)
        node.send(guest, lambda me: me.call(store, "pop", timeout=None))
        await wait_all_tasks_blocked()

        disconnect(node, guest)
        node.kill(guest)
        await node.wait_ended(guest)

    assert ends == [(0, Normal())]


@pytest.mark.counted
async def test_terminate_may_wait_for_a_deferred_answer(
    autojump_clock: MockClock,
) -> None:
    answers: list[Any] = []

    class Last(Puppet):
        async def terminate(self, reason: Reason) -> None:
            answers.append(await self.call(store, "pop", timeout=None))

    async with running_node() as node:
        store = await node.spawn(Store)
        guest = await node.spawn(Last)
        node.send_exit(guest, Shutdown())
        await wait_all_tasks_blocked()

        disconnect(node, guest)
        node.send(store, "late")
        await node.wait_ended(guest)

    assert answers == ["late"]
