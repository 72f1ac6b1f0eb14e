"""Hand-overs at a limit: of descriptors, of time, and of sessions that are not ready."""

import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ergo_py import PID, Actor, Alias, ChildSpec, RestartPolicy, StateMachine
from ergo_py._core.verbs.node_access import kernel_of
from ergo_py.handover.channel import REQUEST, Channel, make_turn, take_turn
from ergo_py.handover.channel import connect as connect_to_program
from ergo_py.handover.leaving_connections import LeavingConnections
from ergo_py.handover.next_version import NextVersion
from ergo_py.handover.succession import Succession
from ergo_py.meta import TCP
from ergo_py.meta.inherited_sockets import InheritedSockets
from ergo_py.meta.sockets.listener import listeners_of
from ergo_py.meta.sockets.streams.departure import Departure
from ergo_py.state_machine import state
from examples.guide.moved_session import Visitor
from tests.actors import LogKeeper
from tests.handover.test_ended_successors import Batches, Reports, reports
from tests.handover.test_moved_connections import (
    Hanging,
    Visit,
    Waiting,
    connect,
    door,
    end_move,
    greeted,
    move_to,
    own_sockets,
    receive,
    say_batch,
    succeed,
    take_over,
)
from tests.handover.test_moved_processes import Gate, counter, old_program
from tests.handover.test_steps import (
    PREDECESSOR,
    act_as_predecessor,
    check_waits_for_successors,
    meet_predecessor,
)
from tests.handover.test_succession import named, place
from tests.meta.wires import until
from tests.support import running_node

__all__ = ["named", "own_sockets", "place", "reports"]


