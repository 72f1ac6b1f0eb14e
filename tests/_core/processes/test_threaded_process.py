"""Processes whose plain callbacks run in threads: what is promised holds wherever they run."""

import os
import re
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    KEEP,
    LOOP,
    NO_REPLY,
    PID,
    PINNED,
    POOL,
    Actor,
    BadInputError,
    Caller,
    ChildSpec,
    DeadlockError,
    Dispatcher,
    EventName,
    InitError,
    InitTimeoutError,
    Killed,
    MetaProcess,
    Node,
    Normal,
    NotAllowedError,
    Pinned,
    Pod,
    Priority,
    Reason,
    State,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
    Why,
)
from ergo_py._core.processes import threaded_process as threaded_process_module
from ergo_py._core.verbs.behaviour import Behaviour
from ergo_py._core.verbs.links_and_events import LinksAndEvents
from tests.dispatched import AsyncDoer, Doer, Gate, heard, in_threads
from tests.meta.owner import eventually
from tests.support import (
    Failed,
    Recorder,
    hop_of,
    let_init_time_out,
    needs_proc,
    process_behind,
    process_of,
    replace_private,
    router_of,
    running_node,
)

# -- threads ---------------------------------------------------------------------------------------


@in_threads
async def test_plain_callbacks_run_in_threads_and_async_ones_on_the_loop(where: Dispatcher) -> None:
    class Mixed(Doer):
        async def handle_message(self, message: Any, sender: Any) -> None:
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
async def test_a_blocked_callback_leaves_the_loop_responsive_and_is_seen_from_outside(
    where: Dispatcher,
) -> None:
    gate = Gate()
    async with running_node(watchdog=0.05) as node:
        blocked, other = await node.spawn(Doer, dispatcher=where), await node.spawn(Doer)
        node.send(blocked, gate)
        await gate.wait_reached()

        with trio.fail_after(30):
            for number in range(100):
                node.send(other, number)
            assert await heard(node, other) == list(range(100))
            node.send(blocked, "waits")
            told = [await node.inspect(blocked) for _ in range(3)]
        info = node.process_info(blocked)
        await trio.sleep(0.2)

        assert [one["heard"] for one in told] == ["0"] * 3
        assert (info.state, info.callback, info.lanes["main"]) == (
            State.RUNNING,
            "handle_message",
            1,
        )
        assert (info.dispatcher, "in __call__" in info.stack) == (str(where), True)
        last = node.info().last_blocked
        assert last is None or last.process != blocked
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
async def test_a_kill_in_the_middle_of_many_messages_takes_effect_before_the_next(
    where: Dispatcher,
) -> None:
    gate = Gate()
    handled: list[int] = []
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)
        process = process_of(node, pid)
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
async def test_an_async_handle_inspect_is_answered_while_a_callback_blocks(
    where: Dispatcher,
) -> None:
    class Slow(Doer):
        async def handle_inspect(self, *items: str) -> dict[str, str]:
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
        process = process_of(node, pid)
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


async def test_a_callback_that_waits_for_a_thread_is_taken_back_when_its_process_is_killed() -> (
    None
):
    gate = Gate()
    async with running_node() as node:
        one, other = (
            await node.spawn(Doer, dispatcher=Pod("pod")),
            await node.spawn(Recorder, dispatcher=Pod("pod")),
        )
        process = process_of(node, other)
        node.send(one, gate)
        await gate.wait_reached()
        node.send(other, "never")
        await wait_all_tasks_blocked()

        node.kill(other)
        with trio.fail_after(30):
            await process.wait_gone()

        assert process.reason == Killed()
        assert node.info().threads_abandoned == 0
        gate.opened.set()


