"""Finished spans of a test, from the in-memory exporter of OpenTelemetry."""

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ergo_py.telemetry import OpenTelemetry


class Spans:
    """Finished spans of a test, by name."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def all(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def names(self) -> list[str]:
        return sorted(span.name for span in self.all())

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.all() if span.name == name]
        return found

    def parent_of(self, name: str) -> str | None:
        parent = self.one(name).parent
        if parent is None:
            return None
        return next(
            (each.name for each in self.all() if ids(each).span_id == parent.span_id), "outside"
        )


def ids(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


def tracing(spans: Spans, sample: float = 1.0, *, trust_parent: bool = False) -> OpenTelemetry:
    return OpenTelemetry(sample, provider=spans.provider, trust_parent=trust_parent)