@contextmanager
def few_descriptors(free: int) -> Iterator[None]:
    """Let this program open only so many descriptors more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit, used = 0, set(map(int, os.listdir("/proc/self/fd")))
    while free:
        free -= limit not in used
        limit += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def open_inodes() -> set[int]:
    """The files, sockets and pipes that this program has open."""
    found = set[int]()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the list itself
            found.add(os.fstat(int(name)).st_ino)
    return found


async def test_connections_stay_if_no_descriptor_is_left_for_their_turn(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = list[Any]()

    def make_turn() -> int:
        raise OSError("no descriptor is left")

    monkeypatch.setattr("ergo_py.handover.leaving_connections.make_turn", make_turn)
    async with old_program(door(Visitor, unix=place), log_level="info", limit=inf) as (old, start):
        old.node.add_logger(await old.node.spawn(LogKeeper, log), "info")
        peer = await greeted(place)
        new = await start(door(Visitor, unix=place), limit=inf)
        await new.serves.wait()
        await peer.send_all(b"Ann\n")
        assert await receive(peer, 6) == b"1 Ann\n"
        await peer.aclose()
        await old.has_ended.wait()
        (taken,) = (record for record in log if record.event == "a successor has taken over")
        assert taken.fields["staying"] == {"no descriptor is left": 1}


MOVES = "ergo_py.handover.leaving_connections."


@pytest.mark.parametrize(
    "seconds, staying", [(60.0, {}), (0.0, {"not moved in time": 5})], ids=["all", "late"]
)
async def test_connections_move_in_batches_as_long_as_there_is_time(
    seconds: float,
    staying: dict[str, int],
    place: Path,
    autojump_clock: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = list[Any]()
    monkeypatch.setattr(f"{MOVES}_BATCH", 2)
    monkeypatch.setattr(f"{MOVES}_MOVE", seconds)
    async with old_program(door(Visitor, unix=place), log_level="info", limit=inf) as (old, start):
        old.node.add_logger(await old.node.spawn(LogKeeper, log), "info")
        peers = [await connect(place) for _ in range(5)]
        for peer in peers:
            await peer.send_all(b"Ann\n")
            assert await receive(peer, 14) == b"welcome\n1 Ann\n"
        new = await start(door(Visitor, unix=place), limit=inf)
        await new.serves.wait()
        for peer in peers:
            await peer.send_all(b"Lee\n")
            assert await receive(peer, 6) == b"2 Lee\n"
            await peer.aclose()
        await old.has_ended.wait()
        (taken,) = (record for record in log if record.event == "a successor has taken over")
        assert taken.fields["staying"] == staying
        assert taken.fields["connections"] == 5 - sum(staying.values())


async def test_busy_connections_are_waited_for_together_when_all_have_moved(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave, end, served, ended = LeavingConnections.leave, Departure.end, set[object](), list[Any]()

    async def leave_busy(self: LeavingConnections, *args: Any) -> None:
        began = trio.current_time()

        def end_and_note(departure: Departure, leaver: Any) -> Any:
            ended.append((departure in served, trio.current_time() - began))
            return end(departure, leaver)

        def is_first(departure: Departure) -> bool:
            served.update([] if served else [departure])
            return departure in served

        with monkeypatch.context() as patch:
            patch.setattr(Departure, "end", end_and_note)
            patch.setattr(Departure, "has_served", is_first)
            await leave(self, *args)

    monkeypatch.setattr(LeavingConnections, "leave", leave_busy)
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, start):
        peers = [await greeted(place) for _ in range(4)]
        new = await start(door(Visitor, unix=place), limit=inf)
        await new.serves.wait()
        await old.has_ended.wait()
        for peer in peers:
            await peer.aclose()

    assert ended == [(True, 0.0), *[(False, pytest.approx(0.25))] * 3]


async def test_a_slow_move_of_connections_is_reported_each_second(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = list[Any]()
    monkeypatch.setattr(f"{MOVES}_BATCH", 1)
    monkeypatch.setattr(NextVersion, "report", lambda version, line: reports.append(line))
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, _):
        peers = [await greeted(place) for _ in range(2)]
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            await move_to(channel)
            assert (await channel.hear())["batch"] == 2
            for number in 1, 2:
                await trio.sleep(1.1)  # virtual
                await channel.say({"begun": number, "stay": []})
            await end_move(channel, 2)
            await old.has_ended.wait()
        for descriptor in channel.take_descriptors():
            os.close(descriptor)
        for peer in peers:
            await peer.aclose()

    begun, taken, *moving, done = reports
    assert (begun, taken) == ({"begun": True}, {"sockets": ["door"], "states": [], "fresh": []})
    assert moving == [{"moving": 0, "of": 2}, {"moving": 1, "of": 2}]
    assert (done["done"], done["connections"], done["staying"]) == (True, 2, {})


class Large(Visitor):
    """Has more state than a socket takes at once."""

    def hand_over(self) -> object:
        return bytes(10_000_000)


async def test_a_connection_goes_on_when_the_next_program_does_not_read_its_batch(
    place: Path, autojump_clock: Any
) -> None:
    async with old_program(door(Large, unix=place), limit=inf) as (old, _):
        peer = await greeted(place)
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            await succeed(channel)
            await trio.testing.wait_all_tasks_blocked()
            await peer.send_all(b"Ann\n")
            assert await receive(peer, 6) == b"1 Ann\n"
            assert await channel.hear() == {}
            assert not old.has_ended.is_set()  # it has cut the channel in the middle of the line
        await peer.aclose()


async def test_connections_stay_when_the_next_program_does_not_read_forwarded_messages(
    place: Path, autojump_clock: Any
) -> None:
    log, children = list[Any](), [*counter(), *door(Visitor, unix=place)]
    async with old_program(children, log_level="info", limit=inf) as (old, _):
        old.node.add_logger(await old.node.spawn(LogKeeper, log), "info")
        peer = await greeted(place)
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            # More than a socket takes at once.
            await take_over(
                channel, ["counter"], lambda: old.node.send("counter", bytes(5_000_000))
            )
            await trio.testing.wait_all_tasks_blocked()  # the connection waits for its batch
            await peer.send_all(b"Ann\n")
            with trio.fail_after(100):  # virtual
                assert await receive(peer, 6) == b"1 Ann\n"
                await peer.aclose()
                await old.has_ended.wait()
        (taken,) = (record for record in log if record.event == "a successor has taken over")
        assert taken.fields["staying"] == {"not answered by the next version": 1}


async def test_the_old_program_ends_when_the_next_program_does_not_read_late_bytes(
    place: Path, autojump_clock: Any
) -> None:
    async with visited(place) as (old, (_, connection), _, channel):
        await move_to(channel)
        old.node.send(connection, TCP.Send(bytes(5_000_000)))
        await trio.testing.wait_all_tasks_blocked()
        await channel.say({"begun": 1, "stay": []})
        with trio.fail_after(100):  # virtual
            await old.has_ended.wait()


async def test_the_old_program_ends_when_no_message_is_read_for_5_s(
    place: Path, autojump_clock: Any
) -> None:
    log, drained, begun = list[Any](), trio.Event(), trio.Event()
    children = [*counter(shutdown=0.0), ChildSpec("gate", Gate, drained, begun)]
    async with old_program(children, limit=inf) as (old, _):
        old.node.add_logger(await old.node.spawn(LogKeeper, log), "error")
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            await take_over(channel, ["counter"])
            await end_move(channel, 0)
            await begun.wait()
            for _ in range(3):  # each is more than a socket takes at once
                old.node.send("counter", bytes(5_000_000))
            drained.set()
            began = trio.current_time()
            for second in (4, 8):
                await trio.sleep_until(began + second)
                assert len((await channel.hear())["body"]) > 5_000_000
            await old.has_ended.wait()
    assert trio.current_time() - began == pytest.approx(15)
    lost = "messages to moved processes are lost: the next program stalls"
    assert lost in [record.event for record in log]


async def test_no_connection_begins_to_move_after_the_time_of_all_batches(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group of three has a session that is ready, and one that is not."""
    limits = {"_BATCH": 3, "_UNDER_WAY": 1, "_GATHER": 0.1, "_MOVE": 5.0}
    for name, value in limits.items():
        monkeypatch.setattr(f"{MOVES}{name}", value)
    go_on, log = trio.Event(), list[Any]()
    children = door(partial(Waiting, go_on), unix=place)
    async with old_program(children, log_level="info", limit=inf) as (old, _):
        old.node.add_logger(await old.node.spawn(LogKeeper, log), "info")
        peers = [await greeted(place) for _ in range(4)]
        for peer in peers[:2]:
            await peer.send_all(b"Ann\n")
            assert await receive(peer, 6) == b"1 Ann\n"
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            await move_to(channel)
            await trio.sleep(9)
            await channel.say({"begun": 1, "stay": []})
            await end_move(channel, 1)
            go_on.set()
            for peer in peers:
                await peer.aclose()
            await old.has_ended.wait()
        (taken,) = (record for record in log if record.event == "a successor has taken over")
        assert taken.fields["staying"]["not moved in time"] == 1


