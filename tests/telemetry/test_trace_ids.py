"""`node.trace`, and so `ergo trace`, names the trace and the span of a message that is sampled."""

from typing import Any

import pytest
import trio

from ergo_py import LOOP, PID, Actor, Caller, Threads
from tests.actors import Puppet, Recorder
from tests.support import running_node
from tests.telemetry.rig import Spans, ids, tracing


class Clerk(Actor):
    def handle_call(self, request: object, caller: Caller) -> object:
        assert isinstance(request, PID)
        self.send(request, "text")
        self.send_after(0.0, request, 1.5)
        return 5

    def handle_message(self, message: object, sender: object) -> None: ...


@pytest.mark.parametrize("dispatcher", [LOOP, Threads()])
async def test_a_trace_of_a_process_names_the_trace_and_the_span(
    spans: Spans, dispatcher: Any
) -> None:
    async with running_node(tracing=tracing(spans)) as node:
        sink = await node.spawn(Recorder)
        pid = await node.spawn(Clerk, dispatcher=dispatcher)
        async with node.trace(pid, limit=4, seconds=20) as entries:
            await node.call(pid, sink)
            seen = {entry.callback: entry async for entry in entries}

    span = ids(spans.one("Clerk.handle_call PID"))
    expected = (f"{span.trace_id:032x}", f"{span.span_id:016x}")
    assert seen["send_after"].message_type == "float"
    for callback in ("handle_call", "send", "send_after", "reply"):
        assert (seen[callback].trace_id, seen[callback].span_id) == expected
        text = f" trace_id={expected[0]} span_id={expected[1]}"
        assert str(seen[callback]).endswith(text)


async def test_a_trace_of_a_message_that_is_not_sampled_names_no_span(spans: Spans) -> None:
    async with running_node(tracing=tracing(spans, 0.0)) as node:
        pid = await node.spawn(Recorder)
        async with node.trace(pid, limit=1) as entries:
            node.send(pid, "text")
            (entry,) = [entry async for entry in entries]

    assert (entry.trace_id, entry.span_id) == (None, None)
    assert "trace_id" not in str(entry)


async def test_a_message_of_a_background_task_is_reported_once(spans: Spans) -> None:
    go, done = trio.Event(), trio.Event()

    async with running_node(tracing=tracing(spans)) as node:
        sink = await node.spawn(Recorder)

        def begin(me: Puppet) -> None:
            async def later() -> None:
                await go.wait()
                me.send(sink, "text")
                done.set()

            me.start_task(later)

        pid = await node.spawn(Puppet)
        await node.call(pid, begin)
        async with node.trace(pid, seconds=20) as entries:
            go.set()
            await done.wait()
            entries.over()
            (entry,) = [entry async for entry in entries]

    span = ids(spans.one("Puppet.handle_call function"))
    assert (entry.callback, entry.span_id) == ("send", f"{span.span_id:016x}")
