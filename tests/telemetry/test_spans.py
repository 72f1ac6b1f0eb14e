"""Traces: spans of messages, calls, timers, events, HTTP and threads, with the in-memory exporter
of OpenTelemetry.
"""

import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    PID,
    Actor,
    BadInputError,
    Caller,
    ChildSpec,
    LogRecord,
    MetaProcess,
    Pool,
    PoolSpec,
    Published,
    Reject,
    TargetDownError,
    Threads,
    Why,
    open_node,
)
from ergo_py.errors import CallFailedError
from ergo_py.pipelines import Batch
from ergo_py.supervision import Decision
from ergo_py.telemetry import OpenTelemetry
from ergo_py.web import HTTPRequest, Response, Route, WebServer, WebSocketClient
from tests.actors import Puppet, Recorder
from tests.support import running_node
from tests.telemetry.rig import Spans, ids, tracing
from tests.web.rig import Peer, get, until


class Second(Actor):
    def handle_message(self, message: object, sender: object) -> None: ...

    def handle_call(self, request: object, caller: Caller) -> object:
        return 5


async def test_a_message_a_call_and_a_timer_have_the_span_of_their_sender_as_parent(
    spans: Spans, autojump_clock: MockClock
) -> None:
    async with running_node("shop@localhost", tracing=tracing(spans)) as node:
        second = await node.spawn(Second, name="second")

        async def work(me: Puppet) -> object:
            me.send(second, "text")
            me.send("second", b"bytes", priority=None)
            me.send_after(1.0, second, 1.5)
            me.send_every(1.0, second, {})
            me.request(second, [])
            return await me.call(second, 7)

        first = await node.spawn(Puppet)
        assert await node.call(first, work) == 5
        await trio.sleep(2.5)

    assert spans.names() == [
        "Puppet.handle_call function",
        "Second.handle_call int",
        "Second.handle_call list",
        "Second.handle_message bytes",
        "Second.handle_message float",
        "Second.handle_message str",
    ]
    for name in spans.names()[1:]:
        assert spans.parent_of(name) == "Puppet.handle_call function"
    span = spans.one("Second.handle_call int")
    assert span.kind is trace.SpanKind.SERVER
    assert spans.one("Second.handle_message str").kind is trace.SpanKind.CONSUMER
    attributes = dict(span.attributes or {})
    assert attributes.pop("ergo.mailbox.seconds", -1.0) >= 0.0  # type: ignore[operator] # pyright: ignore[reportOperatorIssue]
    assert attributes == {
        "messaging.system": "ergo_py",
        "ergo.node": "shop@localhost",
        "ergo.behaviour": "Second",
        "ergo.name": "second",
    }


class Worker(Actor):
    """A worker of a pool: asks the stock, and announces the order."""

    async def handle_call(self, request: object, caller: Caller) -> object:
        assert isinstance(request, HTTPRequest)
        left = await self.call("stock", ("take", request.path[-1]))
        self.publish("ordered", request.path[-1])
        return Response(200, str(left))


class Orders(Pool):
    def workers(self) -> PoolSpec:
        return PoolSpec(Worker, size=2)


class Stock(Actor):
    def handle_call(self, request: object, caller: Caller) -> object:
        return 4


class Printer(Actor):
    """Prints in a thread of its own, and tells the archive."""

    async def init(self) -> None:
        self.subscribe("ordered")

    def handle_event(self, event: Published) -> None:
        self.send("archive", event.message)


class Front(Actor):
    def __init__(self, server: WebServer) -> None:
        self.server = server

    async def init(self) -> None:
        self.register_event("ordered", open=True)
        await self.spawn_meta(self.server)


