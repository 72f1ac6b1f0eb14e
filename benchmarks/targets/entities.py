"""Fuzzing targets for entities: the messages between hosts, the rows of stores, and the lines that
a program hears from the program that it replaces.
"""

import json
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import strategies as st

from benchmarks.targets.control import JSON
from benchmarks.targets.network import TYPES, Flat
from benchmarks.targets.target import Target, in_pieces, spliced
from ergo_py import PID
from ergo_py.entities.errors import EntityStoreError
from ergo_py.entities.record import Origin, Owed, Record
from ergo_py.entities.shards.shard_map import Place, ShardMap
from ergo_py.entities.shards.wire import (
    delivery_of,
    message_of,
    request_of,
    wire_delivery,
    wire_message,
    wire_request,
)
from ergo_py.entities.states.state_type import StateType
from ergo_py.entity_handles import Fresh, Once, Post, Retry
from ergo_py.handover.channel import Channel, Line, read_sizes
from ergo_py.methods import MethodCall, MethodCast
from ergo_py.network.messages.listed_class import UnreadableValueError

__all__ = ["TARGETS"]


@dataclass
class Stock:
    """A state."""

    count: int = 0
    names: dict[str, list[int]] = field(default_factory=dict)
    share: float | None = None


_STATE: Final = StateType(Stock)
_OPTIONS: Final = {socket.SO_RCVBUF, socket.SO_SNDBUF}


def _word(error: Exception) -> str:
    text = str(error)
    assert len(text) < 2000, "the text of an error is not bounded"
    return "refused: " + re.sub(r"['\"`\[(<].*|\d+", "n", text)[:50]


# -- messages of another host ----------------------------------------------------------------------


def entity_message(data: bytes) -> str:
    """The parts of a message between hosts, as another node encodes them: what they are is said by
    the first part.
    """
    try:
        value = TYPES.decode(data)
    except UnreadableValueError as error:
        return _word(error)
    try:
        match value:
            case ["map", wire]:
                found = ShardMap.from_wire(wire)
                assert ShardMap.from_wire(found.to_wire()) == found, "no round trip"
                return f"a map of {min(len(found.places), 3)}"
            case ["delivery", str(name), [*parts]]:
                delivery = delivery_of(name, parts)
                assert delivery_of(*wire_delivery(delivery)) == delivery, "no round trip"
                return type(delivery).__name__
            case ["request", (str() | None) as id, str(kind), [*parts]]:
                request = request_of(id, kind, parts)
                again = wire_request(request)
                assert again[1] == kind, "another request"
                return f"{kind}, {type(request).__name__}"
            case ["message", [*parts]]:
                message = message_of(parts)
                return f"a message, {wire_message(message)[0]}"
    except ValueError as error:
        return _word(error)
    return "no message"


# -- rows of a store -------------------------------------------------------------------------------


def entity_record(data: bytes) -> str:
    """A row of a store, and the state in it."""
    try:
        record = Record.decode(data)
    except EntityStoreError as error:
        return _word(error)
    encoded = record.encode()
    if encoded is not None:
        assert Record.decode(encoded).encode() == encoded, "no round trip"
    record.due()
    if record.state is None:
        return "no state"
    try:
        _STATE.load(record.state)
    except (ValueError, RecursionError) as error:
        return _word(error)
    return "a state"


def entity_map(data: bytes) -> str:
    """The row with the map of shards."""
    try:
        found = ShardMap.decode(data)
    except (ValueError, RecursionError):
        return "no map"
    assert ShardMap.decode(found.encode()) == found, "no round trip"
    found.excess(found.hosts(), ())
    return f"{min(len(found.places), 3)} shards, {min(len(found.hosts()), 3)} hosts"


# -- the program before ----------------------------------------------------------------------------


def handover_lines(data: bytes) -> str:
    """The lines of another version of the program, cut into pieces by the first byte."""
    whole, pieces = in_pieces(data)
    found = _hear_all([whole])
    assert _hear_all(pieces) == found, "lines depend on how the stream comes"
    bodies, told = sum("body" in line for line in found), 0
    for line in found:
        for sizes in read_sizes(line.get("former_sizes"), ["a", "b"]).values():
            assert sizes.keys() <= _OPTIONS, "an option that is no buffer"
            assert all(type(size) is int and 0 <= size < 1 << 31 for size in sizes.values())
            told += len(sizes)
    return f"{min(len(found), 3)} lines, {min(bodies, 2)} bodies, {min(told, 3)} sizes"


