"""The promises hold wherever the callbacks of a process run: the same suite, once for each
dispatcher.

Verbs are used where a user writes them, inside callbacks. So in a process with a thread they are
used in its thread.
"""

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    LOOP,
    NO_REPLY,
    Actor,
    Caller,
    CallTimeoutError,
    ChildSpec,
    Crashed,
    Custom,
    Divert,
    Diverted,
    Down,
    EventName,
    Exit,
    InitError,
    Killed,
    MailboxFullError,
    Name,
    NameTakenError,
    NodeName,
    NoProcess,
    Normal,
    NotAllowedError,
    Overflow,
    Pool,
    PoolSpec,
    Priority,
    Reason,
    Reject,
    Response,
    Shutdown,
    StateMachine,
    Strategy,
    TargetDownError,
    Threads,
    Unregistered,
    Why,
)
from ergo_py._core.vocabulary.errors import TooManyProcessesError
from ergo_py.errors import DeadlockError
from ergo_py.info import Dispatcher, State
from ergo_py.state_machine import state
from ergo_py.supervision import Decision, Fate
from tests.actors import Failed, Recorder
from tests.dispatched import AsyncDoer, Doer, everywhere, heard, waiting
from tests.meta.owner import eventually
from tests.places import Place, here_and_abroad
from tests.support import kernel_of, process_of, running_node
from tests.test_docs_semantics import EXPECTED

ELSEWHERE: Final = {
    "I1": "identifiers are values",
    "I4": "about the declared type of an address, however its process runs",
    "C8": "about processes that share a thread",
    "M9": "batches have a suite of their own, with and without a thread",
    "P10": "it is this suite, and what threads add to it",
    "P12": "the main thread runs this suite, and a node of P12 runs in another",
    "P13": "it is about the thread of the loop, and not about a dispatcher",
    **dict.fromkeys(
        ("V2", "V3", "V7", "V8", "V10", "V11"),
        "what a supervisor does, and supervisors are on the loop",
    ),
    **{name: "built on these" for name in EXPECTED if name[0] not in "IMPCLVXNS"},
    **{f"X{number}": "about meta-processes" for number in range(1, 24)},
    **dict.fromkeys(
        ("N1", "N2", "N4", "N5", "N6", "N7"), "about the node, however its processes run"
    ),
    **dict.fromkeys(("S3", "S4", "S5", "S6"), "about what is seen from outside"),
}
"""The promises that are not shown here, and why."""
_shown: Final[set[str]] = set()


def promise(*numbers: str) -> pytest.MarkDecorator:
    """Say which promises a test shows; it is run once for each dispatcher."""
    _shown.update(numbers)
    return everywhere


def promise_of_target(*numbers: str) -> pytest.MarkDecorator:
    """The same for a test whose target may be on another node: it is run there, too."""
    _shown.update(numbers)
    return here_and_abroad


def test_every_promise_is_shown_here_or_listed_with_a_reason() -> None:
    assert sorted(_shown | set(ELSEWHERE)) == sorted(EXPECTED)
    assert _shown & set(ELSEWHERE) == set()


# -- identity --------------------------------------------------------------------------------------


@promise("I2")
async def test_a_process_takes_a_single_name_and_any_number_of_aliases(where: Dispatcher) -> None:
    def use(me: Doer) -> list[Any]:
        me.register("named")
        with pytest.raises(NotAllowedError, match="one name at a time"):
            me.register("other")
        aliases = [me.create_alias() for _ in range(3)]
        me.send("named", "hello")
        for alias in aliases:
            me.send(alias, "hello")
        me.delete_alias(aliases[0])
        return [me.send(aliases[0], "lost"), me.registered_name, me.node.whereis("named") == me.pid]

    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        used = await node.call(pid, use)

        assert used == [False, "named", True]
        assert await heard(node, pid) == ["hello"] * 4


@promise("I3")
async def test_a_name_is_free_when_terminate_has_finished_and_not_before(where: Dispatcher) -> None:
    seen: list[Any] = []

    class Holder(Doer):
        def terminate(self, reason: Reason) -> None:
            seen.append(self.node.whereis("name") == self.pid)

    def take(me: Doer) -> str:
        try:
            me.register("name")
        except NameTakenError:
            return "taken"
        return "mine"

    async with running_node() as node:
        holder = await node.spawn(Holder, dispatcher=where, name="name")
        taker = await node.spawn(Doer, dispatcher=where)

        first = await node.call(taker, take)
        node.send_exit(holder)
        await node.wait_ended(holder)
        second = await node.call(taker, take)

        assert (first, seen, second) == ("taken", [True], "mine")


# -- mailbox ---------------------------------------------------------------------------------------


@promise("M1")
async def test_lanes_are_served_in_order(where: Dispatcher) -> None:
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        for priority in Priority:
            node.send(pid, priority.name, priority=priority)

        assert await heard(node, pid) == ["MAX", "HIGH", "NORMAL"]


@promise("M1", "M2", "L2")
async def test_all_lanes_are_checked_before_every_message_and_signals_have_a_lane(
    where: Dispatcher,
) -> None:
    def use(me: Doer) -> None:
        me.trap_exit = True
        me.send(me.pid, "first")
        me.send(me.pid, "second", priority=Priority.HIGH)
        me.monitor("nobody")
        me.send(me.pid, lambda me: me.send(me.pid, "from inside", priority=Priority.MAX))
        me.send(me.pid, "last")
        me.send(me.pid, "third", priority=Priority.MAX)
        me.link("nobody")

    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        await node.call(pid, use)

        kinds = [
            type(one).__name__ if isinstance(one, Exit | Down) else one
            for one in await heard(node, pid)
        ]
        assert kinds == ["third", "Exit", "second", "Down", "first", "from inside", "last"]


