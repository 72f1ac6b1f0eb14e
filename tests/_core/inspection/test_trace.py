"""Watching callbacks: as a stream that ends by itself, or added up."""

from dataclasses import dataclass
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import Actor, BadInputError, MetaProcess
from ergo_py.errors import ProcessUnknownError
from tests.actors import Failed, Puppet, Recorder
from tests.support import kernel_of, process_of, running_node


@dataclass(frozen=True)
class Login:
    password: str


class Abandonable(Actor):
    """Forwards its messages slowly."""

    def __init__(self, to: Any) -> None:
        self.to = to

    async def handle_message(self, message: Any, sender: Any) -> None:
        await trio.sleep(1)
        if message == "fail":
            raise Failed("secret")
        self.send(self.to, message)
        self.send(self.to, message)


async def test_a_trace_reports_every_callback_with_types_only(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        sink = await node.spawn(Recorder)
        pid = await node.spawn(Abandonable, sink)
        async with node.trace(pid) as trace:
            node.send(pid, Login("hunter2"))
            node.send(pid, "fail")

            entries = [entry async for entry in trace]

        sent, again, first, second = entries
        assert (sent.callback, sent.message_type, sent.to, sent.message) == (
            "send",
            "Login",
            sink,
            None,
        )
        assert (again.callback, again.to) == ("send", sink)
        assert (first.callback, first.message_type, first.sender, first.sent) == (
            "handle_message",
            "Login",
            node.pid,
            2,
        )
        assert first.message is None
        assert first.error is None
        assert (second.error, second.sent) == ("Failed", 0)
        assert "hunter2" not in str(entries)
        assert "secret" not in str(entries)
        assert f"send(Login) to {sink}" in str(sent)
        assert "handle_message(Login) from" in str(first)
        assert "raised Failed" in str(second)


async def test_contents_are_shown_if_asked_for_and_after_redact(autojump_clock: MockClock) -> None:
    def redact(what: str, value: object) -> object:
        if value == 3:
            raise Failed("in redact")
        return "Login(…)" if isinstance(value, Login) else value

    async with running_node(redact=redact) as node:
        sink = await node.spawn(Recorder)
        pid = await node.spawn(Abandonable, sink)
        async with node.trace(pid, contents=True, limit=9) as trace:
            for message in (Login("hunter2"), 2, 3):
                node.send(pid, message)

            shown = [entry.message async for entry in trace]

        # Each is sent on twice before the callback that got it ends.
        assert shown == [*["'Login(…)'"] * 3, *["2"] * 3, *["<redact raised Failed>"] * 3]


async def test_a_trace_is_filtered_by_type_and_by_callback(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        async with (
            node.trace(pid, types=[int, "Login"]) as by_type,
            node.trace(pid, callbacks=["handle_call"]) as by_callback,
        ):
            for message in ("text", 1, Login("a")):
                node.send(pid, message)
            await node.call(pid, "all")
            await node.inspect(pid)
        # Left before it was read: the entries are dropped, and nothing is held.
        assert [entry async for entry in by_type] == []
        async with node.trace(pid, types=[int, "Login"], limit=2) as trace:
            for message in ("text", 1, Login("a")):
                node.send(pid, message)
            kinds = [entry.message_type async for entry in trace]
        async with node.trace(pid, callbacks=["handle_call"], limit=1) as by_callback:
            node.send(pid, 1)
            await node.call(pid, "all")
            calls = [entry.callback async for entry in by_callback]
        async with node.trace(pid, callbacks=["reply"], types=["list"], limit=1) as by_verb:
            await node.call(pid, "all")
            replies = [(entry.callback, entry.message_type, entry.to) async for entry in by_verb]

        assert replies == [("reply", "list", node.pid)]
        assert kinds == ["int", "Login"]
        assert calls == ["handle_call"]


async def test_a_trace_ends_after_its_time_and_restores_the_behaviour(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        real = process_of(node, pid).behaviour
        trace = await node.trace(pid, seconds=5).__aenter__()
        assert process_of(node, pid).behaviour is not real
        node.send(pid, 1)
        began = trio.current_time()

        entries = [entry async for entry in trace]

        assert len(entries) == 1
        assert trio.current_time() - began == pytest.approx(5, abs=0.1)
        assert process_of(node, pid).behaviour is real
        assert kernel_of(node).watches == {}
        assert await node.call(pid, "all") == [1]
        await trace.__aexit__(None, None, None)


async def test_a_trace_counts_unread_entries_and_keeps_a_bounded_number(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        async with node.trace(pid, limit=10_000) as trace:
            for number in range(1500):
                node.send(pid, number)
            await node.call(pid, "all")

            # 1500 messages, a call and its answer; a thousand wait to be read.
            assert trace.missed == 502


async def test_a_process_that_sleeps_or_is_suspended_can_be_traced(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        await node.suspend(pid)
        async with node.trace(pid, limit=3) as trace:
            node.send(pid, 1)
            await node.resume(pid)
            await wait_all_tasks_blocked()
            # Asleep, it is asked on the spot: the trace sees that, too.
            await node.call(pid, "all")

            assert [entry.callback async for entry in trace] == [
                "handle_message",
                "handle_call",
                "reply",
            ]


async def test_invalid_filters_and_limits_of_a_trace_are_refused(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)

        wrongs: list[dict[str, Any]] = [
            {"limit": 0},
            {"seconds": -1},
            {"types": "Login"},
            {"callbacks": ["handle_mesage"]},
        ]
        for wrong in wrongs:
            with pytest.raises(BadInputError):
                node.trace(pid, **wrong)
        with pytest.raises(ProcessUnknownError):
            async with node.trace("nobody"):
                pass
        assert kernel_of(node).watches == {}


async def test_statistics_add_up_the_work_of_a_process(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        sink = await node.spawn(Recorder)
        pid = await node.spawn(Abandonable, sink)
        for message in (1, 2, "text"):
            node.send_after(0.1, pid, message)

        told = await node.statistics(pid, seconds=3.5)

        assert told.pid == pid
        assert told.seconds == pytest.approx(3.5, abs=0.1)
        assert not told.ended
        assert (told.messages_in, told.messages_out) == (3, 6)
        by_type = {row.message_type: row for row in told.callbacks}
        assert (by_type["int"].count, by_type["str"].count) == (2, 1)
        assert by_type["int"].callback == "handle_message"
        assert kernel_of(node).watches == {}


async def test_statistics_of_a_process_that_ends_report_its_end(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        node.send_after(1, pid, "x")
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                await trio.sleep(2)
                node.kill(pid)

            nursery.start_soon(end)
            told = await node.statistics(pid, seconds=60)

        assert told.ended
        assert [row.message_type for row in told.callbacks] == ["str"]


async def test_statistics_of_a_meta_process_count_messages_in_and_out(
    autojump_clock: MockClock,
) -> None:
    class Ticks(MetaProcess):
        async def start(self) -> None:
            while True:
                await trio.sleep(1)
                self.send(self.parent, "tick")

        async def handle_message(self, message: Any, sender: Any) -> None:
            self.send(self.parent, message)

    async with running_node() as node:
        pid = await node.spawn(Puppet)
        alias = await node.call(pid, lambda me: me.spawn_meta(Ticks()))
        node.send_after(1.2, alias, "tock")
        node.send_after(5.5, alias, "late")

        told = await node.statistics(alias, seconds=3.5)
        node.send_after(0.5, pid, lambda me: me.stop())
        ended = await node.statistics(alias, seconds=60)

        assert (told.pid, told.messages_in, told.messages_out, told.ended) == (alias, 1, 4, False)
        assert (told.busy, told.callbacks) == (None, ())
        assert ended.ended
        assert ended.seconds < 10


async def test_a_trace_with_contents_shows_the_error() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)

        async with node.trace(pid, contents=True) as trace:
            node.send(pid, lambda me: int("no number"))
            entry = await anext(trace)

        assert entry.error is not None
        assert "no number" in entry.error


async def test_a_trace_that_has_ended_takes_no_entries() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        trace = node.trace(pid)
        trace.over()

        trace.note("handle_message", "late", pid, 0.0, None, 0)

        assert trace.missed == 0


async def test_statistics_of_a_process_inside_a_long_callback_show_it_as_busy() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        go_on = trio.Event()
        node.send(pid, lambda me: go_on.wait())

        found = await node.statistics(pid, seconds=0.01)
        go_on.set()

        assert found.callbacks == ()
        assert found.busy is not None
        assert found.busy > 0
