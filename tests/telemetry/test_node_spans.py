"""Traces over nodes: the context of a sampled trace travels with messages, calls and events."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
from opentelemetry import trace

from ergo_py import Actor, Caller, EventName, Name, Node, Overflow
from ergo_py.network import Memory
from ergo_py.network.errors import MessageTypeError
from ergo_py.network.protocol.operations import (
    Route,
    Send,
    decode_operation,
    encode_operation,
    encode_route,
    sender_place,
)
from tests.actors import Puppet, Recorder
from tests.network.pairs import network_of, until
from tests.support import running_node
from tests.telemetry.rig import Spans, ids, tracing


class Stock(Actor):
    """Answers, and asks the archive if it is asked for everything."""

    async def init(self) -> None:
        self.subscribe(EventName("news", "shop@test"))

    async def handle_call(self, request: Any, caller: Caller) -> Any:
        if request == "all":
            return await self.call(Name("archive", "shop@test"), 1.5)
        return 5

    def handle_message(self, message: Any, sender: Any) -> None: ...

    def handle_event(self, event: Any) -> None: ...


class Archive(Actor):
    def handle_call(self, request: Any, caller: Caller) -> Any:
        return "archive"


@asynccontextmanager
async def shop_and_stock(
    spans: Spans,
    network: Memory | None = None,
    *,
    there: float | None = 1.0,
    here: float | None = 1.0,
) -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes that sample this part of their traces; None for a node without tracing."""
    network = network or Memory(strict=True)
    on, off = (None if part is None else tracing(spans, part) for part in (here, there))
    async with (
        running_node("shop@test", network=network, tracing=on) as shop,
        running_node("stock@test", network=network, tracing=off) as stock,
    ):
        yield shop, stock


STOCK = Name("stock", "stock@test")


class Shop(Actor):
    """Sends in every way, and answers with the answer to a call."""

    def init(self) -> None:
        self.register_event("news")

    async def handle_call(self, request: Any, caller: Caller) -> Any:
        self.send(STOCK, "text")
        self.send_after(0.01, STOCK, b"later")
        self.request(STOCK, [])
        self.publish("news", 1)
        return await self.call(STOCK, "all")

    def handle_response(self, response: Any) -> None: ...


async def work(shop: Node, stock: Node) -> None:
    await shop.spawn(Archive, name="archive")
    first = await shop.spawn(Shop)
    await stock.spawn(Stock, name="stock")
    await shop.at("stock@test").ping()
    assert await shop.call(first, 1) == "archive"
    await trio.sleep(1)
    await shop.at("stock@test").ping()


@pytest.mark.counted
async def test_a_trace_goes_on_at_another_node_and_comes_back(
    spans: Spans, autojump_clock: Any
) -> None:
    async with shop_and_stock(spans, there=0.0) as (shop, stock):
        await work(shop, stock)

    names = spans.names()
    assert names == [
        "Archive.handle_call float",
        "Shop.handle_call int",
        "Stock.handle_call list",
        "Stock.handle_call str",
        "Stock.handle_event int",
        "Stock.handle_message bytes",
        "Stock.handle_message str",
    ]
    assert len({ids(span).trace_id for span in spans.all()}) == 1
    for name in names:
        if name.startswith("Stock"):
            assert spans.parent_of(name) == "Shop.handle_call int"
    assert spans.parent_of("Archive.handle_call float") == "Stock.handle_call str"
    span = spans.one("Stock.handle_call str")
    assert span.kind is trace.SpanKind.SERVER
    assert (span.attributes or {})["ergo.node"] == "stock@test"
    assert len(spans.one("Stock.handle_event int").links) == 1


@pytest.mark.parametrize("here, there", [(None, 1.0), (1.0, None), (0.0, 1.0)])
async def test_a_node_without_tracing_or_without_a_sampled_trace_changes_nothing(
    spans: Spans, autojump_clock: Any, here: float | None, there: float | None
) -> None:
    async with shop_and_stock(spans, here=here, there=there) as (shop, stock):
        await work(shop, stock)
    assert not [name for name in spans.names() if name.startswith("Stock")]


async def test_a_call_that_waits_for_room_keeps_its_trace(spans: Spans) -> None:
    async with shop_and_stock(spans, Memory(), there=0.0) as (shop, stock):
        await stock.spawn(Stock, name="stock")
        first = await shop.spawn(Puppet)
        peer = network_of(shop).peer("stock@test")
        peer.mailbox.limit = 1

        async def ask(me: Puppet) -> object:
            me.send(STOCK, "text")  # no more has room, until the session begins
            return await me.call(STOCK, 7)

        assert peer.mailbox.overflow is Overflow.WAIT
        assert await shop.call(first, ask) == 5
    assert spans.parent_of("Stock.handle_call int") == "Puppet.handle_call function"
    assert spans.parent_of("Stock.handle_message str") == "Puppet.handle_call function"


async def test_headers_that_are_none_are_ignored(spans: Spans) -> None:
    heard: list[Any] = []
    async with shop_and_stock(spans, Memory()) as (shop, stock):
        pid = await stock.spawn(Recorder, heard)
        await shop.at("stock@test").ping()
        spans.exporter.clear()
        peer = network_of(shop).peers["stock@test"]
        puppet = await shop.spawn(Puppet)
        await shop.call(puppet, lambda me: me.send(pid, 0))
        for headers in ({"traceparent": "00-zz-1-1"}, {"traceparent": ""}, {"x": "y"}, {}):
            route = encode_route(Route(peer.routes.place(pid), sender_place(puppet), 0))
            peer.push(Send(route, peer.network.types.encode(1), headers))
        await until(lambda: len(heard) == 5)
    assert heard == [0, 1, 1, 1, 1]
    assert spans.names() == ["Puppet.handle_call function", "Recorder.handle_message int"]


async def test_a_mistake_of_the_sdk_harms_no_message(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_keywords: object) -> None:
        raise RuntimeError("broken")

    heard: list[Any] = []
    async with shop_and_stock(spans, Memory()) as (shop, stock):
        pid = await stock.spawn(Recorder, heard)
        puppet = await shop.spawn(Puppet)
        for verb in ("extract", "inject"):
            monkeypatch.setattr(f"opentelemetry.propagate.{verb}", fail)
            await shop.call(puppet, lambda me: me.send(pid, 0))
        await until(lambda: len(heard) == 2)


async def test_a_strict_node_copies_the_messages_of_a_trace_as_others(spans: Spans) -> None:
    heard: list[Any] = []
    async with shop_and_stock(spans) as (shop, _):
        pid, counter = await shop.spawn(Recorder, heard), await shop.spawn(Archive)
        sent = ["value"]
        shop.send(pid, sent)
        await until(lambda: heard)
        assert heard == [sent]
        assert heard[0] is not sent
        with pytest.raises(MessageTypeError):
            shop.send(pid, object())
        with pytest.raises(MessageTypeError):
            await shop.call(counter, object())


class OldSend(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """A message, as versions without traces know it."""

    route: bytes
    body: bytes


def test_versions_with_and_without_traces_read_each_other() -> None:
    data = encode_operation(Send(b"r", b"b", {"traceparent": "x"}))
    assert msgspec.msgpack.decode(data, type=OldSend) == OldSend(b"r", b"b")
    assert decode_operation(encode_operation(OldSend(b"r", b"b"))) == Send(b"r", b"b", None)