@promise_of_target("M3")
async def test_messages_of_a_sender_are_handled_in_order(where: Dispatcher, place: Place) -> None:
    async with place.nodes() as (node, there):
        pid = await there.spawn(Doer, dispatcher=where)

        for number in range(200):
            node.send(pid, number)

        assert await heard(node, pid) == list(range(200))


@promise_of_target("M3")
async def test_messages_of_a_callback_arrive_in_order_at_each_priority(
    where: Dispatcher, place: Place
) -> None:
    async with place.nodes() as (node, there):
        receiver, sender = (
            await there.spawn(Doer, dispatcher=where),
            await node.spawn(Doer, dispatcher=where),
        )

        def send(me: Doer) -> None:
            for number in range(60):
                me.send(receiver, number, priority=Priority(number % 3))

        await node.call(sender, send)
        await eventually(lambda: there.process_info(receiver).messages_in == 60)

        got = await heard(node, receiver)
        assert [[one for one in got if one % 3 == lane] for lane in range(3)] == [
            list(range(lane, 60, 3)) for lane in range(3)
        ]


@promise_of_target("M3", "M8")
async def test_messages_of_a_thread_arrive_in_order(where: Dispatcher, place: Place) -> None:
    async with place.nodes() as (node, there):
        pid = await there.spawn(Doer, dispatcher=where)

        def send() -> None:
            for number in range(100):
                node.send(pid, number)

        await trio.to_thread.run_sync(send)

        assert await heard(node, pid) == list(range(100))


@promise_of_target("M4", "M5")
async def test_a_bound_holds_for_messages_of_callbacks_and_not_for_signals(
    where: Dispatcher, place: Place
) -> None:
    rules: list[Any] = [
        Overflow.RAISE,
        Overflow.DROP_NEWEST,
        Overflow.DROP_OLDEST,
        Divert("other", "tag"),
    ]
    async with place.nodes() as (node, there):
        other = await there.spawn(Recorder, name="other")
        sender = await node.spawn(Doer, dispatcher=where)
        receivers = [
            await there.spawn(
                Doer, dispatcher=where, mailbox_size=2, overflow=rule, name=f"receiver-{number}"
            )
            for number, rule in enumerate(rules)
        ]
        for receiver in receivers:
            await node.call(receiver, lambda me: me.monitor(other))
            await there.suspend(receiver)

        def send(me: Doer) -> int:
            refused = 0
            for receiver in receivers:
                for number in range(3):
                    try:
                        me.send(receiver, number)
                    except MailboxFullError:
                        refused += 1
            return refused

        refused = await node.call(sender, send)
        await place.arrived(node, there)
        diverted = await node.call(other, "all")
        node.kill(other)
        await there.wait_ended(other)
        for receiver in receivers:
            await there.resume(receiver)
        await eventually(lambda: not any(len(process_of(there, one).mailbox) for one in receivers))

        # A full mailbox on another node is a matter of that node.
        assert refused == (0 if place.is_abroad else 1)
        assert diverted == [Diverted(receivers[3], "tag", 2, sender)]
        down = Down(other, Killed())
        assert [await heard(node, one) for one in receivers] == [
            [down, 0, 1],
            [down, 0, 1],
            [down, 1, 2],
            [down, 0, 1],
        ]
        assert [letter.why for letter in there.dead_letters()] == [
            Why.FULL,
            Why.FULL,
            Why.DISPLACED,
        ]
        assert [letter.sender for letter in there.dead_letters()] == [sender] * 3


@promise_of_target("M5")
async def test_a_callback_waits_for_room_if_the_receiver_allows_it(
    where: Dispatcher, place: Place
) -> None:
    async with place.nodes() as (node, there):
        receiver = await there.spawn(Doer, dispatcher=where, mailbox_size=1, overflow=Overflow.WAIT)
        sender = await node.spawn(waiting(where), dispatcher=where)
        await there.suspend(receiver)

        for number in range(3):
            node.send(sender, lambda me, number=number: me.send_wait(receiver, number))
        await eventually(lambda: bool(process_of(there, receiver).mailbox.waiters))
        await there.resume(receiver)
        await heard(node, sender)

        assert await heard(node, receiver) == [0, 1, 2]
        assert node.dead_letters() == there.dead_letters() == []


@promise("M6")
async def test_a_process_that_always_has_messages_lets_others_run_and_can_be_killed(
    where: Dispatcher,
) -> None:
    def again(me: Doer) -> None:
        me.send(me.pid, again)

    async with running_node() as node:
        busy, other = await node.spawn(Doer, dispatcher=where), await node.spawn(Doer)
        node.send(busy, again)
        await eventually(lambda: node.process_info(busy).messages_in > 100)

        node.send(other, "hello")
        answer = await heard(node, other)
        node.kill(busy)
        reason = await node.wait_ended(busy)

        assert (answer, reason) == (["hello"], Killed())


