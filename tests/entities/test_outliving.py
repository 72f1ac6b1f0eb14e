"""What outlives an entity: messages to itself, which its successor must not take, and marks of
messages that it has got.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import trio

from ergo_py import Caller, ChildSpec, ErgoError, Request
from ergo_py.entities import Entities, Entity, MemoryStore
from ergo_py.entities.record import Origin, Record
from ergo_py.entities.stores.store import Row, Write
from ergo_py.entity_handles import Address
from ergo_py.testing import VirtualClock
from tests.support import running_node


@dataclass
class Count:
    """How many messages have come."""

    value: int = 0


@dataclass(frozen=True)
class Tick:
    """A message to an entity."""


@dataclass(frozen=True)
class Do(Request[int]):
    """A step of the story."""

    what: str


class Thing(Entity[Count]):
    """Works for itself, and for another."""

    async def handle_call(self, request: Any, caller: Caller) -> object:
        itself, other = self.entity(Thing, "it"), self.entity(Thing, "other")
        match request.what:
            case "busy":
                await trio.sleep(0.5)
            case "job":
                self.send(itself, Tick())
            case "delete":
                self.delete()
            case "crash":
                await trio.sleep(0.5)
                raise ValueError("crash")
            case "timer":
                self.send_after(3600.0, itself, Tick())
            case "send":
                self.send(other, Tick())
        return self.state.value

    def handle_message(self, message: Any, sender: Any) -> None:
        self.state.value += 1


@pytest.mark.parametrize("last, others", [("timer", 0), ("send", 1)])
async def test_a_message_to_itself_that_has_waited_is_not_for_the_next_entity(
    last: str, others: int, autojump_clock: VirtualClock
) -> None:
    """The job of the first is in the mailbox behind its deletion, and a crash keeps it there."""
    store = MemoryStore()

    async def be_late(_number: int, _writes: object) -> None:
        await trio.sleep(0.2)

    async with running_node() as node:
        types = [Tick, Do]
        await node.supervise([ChildSpec("things", Entities.spec(store, [Thing], types=types))])
        thing, other = node.entity(Thing, "it"), node.entity(Thing, "other")
        store.before_commit = be_late
        failed: list[str] = []

        async def call(what: str) -> None:
            try:
                await thing.call(Do(what), timeout=60.0)
            except ErgoError:
                failed.append(what)

        async with trio.open_nursery() as nursery:
            for what in ("job", "busy", "delete", "crash", last):
                nursery.start_soon(partial(call, what))
                await trio.sleep(0.05 if what in ("job", "busy") else 0.01)
        store.before_commit = None
        await trio.sleep(10.0)

        assert failed == ["crash"]
        assert await thing.call(Do("look")) == 0
        assert await other.call(Do("look")) == others


class Named(Entity[bytes]):
    """An entity of a kind and keys of many bytes."""

    kind = "\u4e00" * 200

    def handle_call(self, request: Any, caller: Caller) -> None:
        if isinstance(request, int):
            self.state = bytes(request)
        else:
            self.send(self.entity(Named, request), Tick())

    def handle_message(self, message: Any, sender: Any) -> None:
        pass


async def test_the_mark_of_a_long_sender_counts_as_a_part_of_the_row(
    autojump_clock: VirtualClock,
) -> None:
    store, sizes = MemoryStore(), list[int]()

    async def look(_number: int, writes: Sequence[Write]) -> None:
        sizes.extend(len(write.record or b"") for write in writes)

    async with running_node() as node:
        named = Entities.spec(store, [Named], types=[Tick], max_state=10_000)
        await node.supervise([ChildSpec("named", named)])
        await node.entity(Named, "full").call(8_940)
        store.after_commit = look
        await node.entity(Named, "\u4e00" * 600).call("full")
        await trio.sleep(10.0)

    assert max(sizes) <= 10_000, sizes


async def test_an_entity_asks_about_each_of_its_marks_in_some_start(
    autojump_clock: VirtualClock,
) -> None:
    """The senders of the first eight do not answer: their class is gone."""
    store, record = MemoryStore(), Record()
    record.state = b"\x81\xa5value\x00"
    for number in range(8):
        record.see(Origin("Gone", str(number), 1), 3)
    record.see(Origin("Thing", "other", 1), 3)
    address = Address("Thing", "it")

    def marks() -> list[str]:
        return [each.kind for each in Record.decode(store.rows[address][0].record).seen]

    async with running_node() as node:
        things = Entities.spec(store, [Thing], types=[Tick, Do], idle=1.0)
        await node.supervise([ChildSpec("things", things)])
        await node.entity(Thing, "it").call(Do("look"))
        await trio.sleep(5.0)
        store.rows[address] = Row(1, record.encode() or b""), None
        for _ in range(200):
            await node.entity(Thing, "it").call(Do("look"))
            await trio.sleep(5.0)
            if "Thing" not in marks():
                break

    assert set(marks()) == {"Gone"}