async def run_out_of_time(
    node: Node, behaviour: type[Actor], begun: Callable[[], Awaitable[None]]
) -> None:
    """Spawn one whose init does not return, and let its time be over once it has begun: a thread
    comes when it likes.
    """

    async def spawn() -> None:
        with pytest.raises(InitTimeoutError):
            await node.spawn(behaviour, dispatcher=PINNED, init_timeout=1000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(spawn)
        await begun()
        *_, process = router_of(node).processes.values()
        let_init_time_out(process)


async def test_an_init_that_takes_too_long_is_left_behind() -> None:
    gate = Gate()

    class Slow(Doer):
        def init(self) -> None:
            gate()

    async with running_node() as node:
        await run_out_of_time(node, Slow, gate.wait_reached)

        assert node.processes() == []
        assert node.info().threads_abandoned == 1
        gate.opened.set()


async def test_a_callback_that_never_returns_does_not_keep_the_node_from_stopping() -> None:
    gate = Gate()
    async with running_node() as node:
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

    async with running_node() as node:
        witness = await node.spawn(Recorder, name="witness")
        pid = await node.spawn(Clinging, dispatcher=PINNED, terminate_timeout=0.05)

        node.send_exit(pid, Normal())
        await node.wait_ended(pid)
        gate.opened.set()
        await eventually(lambda: bool(refused))

        assert node.info().threads_abandoned == 1
        assert "abandoned in its thread" in str(refused[0])
        assert await node.call(witness, "all") == []


async def test_a_thread_can_call_through_the_node() -> None:
    async with running_node() as node:
        other = await node.spawn(Recorder)
        node.send(other, "hello")
        pid = await node.spawn(Doer, dispatcher=PINNED)

        assert await node.call(pid, lambda me: me.node.call_from_thread(other, "all")) == ["hello"]


# -- every verb ------------------------------------------------------------------------------------


class Idle(MetaProcess):
    """A meta-process that only waits."""

    async def start(self) -> None:
        await trio.sleep_forever()


def _replied(me: Doer, answer: Callable[[Caller], bool]) -> object:
    """Ask somebody who defers, and answer in its place."""
    [caller] = me.node.call_from_thread("deferring", "callers")
    return answer(caller)


def _aliased(me: Doer) -> bool:
    alias = me.create_alias()
    sent = me.send(alias, "to my alias")
    me.delete_alias(alias)
    return sent and not me.send(alias, "lost")


def _subscribed(me: Doer) -> bool:
    token = me.register_event("news", buffer=1)
    me.publish("news", "one", token=token)
    recent = [one.message for one in me.subscribe("news")]
    taken = me.publish(EventName("news"), "two")
    me.unsubscribe("news")
    me.unregister_event("news")
    return (recent, taken) == (["one"], 1)


def _related(me: Doer) -> bool:
    me.link("other")
    me.monitor("other")
    held = me.node.info().relations
    me.unlink("other")
    me.demonitor("other")
    return (held, me.node.info().relations) == (2, 0)


def _named(me: Doer) -> bool:
    me.register("named")
    was = me.registered_name, me.node.whereis("named")
    me.unregister()
    return was == ("named", me.pid) and me.registered_name is None


def _configured(me: Doer) -> bool:
    me.trap_exit, me.send_priority = True, Priority.HIGH
    was = me.trap_exit, me.send_priority
    me.trap_exit, me.send_priority = False, Priority.NORMAL
    return was == (True, Priority.HIGH)


def _meta(me: Doer) -> bool:
    alias = me.wait_for(me.spawn_meta(Idle()))
    told = me.wait_for(me.inspect_meta(alias))
    return told == {} and me.meta_info(alias).alias == alias and me.send_exit(alias, "enough")


def _stopped(me: Doer) -> bool:
    me.stop()
    return True


def _timed(me: Doer) -> bool:
    return (
        me.send_after(0.0, me.pid, "later").cancel() in (True, False)
        and me.send_every(9.0, me.pid, "x").cancel()
    )


def _served(me: Doer) -> bool:
    return me.service("child").send("hello") and me.wait_for(me.service("child").call("all")) == [
        "hello"
    ]


VERBS: dict[str, Callable[[Doer], object]] = {
    "pid parent": lambda me: me.parent == me.node.pid and me.pid in me.node.processes(),
    "env log node": lambda me: (
        me.env == {"of": "node"} and me.log.info("said") is None and bool(me.node.name)
    ),
    "send": lambda me: me.send("other", "hello") and not me.send("nobody", "hello"),
    "send_wait": lambda me: me.wait_for(me.send_wait("other", "hello")),
    "send_after send_every": _timed,
    "forward": lambda me: me.forward("other", "hello", me.pid),
    "call wait_for": lambda me: isinstance(me.wait_for(me.call("other", "all")), list),
    "reply": lambda me: _replied(me, lambda caller: me.reply(caller, "late")),
    "reply_error": lambda me: _replied(me, lambda caller: me.reply_error(caller, Failed())),
    "spawn": lambda me: me.node.process_info(me.wait_for(me.spawn(Recorder))).parent == me.pid,
    "spawn_meta inspect_meta meta_info send_exit": _meta,
    "kill": lambda me: me.kill("victim"),
    "start_task": lambda me: me.start_task(trio.sleep, 0, name="sleeper").name == "sleeper",
    "stop": _stopped,
    "trap_exit send_priority": _configured,
    "register unregister registered_name": _named,
    "create_alias delete_alias": _aliased,
    "link unlink monitor demonitor": _related,
    "register_event publish subscribe unsubscribe unregister_event": _subscribed,
    "service": _served,
}


class Deferring(Recorder):
    """Promises to answer, and tells whom."""

    def handle_call(self, request: Any, caller: Caller) -> object:
        if request == "callers":
            return list(self.heard)
        self.heard.append(caller)
        return NO_REPLY


@in_threads
@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_works_in_a_callback_that_runs_in_a_thread(
    where: Dispatcher, verb: str
) -> None:
    async with running_node(env={"of": "node"}) as node, trio.open_nursery() as nursery:
        for name, behaviour in {
            "other": Recorder,
            "victim": Recorder,
            "deferring": Deferring,
        }.items():
            await node.spawn(behaviour, name=name)
        await node.supervise([ChildSpec("child", Recorder)])
        ended = trio.Event()

        async def ask() -> None:
            try:
                await node.call("deferring", "later", timeout=30)
            except (Failed, TargetDownError):
                pass
            ended.set()

        if "reply" in verb:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
        pid = await node.spawn(Doer, dispatcher=where)

        assert await node.call(pid, lambda me: bool(VERBS[verb](me)), timeout=30) is True

        if "reply" in verb:
            await ended.wait()


def test_no_verb_is_forgotten() -> None:
    verbs = {
        name
        for name in [*vars(Behaviour), *vars(LinksAndEvents), "service"]
        if not name.startswith("_")
    }

    # The connection is an attribute, and the same in a thread.
    assert {one for names in VERBS for one in names.split()} == verbs - {"connection"}


async def test_what_a_verb_changes_is_changed_on_the_loop() -> None:
    changing = {
        *("send_after", "send_every", "stop", "send_exit", "kill", "start_task"),
        *("register", "unregister", "create_alias"),
        *(
            "delete_alias",
            "_relate",
            "_unrelate",
            "register_event",
            "unregister_event",
            "subscribe",
            "unsubscribe",
        ),
    }
    noted: dict[str, set[int]] = {}

    def noting(name: str) -> Callable[..., Any]:
        def verb(me: Any, *args: Any, **keywords: Any) -> Any:
            noted.setdefault(name, set()).add(threading.get_ident())
            return getattr(Doer, name)(me, *args, **keywords)

        return verb

    behaviour: Any = type("Noting", (Doer,), {name: noting(name) for name in changing})
    async with running_node() as node:
        for name in ("other", "victim"):
            await node.spawn(Recorder, name=name)
        for verb in (
            _aliased,
            _subscribed,
            _related,
            _named,
            _timed,
            _meta,
            VERBS["kill"],
            VERBS["start_task"],
            _stopped,
        ):
            pid = await node.spawn(behaviour, dispatcher=PINNED)
            await node.call(pid, lambda me, verb=verb: bool(verb(me)), timeout=30)

    assert noted == {name: {threading.get_ident()} for name in changing}


# -- waiting in a thread ---------------------------------------------------------------------------


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
            answers.append(
                await node.call(pid, lambda me: me.wait_for(me.call(callee, "question")))
            )

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
        process = process_of(node, pid)
        node.send(pid, lambda me: me.wait_for(me.call(callee, "question", timeout=None)))
        node.send(pid, "not any more")
        await eventually(lambda: process.state is State.WAIT_RESPONSE)

        node.kill(pid)
        await process.wait_gone()
        await wait_all_tasks_blocked()

        assert [what for what, _ in log] == ["init", Killed()]
        assert node.info().threads_abandoned == 0
        assert records == []


async def test_an_init_that_waits_too_long_in_its_thread_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Asking(Doer):
        def init(self) -> None:
            self.wait_for(self.call("callee", "question", timeout=None))

    replace_private(monkeypatch, "grace of threads", 30.0)
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

    begun = threading.Event()

    class Clinging(Doer):
        def init(self) -> None:
            begun.set()
            try:
                self.wait_for(for_ever())
            except BaseException:
                gate()
            try:
                self.wait_for(for_ever())
            except NotAllowedError as error:
                refused.append(error)

    replace_private(monkeypatch, "grace of threads", 0.05)
    async with running_node() as node:
        await run_out_of_time(node, Clinging, lambda: eventually(begun.is_set))

        assert node.info().threads_abandoned == 1
        gate.opened.set()
        await eventually(lambda: bool(refused))
        assert "wait_for(...) is for a plain callback" in str(refused[0])


async def test_what_refuses_to_end_while_a_callback_waits_for_it_is_left_behind_and_the_callback_told() -> (
    None
):
    told: list[BaseException] = []
    begun = trio.Event()

    async def refuse() -> None:
        begun.set()
        while True:
            try:
                with trio.CancelScope(shield=True):
                    await trio.sleep_forever()
            except trio.Cancelled:
                pass

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
    assert "was abandoned in its thread" in str(told[0])


@pytest.mark.parametrize(
    "where, wait, hint",
    [
        (
            LOOP,
            lambda me: me.wait_for(me.call("a", 1)),
            "which wait_for.* would block: write `async def` and `await`",
        ),
        (
            LOOP,
            lambda me: me.wait_for(me.call),
            r"async verb: `self.wait_for\(self.call\(to, request\)\)`",
        ),
        (
            PINNED,
            lambda me: me.wait_for(me.call),
            r"async verb: `self.wait_for\(self.call\(to, request\)\)`",
        ),
    ],
)
async def test_waiting_is_for_threads_and_for_what_can_be_awaited(
    where: Dispatcher, wait: Any, hint: str
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, wait)

        assert re.search(hint, str(caught.value.__cause__))


async def test_nobody_else_waits_in_the_name_of_a_process_with_a_thread() -> None:
    class Mixed(Doer):
        async def handle_message(self, message: Any, sender: Any) -> None:
            try:
                self.wait_for(self.call("callee", "question"))
            except NotAllowedError as error:
                self.heard.append(str(error))

    async with running_node() as node:
        pid = await node.spawn(Mixed, dispatcher=PINNED)

        node.send(pid, "wait")

        [said] = await heard(node, pid)
        assert "in an async callback write `await`" in said


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


async def test_a_callback_that_waits_for_one_who_shares_its_only_thread_is_refused_at_once() -> (
    None
):
    class Sharing(Doer):
        def init(self) -> None:
            """Plain, so it needs the thread."""

    async with running_node() as node:
        one, other = [await node.spawn(Doer, dispatcher=Pod("pod")) for _ in range(2)]
        between = await node.spawn(AsyncDoer)
        outside = await node.spawn(Doer, dispatcher=PINNED)

        async def reasons(me: Doer) -> list[str]:
            found = []
            for waits in (
                me.call(other, "all", timeout=None),
                me.call(between, lambda it: it.call(other, "all", timeout=None), timeout=None),
                me.spawn(Sharing, dispatcher=Pod("pod")),
            ):
                try:
                    await waits
                except (DeadlockError, TargetDownError, InitError) as error:
                    found.append(str(error.__cause__ or error))
            return found

        direct, around, child = await node.call(one, reasons, timeout=30)

        assert f"{one} → {other} → {one}" in direct
        assert str(between) in around
        assert "would wait forever" in around
        assert "give it another thread" in child
        assert await node.call(outside, lambda me: me.call(other, "all")) == []


async def test_one_that_shares_a_thread_and_does_not_wait_may_be_asked_by_everybody() -> None:
    gate = Gate()
    async with running_node() as node, trio.open_nursery() as nursery:
        one, other = [await node.spawn(Doer, dispatcher=Pod("pod")) for _ in range(2)]
        asking = await node.spawn(AsyncDoer)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(
                await node.call(asking, lambda me: me.call(other, "all", timeout=30), timeout=30)
            )

        node.send(one, gate)
        await gate.wait_reached()
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        gate.opened.set()
        await eventually(lambda: bool(answers))

        assert answers == [[]]


async def test_one_that_answers_on_the_loop_may_be_asked_by_who_has_the_thread_they_share() -> None:
    class Mixed(Doer):
        async def handle_call(self, request: Any, caller: Caller) -> Any:
            return "from the loop"

    async with running_node() as node:
        one, mixed = (
            await node.spawn(Doer, dispatcher=Pod("pod")),
            await node.spawn(Mixed, dispatcher=Pod("pod")),
        )

        assert await node.call(one, lambda me: me.call(mixed, "question")) == "from the loop"


async def test_a_ring_is_found_by_way_of_the_node_also_while_the_shared_thread_is_busy() -> None:
    gate = Gate()
    rings: list[Any] = []

    class Mixed(Doer):
        async def handle_message(self, message: Any, sender: Any) -> None:
            try:
                await self.node.call(self.pid, "myself", timeout=30)
            except DeadlockError as error:
                rings.append(error.ring)

    async with running_node() as node:
        one, mixed = (
            await node.spawn(Doer, dispatcher=Pod("pod")),
            await node.spawn(Mixed, dispatcher=Pod("pod")),
        )
        node.send(one, gate)
        await gate.wait_reached()

        node.send(mixed, "ask")
        await wait_all_tasks_blocked()

        assert rings == [(mixed, mixed)]
        gate.opened.set()


async def test_an_abandoned_thread_is_published() -> None:
    gate = Gate()

    class Slow(Doer):
        def init(self) -> None:
            self.heard.append(self.pid)
            gate()

    class Hearing(Recorder):
        def init(self) -> None:
            self.subscribe("ergo.thread_abandoned")

        def handle_event(self, event: Any) -> None:
            self.heard.append(event.message)

    async with running_node() as node:
        hearing = await node.spawn(Hearing)
        await run_out_of_time(node, Slow, gate.wait_reached)
        [told] = await node.call(hearing, "all")

        assert isinstance(told, PID)
        assert told > hearing
        gate.opened.set()


# -- pods, pools, CPUs -----------------------------------------------------------------------------


async def test_the_processes_of_a_pod_share_one_thread_and_never_run_at_once() -> None:
    order: list[Any] = []
    inside: list[int] = []

    def step(me: Doer) -> None:
        inside.append(1)
        order.append((me.registered_name, len(inside), threading.get_ident()))
        # Long enough for another one to come in, were there a second thread.
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
        pids = [
            await node.spawn(Doer, dispatcher=one)
            for one in (PINNED, POOL("p", 2), POOL("p", 2), Pod("q"))
        ]
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

        with pytest.raises(
            BadInputError, match=r"ThreadPool\(name='p', size=2\), which exists and is used by 1"
        ):
            await node.spawn(Doer, dispatcher=POOL("p", 3), name="other")

        assert node.whereis("other") is None
        await node.spawn(Doer, dispatcher=Pod("p"))


async def test_a_supervisor_stays_on_the_loop() -> None:
    async with running_node() as node:
        with pytest.raises(BadInputError, match="give the dispatcher to its children"):
            await node.spawn(Supervisor, [ChildSpec("a", Doer)], dispatcher=PINNED)


@needs_proc
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no CPU affinity on this platform")
@pytest.mark.parametrize("make", [lambda cpu: Pinned(cpu=cpu), lambda cpu: Pod("pod", cpu=cpu)])
async def test_a_thread_stays_on_its_cpu_as_proc_shows(make: Callable[[int], Dispatcher]) -> None:
    cpu = max(os.sched_getaffinity(0))
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=make(cpu))

        [thread] = node.process_info(pid).threads
        status = await trio.Path(f"/proc/self/task/{thread}/status").read_text(encoding="utf-8")
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
        assert records == ["a thread cannot be pinned to its CPU, and runs on any"]