@promise("M7", "N3")
async def test_a_message_of_a_callback_to_an_unknown_target_is_a_dead_letter(
    where: Dispatcher,
) -> None:
    async with running_node() as node:
        gone, pid = await node.spawn(Recorder), await node.spawn(Doer, dispatcher=where)
        node.kill(gone)
        await node.wait_ended(gone)

        sent = await node.call(
            pid, lambda me: [me.send(gone, "one"), me.send("nobody", 2), me.send_exit(gone, "x")]
        )
        await wait_all_tasks_blocked()

        assert sent == [False] * 3
        assert [
            (one.sender, one.target, one.message_type, one.why) for one in node.dead_letters()
        ] == [
            (pid, gone, "str", Why.NO_PROCESS),
            (pid, "nobody", "int", Why.NO_PROCESS),
        ]


@promise("M7", "P7")
async def test_waiting_messages_of_a_stopping_process_become_dead_letters(
    where: Dispatcher,
) -> None:
    def stop(me: Doer) -> None:
        me.stop("enough")
        me.send(me.pid, "too late")

    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        node.send(pid, stop)
        node.send(pid, "waits")
        reason = await node.wait_ended(pid)

        assert reason == Custom("enough")
        assert [letter.why for letter in node.dead_letters()] == [Why.UNHANDLED_AT_EXIT] * 2


# -- the life of a process -------------------------------------------------------------------------


@promise("P1")
async def test_the_state_of_a_process_follows_its_work(where: Dispatcher) -> None:
    states: list[State] = []

    def look(me: Actor) -> None:
        states.append(me.node.process_info(me.pid).state)

    class NodeInspection(waiting(where)):  # type: ignore[misc]
        def init(self) -> None:
            look(self)

        def terminate(self, reason: Reason) -> None:
            look(self)

    async with running_node() as node:
        pid = await node.spawn(NodeInspection, dispatcher=where)
        callee = await node.spawn(AsyncDoer)
        states.append(node.process_info(pid).state)

        await node.call(pid, look)
        await node.call(
            pid, lambda me: me.call(callee, lambda _: states.append(node.process_info(pid).state))
        )
        await node.call(pid, look)
        node.send_exit(pid)
        await node.wait_ended(pid)

        assert [one.name for one in states] == [
            "INIT",
            "SLEEP",
            "RUNNING",
            "WAIT_RESPONSE",
            "RUNNING",
            "STOPPING",
        ]


@promise("P2")
async def test_an_init_that_raises_leaves_no_name_event_timer_or_relation(
    where: Dispatcher,
) -> None:
    class Broken(Doer):
        def init(self) -> None:
            self.register_event("news")
            self.send_after(100.0, self.pid, "never")
            self.monitor("somebody")
            raise Failed

    async with running_node() as node:
        somebody = await node.spawn(Recorder, name="somebody")
        with pytest.raises(InitError) as caught:
            await node.spawn(Broken, dispatcher=where, name="broken")

        assert isinstance(caught.value.__cause__, Failed)
        assert node.whereis("broken") is None
        assert node.processes() == [somebody]
        assert "news" not in node.events()
        info = node.info()
        assert (info.dispatcher_threads, info.timers, info.relations) == (0, 0, 0)


@promise("P2")
async def test_an_init_that_raises_ends_the_children_it_had_started(
    where: Dispatcher,
) -> None:
    log: list[Any] = []

    class Broken(Doer):
        def init(self) -> Any:
            self.wait_for(self.spawn(Doer, log, dispatcher=_own(where, 1)))
            raise Failed

    class AsyncBroken(Doer):
        async def init(self) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
            await self.spawn(Doer, log, dispatcher=where)
            raise Failed

    async with running_node() as node:
        with pytest.raises(InitError):
            await node.spawn(AsyncBroken if where == LOOP else Broken, dispatcher=where)

        assert [what for what, _ in log] == ["init", Shutdown()]
        assert node.processes() == []


@promise("L5")
async def test_a_watcher_hears_the_messages_before_a_normal_end(where: Dispatcher) -> None:
    def say_and_stop(me: Doer) -> None:
        for number in range(5):
            me.send(watcher, number)
        me.stop()

    async with running_node() as node:
        watcher = await node.spawn(waiting(where), dispatcher=where)
        child = await node.call(watcher, lambda me: me.spawn(Doer, dispatcher=_own(where, 1)))
        await node.call(watcher, lambda me: me.monitor(child))

        node.send(child, say_and_stop)
        await process_of(node, child).wait_gone()

        notices = [Down(child, Normal()), ("child exit", child, Normal())]
        assert await heard(node, watcher) == [*range(5), *notices]


@promise("P3", "P7", "L1", "L4")
async def test_children_end_before_their_parent_and_links_and_monitors_are_notified(
    where: Dispatcher,
) -> None:
    log: list[Any] = []
    async with running_node() as node:
        parent = await node.spawn(waiting(where), log, dispatcher=where)
        watcher, linked = (
            await node.spawn(Doer, dispatcher=where),
            await node.spawn(Doer, dispatcher=where),
        )
        await node.call(watcher, lambda me: me.monitor(parent))
        await node.call(linked, lambda me: me.link(parent))
        child = await node.call(parent, lambda me: me.spawn(Doer, log, dispatcher=_own(where, 1)))
        belongs_to = node.process_info(child).parent
        log.clear()
        linked_process = process_of(node, linked)

        node.send_exit(parent, "over")
        await linked_process.wait_gone()

        assert belongs_to == parent
        assert [what for what, _ in log] == [Shutdown(), Custom("over")]
        assert linked_process.reason == Custom("over")
        assert await heard(node, watcher) == [Down(parent, Custom("over"))]
        assert len(kernel_of(node).relations) == 0


