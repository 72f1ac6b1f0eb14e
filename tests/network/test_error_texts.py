"""The text of each error between nodes: the given value, the allowed values, the line to write."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import trio

import ergo_py.entities.shards.wire  # noqa: F401 - its errors travel, too
from ergo_py import Actor, Caller, MailboxFullError, MetaProcess, Name, NoNode, TargetDownError, Why
from ergo_py._core.vocabulary.errors import (
    EventUnknownError,
    InitTimeoutError,
    TooManyProcessesError,
    TooManyReadersError,
)
from ergo_py.entities.errors import StateTooLargeError, StateTypeError, StateUnreadableError
from ergo_py.errors import CallFailedError, ErgoError, SendError
from ergo_py.network import Local, Memory, UnreadableError
from ergo_py.network.errors import (
    MessageTooLargeError,
    MessageTypeError,
    NodeBusyError,
    TooManyCallsError,
)
from ergo_py.network.messages.message_types import MessageTypes
from ergo_py.network.protocol.failures import error_of, failure_of
from tests.actors import Recorder
from tests.network.pairs import TYPES, Add, Echo, Total, make_network, two_nodes, until
from tests.network.test_nodes import Counter, Talker
from tests.support import kernel_of, running_node


@dataclass
class Unlisted:
    """A class that is not listed."""


def exactly(text: str) -> str:
    return f"^{re.escape(text)}$"


UNLISTED = (
    "a Unlisted cannot travel to <PID 1 b@test>: tests.network.test_error_texts.Unlisted is not "
    "among the types that travel; list it in `types=[Unlisted]` of the network, on both nodes"
)
LARGE = "a int cannot travel to <PID 1 b@test>: can't serialize ints < -2**63 or > 2**64 - 1"


async def test_a_value_that_cannot_travel_names_its_type_and_the_line_to_write() -> None:
    in_thread: Any = trio.to_thread.run_sync
    async with two_nodes(make_network("memory")) as (a, b):
        pid = await b.spawn(Counter)
        talker = await a.spawn(Talker, [])

        async def arm(message: object) -> None:
            def arm_timer(me: Talker) -> None:
                with pytest.raises(MessageTypeError) as refused:
                    me.send_after(1.0, pid, message)
                errors.append(refused.value)

            await a.call(talker, arm_timer)
            raise errors[-1]

        async def send(message: object) -> None:
            a.send(pid, message)

        errors: list[MessageTypeError] = []
        for message, text in ((Unlisted(), UNLISTED), (2**64, LARGE)):
            uses: list[Callable[[object], Awaitable[object]]] = [
                send,
                partial(a.call, pid),
                partial(a.send_wait, pid),
                arm,
                partial(in_thread, a.send, pid),
                partial(in_thread, a.call_from_thread, pid),
            ]
            for use in uses:
                with pytest.raises(MessageTypeError, match=exactly(text)) as caught:
                    await use(message)
                assert isinstance(caught.value, SendError)
                assert isinstance(caught.value, TypeError)
        assert await a.call(pid, Total()) == 0


async def test_a_caller_inside_a_message_cannot_travel(autojump_clock: Any) -> None:
    class Asked(Actor):
        def handle_call(self, request: Any, caller: Caller) -> Any:
            try:
                self.send(pid, [caller])
            except MessageTypeError as error:
                return str(error)
            return "sent"

    async with two_nodes(make_network("memory"), limit=1000) as (a, b):
        pid = await b.spawn(Counter)
        text = await a.call(await a.spawn(Asked), 1)

    assert text.startswith("a list cannot travel to <PID 1 b@test>: a value of the type ")
    assert text.endswith("Caller cannot travel; send plain values, dataclasses or msgspec.Structs")


async def test_a_message_that_is_too_large_says_how_much_is_allowed(autojump_clock: Any) -> None:
    async with two_nodes(make_network("memory"), limit=1000) as (a, b):
        pid = await b.spawn(Counter)
        text = (
            "a bytes of 17825797 bytes is too large for <PID 1 b@test>; allowed are 16773120 "
            "bytes: send it in parts"
        )
        with pytest.raises(MessageTooLargeError, match=exactly(text)) as caught:
            a.send(pid, b"x" * (17 << 20))
        assert isinstance(caught.value, SendError)


async def test_a_busy_node_says_how_many_bytes_wait(autojump_clock: Any) -> None:
    network = make_network("memory", backlog=3000, window=1024)
    async with two_nodes(network, limit=1000) as (a, b):
        pid = await b.spawn(Counter)
        await a.call(pid, Total())
        network.freeze("b@test")
        text = (
            "3000 bytes wait for the node 'b@test', which is its backlog; send later, use `await "
            "send_wait(...)`, or open the network with a larger backlog="
        )
        with pytest.raises(NodeBusyError, match=exactly(text)) as caught:
            for _ in range(10):
                a.send(pid, b"x" * 900)
        assert isinstance(caught.value, MailboxFullError)
        network.thaw("b@test")


@pytest.mark.parametrize("kind", ["memory", "local"])
async def test_a_missing_node_says_where_it_was_sought(kind: str, meeting_place: Any) -> None:
    sought = {"memory": "no such node in this program", "local": "no such node on this machine"}
    network = make_network(kind, meeting_place)
    async with running_node("a@test", network=network) as a:
        to = Name("x", "nowhere@test")
        text = (
            "Name('x', 'nowhere@test') cannot answer: no connection to node nowhere@test: "
            f"{sought[kind]}"
        )
        with pytest.raises(TargetDownError, match=exactly(text)) as caught:
            await a.call(to, Total())
        assert caught.value.reason == NoNode("nowhere@test")
        assert a.send(to, Add(1))
        await until(lambda: [letter.why for letter in a.dead_letters()] == [Why.NO_NODE])


async def test_an_answer_that_cannot_travel_says_so_to_the_caller(autojump_clock: Any) -> None:
    async with two_nodes(make_network("memory"), limit=1000) as (a, b):
        pid = await b.spawn(Counter)
        with pytest.raises(CallFailedError) as caught:
            await a.call(pid, Echo("object"))
        assert (
            "a value of the type builtins.object cannot travel; send plain values, dataclasses or "
            "msgspec.Structs" in str(caught.value)
        )
        assert await a.call(pid, Total()) == 0


async def test_a_type_that_the_receiver_lacks_is_named(meeting_place: Any) -> None:
    here = Local(types=TYPES, directory=meeting_place)
    there = Local(types=[Total], directory=meeting_place)
    async with (
        running_node("a@test", network=here) as a,
        running_node("b@test", network=there) as b,
    ):
        pid = await b.spawn(Counter)
        text = (
            "<PID 1 b@test> cannot read the request: the type 'Add' is not in this node's "
            "`types=[…]`"
        )
        with pytest.raises(UnreadableError, match=exactly(text)):
            await a.call(pid, Add(1))


class Flood(MetaProcess):
    """A reader thread that sends without a pause."""

    def __init__(self, to: Any, count: int) -> None:
        self.to = to
        self.count = count

    def start(self) -> None:
        for number in range(self.count):
            self.send(self.to, [number, b"x" * 100])


async def test_a_reader_thread_floods_another_node_within_the_bound() -> None:
    network = Memory(backlog=16_384, window=4096)
    heard: list[Any] = []
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Recorder, heard)
        talker = await a.spawn(Talker, [])
        await a.at("b@test").ping()
        remote: Any = kernel_of(a).router.remote
        session = remote.peer("b@test").session
        most = 0

        def has_all() -> bool:
            nonlocal most
            most = max(most, session.queued_bytes)
            return len(heard) == 3000

        network.freeze("b@test")
        await a.call(talker, lambda me: me.spawn_meta(Flood(pid, 3000)))
        # The window is full, and the backlog: the thread waits.
        await until(lambda: has_all() or most > 15_000)
        network.thaw("b@test")
        await until(has_all)

    assert [number for number, _ in heard] == list(range(3000))
    # The last message may exceed the bound, and so may messages with promised room.
    assert 15_000 < most <= 16_384 + 64 * 200


@pytest.mark.parametrize(
    "error, name",
    [
        (EventUnknownError("prices"), "EventUnknownError"),
        (InitTimeoutError("Counter", 1.0), "InitTimeoutError"),
        (TooManyProcessesError(3), "TooManyProcessesError"),
        (TooManyReadersError(3), "TooManyReadersError"),
        (TooManyCallsError("too many", 3, None, None), "TooManyCallsError"),
        (StateTypeError("no class"), "StateTypeError"),
        (StateTooLargeError("Account", 9, 3), "StateTooLargeError"),
        (StateUnreadableError("Account", "a", "Balance", "no field"), "StateUnreadableError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_kind_of_an_error_travels_under_the_name_of_the_first_version(
    error: ErgoError, name: str
) -> None:
    types = MessageTypes([])

    kind, body = failure_of(error, types)
    payload: Any = types.decode(body)
    arrived = error_of(kind, None, None, payload, True)

    assert payload[0] == name
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))
