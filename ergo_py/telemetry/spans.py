"""`OpenTelemetry`: spans of a traced node, for ``open_node(tracing=…)``. It needs the package
``opentelemetry-api``; which SDK exports the spans, and where to, is the choice of the program.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context as Variables
from contextvars import copy_context
from time import perf_counter
from typing import TYPE_CHECKING, Any

from structlog.contextvars import bind_contextvars, reset_contextvars
from structlog.typing import FilteringBoundLogger

from .._core.messaging.traces import Mark, TracedProcess, TraceState, enter, leave
from .._core.sources import chance
from .._core.vocabulary.envelopes import EVENT
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.options import check_flag, check_number
from .._core.vocabulary.public_names import name_for_annotations, show_public_names
from .._core.vocabulary.text import shown

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, TracerProvider
else:
    name_for_annotations(
        __name__,
        {
            "opentelemetry.context": "Context",
            "opentelemetry.trace": "Span SpanContext TracerProvider",
        },
    )

__all__ = ["OpenTelemetry"]

_SYSTEM = "ergo_py"


class OpenTelemetry:
    """Spans of messages, calls, events and HTTP requests, for ``open_node(tracing=…)``.

    For example::

        async with open_node("shop@localhost", tracing=OpenTelemetry(sample=0.01)) as node:
            ...

    A trace begins with an HTTP request, or with a message or call of the node itself; or it goes on
    with the span in which the node sends. The header ``traceparent`` of a request is a link of its
    trace, unless ``trust_parent`` is set: any client could have its requests sampled. Each
    handled message of a sampled trace has a span whose parent is the span in which the message was
    sent. What is not sampled has no span, and costs a look into a context variable.

    Args:
        sample: the part of the traces to sample, from 0 to 1, where none has decided before.
        provider: the ``TracerProvider`` of OpenTelemetry; None for the global one.
        trust_parent: let a trace go on with the header ``traceparent`` of an HTTP request, sampled
            as the header says. For servers whose clients are all trusted, or behind a gateway that
            writes the header itself.

    Raises:
        BadInputError: ``sample`` is not from 0 to 1; or, when the node opens, the package
            ``opentelemetry-api`` is missing: ``pip install 'ergo_py[otel]'``.
    """

    _fraction: Callable[[], float]

    def __init__(
        self,
        sample: float = 1.0,
        *,
        provider: "TracerProvider | None" = None,
        trust_parent: bool = False,
    ) -> None:
        check_number("OpenTelemetry(sample)", sample, least=0.0, most=1.0)
        check_flag("OpenTelemetry(trust_parent)", trust_parent)
        self._trusts_parent = trust_parent
        self._sample = float(sample)
        self._provider = provider
        self._tracer: Any = None
        self.api: Any = None
        """The modules of OpenTelemetry."""
        self._node = ""
        self._has_failed = False

    # -- for the kernel ----------------------------------------------------------------------------

    def start(self, node: str) -> None:
        """The node opens."""
        try:
            from opentelemetry import context, propagate, trace  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise BadInputError(
                "tracing",
                self,
                "the package opentelemetry-api: pip install 'ergo_py[otel]'",
            ) from error
        self._node = node
        # Kept, since the start of each trace pays for it.
        self._fraction = chance(node, "traces").fraction
        self.api = _Api(context, propagate, trace)
        self._tracer = trace.get_tracer("ergo_py", tracer_provider=self._provider)

    def present(self) -> "Context":
        """The context of the current span."""
        context: Context = self.api.context.get_current()
        return context

    def outside(self) -> "Context | None":
        """The context of a span that the program has begun itself; or an empty one, for a new
        trace.
        """
        context: Context = self.api.context.get_current()
        span = self.api.trace.get_current_span(context)
        if span.get_span_context().is_valid:
            return context if span.is_recording() else None
        return self.api.context.Context() if self._draws() else None

    def ids(self) -> tuple[str, str]:
        """The ids of the current trace and span, as the header ``traceparent`` writes them."""
        return _as_text(self.api.trace.get_current_span().get_span_context())

    def fresh_context(self) -> Variables:
        """A copy of the context variables without the trace."""
        variables = copy_context()
        variables.run(self._forget)
        return variables

    def _forget(self) -> None:
        enter(None)
        self.api.context.attach(self.api.context.Context())

    def serve(
        self, process: TracedProcess, mark: Mark, callback: str, message: object
    ) -> "_Serving":
        """A span around a callback. An exception of the SDK is logged once and harms no process."""
        span = None
        try:
            span = self._begin(process, mark, callback, type(message).__qualname__)
        except Exception as error:
            self.report(process.log, error)
        if span is not None and not span.is_recording():
            # A sampler of the SDK has decided against it.
            span = None
        return _Serving(self, span, mark.context, process)

    def note_batch(self, process: TracedProcess, marks: Sequence[Mark], count: int) -> None:
        """Link the span of a batch with the spans in which its other messages were sent."""
        try:
            current = self.api.trace.get_current_span
            span = current()
            span.set_attribute("messaging.batch.message_count", count)
            # Messages of the same span have a single link.
            contexts = [current(mark.context).get_span_context() for mark in marks]
            senders = {context.span_id: context for context in contexts}
            for sender in [*senders.values()][1:]:
                span.add_link(sender)
        except Exception as error:
            self.report(process.log, error)

    def end(self, process: TracedProcess, span: "Span", error: BaseException | None) -> None:
        """End the span of a callback, which has returned or raised."""
        try:
            if error is not None:
                self._note_error(span, error)
                if process.slot is not None and isinstance(error, Exception):
                    process.slot.note_span(error, span.get_span_context())
            span.end()
        except Exception as failure:
            self.report(process.log, failure)

    def _begin(self, process: TracedProcess, mark: Mark, callback: str, kind: str) -> "Span":
        trace = self.api.trace
        behaviour = process.callbacks.behaviour
        attributes: dict[str, Any] = {
            "messaging.system": _SYSTEM,
            "ergo.node": self._node,
            "ergo.behaviour": behaviour,
            "ergo.mailbox.seconds": perf_counter() - mark.at,
        }
        if process.name is not None:
            attributes["ergo.name"] = process.name
        links = []
        if mark.kind == EVENT:
            # Backends show a publication with its many handlers by their links.
            links.append(trace.Link(trace.get_current_span(mark.context).get_span_context()))
        if process.slot is not None and (crash := process.slot.take_span()) is not None:
            links.append(trace.Link(crash, {"ergo.link": "restart"}))
        span: Span = self._tracer.start_span(
            f"{behaviour}.{callback} {kind}",
            context=mark.context,
            kind=trace.SpanKind.SERVER if callback == "handle_call" else trace.SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        )
        return span

    def _note_error(self, span: "Span", error: BaseException) -> None:
        # The type only: the text of an exception may hold secrets.
        name = type(error).__qualname__
        span.set_attribute("error.type", name)
        span.add_event("exception", {"exception.type": name, "exception.escaped": True})
        span.set_status(self.api.trace.Status(self.api.trace.StatusCode.ERROR, name))

    def report(self, log: FilteringBoundLogger, error: Exception) -> None:
        """Log the first exception of the SDK."""
        if not self._has_failed:
            self._has_failed = True
            log.error("tracing failed; this is said once", error=shown(error))

    def _draws(self) -> bool:
        return self._sample >= 1.0 or self._fraction() < self._sample

    # -- for other nodes ---------------------------------------------------------------------------

    def headers_of(self, context: "Context", log: FilteringBoundLogger) -> dict[str, str] | None:
        """The header ``traceparent``, and what else the propagators of the program write, for a
        message to another node.
        """
        headers: dict[str, str] = {}
        try:
            self.api.propagate.inject(headers, context=context)
        except Exception as error:
            self.report(log, error)
        return headers or None

    def context_of(self, headers: dict[str, str], log: FilteringBoundLogger) -> "Context | None":
        """The context of a message of another node; None if its trace is not sampled."""
        api = self.api
        try:
            context: Context = api.propagate.extract(headers, context=api.context.Context())
            found = api.trace.get_current_span(context).get_span_context()
        except Exception as error:
            self.report(log, error)
            return None
        return context if found.is_valid and found.trace_flags.sampled else None

    # -- for the web -------------------------------------------------------------------------------

    def begin_request(
        self, method: str, route: str, headers: Mapping[str, str], log: FilteringBoundLogger
    ) -> "RequestSpan | None":
        """The span of an HTTP request; None if its trace is not sampled. A header ``traceparent``
        that is none is ignored, and an exception of the SDK is logged once.
        """
        try:
            return self._begin_request(method, route, headers, log)
        except Exception as error:
            self.report(log, error)
            return None

    def _begin_request(
        self, method: str, route: str, headers: Mapping[str, str], log: FilteringBoundLogger
    ) -> "RequestSpan | None":
        api = self.api
        context: Context = api.context.Context()
        links: list[Any] = []
        if self._trusts_parent:
            context, parent = self._read_parent(headers)
            if not (parent.trace_flags.sampled if parent.is_valid else self._draws()):
                return None
        elif not self._draws():
            return None
        elif (parent := self._read_parent(headers)[1]).is_valid:
            links.append(api.trace.Link(parent, {"ergo.link": "traceparent"}))
        span = self._tracer.start_span(
            f"{method} {route}",
            context=context,
            kind=api.trace.SpanKind.SERVER,
            attributes={
                "http.request.method": method,
                "http.route": route,
                "ergo.node": self._node,
            },
            links=links,
        )
        return RequestSpan(self, span, context, log) if span.is_recording() else None

    def _read_parent(self, headers: Mapping[str, str]) -> "tuple[Context, SpanContext]":
        """The context that the headers of a request name, and its span."""
        context: Context = self.api.context.Context()
        if "traceparent" in headers:
            context = self.api.propagate.extract(headers, context=context)
        return context, self.api.trace.get_current_span(context).get_span_context()

    async def inside(self, context: "Context", work: Awaitable[None]) -> None:
        """Await the work of a mounted application inside the span of its request. Threads that it
        starts have a copy of the context.
        """
        token = self.api.context.attach(context)
        try:
            await work
        finally:
            self.api.context.detach(token)

    def fields_out(self, log: FilteringBoundLogger) -> list[tuple[str, str]]:
        """The header ``traceparent``, and what else the propagators of the program write, for a
        request inside a sampled trace.
        """
        fields: dict[str, str] = {}
        try:
            if self.api.trace.get_current_span().is_recording():
                self.api.propagate.inject(fields)
        except Exception as error:
            self.report(log, error)
        return list(fields.items())


def _as_text(ids: "SpanContext") -> tuple[str, str]:
    return f"{ids.trace_id:032x}", f"{ids.span_id:016x}"


class RequestSpan:
    """The span of an HTTP request."""

    __slots__ = ("_log", "_span", "_tracing", "context")

    def __init__(
        self, tracing: OpenTelemetry, span: "Span", parent: "Context", log: FilteringBoundLogger
    ) -> None:
        self._tracing = tracing
        self._span = span
        self._log = log
        self.context: Any = tracing.api.trace.set_span_in_context(span, parent)

    def end(self, status: int | None) -> None:
        """The response is written; None if the peer has left before."""
        try:
            self._end(status, self._tracing.api.trace)
        except Exception as error:
            self._tracing.report(self._log, error)

    def _end(self, status: int | None, trace: Any) -> None:
        if status is None:
            self._span.set_attribute("error.type", "gone")
        else:
            self._span.set_attribute("http.response.status_code", status)
        if status is None or status >= 500:
            self._span.set_status(trace.Status(trace.StatusCode.ERROR))
        self._span.end()


class _Api:
    """The modules of OpenTelemetry, which are loaded when a traced node opens."""

    def __init__(self, context: Any, propagate: object, trace: Any) -> None:
        self.context = context
        self.propagate = propagate
        self.trace = trace


class _Serving:
    """A callback inside a span, which is the current one: for the router, for OpenTelemetry, and
    for the log.
    """

    __slots__ = (
        "_attached",
        "_bound",
        "_parent",
        "_process",
        "_span",
        "_state",
        "_token",
        "_tracing",
    )

    def __init__(
        self, tracing: OpenTelemetry, span: "Span | None", parent: object, process: TracedProcess
    ) -> None:
        self._tracing = tracing
        self._span = span
        self._parent = parent
        self._process = process

    def __enter__(self) -> None:
        span = self._span
        if span is None:
            return
        api = self._tracing.api
        self._state = TraceState(self._process.id)
        self._token = enter(self._state)
        self._attached = api.context.attach(api.trace.set_span_in_context(span, self._parent))
        trace_id, span_id = _as_text(span.get_span_context())
        self._bound: Mapping[str, Any] = bind_contextvars(trace_id=trace_id, span_id=span_id)

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self._span is None:
            return
        self._state.close()
        leave(self._token)
        try:
            # Not context.detach, which logs an error if an abandoned callback is closed in another
            # context.
            self._tracing.api.context._RUNTIME_CONTEXT.detach(self._attached)
            reset_contextvars(**self._bound)
        except ValueError:
            pass
        self._tracing.end(self._process, self._span, error)


show_public_names(__name__)
