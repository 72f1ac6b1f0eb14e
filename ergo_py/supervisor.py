"""Supervision performed: a process that starts, stops and starts again its children, as its strategy decides."""

import inspect
import random
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

import trio
from trio.lowlevel import checkpoint, current_task

from ._core.dispatching import process_type
from ._core.ending import close_seat, drop_seat
from ._core.errors import BadInputError, BehaviourError, InitError, NameTakenError, NotAllowedError
from ._core.ids import PID
from ._core.info import ChildInfo, Phase, Restarted, RestartRecord, SupervisorInfo
from ._core.kernel import Kernel
from ._core.mailbox import CONTROL, STOP, Lane
from ._core.process import Process
from ._core.publishing import RESTARTED
from ._core.reasons import Crashed, Reason, RestartLimit, Shutdown
from ._core.requests import Caller
from ._core.seats import Decision, Seat
from ._core.states import Operation as Verb
from ._core.timers import Timer
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
    Start,
    StartChild,
    Stop,
    StopChild,
    Wake,
)
from .actor import Actor
from .service import Service
from .specs import ChildSpec, Strategy, SupervisorSpec
from .strategies import Child, Supervision

__all__ = ["ChildCount", "Supervisor", "describe", "read_spec"]


_RETRY: Final = object()
"""What a supervisor sends itself to go on with a start."""


@dataclass(frozen=True, slots=True)
class ChildCount:
    """How many children a supervisor has, and how they are."""

    total: int
    running: int
    supervisors: int
    phases: Mapping[Phase, int]
    """Only those that occur."""


