"""Processes with plain callbacks in threads: the promises hold wherever the callbacks run."""

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    LOOP,
    NO_REPLY,
    PID,
    Actor,
    Caller,
    ChildSpec,
    EventName,
    Killed,
    MetaProcess,
    Normal,
    NotAllowedError,
    Priority,
    Reason,
    TargetDownError,
    Threads,
    Why,
)
from ergo_py._core.verbs.behaviour import Behaviour
from ergo_py._core.verbs.links_and_events import LinksAndEvents
from ergo_py._core.verbs.replies_and_timers import RepliesAndTimers
from ergo_py.errors import DeadlockError, InitTimeoutError
from ergo_py.info import Dispatcher, State
from tests._core.processes.threaded import forever, run_out_of_time
from tests.actors import Failed, Recorder
from tests.dispatched import AsyncDoer, Doer, Gate, heard, in_threads
from tests.meta.owner import eventually
from tests.support import process_of, replace_private, running_node

# -- threads ---------------------------------------------------------------------------------------


@in_threads
async def test_plain_callbacks_run_in_threads_and_async_callbacks_on_the_loop(
    where: Dispatcher,
) -> None:
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


@pytest.mark.parametrize("where", [Threads(), Threads("pod")], ids=str)
async def test_init_to_terminate_run_in_the_same_thread(where: Dispatcher) -> None:
    log: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Doer, log, dispatcher=where)

        inside = {await node.call(pid, lambda _: threading.get_ident()) for _ in range(5)}

    assert {ident for _, ident in log} == inside
    assert len(log) == 2


@in_threads
async def test_a_blocked_callback_leaves_the_loop_responsive_and_is_visible_from_outside(
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
async def test_an_urgent_message_is_next_after_the_message_that_blocks(where: Dispatcher) -> None:
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
async def test_a_kill_takes_effect_when_the_callback_returns_and_is_logged(
    where: Dispatcher,
) -> None:
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
        # An inspection makes it look again, and it logs the line only once.
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


async def test_a_callback_that_waits_for_a_thread_is_withdrawn_when_its_process_is_killed() -> None:
    gate = Gate()
    async with running_node() as node:
        one, other = (
            await node.spawn(Doer, dispatcher=Threads("pod")),
            await node.spawn(Recorder, dispatcher=Threads("pod")),
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


async def test_an_init_that_takes_too_long_is_abandoned() -> None:
    gate = Gate()

    class Slow(Doer):
        def init(self) -> None:
            gate()

    async with running_node() as node:
        await run_out_of_time(node, Slow, gate.wait_reached)

        assert node.processes() == []
        assert node.info().threads_abandoned == 1
        gate.opened.set()


async def test_a_callback_that_never_returns_does_not_prevent_the_node_from_stopping() -> None:
    gate = Gate()
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=Threads(), shutdown=0.05, terminate_timeout=0.05)
        node.send(pid, gate)
        await gate.wait_reached()

    assert node.exit_report is not None
    assert [one.pid for one in node.exit_report.abandoned] == [pid]
    gate.opened.set()


async def test_a_terminate_that_never_returns_is_abandoned_and_can_no_longer_send(
    mock_clock: Any,
) -> None:
    gate = Gate()
    refused: list[Exception] = []

    class Clinging(Doer):
        def terminate(self, reason: Reason) -> None:
            gate()
            try:
                self.send("witness", "from the dead")
            except NotAllowedError as error:
                refused.append(error)

    async with running_node(limit=1_000_000) as node:
        witness = await node.spawn(Recorder, name="witness")
        pid = await node.spawn(Clinging, dispatcher=Threads())

        node.send_exit(pid, Normal())
        await gate.wait_reached()
        mock_clock.rate = 1000.0  # time stood still until the thread had begun
        await node.wait_ended(pid)
        mock_clock.rate = 1.0
        gate.opened.set()
        await eventually(lambda: bool(refused))

        assert node.info().threads_abandoned == 1
        assert "abandoned in its thread" in str(refused[0])
        assert await node.call(witness, "all") == []


async def test_a_thread_can_call_through_the_node() -> None:
    async with running_node() as node:
        other = await node.spawn(Recorder)
        node.send(other, "hello")
        pid = await node.spawn(Doer, dispatcher=Threads())

        assert await node.call(pid, lambda me: me.node.call_from_thread(other, "all")) == ["hello"]


# -- every verb ------------------------------------------------------------------------------------


class Idle(MetaProcess):
    """A meta-process that only waits."""

    async def start(self) -> None:
        await trio.sleep_forever()


def _replied(me: Doer, answer: Callable[[Caller], bool]) -> object:
    """Answer a call that another process has deferred."""
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
    "request cancel_request": lambda me: me.cancel_request(me.request("deferring", "later")),
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
    """Defers its calls, and lists their callers on request."""

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


def test_every_verb_is_covered() -> None:
    verbs = {
        name
        for name in [*vars(Behaviour), *vars(LinksAndEvents), *vars(RepliesAndTimers), "service"]
        if not name.startswith("_")
    }

    # The connection is the same in a thread; the others belong to the class.
    assert {one for names in VERBS for one in names.split()} == verbs - {
        "bounds_its_end",
        "connection",
        "drains",
        "spec",
    }


async def test_verbs_change_state_on_the_loop() -> None:
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
            pid = await node.spawn(behaviour, dispatcher=Threads())
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
async def test_an_error_of_an_awaited_coroutine_is_raised_in_the_callback(
    where: Dispatcher,
) -> None:
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


async def test_an_init_that_waits_too_long_in_its_thread_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    asked = trio.Event()

    class Keeping(Actor):
        def handle_call(self, request: object, caller: Caller) -> object:
            asked.set()
            return NO_REPLY

    class Asking(Doer):
        def init(self) -> None:
            self.wait_for(self.call("callee", "question", timeout=None))

    async def pass_time() -> None:
        # Only now, since a thread that does not wait when its time is over is abandoned; and not
        # further, since a thread that has been cancelled has a second to end.
        await asked.wait()
        mock_clock.jump(5.0)

    replace_private(monkeypatch, "grace of threads", 30.0)
    async with running_node(limit=1000) as node, trio.open_nursery() as nursery:
        await node.spawn(Keeping, name="callee")
        nursery.start_soon(pass_time)

        with pytest.raises(InitTimeoutError):
            await node.spawn(Asking, dispatcher=Threads(), init_timeout=5.0)

        assert node.processes() == [node.whereis("callee")]
        assert (node.info().threads_abandoned, node.info().dispatcher_threads) == (0, 0)


async def test_a_callback_that_does_not_return_when_its_wait_is_cancelled_is_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    refused: list[Exception] = []

    begun = threading.Event()

    class Clinging(Doer):
        def init(self) -> None:
            begun.set()
            try:
                self.wait_for(forever())
            except BaseException:
                gate()
            try:
                self.wait_for(forever())
            except NotAllowedError as error:
                refused.append(error)

    replace_private(monkeypatch, "grace of threads", 0.05)
    async with running_node() as node:
        await run_out_of_time(node, Clinging, lambda: eventually(begun.is_set))

        assert node.info().threads_abandoned == 1
        gate.opened.set()
        await eventually(lambda: bool(refused))
        assert "wait_for(...) is for a plain callback" in str(refused[0])


async def test_a_process_is_abandoned_if_an_awaited_coroutine_refuses_to_end() -> None:
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
        pid = await node.spawn(Doer, dispatcher=Threads(), shutdown=0.05, terminate_timeout=0.05)
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
            Threads(),
            lambda me: me.wait_for(me.call),
            r"async verb: `self.wait_for\(self.call\(to, request\)\)`",
        ),
    ],
)
async def test_wait_for_needs_a_thread_and_an_awaitable(
    where: Dispatcher, wait: Any, hint: str
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, wait)

        assert re.search(hint, str(caught.value.__cause__))