@pytest.mark.parametrize(
    "wrong, hint",
    [
        (lambda: Pinned(cpu=-1), r"Pinned\(cpu\)"),
        (lambda: Pinned(cpu=True), "the number of a CPU"),
        (lambda: Pod(""), r"Pod\(name\)"),
        (lambda: POOL("", 1), r"POOL\(name, size\)"),
        (lambda: POOL("p", 0), "from 1 up"),
        (
            lambda: ChildSpec("a", Doer, dispatcher="pinned"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            r"LOOP, PINNED, Pinned\(cpu=…\), POOL\(name, size\)",
        ),
    ],
)
def test_what_cannot_be_a_dispatcher_is_refused(wrong: Callable[[], object], hint: str) -> None:
    with pytest.raises(BadInputError, match=hint):
        wrong()


async def test_a_callback_that_ends_while_an_inspect_is_answered_is_seen_to_have_ended() -> None:
    gate = threading.Event()

    class Inspected(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            gate.wait(20)

        async def handle_inspect(self, *items: str) -> dict[str, str]:
            hop = hop_of(process_behind(self))
            gate.set()
            while hop.job.outcome is None:  # noqa: ASYNC110 - a thread sets no event of trio's
                await trio.sleep(0.001)
            return {"answered": "yes"}

        def handle_call(self, request: Any, caller: Any) -> object:
            return request

    async with running_node() as node:
        pid = await node.spawn(Inspected, dispatcher=PINNED)
        node.send(pid, "block")
        await wait_all_tasks_blocked()

        told = await node.inspect(pid, timeout=20)

        assert told == {"answered": "yes"}
        assert await node.call(pid, "alive", timeout=20) == "alive"


@pytest.mark.parametrize("priority", list(Priority))
@pytest.mark.parametrize("options", [{}, {"mailbox_size": 5}], ids=["unbounded", "bounded"])
async def test_a_message_whose_callback_never_began_is_not_lost_with_its_process(
    priority: Priority, options: dict[str, Any]
) -> None:
    gate, began = threading.Event(), threading.Event()

    class Blocks(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            began.set()
            gate.wait(20)

    class Waits(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            raise AssertionError("its turn never comes")

    async with running_node() as node:
        first = await node.spawn(Blocks, dispatcher=Pod("shared"))
        second = await node.spawn(Waits, dispatcher=Pod("shared"), **options)
        node.send(first, "block")
        await trio.to_thread.run_sync(began.wait, 20)
        node.send(second, "never begun", priority=priority)
        await wait_all_tasks_blocked()

        node.kill(second)
        await node.wait_ended(second)
        gate.set()

        assert node.info().dead_letters == {Why.UNHANDLED_AT_EXIT: 1}


class Inspecting(Actor):
    """Blocks in a thread, and is asked about itself meanwhile, for as long as a test likes."""

    def __init__(self, block: Callable[["Inspecting"], object], asked: trio.Event) -> None:
        self.block = block
        self.asked = asked

    def handle_message(self, message: Any, sender: Any) -> None:
        self.block(self)

    async def handle_inspect(self, *items: str) -> dict[str, str]:
        self.asked.set()
        await trio.sleep_forever()
        raise AssertionError("nothing wakes it")


async def test_a_callback_that_begins_to_wait_while_its_process_is_killed_is_told() -> None:
    gate, asked = Gate(), trio.Event()
    refused: list[Exception] = []

    def wait(me: Inspecting) -> None:
        gate()
        try:
            me.wait_for(for_ever())
        except NotAllowedError as error:
            refused.append(error)

    async with running_node() as node, trio.open_nursery() as nursery:
        pid = await node.spawn(Inspecting, wait, asked, dispatcher=PINNED)
        process = process_of(node, pid)
        node.send(pid, "block")
        await gate.wait_reached()
        nursery.start_soon(inspect_in_vain, node, pid)
        await asked.wait()
        gate.opened.set()
        # Its task answers somebody else, and has not come to what the callback waits for.
        await eventually(lambda: hop_of(process).verb is not None)

        node.kill(pid)
        await node.wait_ended(pid)
        await eventually(lambda: bool(refused))

    assert "was abandoned in its thread" in str(refused[0])


async def test_a_callback_that_ended_while_its_process_was_asked_and_killed_is_not_left_behind() -> (
    None
):
    gate, asked = Gate(), trio.Event()

    async with running_node() as node, trio.open_nursery() as nursery:
        pid = await node.spawn(Inspecting, gate, asked, dispatcher=PINNED)
        process = process_of(node, pid)
        node.send(pid, "block")
        await gate.wait_reached()
        nursery.start_soon(inspect_in_vain, node, pid)
        await asked.wait()
        gate.opened.set()
        await eventually(lambda: process.job.outcome is not None)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

        node.kill(pid)
        await node.wait_ended(pid)

        assert node.info().threads_abandoned == 0
        assert node.info().dead_letters == {}


async def test_what_a_callback_wants_to_wait_for_in_the_moment_in_which_it_is_left_behind_is_refused() -> (
    None
):
    gate = Gate()

    class Blocked(Doer):
        def init(self) -> None:
            hops.append(hop_of(process_behind(self)))
            gate()

    hops: list[Any] = []
    async with running_node() as node:
        await run_out_of_time(node, Blocked, gate.wait_reached)
        detached = threaded_process_module._AsyncVerb(for_ever())

        # As it comes through the bridge if it was posted a moment before.
        hops[0].take(detached)
        gate.opened.set()

        with pytest.raises(NotAllowedError, match="was abandoned in its thread"):
            detached.parker.value.unwrap()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


async def inspect_in_vain(node: Node, pid: PID) -> None:
    with pytest.raises(TargetDownError):
        await node.inspect(pid, timeout=60)


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("bound", [None, 8])
async def test_a_message_that_a_kill_takes_back_from_a_thread_s_queue_keeps_its_place(
    priority: Priority, bound: int | None
) -> None:
    gate, heard_later = Gate(), []
    pod = Pod("shared")

    class Keeps(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            heard_later.append(message)

    async with running_node() as node:
        child = ChildSpec("kept", Keeps, mailbox=KEEP, dispatcher=pod, mailbox_size=bound)
        await node.spawn(Supervisor, SupervisorSpec([child]))
        busy = await node.spawn(Doer, dispatcher=pod)
        node.send(busy, gate)
        await gate.wait_reached()
        first = node.whereis("kept")
        assert first is not None
        for number in range(4):
            node.send("kept", number, priority=priority)
        node.send("kept", "after", priority=Priority.NORMAL)
        await wait_all_tasks_blocked()
        # The first message waits for the thread, the others in the mailbox.
        node.kill(first)
        await node.wait_ended(first)
        await eventually(lambda: node.whereis("kept") is not None)
        gate.opened.set()
        await eventually(lambda: len(heard_later) == 5)

        assert heard_later == [0, 1, 2, 3, "after"]
