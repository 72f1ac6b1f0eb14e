"""Servers of datagrams with a socket that moves from a program to the next: readers, groups and
options.
"""

import socket
from contextlib import closing
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import Actor, ChildSpec
from ergo_py.handover.channel import REQUEST, Channel, Line, connect
from ergo_py.meta import UDP, UDPServer
from ergo_py.meta.inherited_sockets import InheritedSockets
from tests.handover.test_moved_connections import own_sockets
from tests.handover.test_moved_processes import Gate, old_program, run_program
from tests.handover.test_steps import (
    PREDECESSOR,
    act_as_predecessor,
    act_as_successor,
    meet_predecessor,
)
from tests.handover.test_succession import place
from tests.meta.sockets.test_shared_options import Net, net, sizes, sock, udp
from tests.meta.wires import Ear, Mail, spawn_meta, until, wired_node
from tests.support import loopback_of_this_program

__all__ = ["net", "own_sockets", "place", "sock", "udp"]


class News(Actor):
    """Hands datagrams to the test."""

    def __init__(self, heard: list[bytes], **options: Any) -> None:
        self.heard, self.options = heard, options

    async def init(self) -> None:
        await self.spawn_meta(UDPServer(sock="news", reader="task", **self.options))

    def handle_message(self, message: object, sender: object) -> None:
        if isinstance(message, UDP.Data):
            self.heard.append(message.data)


def news(heard: list[bytes], **options: Any) -> list[ChildSpec]:
    return [ChildSpec("news", partial(News, heard, **options))]