async def test_an_async_callback_cannot_use_wait_for() -> None:
    class Mixed(Doer):
        async def handle_message(self, message: Any, sender: Any) -> None:
            try:
                self.wait_for(self.call("callee", "question"))
            except NotAllowedError as error:
                self.heard.append(str(error))

    async with running_node() as node:
        pid = await node.spawn(Mixed, dispatcher=Threads())

        node.send(pid, "wait")

        [said] = await heard(node, pid)
        assert "in an async callback write `await`" in said


async def test_a_thread_that_a_callback_started_cannot_wait_as_the_process() -> None:
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
        pid = await node.spawn(Doer, dispatcher=Threads())

        await node.call(pid, wait_elsewhere, timeout=25)

        assert len(refused) == 1


async def test_a_process_on_a_busy_shared_thread_answers_callers_on_other_threads() -> None:
    gate = Gate()
    async with running_node() as node, trio.open_nursery() as nursery:
        one, other = [await node.spawn(Doer, dispatcher=Threads("pod")) for _ in range(2)]
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


async def test_a_process_that_answers_on_the_loop_may_be_called_from_its_shared_thread() -> None:
    class Mixed(Doer):
        async def handle_call(self, request: Any, caller: Caller) -> Any:
            return "from the loop"

    async with running_node() as node:
        one, mixed = (
            await node.spawn(Doer, dispatcher=Threads("pod")),
            await node.spawn(Mixed, dispatcher=Threads("pod")),
        )

        assert await node.call(one, lambda me: me.call(mixed, "question")) == "from the loop"


async def test_a_ring_of_calls_through_the_node_is_found_while_the_shared_thread_is_busy() -> None:
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
            await node.spawn(Doer, dispatcher=Threads("pod")),
            await node.spawn(Mixed, dispatcher=Threads("pod")),
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