async def test_a_trace_goes_from_http_through_a_pool_a_call_and_an_event_into_a_thread(
    spans: Spans,
) -> None:
    server = WebServer(routes=[Route("/orders", to="orders")])
    heard: list[Any] = []
    traced = tracing(spans, 0.0, trust_parent=True)
    async with running_node("shop@localhost", tracing=traced) as node:
        await node.spawn(Front, server)
        await node.spawn(Stock, name="stock")
        await node.spawn(Orders, name="orders")
        await node.spawn(Recorder, heard, name="archive")
        await node.spawn(Printer, dispatcher=Threads())
        peer = Peer(await trio.open_tcp_stream(*server.local))
        sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        reply = await peer.ask(get("/orders/17", f"traceparent: {sampled}"))
        await until(lambda: heard)
        await peer.ask(get("/orders/18", f"traceparent: {sampled[:-1]}0"))
        await peer.ask(get("/orders/19"))
        await peer.ask(get("/orders/20", "traceparent: 00-nonsense-01"))
        await peer.aclose()

    assert (reply.status, reply.body) == (200, b"4")
    assert {f"{ids(span).trace_id:032x}" for span in spans.all()} == {
        "0af7651916cd43dd8448eb211c80319c"
    }
    assert spans.names() == [
        "GET /orders",
        "Printer.handle_event str",
        "Recorder.handle_message str",
        "Stock.handle_call tuple",
        "Worker.handle_call HTTPRequest",
    ]
    assert spans.parent_of("GET /orders") == "outside"
    assert spans.parent_of("Worker.handle_call HTTPRequest") == "GET /orders"
    assert spans.parent_of("Stock.handle_call tuple") == "Worker.handle_call HTTPRequest"
    assert spans.parent_of("Printer.handle_event str") == "Worker.handle_call HTTPRequest"
    assert spans.parent_of("Recorder.handle_message str") == "Printer.handle_event str"
    event = spans.one("Printer.handle_event str")
    assert [link.context.span_id for link in event.links] == [
        ids(spans.one("Worker.handle_call HTTPRequest")).span_id
    ]
    assert dict(spans.one("GET /orders").attributes or {}) == {
        "http.request.method": "GET",
        "http.route": "/orders",
        "http.response.status_code": 200,
        "ergo.node": "shop@localhost",
    }


async def test_a_crash_is_the_exception_of_its_span_without_its_text(spans: Spans) -> None:
    async with running_node(tracing=tracing(spans)) as node:
        pid = await node.spawn(Puppet)

        def crash(_: Puppet) -> None:
            raise ValueError("password 1234")

        def reject(_: Puppet) -> None:
            raise Reject(KeyError("password 1234"))

        with pytest.raises(KeyError):
            await node.call(pid, reject)
        with pytest.raises(TargetDownError):
            await node.call(pid, crash)

    rejected, crashed = spans.all()
    assert (rejected.status.status_code, crashed.status.status_code) == (
        trace.StatusCode.UNSET,
        trace.StatusCode.ERROR,
    )
    assert rejected.events == ()
    assert [dict(event.attributes or {}) for event in crashed.events] == [
        {"exception.type": "ValueError", "exception.escaped": True}
    ]
    assert "password" not in "".join(span.to_json() for span in spans.all())


def crash(_: Puppet) -> None:
    raise ValueError("password 1234")


def links(span: Any) -> list[Any]:
    return [link.context.span_id for link in span.links]


async def test_the_first_span_of_a_restarted_child_is_linked_to_the_crash(spans: Spans) -> None:
    async with running_node(tracing=tracing(spans)) as node:
        await node.supervise([ChildSpec("till", Puppet), ChildSpec("sibling", Puppet)])
        with pytest.raises(TargetDownError):
            await node.call("till", crash)
        await wait_all_tasks_blocked()
        for child in ("till", "till", "sibling"):
            await node.call(child, "all")

    crashed, first, second, sibling = spans.all()
    assert links(first) == [ids(crashed).span_id]
    assert [dict(link.attributes or {}) for link in first.links] == [{"ergo.link": "restart"}]
    assert ids(first).trace_id != ids(crashed).trace_id
    assert [links(crashed), links(second), links(sibling)] == [[], [], []]


