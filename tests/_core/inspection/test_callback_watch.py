"""Standing in for a behaviour: every verb that sends is told of, in any thread, and nothing of it
stays.
"""

import threading
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import NO_REPLY, Actor, Caller, Node, NotAllowedError, Threads
from ergo_py._core.inspection.callback_watch import REPORTED_VERBS
from tests.actors import Failed, Puppet, Recorder
from tests.dispatched import Gate
from tests.support import cut_ending_short, kernel_of, process_of, running_node


class Answering(Actor):
    def handle_call(self, request: Any, caller: Caller) -> object:
        return request

    def terminate(self, reason: Any) -> None:
        self.send(self.parent, "goodbye")


class Hoarder(Actor):
    """Keeps callers, and answers them when it is told to."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []

    def handle_call(self, request: Any, caller: Caller) -> object:
        self.callers.append(caller)
        return NO_REPLY

    def handle_message(self, message: Any, sender: Any) -> None:
        if isinstance(message, Exception):
            self.reply_error(self.callers.pop(), message)
        else:
            self.reply(self.callers.pop(), message)


async def doings(node: Node, me: Puppet, to: Any) -> dict[str, Any]:
    """Every verb that sends, used once; some with their arguments named."""
    me.register_event("news")
    return {
        "send": me.send(to, 1),
        "send_wait": await me.send_wait(to, message=2.0),
        "send_after": me.send_after(60, to=to, message="later"),
        "send_every": me.send_every(60.0, to, "again"),
        "forward": me.forward(to, b"on", node.pid),
        "call": await me.call(to, request="all"),
        "request": me.request(to, 3j),
        "publish": me.publish("news", {"a": 1}),
    }


async def test_a_trace_reports_each_sending_verb_with_its_target_and_message_type(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        sink = await node.spawn(Recorder)
        pid = await node.spawn(Puppet)
        async with node.trace(pid, seconds=5, callbacks=[*REPORTED_VERBS]) as trace:
            await node.call(pid, lambda me: doings(node, me, sink))
            seen = [(entry.callback, entry.to, entry.message_type) async for entry in trace]

        assert seen == [
            ("send", sink, "int"),
            ("send_wait", sink, "float"),
            ("send_after", sink, "str"),
            ("send_every", sink, "str"),
            ("forward", sink, "bytes"),
            ("call", sink, "str"),
            ("request", sink, "complex"),
            ("publish", "news", "dict"),
            ("reply", node.pid, "dict"),
        ]
        assert {verb for verb, _, _ in seen} | {"reply_error"} == {*REPORTED_VERBS}


async def test_a_trace_also_reports_later_replies(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Hoarder)
        answers: list[object] = []

        async def ask() -> None:
            try:
                answers.append(await node.call(pid, "?"))
            except Failed as error:
                answers.append(error)

        async with trio.open_nursery() as nursery, node.trace(pid, limit=6, contents=True) as trace:
            for answer in (None, Failed("no")):
                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
                node.send(pid, answer)
            entries = [(entry.callback, entry.message_type) async for entry in trace]

        assert entries == [
            ("handle_call", "str"),
            ("reply", "NoneType"),
            ("handle_message", None),
            ("handle_call", "str"),
            ("reply_error", "Failed"),
            ("handle_message", "Failed"),
        ]
        assert [str(one) for one in answers] == ["None", "no"]


async def test_the_verbs_are_restored_when_the_last_observer_leaves(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        behaviour = process_of(node, pid).behaviour
        before = dict(vars(behaviour))
        async with node.trace(pid), node.trace(pid) as second:
            state = await node.get_state(pid)
            during = set(vars(behaviour)) - set(before)
            second.over()
            still = set(vars(behaviour)) - set(before)

        assert during == still == {*REPORTED_VERBS}
        assert state == {name: value for name, value in before.items() if name != "_process"}
        assert vars(behaviour) == before
        assert kernel_of(node).watches == {}


async def test_statistics_and_remembered_types_do_not_replace_the_verbs(
    autojump_clock: MockClock,
) -> None:
    async with running_node(recent_messages=3) as node, trio.open_nursery() as nursery:
        pid = await node.spawn(Recorder)
        nursery.start_soon(lambda: node.statistics(pid, seconds=5))
        await wait_all_tasks_blocked()

        verbs = REPORTED_VERBS.keys() & vars(process_of(node, pid).behaviour_itself).keys()

        assert verbs == set()


async def test_a_trace_reports_the_sends_of_a_thread_on_the_loop_and_in_order() -> None:
    class Threaded(Actor):
        def handle_message(self, message: int, sender: Any) -> None:
            for number in range(message):
                self.send(sender, number)
            self.send_after(60, sender, "later")

    with trio.fail_after(60):
        async with running_node() as node:
            pid = await node.spawn(Threaded, dispatcher=Threads())
            # The instance has its own verbs, which pass their sends to the loop.
            own = set(vars(process_of(node, pid).behaviour_itself))
            async with node.trace(pid, limit=5, contents=True) as trace:
                node.send(pid, 3)
                entries = [(entry.callback, entry.message) async for entry in trace]

            assert entries == [
                ("send", "0"),
                ("send", "1"),
                ("send", "2"),
                ("send_after", "'later'"),
                ("handle_message", "3"),
            ]
            assert set(vars(process_of(node, pid).behaviour_itself)) == own


async def test_the_end_of_a_traced_process_ends_the_trace(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Answering)
        async with node.trace(pid) as trace:
            await node.call(pid, 1)
            node.kill(pid)
            await node.wait_ended(pid)

            assert [entry.callback async for entry in trace] == [
                "handle_call",
                "reply",
                "send",
                "terminate",
            ]
        assert kernel_of(node).watches == {}


async def test_an_observer_that_only_counts_callbacks_gets_no_sends(
    autojump_clock: MockClock,
) -> None:
    class Counting:
        """An observer that does not want sends."""

        wants_sends = False
        callbacks: list[str] = []

        def note(self, callback: str, *_facts: object) -> None:
            self.callbacks.append(callback)

        def note_sent(self, verb: str, to: object, message: object) -> None:
            raise AssertionError("it did not ask for that")

        def over(self) -> None:
            pass

    async with running_node() as node:
        sink, pid = await node.spawn(Recorder), await node.spawn(Puppet)
        async with node.trace(pid, limit=2) as trace:
            counting = Counting()
            kernel_of(node).watches[pid].observers.append(counting)
            node.send(pid, lambda me: me.send(sink, 1))
            entries = [entry.callback async for entry in trace]
            kernel_of(node).watches[pid].observers.remove(counting)

        assert entries == ["send", "handle_message"]
        assert counting.callbacks == ["handle_message"]


async def test_an_abandoned_callback_that_was_traced_reports_no_more_entries() -> None:
    gate, refused = Gate(), threading.Event()
    terminating, untraced = trio.Event(), trio.Event()

    class Stuck(Actor):
        def pre_stop(self, reason: Any) -> None:
            gate()
            try:
                self.send(self.parent, "after all")
            except NotAllowedError:
                refused.set()

        async def terminate(self, reason: Any) -> None:
            terminating.set()
            await untraced.wait()

    async with running_node() as node:
        pid = await node.spawn(Stuck, dispatcher=Threads(), terminate_timeout=30)
        process = process_of(node, pid)
        async with node.trace(pid):
            node.send_exit(pid, "over")
            await gate.wait_reached()
            # Its time is over.
            cut_ending_short(process)
            await terminating.wait()
        untraced.set()
        await node.wait_ended(pid)
        gate.opened.set()

        assert await trio.to_thread.run_sync(refused.wait, 20)


async def test_a_traced_send_of_a_thread_after_the_end_of_the_node_is_not_reported() -> None:
    class Sending(Recorder):
        def send(self, *_message: Any, **_options: Any) -> bool:
            """As if the node had been there until this very moment."""
            return True

    async with running_node() as node:
        pid = await node.spawn(Sending)
        async with node.trace(pid):
            send = process_of(node, pid).behaviour_itself.send

    sent = await trio.to_thread.run_sync(send, pid, "just in time")

    assert sent