@promise("P3")
async def test_a_parent_is_notified_of_the_end_of_a_child(where: Dispatcher) -> None:
    async with running_node() as node:
        parent = await node.spawn(waiting(where), dispatcher=where)
        child = await node.call(
            parent, lambda me: me.spawn(Doer, dispatcher=_own(where, 1), link=True)
        )

        await node.call(child, lambda me: me.stop())
        await eventually(lambda: child not in node.processes())

        assert await heard(node, parent) == [("child exit", child, Normal())]


@promise("P4")
async def test_a_process_handles_a_single_message_at_a_time(where: Dispatcher) -> None:
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


@promise("P5", "C3")
async def test_a_crash_ends_the_process_with_its_error_and_tells_the_caller_at_once(
    where: Dispatcher,
) -> None:
    def fail(_: Doer) -> None:
        raise Failed("here")

    async with running_node() as node:
        pid, sibling = (
            await node.spawn(Doer, dispatcher=where),
            await node.spawn(Doer, dispatcher=where),
        )

        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, fail)

        assert isinstance(caught.value.__cause__, Failed)
        assert isinstance(caught.value.reason, Crashed)
        assert "in fail" in caught.value.reason.traceback
        assert await heard(node, sibling) == []


@promise("P6")
async def test_stop_ends_the_process_after_the_callback_and_its_answer(where: Dispatcher) -> None:
    log: list[Any] = []

    def stop(me: Doer) -> str:
        me.stop("enough")
        return "bye"

    async with running_node() as node:
        pid = await node.spawn(Doer, log, dispatcher=where)
        ended = process_of(node, pid)

        answer = await node.call(pid, stop)
        await ended.wait_gone()

        assert answer == "bye"
        assert [what for what, _ in log] == ["init", Custom("enough")]


@promise("P7")
async def test_a_monitor_can_take_the_name_of_an_ended_process_at_once(where: Dispatcher) -> None:
    order: list[str] = []

    class Old(Doer):
        def terminate(self, reason: Reason) -> None:
            order.append("terminated")

    class Heir(Doer):
        def handle_message(self, message: Any, sender: Any) -> None:
            if isinstance(message, Down):
                self.register("throne")
                order.append("succeeded")
            else:
                super().handle_message(message, sender)

    async with running_node() as node:
        old = await node.spawn(Old, dispatcher=where, name="throne")
        heir = await node.spawn(Heir, dispatcher=where)
        await node.call(heir, lambda me: me.monitor(old))

        node.send_exit(old)
        await eventually(lambda: len(order) == 2)

        assert order == ["terminated", "succeeded"]
        assert node.whereis("throne") == heir


@promise("P8")
async def test_an_exit_is_taken_between_messages_and_may_be_trapped(where: Dispatcher) -> None:
    def trap(me: Doer) -> None:
        me.trap_exit = True

    async with running_node() as node:
        sender = await node.spawn(Doer, dispatcher=where)
        pid, other = (
            await node.spawn(Doer, dispatcher=where),
            await node.spawn(Doer, dispatcher=where),
        )
        other_process = process_of(node, other)
        await node.call(pid, trap)

        await node.call(
            sender, lambda me: (me.send_exit(pid, "please"), me.send_exit(other, "please"))
        )
        await other_process.wait_gone()

        assert await heard(node, pid) == [Exit(sender, Custom("please"))]
        assert other_process.reason == Custom("please")


@promise("P8")
async def test_an_exit_of_the_parent_is_not_trapped(where: Dispatcher) -> None:
    async with running_node() as node:
        parent = await node.spawn(waiting(where), dispatcher=where)
        child = await node.call(parent, lambda me: me.spawn(Doer, dispatcher=_own(where, 1)))
        process = process_of(node, child)
        await node.call(child, lambda me: setattr(me, "trap_exit", True))

        await node.call(parent, lambda me: me.send_exit(child, "enough"))
        await process.wait_gone()

        assert process.reason == Custom("enough")


@promise("P8")
async def test_a_kill_comes_before_waiting_messages_and_terminate_still_runs(
    where: Dispatcher,
) -> None:
    log: list[Any] = []
    async with running_node() as node:
        killer, victim = (
            await node.spawn(Doer, dispatcher=where),
            await node.spawn(Doer, log, dispatcher=where),
        )
        process = process_of(node, victim)
        await node.suspend(victim)
        for number in range(3):
            node.send(victim, lambda _, number=number: log.append((number, 0)))

        killed = await node.call(killer, lambda me: me.kill(victim))
        await process.wait_gone()

        assert killed
        assert [what for what, _ in log] == ["init", Killed()]
        assert [letter.why for letter in node.dead_letters()] == [Why.UNHANDLED_AT_EXIT] * 3


@promise("P9")
async def test_a_callback_that_spawns_too_many_processes_is_refused(
    where: Dispatcher,
) -> None:
    async with running_node(max_processes=2) as node:
        pid = await node.spawn(waiting(where), dispatcher=where)
        await node.spawn(Recorder)

        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, lambda me: me.spawn(Doer, dispatcher=where, name="third"))

        assert isinstance(caught.value.__cause__, TooManyProcessesError)
        assert node.whereis("third") is None