class Known(Waiting):
    """Adds its PID to a list of the test."""

    def __init__(self, go_on: trio.Event, pids: list[PID]) -> None:
        super().__init__(go_on)
        self.pids = pids

    def init(self) -> None:
        self.pids.append(self.pid)


async def test_a_session_that_ends_while_its_batch_waits_costs_no_other_session(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = list[Channel]()

    class Kept(Channel):
        def __init__(self, sock: trio.socket.SocketType) -> None:
            super().__init__(sock)
            channels.append(self)

    monkeypatch.setattr("ergo_py.handover.succession.Channel", Kept)
    monkeypatch.setattr(f"{MOVES}_GATHER", 1.0)  # both go in one batch
    go_on, sessions = trio.Event(), list[PID]()
    async with old_program(door(partial(Known, go_on, sessions), unix=place), limit=inf) as (
        old,
        _,
    ):
        peers = [await connect(place) for _ in range(2)]
        for peer in peers:
            await peer.send_all(b"Ann\n")
            assert await receive(peer, 14) == b"welcome\n1 Ann\n"
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            async with trio.open_nursery() as nursery:
                await succeed(channel)
                # More than a socket takes at once: the batch waits behind it.
                nursery.start_soon(channels[0].say, {"before": 0}, (), bytes(5_000_000))
                await trio.testing.wait_all_tasks_blocked()
                go_on.set()
                await trio.sleep(1)  # virtual: the batch waits
                old.node.kill(sessions[0])
                await trio.sleep(1)
                assert "before" in await channel.hear()
            batch = await channel.hear()
            assert len(batch["connections"]) == 2
            await channel.say({"begun": 1, "stay": []})
            assert (await channel.hear())["closes"]
            await end_move(channel, 2)
        for peer in peers:
            await peer.aclose()


class Postponing(StateMachine):
    """Postpones its lines until it is open, and echoes them."""

    def __init__(self, addresses: list[PID | Alias]) -> None:
        self.addresses = addresses

    @state
    def shut(self, message: object, sender: PID) -> None:
        if isinstance(message, TCP.Connected):
            self.addresses.append(self.pid)
        elif isinstance(message, TCP.Data):
            self.postpone()
            self.send(message.connection, TCP.Send(b"soon\n"))
        elif message == "later":
            self.postpone()
        elif message == "open":
            self.become(self.open)

    @state
    def open(self, message: object, sender: PID) -> None:
        if isinstance(message, TCP.Data):
            self.send(message.connection, TCP.Send(message.data + b"\n"))

    def hand_over(self) -> object:
        return None

    def take_over(self, state: object) -> None:
        """Take nothing."""


async def test_a_session_with_postponed_messages_stays(place: Path, autojump_clock: Any) -> None:
    addresses = list[PID | Alias]()
    children = door(partial(Postponing, addresses), unix=place)
    async with old_program(children, limit=inf) as (old, start):
        peer = await connect(place)
        await peer.send_all(b"Ann\n")
        assert await receive(peer, 5) == b"soon\n"
        new = await start(door(partial(Postponing, []), unix=place), limit=inf)
        await new.serves.wait()

        old.node.send(addresses[0], "open")
        assert await receive(peer, 4) == b"Ann\n"
        await peer.aclose()
        await old.has_ended.wait()


@asynccontextmanager
async def visited(place: Path) -> AsyncIterator[Any]:
    """A program with a session; the addresses of session and connection, the peer, and the channel
    of a successor, which the test plays.
    """
    addresses = list[PID | Alias]()
    children = door(partial(Visit, [], addresses), unix=place, send_buffer=4096)
    async with old_program(children, limit=inf) as (old, _):
        peer = await greeted(place)
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            yield old, addresses, peer, channel
        await peer.aclose()


async def test_a_session_that_a_person_has_suspended_stays_suspended(
    place: Path, autojump_clock: Any
) -> None:
    async with visited(place) as (old, (session, _), _, channel):
        await old.node.suspend(session)
        assert await move_to(channel) == {}  # it stays
        await channel.say({"arrived": True})
        await trio.testing.wait_all_tasks_blocked()
        assert await old.node.resume(session)


ENDS = {
    "abort": lambda old, session, connection: old.node.send(connection, TCP.Close(abort=True)),
    "kill": lambda old, session, connection: old.node.kill(session),
    "close": lambda old, session, connection: old.node.send(connection, TCP.Close()),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_connection_that_ends_during_its_move_ends_in_the_next_program(
    end: str, place: Path, autojump_clock: Any
) -> None:
    async with visited(place) as (old, (session, connection), peer, channel):
        await move_to(channel)
        ENDS[end](old, session, connection)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(BlockingIOError):
            os.read(peer.socket.fileno(), 1)  # the old program leaves the socket alone
        await channel.say({"begun": 1, "stay": []})
        assert await channel.hear() == {"late": 1, "closes": True, "body": b""}
        await end_move(channel, 1)
        await old.has_ended.wait()


async def test_a_close_during_a_move_that_fails_is_done_by_the_old_program(
    place: Path, autojump_clock: Any
) -> None:
    async with visited(place) as (old, (_, connection), peer, channel):
        await move_to(channel)
        old.node.send(connection, TCP.Close(linger=1000))
        await trio.testing.wait_all_tasks_blocked()
        channel.close()
        with trio.fail_after(100):  # virtual: it does not wait until the patience ends
            assert await peer.receive_some() == b""


async def test_a_connection_with_waiting_callers_stays(place: Path, autojump_clock: Any) -> None:
    async with visited(place) as (old, (_, connection), peer, channel):
        sizes = list[int]()

        async def send(size: int) -> None:
            sizes.append(await old.node.call(connection, TCP.Send(bytes(size)), timeout=None))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, 800_000)
            await trio.testing.wait_all_tasks_blocked()
            assert await move_to(channel) == {}  # it stays
            await channel.say({"arrived": True})
            await receive(peer, 800_000)
        assert sizes == [800_000]


async def test_a_call_during_a_move_is_answered_when_the_bytes_are_forwarded(
    place: Path, autojump_clock: Any
) -> None:
    async with visited(place) as (old, (_, connection), _, channel):
        sizes = list[int]()

        async def send() -> None:
            sizes.append(await old.node.call(connection, TCP.Send(bytes(7)), timeout=None))

        await move_to(channel)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            assert sizes == []
            await channel.say({"begun": 1, "stay": []})
            assert (await channel.hear())["body"] == bytes(7)
        assert sizes == [7]


async def test_a_program_without_a_descriptor_for_a_successor_tries_again(
    place: Path, autojump_clock: Any
) -> None:
    sock = trio.socket.socket(trio.socket.AF_UNIX)
    async with old_program([], limit=inf) as (old, _):
        with few_descriptors(0):
            await sock.connect(str(place / "shop.handover"))
            await trio.sleep(5)  # virtual
        with closing(Channel(sock)) as channel:
            await channel.say(REQUEST)
            assert await channel.hear() == {"sockets": []}
        assert "a successor cannot be accepted" in {record.event for record in old.log}


async def test_a_probe_of_a_program_is_no_successor(place: Path, autojump_clock: Any) -> None:
    async with old_program([], limit=inf) as (old, _):
        await check_waits_for_successors()
        await trio.testing.wait_all_tasks_blocked()
        assert old.log == []


async def test_a_line_of_deeply_nested_json_is_another_language(autojump_clock: Any) -> None:
    ours, theirs = socket.socketpair()
    with theirs, closing(Channel(trio.socket.from_stdlib_socket(ours))) as channel:
        theirs.sendall(b"[" * 100_000 + b"\n")
        assert await channel.hear() == {}


@pytest.mark.parametrize("lost", ["file", "turn"])
async def test_a_successor_that_fails_at_its_turn_ends(
    lost: str, place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(*_: object) -> None:
        raise OSError("no space is left")

    if lost == "file":
        without = SimpleNamespace(**{**vars(os), "rename": rename})
        monkeypatch.setattr("ergo_py.handover.succession.os", without)

    async def play(channel: Channel) -> None:
        for act in PREDECESSOR[: PREDECESSOR.index("yours")]:
            await act_as_predecessor(channel, act)
        if lost == "file":
            await act_as_predecessor(channel, "yours")
        else:
            await channel.say({"yours": True})
        assert await channel.hear() == {}

    async def check(new: Any) -> None:
        await new.has_ended.wait()
        cause = "cannot wait for successors: no space" if lost == "file" else "no descriptor left"
        assert cause in new.failure

    await meet_predecessor(place, play, check)


async def test_a_successor_without_descriptors_lets_connections_stay(
    place: Path, autojump_clock: Any
) -> None:
    theirs, ours = socket.socketpair()
    answered = trio.Event()

    async def play(channel: Channel) -> None:
        for act in PREDECESSOR:
            await act_as_predecessor(channel, act)
        with few_descriptors(10):
            await say_batch(channel, theirs)
            assert await channel.hear() == {"begun": 1, "stay": [1, 2]}
        answered.set()
        await trio.sleep_forever()

    async def check(new: Any) -> None:
        await answered.wait()

    with theirs, ours:
        await meet_predecessor(place, play, check, [*counter(), *door(Visitor, unix=place)])


async def test_a_successor_that_hangs_with_a_state_hears_that_it_is_late(
    place: Path, autojump_clock: Any
) -> None:
    async with old_program(counter(), limit=inf) as (old, start):
        new = await start([ChildSpec("counter", Hanging)], limit=inf)
        await new.has_ended.wait()
        assert "goes on: this one did not take the states over within 60.0 s" in new.failure
        assert await old.node.call("counter", "total") == 0


@pytest.mark.parametrize("count", [0, 1])
async def test_a_successor_without_descriptors_for_the_sockets_does_not_start(
    count: int, place: Path, autojump_clock: Any
) -> None:
    failures = list[str]()

    async def play(channel: Channel) -> None:
        await act_as_predecessor(channel, "take")
        await channel.say({"sockets": ["door", "gate"]}, (ours.fileno(),) * count)
        assert await channel.hear() == {}

    async def check(new: Any) -> None:
        failures.append(str(new))

    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            await meet_predecessor(place, play, check)
        theirs.settimeout(5)
        assert theirs.recv(1) == b""  # no copy is left
    assert failures == ["the running program 'shop' goes on: this one has no descriptor left"]


async def test_a_successor_ends_when_a_process_hangs_with_its_state(
    place: Path, autojump_clock: Any
) -> None:
    async def play(channel: Channel) -> None:
        for act in PREDECESSOR[: PREDECESSOR.index("taken")]:
            await act_as_predecessor(channel, act)

    async def check(new: Any) -> None:
        with trio.fail_after(200):  # virtual
            await new.has_ended.wait()
        assert "goes on: a take_over did not end within 150 s" in new.failure

    await meet_predecessor(place, play, check, [ChildSpec("counter", Hanging)])


async def test_a_first_program_that_cannot_wait_for_successors_ends(
    place: Path, named: InheritedSockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(*_: object) -> None:
        raise OSError("no space is left")

    without = SimpleNamespace(**{**vars(os), "rename": rename})
    monkeypatch.setattr("ergo_py.handover.succession.os", without)
    succession = Succession("shop", named)
    await succession.begin()
    with pytest.raises(OSError, match="no space is left"):
        async with running_node() as node:
            succession.watch(node, bool)()
            await trio.sleep_forever()
    await succession.end()
    assert os.listdir(place) == []


class Ending(Actor):
    """Is killed by the test in the middle of its hand-over."""

    async def hand_over(self) -> object:
        self.node.kill(self.pid)
        await trio.sleep_forever()
        return None

    def take_over(self, state: object) -> None:
        """Take nothing."""


async def test_a_process_that_ends_in_its_hand_over_takes_its_state_with_it(
    place: Path, autojump_clock: Any
) -> None:
    mortal = ChildSpec("mortal", Ending, restart=RestartPolicy.TEMPORARY)
    async with old_program([*counter(), mortal], limit=inf) as (old, start):
        old.node.send("counter", 5)
        new = await start([*counter(), ChildSpec("mortal", Ending)], limit=inf)
        with trio.fail_after(100):  # virtual
            await new.serves.wait()
        assert await new.node.call("counter", "total") == 5
        await old.has_ended.wait()


async def test_a_state_above_the_largest_body_stays(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ergo_py.handover.moved_processes.LARGEST", 1000)
    large = bytes(1001)
    async with old_program(counter(lambda _: large), limit=inf) as (old, start):
        old.node.send("counter", 5)
        new = await start(counter(), limit=inf)
        await new.has_ended.wait()
        assert "it has 1004 bytes; allowed are 1000" in new.failure
        assert await old.node.call("counter", "total") == 5


@pytest.mark.parametrize("copies", [0, 1])
async def test_a_batch_has_as_many_connections_as_there_are_descriptors(
    copies: int,
    place: Path,
    autojump_clock: Any,
    monkeypatch: pytest.MonkeyPatch,
    reports: Reports,
) -> None:
    allowed, inodes = [True] * copies, set[int]()

    def dup(descriptor: int) -> int:
        if not allowed:
            raise OSError("no descriptor is left")
        allowed.pop()
        return os.dup(descriptor)

    def make_and_note() -> int:
        turn = make_turn()
        inodes.add(os.fstat(turn).st_ino)
        return turn

    monkeypatch.setattr(f"{MOVES}make_turn", make_and_note)
    monkeypatch.setattr(f"{MOVES}os", SimpleNamespace(**{**vars(os), "dup": dup}))
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, _):
        peers = [await greeted(place) for _ in range(2)]
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            await take_over(channel, [])
            batches = Batches(channel)
            if copies:
                turn, numbers = await batches.hear()
                assert take_turn(turn)
                await channel.say({"begun": 1, "stay": []})
                assert len(numbers) == 1
            await end_move(channel, copies)
            for peer in peers[copies:]:
                await peer.send_all(b"Ann\n")
                assert await receive(peer, 6) == b"1 Ann\n"
            for peer in peers:
                await peer.aclose()
            await old.has_ended.wait()
            batches.end()
    assert inodes
    assert not inodes & open_inodes()
    assert reports[-1]["staying"] == {"no descriptor is left": 2 - copies}


async def test_connections_stay_if_no_descriptor_is_left_for_the_end_of_others(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, reports: Reports
) -> None:
    def socketpair() -> object:
        raise OSError("no descriptor is left")

    without = SimpleNamespace(**{**vars(socket), "socketpair": socketpair})
    monkeypatch.setattr(f"{MOVES}socket", without)
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, start):
        peer = await greeted(place)
        new = await start(door(Visitor, unix=place), limit=inf)
        await new.serves.wait()
        await peer.send_all(b"Ann\n")
        assert await receive(peer, 6) == b"1 Ann\n"
        await peer.aclose()
        await old.has_ended.wait()
    assert reports[-1]["staying"] == {"no descriptor is left": 1}


async def test_a_connection_that_ends_before_its_batch_costs_no_other_connection(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MOVES}_GATHER", 1.0)
    go_on, sessions = trio.Event(), list[PID]()
    async with old_program(door(partial(Known, go_on, sessions), unix=place), limit=inf) as (
        old,
        _,
    ):
        peers = [await greeted(place) for _ in range(2)]
        await peers[1].send_all(b"Ann\n")
        assert await receive(peers[1], 6) == b"1 Ann\n"  # it works on
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            await succeed(channel)
            await trio.sleep(0.1)  # virtual: the first connection is ready
            old.node.kill(sessions[0])
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()
            assert len((await channel.hear())["connections"]) == 1
            await channel.say({"begun": 1, "stay": []})
            await end_move(channel, 1)
        for peer in peers:
            await peer.aclose()


async def test_a_connection_moves_behind_the_messages_of_its_hand_over(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, reports: Reports
) -> None:
    collect, waits = Departure.collect, [True]

    def collect_later(self: Departure) -> Any:
        return None if waits and waits.pop() else collect(self)

    monkeypatch.setattr(Departure, "collect", collect_later)
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, start):
        peer = await greeted(place)
        await start(door(Visitor, unix=place), limit=inf)
        await old.has_ended.wait()
        assert waits == []
        await peer.send_all(b"Ann\n")
        assert await receive(peer, 6) == b"1 Ann\n"
        await peer.aclose()
    assert reports[-1]["connections"] == 1


async def test_a_session_with_a_postponed_word_stays_until_the_end_of_its_connection(
    place: Path, autojump_clock: Any, reports: Reports
) -> None:
    addresses = list[PID | Alias]()
    children = door(partial(Postponing, addresses), unix=place)
    async with old_program(children, limit=inf) as (old, start):
        async with await connect(place) as peer:
            await until(lambda: addresses)
            old.node.send(addresses[0], "later")
            await start(door(partial(Postponing, []), unix=place), limit=inf)
            await until(lambda: any("done" in line for line in reports))
            old.node.send(addresses[0], "open")
            await peer.send_all(b"Ann\n")
            assert await receive(peer, 4) == b"Ann\n"
        await old.has_ended.wait()
    assert reports[-1]["staying"] == {"has postponed messages": 1}


class Unready(Visitor):
    """Does not start."""

    async def init(self) -> None:
        await trio.sleep_forever()


async def test_a_connection_stays_if_the_init_of_its_next_session_hangs(
    place: Path, autojump_clock: Any, reports: Reports
) -> None:
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, start):
        peer = await greeted(place)
        new = await start(door(Unready, unix=place), limit=inf)
        await new.serves.wait()
        await trio.sleep(5)  # virtual
        await peer.send_all(b"Ann\n")
        assert await receive(peer, 6) == b"1 Ann\n"
        await peer.aclose()
        await old.has_ended.wait()
        assert "its init did not end within 1 s" in [
            record.fields.get("error") for record in new.log
        ]
    assert reports[-1]["staying"] == {"refused by the next version": 1}


