"""Processes whose plain callbacks run in threads: what is promised holds wherever they run."""

import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    LOOP,
    NO_REPLY,
    PID,
    PINNED,
    POOL,
    RESUME,
    Actor,
    Alias,
    BadInputError,
    Caller,
    CallTimeoutError,
    ChildSpec,
    Crashed,
    Custom,
    Dispatcher,
    Down,
    EventName,
    Exit,
    InitError,
    InitTimeoutError,
    Killed,
    MailboxFullError,
    Node,
    Normal,
    NotAllowedError,
    Overflow,
    Pinned,
    Pod,
    Pool,
    PoolSpec,
    Priority,
    Reason,
    Reject,
    Shutdown,
    State,
    StateMachine,
    StateTimeout,
    Supervisor,
    TargetDownError,
    Why,
    state,
)
from ergo_py._core import dispatching
from tests.meta.owner import eventually
from tests.support import Failed, Recorder, running_node

EVERYWHERE: list[Dispatcher] = [LOOP, PINNED, POOL("workers", 2), Pod("pod")]
THREADS = EVERYWHERE[1:]
everywhere = pytest.mark.parametrize("where", EVERYWHERE, ids=str)
in_threads = pytest.mark.parametrize("where", THREADS, ids=str)


class Doer(Actor):
    """Does what it is told, in plain callbacks: a function runs there, and everything else is kept."""

    def __init__(self, log: list[Any] | None = None) -> None:
        self.heard: list[Any] = []
        self.log_of_test: list[Any] = [] if log is None else log

    def init(self) -> None:
        self.log_of_test.append(("init", threading.get_ident()))

    def handle_message(self, message: Any, sender: Any) -> None:
        if callable(message):
            message(self)
        else:
            self.heard.append(message)

    def handle_call(self, request: Any, caller: Caller) -> object:
        return request(self) if callable(request) else list(self.heard)

    def handle_event(self, event: Any) -> None:
        self.heard.append(event.message)

    def handle_child_exit(self, child: Any, reason: Reason) -> None:
        self.heard.append(("child exit", child, reason))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"heard": str(len(self.heard)), "thread": str(threading.get_ident())}

    def terminate(self, reason: Reason) -> None:
        self.log_of_test.append((reason, threading.get_ident()))