@promise("P11")
async def test_a_process_has_context_variables_of_its_own(where: Dispatcher) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

    def become(name: str) -> Callable[[Any], str]:
        def replace(_me: Doer) -> str:
            before = tenant.get()
            tenant.set(name)
            return before

        return replace

    async with running_node() as node:
        tenant.set("spawner")
        one, other = [await node.spawn(Doer, dispatcher=where) for _ in range(2)]
        tenant.set("caller")

        before = [
            await node.call(pid, become(name)) for pid, name in ((one, "one"), (other, "other"))
        ]
        after = [await node.call(pid, become("later")) for pid in (one, other)]

        assert before == ["spawner", "spawner"]
        assert after == ["one", "other"]
        assert tenant.get() == "caller"


# -- calls -----------------------------------------------------------------------------------------


class Asking(Doer):
    def handle_response(self, response: Response) -> None:
        self.heard.append((response.ref, response.value, type(response.error)))


@promise_of_target("C7")
async def test_each_request_without_waiting_has_a_single_response(
    where: Dispatcher, place: Place
) -> None:
    async with place.nodes() as (node, there):
        callee = await there.spawn(Answering, dispatcher=where)
        asker = await node.spawn(Asking, dispatcher=_own(where, 1))

        refs = await node.call(
            asker,
            lambda me: [me.request(callee, "later"), me.request(callee, "refuse")],
        )
        dropped = await node.call(asker, lambda me: me.request(callee, "later"))
        cancelled = await node.call(asker, lambda me: me.cancel_request(dropped))
        await node.call(callee, "now")
        while len(answers := await heard(node, asker)) < 2:  # noqa: ASYNC110 - threads
            await trio.sleep(0.001)

        assert cancelled
        assert answers == [(refs[1], None, Failed), (refs[0], "late", type(None))]


class Answering(Doer):
    """Answers in every way there is."""

    def handle_call(self, request: Any, caller: Caller) -> object:
        match request:
            case "later":
                self.heard.append(caller)
                return NO_REPLY
            case "now":
                return [self.reply(one, "late") for one in self.heard]
            case "refuse":
                raise Reject(Failed("refused"))
            case "fail":
                raise Failed("crashed")
            case "none":
                return None
        return caller.pid


@promise_of_target("C1", "C2", "C4")
async def test_calls_from_callbacks_are_answered_refused_and_time_out(
    where: Dispatcher, place: Place
) -> None:
    async with place.nodes() as (node, there):
        callee = await there.spawn(Answering, dispatcher=where)
        caller = await node.spawn(waiting(where), dispatcher=_own(where, 1))

        def ask(request: object, timeout: float = 20.0) -> Any:
            async def outcome(me: Doer) -> object:
                try:
                    return await me.call(callee, request, timeout=timeout)
                except (Failed, CallTimeoutError, TargetDownError) as error:
                    return type(error)

            return node.call(caller, outcome, timeout=25)

        assert await ask("who") == caller
        assert await ask("none") is None
        assert await ask("refuse") is Failed
        assert await ask("later", 0.01) is CallTimeoutError
        assert await ask("fail") is TargetDownError
        assert await ask("who") is TargetDownError


@promise_of_target("C1", "C4")
async def test_a_deferred_answer_may_come_from_another_process_and_ends_with_the_callee(
    where: Dispatcher, place: Place
) -> None:
    callers: list[Caller] = []

    class Deferring(Doer):
        def handle_call(self, request: Any, caller: Caller) -> object:
            callers.append(caller)
            return NO_REPLY

    async with place.nodes() as (node, there), trio.open_nursery() as nursery:
        callee, other = (
            await there.spawn(Deferring, dispatcher=where),
            await there.spawn(Doer, dispatcher=where),
        )
        outcomes: dict[int, object] = {}

        async def ask(number: int) -> None:
            try:
                outcomes[number] = await node.call(callee, "later", timeout=20)
            except (TargetDownError, Failed) as error:
                outcomes[number] = error

        def asked(times: int) -> Callable[[], bool]:
            return lambda: len(callers) == times

        for number in range(3):
            nursery.start_soon(ask, number)
            await eventually(asked(number + 1))
        await node.call(
            other,
            lambda me: (me.reply(callers[0], "late"), me.reply_error(callers[1], Failed("late"))),
        )
        await eventually(lambda: len(outcomes) == 2)
        node.kill(callee)
        await eventually(lambda: len(outcomes) == 3)

        assert outcomes[0] == "late"
        assert isinstance(outcomes[1], Failed)
        down = outcomes[2]
        assert isinstance(down, TargetDownError)
        assert down.reason == Killed()


@promise_of_target("C2")
async def test_a_late_answer_is_counted_and_ignored(where: Dispatcher, place: Place) -> None:
    async with place.nodes() as (node, there):
        callee = await there.spawn(Answering, dispatcher=where)
        with pytest.raises(CallTimeoutError):
            await node.call(callee, "later", timeout=0.01)

        await node.call(callee, "now")
        await place.arrived(node, there)
        await wait_all_tasks_blocked()

        assert node.info().late_replies == 1
        assert await node.call(callee, "who") == node.pid