@pytest.fixture
def given(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """The socket ``news`` of the first program."""
    return pass_on(sock, monkeypatch)


def pass_on(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    begin, programs = InheritedSockets.begin_to_keep, list[InheritedSockets]()

    def begin_with_socket(self: InheritedSockets) -> None:
        begin(self)
        if not programs:
            self.keep("news", sock)
        programs.append(self)

    monkeypatch.setattr(InheritedSockets, "begin_to_keep", begin_with_socket)
    return sock


async def of_groups(net: Net, sock: socket.socket, *heard: list[bytes]) -> set[str]:
    """The groups whose datagrams reach the programs."""
    host = loopback_of_this_program() if net.family == socket.AF_INET else "::1"
    for each in heard:
        each.clear()
    for group in net.groups:
        net.say(group.encode(), group, sock)
    with socket.socket(net.family, socket.SOCK_DGRAM) as peer:
        peer.sendto(b"end", (host, sock.getsockname()[1]))
    await until(lambda: any(b"end" in each for each in heard))
    found = [data.decode() for each in heard for data in each if data != b"end"]
    assert len(found) == len(set(found))  # no datagram reaches both
    return set(found)


async def test_each_version_has_its_own_groups_and_buffers_also_while_both_run(
    net: Net, given: socket.socket, place: Path
) -> None:
    one, two, three = net.groups
    old_heard, new_heard, last_heard = list[bytes](), list[bytes](), list[bytes]()
    drained, begun = trio.Event(), trio.Event()
    gate = ChildSpec("gate", Gate, drained, begun)
    at: dict[str, Any] = {"interface": net.interface}
    default = sizes(given)
    first = news(old_heard, groups=[one, two], receive_buffer=40_000, send_buffer=45_000, **at)
    async with old_program([*first, gate]) as (old, start):
        assert await of_groups(net, given, old_heard) == {one, two}
        assert sizes(given) == (80_000, 90_000)

        new = await start(news(new_heard, groups=[two, three], receive_buffer=50_000, **at))
        await begun.wait()  # the old program drains
        assert sizes(given) == (100_000, default[1])
        assert await of_groups(net, given, old_heard, new_heard) == {one, two, three}

        drained.set()
        await old.has_ended.wait()
        await until(lambda: old.node.metas() == [])
        assert await of_groups(net, given, new_heard) == {two, three}
        assert sizes(given) == (100_000, default[1])

        await start(news(last_heard, groups=[two], **at))
        await new.has_ended.wait()
        await until(lambda: new.node.metas() == [])
        assert await of_groups(net, given, last_heard) == {two}
        assert sizes(given) == default


@pytest.mark.parametrize("is_up", [False, True], ids=["never up", "refused"])
async def test_a_next_version_that_does_not_take_over_reads_nothing_and_sets_nothing(
    is_up: bool, udp: socket.socket, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_on(udp, monkeypatch)
    old_heard, new_heard = list[bytes](), list[bytes]()
    hops = (socket.IPPROTO_IP, socket.IP_MULTICAST_TTL)

    async def check(word: bytes) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.sendto(word, udp.getsockname())
        await until(lambda: old_heard and old_heard[-1] == word)
        assert (sizes(udp)[0], udp.getsockopt(*hops)) == (80_000, 3)

    async with old_program(news(old_heard, receive_buffer=40_000, ttl=3)):
        async with trio.open_nursery() as nursery:
            children = news(new_heard, receive_buffer=50_000, ttl=5, broadcast=True)
            new = await nursery.start(run_program, "new", children)
            await check(b"while it starts")
            if is_up:
                new.is_up()
                monkeypatch.setattr(
                    "ergo_py.handover.succession._takes_turn", lambda turns: not turns
                )
                await new.has_ended.wait()
                await until(lambda: new.node.metas() == [])
            nursery.cancel_scope.cancel()
        await check(b"behind its end")
    assert old_heard == [b"while it starts", b"behind its end"]
    assert new_heard == []


async def test_a_program_that_goes_on_after_its_successor_has_its_own_options_again(
    udp: socket.socket, place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_on(udp, monkeypatch)
    say, waits = Channel.say, trio.Event()

    async def wait_to_say(self: Channel, line: Line, *args: Any, **options: Any) -> None:
        if "arrived" in line:
            waits.set()
            await trio.sleep_forever()
        await say(self, line, *args, **options)

    monkeypatch.setattr(Channel, "say", wait_to_say)
    default = sizes(udp)
    first = news([], receive_buffer=40_000)
    async with old_program(first, limit=inf) as (old, start):
        new = await start(news([], receive_buffer=50_000, send_buffer=50_000), limit=inf)
        await waits.wait()
        assert sizes(udp) == (100_000, 100_000)
        new.node.stop()
        await new.has_ended.wait()
        await until(lambda: sizes(udp) == (80_000, default[1]) and new.node.metas() == [])
        assert sizes(udp) == (80_000, default[1])
        assert old.succession.serves
    assert sizes(udp) == default


TOLD: dict[str, tuple[Any, int | None]] = {
    "a size": ({"news": {"8": 30_000}}, 60_000),
    "nothing": (None, None),
    "words": ({"news": {"8": "x", "y": 5}, 7: 7}, None),
    "no options": ({"news": 5}, None),
    "a number": (5, None),
    "a list": ([["news", {"8": 30_000}]], None),
    "a boolean": ({"news": {"8": True}}, None),
    "a fraction": ({"news": {"8": 3e4}}, None),
    "a negative size": ({"news": {"8": -1}}, None),
    "a size beyond all systems": ({"news": {"8": 1 << 31}}, None),
    "a huge size": ({"news": {"8": 1 << 70}}, None),
    "a huge option": ({"news": {"9" * 5000: 5, "8": 30_000}}, 60_000),
    "another option": ({"news": {"2": 0, "8": 30_000}}, 60_000),
    "many entries": (
        {"news": {"8": 30_000}}
        | {str(number): dict.fromkeys(map(str, range(9)), 5) for number in range(10_000)},
        60_000,
    ),
}
"""``former_sizes`` of a predecessor, and the buffer in its successor."""


@pytest.mark.parametrize("case", TOLD)
async def test_a_successor_sets_a_buffer_back_as_its_predecessor_tells(
    case: str, udp: socket.socket, place: Path, autojump_clock: Any
) -> None:
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 40_000)
    told, size = TOLD[case]

    async def play(channel: Channel) -> None:
        await act_as_predecessor(channel, "take")
        line = {"sockets": ["news"], "former_sizes": told}
        if told is None:
            del line["former_sizes"]
        await channel.say(line, (udp.fileno(),))
        for act in PREDECESSOR[2:]:
            if act != "state":
                await act_as_predecessor(channel, act)

    async def check(new: Any) -> None:
        with trio.fail_after(100):  # virtual
            await new.serves.wait()
        assert sizes(udp)[0] == (size or 80_000)
        assert set(new.sockets.former_sizes) == {"news"}  # all that its own successor hears
        assert set(new.sockets.former_sizes["news"]) <= {socket.SO_RCVBUF, socket.SO_SNDBUF}
        new.node.stop()
        await new.has_ended.wait()
        assert new.log == []
        assert sizes(udp)[0] == (size or 80_000)

    await meet_predecessor(place, play, check, news([]))


async def test_a_program_tells_its_successor_the_sizes_and_leaves_the_socket_to_it(
    udp: socket.socket, place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_on(udp, monkeypatch)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 30_000)
    async with old_program(news([], receive_buffer=40_000), limit=inf) as (old, _):
        channel = await connect("shop")
        assert channel is not None
        with closing(channel):
            await channel.say(REQUEST)
            sizes_told = {"news": {str(socket.SO_RCVBUF): 30_000, str(socket.SO_SNDBUF): 0}}
            assert await channel.hear() == {"sockets": ["news"], "former_sizes": sizes_told}
            await channel.say({"up": True, "takes": [], "connections": []})
            assert "states" in await channel.hear()
            for act in ("taken", "yours", "turn", "mine"):
                await act_as_successor(channel, act)
            assert await channel.hear() == {"moved": 0}
            await channel.say({"arrived": True})
            await old.has_ended.wait()
            assert sizes(udp)[0] == 80_000  # the successor may have set it


@pytest.mark.parametrize("reader", ["thread", "task"])
async def test_a_reader_waits_for_the_turn_of_its_program_and_may_be_stopped_before(
    reader: Any, udp: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = InheritedSockets({})
    monkeypatch.setattr("ergo_py.meta.sockets.socket_setup.inherited_sockets", lambda: made)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        made.take_over({"news": udp.fileno()}, {})
        peer.sendto(b"first", udp.getsockname())
        async with wired_node() as node:
            mail = Mail()
            stopped = UDPServer(sock="news", reader=reader)
            owner = await node.spawn(Ear, mail)
            await spawn_meta(node, owner, stopped)
            node.kill(owner)
            await until(lambda: node.metas() == [])
            server = UDPServer(sock="news", reader=reader)
            await spawn_meta(node, await node.spawn(Ear, mail), server)
            await trio.testing.wait_all_tasks_blocked()
            assert (stopped.messages_in, server.messages_in) == (0, 0)
            made.release()
            server.look_again()
            assert (await mail.first(UDP.Data)).data == b"first"
