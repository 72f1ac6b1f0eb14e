"""Recorded input is sent again, to the same effect, without its source."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ergo_py import Actor, Alias, BadInputError, Down, MetaProcess, Normal
from ergo_py.meta import TCP, Endpoint, TCPServer
from ergo_py.meta.sockets.messages import Cause
from ergo_py.testing import Probe, Replay, Tape, settle
from ergo_py.testing.replay import with_alias
from tests.actors import Puppet
from tests.support import running_node

PEER, LOCAL = Endpoint("127.0.0.1", 40_000), Endpoint("127.0.0.1", 7_777)


class Shouter(Actor):
    """Answers each piece of data in capitals. Its source is given to it."""

    def __init__(self, source: MetaProcess, log: list[Any]) -> None:
        self.source = source
        self.log_of = log

    async def init(self) -> None:
        self.alias = await self.spawn_meta(self.source)

    def handle_message(self, message: Any, sender: Any) -> None:
        match message:
            case TCP.Data(connection, data):
                self.log_of.append(data)
                self.send(connection, TCP.Send(data.upper()))
            case TCP.Disconnected():
                self.log_of.append(message.reason)


async def test_a_replay_takes_the_place_of_a_connection(
    autojump_clock: MockClock,
) -> None:
    log: list[Any] = []
    connection = Replay(
        [
            TCP.Connected(Replay.ME, PEER, LOCAL),
            TCP.Data(Replay.ME, b"hello"),
            TCP.Data(Replay.ME, b"you"),
            TCP.Disconnected(Replay.ME, Cause.EOF, 8, 8, 1.0),
        ],
        gap=1.0,
    )
    async with running_node() as node:
        pid = await node.spawn(Shouter, connection, log)

        await trio.sleep(4.5)

        assert log == [b"hello", b"you", Cause.EOF]
        assert connection.received == [TCP.Send(b"HELLO"), TCP.Send(b"YOU")]
        assert connection.senders == [pid, pid]
        assert connection.sent == 4


async def test_a_replay_answers_calls_and_may_end_after_its_messages(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        probe = await Probe.start(node)
        staying = Replay([], answer=lambda request: len(request.data))
        ending = Replay(["last words"], receiver=probe.pid, gap=1, then="end")
        first = await node.call(pid, lambda me: me.spawn_meta(staying))
        written = await node.call(first, TCP.Send(b"four"))
        second = await node.call(pid, lambda me: me.spawn_meta(ending))
        await probe.monitor(second)

        # A down goes before messages that wait.
        words, down = await probe.expect_all("last words", Down, timeout=5)

    assert written == 4
    assert (words, down.target) == ("last words", second)
    assert isinstance(down.reason, Normal)
    assert staying.received == [TCP.Send(b"four")]


async def test_the_messages_of_a_real_connection_are_recorded_and_replayed(tmp_path: Path) -> None:
    heard: list[Any] = []
    tape = Tape()
    async with running_node() as node:
        server = TCPServer("127.0.0.1", 0)
        await node.spawn(tape.recording(Shouter), server, heard)
        stream = await trio.open_tcp_stream("127.0.0.1", server.local.port)
        async with stream:
            await stream.send_all(b"hello")
            answer = await stream.receive_some(100)
        with trio.fail_after(30):
            while Cause.EOF not in heard:  # noqa: ASYNC110 - a socket closes when it likes
                await trio.sleep(0.001)
        [alias] = tape.aliases
        tape.of(alias).save(tmp_path / "hello.recording")

    replayed: list[Any] = []
    again = Replay(Replay.Recording.load(tmp_path / "hello.recording"))
    async with running_node() as node:
        await node.spawn(Shouter, again, replayed)
        with trio.fail_after(30):
            while Cause.EOF not in replayed:
                await settle(node)

    assert answer == b"HELLO"
    assert replayed == heard == [b"hello", Cause.EOF]
    assert again.received == [TCP.Send(b"HELLO")]


async def test_a_recording_keeps_its_gaps_and_an_explicit_gap_replaces_them(
    autojump_clock: MockClock,
) -> None:
    class Source(MetaProcess):
        async def start(self) -> None:
            for gap in (1, 2, 3):
                await trio.sleep(gap)
                self.send(self.parent, (self.id, gap))

    tape = Tape()
    moments: list[float] = []

    class Owner(Actor):
        def __init__(self, source: MetaProcess) -> None:
            self.source = source

        async def init(self) -> None:
            await self.spawn_meta(self.source)

        def handle_message(self, message: Any, sender: Any) -> None:
            assert message[0] == sender
            moments.append(trio.current_time())

    async with running_node() as node:
        await node.spawn(tape.recording(Owner), Source())
        node.send(node.processes()[0], (node.pid, "not from a meta-process"))
        await trio.sleep(10)
        recorded = tape.of(tape.aliases[0])
        await node.spawn(Owner, Replay(recorded))
        await trio.sleep(10)
        await node.spawn(Owner, Replay(recorded, gap=4))
        await trio.sleep(13)

    assert recorded == Replay.Recording(
        ((Replay.ME, 1), (Replay.ME, 2), (Replay.ME, 3)), (0.0, 2.0, 3.0)
    )
    assert moments == [0.0, 1.0, 3.0, 6.0, 10.0, 12.0, 15.0, 24.0, 28.0, 32.0]


@dataclass(frozen=True)
class Nested:
    connection: Alias
    inner: TCP.Data
    others: tuple[object, ...] = ()


def test_an_alias_is_replaced_wherever_a_message_holds_it() -> None:
    old, new = Alias("n", 1, 2), Alias("n", 1, 3)
    message = Nested(old, TCP.Data(old, b"x"), (old, [old, 1], "y"))

    changed = with_alias(message, old, new)

    assert changed == Nested(new, TCP.Data(new, b"x"), (new, [new, 1], "y"))
    assert with_alias(changed, old, Replay.ME) is changed


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(pickle.dumps("no recording"))
    wrong: Any = "explode"

    with pytest.raises(BadInputError):
        Replay.Recording.load(tmp_path / "other")
    with pytest.raises(BadInputError):
        Replay([], then=wrong)
    with pytest.raises(BadInputError):
        Replay([], gap=-1)
    with pytest.raises(BadInputError):
        Tape().of(Replay.ME)


async def test_a_replay_without_an_answer_function_answers_none(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        alias = await node.call(pid, lambda me: me.spawn_meta(Replay([])))

        request: object = TCP.Close()
        answer = await node.call(alias, request)

    assert answer is None