@promise("C5")
async def test_a_call_to_itself_or_around_a_ring_is_refused_at_once_with_the_ring(
    where: Dispatcher,
) -> None:
    async with running_node() as node:
        pids = [
            await node.spawn(waiting(where), dispatcher=_own(where, number)) for number in range(3)
        ]

        def ask(*path: Any) -> Any:
            """A function that has a process ask the next process on the path, and so on."""
            first, *rest = path
            return lambda me: me.call(first, ask(*rest) if rest else "all", timeout=30)

        async def ring_of(*path: Any) -> list[Any]:
            """Have the first process ask along the rest; the process that closes the ring is
            refused, and the others get the error.
            """
            with pytest.raises(TargetDownError) as caught:
                await node.call(path[0], ask(*path[1:]), timeout=30)
            error: BaseException | None = caught.value
            while error is not None and not isinstance(error, DeadlockError):
                error = error.__cause__
            assert isinstance(error, DeadlockError)
            return list(error.ring)

        alone = await node.spawn(waiting(where), dispatcher=where)

        assert await ring_of(alone, alone) == [alone, alone]
        assert await ring_of(*pids, pids[0]) == [pids[2], *pids]


def _own(where: Dispatcher, number: int) -> Dispatcher:
    """A dispatcher of the same kind with room for a further process: a process that waits for an
    answer keeps its thread.
    """
    match where:
        case Threads():
            return Threads(f"another-{number}")
        case Threads():
            return Threads("others", 3)
    return where


@promise("C5")
async def test_a_call_to_the_waiting_parent_from_an_init_is_refused(where: Dispatcher) -> None:
    class Asking(Doer):
        def init(self) -> None:
            self.wait_for(self.call(self.parent, "all"))

    class AsyncAsking(Doer):
        async def init(self) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
            await self.call(self.parent, "all")

    async with running_node() as node:
        parent = await node.spawn(waiting(where), dispatcher=_own(where, 0))

        with pytest.raises(TargetDownError) as caught:
            await node.call(
                parent,
                lambda me: me.spawn(
                    AsyncAsking if where == LOOP else Asking, dispatcher=_own(where, 1)
                ),
            )

        assert isinstance(caught.value.__cause__, InitError)
        assert isinstance(caught.value.__cause__.__cause__, DeadlockError)


@promise_of_target("C6")
async def test_tasks_and_threads_may_call(where: Dispatcher, place: Place) -> None:
    async with place.nodes() as (node, there):
        pid = await there.spawn(Doer, dispatcher=where)
        node.send(pid, "hello")

        from_a_task = await node.call(pid, "all")
        from_a_thread = await trio.to_thread.run_sync(node.call_from_thread, pid, "all")

        assert from_a_task == from_a_thread == ["hello"]


@promise_of_target("C1", "P4")
async def test_a_call_sees_every_message_that_was_sent_before_it(
    where: Dispatcher, place: Place
) -> None:
    """A process that sleeps may be asked without a turn of the scheduler, and only a sleeping
    process.
    """
    async with place.nodes() as (node, there):
        callee = await there.spawn(Doer, dispatcher=where)
        caller = await node.spawn(waiting(where), dispatcher=_own(where, 0))

        async def send_and_ask(me: Doer) -> list[int]:
            seen = []
            for number in range(20):
                me.send(callee, number)
                seen.append(len(await me.call(callee, "all")))
                seen.append(len(await me.call(callee, "all")))
            return seen

        counts = await node.call(caller, send_and_ask, timeout=25)

        assert counts == [count for number in range(1, 21) for count in (number, number)]


@promise_of_target("C1")
async def test_a_forwarded_call_is_answered_to_its_caller(where: Dispatcher, place: Place) -> None:
    class Forwarding(Doer):
        def handle_call(self, request: Any, caller: Caller) -> object:
            return self.forward("answering", request, caller)

        def handle_message(self, message: Any, sender: Any) -> None:
            self.forward("answering", message, sender)

    async with place.nodes() as (node, there):
        answering = await there.spawn(Answering, dispatcher=where, name="answering")
        pid = await there.spawn(Forwarding, dispatcher=where)
        caller = await node.spawn(waiting(where), dispatcher=_own(where, 1))

        answer = await node.call(caller, lambda me: me.call(pid, "who"))
        await node.call(caller, lambda me: me.send(pid, "message"))
        await eventually(lambda: there.process_info(answering).messages_in == 2)

        assert answer == caller


# -- links and monitors ----------------------------------------------------------------------------


@promise_of_target("L1")
async def test_links_and_monitors_reach_every_kind_of_target(
    where: Dispatcher, place: Place
) -> None:
    async with place.nodes() as (node, there):
        target = await there.spawn(Doer, dispatcher=where, name="target")
        alias = await node.call(target, lambda me: me.create_alias())
        await node.call(target, lambda me: me.register_event("event"))
        watcher = await node.spawn(Doer, dispatcher=where)

        def watch(me: Doer) -> None:
            me.trap_exit = True
            for to in (target, Name("target", there.name), alias, EventName("event", there.name)):
                me.monitor(to)
                me.link(to)
            me.monitor(NodeName("far@host"))

        await node.call(watcher, watch)
        await node.call(target, lambda me: me.stop("over"))
        await eventually(lambda: target not in there.processes())
        await place.arrived(node, there)

        got = await heard(node, watcher)
        assert len([one for one in got if isinstance(one, Exit)]) == 4
        assert len([one for one in got if isinstance(one, Down)]) == 5
        assert {one.reason for one in got if isinstance(one, Exit)} == {Custom("over")}


