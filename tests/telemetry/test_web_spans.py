"""Spans of HTTP requests: mounted applications, ends of every kind, and an SDK that fails."""

from typing import Any

import pytest
import trio
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

from ergo_py import NO_REPLY, Actor, BadInputError, Caller, LogRecord
from ergo_py.blocking import handle
from ergo_py.telemetry import OpenTelemetry
from ergo_py.web import HTTPRequest, Mount, Response, Route, WebServer
from tests.actors import Puppet
from tests.support import running_node
from tests.telemetry.rig import Spans, ids, tracing
from tests.web.rig import Peer, get, until

SAMPLED = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Front(Actor):
    def __init__(self, server: WebServer) -> None:
        self.server = server

    async def init(self) -> None:
        await self.spawn_meta(self.server)

    async def handle_call(self, request: object, caller: Caller) -> object:
        assert isinstance(request, HTTPRequest)
        match request.path[-1]:
            case "crash":
                raise ValueError("a secret")
            case "wait":
                await trio.sleep(0.2)
            case "never":
                return NO_REPLY
        return Response(200, "ok")


# -- mounted applications --------------------------------------------------------------------------


class Second(Actor):
    def handle_call(self, request: object, caller: Caller) -> object:
        return 5


@pytest.mark.counted
async def test_calls_of_a_mounted_application_belong_to_the_span_of_its_request(
    spans: Spans,
) -> None:
    seen: list[Any] = []

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append(trace.get_current_span().get_span_context())
            await node.call("second", 1)
            await trio.to_thread.run_sync(in_thread)
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"ok"})

    def in_thread() -> None:
        handle(node).call("second", "text")
        handle(node).ask("second", 1.5).result()

    server = WebServer(routes=[Mount("/asgi", asgi=asgi)])
    traced = tracing(spans, 0.0, trust_parent=True)
    async with running_node("shop@localhost", tracing=traced) as node:
        await node.spawn(Second, name="second")
        await node.spawn(Front, server)
        peer = Peer(await trio.open_tcp_stream(*server.local))
        assert (await peer.ask(get("/asgi", SAMPLED))).status == 200
        assert (await peer.ask(get("/asgi"))).status == 200
        await peer.aclose()

    assert spans.names() == [
        "GET /asgi",
        "Second.handle_call float",
        "Second.handle_call int",
        "Second.handle_call str",
    ]
    assert spans.parent_of("Second.handle_call int") == "GET /asgi"
    assert spans.parent_of("Second.handle_call str") == "GET /asgi"
    assert spans.parent_of("Second.handle_call float") == "GET /asgi"
    # The second request on the same connection has no trace.
    assert [each.is_valid for each in seen] == [True, False]


# -- every span ends -------------------------------------------------------------------------------


class Counted(SpanProcessor):
    """Counts the spans that have begun and have not ended."""

    def __init__(self) -> None:
        self.open: list[str] = []

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        self.open.append(span.name)

    def on_end(self, span: ReadableSpan) -> None:
        self.open.remove(span.name)


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
@pytest.mark.parametrize("path", ["ok", "crash", "wait", "never"])
async def test_no_span_stays_open_after_a_crash_a_timeout_or_a_peer_that_leaves(
    spans: Spans, path: str, leaves: bool
) -> None:
    counted = Counted()
    spans.provider.add_span_processor(counted)
    server = WebServer(routes=[Route("/", to=lambda: Front(WebServer()), request_timeout=0.05)])
    async with running_node("shop@localhost", tracing=tracing(spans)) as node:
        owner = await node.spawn(Puppet)
        await node.call(owner, lambda me: me.spawn_meta(server))
        peer = Peer(await trio.open_tcp_stream(*server.local))
        await peer.send(get(f"/{path}"))
        if leaves:
            await until(lambda: "GET /" in counted.open + spans.names())
        else:
            await peer.reply()
        await peer.aclose()
        await until(lambda: "GET /" in spans.names())

    assert counted.open == []


# -- an SDK that fails -----------------------------------------------------------------------------


class Faulty(SpanProcessor):
    """A processor of the SDK with a mistake at the begin or at the end of a span."""

    def __init__(self, when: str) -> None:
        self.when = when

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        if self.when == "start":
            raise ValueError("no room")

    def on_end(self, span: ReadableSpan) -> None:
        if self.when == "end":
            raise ValueError("no room")


class Listener(Actor):
    def __init__(self, records: list[LogRecord]) -> None:
        self.records = records

    def handle_log(self, record: LogRecord) -> None:
        self.records.append(record)


@pytest.mark.parametrize("when", ["start", "end", "extract"])
async def test_a_mistake_of_the_sdk_harms_no_request(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def extract(*_: object, **_more: object) -> None:
        raise ValueError("no header")

    if when == "extract":
        monkeypatch.setattr(propagate, "extract", extract)
    provider, records, server = TracerProvider(), list[LogRecord](), WebServer()
    provider.add_span_processor(Faulty(when))
    async with running_node(tracing=OpenTelemetry(provider=provider)) as node:
        node.add_logger(await node.spawn(Listener, records), "error")
        await node.spawn(Front, server)
        peer = Peer(await trio.open_tcp_stream(*server.local))
        for _ in range(3):
            assert (await peer.ask(get("/ok", SAMPLED))).body == b"ok"
        await peer.aclose()
        await until(lambda: records)

    assert [record.event for record in records] == ["tracing failed; this is said once"]


# -- headers of strangers --------------------------------------------------------------------------


async def ask_all(traced: OpenTelemetry, *fields: str) -> None:
    server = WebServer()
    async with running_node(tracing=traced) as node:
        await node.spawn(Front, server)
        peer = Peer(await trio.open_tcp_stream(*server.local))
        for field in fields:
            assert (await peer.ask(get("/ok", field))).body == b"ok"
        await peer.aclose()


async def test_a_client_cannot_have_its_requests_sampled(spans: Spans) -> None:
    await ask_all(tracing(spans, 0.0), *[SAMPLED] * 20)

    assert spans.all() == []


@pytest.mark.parametrize("flag", ["00", "01"])
async def test_the_header_of_a_client_is_a_link_of_an_own_trace(spans: Spans, flag: str) -> None:
    await ask_all(tracing(spans), SAMPLED[:-2] + flag, "x: y", "traceparent: 00-bad-01")

    linked, plain, bad = [span for span in spans.all() if span.name == "GET /"]
    assert linked.parent is None
    assert [link.context.trace_id for link in linked.links] == [0x0AF7651916CD43DD8448EB211C80319C]
    assert ids(linked).trace_id != 0x0AF7651916CD43DD8448EB211C80319C
    assert (plain.links, bad.links) == ((), ())


@pytest.mark.parametrize("sample", [0.0, 1.0])
async def test_a_trusted_header_is_the_parent_and_decides(spans: Spans, sample: float) -> None:
    await ask_all(tracing(spans, sample, trust_parent=True), SAMPLED, SAMPLED[:-2] + "00")

    (span,) = [span for span in spans.all() if span.name == "GET /"]
    assert ids(span).trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert span.links == ()


def test_trust_is_a_flag() -> None:
    with pytest.raises(BadInputError, match="trust_parent"):
        OpenTelemetry(trust_parent="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