class Gate:
    """Where a callback blocks until a test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, _actor: Any = None) -> str:
        self.reached.set()
        assert self.opened.wait(20)
        return "through"

    async def wait_reached(self) -> None:
        assert await trio.to_thread.run_sync(self.reached.wait, 20)


async def heard(node: Node, pid: PID | str) -> Any:
    return await node.call(pid, "all")


# -- what holds wherever callbacks run -----------------------------------------------------------------------------------


@everywhere
async def test_messages_of_one_sender_are_handled_in_order(where: Dispatcher) -> None:
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        for number in range(200):
            node.send(pid, number)

        assert await heard(node, pid) == list(range(200))


@everywhere
async def test_one_message_is_handled_at_a_time(where: Dispatcher) -> None:
    inside: list[int] = []
    most: list[int] = []

    def enter(_: Doer) -> None:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.001)
        inside.pop()

    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        for _ in range(20):
            node.send(pid, enter)
        await node.call(pid, enter)

        assert most == [1] * 21


@everywhere
async def test_lanes_are_looked_at_in_order(where: Dispatcher) -> None:
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        for priority in Priority:
            node.send(pid, priority.name, priority=priority)

        assert await heard(node, pid) == ["MAX", "HIGH", "NORMAL"]


@everywhere
async def test_a_bound_holds_and_nothing_is_lost_in_silence(where: Dispatcher) -> None:
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where, mailbox_size=2)
        dropping = await node.spawn(Doer, dispatcher=where, mailbox_size=1, overflow=Overflow.DROP_OLDEST)

        for number in range(2):
            node.send(pid, number)
            node.send(dropping, number)
        with pytest.raises(MailboxFullError):
            node.send(pid, 2)

        # A call goes into the same lane, so it waits until there is room.
        await eventually(lambda: not any(len(node._router.processes[one].mailbox) for one in (pid, dropping)))
        assert await heard(node, pid) == [0, 1]
        assert await heard(node, dropping) == [1]
        assert sorted(letter.why.name for letter in node.dead_letters()) == [Why.DISPLACED.name, Why.FULL.name]


@everywhere
async def test_an_init_that_raises_leaves_nothing(where: Dispatcher) -> None:
    class Broken(Doer):
        def init(self) -> None:
            raise Failed

    async with running_node() as node:
        with pytest.raises(InitError) as caught:
            await node.spawn(Broken, dispatcher=where, name="broken")

        assert isinstance(caught.value.__cause__, Failed)
        assert node.whereis("broken") is None
        assert node.processes() == []
        assert node.info().dispatcher_threads == 0


@everywhere
async def test_a_crash_ends_the_process_with_its_error_and_tells_the_caller_at_once(where: Dispatcher) -> None:
    def fail(_: Doer) -> None:
        raise Failed("here")

    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, fail)

        assert isinstance(caught.value.__cause__, Failed)
        assert isinstance(caught.value.reason, Crashed)
        assert "in fail" in caught.value.reason.traceback


@everywhere
async def test_calls_are_answered_refused_deferred_and_time_out(where: Dispatcher) -> None:
    callers: list[Caller] = []

    class Answering(Doer):
        def handle_call(self, request: Any, caller: Caller) -> object:
            match request:
                case "later":
                    callers.append(caller)
                    return NO_REPLY
                case "now":
                    return None if self.reply(callers.pop(), "late") else "nobody"
                case "refuse":
                    raise Reject(Failed())
            return self.pid

    async with running_node() as node, trio.open_nursery() as nursery:
        pid = await node.spawn(Answering, dispatcher=where)
        answers: list[object] = []

        async def ask() -> None:
            answers.append(await node.call(pid, "later"))

        nursery.start_soon(ask)
        await eventually(lambda: bool(callers))
        assert await node.call(pid, "now") is None
        assert await node.call(pid, "who") == pid
        with pytest.raises(Failed):
            await node.call(pid, "refuse")
        with pytest.raises(CallTimeoutError):
            await node.call(pid, "later", timeout=0.01)
        await wait_all_tasks_blocked()

        assert answers == ["late"]


@everywhere
async def test_stop_ends_it_after_the_callback_whose_answer_is_sent(where: Dispatcher) -> None:
    log: list[Any] = []

    def stop(me: Doer) -> str:
        me.stop("enough")
        return "bye"

    async with running_node() as node:
        pid = await node.spawn(Doer, log, dispatcher=where)
        ended = node._router.processes[pid]

        answer = await node.call(pid, stop)
        await ended.wait_gone()

        assert answer == "bye"
        assert [what for what, _ in log] == ["init", Custom("enough")]


@everywhere
async def test_an_exit_is_taken_between_messages_and_may_be_trapped(where: Dispatcher) -> None:
    def trap(me: Doer) -> None:
        me.trap_exit = True

    async with running_node() as node:
        sender = await node.spawn(Doer, dispatcher=where)
        pid, other = await node.spawn(Doer, dispatcher=where), await node.spawn(Doer, dispatcher=where)
        await node.call(pid, trap)

        await node.call(sender, lambda me: (me.send_exit(pid, "please"), me.send_exit(other, "please")))
        reason = await node.wait_ended(other) if other in node.processes() else Custom("please")

        assert await heard(node, pid) == [Exit(sender, Custom("please"))]
        assert reason == Custom("please")


@everywhere
async def test_children_end_before_their_parent_terminates_and_links_and_monitors_are_told(where: Dispatcher) -> None:
    log: list[Any] = []

    class Parent(Doer):
        async def handle_message(self, message: Any, sender: Any) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
            self.child = await self.spawn(Doer, log, dispatcher=where)

    async with running_node() as node:
        parent = await node.spawn(Parent, log, dispatcher=where)
        watcher, linked = await node.spawn(Doer, dispatcher=where), await node.spawn(Doer, dispatcher=where)
        await node.call(watcher, lambda me: me.monitor(parent))
        await node.call(linked, lambda me: me.link(parent))
        node.send(parent, "have a child")
        await node.call(parent, "all")
        log.clear()
        linked_process = node._router.processes[linked]

        node.send_exit(parent, "over")
        await linked_process.wait_gone()

        assert [what for what, _ in log] == [Shutdown(), Custom("over")]
        assert linked_process.reason == Custom("over")
        assert await heard(node, watcher) == [Down(parent, Custom("over"))]
        assert len(node._kernel.relations) == 0


@everywhere
async def test_a_relation_that_was_removed_says_nothing(where: Dispatcher) -> None:
    async with running_node() as node:
        watched = await node.spawn(Recorder)
        watcher = await node.spawn(Doer, dispatcher=where)
        await node.call(watcher, lambda me: (me.monitor(watched), me.demonitor(watched)))

        node.kill(watched)
        await node.wait_ended(watched)

        assert await heard(node, watcher) == []


@everywhere
async def test_a_supervisor_starts_it_again_without_overlap(where: Dispatcher) -> None:
    log: list[Any] = []

    def fail(_: Doer) -> None:
        raise Failed

    async with running_node() as node:
        await node.supervise([ChildSpec("doer", Doer, log, dispatcher=where)], intensity=10)
        service = node.service("doer")

        for _ in range(3):
            with pytest.raises(TargetDownError):
                await service.call(fail)
            await service.call("all", retry=True)

        kinds = [what if what == "init" else type(what) for what, _ in log]
        assert kinds == ["init", *[Crashed, "init"] * 3]


@everywhere
async def test_verbs_work_from_its_callbacks(where: Dispatcher) -> None:
    results: dict[str, Any] = {}

    def use(me: Doer) -> None:
        results["alias"] = alias = me.create_alias()
        me.register("named")
        results["taken"] = me.node.whereis("named")
        me.unregister()
        me.send(alias, "to my alias")
        me.delete_alias(alias)
        me.send_after(0.01, me.pid, "later")
        every = me.send_every(1000.0, me.pid, "never")
        results["cancelled"] = every.cancel()
        me.register_event("news", buffer=2)
        me.publish("news", "first")
        results["buffer"] = [one.message for one in me.subscribe("news")]
        me.publish(EventName("news"), "second")
        me.unsubscribe("news")
        me.unregister_event("news")
        me.send_priority = Priority.HIGH
        results["killed"] = me.kill("victim")
        results["nobody"] = me.send("nobody", "lost")
        me.log.info("said")

    async with running_node() as node:
        victim = await node.spawn(Recorder, name="victim")
        pid = await node.spawn(Doer, dispatcher=where)
        kept: list[Any] = await node.call(pid, lambda me: me.heard)

        await node.call(pid, use)
        await eventually(lambda: len(kept) == 3)

        assert kept == ["to my alias", "second", "later"]
        assert isinstance(results.pop("alias"), Alias)
        assert results == {"taken": pid, "cancelled": True, "buffer": ["first"], "killed": True, "nobody": False}
        assert victim not in node.processes()
        assert node._router.processes[pid].priority is Priority.HIGH
        assert node.info().timers == 0


@everywhere
async def test_what_a_callback_sent_comes_before_whatever_its_process_does_next(where: Dispatcher) -> None:
    async with running_node() as node:
        receiver = await node.spawn(Recorder)

        def send_and_end(me: Doer) -> None:
            for number in range(50):
                me.send(receiver, number)
            raise Failed

        pid = await node.spawn(Doer, dispatcher=where)
        await node.call(await node.spawn(Doer), lambda me: me.link(receiver))
        node.send(pid, send_and_end)
        await node.wait_ended(pid)

        assert await node.call(receiver, "all") == list(range(50))


@everywhere
async def test_a_state_machine_changes_waits_and_postpones(where: Dispatcher) -> None:
    log: list[Any] = []

    class Machine(StateMachine):
        @state
        def waiting(self, message: Any, sender: Any) -> object:
            if message == "go":
                self.start_timeout("unused", 100.0)
                self.become("going")
            else:
                self.postpone()
            return None

        @state(timeout=0.01)
        def going(self, message: Any, sender: Any) -> object:
            log.append((message, threading.get_ident() == loop))
            return str(message)

        @waiting.enter
        def begin(self, previous: str | None) -> None:
            log.append(("enter", threading.get_ident() == loop))

    loop = threading.get_ident()
    async with running_node() as node, trio.open_nursery() as nursery:
        machine = await node.spawn(Machine, dispatcher=where)
        answers: list[object] = []

        async def ask() -> None:
            answers.append(await node.call(machine, "early"))

        nursery.start_soon(ask)
        await eventually(lambda: bool(node._router.processes[machine].postponed))
        node.send(machine, "go")
        await eventually(lambda: len(log) == 3 and bool(answers))

        is_loop = where == LOOP
        assert log == [("enter", is_loop), ("early", is_loop), (StateTimeout("going"), is_loop)]
        assert answers == ["early"]
        assert (await node.inspect(machine))["state"] == "going"


@everywhere
async def test_workers_of_a_pool_may_have_any_dispatcher(where: Dispatcher) -> None:
    async with running_node() as node:
        await node.spawn(Pool, PoolSpec(Doer, size=3, dispatcher=where), name="pool")

        assert await node.call("pool", lambda me: me.node.name) == node.name


@everywhere
async def test_a_message_that_fails_in_the_middle_of_many_is_the_one_that_is_reported(where: Dispatcher) -> None:
    records: list[Any] = []

    class Keeper(Recorder):
        def handle_log(self, record: Any) -> None:
            records.append((record.fields["callback"], record.fields["message_type"]))

    class Picky(Doer):
        def handle_message(self, message: Any, sender: Any) -> None:
            if isinstance(message, float):
                raise Failed
            self.heard.append(message)

    async with running_node() as node:
        node.add_logger(await node.spawn(Keeper), "error")
        await node.supervise([ChildSpec("picky", Picky, dispatcher=where, decide=lambda _: RESUME)])

        for message in (1, 2, 3.0, 4, "five"):
            node.send("picky", message)

        assert await heard(node, "picky") == [1, 2, 4, "five"]
        assert node.process_info("picky").messages_in == 6
        await wait_all_tasks_blocked()
        assert records == [("handle_message", "float")]


@everywhere
async def test_its_state_can_be_read_and_replaced_and_every_callback_be_traced(where: Dispatcher) -> None:
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        node.send(pid, "one")
        state = await node.get_state(pid)
        await node.replace_state(pid, lambda state: {**state, "heard": ["another"]})
        async with node.trace(pid, limit=5) as trace:
            for message in (1, 2, 3, lambda me: me.send_after(0.0, me.pid, "timer")):
                node.send(pid, message)
            entries = [entry async for entry in trace]
        await eventually(lambda: not node.info().timers)

        assert set(state) == {"heard", "log_of_test"}
        assert state["heard"] == ["one"]
        assert [(entry.callback, entry.message_type) for entry in entries] == [
            *[("handle_message", "int")] * 3,
            ("send_after", "str"),
            ("handle_message", "function"),
        ]
        assert await heard(node, pid) == ["another", 1, 2, 3, "timer"]


@everywhere
async def test_it_can_be_suspended_and_loses_nothing(where: Dispatcher) -> None:
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        await node.suspend(pid)
        for number in range(3):
            node.send(pid, number)
        told = await node.inspect(pid)
        await node.resume(pid)

        assert told["heard"] == "0"
        assert await heard(node, pid) == [0, 1, 2]


# -- threads -------------------------------------------------------------------------------------------------------------


@in_threads
async def test_plain_callbacks_run_in_threads_and_async_ones_on_the_loop(where: Dispatcher) -> None:
    class Mixed(Doer):
        async def handle_message(self, message: Any, sender: Any) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
            self.heard.append(threading.get_ident())

    log: list[Any] = []
    loop = threading.get_ident()
    async with running_node() as node:
        pid = await node.spawn(Mixed, log, dispatcher=where)

        node.send(pid, "where")
        [on_loop] = await heard(node, pid)
        inside = await node.call(pid, lambda _: threading.get_ident())
        told = await node.inspect(pid)

        assert on_loop == loop
        assert inside != loop
        assert told["thread"] == str(loop)
    assert all(ident != loop for _, ident in log)


@pytest.mark.parametrize("where", [PINNED, Pod("pod")], ids=str)
async def test_from_init_to_terminate_it_is_the_same_thread(where: Dispatcher) -> None:
    log: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Doer, log, dispatcher=where)

        inside = {await node.call(pid, lambda _: threading.get_ident()) for _ in range(5)}

    assert {ident for _, ident in log} == inside
    assert len(log) == 2


@in_threads
async def test_a_blocked_callback_leaves_the_loop_responsive_and_is_seen_from_outside(where: Dispatcher) -> None:
    gate = Gate()
    async with running_node(watchdog=0.05) as node:
        blocked, other = await node.spawn(Doer, dispatcher=where), await node.spawn(Doer)
        node.send(blocked, gate)
        await gate.wait_reached()

        with trio.fail_after(5):
            for number in range(100):
                node.send(other, number)
            assert await heard(node, other) == list(range(100))
            node.send(blocked, "waits")
            told = [await node.inspect(blocked) for _ in range(3)]
        info = node.process_info(blocked)
        await trio.sleep(0.2)

        assert [one["heard"] for one in told] == ["0"] * 3
        assert (info.state, info.callback, info.lanes["main"]) == (State.RUNNING, "handle_message", 1)
        assert (info.dispatcher, "in __call__" in info.stack) == (str(where), True)
        assert node.info().times_blocked == 0
        gate.opened.set()
        assert await heard(node, blocked) == ["waits"]


@in_threads
async def test_an_urgent_message_is_next_after_the_one_that_blocks(where: Dispatcher) -> None:
    gate = Gate()
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)
        node.send(pid, gate)
        await gate.wait_reached()

        for number in range(10):
            node.send(pid, number)
        node.send(pid, "urgent", priority=Priority.MAX)
        gate.opened.set()

        assert await heard(node, pid) == ["urgent", *range(10)]


@in_threads
async def test_a_kill_in_the_middle_of_many_messages_takes_effect_before_the_next(where: Dispatcher) -> None:
    gate = Gate()
    handled: list[int] = []
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)
        process = node._router.processes[pid]
        node.send(pid, lambda _: handled.append(1))
        node.send(pid, gate)
        for _ in range(10):
            node.send(pid, lambda _: handled.append(1))
        await gate.wait_reached()

        node.kill(pid)
        gate.opened.set()
        await process.wait_gone()

        assert (process.reason, handled) == (Killed(), [1])
        assert len(node.dead_letters()) == 10


@in_threads
async def test_an_async_handle_inspect_is_answered_while_a_callback_blocks(where: Dispatcher) -> None:
    class Slow(Doer):
        async def handle_inspect(self, *items: str) -> dict[str, str]:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
            await trio.sleep(0.01)
            return dict.fromkeys(items, "asked")

    gate = Gate()
    async with running_node() as node:
        pid = await node.spawn(Slow, dispatcher=where)
        node.send(pid, gate)
        await gate.wait_reached()

        assert await node.inspect(pid, "x") == {"x": "asked"}

        gate.opened.set()


@in_threads
async def test_a_kill_takes_effect_when_the_callback_returns_and_says_so(where: Dispatcher) -> None:
    records: list[Any] = []

    class Keeper(Recorder):
        def handle_log(self, record: Any) -> None:
            records.append((record.event, record.fields.get("callback")))

    gate = Gate()
    log: list[Any] = []
    async with running_node() as node:
        node.add_logger(await node.spawn(Keeper), "warning")
        pid = await node.spawn(Doer, log, dispatcher=where)
        process = node._router.processes[pid]
        node.send(pid, gate)
        node.send(pid, "not any more")
        await gate.wait_reached()

        node.kill(pid)
        await wait_all_tasks_blocked()
        # Who inspects it makes it look again, and it says it only once.
        await node.inspect(pid)
        before = process.state
        gate.opened.set()
        await process.wait_gone()

        assert before is State.RUNNING
        assert process.reason == Killed()
        assert [what for what, _ in log] == ["init", Killed()]
        assert [letter.why for letter in node.dead_letters()] == [Why.UNHANDLED_AT_EXIT]
        await wait_all_tasks_blocked()
        told = "killed while a callback blocks in a thread; it ends when the callback returns"
        assert records == [(told, "handle_message")]


async def test_a_callback_that_waits_for_a_thread_is_taken_back_when_its_process_is_killed() -> None:
    gate = Gate()
    async with running_node() as node:
        one, other = await node.spawn(Doer, dispatcher=Pod("pod")), await node.spawn(Recorder, dispatcher=Pod("pod"))
        process = node._router.processes[other]
        node.send(one, gate)
        await gate.wait_reached()
        node.send(other, "never")
        await wait_all_tasks_blocked()

        node.kill(other)
        with trio.fail_after(5):
            await process.wait_gone()

        assert process.reason == Killed()
        assert node.info().threads_abandoned == 0
        gate.opened.set()


async def test_an_init_that_takes_too_long_is_left_behind() -> None:
    gate = Gate()

    class Slow(Doer):
        def init(self) -> None:
            gate()

    async with running_node() as node:
        with pytest.raises(InitTimeoutError):
            await node.spawn(Slow, dispatcher=PINNED, init_timeout=0.05)

        assert node.processes() == []
        assert node.info().threads_abandoned == 1
        gate.opened.set()


async def test_a_callback_that_never_returns_does_not_keep_the_node_from_stopping() -> None:
    gate = Gate()
    async with running_node(limit=10) as node:
        pid = await node.spawn(Doer, dispatcher=PINNED, shutdown=0.05, terminate_timeout=0.05)
        node.send(pid, gate)
        await gate.wait_reached()

    assert node.exit_report is not None
    assert [one.pid for one in node.exit_report.abandoned] == [pid]
    gate.opened.set()


async def test_a_terminate_that_never_returns_is_left_behind_and_cannot_send_any_more() -> None:
    gate = Gate()
    refused: list[Exception] = []

    class Clinging(Doer):
        def terminate(self, reason: Reason) -> None:
            gate()
            try:
                self.send("witness", "from the dead")
            except NotAllowedError as error:
                refused.append(error)

    async with running_node(limit=10) as node:
        witness = await node.spawn(Recorder, name="witness")
        pid = await node.spawn(Clinging, dispatcher=PINNED, terminate_timeout=0.05)

        node.send_exit(pid, Normal())
        await node.wait_ended(pid)
        gate.opened.set()
        await eventually(lambda: bool(refused))

        assert node.info().threads_abandoned == 1
        assert "left behind in its thread" in str(refused[0])
        assert await node.call(witness, "all") == []


async def test_a_thread_can_call_through_the_node() -> None:
    async with running_node() as node:
        other = await node.spawn(Recorder)
        node.send(other, "hello")
        pid = await node.spawn(Doer, dispatcher=PINNED)

        assert await node.call(pid, lambda me: me.node.call_from_thread(other, "all")) == ["hello"]


# -- waiting in a thread -------------------------------------------------------------------------------------------------


class Answering(Recorder):
    """Answers when it is told to, and not before."""

    def __init__(self) -> None:
        super().__init__()
        self.callers: list[Caller] = []

    def handle_message(self, message: Any, sender: Any) -> None:
        for caller in self.callers:
            self.reply(caller, (message, caller.pid))

    def handle_call(self, request: Any, caller: Caller) -> object:
        self.callers.append(caller)
        return NO_REPLY


async def for_ever() -> None:
    await trio.sleep_forever()


@in_threads
async def test_a_callback_in_a_thread_waits_for_an_answer_as_its_process(where: Dispatcher) -> None:
    async with running_node() as node, trio.open_nursery() as nursery:
        callee, pid = await node.spawn(Answering), await node.spawn(Doer, dispatcher=where)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await node.call(pid, lambda me: me.wait_for(me.call(callee, "question"))))

        nursery.start_soon(ask)
        await eventually(lambda: node.process_info(pid).state is State.WAIT_RESPONSE)
        told = await node.inspect(pid)
        node.send(callee, "answer")
        await eventually(lambda: bool(answers))

        assert answers == [("answer", pid)]
        assert told["heard"] == "0"
        assert node.process_info(pid).state is State.SLEEP


@in_threads
async def test_an_error_of_what_a_callback_waits_for_is_raised_in_it(where: Dispatcher) -> None:
    def ask_nobody(me: Doer) -> str:
        try:
            me.wait_for(me.call("nobody", "question"))
        except TargetDownError as error:
            return type(error).__name__
        return "answered"

    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        assert await node.call(pid, ask_nobody) == "TargetDownError"


@in_threads
async def test_a_kill_reaches_a_callback_that_waits_in_its_thread(where: Dispatcher) -> None:
    records: list[Any] = []
    log: list[Any] = []

    class Keeper(Recorder):
        def handle_log(self, record: Any) -> None:
            records.append(record.event)

    async with running_node() as node:
        node.add_logger(await node.spawn(Keeper), "warning")
        callee, pid = await node.spawn(Answering), await node.spawn(Doer, log, dispatcher=where)
        process = node._router.processes[pid]
        node.send(pid, lambda me: me.wait_for(me.call(callee, "question", timeout=None)))
        node.send(pid, "not any more")
        await eventually(lambda: process.state is State.WAIT_RESPONSE)

        node.kill(pid)
        await process.wait_gone()
        await wait_all_tasks_blocked()

        assert [what for what, _ in log] == ["init", Killed()]
        assert node.info().threads_abandoned == 0
        assert records == []


async def test_an_init_that_waits_too_long_in_its_thread_leaves_nothing() -> None:
    class Asking(Doer):
        def init(self) -> None:
            self.wait_for(self.call("callee", "question", timeout=None))

    async with running_node() as node:
        await node.spawn(Answering, name="callee")

        with pytest.raises(InitTimeoutError):
            await node.spawn(Asking, dispatcher=PINNED, init_timeout=0.05)

        assert node.processes() == [node.whereis("callee")]
        assert (node.info().threads_abandoned, node.info().dispatcher_threads) == (0, 0)


async def test_a_callback_that_does_not_come_back_when_its_waiting_is_cancelled_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    refused: list[Exception] = []

    class Clinging(Doer):
        def init(self) -> None:
            try:
                self.wait_for(for_ever())
            except BaseException:
                gate()
            try:
                self.wait_for(for_ever())
            except NotAllowedError as error:
                refused.append(error)

    monkeypatch.setattr(dispatching, "_GRACE", 0.05)
    async with running_node() as node:
        with pytest.raises(InitTimeoutError):
            await node.spawn(Clinging, dispatcher=PINNED, init_timeout=0.05)

        assert node.info().threads_abandoned == 1
        gate.opened.set()
        await eventually(lambda: bool(refused))
        assert "wait_for(...) is for a plain callback" in str(refused[0])


async def test_what_refuses_to_end_while_a_callback_waits_for_it_is_left_behind_and_the_callback_told() -> None:
    told: list[BaseException] = []
    begun = trio.Event()

    async def refuse() -> None:
        with trio.CancelScope(shield=True):
            begun.set()
            await trio.sleep_forever()

    def wait(me: Doer) -> None:
        try:
            me.wait_for(refuse())
        except BaseException as error:
            told.append(error)
            raise

    async with running_node(limit=30) as node:
        pid = await node.spawn(Doer, dispatcher=PINNED, shutdown=0.05, terminate_timeout=0.05)
        node.send(pid, wait)
        await begun.wait()

    assert node.exit_report is not None
    assert [one.pid for one in node.exit_report.abandoned] == [pid]
    with trio.fail_after(30):
        await eventually(lambda: bool(told))
    assert "was left behind in its thread" in str(told[0])


@pytest.mark.parametrize(
    "where, wait, hint",
    [
        (LOOP, lambda me: me.wait_for(me.call("a", 1)), "which wait_for.* would block: write `async def` and `await`"),
        (LOOP, lambda me: me.wait_for(me.call), r"called: `self.wait_for\(self.call\(to, request\)\)`"),
        (PINNED, lambda me: me.wait_for(me.call), r"called: `self.wait_for\(self.call\(to, request\)\)`"),
    ],
)
async def test_waiting_is_for_threads_and_for_what_can_be_awaited(where: Dispatcher, wait: Any, hint: str) -> None:
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, wait)

        assert re.search(hint, str(caught.value.__cause__))


async def test_nobody_else_waits_in_the_name_of_a_process_with_a_thread() -> None:
    class Mixed(Doer):
        async def handle_message(self, message: Any, sender: Any) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
            try:
                self.wait_for(self.call("callee", "question"))
            except NotAllowedError as error:
                self.heard.append(str(error))

    async with running_node() as node:
        pid = await node.spawn(Mixed, dispatcher=PINNED)

        node.send(pid, "wait")

        [said] = await heard(node, pid)
        assert "an async one writes `await`" in said


async def test_a_thread_that_a_callback_started_does_not_wait_in_its_name() -> None:
    refused: list[Exception] = []

    def wait_elsewhere(me: Doer) -> None:
        def wait() -> None:
            try:
                me.wait_for(me.call("callee", "question"))
            except NotAllowedError as error:
                refused.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(20)

    async with running_node() as node:
        await node.spawn(Recorder, name="callee")
        pid = await node.spawn(Doer, dispatcher=PINNED)

        await node.call(pid, wait_elsewhere, timeout=25)

        assert len(refused) == 1


# -- pods, pools, CPUs ---------------------------------------------------------------------------------------------------


async def test_the_processes_of_a_pod_share_one_thread_and_never_run_at_once() -> None:
    order: list[Any] = []
    inside: list[int] = []

    def step(me: Doer) -> None:
        inside.append(1)
        order.append((me.registered_name, len(inside), threading.get_ident()))
        time.sleep(0.0005)
        inside.pop()

    async with running_node() as node:
        for name in "abc":
            await node.spawn(Doer, dispatcher=Pod("pod"), name=name)
        threads = node.info().dispatcher_threads
        for _ in range(20):
            for name in "abc":
                node.send(name, step)
        for name in "abc":
            await heard(node, name)

        assert threads == 1
        assert {at_once for _, at_once, _ in order} == {1}
        assert len({ident for _, _, ident in order}) == 1
        assert len(order) == 60


async def test_one_of_a_pod_that_waits_is_served_before_the_rest_of_what_another_has() -> None:
    gate = Gate()
    order: list[Any] = []

    def note(me: Doer) -> None:
        order.append(me.registered_name)

    async with running_node() as node:
        for name in "ab":
            await node.spawn(Doer, dispatcher=Pod("pod"), name=name)
        node.send("a", gate)
        for _ in range(5):
            node.send("a", note)
        await gate.wait_reached()
        node.send("b", note)
        await wait_all_tasks_blocked()

        gate.opened.set()
        for name in "ab":
            await heard(node, name)

        assert order == ["b", *"aaaaa"]


async def test_a_message_that_one_of_a_pod_sends_to_another_keeps_its_order() -> None:
    async with running_node() as node:
        receiver = await node.spawn(Doer, dispatcher=Pod("pod"))

        def send(me: Doer) -> None:
            for number in range(100):
                me.send(receiver, number)

        sender = await node.spawn(Doer, dispatcher=Pod("pod"))
        await node.call(sender, send)

        assert await heard(node, receiver) == list(range(100))


async def test_a_pool_runs_as_many_at_once_as_it_has_threads() -> None:
    gates = [Gate() for _ in range(3)]
    async with running_node() as node:
        pids = [await node.spawn(Doer, dispatcher=POOL("three", 3)) for _ in range(4)]
        for pid, gate in zip(pids, gates, strict=False):
            node.send(pid, gate)
        for gate in gates:
            await gate.wait_reached()
        late = Gate()
        late.opened.set()
        node.send(pids[3], late)
        await wait_all_tasks_blocked()
        reached_too_early = late.reached.is_set()

        gates[0].opened.set()
        await late.wait_reached()

        assert not reached_too_early
        assert node.info().dispatcher_threads == 3
        for gate in gates:
            gate.opened.set()


async def test_threads_go_home_with_the_last_process_that_uses_them() -> None:
    async with running_node() as node:
        pids = [await node.spawn(Doer, dispatcher=one) for one in (PINNED, POOL("p", 2), POOL("p", 2), Pod("q"))]
        names = {thread.name for thread in threading.enumerate()}
        counts = [node.info().dispatcher_threads]
        for pid in pids:
            node.kill(pid)
            await node.wait_ended(pid)
            counts.append(node.info().dispatcher_threads)

        assert {f"pinned-{pids[0].number}", "p-1", "p-2", "q-pod"} <= names
        assert counts == [4, 3, 3, 1, 0]


async def test_a_pool_or_pod_of_that_name_that_is_another_one_is_refused() -> None:
    async with running_node() as node:
        await node.spawn(Doer, dispatcher=POOL("p", 2))

        with pytest.raises(BadInputError, match=r"ThreadPool\(name='p', size=2\), which exists and is used by 1"):
            await node.spawn(Doer, dispatcher=POOL("p", 3), name="other")

        assert node.whereis("other") is None
        await node.spawn(Doer, dispatcher=Pod("p"))


async def test_a_supervisor_stays_on_the_loop() -> None:
    async with running_node() as node:
        with pytest.raises(BadInputError, match="give the dispatcher to its children"):
            await node.spawn(Supervisor, [ChildSpec("a", Doer)], dispatcher=PINNED)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no CPU affinity on this platform")
@pytest.mark.parametrize("make", [lambda cpu: Pinned(cpu=cpu), lambda cpu: Pod("pod", cpu=cpu)])
async def test_a_thread_stays_on_its_cpu_as_proc_shows(make: Callable[[int], Dispatcher]) -> None:
    cpu = max(os.sched_getaffinity(0))
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=make(cpu))

        [thread] = node.process_info(pid).threads
        status = await trio.Path(f"/proc/self/task/{thread}/status").read_text()
        allowed = status.split("Cpus_allowed_list:")[1].split()[0]
        others = os.sched_getaffinity(0)

        assert allowed == str(cpu)
        assert cpu in others
        assert await node.call(pid, lambda _: threading.get_native_id()) == thread


async def test_a_cpu_that_there_is_not_is_said_and_any_other_is_used() -> None:
    records: list[Any] = []

    class Keeper(Recorder):
        def handle_log(self, record: Any) -> None:
            records.append(record.event)

    async with running_node() as node:
        node.add_logger(await node.spawn(Keeper), "warning")

        pid = await node.spawn(Doer, dispatcher=Pinned(cpu=100_000))
        await wait_all_tasks_blocked()

        assert await heard(node, pid) == []
        assert records == ["a thread cannot stay on its CPU, and uses any"]


@pytest.mark.parametrize(
    "wrong, hint",
    [
        (lambda: Pinned(cpu=-1), r"Pinned\(cpu\)"),
        (lambda: Pinned(cpu=True), "the number of a CPU"),
        (lambda: Pod(""), r"Pod\(name\)"),
        (lambda: POOL("", 1), r"POOL\(name, size\)"),
        (lambda: POOL("p", 0), "from 1 up"),
        (lambda: ChildSpec("a", Doer, dispatcher="pinned"), r"LOOP, PINNED, Pinned\(cpu=…\), POOL\(name, size\)"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    ],
)
def test_what_cannot_be_a_dispatcher_is_refused(wrong: Callable[[], object], hint: str) -> None:
    with pytest.raises(BadInputError, match=hint):
        wrong()
