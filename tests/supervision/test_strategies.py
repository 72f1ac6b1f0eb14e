"""Every strategy against a naive model, which computes in plain lists and loops the expected state
after each event.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ergo_py import (
    Actor,
    Backoff,
    BadInputError,
    ChildSpec,
    Crashed,
    Custom,
    Killed,
    Normal,
    NotAllowedError,
    Reason,
    RestartLimit,
    RestartPolicy,
    Shutdown,
    Strategy,
    SupervisorSpec,
)
from ergo_py._core.vocabulary.errors import (
    ChildBusyError,
    ChildDisabledError,
    ChildEnabledError,
    ChildExistsError,
    ChildNotRunningError,
    ChildRunningError,
    ChildUnknownError,
)
from ergo_py._core.vocabulary.info import Phase
from ergo_py._core.vocabulary.reasons import is_failure
from ergo_py.supervision import AutoShutdown, Budget, Decision
from ergo_py.supervision.actions import (
    Action,
    AddChild,
    Answer,
    DisableChild,
    EnableChild,
    End,
    Gone,
    Operation,
    RemoveChild,
    Removed,
    RestartChild,
    Start,
    StartChild,
    Stop,
    StopChild,
    Wake,
)
from ergo_py.supervision.strategies import Supervision

P = Phase


class Worker(Actor):
    pass


# -- the model -------------------------------------------------------------------------------------


@dataclass(eq=False)
class Kid:
    """The model of a child."""

    name: str
    spec: ChildSpec
    phase: Phase = P.PENDING
    pid: object = None
    last: object = None
    wanted: bool = True
    cycles: bool = False
    stops_in_turn: bool = False
    due: float = 0.0
    tries: int = 0
    began: float = 0.0
    starts: int = 0
    failures: list[float] = field(default_factory=list)
    token: object = None
    asked_at: int | None = None
    falls_back: Phase | None = None
    leaves_as: Phase | None = None


class Model:
    """Supervision without cleverness: after each event it looks at all children."""

    def __init__(self, spec: SupervisorSpec) -> None:
        self.spec = spec
        self.strategy = spec.strategy
        self.kids = (
            []
            if self.strategy is Strategy.SIMPLE_ONE_FOR_ONE
            else [Kid(one.name, one) for one in spec.children]
        )
        self.failures: list[float] = []
        self.ended: Reason | None = None
        self.is_new = True
        self.answers: list[tuple[object, object]] = []
        self.asked = 0
        self.settle(0.0)

    @property
    def starting(self) -> Kid | None:
        return next((kid for kid in self.kids if kid.phase is P.STARTING), None)

    def waiting(self) -> list[Kid]:
        return [kid for kid in self.kids if kid.wanted and kid.phase in (P.PENDING, P.BACKING_OFF)]

    def next_due(self, now: float) -> float | None:
        """When to come back, if nothing else is to be done before."""
        waiting = [kid for kid in self.waiting() if kid.asked_at is None]
        if not waiting or self.starting or any(kid.cycles for kid in self.kids):
            return None
        match self.strategy:
            case Strategy.ALL_FOR_ONE:
                due = max(kid.due for kid in waiting)
            case Strategy.REST_FOR_ONE:
                due = waiting[0].due
            case _:
                due = min(kid.due for kid in waiting)
        return due if due > now else None

    def settle(self, now: float) -> None:
        if self.ended is not None:
            return
        cycling = [kid for kid in self.kids if kid.cycles]
        one_stops = any(kid.stops_in_turn for kid in self.kids)
        if cycling and not one_stops:
            last = [kid for kid in cycling if kid.phase in (P.RUNNING, P.STARTING)][-1:]
            if last and last[0].phase is P.RUNNING:
                last[0].phase, last[0].stops_in_turn = P.STOPPING, True
        if self.starting is not None:
            return
        asked = sorted(
            (kid for kid in self.waiting() if kid.asked_at is not None),
            key=lambda kid: kid.asked_at or 0,
        )
        able = asked or ([] if cycling else self.able(now))
        if not able and all(kid.tries for kid in self.waiting()):
            self.is_new = False
        if able:
            able[0].phase, able[0].asked_at = P.STARTING, None

    def able(self, now: float) -> list[Kid]:
        waiting = self.waiting()
        match self.strategy:
            case Strategy.ALL_FOR_ONE:
                return waiting if all(kid.due <= now for kid in waiting) else []
            case Strategy.REST_FOR_ONE:
                return waiting if waiting and waiting[0].due <= now else []
        due = [kid for kid in waiting if kid.due <= now]
        return sorted(due, key=lambda kid: (kid.due, self.kids.index(kid)))

    def answer(self, kid: Kid, what: object) -> None:
        if kid.token is not None:
            self.answers.append((kid.token, what))
            kid.token = None

    # events

    def started(self, pid: object, now: float) -> None:
        kid = self.starting
        assert kid is not None
        kid.phase, kid.pid, kid.last, kid.began, kid.falls_back = P.RUNNING, pid, pid, now, None
        kid.starts += 1
        self.answer(kid, pid)
        self.settle(now)

    def start_failed(self, error: Exception, decision: Decision | None, now: float) -> None:
        kid = self.starting
        assert kid is not None
        reason = Crashed(error)
        kid.cycles = False
        was_asked = kid.token is not None
        self.answer(kid, error)
        backoff = kid.spec.backoff
        is_tried_again = backoff is not None and backoff.until_started
        if self.is_new and not is_tried_again:
            self.ended = reason
            kid.phase = P.STARTING
        elif was_asked and kid.falls_back is not None:
            if kid.starts:
                kid.phase, kid.wanted, kid.falls_back = kid.falls_back, False, None
            else:
                self.kids.remove(kid)
        else:
            self.ends(kid, reason, decision, now, counts=not is_tried_again)
        self.settle(now)

    def exited(self, kid: Kid, reason: Reason, decision: Decision | None, now: float) -> None:
        backoff = kid.spec.backoff
        if backoff is not None and now - kid.began >= backoff.ceiling:
            kid.tries = 0
        kid.pid = None
        cycled, kid.cycles, kid.stops_in_turn = kid.cycles, False, False
        if kid.phase is P.STOPPING:
            if not kid.wanted:
                self.leave(kid)
            else:
                kid.phase, kid.due = P.PENDING, now
                if kid.token is not None:
                    self.asked += 1
                    kid.asked_at = self.asked
        elif cycled and not (decision is Decision.ESCALATE and is_failure(reason)):
            if kid.wanted and kid.spec.restart.wants(reason) and decision is not Decision.STOP:
                kid.phase, kid.due = P.PENDING, now
            else:
                self.finish(kid, reason)
        else:
            self.ends(kid, reason, decision, now)
        self.settle(now)

    def ends(
        self,
        kid: Kid,
        reason: Reason,
        decision: Decision | None,
        now: float,
        counts: bool = True,
    ) -> None:
        failed = is_failure(reason)
        if failed and decision is Decision.ESCALATE:
            self.ended = reason
        elif (failed and decision is Decision.STOP) or (
            counts and not kid.spec.restart.wants(reason)
        ):
            self.finish(kid, reason)
        else:
            self.restart(kid, reason, now, counts)

    def finish(self, kid: Kid, reason: Reason) -> None:
        kid.phase = P.FAILED if is_failure(reason) else P.COMPLETED
        kid.wanted = False
        if self.strategy is Strategy.SIMPLE_ONE_FOR_ONE:
            self.kids.remove(kid)
        elif self.ends_with(kid):
            self.ended = Shutdown("any")

    def ends_with(self, kid: Kid) -> bool:
        policy = self.spec.auto_shutdown
        left = [one for one in self.kids if one.phase not in (P.COMPLETED, P.FAILED)]
        if kid.spec.significant:
            return policy is not AutoShutdown.ALL_SIGNIFICANT or not any(
                one.spec.significant for one in left
            )
        return policy is AutoShutdown.LAST_CHILD and not left

    def restart(self, kid: Kid, reason: Reason, now: float, counts: bool) -> None:
        budget = kid.spec.budget
        counted = kid.failures if budget is not None else self.failures
        most = budget.restarts if budget is not None else self.spec.intensity
        period = budget.period if budget is not None else self.spec.period
        is_alone = not counts
        counts = counts or budget is not None
        if counts:
            counted.append(now)
        if counts and sum(now - at <= period for at in counted) > most:
            if budget is not None:
                kid.phase, kid.wanted = P.DISABLED, False
            else:
                self.ended = RestartLimit(kid.name, self.spec.intensity, self.spec.period, reason)
            return
        backoff = kid.spec.backoff
        delay = (
            0.0
            if backoff is None
            else min(backoff.ceiling, backoff.first * backoff.factor**kid.tries)
        )
        kid.tries += 1
        kid.due, kid.wanted = now + delay, True
        kid.phase = P.BACKING_OFF if delay else P.PENDING
        place = self.kids.index(kid)
        together = {
            Strategy.ALL_FOR_ONE: self.kids,
            Strategy.REST_FOR_ONE: self.kids[place + 1 :],
        }.get(self.strategy, [])
        for one in [] if is_alone else together:
            if one is not kid and one.phase in (P.RUNNING, P.STARTING) and not one.cycles:
                one.cycles, one.wanted, one.leaves_as = (
                    True,
                    one.spec.restart is not RestartPolicy.TEMPORARY,
                    P.COMPLETED,
                )

    def leave(self, kid: Kid) -> None:
        self.answer(kid, kid.last)
        kid.cycles = False
        if kid.leaves_as is None or self.strategy is Strategy.SIMPLE_ONE_FOR_ONE:
            self.kids.remove(kid)
        else:
            kid.phase = kid.leaves_as

    # operations: the error they are refused with, or None

    def ask(self, operation: Operation, token: object, now: float) -> type[Exception] | None:
        refused = self.ask_kid(operation, token, now)
        if refused is None:
            self.settle(now)
        return refused

    def start_for(self, kid: Kid, token: object, now: float, falls_back: Phase | None) -> None:
        self.asked += 1
        kid.token, kid.asked_at, kid.falls_back, kid.wanted = token, self.asked, falls_back, True
        kid.phase, kid.due = P.PENDING, now

    def ask_kid(self, operation: Operation, token: object, now: float) -> type[Exception] | None:
        is_simple = self.strategy is Strategy.SIMPLE_ONE_FOR_ONE
        if is_simple and isinstance(operation, AddChild | EnableChild | DisableChild):
            return NotAllowedError
        if isinstance(operation, AddChild) or (is_simple and isinstance(operation, StartChild)):
            spec = operation.spec if isinstance(operation, AddChild) else self.spec.children[0]
            if not is_simple and any(kid.name == spec.name for kid in self.kids):
                return ChildExistsError
            self.kids.append(Kid("?" if is_simple else spec.name, spec))
            self.start_for(self.kids[-1], token, now, P.PENDING)
            return None
        kid = next((kid for kid in self.kids if kid.name == operation.child), None)
        if kid is None:
            return ChildUnknownError
        if kid.token is not None or kid.phase is P.STARTING:
            return ChildBusyError
        down = kid.phase in (P.COMPLETED, P.FAILED)
        coming = kid.wanted and kid.phase in (P.PENDING, P.BACKING_OFF)
        match operation:
            case RestartChild() if kid.phase is P.RUNNING:
                kid.phase, kid.token, kid.wanted, kid.leaves_as = P.STOPPING, token, True, P.PENDING
            case StartChild() | RestartChild():
                refusals = {
                    P.RUNNING: ChildRunningError,
                    P.STOPPING: ChildBusyError,
                    P.DISABLED: ChildDisabledError,
                }
                if kid.phase in refusals:
                    return refusals[kid.phase]
                self.start_for(kid, token, now, None if coming else kid.phase)
            case EnableChild():
                if kid.phase is not P.DISABLED:
                    return ChildEnabledError
                kid.tries, kid.failures = 0, []
                self.start_for(kid, token, now, P.DISABLED)
            case StopChild() if down or kid.phase is P.DISABLED or not (coming or kid.pid):
                return ChildNotRunningError
            case DisableChild() if kid.phase is P.DISABLED:
                return ChildDisabledError
            case _:
                kid.leaves_as = {StopChild: P.COMPLETED, DisableChild: P.DISABLED}.get(
                    type(operation)
                )
                kid.wanted, kid.token = False, token
                if kid.phase is P.RUNNING:
                    kid.phase = P.STOPPING
                elif kid.phase is not P.STOPPING:
                    self.leave(kid)
        return None


# -- the machine -----------------------------------------------------------------------------------

REASONS = st.sampled_from(
    [Normal(), Shutdown(), Killed(), Crashed(ValueError("no")), Custom("why")]
)
DECISIONS = st.sampled_from([None, None, None, Decision.RESTART, Decision.STOP, Decision.ESCALATE])
BACKOFFS = [
    None,
    None,
    Backoff(1.0, 4.0),
    Backoff(2.0, 2.0),
    Backoff(1.0, 4.0, until_started=True),
]
NAMES = ["a", "b", "c", "d", "e", "f"]


@st.composite
def children(draw: st.DrawFn, name: str) -> ChildSpec:
    restart = draw(
        st.sampled_from(
            [
                RestartPolicy.PERMANENT,
                RestartPolicy.PERMANENT,
                RestartPolicy.TRANSIENT,
                RestartPolicy.TEMPORARY,
            ]
        )
    )
    return ChildSpec(
        name,
        Worker,
        restart=restart,
        significant=restart is not RestartPolicy.PERMANENT and draw(st.integers(0, 5)) == 0,
        backoff=draw(st.sampled_from(BACKOFFS)),
        budget=draw(st.sampled_from([None, None, None, Budget(1, 3.0), Budget(0, 1.0)])),
    )


class StrategyMachine(RuleBasedStateMachine):
    strategy: Strategy

    @initialize(
        data=st.data(),
        count=st.integers(1, 5),
        intensity=st.integers(0, 6),
        automatic=st.sampled_from([*AutoShutdown, True, False]),
    )
    def begin(
        self, data: st.DataObject, count: int, intensity: int, automatic: AutoShutdown | bool
    ) -> None:
        self.open(data, count, intensity, automatic)

    def open(
        self, data: st.DataObject, count: int, intensity: int, automatic: AutoShutdown | bool
    ) -> None:
        names = NAMES[:1] if self.strategy is Strategy.SIMPLE_ONE_FOR_ONE else NAMES[:count]
        specs = [data.draw(children(name)) for name in names]
        if self.strategy is Strategy.SIMPLE_ONE_FOR_ONE:
            specs = [
                ChildSpec(
                    "a",
                    Worker,
                    restart=specs[0].restart,
                    backoff=specs[0].backoff,
                    budget=specs[0].budget,
                )
            ]
        if any(one.significant for one in specs) and automatic is AutoShutdown.NEVER:
            automatic = AutoShutdown.ALL_SIGNIFICANT
        spec = SupervisorSpec(
            specs, self.strategy, intensity=intensity, period=5.0, auto_shutdown=automatic
        )
        self.now = 0.0
        self.alive: dict[str, object] = {}
        self.asked_to_stop: set[str] = set()
        self.wake: float | None = None
        self.answers: list[tuple[object, object]] = []
        self.ended: Reason | None = None
        self.gone: set[str] = set()
        self.starting: str | None = None
        self.real = Supervision(spec, lambda: 0.0)
        self.model = Model(spec)
        self.perform(self.real.begin(0.0))

    def perform(self, actions: list[Action]) -> None:
        assert self.ended is None
        for action in actions:
            match action:
                case Start(name):
                    # The main promise: no child runs twice, and only a single child is started at a
                    # time.
                    assert name not in self.alive
                    assert self.starting is None
                    self.starting = name
                    if self.real.children[name].asker is None:
                        # A group is down before it comes back.
                        assert not [kid for kid in self.real.children.values() if kid.cycles]
                case Stop(name, returns):
                    assert name in self.alive
                    assert name not in self.asked_to_stop
                    assert returns == self.real.children[name].wanted
                    self.asked_to_stop.add(name)
                case Gone(name):
                    assert name not in self.alive
                    self.gone.add(name)
                case Removed(name):
                    assert name not in self.alive
                    assert name not in self.real.children
                case Answer(asker, pid, error):
                    self.answers.append((asker, error if error is not None else pid))
                case Wake(at):
                    assert at > self.now
                    self.wake = at
                case End(reason):
                    self.ended = reason

    def dead(self) -> bool:
        return self.ended is not None

    # events

    @precondition(lambda self: self.dead())
    @rule(
        data=st.data(),
        count=st.integers(1, 5),
        intensity=st.integers(0, 6),
        automatic=st.booleans(),
    )
    def another_one_begins(
        self, data: st.DataObject, count: int, intensity: int, automatic: bool
    ) -> None:
        self.open(data, count, intensity, automatic)

    @precondition(lambda self: self.starting is not None and not self.dead())
    @rule(succeeds=st.integers(0, 9), decision=DECISIONS)
    def start_is_over(self, succeeds: int, decision: Decision | None) -> None:
        name, self.starting = self.starting, None
        assert name is not None
        if succeeds:
            pid = object()
            self.alive[name] = pid
            self.gone.discard(name)
            self.model.started(pid, self.now)
            self.perform(self.real.started(name, pid, self.now))
        else:
            error = OSError(name)
            self.model.start_failed(error, decision, self.now)
            self.perform(self.real.start_failed(name, error, Crashed(error), decision, self.now))

    @precondition(lambda self: bool(self.alive) and not self.dead())
    @rule(data=st.data(), reason=REASONS, decision=DECISIONS)
    def child_exits(self, data: st.DataObject, reason: Reason, decision: Decision | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        pid = self.alive.pop(name)
        self.asked_to_stop.discard(name)
        kid = next(kid for kid in self.model.kids if kid.name == name)
        self.model.exited(kid, reason, decision, self.now)
        self.perform(self.real.exited(name, pid, reason, decision, self.now))

    @precondition(lambda self: bool(self.asked_to_stop) and not self.dead())
    @rule(data=st.data())
    def stopped_child_exits(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.asked_to_stop)))
        pid = self.alive.pop(name)
        self.asked_to_stop.discard(name)
        kid = next(kid for kid in self.model.kids if kid.name == name)
        self.model.exited(kid, Shutdown(), None, self.now)
        self.perform(self.real.exited(name, pid, Shutdown(), None, self.now))

    @precondition(lambda self: not self.dead())
    @rule(name=st.sampled_from(NAMES))
    def somebody_unknown_exits(self, name: str) -> None:
        assert self.real.exited(name, object(), Killed(), None, self.now) == []

    @precondition(lambda self: not self.dead())
    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        if self.wake is not None and self.wake <= self.now:
            self.wake = None
            self.model.settle(self.now)
            self.perform(self.real.woken(self.now))

    @precondition(lambda self: self.wake is not None and not self.dead())
    @rule()
    def the_back_off_is_over(self) -> None:
        assert self.wake is not None
        self.time_passes(max(0.0, self.wake - self.now))

    @precondition(lambda self: not self.dead())
    @rule(data=st.data(), kind=st.integers(0, 6))
    def operation_is_asked_for(self, data: st.DataObject, kind: int) -> None:
        names = sorted({*NAMES[: len(self.real.children) + 1], *self.real.children})
        name = data.draw(st.sampled_from(names))
        if self.strategy is Strategy.SIMPLE_ONE_FOR_ONE and kind == 0:
            name = "a"
        operations: list[Operation] = [
            StartChild(name),
            StopChild(name),
            RestartChild(name),
            RemoveChild(name),
            EnableChild(name),
            DisableChild(name),
            AddChild(data.draw(children(name))),
        ]
        operation, token = operations[kind], object()
        before = self.picture()

        refused = self.model.ask(operation, token, self.now)
        if refused is None:
            actions = self.real.ask(operation, token, self.now)
            if self.model.kids and self.model.kids[-1].name == "?":
                self.model.kids[-1].name = list(self.real.children)[-1]
            self.perform(actions)
        else:
            with pytest.raises(refused):
                self.real.ask(operation, token, self.now)
            assert self.picture() == before

    # invariants

    def picture(self) -> list[Any]:
        return [
            (kid.name, kid.phase, kid.pid, kid.wanted, kid.due)
            for kid in self.real.children.values()
        ]

    @invariant()
    def real_and_model_agree(self) -> None:
        if self.dead() or self.model.ended is not None:
            # The exact reason is for people; that it ended, and the kind of reason, is not.
            assert type(self.ended) is type(self.model.ended)
            assert isinstance(self.ended, Shutdown) or self.ended == self.model.ended
            return
        assert [(kid.name, kid.phase, kid.pid, kid.wanted) for kid in self.model.kids] == [
            (kid.name, kid.phase, kid.pid, kid.wanted) for kid in self.real.children.values()
        ]
        assert self.answers == self.model.answers
        assert self.starting == (self.model.starting.name if self.model.starting else None)
        assert self.asked_to_stop == {
            kid.name for kid in self.model.kids if kid.phase is P.STOPPING
        }

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """A child that is to run runs, or is on the way, or a wake-up comes at the right time to
        start it.
        """
        if self.dead():
            return
        due = self.model.next_due(self.now)
        if due is not None:
            assert self.wake is not None
            assert self.wake <= due
        for name, kid in self.real.children.items():
            assert (kid.pid is not None) == (name in self.alive)
            if kid.phase in (P.COMPLETED, P.FAILED, P.DISABLED):
                assert name in self.gone
            elif name in self.alive:
                assert name not in self.gone

    @invariant()
    def the_history_is_short(self) -> None:
        assert len(self.real.history) <= 50


class OneForOneMachine(StrategyMachine):
    strategy = Strategy.ONE_FOR_ONE


class AllForOneMachine(StrategyMachine):
    strategy = Strategy.ALL_FOR_ONE


class RestForOneMachine(StrategyMachine):
    strategy = Strategy.REST_FOR_ONE


class SimpleOneForOneMachine(StrategyMachine):
    strategy = Strategy.SIMPLE_ONE_FOR_ONE


TestOneForOne = OneForOneMachine.TestCase
TestAllForOne = AllForOneMachine.TestCase
TestRestForOne = RestForOneMachine.TestCase
TestSimpleOneForOne = SimpleOneForOneMachine.TestCase


# -- cost ------------------------------------------------------------------------------------------


class CountedWalks(dict[str, Any]):
    """Counts how often it is iterated over."""

    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()


def test_the_end_of_a_child_does_not_walk_over_all_children() -> None:
    plan = Supervision(
        SupervisorSpec(
            [ChildSpec(f"c{i}", Worker, restart=RestartPolicy.TRANSIENT) for i in range(100)]
        ),
        lambda: 0.0,
    )
    actions = plan.begin(0.0)
    for action in actions:
        if isinstance(action, Start):
            actions += plan.started(action.child, action.child, 0.0)
    plan.children = walked = CountedWalks(plan.children)

    ends = [
        action for i in range(100) for action in plan.exited(f"c{i}", f"c{i}", Normal(), None, 1.0)
    ]

    assert walked.walks <= 3
    assert isinstance(ends[-1], End)


# -- late events -----------------------------------------------------------------------------------


def begun(
    *children: ChildSpec, intensity: int = 5, strategy: Strategy = Strategy.ONE_FOR_ONE
) -> Supervision:
    """A plan with children that all run, each with its name as PID."""
    plan = Supervision(
        SupervisorSpec(list(children), strategy, intensity=intensity, period=5.0), lambda: 0.0
    )
    actions = plan.begin(0.0)
    for action in actions:
        if isinstance(action, Start):
            actions += plan.started(action.child, action.child, 0.0)
    return plan


def test_a_start_that_finishes_after_the_end_has_no_effect() -> None:
    plan = begun(ChildSpec("a", Worker), intensity=0)
    ends = plan.exited("a", "a", Killed(), None, 1.0)

    late = plan.started("a", "a", 1.0), plan.start_failed("a", OSError(), Killed(), None, 1.0)

    assert isinstance(ends[-1], End)
    assert late == ([], [])


def test_a_child_that_has_ended_is_not_found_by_its_pid() -> None:
    plan = begun(ChildSpec("a", Worker))
    plan.exited("a", "a", Killed(), None, 1.0)
    plan.started("a", 1, 1.0)
    before = plan.get(1)

    plan.exited("a", 1, Killed(), None, 2.0)

    assert before is plan.find("a")
    assert plan.get(1) is None


def test_events_after_the_end_have_no_effect() -> None:
    plan = begun(
        ChildSpec("a", Worker),
        ChildSpec("b", Worker, backoff=Backoff(10.0, 10.0)),
        ChildSpec("c", Worker),
        intensity=1,
    )
    plan.exited("b", "b", Killed(), None, 1.0)
    ends = plan.exited("a", "a", Killed(), None, 1.0)

    late = plan.exited("c", "c", Killed(), None, 2.0), plan.woken(11.0)

    assert [type(action) for action in ends] == [End]
    assert late == ([], [])


def test_a_stop_request_for_a_child_that_is_already_stopping_is_answered_at_its_end() -> None:
    plan = Supervision(
        SupervisorSpec([ChildSpec(name, Worker) for name in "ab"], strategy=Strategy.ALL_FOR_ONE),
        lambda: 0.0,
    )
    actions = plan.begin(0.0)
    for action in actions:
        if isinstance(action, Start):
            actions += plan.started(action.child, action.child, 0.0)
    plan.exited("a", "a", Killed(), None, 1.0)

    before = plan.ask(StopChild("b"), "asker", 1.0)
    after = plan.exited("b", "b", Shutdown(), None, 1.0)

    assert before == []
    assert Answer("asker", "b") in after


def test_a_child_that_stops_with_its_siblings_cannot_be_started() -> None:
    plan = Supervision(
        SupervisorSpec([ChildSpec(name, Worker) for name in "ab"], strategy=Strategy.ALL_FOR_ONE),
        lambda: 0.0,
    )
    actions = plan.begin(0.0)
    for action in actions:
        if isinstance(action, Start):
            actions += plan.started(action.child, action.child, 0.0)
    plan.exited("a", "a", Killed(), None, 1.0)

    with pytest.raises(ChildBusyError):
        plan.ask(StartChild("b"), "asker", 1.0)


def test_a_child_is_found_by_its_name_or_pid_only_and_takes_no_new_arguments() -> None:
    plan = begun(ChildSpec("a", Worker))
    nobody: Any = ["a"]

    with pytest.raises(ChildUnknownError):
        plan.find(nobody)
    with pytest.raises(BadInputError, match="no arguments"):
        plan.ask(StartChild("a", (1,)), "asker", 1.0)


# -- the order of starts ---------------------------------------------------------------------------


def test_a_failed_start_does_not_delay_the_restart_of_siblings() -> None:
    plan = begun(ChildSpec("a", Worker), ChildSpec("b", Worker), strategy=Strategy.ALL_FOR_ONE)
    plan.exited("b", "b", Killed(), None, 1.0)
    plan.exited("a", "a", Shutdown(), None, 1.0)
    plan.started("a", "a2", 1.0)
    plan.exited("a", "a2", Killed(), None, 2.0)

    actions = plan.start_failed("b", OSError(), Killed(), None, 2.0)

    assert actions == [Start("a", Killed())]


def test_a_child_stopped_while_down_is_gone_with_the_reason_of_its_end() -> None:
    plan = begun(ChildSpec("a", Worker, backoff=Backoff(10.0, 10.0)), ChildSpec("b", Worker))
    plan.exited("a", "a", Killed(), None, 1.0)
    fresh = Supervision(
        SupervisorSpec([ChildSpec("a", Worker), ChildSpec("b", Worker)]), lambda: 0.0
    )
    fresh.begin(0.0)

    stopped = plan.ask(StopChild("a"), "asker", 2.0)
    removed = fresh.ask(RemoveChild("b"), "asker", 1.0)

    assert stopped == [Answer("asker", "a"), Gone("a", Killed())]
    # It never had a process.
    assert removed == [Answer("asker", None), Removed("b", Shutdown())]


def test_a_stop_request_during_the_stop_of_siblings_stops_the_child_once() -> None:
    plan = begun(*(ChildSpec(name, Worker) for name in "abc"), strategy=Strategy.ALL_FOR_ONE)
    together = plan.exited("a", "a", Killed(), None, 1.0)

    asked = plan.ask(StopChild("b"), "asker", 1.0)
    then = plan.exited("c", "c", Shutdown(), None, 1.0)

    assert together == [Stop("c", returns=True)]
    assert asked == [Stop("b", returns=False)]
    assert then == []


def test_a_child_that_started_again_early_is_not_stopped_with_its_siblings() -> None:
    plan = begun(*(ChildSpec(name, Worker) for name in "abc"), strategy=Strategy.ALL_FOR_ONE)
    plan.exited("a", "a", Killed(), None, 1.0)
    plan.exited("b", "b", Killed(), None, 1.0)
    plan.ask(StartChild("b"), "asker", 1.0)
    plan.started("b", "b2", 1.0)

    actions = plan.exited("c", "c", Shutdown(), None, 1.0)

    assert actions == [Start("a", Killed())]
    assert plan.find("b").phase is P.RUNNING


@pytest.mark.parametrize(
    "strategy", [Strategy.ONE_FOR_ONE, Strategy.ALL_FOR_ONE, Strategy.REST_FOR_ONE]
)
def test_a_first_start_that_fails_is_tried_again_until_it_succeeds(strategy: Strategy) -> None:
    patient = ChildSpec("a", Worker, backoff=Backoff(1.0, 4.0, until_started=True))
    plan = Supervision(SupervisorSpec([patient], strategy, intensity=0), lambda: 0.0)
    started = plan.begin(0.0)
    now, wakes = 0.0, []

    for _ in range(5):
        (wake,) = plan.start_failed("a", OSError(), Crashed(OSError()), None, now)
        assert isinstance(wake, Wake)
        wakes.append(wake.at - now)
        now = wake.at
        assert plan.woken(now) == started
    plan.started("a", 1, now)

    assert wakes == [1.0, 2.0, 4.0, 4.0, 4.0]
    # A restart counts, and its failed starts do not.
    (end,) = plan.exited("a", 1, Killed(), None, now)
    assert isinstance(end, End)


def test_children_beside_a_first_start_that_is_tried_again_restart_as_usual() -> None:
    patient = ChildSpec("a", Worker, backoff=Backoff(10.0, 10.0, until_started=True))
    plan = Supervision(SupervisorSpec([patient, ChildSpec("b", Worker)]), lambda: 0.0)
    plan.begin(0.0)
    then = plan.start_failed("a", OSError(), Crashed(OSError()), None, 0.0)
    plan.started("b", 1, 0.0)
    plan.exited("b", 1, Killed(), None, 1.0)

    actions = plan.start_failed("b", OSError(), Custom("no room"), None, 1.0)

    assert then == [Start("b", None)]
    assert actions == [Start("b", Custom("no room"))]


@pytest.mark.parametrize(
    "strategy", [Strategy.ONE_FOR_ONE, Strategy.ALL_FOR_ONE, Strategy.REST_FOR_ONE]
)
@pytest.mark.parametrize(
    "restart", [RestartPolicy.PERMANENT, RestartPolicy.TRANSIENT, RestartPolicy.TEMPORARY]
)
def test_siblings_run_on_while_a_start_is_tried_again(
    strategy: Strategy, restart: RestartPolicy
) -> None:
    patience = Backoff(1.0, 1.0, until_started=True)
    patient = ChildSpec("b", Worker, restart=restart, backoff=patience)
    specs = [ChildSpec("a", Worker), patient, ChildSpec("c", Worker)]
    plan = Supervision(SupervisorSpec(specs, strategy, intensity=0), lambda: 0.0)
    plan.begin(0.0)
    plan.started("a", 1, 0.0)
    if plan.start_failed("b", OSError(), Crashed(OSError()), None, 0.0)[0] == Start("c", None):
        plan.started("c", 2, 0.0)

    assert plan.woken(1.0) == [Start("b", None)]
    (wake,) = plan.start_failed("b", OSError(), Crashed(OSError()), None, 1.0)
    assert wake == Wake(2.0)
    assert plan.find("a").phase is P.RUNNING
    assert plan.woken(2.0) == [Start("b", None)]
    then = plan.started("b", 3, 2.0)

    assert then == ([] if strategy is Strategy.ONE_FOR_ONE else [Start("c", None)])


def test_a_first_start_without_the_option_still_ends_the_supervisor() -> None:
    patient = ChildSpec("a", Worker, backoff=Backoff(10.0, 10.0, until_started=True))
    hasty = ChildSpec("b", Worker, backoff=Backoff(10.0, 10.0))
    plan = Supervision(SupervisorSpec([patient, hasty]), lambda: 0.0)
    plan.begin(0.0)
    plan.start_failed("a", OSError(), Crashed(OSError()), None, 0.0)

    (end,) = plan.start_failed("b", OSError(), Custom("no room"), None, 0.0)

    assert end == End(Custom("no room"))


def test_the_next_start_gets_the_reason_of_the_last_failed_start() -> None:
    plan = begun(ChildSpec("a", Worker))
    plan.exited("a", "a", Killed(), None, 1.0)

    actions = plan.start_failed("a", OSError(), Custom("no room"), None, 1.0)

    assert actions == [Start("a", Custom("no room"))]


def test_the_back_off_of_an_enabled_child_begins_with_its_first_delay() -> None:
    plan = begun(ChildSpec("a", Worker, backoff=Backoff(1.0, 40.0), budget=Budget(1, 100.0)))
    plan.exited("a", "a", Killed(), None, 0.0)
    plan.woken(1.0)
    plan.started("a", "a2", 1.0)
    plan.exited("a", "a2", Killed(), None, 2.0)
    disabled = plan.find("a").phase

    plan.ask(EnableChild("a"), "asker", 3.0)
    plan.started("a", "a3", 3.0)
    actions = plan.exited("a", "a3", Killed(), None, 4.0)

    assert disabled is P.DISABLED
    assert actions == [Wake(5.0)]


def test_an_early_wake_up_returns_the_wake_up_time_again() -> None:
    plan = begun(ChildSpec("a", Worker, backoff=Backoff(10.0, 10.0)))

    told = plan.exited("a", "a", Killed(), None, 0.0)
    again = plan.woken(9.9)

    assert told == again == [Wake(10.0)]


def test_a_requested_restart_is_in_the_history() -> None:
    plan = begun(ChildSpec("a", Worker))

    plan.ask(RestartChild("a"), "asker", 3.0)

    assert list(plan.history) == [(3.0, "a", Shutdown("restart asked for"), 0.0)]


def test_a_failed_requested_restart_is_tried_again() -> None:
    plan, error = begun(ChildSpec("a", Worker)), OSError()
    plan.ask(AddChild(ChildSpec("b", Worker)), "who adds", 1.0)
    plan.started("b", "b", 1.0)
    plan.ask(RestartChild("b"), "who restarts", 2.0)
    plan.exited("b", "b", Shutdown(), None, 2.0)

    actions = plan.start_failed("b", error, Killed(), None, 2.0)

    assert actions == [Answer("who restarts", None, error), Start("b", Killed())]


def test_a_temporary_child_starts_again_on_request_although_its_group_restarts() -> None:
    temporary = ChildSpec("b", Worker, restart=RestartPolicy.TEMPORARY)
    plan = begun(
        ChildSpec("a", Worker), temporary, ChildSpec("c", Worker), strategy=Strategy.ALL_FOR_ONE
    )
    plan.exited("a", "a", Killed(), None, 1.0)

    plan.ask(RestartChild("b"), "asker", 1.0)
    actions = plan.exited("b", "b", Shutdown(), None, 1.0)

    assert actions == [Start("b", Shutdown())]


def test_a_transient_child_that_ends_normally_does_not_restart_with_its_siblings() -> None:
    transient = ChildSpec("b", Worker, restart=RestartPolicy.TRANSIENT)
    plan = begun(
        ChildSpec("a", Worker), transient, ChildSpec("c", Worker), strategy=Strategy.ALL_FOR_ONE
    )
    plan.exited("a", "a", Killed(), None, 1.0)

    plan.exited("b", "b", Normal(), None, 1.0)
    actions = plan.exited("c", "c", Shutdown(), None, 1.0)

    assert actions == [Start("a", Killed())]
    assert plan.started("a", "a2", 1.0) == [Start("c", Shutdown())]
    assert plan.started("c", "c2", 1.0) == []
    assert plan.find("b").pid is None
