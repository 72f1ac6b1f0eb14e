"""`Supervision`: the decisions of a supervisor. No clock and no await: the caller passes the time
in.

Each event (a child ended, a start succeeded or failed, time has passed, an operation was requested)
returns actions. The supervisor performs them, and reports each outcome as the next event. This
module decides which children restart; ``start_order`` decides whose turn comes next.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from itertools import count
from typing import Any, Final, assert_never

from .._core.tables.child_slot import Decision
from .._core.vocabulary.errors import (
    BadInputError,
    ChildBusyError,
    ChildDisabledError,
    ChildEnabledError,
    ChildExistsError,
    ChildNotRunningError,
    ChildRunningError,
    ChildUnknownError,
    NotAllowedError,
    TooManyChildrenError,
)
from .._core.vocabulary.info import Phase
from .._core.vocabulary.reasons import Reason, RestartLimit, Shutdown, is_failure
from .actions import (
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
    StartChild,
    Stop,
    StopChild,
)
from .child import PENDING, RUNNING, STARTING, STOPPING, Child, Window
from .specs import AutoShutdown, ChildSpec, RestartPolicy, Strategy, SupervisorSpec
from .start_order import StartOrder

__all__ = ["Supervision"]

_HISTORY: Final = 50
"""Restarts that a supervisor remembers for its inspection: more than a person reads at once."""

_PERMANENT: Final = RestartPolicy.PERMANENT
_DOWN: Final = frozenset({Phase.COMPLETED, Phase.FAILED})
_UP: Final = (RUNNING, STARTING)
"""A tuple, because a set would compute the hash of a phase at each lookup."""


class Supervision:
    """The state of a supervisor, and its decisions. Each event returns the actions to perform, in
    order.
    """

    def __init__(self, spec: SupervisorSpec, chance: Callable[[], float]) -> None:
        self.spec = spec
        self.children: dict[str, Child] = {}
        self.history: deque[tuple[float, str, Reason, float]] = deque(maxlen=_HISTORY)
        """The last restarts: time (on the clock that the caller passes in), child, reason, delay.
        """
        self.ended: bool = False
        self._chance = chance
        self._is_simple = spec.strategy is Strategy.SIMPLE_ONE_FOR_ONE
        self._window = Window(spec.intensity, spec.period)
        self._by_pid: dict[Any, Child] = {}
        self._positions = count(1)
        self._order = StartOrder(spec.strategy)
        self._up: list[Child] = []
        """Children that count for the supervisor's own end, and had not ended for good at the last
        full scan.
        """
        if not self._is_simple:
            for child in spec.children:
                self._make(child)

    # -- events ------------------------------------------------------------------------------------

    def begin(self, now: float) -> list[Action]:
        """Start the children in order, each when the previous child is ready. If a child cannot
        start, the supervisor ends, unless the child is tried until it has started.
        """
        for child in self.children.values():
            child.awaits_start(now)
            self._order.wait(child)
        return self._order.take(now)

    def started(self, name: str, pid: object, now: float) -> list[Action]:
        """A start succeeded."""
        child = self.children.get(name)
        if self.ended or child is None or child.phase is not STARTING:
            return []
        child.started(pid, now)
        self._by_pid[pid] = child
        if child.asker is not None:
            self._answer(child, pid)
        return self._order.take(now)

    def start_failed(
        self, name: str, error: BaseException, reason: Reason, decision: Decision | None, now: float
    ) -> list[Action]:
        """A start failed: treat it as an immediate end of the child, unless the start was requested
        and its failure is to change nothing.
        """
        child = self.children.get(name)
        if self.ended or child is None or child.phase is not STARTING:
            return []
        self._order.leave_cycle(child)
        asker = child.start_failed(reason, now)
        if asker is not None:
            self._order.actions.append(Answer(asker, None, error))
        if self._order.is_new and not child.tries_until_started:
            self._end(reason)
        elif asker is not None and child.before is not None:
            child.gives_up_start()
            if not child.has_run:
                self._remove(child, reason)
        else:
            counts = not child.tries_until_started
            self._ended_by_itself(child, reason, decision, now, counts)
        return self._order.take(now)

    def exited(
        self, name: str, pid: object, reason: Reason, decision: Decision | None, now: float
    ) -> list[Action]:
        """A child's process has ended. Ignore a process that is not the child's current process."""
        child = self.children.get(name)
        if self.ended or child is None or child.pid is None or child.pid != pid:
            return []
        del self._by_pid[pid]
        child.went_down(reason, now)
        if child.phase is STOPPING:
            self._order.leave_cycle(child)
            self._stopped(child, reason, now)
        elif child.cycles and not (decision is Decision.ESCALATE and is_failure(reason)):
            # The child was to be stopped with its siblings and ended first: it restarts with them
            # if its policy allows.
            self._order.leave_cycle(child)
            if child.wanted and child.spec.restart.wants(reason) and decision is not Decision.STOP:
                child.awaits_start(now)
                self._order.wait(child)
            else:
                self._finish(child, reason)
        else:
            self._ended_by_itself(child, reason, decision, now)
        return self._order.take(now)

    def woken(self, now: float) -> list[Action]:
        """The time of a ``Wake`` has come."""
        self._order.woken()
        return self._order.take(now)

    def ask(self, operation: Operation, asker: object, now: float) -> list[Action]:
        """Perform an operation on a child, regardless of its siblings' state. An :class:`Answer`
        tells ``asker`` the outcome.

        Raises:
            ChildError: the operation is refused, and nothing is changed.
            NotAllowedError: the strategy does not support the operation.
            BadInputError: arguments were given, but only a template takes them.
        """
        match operation:
            case AddChild(spec):
                self._add(spec, asker)
            case StartChild(name, args) if self._is_simple and name == self.spec.children[0].name:
                template = self.spec.children[0]
                self._refuse_too_many(template.name)
                child = self._make(template, args)
                self._start_for(child, asker, or_back_to=PENDING)
            case StartChild(name, args):
                self._ask_start(self._free(name), args, asker)
            case RestartChild(name):
                self._ask_restart(self._free(name), asker, now)
            case EnableChild(name):
                self._refuse_simple("enable_child")
                self._ask_enable(self._free(name), asker)
            case StopChild(name):
                self._ask_stop(self._free(name), asker)
            case DisableChild(name):
                self._refuse_simple("disable_child")
                child = self._free(name)
                if child.phase is Phase.DISABLED:
                    raise ChildDisabledError(child.name)
                self._take_down(child, asker, Phase.DISABLED)
            case RemoveChild(name, drain):
                self._take_down(self._free(name), asker, None, drain)
            case _:
                assert_never(operation)
        return self._order.take(now)

    def check_upgrade(self, name: object) -> Child:
        """Return a child whose class may be replaced.

        Raises:
            ChildError: there is no such child, it does not run, or another operation is under way.
            NotAllowedError: the strategy has a template, whose class all children share.
        """
        self._refuse_simple("upgrade_child")
        child = self._free(name)
        if child.phase is STOPPING:
            raise ChildBusyError(child.name, child.phase.value)
        if child.phase is not RUNNING:
            raise ChildNotRunningError(child.name, child.phase.value)
        return child

    def find(self, child: object) -> Child:
        """Return a child by its name or its PID.

        Raises:
            ChildError: there is no such child.
        """
        found = self.get(child)
        if found is None:
            raise ChildUnknownError(child, tuple(self.children))
        return found

    def get(self, child: object) -> Child | None:
        """Return a child by its name or its PID; None if there is no such child."""
        if not isinstance(child, Hashable):
            return None
        return self.children.get(child) if isinstance(child, str) else self._by_pid.get(child)

    # -- operations --------------------------------------------------------------------------------

    def _free(self, name: object) -> Child:
        child = self.find(name)
        if child.asker is not None or child.phase is STARTING:
            raise ChildBusyError(child.name, child.phase.value)
        return child

    def _refuse_simple(self, verb: str) -> None:
        if self._is_simple:
            raise NotAllowedError(
                f"{verb} is not for SIMPLE_ONE_FOR_ONE, whose children are all made from one "
                "template; use start_child, stop_child and remove_child"
            )

    def _add(self, spec: ChildSpec, asker: object) -> None:
        self._refuse_simple("add_child")
        if spec.name in self.children:
            raise ChildExistsError(spec.name)
        self.spec.check_significance(spec)
        self._refuse_too_many(spec.name)
        self._start_for(self._make(spec), asker, or_back_to=PENDING)

    def _refuse_too_many(self, name: str) -> None:
        limit = self.spec.max_children
        if limit is not None and len(self.children) >= limit:
            raise TooManyChildrenError(name, limit)

    def _ask_start(self, child: Child, args: tuple[Any, ...], asker: object) -> None:
        if args:
            raise BadInputError(
                f"start_child({child.name!r}, *args)",
                args,
                "no arguments: the child's spec has them already",
            )
        if child.phase is RUNNING:
            raise ChildRunningError(child.name, child.pid)
        if child.phase is STOPPING:
            raise ChildBusyError(child.name, child.phase.value)
        if child.phase is Phase.DISABLED:
            raise ChildDisabledError(child.name)
        self._start_for(child, asker, or_back_to=None if child.is_waiting else child.phase)

    def _ask_restart(self, child: Child, asker: object, now: float) -> None:
        if child.phase is not RUNNING:
            self._ask_start(child, (), asker)
            return
        self.history.append((now, child.name, Shutdown("restart asked for"), 0.0))
        child.is_asked_to_restart(asker)
        self._order.actions.append(Stop(child.name, returns=True))

    def _ask_enable(self, child: Child, asker: object) -> None:
        if child.phase is not Phase.DISABLED:
            raise ChildEnabledError(child.name)
        child.gets_fresh_budget()
        self._start_for(child, asker, or_back_to=Phase.DISABLED)

    def _ask_stop(self, child: Child, asker: object) -> None:
        if child.phase not in (RUNNING, STOPPING) and not child.is_waiting:
            raise ChildNotRunningError(child.name, child.phase.value)
        self._take_down(child, asker, Phase.COMPLETED)

    def _take_down(
        self, child: Child, asker: object, leaves_as: Phase | None, drain: bool = False
    ) -> None:
        child.is_asked_to_leave(asker, leaves_as)
        if child.phase is RUNNING:
            child.stops()
            self._order.actions.append(Stop(child.name, returns=False, drain=drain))
        elif child.phase is not STOPPING:
            self._leave(child, child.reason or Shutdown())

    def _start_for(self, child: Child, asker: object, or_back_to: Phase | None) -> None:
        child.is_asked_to_start(asker, or_back_to)
        self._order.go_first(child)

    # -- ends --------------------------------------------------------------------------------------

    def _stopped(self, child: Child, reason: Reason, now: float) -> None:
        if child.wanted:
            child.awaits_start(now)
            if child.asker is not None:
                self._order.go_first(child)
            else:
                self._order.wait(child)
        else:
            self._leave(child, reason)

    def _leave(self, child: Child, reason: Reason) -> None:
        self._answer(child, child.last_pid)
        if child.leaves_as is None or self._is_simple:
            self._remove(child, reason)
        else:
            child.leaves()
            self._order.actions.append(Gone(child.name, reason))

    def _ended_by_itself(
        self,
        child: Child,
        reason: Reason,
        decision: Decision | None,
        now: float,
        counts: bool = True,
    ) -> None:
        if decision is not None and is_failure(reason):
            if decision is Decision.ESCALATE:
                self._end(reason)
                return
            if decision is Decision.STOP:
                self._finish(child, reason)
                return
        policy, budget = child.spec.restart, child.window
        if not (policy is _PERMANENT or policy.wants(reason) or not counts):
            self._finish(child, reason)
            return
        if budget is not None and not budget.admits(now):
            child.gets_disabled()
            self._order.actions.append(Gone(child.name, reason))
            return
        if budget is None and counts and not self._window.admits(now):
            self._end(RestartLimit(child.name, self.spec.intensity, self.spec.period, reason))
            return
        delay = child.awaits_restart(now, self._chance)
        self.history.append((now, child.name, reason, delay))
        self._order.wait(child)
        # A child that is tried until it has started is tried alone: the siblings before it run on,
        # and those behind it wait for it.
        if self._order.is_group and counts:
            self._order.cycle(
                [
                    sibling
                    for sibling in self._siblings(child)
                    if sibling.phase in _UP and not sibling.cycles
                ]
            )

    def _finish(self, child: Child, reason: Reason) -> None:
        """A child has ended for good."""
        child.finishes(reason)
        if self._is_simple:
            self._remove(child, reason)
            return
        self._order.actions.append(Gone(child.name, reason))
        policy = self.spec.auto_shutdown
        if child.spec.significant:
            if policy is not AutoShutdown.ALL_SIGNIFICANT or self._all_are_down():
                self._end(Shutdown(f"its significant child {child.name!r} ended: {reason}"))
        elif policy is AutoShutdown.LAST_CHILD and self._all_are_down():
            self._end(
                Shutdown(
                    f"no child is left; the last was {child.name!r}: {reason} "
                    "(auto_shutdown=False keeps the supervisor)"
                )
            )

    def _all_are_down(self) -> bool:
        """Whether all children have ended for good; with ALL_SIGNIFICANT, all significant ones."""
        is_counted = self.spec.auto_shutdown is not AutoShutdown.ALL_SIGNIFICANT
        # Scan all children only when none of the last scan's list is still up: a scan at each end
        # would take quadratic time when many children end in a row.
        up = self._up
        while up and (up[-1].phase in _DOWN or self.children.get(up[-1].name) is not up[-1]):
            up.pop()
        if not up:
            up.extend(
                child
                for child in self.children.values()
                if child.phase not in _DOWN and (is_counted or child.spec.significant)
            )
        return not up

    def _siblings(self, child: Child) -> Iterable[Child]:
        """Siblings that restart with ``child``. May contain ``child`` itself, which is already
        down.
        """
        if self.spec.strategy is Strategy.ALL_FOR_ONE:
            return self.children.values()
        return [each for each in self.children.values() if each.position > child.position]

    def _end(self, reason: Reason) -> None:
        # At most once: after it, every event returns no actions.
        self.ended = True
        self._order.end(End(reason))

    # -- helpers -----------------------------------------------------------------------------------

    def _make(self, spec: ChildSpec, args: tuple[Any, ...] = ()) -> Child:
        position = next(self._positions)
        name = f"{spec.name}-{position}" if self._is_simple else spec.name
        child = self.children[name] = Child(name, spec, position, args)
        return child

    def _remove(self, child: Child, reason: Reason) -> None:
        self.children.pop(child.name, None)
        self._order.actions.append(Removed(child.name, reason))

    def _answer(self, child: Child, pid: object) -> None:
        asker = child.take_asker()
        if asker is not None:
            self._order.actions.append(Answer(asker, pid))