async def test_a_moved_connection_that_the_system_refuses_ends_with_its_session(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("the peer has left")

    async with old_program(door(Visitor, unix=place), limit=inf) as (old, start):
        peer = await greeted(place)
        new = await start(door(Visitor, unix=place), limit=inf)
        monkeypatch.setattr(listeners_of(kernel_of(new.node))[0], "go_on_with", refuse)
        await old.has_ended.wait()
        assert await peer.receive_some() == b""
        await peer.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert [record.event for record in new.log] == ["a moved connection has ended"]
        assert new.node.info().processes == 3  # those of the server, and none of the session


async def test_a_batch_without_its_turn_stays(place: Path, autojump_clock: Any) -> None:
    answered = trio.Event()

    async def play(channel: Channel) -> None:
        for act in PREDECESSOR:
            await act_as_predecessor(channel, act)
        rows = [[1, "door", 3, 0, 0, 0]]
        await channel.say({"batch": 1, "turn": 2, "connections": rows}, body=b"")
        assert await channel.hear() == {"begun": 1, "stay": [1]}
        answered.set()

    async def check(new: Any) -> None:
        await answered.wait()

    await meet_predecessor(place, play, check)


def no_turn() -> int:
    raise OSError("no file is free")


@pytest.mark.parametrize(
    "name, value, why",
    [
        ("_MOST", 0, "the running program has 1 sockets with names; 0 at most can be handed over"),
        ("make_turn", no_turn, "no descriptor is left for the turn: no file is free"),
    ],
    ids=["sockets", "turn"],
)
async def test_a_program_that_cannot_hand_over_says_so_and_goes_on(
    name: str, value: Any, why: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"ergo_py.handover.channel.{name}", value)
    async with old_program(door(Visitor)) as (old, _):
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            await channel.say(REQUEST)
            assert await channel.hear() == {"failed": why}
        await check_waits_for_successors()
        assert old.succession.serves


@pytest.mark.parametrize(
    "line", [b"[1]", b'{"size": -1}', b'{"size": 1e99}', b'{"size": 9999999999}']
)
async def test_a_line_that_is_no_object_or_has_a_wrong_size_is_another_language(
    line: bytes,
) -> None:
    ours, theirs = socket.socketpair()
    with theirs, closing(Channel(trio.socket.from_stdlib_socket(ours))) as channel:
        theirs.sendall(line + b"\n")
        with trio.fail_after(5):
            assert await channel.hear() == {}