class Supervisor(Actor):
    """An actor that looks after others: say in ``children`` whom, and how.

    They are started in order before ``spawn`` returns, and stopped in reverse order when the supervisor ends. It may have callbacks
    of its own like any actor; only ``init`` is taken, and what would be done there can be done in ``children``.
    """

    is_supervisor = True
    _given: SupervisorSpec | Sequence[ChildSpec] | None = None
    _plan: Supervision
    _running: dict[str, Process]
    _timer: Timer | None = None
    _postponed: Start | None = None
    _failure: Exception | None = None

    def __init__(self, spec: SupervisorSpec | Sequence[ChildSpec] | None = None) -> None:
        self._given = spec

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "init" in cls.__dict__:
            raise BehaviourError(
                f"{cls.__qualname__}.init",
                cls.__dict__["init"],
                "no init in a supervisor, which starts its children there; do it in `children`, plain or async, "
                "before it returns the spec",
            )

    def children(self) -> SupervisorSpec | Sequence[ChildSpec] | Awaitable[SupervisorSpec | Sequence[ChildSpec]]:
        """Say whom to supervise and how. Called once, before anything is started; may be ``async``."""
        if self._given is None:
            raise BadInputError(
                f"{type(self).__qualname__}.children",
                None,
                "`def children(self) -> SupervisorSpec`, or Supervisor(spec)",
            )
        return self._given

    # -- operations --------------------------------------------------------------------------------------------------

    async def start_child(self, child: str, *args: Any) -> PID:
        """Start a child that does not run. With SIMPLE_ONE_FOR_ONE, name the template, and give the further arguments.

        Raises:
            ChildUnknownError, ChildRunningError, ChildDisabledError, ChildBusyError: it is refused, and nothing is changed.
            SpawnError: it could not be started; it is as it was before.
        """
        pid: PID = await self._operate(StartChild(child, args))
        return pid

    async def stop_child(self, child: str | PID) -> PID:
        """Stop a child, within its shutdown time; it stays down until it is started. Returns the process that was stopped.

        Raises:
            ChildUnknownError, ChildNotRunningError, ChildBusyError: it is refused, and nothing is changed.
        """
        pid: PID = await self._operate(StopChild(child))
        return pid

    async def restart_child(self, child: str | PID) -> PID:
        """Stop a child if it runs, and start it, without back-off and without its siblings.

        Raises:
            ChildUnknownError, ChildDisabledError, ChildBusyError: it is refused, and nothing is changed.
            SpawnError: it could not be started; it is tried again as after a failure.
        """
        pid: PID = await self._operate(RestartChild(child))
        return pid

    async def add_child(self, spec: ChildSpec) -> PID:
        """Start a further child, after all others.

        Raises:
            ChildExistsError, NameTakenError: it is refused, and nothing is changed.
            SpawnError: it could not be started, and was not added.
            NotAllowedError: the strategy is SIMPLE_ONE_FOR_ONE.
        """
        pid: PID = await self._operate(AddChild(spec))
        return pid

    async def remove_child(self, child: str | PID) -> PID | None:
        """Stop a child if it runs, and forget it. Returns its last process.

        Raises:
            ChildUnknownError, ChildBusyError: it is refused, and nothing is changed.
        """
        pid: PID | None = await self._operate(RemoveChild(child))
        return pid

    async def enable_child(self, child: str) -> PID:
        """Start a child that was disabled, with a fresh budget.

        Raises:
            ChildUnknownError, ChildEnabledError, ChildBusyError: it is refused, and nothing is changed.
            SpawnError: it could not be started, and stays disabled.
        """
        pid: PID = await self._operate(EnableChild(child))
        return pid

    async def disable_child(self, child: str | PID) -> PID | None:
        """Stop a child if it runs, and refuse to start it until it is enabled. Returns its last process.

        Raises:
            ChildUnknownError, ChildDisabledError, ChildBusyError: it is refused, and nothing is changed.
        """
        pid: PID | None = await self._operate(DisableChild(child))
        return pid

    def which_children(self) -> list[ChildInfo]:
        """The children, in order."""
        return list(self.supervision().children)

    def count_children(self) -> ChildCount:
        """How many children there are, and how they are."""
        self._check_planned()
        children = self._plan.children.values()
        phases = Counter(child.phase for child in children)
        return ChildCount(
            len(children),
            phases[Phase.RUNNING],
            sum(getattr(child.spec.cls, "is_supervisor", False) for child in children),
            dict(phases),
        )

    def service(self, name: str) -> Service:
        """The address of a child of this supervisor; or, if it has none of that name, of one that is registered on the node.

        Raises:
            ChildUnknownError: there is none.
        """
        seat = (self._process.seats or {}).get(name)
        return super().service(name) if seat is None else Service(self._process.kernel, seat, self._process)

    # -- looking inside ----------------------------------------------------------------------------------------------

    def supervision(self) -> SupervisorInfo:
        """The children and the last restarts, as they are at this moment."""
        self._check_planned()
        spec, now = self._plan.spec, trio.current_time()
        wall = time.time() - now
        return SupervisorInfo(
            spec.strategy.value,
            spec.intensity,
            spec.period,
            tuple(self._info(child, now) for child in self._plan.children.values()),
            tuple(RestartRecord(at + wall, child, reason, delay) for at, child, reason, delay in self._plan.history),
        )

    def phase_of(self, name: str) -> Phase | None:
        """Where a child is in its life; None if there is no such child."""
        child = self._plan.children.get(name)
        return None if child is None else child.phase

    def restarts_of(self, name: str) -> int:
        """How often a child was started again."""
        child = self._plan.children.get(name)
        return 0 if child is None else child.restarts

    def _info(self, child: Child, now: float) -> ChildInfo:
        seat = (self._process.seats or {}).get(child.name)
        return ChildInfo(
            name=child.name,
            phase=child.phase,
            pid=child.pid,
            behaviour=child.spec.cls.__qualname__,
            restart=child.spec.restart.value,
            significant=child.spec.significant,
            restarts=child.restarts,
            resumed=0 if seat is None else seat.resumed,
            dropped=0 if seat is None else seat.dropped,
            waiting=0 if seat is None else len(seat.line),
            reason=child.reason,
            starts_in=max(0.0, child.due - now) if child.phase is Phase.BACKING_OFF else None,
        )

    def handle_inspect(self, *items: str) -> Mapping[str, str] | Awaitable[Mapping[str, str]]:
        """What a person should see: the strategy, each child with its phase, and the last restarts."""
        return self._describe()

    def _describe(self) -> dict[str, str]:
        info = self.supervision()
        pairs = {
            "strategy": info.strategy,
            "limit": f"{info.intensity} restarts in {info.period:g} s",
            **{f"child {one.name}": describe(one) for one in info.children},
        }
        for number, record in enumerate(reversed(info.restarts), 1):
            at = time.strftime("%H:%M:%S", time.localtime(record.at))
            pairs[f"restart {number}"] = f"{at} {record.child} after {record.delay:.3f} s: {record.reason}"
        return pairs

    # -- performing --------------------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Start the children. Each has time limits of its own, and all together may take longer than one."""
        process = self._process
        options = process.options
        # For one that has a seat its spec has decided.
        if process.seat is None:
            if process._scope is not None and "init_timeout" not in options.said:
                process._scope.deadline = inf
            if "shutdown" not in options.said:
                process.options = replace(options, shutdown=inf)
        given = self.children()
        spec = read_spec(await given if inspect.isawaitable(given) else given)
        self._plan = Supervision(spec, random.random)
        self._running = {}
        self._take_seats(spec)
        await self._perform(self._plan.begin(trio.current_time()))
        if self._failure is not None:
            raise self._failure

    def _take_seats(self, spec: SupervisorSpec) -> None:
        """Have a place for each child: new ones, or those that a predecessor of this supervisor left."""
        process = self._process
        process.seats = seats = {} if process.seat is None else process.seat.inner
        names = set() if spec.strategy is Strategy.SIMPLE_ONE_FOR_ONE else {child.name for child in spec.children}
        for name in seats.keys() - names:
            drop_seat(process.kernel, seats.pop(name), Shutdown("its supervisor has no such child any more"))
        for child in self._plan.children.values():
            self._seat(child)

    def _seat(self, child: Child) -> Seat:
        process, spec = self._process, child.spec
        assert process.seats is not None
        seat = process.seats.get(child.name)
        if seat is not None and seat.supervisor is process:
            return seat
        if seat is None:
            seat = Seat(child.name)
            if spec.register and spec.name == child.name:
                self._offer(process.kernel, seat)
            process.seats[child.name] = seat
        seat.supervisor = process
        seat.decide = spec.decide
        seat.fate = spec.mailbox
        seat.max_waiters = spec.max_waiters
        seat.returns_after = spec.restart.wants
        return seat

    def _offer(self, kernel: Kernel, seat: Seat) -> None:
        taken = kernel.services.get(seat.name)
        if taken is not None and taken.gone is None:
            error = NameTakenError(seat.name, taken.supervisor)
            error.add_note("ChildSpec(…, register=False) keeps the name of a child to its supervisor.")
            raise error
        kernel.services[seat.name] = seat

    async def _control(self, sender: PID, caller: Caller | None, payload: Any) -> None:
        """Take what the kernel sends: the end of a child, the timer of a back-off, an operation."""
        now = self._process.kernel.clock.now()
        if isinstance(payload, tuple):
            seat, reason = payload
            actions = self._plan.exited(seat.name, sender, reason, seat.decision, now)
        elif payload is _RETRY:
            actions = self._take_postponed()
        elif caller is None:
            self._timer = None
            actions = self._plan.woken(now)
        else:
            try:
                actions = self._ask(payload, caller)
            except Exception as error:
                caller.settle(None, error)
                return
            # If this process ends first, its end answers.
            caller.defer(self._process)
        await self._perform(actions)

    def _ask(self, operation: Operation, asker: Any) -> list[Action]:
        if isinstance(operation, AddChild):
            if not isinstance(operation.spec, ChildSpec):
                raise BadInputError("add_child(spec)", operation.spec, "a ChildSpec, such as ChildSpec('db', Database)")
            taken = self._process.kernel.services.get(operation.spec.name) if operation.spec.register else None
            if taken is not None and taken.gone is None and operation.spec.name not in self._plan.children:
                raise NameTakenError(operation.spec.name, taken.supervisor)
        return self._plan.ask(operation, asker, trio.current_time())

    async def _operate(self, operation: Operation) -> Any:
        """Do an operation from inside a callback of the supervisor itself, which cannot wait for its own mailbox."""
        process = self._process
        process.allow(Verb.SPAWN)
        self._check_planned()
        if current_task() is not process.home:
            return await process.kernel.calls.control(process.id, process, operation, None)
        asker = _Inside()
        actions = self._ask(operation, asker)
        # Found while its PID is still known, and once: a search among all children for each operation would add up.
        child = None if isinstance(operation, AddChild) else self._plan.get(operation.child)
        await self._perform(actions)
        while not asker.done and not self._plan.ended:
            if self._postponed is not None:
                await self._perform(self._take_postponed())
                continue
            assert child is not None
            ending = self._running[child.name]
            await ending.wait_gone()
            seat = self._seat(child)
            reason = ending.reason or Shutdown()
            await self._perform(self._plan.exited(child.name, ending.id, reason, seat.decision, trio.current_time()))
        return asker.result(process)

    def _check_planned(self) -> None:
        if self._process.seats is None:
            raise NotAllowedError("there are no children yet while `children` says whom to supervise")

    async def _perform(self, actions: list[Action]) -> None:
        failures = 0
        # What comes of an action is appended to the list that is being gone through.
        for action in actions:
            if type(action) is Start:
                if failures:
                    # One whose init fails at once, again and again, must not keep the supervisor from everything else.
                    self._postpone(action)
                    continue
                began, more = await self._start(self._plan.children[action.child], action.after)
                failures += not began
                actions += more
                continue
            match action:
                case Stop(name, returns, drain):
                    self._stop(self._plan.children[name], returns, drain)
                case Gone(name, reason):
                    self._lose(self._plan.children[name], reason)
                case Removed(name, reason):
                    self._forget(name, reason)
                case Answer(asker, pid, error):
                    asker.settle(pid, error)
                case Wake(at):
                    self._arm(at)
                case End(reason):
                    self._end(reason)

    def _postpone(self, action: Start) -> None:
        process = self._process
        self._postponed = action
        process.router.signal(process, Lane.SYSTEM, (CONTROL, process.id, None, _RETRY))

    def _take_postponed(self) -> list[Action]:
        action, self._postponed = self._postponed, None
        return [] if action is None else [action]

    async def _start(self, child: Child, after: Reason | None) -> tuple[bool, list[Action]]:
        """Start a child. Returns whether that succeeded, and what is to be done next."""
        process, spec = self._process, child.spec
        options = spec.options
        if options.name is not None and options.name != child.name:
            options = replace(options, name=None)  # made from a template: all would have the same name
        seat = None
        try:
            seat = self._seat(child)
            seat.successor_of = after
            started = await process_type(options).spawn(
                process.kernel, process, spec.behaviour, spec.cls, spec.args + child.args, options, seat
            )
        except Exception as error:
            # A failed spawn may not have given anybody else a turn.
            await checkpoint()
            return False, self._not_started(child, seat, error)
        self._running[child.name] = started
        if after is not None:
            if process.kernel.log.wants("info"):
                process.log.info("child started again", child=child.name, pid=str(started.id), after=str(after))
            publishing = process.kernel.publishing
            if RESTARTED in publishing.heard:
                publishing.announce(RESTARTED, Restarted(process.id, child.name, started.id, after))
        return True, self._plan.started(child.name, started.id, process.kernel.clock.now())

    def _not_started(self, child: Child, seat: Seat | None, error: Exception) -> list[Action]:
        process = self._process
        if process.kernel.log.wants("warning"):
            process.log.warning("child cannot start", child=child.name, error=repr(error))
        if self._is_first_start(child):
            error.add_note(f"It is the child {child.name!r} of the supervisor {process}.")
            self._failure = error
        original = error.error if isinstance(error, InitError) else error
        decision = self._decide(seat, original)
        return self._plan.start_failed(child.name, error, Crashed(original), decision, trio.current_time())

    def _is_first_start(self, child: Child) -> bool:
        return self._process.task is not self._process.home and not child.has_run

    def _decide(self, seat: Seat | None, error: BaseException) -> Decision | None:
        """What the child's ``decide`` says of a failed start. There is nothing to RESUME, so that means RESTART."""
        if seat is None or seat.decide is None or not isinstance(error, Exception):
            return None
        try:
            return seat.judge(error)
        except Exception as problem:
            self._process.log.error("decide failed, so the child restarts", exception=Crashed(problem).traceback)
            return None

    def _stop(self, child: Child, returns: bool, drain: bool) -> None:
        process, ending = self._process, self._running[child.name]
        seat = self._seat(child)
        seat.plan = returns
        if child.cycles:
            seat.goes_first = True
            for sibling in (process.seats or {}).values():
                if sibling.pid is None:
                    sibling.turn_away(Shutdown("it comes back after the one who waits for it has ended"))
        if drain:
            # Behind what is in its mailbox, so that it comes to all of it.
            process.router.signal(ending, Lane.MAIN, (STOP, process.id, None, Shutdown("removed when idle")))
        else:
            # In a task of its own: the supervisor goes on answering while the child takes its time.
            process.kernel.nursery.start_soon(ending.shut, Shutdown(), name=f"stop {child.name}")

    def _lose(self, child: Child, reason: Reason) -> None:
        self._running.pop(child.name, None)
        close_seat(self._process.kernel, self._seat(child), reason)
        if child.phase is not Phase.COMPLETED and self._process.kernel.log.wants("warning"):
            self._process.log.warning(f"child is {child.phase.value}", child=child.name, reason=str(reason))

    def _forget(self, name: str, reason: Reason) -> None:
        self._running.pop(name, None)
        seats = self._process.seats
        seat = None if seats is None else seats.pop(name, None)
        if seat is not None:
            drop_seat(self._process.kernel, seat, reason)

    def _arm(self, at: float) -> None:
        process = self._process
        if self._timer is not None:
            self._timer.cancel()
        clock = process.kernel.clock
        # To nobody by name: it comes back as a signal, which no full mailbox refuses.
        self._timer = timer = Timer(clock.timers, process, None, None, None, 0.0)
        clock.arm_timer(timer, max(0.0, at - trio.current_time()))

    def _end(self, reason: Reason) -> None:
        if self._failure is not None:
            return  # init raises it
        if isinstance(reason, RestartLimit):
            self._process.log.error("supervisor gives up", reason=str(reason))
        self._process.end(STOP, reason)

    def _has_order(self) -> bool:
        return self._plan.spec.strategy is not Strategy.SIMPLE_ONE_FOR_ONE

    async def _wind_down(self, reason: Reason) -> None:
        """Called by the kernel before the children are stopped: they are to go in the reverse of the order of the spec."""
        owned = self._process.owned
        if not owned:
            return
        if not self._has_order():
            # There may be many: all at once.
            async with trio.open_nursery() as nursery:
                for child in list(owned.values()):
                    nursery.start_soon(child.shut, reason)
            return
        for child in self._plan.children.values():
            if child.pid in owned:
                owned[child.pid] = owned.pop(child.pid)