@promise_of_target("L2")
async def test_monitoring_or_linking_an_ended_process_notifies_at_once(
    where: Dispatcher, place: Place
) -> None:
    async with place.nodes() as (node, there):
        gone, pid = await there.spawn(Recorder), await node.spawn(Doer, dispatcher=where)
        process = process_of(node, pid)
        node.kill(gone)
        await there.wait_ended(gone)

        await node.call(pid, lambda me: me.monitor(gone))
        await place.arrived(node, there)
        downs = await heard(node, pid)
        await node.call(pid, lambda me: me.link(gone))
        await process.wait_gone()

        assert downs == [Down(gone, NoProcess())]
        assert process.reason == NoProcess()


@promise_of_target("L3")
async def test_a_removed_relation_drops_its_waiting_notification(
    where: Dispatcher, place: Place
) -> None:
    async with place.nodes() as (node, there):
        watched = await there.spawn(Recorder)
        nobody = Name("nobody", there.name)
        watcher = await node.spawn(Doer, dispatcher=where)

        def use(me: Doer) -> None:
            me.monitor(watched)
            me.demonitor(watched)
            me.link(watched)
            me.unlink(watched)
            # Their news is in the mailbox already.
            me.monitor(nobody)
            me.link(nobody)
            me.demonitor(nobody)
            me.unlink(nobody)

        await node.call(watcher, use)
        node.kill(watched)
        await there.wait_ended(watched)
        await place.arrived(node, there)

        assert await heard(node, watcher) == []
        assert node.info().relations == there.info().relations == 0


@promise_of_target("L1", "L3")
async def test_giving_up_a_name_or_an_alias_notifies_monitors(
    where: Dispatcher, place: Place
) -> None:
    async with place.nodes() as (node, there):
        holder = await there.spawn(Doer, dispatcher=where, name="name")
        alias = await node.call(holder, lambda me: me.create_alias())
        watcher = await node.spawn(Doer, dispatcher=where)
        await node.call(
            watcher, lambda me: (me.monitor(Name("name", there.name)), me.monitor(alias))
        )

        await node.call(holder, lambda me: (me.unregister(), me.delete_alias(alias)))

        await place.arrived(node, there)

        assert [one.reason for one in await heard(node, watcher)] == [Unregistered()] * 2


# -- supervision -----------------------------------------------------------------------------------


@promise("V1", "V6")
async def test_a_supervisor_starts_a_child_again_without_overlap(where: Dispatcher) -> None:
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


@promise("V1", "V5")
async def test_all_children_stop_in_reverse_order_and_start_in_order_after_a_failure(
    where: Dispatcher,
) -> None:
    log: list[str] = []

    class Labelled(Actor):
        def __init__(self, label: str) -> None:
            self.label = label

        def init(self) -> None:
            log.append(f"+{self.label}")

        def handle_message(self, message: Any, sender: Any) -> None:
            raise Failed

        def terminate(self, reason: Reason) -> None:
            log.append(f"-{self.label}")

    async with running_node() as node:
        children = [ChildSpec(label, Labelled, label, dispatcher=where) for label in "abc"]
        supervisor = await node.supervise(children, strategy=Strategy.ALL_FOR_ONE)

        node.send("b", "fail")
        await eventually(lambda: len(log) == 9)
        node.send_exit(supervisor.pid)
        await eventually(lambda: len(log) == 12)

        assert log == ["+a", "+b", "+c", "-b", "-c", "-a", "+a", "+b", "+c", "-c", "-b", "-a"]


@promise("V4", "P5")
async def test_the_failing_message_among_many_is_reported(
    where: Dispatcher,
) -> None:
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
        await node.supervise(
            [ChildSpec("picky", Picky, dispatcher=where, decide=lambda _: Decision.RESUME)]
        )

        for message in (1, 2, 3.0, 4, "five"):
            node.send("picky", message)

        assert await heard(node, "picky") == [1, 2, 4, "five"]
        assert node.process_info("picky").messages_in == 6
        await wait_all_tasks_blocked()
        assert records == [("handle_message", "float")]


@promise("V4")
async def test_a_failure_with_the_decision_stop_ends_the_child_for_good(where: Dispatcher) -> None:
    def fail(_: Doer) -> None:
        raise Failed

    async with running_node() as node:
        await node.supervise(
            [
                ChildSpec("doer", Doer, dispatcher=where, decide=lambda _: Decision.STOP),
                ChildSpec("other", Doer),
            ]
        )
        pid = node.whereis("doer")
        assert pid is not None

        node.send(pid, fail)
        await eventually(lambda: pid not in node.processes())
        await wait_all_tasks_blocked()

        assert node.whereis("doer") is None
        assert node.whereis("other") is not None


@promise("V6")
async def test_the_successor_handles_a_kept_mailbox_in_order(
    where: Dispatcher,
) -> None:
    def fail(_: Doer) -> None:
        raise Failed

    async with running_node() as node:
        await node.supervise([ChildSpec("doer", Doer, dispatcher=where, mailbox=Fate.KEEP)])
        await node.suspend("doer")
        for message in (fail, 1, 2, 3):
            node.send("doer", message)

        await node.resume("doer")

        assert await node.service("doer").call("all", retry=True) == [1, 2, 3]