class _Pieces:
    """A socket that has these bytes."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = iter(pieces)

    async def recvmsg(self, _size: int, _space: int) -> tuple[bytes, list[Any], int, None]:
        """The next piece."""
        return next(self._pieces, b""), [], 0, None


def _hear_all(pieces: list[bytes]) -> list[Line]:
    sock: Any = _Pieces([piece for piece in pieces if piece])
    hearing = _hear(Channel(sock))
    try:
        hearing.send(None)  # no piece is waited for, so it needs no loop
    except StopIteration as done:
        lines: list[Line] = done.value
        return lines
    raise AssertionError("it waits")


async def _hear(channel: Channel) -> list[Line]:
    found: list[Line] = []
    while line := await channel.hear():
        found.append(line)
    return found


# -- nearly valid inputs ---------------------------------------------------------------------------

_HOST: Final = PID("a@x", 1, 2)
_MAP: Final = ShardMap(3, 9, (Place(_HOST, 9), None, Place(PID("b@x", 1, 2), 4)))
_REQUESTS: Final[tuple[object, ...]] = (
    *(Flat(1), Once("id", Flat(1)), Fresh(Flat(1)), Post(Flat(1)), Retry()),
    MethodCall("add", (1,), {"by": 2}),
)
_MESSAGES: Final[tuple[object, ...]] = (
    ["map", _MAP.to_wire()],
    ["delivery", "Deliver", [["Account", "ada", 7], 2, 1, b"body"]],
    ["delivery", "Done", [2]],
    ["delivery", "Forget", [["Account", "ada", 7], 2]],
    ["delivery", "Ask", [["Account", "ada", 7], "question"]],
    ["delivery", "Inquire", [["Account", "ada", 7], 2, ["Account", "bob"], "question"]],
    *(["request", *wire_request(request)] for request in _REQUESTS),
    ["message", wire_message(MethodCast("add", (1,), {"by": 2}))],
    ["message", wire_message(Flat(1))],
)


def _records() -> list[bytes]:
    record = Record()
    record.keep(_STATE.encode(Stock(1, {"a": [1, 2]}, 0.5)))
    empty = record.encode()
    record.begin_numbers(7)
    record.owe([Owed(1, "Account", "bob", b"body"), Owed(2, "", "", b"job", "timer", 5.0)])
    record.see(Origin("Account", "bob", 3), 4)
    record.remember("id", 1.0, b"answer")
    full = record.encode()
    assert empty is not None
    assert full is not None
    return [empty, full]


def _changed(examples: list[bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda whole, at, new: spliced(whole, at, len(new), new),
        st.sampled_from(examples),
        st.integers(0, 60),
        st.binary(max_size=3),
    )


_SIZES: Final = st.dictionaries(
    st.sampled_from([*map(str, _OPTIONS), "2", "", "9" * 5000, "\u0667"]) | st.text(max_size=3),
    st.integers(0, 9) | st.sampled_from([-1, 1 << 31, 1 << 70]) | JSON,
    max_size=4,
)
_LINES: Final = st.builds(
    lambda first, lines: bytes([first]) + b"".join(lines),
    st.integers(0, 255),
    st.lists(
        st.builds(
            lambda said, body: json.dumps(said).encode() + b"\n" + body,
            st.fixed_dictionaries(
                {},
                optional={
                    "take": st.just(1) | JSON,
                    "up": st.just(True) | JSON,
                    "takes": st.lists(st.text(max_size=3), max_size=2) | JSON,
                    "former_sizes": st.dictionaries(st.sampled_from("abc"), _SIZES | JSON) | JSON,
                    "size": st.integers(0, 4) | st.just(1 << 40) | JSON,
                },
            ),
            st.binary(max_size=4),
        ),
        max_size=4,
    ),
)


def _target(read: Callable[[bytes], str], examples: list[bytes]) -> Target:
    return Target(read, _changed(examples))


TARGETS: Final[dict[str, Target]] = {
    "entity message": _target(entity_message, [TYPES.encode(each) for each in _MESSAGES]),
    "entity record": _target(entity_record, _records()),
    "entity map": _target(entity_map, [_MAP.encode(), ShardMap.new(2).encode()]),
    "handover lines": Target(handover_lines, _LINES),
}