class _Inside:
    """Who asks from inside the supervisor: gets the answer without a call."""

    def __init__(self) -> None:
        self.done = False
        self._pid: Any = None
        self._error: BaseException | None = None

    def settle(self, pid: Any, error: BaseException | None) -> bool:
        self.done = True
        self._pid, self._error = pid, error
        return True

    def result(self, process: Process) -> Any:
        if not self.done:
            raise NotAllowedError(f"{process} is ending, and its children with it")
        if self._error is not None:
            raise self._error
        return self._pid


def read_spec(given: object) -> SupervisorSpec:
    """Read what ``children`` returned, or what was given in its place.

    Raises:
        BadInputError: it is no spec.
    """
    if isinstance(given, SupervisorSpec):
        return given
    if isinstance(given, Sequence) and not isinstance(given, str):
        return SupervisorSpec(given)
    raise BadInputError("children of a supervisor", given, "a SupervisorSpec, or a list of ChildSpec")


def describe(child: ChildInfo) -> str:
    """One line about a child."""
    parts = [
        child.phase.value if child.starts_in is None else f"{child.phase.value}, starts in {child.starts_in:.3g} s"
    ]
    if child.pid is not None:
        parts.append(str(child.pid))
    for number, what in ((child.restarts, "restarts"), (child.resumed, "resumed"), (child.waiting, "waiting for it")):
        if number:
            parts.append(f"{number} {what}")
    if child.reason is not None:
        parts.append(f"last ended: {child.reason}")
    return ", ".join(parts)
