"""The kernel's part in supervision: decisions about failures, mailboxes handed on, callbacks around
restarts.
"""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Backoff,
    BadInputError,
    CallTimeoutError,
    ChildSpec,
    Crashed,
    Killed,
    MailboxFullError,
    Node,
    Normal,
    Reason,
    RestartPolicy,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
    Why,
)
from ergo_py._core.tables.child_slot import ChildSlot, Rules
from ergo_py._core.vocabulary.info import Phase
from ergo_py.errors import CallFailedError
from ergo_py.supervision import Decision, Fate, Redirect
from tests.actors import Failed, Recorder
from tests.supervised import Child, Deaf, Fragile, Log, crash, info_of, phases
from tests.support import process_of, running_node

# -- decisions -------------------------------------------------------------------------------------


async def test_resume_keeps_the_process_its_state_and_its_mailbox() -> None:
    log: Log = []
    async with running_node() as node:
        tree = await node.supervise(
            [ChildSpec("a", Child, log, "a", decide=lambda error: Decision.RESUME)]
        )
        pid = node.whereis("a")
        node.send("a", 1)
        node.send("a", Failed("x"))
        node.send("a", 2)

        heard = await node.call("a", "what")

        assert heard == [1, 2]
        assert node.whereis("a") == pid
        assert log == ["+a"]
        assert info_of(tree, "a").resumed == 1
        assert info_of(tree, "a").restarts == 0


@pytest.mark.parametrize("inline", [True, False])
async def test_the_caller_of_a_child_that_resumes_gets_the_error_at_once(inline: bool) -> None:
    async with running_node(inline_calls=inline) as node:
        await node.supervise([ChildSpec("a", Child, [], "a", decide=lambda error: Decision.RESUME)])

        with pytest.raises(CallFailedError) as caught:
            await node.call("a", Failed("on this"), timeout=None)

        assert isinstance(caught.value.__cause__, Failed)
        assert await node.call("a", "still there?") == []


