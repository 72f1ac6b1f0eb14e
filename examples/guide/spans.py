import trio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ergo_py import Actor, Caller, open_node
from ergo_py.telemetry import OpenTelemetry


class Stock(Actor):
    def handle_call(self, request: object, caller: Caller) -> int:
        return 4


class Till(Actor):
    async def handle_call(self, request: object, caller: Caller) -> object:
        self.send("archive", request)
        return await self.call("stock", request)


class Archive(Actor):
    def handle_message(self, message: object, sender: object) -> None: ...


async def main() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = OpenTelemetry(sample=1.0, provider=provider)
    async with open_node("shop@localhost", tracing=tracing) as node:
        await node.spawn(Stock, name="stock")
        await node.spawn(Archive, name="archive")
        till = await node.spawn(Till)
        print(await node.call(till, "pear"), "left")
    spans = {
        span.context.span_id: span
        for span in exporter.get_finished_spans()
        if span.context is not None
    }
    for name, span in sorted((span.name, span) for span in spans.values()):
        parent = "the beginning" if span.parent is None else spans[span.parent.span_id].name
        print(f"{name}, after {parent}")


if __name__ == "__main__":
    trio.run(main)