async def test_a_worker_of_a_pool_is_linked_and_an_event_keeps_its_own_link(spans: Spans) -> None:
    class Till(Puppet):
        async def init(self) -> None:
            self.subscribe("ordered")

        def handle_event(self, event: Published) -> None: ...

    class Tills(Pool):
        def workers(self) -> PoolSpec:
            return PoolSpec(Till, size=1)

    async with running_node(tracing=tracing(spans)) as node:
        shop = await node.spawn(Puppet)
        await node.call(shop, lambda me: me.register_event("ordered"))
        await node.spawn(Tills, name="tills")
        with pytest.raises(TargetDownError):
            await node.call("tills", crash)
        await wait_all_tasks_blocked()
        await node.call(shop, lambda me: me.publish("ordered", "pear"))

    _, crashed, publication, event = spans.all()
    assert links(event) == [ids(publication).span_id, ids(crashed).span_id]


async def test_a_failure_after_which_a_child_goes_on_is_no_link(spans: Spans) -> None:
    def decide(error: Exception) -> Decision:
        return Decision.RESUME if isinstance(error, ValueError) else Decision.RESTART

    def crash_elsewhere(me: Puppet) -> None:
        me.start_task(fail)

    async def fail() -> None:
        raise KeyError

    async with running_node(tracing=tracing(spans)) as node:
        await node.supervise([ChildSpec("till", Puppet, decide=decide)])
        with pytest.raises(CallFailedError):
            await node.call("till", crash)
        await node.call("till", crash_elsewhere)
        await wait_all_tasks_blocked()
        await node.call("till", "all")

    assert [links(span) for span in spans.all()] == [[], [], []]


class Listener(Actor):
    def __init__(self, records: list[LogRecord]) -> None:
        self.records = records

    def handle_log(self, record: LogRecord) -> None:
        self.records.append(record)