async def test_a_child_that_fails_on_every_message_lets_other_tasks_run() -> None:
    class Glutton(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            self.send(self.pid, message)
            raise Failed

    async with running_node() as node:
        await node.supervise([ChildSpec("glutton", Glutton, decide=lambda error: Decision.RESUME)])

        node.send("glutton", "go")

        for _ in range(100):
            await trio.lowlevel.checkpoint()
        assert len(node.process_info("glutton").history) < 100


async def test_decide_decides_about_each_kind_of_exception() -> None:
    def decide(error: Exception) -> Any:
        return {ValueError: Decision.RESUME, KeyError: Decision.RESTART, OSError: Decision.STOP}[
            type(error)
        ]

    log: Log = []
    async with running_node() as node:
        specs = [ChildSpec("a", Child, log, "a", decide=decide), ChildSpec("b", Child, log, "b")]
        tree = await node.supervise(specs)

        node.send("a", ValueError())
        await wait_all_tasks_blocked()
        assert log == ["+a", "+b"]
        node.send("a", KeyError())
        await wait_all_tasks_blocked()
        assert log == ["+a", "+b", "-a", "+a"]
        node.send("a", OSError())
        await wait_all_tasks_blocked()

        assert phases(tree) == {"a": Phase.FAILED, "b": Phase.RUNNING}


async def test_escalate_ends_the_supervisor_with_the_reason_of_the_child() -> None:
    log: Log = []
    async with running_node() as node:
        specs = [
            ChildSpec("a", Child, log, "a", decide=lambda error: Decision.ESCALATE),
            ChildSpec("b", Child, log, "b"),
        ]
        tree = await node.supervise(specs)
        process = process_of(node, tree.pid)

        await crash(node, "a")

        assert process.reason == Crashed(Failed("a"))
        assert log == ["+a", "+b", "-a", "-b"]


async def test_decide_is_not_called_for_a_kill() -> None:
    log: Log = []
    async with running_node() as node:
        tree = await node.supervise(
            [ChildSpec("a", Child, log, "a", decide=lambda error: Decision.STOP)]
        )

        node.kill("a")
        await wait_all_tasks_blocked()

        assert phases(tree) == {"a": Phase.RUNNING}


@pytest.mark.parametrize(
    "decide", [lambda error: 1 / 0, lambda error: "resume"], ids=["raises", "returns nonsense"]
)
async def test_a_decide_that_fails_means_restart(decide: Any) -> None:
    log: Log = []
    async with running_node() as node:
        tree = await node.supervise([ChildSpec("a", Child, log, "a", decide=decide)])

        await crash(node, "a")

        assert phases(tree) == {"a": Phase.RUNNING}
        assert info_of(tree, "a").reason == Crashed(Failed("a"))


async def test_decide_is_also_called_for_a_start_that_fails() -> None:
    log: Log = []
    async with running_node() as node:
        specs = [
            ChildSpec(
                "a",
                Fragile,
                log,
                [True],
                "a",
                decide=lambda error: Decision.RESTART if error.args == ("a",) else Decision.STOP,
            ),
            ChildSpec("b", Child, log, "b"),
        ]
        tree = await node.supervise(specs)

        await crash(node, "a")

        assert phases(tree) == {"a": Phase.FAILED, "b": Phase.RUNNING}
        assert log.count("+a") == 2


# -- mailboxes -------------------------------------------------------------------------------------


class Held(Actor):
    """Waits for its gate in a message and then fails, so that others queue; notes its messages."""

    def __init__(self, heard: Log, gate: trio.Event) -> None:
        self.heard = heard
        self.gate = gate

    async def handle_message(self, message: Any, sender: Any) -> None:
        if message == "wait and fail":
            await self.gate.wait()
            raise Failed
        self.heard.append(message)

    async def handle_call(self, request: Any, caller: Any) -> Any:
        self.heard.append(request)
        return f"answer to {request}"


async def fill_and_fail(node: Node, gate: trio.Event) -> list[Any]:
    """Have the child fail with two messages and a call in its mailbox; returns the outcome of the
    call.
    """
    outcome: list[Any] = []

    async def call() -> None:
        try:
            outcome.append(await node.call("held", "call"))
        except TargetDownError as error:
            outcome.append(error)

    async with trio.open_nursery() as nursery:
        node.send("held", "wait and fail")
        node.send("held", 1)
        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        node.send("held", 2)
        gate.set()
        await wait_all_tasks_blocked()
    return outcome


async def test_by_default_unhandled_messages_of_a_child_are_dead_letters() -> None:
    heard, gate = list[Any](), trio.Event()
    async with running_node() as node:
        await node.supervise([ChildSpec("held", Held, heard, gate)])

        outcome = await fill_and_fail(node, gate)

        assert heard == []
        assert isinstance(outcome[0], TargetDownError)
        assert [letter.why for letter in node.dead_letters()] == [Why.UNHANDLED_AT_EXIT] * 2


async def test_kept_messages_and_calls_continue_with_the_successor_in_order() -> None:
    heard, gate = list[Any](), trio.Event()
    async with running_node() as node:
        await node.supervise([ChildSpec("held", Held, heard, gate, mailbox=Fate.KEEP)])

        outcome = await fill_and_fail(node, gate)

        assert heard == [1, "call", 2]
        assert outcome == ["answer to call"]
        assert node.dead_letters() == []


async def test_a_kept_call_that_the_successor_defers_is_answered_by_its_end() -> None:
    heard, gate = list[Any](), trio.Event()

    class Promising(Held):
        async def handle_call(self, request: Any, caller: Any) -> Any:
            self.heard.append(request)
            return NO_REPLY

    async with running_node() as node:
        await node.supervise([ChildSpec("held", Promising, heard, gate, mailbox=Fate.KEEP)])

        async with trio.open_nursery() as nursery:
            node.send("held", "wait and fail")
            nursery.start_soon(kill_when, node, heard, gate)
            with trio.fail_after(30), pytest.raises(TargetDownError):
                await node.call("held", "call", timeout=None)

        assert heard == ["call"]


async def kill_when(node: Node, heard: Log, gate: trio.Event) -> None:
    """Have the first process fail, and kill its successor once it has the call."""
    await wait_all_tasks_blocked()
    gate.set()
    await wait_all_tasks_blocked()
    assert heard == ["call"]
    node.kill("held")


async def test_kept_messages_outlast_a_start_that_fails(
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard, gate, successes = list[Any](), trio.Event(), [True, False, False, True]

    class Unlucky(Held):
        async def init(self) -> None:
            if not successes.pop(0):
                raise Failed

    async with running_node() as node:
        backoff = Backoff(1.0, 1.0)
        await node.supervise(
            [ChildSpec("held", Unlucky, heard, gate, mailbox=Fate.KEEP, backoff=backoff)],
            intensity=9,
        )

        outcome = await fill_and_fail(node, gate)

        assert heard == [1, "call", 2]
        assert outcome == ["answer to call"]


async def test_kept_messages_of_a_child_that_does_not_come_back_are_dead_letters() -> None:
    heard, gate = list[Any](), trio.Event()
    async with running_node() as node:
        specs = [
            ChildSpec(
                "held", Held, heard, gate, mailbox=Fate.KEEP, restart=RestartPolicy.TEMPORARY
            ),
            ChildSpec("b", Child, []),
        ]
        await node.supervise(specs)

        outcome = await fill_and_fail(node, gate)

        assert heard == []
        assert isinstance(outcome[0], TargetDownError)
        assert len(node.dead_letters()) == 2


async def test_kept_messages_of_a_supervisor_that_gives_up_are_dead_letters() -> None:
    heard, gate = list[Any](), trio.Event()
    async with running_node() as node:
        await node.supervise([ChildSpec("held", Held, heard, gate, mailbox=Fate.KEEP)], intensity=0)

        outcome = await fill_and_fail(node, gate)

        assert heard == []
        assert isinstance(outcome[0], TargetDownError)
        assert len(node.dead_letters()) == 2


async def test_kept_messages_survive_the_restart_of_the_supervisor() -> None:
    heard, gate = list[Any](), trio.Event()
    async with running_node() as node:
        inner = SupervisorSpec(
            [ChildSpec("held", Held, heard, gate, mailbox=Fate.KEEP)], intensity=0
        )
        await node.supervise([ChildSpec("inner", Supervisor, inner)])

        outcome = await fill_and_fail(node, gate)

        assert heard == [1, "call", 2]
        assert outcome == ["answer to call"]


async def test_dropped_messages_are_counted_and_calls_are_answered() -> None:
    heard, gate = list[Any](), trio.Event()
    async with running_node() as node:
        tree = await node.supervise([ChildSpec("held", Held, heard, gate, mailbox=Fate.DROP)])

        outcome = await fill_and_fail(node, gate)

        assert heard == []
        assert isinstance(outcome[0], TargetDownError)
        assert node.dead_letters() == []
        assert info_of(tree, "held").dropped == 2


async def test_redirected_messages_and_calls_go_to_the_other_process() -> None:
    heard, gate, elsewhere = list[Any](), trio.Event(), list[Any]()
    async with running_node() as node:
        await node.spawn(Held, elsewhere, gate, name="standby")
        await node.supervise([ChildSpec("held", Held, heard, gate, mailbox=Redirect("standby"))])

        outcome = await fill_and_fail(node, gate)

        assert heard == []
        assert elsewhere == [1, "call", 2]
        assert outcome == ["answer to call"]


async def test_messages_redirected_to_an_unknown_name_are_dead_letters() -> None:
    heard, gate = list[Any](), trio.Event()
    async with running_node() as node:
        await node.supervise([ChildSpec("held", Held, heard, gate, mailbox=Redirect("nobody"))])

        outcome = await fill_and_fail(node, gate)

        assert isinstance(outcome[0], TargetDownError)
        assert len(node.dead_letters()) == 2


async def test_a_kept_mailbox_keeps_its_bound() -> None:
    heard, gate = list[Any](), trio.Event()
    async with running_node() as node:
        await node.supervise(
            [ChildSpec("held", Held, heard, gate, mailbox=Fate.KEEP, mailbox_size=3)]
        )
        await fill_and_fail(node, gate)
        gate_again = trio.Event()

        async with trio.open_nursery():
            pid = node.whereis("held")
            assert pid is not None
            process = process_of(node, pid)
            process.behaviour_itself.gate = gate_again
            node.send("held", "wait and fail")
            await wait_all_tasks_blocked()
            for number in range(3):
                node.send("held", number)
            with pytest.raises(MailboxFullError):
                node.send("held", 3)
            gate_again.set()
            await wait_all_tasks_blocked()

        assert heard == [1, "call", 2, 0, 1, 2]


# -- hooks -----------------------------------------------------------------------------------------


class Hooked(Actor):
    def __init__(self, log: Log) -> None:
        self.log_of_test = log

    async def init(self) -> None:
        self.log_of_test.append("init")

    async def post_start(self) -> None:
        self.log_of_test.append("post_start")

    def post_restart(self, reason: Reason) -> None:
        self.log_of_test.append(f"post_restart {reason}")

    async def pre_stop(self, reason: Reason) -> None:
        self.log_of_test.append(f"pre_stop {reason}")

    def pre_restart(self, reason: Reason) -> None:
        self.log_of_test.append(f"pre_restart {reason}")

    def terminate(self, reason: Reason) -> None:
        self.log_of_test.append("terminate")

    def handle_message(self, message: Any, sender: Any) -> None:
        if message == "fail":
            raise Failed("x")
        self.log_of_test.append(message)


async def test_the_callbacks_around_start_stop_and_restart_come_in_order() -> None:
    log: Log = []
    async with running_node() as node:
        await node.supervise([ChildSpec("hooked", Hooked, log)])
        node.send("hooked", "message")
        node.send("hooked", "fail")
        await wait_all_tasks_blocked()
        node.send("hooked", "again")
        await wait_all_tasks_blocked()

    assert log == [
        *("init", "post_start", "message"),
        *("pre_restart crashed: Failed: x", "terminate"),
        *("init", "post_restart crashed: Failed: x", "post_start", "again"),
        *("pre_stop shutdown", "terminate"),
    ]


@pytest.mark.parametrize(
    "operation, hook", [("restart_child", "pre_restart"), ("stop_child", "pre_stop")]
)
async def test_a_child_that_is_stopped_knows_whether_it_will_have_a_successor(
    operation: str, hook: str
) -> None:
    log: Log = []
    async with running_node() as node:
        tree = await node.supervise([ChildSpec("hooked", Hooked, log)])

        await getattr(tree, operation)("hooked")

        assert f"{hook} shutdown" in log


async def test_a_process_without_a_supervisor_has_the_same_callbacks() -> None:
    log: Log = []
    async with running_node() as node:
        pid = await node.spawn(Hooked, log)
        await wait_all_tasks_blocked()

        node.send_exit(pid)
        await node.wait_ended(pid)

    assert log == ["init", "post_start", "pre_stop shutdown", "terminate"]


async def test_a_process_may_call_its_children_in_pre_stop() -> None:
    answers: Log = []

    class Parent(Actor):
        async def init(self) -> None:
            self.child = await self.spawn(Recorder)

        async def pre_stop(self, reason: Reason) -> None:
            answers.append(await self.call(self.child, "what"))

    async with running_node() as node:
        pid = await node.spawn(Parent)

        node.send_exit(pid)
        await node.wait_ended(pid)

    assert answers == [[]]


async def test_a_hook_that_fails_after_the_start_is_a_crash_like_any_other() -> None:
    log: Log = []

    class Bad(Hooked):
        async def post_start(self) -> None:
            if "init" in log and log.count("init") == 1:
                raise Failed("too early")

    async with running_node() as node:
        tree = await node.supervise([ChildSpec("bad", Bad, log)])

        await wait_all_tasks_blocked()

        assert phases(tree) == {"bad": Phase.RUNNING}
        assert info_of(tree, "bad").restarts == 1


async def test_a_message_redirected_to_a_full_mailbox_is_a_dead_letter() -> None:
    log: Log = []
    busy = trio.Event()
    async with running_node() as node:
        await node.spawn(Deaf, busy, name="deaf", mailbox_size=1)
        node.send("deaf", "in its hands")
        await wait_all_tasks_blocked()
        node.send("deaf", "fills its mailbox")
        await node.supervise(
            [
                ChildSpec(
                    "a", Child, log, "a", mailbox=Redirect("deaf"), restart=RestartPolicy.TEMPORARY
                )
            ],
            name="tree",
            auto_shutdown=False,
        )
        node.send("a", Failed("crash"))
        node.send("a", "left")
        await wait_all_tasks_blocked()
        letters = [letter for letter in node.dead_letters() if letter.why is Why.FULL]
        busy.set()

        assert [letter.message_type for letter in letters] == ["str"]
        assert log == ["+a", "-a"]


def test_a_slot_without_a_supervisor_has_no_successor() -> None:
    slot = ChildSlot("alone")

    returns = slot.returns(Normal())

    assert not returns
    assert repr(slot) == "<ChildSlot 'alone' vacant>"


def test_the_repr_of_a_slot_shows_its_process_or_its_reason() -> None:
    slot = ChildSlot("told")
    pid = PID("test@localhost", 1, 2)

    slot.occupy(pid)
    taken = repr(slot)
    slot.close(Killed())

    assert taken == f"<ChildSlot 'told' {pid}>"
    assert repr(slot) == f"<ChildSlot 'told' gone: {Killed()}>"


def test_a_slot_counts_restarts_from_zero_under_each_supervisor() -> None:
    slot, restarts = ChildSlot("counted"), []
    for supervisor in ("first", "second"):
        slot.join(supervisor, Rules(returns_after=lambda _reason: True))
        for number, after in enumerate((None, Killed(), Killed()), 1):
            slot.inherit(None, after)
            slot.occupy(PID("node@localhost", 1, number))
            restarts.append(slot.restarts)

    assert restarts == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("decision", [Decision.STOP, Decision.ESCALATE])
def test_a_slot_has_no_successor_after_a_decision_to_end(
    decision: Decision,
) -> None:
    slot = ChildSlot("decided")
    slot.rules = Rules(returns_after=lambda _reason: True)
    slot.decision = decision

    assert not slot.returns(Crashed(Failed("once")))
    assert slot.returns(Normal())


async def test_a_kept_call_that_timed_out_meanwhile_is_not_answered_by_the_successor(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log: Log = []
    async with running_node(limit=10**6) as node, trio.open_nursery() as nursery:
        hold = trio.Event()

        class Holding(Actor):
            async def handle_message(self, message: Any, sender: Any) -> None:
                await hold.wait()
                raise Failed("crash")

            def handle_call(self, request: Any, caller: Any) -> Any:
                log.append(request)

        async def ask_in_vain() -> None:
            with pytest.raises(CallTimeoutError):
                await node.call("a", "given up", timeout=1)

        await node.supervise(
            [ChildSpec("a", Holding, mailbox=Fate.KEEP, backoff=Backoff(10.0, 10.0))], name="tree"
        )
        node.send("a", "hold")
        await wait_all_tasks_blocked()
        nursery.start_soon(ask_in_vain)
        await wait_all_tasks_blocked()
        hold.set()
        await trio.sleep(30)

        successor = node.whereis("a")

    assert successor is not None
    assert "given up" not in log


@pytest.mark.parametrize("to", ["", None, 5])
def test_a_mailbox_is_redirected_to_a_name_only(to: Any) -> None:
    with pytest.raises(BadInputError, match="registered name"):
        Redirect(to)


def test_a_waiter_at_a_slot_is_refused_when_the_slot_closes() -> None:
    told: list[Reason] = []

    class Claimant:
        waiter = None

        def admit(self, pid: PID, /) -> None:
            raise AssertionError("nobody comes")

        def refuse(self, reason: Reason, /) -> None:
            told.append(reason)

    slot = ChildSlot("closed")
    slot.waiters[Claimant()] = None

    slot.close(Killed())

    assert told == [Killed()]
    assert not slot.waiters


def test_a_waiter_below_an_ending_supervisor_is_refused() -> None:
    told: list[Reason] = []

    class Ending:
        """A supervisor that takes no messages any more, with a process below it."""

        accepting = False
        slot = None

    class Below:
        parent = Ending()
        slot = None

    class Claimant:
        waiter = Below()

        def admit(self, pid: PID, /) -> None:
            raise AssertionError("nobody comes")

        def refuse(self, reason: Reason, /) -> None:
            told.append(reason)

    outer, inner = ChildSlot("a supervisor"), ChildSlot("its child")
    outer.inner["its child"] = inner
    inner.supervisor = Claimant.waiter.parent
    inner.waiters[Claimant()] = None

    outer.turn_away(Killed())

    assert told == [Killed()]
    assert not inner.waiters


def test_a_slot_gives_the_span_of_the_crash_to_the_successor_once() -> None:
    slot, error = ChildSlot("till"), ValueError()
    assert slot.take_span() is None
    slot.note_span(error, "span")

    for reason in (None, Normal(), Crashed(ValueError())):
        slot.inherit(None, reason)
        assert slot.take_span() is None

    slot.inherit(None, Crashed(error))
    assert [slot.take_span(), slot.take_span()] == ["span", None]