@promise_of_target("V9")
async def test_a_callback_goes_through_a_service_to_the_successor(
    where: Dispatcher, place: Place
) -> None:
    def fail(_: Doer) -> None:
        raise Failed

    async def ask(me: Doer) -> list[Any]:
        service = me.service("doer", there.name)
        service.send("before")
        service.send(fail)
        return [
            await service.call("all", retry=True),
            service.send("after"),
            await service.call("all"),
        ]

    async with place.nodes() as (node, there):
        await there.supervise(
            [ChildSpec("doer", Doer, dispatcher=_own(where, 0), mailbox=Fate.KEEP)]
        )
        pid = await node.spawn(waiting(where), dispatcher=_own(where, 1))

        first, sent, second = await node.call(pid, ask, timeout=25)

        assert first == []
        assert sent
        assert second == ["after"]


# -- timers, events, order -------------------------------------------------------------------------


@promise("P7")
async def test_timers_armed_in_a_callback_fire_and_end_with_their_process(
    where: Dispatcher,
) -> None:
    def arm(me: Doer) -> None:
        me.send_after(0.01, me.pid, "once")
        me.send_every(0.01, me.pid, "again")
        me.send_after(1000.0, me.pid, "never")
        assert me.send_after(1000.0, me.pid, "cancelled").cancel()

    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)
        kept: list[Any] = await node.call(pid, lambda me: me.heard)

        await node.call(pid, arm)
        await eventually(lambda: kept.count("again") >= 2 and "once" in kept)
        before = node.info().timers
        await node.call(pid, lambda me: me.stop())
        await eventually(lambda: pid not in node.processes())

        assert before == 2
        assert kept.count("once") == 1
        assert node.info().timers == 0


@promise_of_target("M2", "L1")
async def test_events_reach_subscribers_in_order_and_their_end_is_notified(
    where: Dispatcher, place: Place
) -> None:
    async with place.nodes() as (node, there):
        producer = await there.spawn(Doer, dispatcher=where)
        subscriber = await node.spawn(Doer, dispatcher=where)

        await node.call(
            producer, lambda me: me.register_event("news", buffer=2, notify=True) and None
        )
        taken = await node.call(
            producer, lambda me: [me.publish("news", number) for number in range(3)]
        )
        recent = await node.call(
            subscriber,
            lambda me: [one.message for one in me.subscribe(EventName("news", there.name))],
        )
        await node.call(
            producer, lambda me: [me.publish("news", number) for number in range(3, 50)] and None
        )
        await place.arrived(node, there)
        before = await heard(node, subscriber)
        await node.call(producer, lambda me: me.unregister_event("news"))

        await place.arrived(node, there)

        # Publications that an event of another node keeps come as events.
        assert (taken, recent) == ([0, 0, 0], [] if place.is_abroad else [1, 2])
        assert before == list(range(1 if place.is_abroad else 3, 50))
        assert (await heard(node, subscriber))[-1] == Down(
            EventName("news", there.name), Unregistered()
        )
        assert [type(one).__name__ for one in await heard(node, producer)] == ["EventStarted"]


@promise_of_target("M3", "P7")
async def test_messages_of_a_callback_arrive_before_the_end_of_its_process(
    where: Dispatcher, place: Place
) -> None:
    async with place.nodes() as (node, there):
        receiver = await there.spawn(Recorder)

        def send_and_end(me: Doer) -> None:
            for number in range(50):
                me.send(receiver, number)
            raise Failed

        pid = await node.spawn(Doer, dispatcher=where)
        await node.call(await node.spawn(Doer), lambda me: me.link(receiver))
        node.send(pid, send_and_end)
        await node.wait_ended(pid)

        await place.arrived(node, there)

        assert await node.call(receiver, "all") == list(range(50))


# -- behaviours, and looking inside ----------------------------------------------------------------


@promise("P4")
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
        await eventually(lambda: bool(process_of(node, machine).postponed))
        node.send(machine, "go")
        await eventually(lambda: len(log) == 3 and bool(answers))

        is_loop = where == LOOP
        assert log == [
            ("enter", is_loop),
            ("early", is_loop),
            (StateMachine.StateTimeout("going"), is_loop),
        ]
        assert answers == ["early"]
        assert (await node.inspect(machine))["state"] == "going"


@promise("V1")
async def test_workers_of_a_pool_may_have_any_dispatcher(where: Dispatcher) -> None:
    async with running_node() as node:
        await node.spawn(Pool, PoolSpec(Doer, size=3, dispatcher=where), name="pool")

        assert await node.call("pool", lambda me: me.node.name) == node.name


@promise("S1")
async def test_the_state_can_be_read_and_replaced_and_every_callback_traced(
    where: Dispatcher,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        node.send(pid, "one")
        read = await node.get_state(pid)
        await node.replace_state(pid, lambda state: {**state, "heard": ["another"]})
        async with node.trace(pid, limit=5) as trace:
            for message in (1, 2, 3, lambda me: me.send_after(0.0, me.pid, "timer")):
                node.send(pid, message)
            entries = [entry async for entry in trace]
        await eventually(lambda: not node.info().timers)

        assert set(read) == {"heard", "log_of_test"}
        assert read["heard"] == ["one"]
        assert [(entry.callback, entry.message_type) for entry in entries] == [
            *[("handle_message", "int")] * 3,
            ("send_after", "str"),
            ("handle_message", "function"),
        ]
        assert await heard(node, pid) == ["another", 1, 2, 3, "timer"]


@promise("S2")
async def test_a_suspended_process_loses_no_message(where: Dispatcher) -> None:
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)

        await node.suspend(pid)
        for number in range(3):
            node.send(pid, number)
        told = await node.inspect(pid)
        await node.resume(pid)

        assert told["heard"] == "0"
        assert await heard(node, pid) == [0, 1, 2]