async def test_lines_of_the_log_carry_the_ids_of_trace_and_span(
    spans: Spans, capsys: pytest.CaptureFixture[str]
) -> None:
    records: list[LogRecord] = []
    async with running_node(tracing=tracing(spans), log_output="json") as node:
        node.add_logger(await node.spawn(Listener, records), "warning")
        pid = await node.spawn(Puppet)
        await node.call(pid, lambda me: me.log.warning("inside"))
        node.log.warning("outside")
        await wait_all_tasks_blocked()

    span = ids(spans.one("Puppet.handle_call function"))
    expected = {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
    inside, outside = records
    assert {key: inside.fields.get(key) for key in expected} == expected
    assert "trace_id" not in outside.fields
    lines = capsys.readouterr().err.splitlines()
    assert expected["trace_id"] in next(line for line in lines if "inside" in line)


@pytest.mark.counted
async def test_a_batch_has_the_span_of_its_first_message_with_links_to_the_others(
    spans: Spans, autojump_clock: MockClock
) -> None:
    heard: list[object] = []
    senders: list[object] = []

    class Writer(Actor):
        batch = Batch(9, within=1.0)

        def handle_batch(self, messages: Sequence[object]) -> None:
            inside = trace.get_current_span().get_span_context().is_valid
            heard.append((inside, list(messages)))

    async with running_node(tracing=tracing(spans, 0.0)) as node:
        pid = await node.spawn(Writer)
        node.send(pid, 1)
        for number, name in enumerate(("first", "second", "second"), 2):
            with spans.provider.get_tracer("test").start_as_current_span(name) as span:
                node.send(pid, number)
                node.send(pid, number + 10)
            senders.append(span.get_span_context())
        node.send(pid, 5)
        await trio.sleep(2.0)

    assert heard == [(False, [1]), (True, [2, 12, 3, 13, 4, 14, 5])]
    [batch] = [span for span in spans.all() if span.name.endswith("Writer.handle_batch int")]
    assert batch.parent == senders[0]
    assert [link.context for link in batch.links] == senders[1:]
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 7


@pytest.mark.parametrize("crashes", [False, True])
async def test_nothing_of_a_trace_stays_for_the_next_message(spans: Spans, crashes: bool) -> None:
    records: list[LogRecord] = []
    seen: list[bool] = []

    def look(me: Puppet) -> None:
        me.log.warning("line")
        seen.append(trace.get_current_span().get_span_context().is_valid)
        if crashes and len(seen) == 1:
            raise Reject(ValueError("refused"))

    async with running_node(tracing=tracing(spans, 0.0)) as node:
        node.add_logger(await node.spawn(Listener, records), "warning")
        pid = await node.spawn(Puppet)
        with spans.provider.get_tracer("test").start_as_current_span("outer"):
            try:
                await node.call(pid, look)
            except ValueError:
                assert crashes
        await node.call(pid, look)
        node.send(pid, look)
        await wait_all_tasks_blocked()

    assert seen[:2] == [True, False]
    assert ["trace_id" in record.fields for record in records[:2]] == [True, False]


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_reader_does_not_keep_the_trace_in_which_it_was_spawned(
    spans: Spans, in_thread: bool
) -> None:
    heard: list[Any] = []

    class Blocks(MetaProcess):
        def __init__(self, to: PID) -> None:
            self.to = to
            self.go = threading.Event()

        def start(self) -> None:
            self.go.wait(20)
            self.send(self.to, b"later")

    class Waits(Blocks):
        async def start(self) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
            while not self.go.is_set():  # noqa: ASYNC110 - the test sets it
                await trio.sleep(0.001)
            self.send(self.to, b"later")

    async with running_node(tracing=tracing(spans)) as node:
        pid, archive = await node.spawn(Puppet), await node.spawn(Recorder, heard)
        meta = (Blocks if in_thread else Waits)(archive)
        await node.call(pid, lambda me: me.spawn_meta(meta))
        meta.go.set()
        await until(lambda: heard)

    assert spans.names() == ["Puppet.handle_call function"]


async def test_the_span_of_the_program_is_the_parent_of_its_messages(spans: Spans) -> None:
    tracer = spans.provider.get_tracer("test")
    async with running_node(tracing=tracing(spans, 0.0)) as node:
        pid = await node.spawn(Puppet)
        with tracer.start_as_current_span("outer"):
            await node.call(pid, lambda me: inner(me, tracer))
        await node.call(pid, lambda me: None)
        await wait_all_tasks_blocked()

    assert spans.names() == [
        "Puppet.handle_call function",
        "Puppet.handle_message str",
        "inner",
        "outer",
    ]
    assert spans.parent_of("Puppet.handle_call function") == "outer"
    assert spans.parent_of("inner") == "Puppet.handle_call function"
    assert spans.parent_of("Puppet.handle_message str") == "inner"


def inner(me: Puppet, tracer: trace.Tracer) -> None:
    with tracer.start_as_current_span("inner"):
        me.send(me.pid, "later")


async def test_a_spawned_process_does_not_keep_the_trace_of_its_spawner(spans: Spans) -> None:
    current: list[trace.Span] = []
    heard: list[Any] = []
    async with running_node(tracing=tracing(spans, 0.0)) as node:
        pid = await node.spawn(Puppet)
        archive = await node.spawn(Recorder, heard)
        with spans.provider.get_tracer("test").start_as_current_span("outer"):
            child: PID = await node.call(pid, lambda me: me.spawn(Puppet))
        node.send(child, lambda me: me.send(archive, "quiet"))
        node.send(child, lambda me: current.append(trace.get_current_span()))
        await wait_all_tasks_blocked()

    assert heard == ["quiet"]
    assert current == [trace.INVALID_SPAN]
    assert spans.names() == ["Puppet.handle_call function", "outer"]


@pytest.mark.parametrize("sample, sampled", [(0.0, 0), (1.0, 3)])
async def test_the_part_of_the_traces_that_is_sampled(
    spans: Spans, sample: float, sampled: int
) -> None:
    async with running_node(tracing=tracing(spans, sample)) as node:
        pid = await node.spawn(Recorder)
        for number in range(2):
            node.send(pid, number)
        assert await node.call(pid, "heard") == [0, 1]

    assert len(spans.all()) == sampled


async def test_a_sampler_of_the_sdk_that_drops_a_span_ends_the_trace() -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    heard: list[Any] = []
    async with running_node(tracing=OpenTelemetry(provider=provider)) as node:
        pid, archive = await node.spawn(Puppet), await node.spawn(Recorder, heard)
        await node.call(pid, lambda me: me.send(archive, "x"))
        await wait_all_tasks_blocked()

    assert heard == ["x"]
    assert exporter.get_finished_spans() == ()


async def test_bounds_rings_and_missing_processes_are_the_same_in_a_sampled_trace(
    spans: Spans,
) -> None:
    async with running_node(tracing=tracing(spans)) as node:
        pid = await node.spawn(Puppet)
        full = await node.spawn(Puppet, mailbox_size=1)
        gate = trio.Event()
        node.send(full, lambda _: gate.wait())
        await wait_all_tasks_blocked()

        async def work(me: Puppet) -> list[str]:
            me.send(full, "first")
            errors: list[str] = [str(me.send("nowhere", "x"))]
            for attempt in (
                lambda: me.send(full, "second"),
                lambda: me.call(full, "third"),
                lambda: me.call("nowhere", "x"),
                lambda: me.call(me.pid, "x"),
                lambda: me.call(full, "x", timeout=0.01),
            ):
                try:
                    result = attempt()
                    if not isinstance(result, bool):
                        await result
                except Exception as error:
                    errors.append(type(error).__name__)
            return errors

        assert await node.call(pid, work) == [
            "False",
            "MailboxFullError",
            "MailboxFullError",
            "TargetDownError",
            "DeadlockError",
            "MailboxFullError",
        ]
        gate.set()
        assert node.info().dead_letters[Why.NO_PROCESS] == 1


async def test_order_is_kept_between_messages_with_and_without_a_trace(spans: Spans) -> None:
    heard: list[Any] = []
    async with running_node(tracing=tracing(spans, 0.5)) as node:
        pid = await node.spawn(Recorder, heard)
        for number in range(200):
            node.send(pid, number)
        await wait_all_tasks_blocked()

    assert heard == list(range(200))
    assert 0 < len(spans.all()) < 200


@pytest.mark.counted
async def test_a_web_socket_client_writes_the_header_of_its_trace(spans: Spans) -> None:
    seen: list[str] = []

    def accept(request: HTTPRequest) -> None:
        seen.append(request.headers.get("traceparent", ""))

    server = WebServer(routes=[Route("/talk", websocket=Puppet, accept=accept)])
    async with running_node() as there, running_node("b@localhost", tracing=tracing(spans)) as node:
        owner = await there.spawn(Puppet)
        await there.call(owner, lambda me: me.spawn_meta(server))
        url = f"ws://127.0.0.1:{server.local.port}/talk"
        pid = await node.spawn(Puppet)
        await node.call(pid, lambda me: me.spawn_meta(WebSocketClient(url)), timeout=30)

    span = ids(spans.one("Puppet.handle_call function"))
    assert [each[:-2] for each in seen] == [f"00-{span.trace_id:032x}-{span.span_id:016x}-"]


@pytest.mark.parametrize("sample", [-0.1, 1.5, "all", None])
def test_a_sample_that_is_no_part_is_refused(sample: Any) -> None:
    with pytest.raises(BadInputError, match="sample"):
        OpenTelemetry(sample)


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(BadInputError, match=r"ergo_py\[otel\]"):
        async with open_node(tracing=OpenTelemetry()):
            raise AssertionError("it must not open")


@pytest.mark.counted
def test_another_value_than_a_tracing_is_refused() -> None:
    wrong: Any = True
    with pytest.raises(BadInputError, match="tracing"):
        open_node(tracing=wrong)


class Faulty(SpanProcessor):
    """A processor of the SDK with a mistake."""

    def on_end(self, span: ReadableSpan) -> None:
        raise ValueError("no room")


async def test_a_mistake_of_the_sdk_harms_no_process() -> None:
    provider, records, heard = TracerProvider(), list[LogRecord](), list[Any]()
    provider.add_span_processor(Faulty())
    async with running_node(tracing=OpenTelemetry(provider=provider)) as node:
        node.add_logger(await node.spawn(Listener, records), "error")
        pid = await node.spawn(Recorder, heard)
        for number in range(3):
            node.send(pid, number)
        await wait_all_tasks_blocked()

        assert heard == [0, 1, 2]
        assert [record.event for record in records] == ["tracing failed; this is said once"]
