"""StateMachine: which state handles a message, the hooks around a change, timeouts, and postponed
messages.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    BadInputError,
    CallTimeoutError,
    ChildSpec,
    Crashed,
    Down,
    InitError,
    MailboxFullError,
    Node,
    NotAllowedError,
    Overflow,
    Reject,
    StateMachine,
    TargetDownError,
    Why,
    open_node,
)
from ergo_py._core.tables.child_slot import Decision, Fate
from ergo_py.errors import BehaviourError, CallbackError, CallFailedError
from ergo_py.state_machine import MachineState, state
from tests.actors import Failed, LogKeeper, Recorder
from tests.support import process_of, running_node

Log = list[Any]


class Door(StateMachine):
    """Two states as methods; a function that it is sent runs where the message is handled."""

    def __init__(self, log: Log) -> None:
        self.log_of_test = log

    @state
    def closed(self, message: Any, sender: Any) -> object:
        return self.perform("closed", message, sender)

    @state(timeout=5.0)
    def open(self, message: Any, sender: Any) -> object:
        return self.perform("open", message, sender)

    @open.enter
    def opened(self, previous: str | None) -> None:
        self.log_of_test.append(f"{previous} -> open")

    @open.exit
    def closing(self, following: str) -> None:
        self.log_of_test.append(f"open -> {following}")

    def perform(self, where: str, message: Any, sender: Any) -> object:
        if callable(message):
            return message(self)
        self.log_of_test.append((where, message))
        return f"{message} while {where}"


Step = Callable[[Door], object]
go_open: Step = lambda me: me.become(me.open)  # noqa: E731
go_closed: Step = lambda me: me.become("closed")  # noqa: E731
later: Step = lambda me: me.postpone()  # noqa: E731


class Waiting(MachineState["Turnstile"]):
    def enter(self, previous: str | None) -> None:
        self.machine.log_of_test.append(f"{previous} -> Waiting")

    def handle(self, message: Any, sender: Any) -> object:
        match message:
            case "coin":
                self.machine.become(Unlocked)
            case "push":
                self.machine.postpone()
        return None


class Unlocked(MachineState["Turnstile"]):
    timeout = 3.0

    def __init__(self) -> None:
        self.pushes = 0

    async def handle(self, message: Any, sender: Any) -> object:
        await trio.lowlevel.checkpoint()
        match message:
            case "push":
                self.pushes += 1
            case StateMachine.StateTimeout():
                self.machine.become(Waiting)
        return self.pushes

    async def exit(self, following: str) -> None:
        await trio.lowlevel.checkpoint()
        self.machine.log_of_test.append(f"Unlocked -> {following} after {self.pushes}")


class Turnstile(StateMachine):
    states = (Waiting, Unlocked)

    def __init__(self, log: Log) -> None:
        self.log_of_test = log


# -- states ----------------------------------------------------------------------------------------


async def test_a_machine_starts_in_its_first_state_and_the_current_state_handles_messages(
    autojump_clock: MockClock,
) -> None:
    log: Log = []
    async with running_node() as node:
        door = await node.spawn(Door, log)

        for message in ("knock", go_open, "step"):
            node.send(door, message)
        await wait_all_tasks_blocked()

        assert log == [("closed", "knock"), "closed -> open", ("open", "step")]


async def test_first_state_is_entered_with_its_hook_before_spawn_returns(
    autojump_clock: MockClock,
) -> None:
    class Ajar(Door):
        async def first_state(self) -> Any:
            await trio.sleep(0.1)
            return Door.open

    log: Log = []
    async with running_node() as node:
        await node.spawn(Ajar, log)

        assert log == ["None -> open"]


async def test_an_enter_hook_of_the_first_state_that_raises_fails_the_spawn(
    autojump_clock: MockClock,
) -> None:
    class Broken(StateMachine):
        @state
        def first(self, message: Any, sender: Any) -> None: ...

        @first.enter
        def fail(self, previous: str | None) -> None:
            raise Failed

    async with running_node() as node:
        with pytest.raises(InitError) as caught:
            await node.spawn(Broken, name="broken")

        assert isinstance(caught.value.__cause__, Failed)
        assert node.whereis("broken") is None


async def test_the_return_value_of_a_state_answers_a_call(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        door = await node.spawn(Door, [])

        before = await node.call(door, "knock")
        node.send(door, go_open)
        after = await node.call(door, "knock")

        assert (before, after) == ("knock while closed", "knock while open")


async def test_a_plain_machine_is_answered_on_the_spot_as_a_plain_actor_is(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        door = await node.spawn(Door, [])
        await wait_all_tasks_blocked()

        assert process_of(node, door).inline


async def test_states_that_are_classes_live_from_entering_to_leaving(
    autojump_clock: MockClock,
) -> None:
    log: Log = []
    async with running_node() as node:
        gate = await node.spawn(Turnstile, log)

        for _ in range(2):
            for message in ("coin", "push", "push"):
                node.send(gate, message)
            await trio.sleep(4)

        assert log == [
            "None -> Waiting",
            *["Unlocked -> Waiting after 2", "Unlocked -> Waiting"] * 2,
        ]


async def test_becoming_the_current_state_leaves_and_enters_it(
    autojump_clock: MockClock,
) -> None:
    log: Log = []
    async with running_node() as node:
        door = await node.spawn(Door, log)

        node.send(door, go_open)
        node.send(door, go_open)
        await wait_all_tasks_blocked()

        assert log == ["closed -> open", "open -> open", "open -> open"]


async def test_a_rejected_call_still_changes_the_state(
    autojump_clock: MockClock,
) -> None:
    def refuse(me: Door) -> None:
        me.become("open")
        raise Reject(Failed())

    async with running_node() as node:
        door = await node.spawn(Door, [])

        with pytest.raises(Failed):
            await node.call(door, refuse)

        assert (await node.inspect(door))["state"] == "open"


async def test_inspect_shows_state_duration_postponed_messages_and_timeouts(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        door = await node.spawn(Door, [])
        for message in (go_open, later, lambda me: me.start_timeout("alarm", 9.0)):
            node.send(door, message)
        await trio.sleep(1)

        assert await node.inspect(door) == {
            "state": "open",
            "for": "1.000 s",
            "postponed": "1",
            "timeout the state's": "in 4.000 s",
            "timeout alarm": "in 8.000 s",
        }


# -- mistakes --------------------------------------------------------------------------------------


async def test_the_error_about_an_unknown_state_lists_the_known_states(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        door = await node.spawn(Door, [])
        caught: list[BadInputError] = []

        def go(me: Door) -> None:
            for wrong in ("ajar", Waiting, 7):
                with pytest.raises(BadInputError, match="a state of Door: closed, open") as raised:
                    me.become(wrong)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
                caught.append(raised.value)

        await node.call(door, go)

        assert [error.given for error in caught] == ["ajar", Waiting, 7]


async def test_a_hook_cannot_change_the_state(autojump_clock: MockClock) -> None:
    class Restless(StateMachine):
        @state
        def first(self, message: Any, sender: Any) -> None: ...

        @first.enter
        def leave(self, previous: str | None) -> None:
            self.become("first")

    async with running_node() as node:
        with pytest.raises(InitError, match="give it a timeout of 0") as caught:
            await node.spawn(Restless)

        assert isinstance(caught.value.__cause__, NotAllowedError)


def test_an_invalid_machine_class_is_refused_at_its_definition() -> None:
    def function(self: Any, message: Any, sender: Any) -> None: ...

    class Empty(MachineState[Any]):
        pass

    class Late(MachineState[Any]):
        timeout = -1.0

        def handle(self, message: Any, sender: Any) -> None: ...

    def make(**body: Any) -> None:
        type("Bad", (StateMachine,), body)

    with pytest.raises(BehaviourError, match="first_state"):
        make(init=function)
    with pytest.raises(BehaviourError, match="@state for each state"):
        make(handle_message=function)
    with pytest.raises(BehaviourError, match="another name for this state"):
        make(send=state(function))
    with pytest.raises(BehaviourError, match="def handle"):
        make(states=(Empty,))
    with pytest.raises(BehaviourError, match="a tuple of subclasses of MachineState"):
        make(states=("locked",))
    with pytest.raises(BehaviourError, match="a different name for each state"):
        make(Unlocked=state(function), states=(Unlocked,))
    with pytest.raises(BadInputError, match=r"Late\.timeout"):
        make(states=(Late,))
    with pytest.raises(BadInputError, match="state"):
        state(timeout=-1.0)


async def test_a_machine_without_states_is_refused(autojump_clock: MockClock) -> None:
    class Nothing(StateMachine):
        pass

    async with running_node() as node:
        with pytest.raises(InitError, match="a machine with states"):
            await node.spawn(Nothing)


async def test_the_error_about_a_plain_state_that_waits_suggests_async_def(
    autojump_clock: MockClock,
) -> None:
    class Sly(StateMachine):
        @state
        def first(self, message: Any, sender: Any) -> object:
            return trio.sleep(1)  # noqa: ASYNC105 - the mistake

    async with running_node() as node:
        sly = await node.spawn(Sly)

        with pytest.raises(TargetDownError) as caught:
            await node.call(sly, "anything")

        assert isinstance(caught.value.__cause__, CallbackError)
        assert "async def" in str(caught.value.__cause__)


async def test_a_resumed_machine_keeps_its_state_and_postpones_no_message(
    autojump_clock: MockClock,
) -> None:
    def fail(me: Door) -> None:
        me.become("open")
        me.postpone()
        raise Failed

    async with running_node() as node:
        await node.supervise([ChildSpec("door", Door, [], decide=lambda _: Decision.RESUME)])

        with pytest.raises(CallFailedError):
            await node.call("door", fail)

        told = await node.inspect("door")
        assert (told["state"], told["postponed"]) == ("closed", "0")


async def test_a_machine_resumed_after_a_failed_hook_can_still_change_its_state(
    autojump_clock: MockClock,
) -> None:
    class Stiff(Door):
        tries = 0

        @state
        def jammed(self, message: Any, sender: Any) -> object:
            return self.perform("jammed", message, sender)

        @jammed.exit
        def stick(self, following: str) -> None:
            Stiff.tries += 1
            if Stiff.tries == 1:
                raise Failed

        def first_state(self) -> Any:
            return "jammed"

    async with running_node() as node:
        await node.supervise([ChildSpec("door", Stiff, [], decide=lambda _: Decision.RESUME)])
        with pytest.raises(CallFailedError):
            await node.call("door", go_open)
        stuck = (await node.inspect("door"))["state"]

        await node.call("door", go_open)

        assert (stuck, (await node.inspect("door"))["state"]) == ("jammed", "open")


# -- postponed -------------------------------------------------------------------------------------


async def test_postponed_messages_come_in_order_before_waiting_messages(
    autojump_clock: MockClock,
) -> None:
    class Queue(StateMachine):
        def __init__(self, log: Log) -> None:
            self.log_of_test = log

        @state
        def busy(self, message: Any, sender: Any) -> None:
            if message == "done":
                self.become("free")
            else:
                self.postpone()

        @state
        def free(self, message: Any, sender: Any) -> None:
            self.log_of_test.append(message)

    log: Log = []
    async with running_node() as node:
        queue = await node.spawn(Queue, log)

        for message in (1, 2, "done", 3):
            node.send(queue, message)
        await wait_all_tasks_blocked()

        assert log == [1, 2, 3]


async def test_a_postponed_call_is_answered_by_a_later_state(autojump_clock: MockClock) -> None:
    def ask(me: Door) -> object:
        if me.state_name == "closed":
            me.postpone()
        return me.state_name

    async with running_node() as node, trio.open_nursery() as nursery:
        door = await node.spawn(Door, [])
        answers: list[object] = []

        async def call() -> None:
            answers.append(await node.call(door, ask))

        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        waiting = list(answers)
        node.send(door, go_open)
        await wait_all_tasks_blocked()

        assert (waiting, answers) == ([], ["open"])


async def test_at_the_end_postponed_calls_fail_and_messages_become_dead_letters(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node, trio.open_nursery() as nursery:
        door = await node.spawn(Door, [])

        async def call() -> None:
            with pytest.raises(TargetDownError):
                await node.call(door, later)

        nursery.start_soon(call)
        node.send(door, later)
        await wait_all_tasks_blocked()
        node.send_exit(door)

        await node.wait_ended(door)

        assert [(letter.message_type, letter.why) for letter in node.dead_letters()] == [
            ("function", Why.UNHANDLED_AT_EXIT)
        ]


async def test_a_child_that_keeps_its_mailbox_keeps_postponed_messages(
    autojump_clock: MockClock,
) -> None:
    log: Log = []

    def once(me: Door) -> None:
        log.append(me.pid)
        me.postpone()

    async with running_node() as node:
        await node.supervise([ChildSpec("door", Door, [], mailbox=Fate.KEEP)])
        node.send("door", once)
        await wait_all_tasks_blocked()

        node.kill("door")
        await wait_all_tasks_blocked()

        assert len(set(log)) == 2


@pytest.mark.counted
async def test_a_machine_with_a_bound_postpones_no_more_messages_than_that(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        door = await node.spawn(Door, [], mailbox_size=2)
        for _ in range(2):
            node.send(door, later)
            await wait_all_tasks_blocked()

        with pytest.raises(MailboxFullError):
            await node.call(door, later)
        node.send(door, later)
        await wait_all_tasks_blocked()

        assert (await node.inspect(door))["postponed"] == "2"
        assert [letter.why for letter in node.dead_letters()] == [Why.FULL]


async def test_a_postponed_call_that_timed_out_does_not_disturb_the_machine(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        door = await node.spawn(Door, [])

        with pytest.raises(CallTimeoutError):
            await node.call(door, later, timeout=1)
        node.send(door, go_open)

        assert await node.call(door, "knock") == "knock while open"


async def test_a_down_message_can_be_postponed(autojump_clock: MockClock) -> None:
    class Watcher(Door):
        def perform(self, where: str, message: Any, sender: Any) -> object:
            if isinstance(message, Down) and where == "closed":
                self.postpone()
                return None
            return super().perform(
                where, "it is down" if isinstance(message, Down) else message, sender
            )

    log: Log = []
    async with running_node() as node:
        watched = await node.spawn(Recorder)
        watcher = await node.spawn(Watcher, log)
        node.send(watcher, lambda me: me.monitor(watched))
        await wait_all_tasks_blocked()

        node.kill(watched)
        await node.wait_ended(watched)
        node.send(watcher, go_open)
        await wait_all_tasks_blocked()

        assert log == ["closed -> open", ("open", "it is down")]


# -- timeouts --------------------------------------------------------------------------------------


async def test_a_state_timeout_fires_only_if_the_machine_stays_in_the_state(
    autojump_clock: MockClock,
) -> None:
    log: Log = []
    async with running_node() as node:
        door = await node.spawn(Door, log)

        node.send(door, go_open)
        await trio.sleep(4)
        node.send(door, go_closed)
        await trio.sleep(10)
        node.send(door, go_open)
        await trio.sleep(5.5)

        assert log == [
            "closed -> open",
            "open -> closed",
            "closed -> open",
            ("open", StateMachine.StateTimeout("open")),
        ]


async def test_an_event_timeout_fires_only_if_no_message_comes(autojump_clock: MockClock) -> None:
    log: Log = []
    async with running_node() as node:
        door = await node.spawn(Door, log)

        node.send(door, lambda me: me.event_timeout(2.0))
        await trio.sleep(1)
        node.send(door, "knock")
        await trio.sleep(5)
        node.send(door, lambda me: me.event_timeout(2.0))
        await trio.sleep(2.5)

        assert log == [("closed", "knock"), ("closed", StateMachine.EventTimeout("closed"))]


async def test_a_named_timeout_outlives_a_state_and_can_be_restarted_and_cancelled(
    autojump_clock: MockClock,
) -> None:
    log: Log = []
    async with running_node() as node:
        door = await node.spawn(Door, log)

        node.send(door, lambda me: me.start_timeout("alarm", 2.0, "ring"))
        node.send(door, lambda me: me.start_timeout("other", 1.0))
        node.send(door, go_open)
        cancelled = [await node.call(door, lambda me: me.cancel_timeout("other")) for _ in range(2)]
        await trio.sleep(1)
        node.send(door, lambda me: me.start_timeout("alarm", 2.0, "ring"))
        await trio.sleep(1.5)
        early = len(log)
        await trio.sleep(1)

        assert cancelled == [True, False]
        assert log[early:] == [("open", StateMachine.NamedTimeout("alarm", "ring"))]


async def test_a_fired_timeout_can_be_cancelled_before_it_is_handled(
    autojump_clock: MockClock,
) -> None:
    class Slow(Door):
        @state
        async def slow(self, message: Any, sender: Any) -> object:
            if message == "wait":
                await trio.sleep(3)
                self.cancel_timeout("alarm")
                return None
            return self.perform("slow", message, sender)

        def first_state(self) -> Any:
            self.start_timeout("alarm", 1.0)
            return "slow"

    log: Log = []
    async with running_node() as node:
        slow = await node.spawn(Slow, log)

        node.send(slow, "wait")
        await trio.sleep(5)

        assert log == []


async def test_a_timeout_is_neither_refused_nor_displaced_by_a_full_mailbox(
    autojump_clock: MockClock,
) -> None:
    class Busy(Door):
        @state
        async def busy(self, message: Any, sender: Any) -> object:
            if message == "wait":
                await trio.sleep(3)
                return None
            return self.perform("busy", message, sender)

        def first_state(self) -> Any:
            return "busy"

    log: Log = []
    async with running_node() as node:
        busy = await node.spawn(Busy, log, mailbox_size=1, overflow=Overflow.DROP_OLDEST)
        node.send(busy, lambda me: me.start_timeout("alarm", 1.0))
        await wait_all_tasks_blocked()
        node.send(busy, "wait")
        await trio.sleep(2)

        for number in range(3):
            node.send(busy, number)
        await trio.sleep(2)

        assert log == [("busy", StateMachine.NamedTimeout("alarm")), ("busy", 2)]


async def test_the_log_of_a_crash_in_a_timeout_names_the_timeout(
    autojump_clock: MockClock,
) -> None:
    class Fragile(Door):
        def perform(self, where: str, message: Any, sender: Any) -> object:
            if isinstance(message, StateMachine.StateTimeout):
                raise Failed
            return super().perform(where, message, sender)

    records: Log = []

    async with running_node() as node:
        node.add_logger(await node.spawn(LogKeeper, records), "error")
        door = await node.spawn(Fragile, [])
        node.send(door, go_open)

        reason = await node.wait_ended(door)
        await wait_all_tasks_blocked()

        assert isinstance(reason, Crashed)
        assert [(one.fields["callback"], one.fields["message_type"]) for one in records] == [
            ("handle_message", "StateMachine.StateTimeout")
        ]


async def test_a_bad_number_of_seconds_or_name_is_refused(autojump_clock: MockClock) -> None:
    def wrong(me: Door) -> None:
        with pytest.raises(BadInputError, match=r"state_timeout\(seconds\)"):
            me.state_timeout(-1)
        with pytest.raises(BadInputError, match="name"):
            me.start_timeout("", 1.0)

    async with running_node() as node:
        door = await node.spawn(Door, [])

        await node.call(door, wrong)

        assert "timeout the state's" not in await node.inspect(door)


# -- against a table -------------------------------------------------------------------------------

STATES = ("a", "b", "c")
EVENTS = ("x", "y", "z")
NAMES = ("n", "m")
TICK = 0.25
Action = tuple[str, *tuple[Any, ...]]
Table = dict[tuple[str, str], list[Action]]

delays = st.integers(1, 6).map(lambda ticks: ticks * TICK)
arming = st.one_of(
    st.tuples(st.just("state_timeout"), delays),
    st.tuples(st.just("event_timeout"), delays),
    st.tuples(st.just("start_timeout"), st.sampled_from(NAMES), delays),
    st.tuples(st.just("cancel_timeout"), st.sampled_from(NAMES)),
)
# Not both at once: a message that is postponed by every state it drives the machine to would go
# round forever.
moving = st.one_of(
    st.tuples(st.just("become"), st.sampled_from(STATES)),
    st.tuples(st.just("postpone")),
    st.tuples(st.just("stay")),
)
cells = st.tuples(st.lists(arming, max_size=2), moving).map(lambda cell: [*cell[0], cell[1]])
inputs = (*EVENTS, "state", "event", *NAMES)
tables = st.fixed_dictionaries({(one, what): cells for one in STATES for what in inputs})
programs = st.lists(
    st.one_of(
        st.lists(st.sampled_from(EVENTS), min_size=1, max_size=4),
        st.sampled_from(EVENTS),
        st.integers(1, 4),
    ),
    max_size=12,
)
"""Several events sent together, an event that is a call, or so many ticks of the clock."""


def label(message: Any) -> str:
    match message:
        case StateMachine.StateTimeout():
            return "state"
        case StateMachine.EventTimeout():
            return "event"
        case StateMachine.NamedTimeout(name):
            return name
    return str(message)


class Tabular(StateMachine):
    """Follows its table."""

    def __init__(self, table: Table, log: Log) -> None:
        self.table = table
        self.log_of_test = log

    def look_up(self, where: str, message: Any, sender: Any) -> str:
        what = label(message)
        self.log_of_test.append((where, what))
        for verb, *args in self.table[where, what]:
            if verb != "stay" and not (verb == "postpone" and what not in EVENTS):
                getattr(self, verb)(*args)
        return f"{what} in {where}"

    @state
    def a(self, message: Any, sender: Any) -> str:
        return self.look_up("a", message, sender)

    @state(timeout=4 * TICK)
    def b(self, message: Any, sender: Any) -> str:
        return self.look_up("b", message, sender)

    @state
    async def c(self, message: Any, sender: Any) -> str:
        await trio.lowlevel.checkpoint()
        return self.look_up("c", message, sender)

    @b.enter
    def into_b(self, previous: str | None) -> None:
        self.log_of_test.append(("enter b", previous))

    @c.exit
    async def out_of_c(self, following: str) -> None:
        await trio.lowlevel.checkpoint()
        self.log_of_test.append(("exit c", following))


class Model:
    """The same, without processes: a queue, and timers in a list."""

    def __init__(self, table: Table) -> None:
        self.table, self.now, self.at = table, 0.0, "a"
        self.log: Log = []
        self.queue: deque[tuple[str, list[str] | None]] = deque()
        self.postponed: list[tuple[str, list[str] | None]] = []
        self.timers: dict[str, float] = {}

    def put(self, event: str, answers: list[str] | None = None) -> None:
        self.queue.append((event, answers))
        while self.queue:
            self.handle(*self.queue.popleft())

    def tick(self) -> None:
        self.now += TICK
        # Timers that are due at the same moment fire together, in the order of arming; a timer that
        # another cancels does not come.
        due = [(key, at) for key, at in self.timers.items() if at <= self.now]
        for key, at in due:
            if self.timers.get(key) == at:
                del self.timers[key]
                self.put(key)

    def handle(self, event: str, answers: list[str] | None) -> None:
        self.timers.pop("event", None)
        self.log.append((self.at, event))
        following = None
        for verb, *args in self.table[self.at, event]:
            if verb in ("state_timeout", "event_timeout"):
                self.arm(verb.split("_")[0], args[0])
            elif verb == "start_timeout":
                self.arm(args[0], args[1])
            elif verb == "cancel_timeout":
                self.timers.pop(args[0], None)
            elif verb == "become":
                following = args[0]
            elif verb == "postpone" and event in EVENTS:
                self.postponed.append((event, answers))
                answers = None
        if answers is not None:
            answers.append(f"{event} in {self.at}")
        if following is not None:
            self.move(following)

    def move(self, following: str) -> None:
        if self.at == "c":
            self.log.append(("exit c", following))
        self.timers.pop("state", None)
        previous, self.at = self.at, following
        if following == "b":
            self.arm("state", 4 * TICK)
            self.log.append(("enter b", previous))
        self.queue.extendleft(reversed(self.postponed))
        self.postponed = []

    def arm(self, key: str, delay: float) -> None:
        self.timers.pop(key, None)
        self.timers[key] = self.now + delay


async def compare(table: Table, program: list[Any], clock: MockClock) -> None:
    log: Log = []
    model = Model(table)
    expected: list[list[str]] = []
    answered: list[list[str]] = []

    async def call(node: Node, event: str, answer: list[str]) -> None:
        try:
            answer.append(await node.call("machine", event, timeout=None))
        except TargetDownError:
            return  # postponed until the end

    async with trio.open_nursery() as nursery, open_node(watchdog=None, log_output="none") as node:
        await node.spawn(Tabular, table, log, name="machine")
        await wait_all_tasks_blocked()
        for step in program:
            if isinstance(step, list):
                for event in step:
                    node.send("machine", event)
                    model.put(event)
                await wait_all_tasks_blocked()
            elif isinstance(step, str):
                expected.append([])
                answered.append([])
                nursery.start_soon(call, node, step, answered[-1])
                model.put(step, expected[-1])
                await wait_all_tasks_blocked()
            else:
                for _ in range(step):
                    clock.jump(TICK)
                    await wait_all_tasks_blocked()
                    model.tick()
            assert log == model.log
            assert answered == expected
            told = await node.inspect("machine")
            assert (told["state"], told["postponed"]) == (model.at, str(len(model.postponed)))
            assert sum(key.startswith("timeout") for key in told) == len(model.timers)


@given(tables, programs)
def test_a_machine_follows_its_table(table: Table, program: list[Any]) -> None:
    clock = MockClock()

    trio.run(compare, table, program, clock, clock=clock)
