"""Supervision performed: children are started, stopped and started again, as their supervisor's
strategy decides.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import trio
from trio.lowlevel import checkpoint, current_task

from .._core.kernel import Kernel
from .._core.messaging.publisher import RESTARTED
from .._core.processes.process import Process
from .._core.processes.threaded_process import process_type
from .._core.processes.unhandled_messages import close_slot, drop_slot
from .._core.runtime.time_slices import in_slices
from .._core.tables.child_slot import ChildSlot, Decision
from .._core.tables.pending_calls import Caller
from .._core.tables.timers import Timer
from .._core.vocabulary.envelopes import CONTROL, STOP, Lane
from .._core.vocabulary.errors import BadInputError, InitError, NameTakenError, NotAllowedError
from .._core.vocabulary.ids import PID
from .._core.vocabulary.info import Phase, Restarted
from .._core.vocabulary.options import Options
from .._core.vocabulary.reasons import Crashed, Reason, RestartLimit, Shutdown
from .._core.vocabulary.states import Operation as Verb
from .._core.vocabulary.text import shown
from ..actor import Actor
from .actions import Action, AddChild, Answer, End, Gone, Operation, Removed, Start, Stop, Wake
from .child import Child
from .specs import ChildSpec, Strategy, SupervisorSpec
from .strategies import Supervision

__all__ = ["Supervising"]


_MANY: Final = 256
"""After so many children there is a look at the clock."""
_RETRY: Final = object()
"""What a supervisor sends itself to go on with a start."""


class Supervising(Actor):
    """What a supervisor does by itself: it tells its strategy what has happened, and does what that
    decides.

    Each kind of action is one method, so that a pool can add to it what it needs.
    """

    _plan: Supervision
    _running: dict[str, Process]
    _timer: Timer | None = None
    _postponed: Start | None = None
    _failure: Exception | None = None

    # -- what happens ------------------------------------------------------------------------------

    def _take_plan(self, spec: SupervisorSpec) -> list[Action]:
        """Take the plan. Returns what is to be done first: to start the children."""
        self._plan = Supervision(spec, random.random)
        self._running = {}
        self._take_slots(spec)
        return self._plan.begin(trio.current_time())

    async def _control(self, sender: PID, caller: Caller | None, payload: Any) -> None:
        """Take what the kernel sends: the end of a child, the timer of a back-off, an operation."""
        now = self._process.kernel.clock.now()
        if isinstance(payload, tuple):
            slot, reason = payload
            actions = self._plan.exited(slot.name, sender, reason, slot.decision, now)
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
                raise BadInputError(
                    "add_child(spec)",
                    operation.spec,
                    "a ChildSpec, such as ChildSpec('db', Database)",
                )
            taken = (
                self._process.kernel.services.get(operation.spec.name)
                if operation.spec.register
                else None
            )
            if (
                taken is not None
                and taken.gone is None
                and operation.spec.name not in self._plan.children
            ):
                raise NameTakenError(operation.spec.name, taken.supervisor)
        return self._plan.ask(operation, asker, trio.current_time())

    async def _operate(self, operation: Operation) -> Any:
        """Do an operation from inside a callback of the supervisor itself, which cannot wait for
        its own mailbox.
        """
        process = self._process
        process.allow(Verb.SPAWN)
        self._check_planned()
        if current_task() is not process.home:
            return await process.kernel.calls.control(process.id, process, operation, None)
        asker = _Inside()
        actions = self._ask(operation, asker)
        # Found while its PID is still known, and once: a search among all children for each
        # operation would add up.
        child = None if isinstance(operation, AddChild) else self._plan.get(operation.child)
        await self._perform(actions)
        while not asker.done and not self._plan.ended:
            if self._postponed is not None:
                await self._perform(self._take_postponed())
                continue
            assert child is not None
            ending = self._running[child.name]
            await ending.wait_gone()
            slot = self._slot(child)
            reason = ending.reason or Shutdown()
            await self._perform(
                self._plan.exited(child.name, ending.id, reason, slot.decision, trio.current_time())
            )
        return asker.result(process)

    def _check_planned(self) -> None:
        if self._process.slots is None:
            raise NotAllowedError(
                "there are no children yet while `children` says whom to supervise"
            )

    # -- what is done about it ---------------------------------------------------------------------

    async def _perform(self, actions: list[Action]) -> None:
        # Starts are spelled out: each level of a tree takes the stack of its init, and the
        # recursion limit bounds its depth.
        failures, process = 0, self._process
        kernel, router = process.kernel, process.router
        # What comes of an action is appended to the list that is being gone through.
        for action in actions:
            if type(action) is Start:
                if failures:
                    # One whose init fails at once, again and again, must not keep the supervisor
                    # from everything else.
                    self._postpone(action)
                    continue
                child, slot = self._plan.children[action.child], None
                spec, options = child.spec, _options_of(child)
                try:
                    slot = self._slot(child)
                    slot.successor_of = action.after
                    started = await process_type(options).spawn(
                        kernel,
                        process,
                        spec.behaviour,
                        spec.cls,
                        spec.args + child.args,
                        options,
                        slot,
                    )
                except Exception as problem:
                    # A failed spawn may not have given anybody else a turn.
                    await checkpoint()
                    failures += 1
                    actions += self._not_started(child, slot, problem)
                else:
                    actions += self._has_started(child, started, action.after)
                if router.pause_is_due():
                    await router.turn()
                continue
            match action:
                case Stop(name, returns, drain):
                    child = self._plan.children[name]
                    if child.cycles and not self._slot(child).goes_first:
                        await in_slices(self._announce_cycle())
                    self._stop(child, returns, drain)
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

    def _has_started(self, child: Child, started: Process, after: Reason | None) -> list[Action]:
        """A start succeeded. Returns what is to be done next."""
        process = self._process
        self._running[child.name] = started
        if after is not None:
            if process.kernel.log.wants("warning"):
                process.log.warning(
                    "child started again",
                    child=child.name,
                    child_pid=str(started.id),
                    after=str(after),
                )
            publishing = process.kernel.publisher
            if RESTARTED in publishing.heard:
                publishing.announce(RESTARTED, Restarted(process.id, child.name, started.id, after))
        return self._plan.started(child.name, started.id, process.kernel.clock.now())

    def _not_started(self, child: Child, slot: ChildSlot | None, error: Exception) -> list[Action]:
        """A start failed. Returns what is to be done next."""
        process = self._process
        if process.kernel.log.wants("warning"):
            process.log.warning("child cannot start", child=child.name, error=shown(error))
        if self._is_first_start(child):
            error.add_note(f"It is the child {child.name!r} of the supervisor {process}.")
            self._failure = error
        original = error.error if isinstance(error, InitError) else error
        decision = self._decide(slot, original)
        return self._plan.start_failed(
            child.name, error, Crashed(original), decision, trio.current_time()
        )

    def _is_first_start(self, child: Child) -> bool:
        return self._process.task is not self._process.home and not child.has_run

    def _decide(self, slot: ChildSlot | None, error: BaseException) -> Decision | None:
        """What the child's ``decide`` says of a failed start. There is nothing to RESUME, so that
        means RESTART.
        """
        if slot is None or slot.decide is None or not isinstance(error, Exception):
            return None
        try:
            return slot.judge(error)
        except Exception as problem:
            self._process.log.error(
                "decide failed, so the child restarts", exception=Crashed(problem).traceback
            )
            return None

    def _stop(self, child: Child, returns: bool, drain: bool) -> None:
        process, ending = self._process, self._running[child.name]
        self._slot(child).plan = returns
        if drain:
            # Behind what is in its mailbox, so that it comes to all of it.
            process.router.signal(
                ending, Lane.MAIN, (STOP, process.id, None, Shutdown("removed when idle"))
            )
        else:
            # In a task of its own: the supervisor goes on answering while the child takes its time.
            process.kernel.start(ending.shut, Shutdown(), name=f"stop {child.name}")

    def _announce_cycle(self) -> Iterator[None]:
        """Note that several children are stopped together, and tell those of them that wait for a
        sibling that they wait in vain.

        Once for all of them, when the first is stopped: a look at all children for each one of them
        would add up.
        """
        slots = self._process.slots or {}
        for number, child in enumerate(self._plan.children.values(), 1):
            if child.cycles:
                slots[child.name].goes_first = True
            if not number % _MANY:
                yield
        for number, slot in enumerate(slots.values(), 1):
            if slot.pid is None:
                slot.turn_away(Shutdown("it comes back after the one who waits for it has ended"))
            if not number % _MANY:
                yield

    def _lose(self, child: Child, reason: Reason) -> None:
        self._running.pop(child.name, None)
        close_slot(self._process.kernel, self._slot(child), reason)
        if child.phase is not Phase.COMPLETED and self._process.kernel.log.wants("warning"):
            self._process.log.warning(
                f"child is {child.phase.value}", child=child.name, reason=str(reason)
            )

    def _forget(self, name: str, reason: Reason) -> None:
        self._running.pop(name, None)
        slots = self._process.slots
        slot = None if slots is None else slots.pop(name, None)
        if slot is not None:
            drop_slot(self._process.kernel, slot, reason)

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

    # -- the end -----------------------------------------------------------------------------------

    def _has_order(self) -> bool:
        return self._plan.spec.strategy is not Strategy.SIMPLE_ONE_FOR_ONE

    async def _wind_down(self, reason: Reason) -> None:
        """Called by the kernel before the children are stopped: they are to go in the reverse of
        the order of the spec.
        """
        owned = self._process.owned
        if not owned:
            return
        router = self._process.router
        if not self._has_order():
            # There may be many: all at once.
            async with trio.open_nursery() as nursery:
                for child in list(owned.values()):
                    nursery.start_soon(child.shut, reason)
                    if router.pause_is_due():
                        await router.turn()
            return
        for child in self._plan.children.values():
            if child.pid in owned:
                owned[child.pid] = owned.pop(child.pid)
            if router.pause_is_due():
                await router.turn()

    # -- the places of the children ----------------------------------------------------------------

    def _take_slots(self, spec: SupervisorSpec) -> None:
        """Have a place for each child: new ones, or those that a predecessor of this supervisor
        left.
        """
        process = self._process
        process.slots = slots = {} if process.slot is None else process.slot.inner
        names = (
            set()
            if spec.strategy is Strategy.SIMPLE_ONE_FOR_ONE
            else {child.name for child in spec.children}
        )
        for name in slots.keys() - names:
            drop_slot(
                process.kernel,
                slots.pop(name),
                Shutdown("its supervisor has no such child any more"),
            )
        for child in self._plan.children.values():
            self._slot(child)

    def _slot(self, child: Child) -> ChildSlot:
        process, spec = self._process, child.spec
        assert process.slots is not None
        slot = process.slots.get(child.name)
        if slot is not None and slot.supervisor is process:
            return slot
        if slot is None:
            slot = ChildSlot(child.name)
            if spec.register and spec.name == child.name:
                self._offer(process.kernel, slot)
            process.slots[child.name] = slot
        slot.supervisor = process
        slot.decide = spec.decide
        slot.fate = spec.mailbox
        slot.max_waiters = spec.max_waiters
        slot.returns_after = spec.restart.wants
        return slot

    def _offer(self, kernel: Kernel, slot: ChildSlot) -> None:
        taken = kernel.services.get(slot.name)
        if taken is not None and taken.gone is None:
            error = NameTakenError(slot.name, taken.supervisor)
            error.add_note(
                "ChildSpec(…, register=False) keeps the name of a child to its supervisor."
            )
            raise error
        kernel.services[slot.name] = slot


def _options_of(child: Child) -> Options:
    options = child.spec.options
    if options.name is not None and options.name != child.name:
        return replace(options, name=None)  # made from a template: all would have the same name
    return options


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
