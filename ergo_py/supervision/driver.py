"""`SupervisionDriver`: performs the actions that a supervisor's strategy decides."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import trio
from trio.lowlevel import checkpoint, current_task

from .._core.inspection.state import ask
from .._core.kernel import Kernel
from .._core.messaging.publisher import RESTARTED
from .._core.processes.message_loop import AGAIN
from .._core.processes.process import Process
from .._core.processes.spawn import spawn_process
from .._core.processes.unhandled_messages import close_slot, drop_slot
from .._core.runtime.time_slices import in_slices
from .._core.tables.child_slot import ChildSlot, Decision, Rules
from .._core.tables.pending_calls import Caller
from .._core.tables.timers import Timer
from .._core.verbs.behaviour import Behaviour
from .._core.vocabulary.envelopes import CONTROL, STOP, Lane
from .._core.vocabulary.errors import BadInputError, InitError, NameTakenError, NotAllowedError
from .._core.vocabulary.hints import add_note
from .._core.vocabulary.ids import PID
from .._core.vocabulary.info import Phase, Restarted
from .._core.vocabulary.reasons import Crashed, Reason, RestartLimit, Shutdown, is_a
from .._core.vocabulary.states import Operation as Verb
from .._core.vocabulary.text import shown
from ..actor import Actor
from .actions import Action, AddChild, Answer, End, Gone, Operation, Removed, Start, Stop, Wake
from .child import Child
from .specs import ChildSpec, Strategy, SupervisorSpec
from .strategies import Supervision

if TYPE_CHECKING:
    from .upgrade import Migrate

__all__ = ["SupervisionDriver"]


_MANY: Final = 256
"""Number of children between two looks at the clock."""
_RETRY: Final = object()
"""Message from a supervisor to itself: retry the postponed start."""


class SupervisionDriver(Actor):
    """The machinery of a supervisor: it reports events to its strategy and performs the actions
    that the strategy returns.

    Each kind of action has its own method, so that a pool can extend it.
    """

    _plan: Supervision
    _running: dict[str, Process]
    _timer: Timer | None = None
    _postponed: Start | None = None
    _failure: Exception | None = None
    _rules: tuple[ChildSpec, Rules] | None = None
    """The last spec whose rules a slot took, and these rules: the children of a template share
    them.
    """

    # -- events ------------------------------------------------------------------------------------

    def _take_plan(self, spec: SupervisorSpec) -> list[Action]:
        """Take the spec. Return the first actions: the starts of the children."""
        self._plan = Supervision(spec, self._draw)
        self._running = {}
        self._take_slots(spec)
        return self._plan.begin(trio.current_time())

    def _draw(self) -> float:
        return self._process.kernel.chance("restarts").fraction()

    async def _control(self, sender: PID, caller: Caller | None, payload: Any) -> None:
        """Handle a control message from the kernel: the end of a child, the timer of a back-off, or
        an operation.
        """
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
            # If this process ends first, its termination answers the caller.
            caller.defer(self._process)
        await self._perform(actions)

    def _ask(self, operation: Operation, asker: object) -> list[Action]:
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
        """Perform an operation from a callback of the supervisor itself, which cannot wait for its
        own mailbox.
        """
        process = self._process
        process.allow(Verb.SPAWN)
        self._check_planned()
        if current_task() is not process.callback_task:
            return await process.kernel.calls.control(process.id, process, operation, None)
        asker = _Inside()
        actions = self._ask(operation, asker)
        # Look the child up before the stop, while its PID is still known.
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

    async def _upgrade(
        self,
        sender: PID,
        name: str | PID,
        behaviour: Callable[..., Behaviour],
        args: tuple[Any, ...],
        migrate: "Migrate | None",
        timeout: float | None,
    ) -> PID:
        """Replace the class of a child. The supervisor's mailbox takes no part in it: the record of
        the child changes in the child's own turn, so that no failure comes in between.
        """
        from .upgrade import Upgrade  # noqa: PLC0415 - loaded with the node

        self._check_planned()
        child = self._plan.check_upgrade(name)
        upgrade = Upgrade(child.name, child.spec.upgraded(behaviour, args), migrate)
        kernel, process = self._process.kernel, self._running[child.name]
        upgrade.check(kernel, process)

        async def swap(process: Process, caller: Caller) -> Reason | None:
            if caller.settled:
                return None  # the caller has stopped waiting, and believes in the class before
            try:
                self._plan.check_upgrade(child.name)
                upgrade.perform(process)
            except Exception as error:
                caller.settle(None, error)
                return None
            child.is_upgraded(upgrade.spec)
            caller.settle(process.id, None)
            return AGAIN

        pid: PID = await ask(kernel, sender, process, process.id, "upgrade_child", swap, timeout)
        return pid

    def _check_planned(self) -> None:
        if self._process.slots is None:
            raise NotAllowedError(
                "there are no children yet while `children` runs; call this after `children` "
                "has returned"
            )

    # -- actions -----------------------------------------------------------------------------------

    async def _perform(self, actions: list[Action]) -> None:
        # The start is inlined here: each level of a supervision tree adds the stack frames of its
        # init, and the recursion limit bounds the depth of the tree.
        failures, process = 0, self._process
        kernel, router = process.kernel, process.router
        # Performing an action may append follow-up actions to this list.
        for action in actions:
            if type(action) is Start:
                if failures:
                    # A child whose init fails immediately, again and again, must not keep the
                    # supervisor from its other work.
                    self._postpone(action)
                    continue
                child, slot = self._plan.children[action.child], None
                spec = child.spec
                try:
                    slot = (process.slots or {}).get(child.name) or self._slot(child)
                    what = (spec.behaviour, spec.cls, child.args)
                    if spec.is_chosen:
                        what = spec.choose(child.args)
                    started = await spawn_process(
                        kernel, process, *what, child.options, slot, action.after
                    )
                except Exception as problem:
                    # A failed spawn may not have yielded to the scheduler.
                    await checkpoint()
                    failures += 1
                    actions += self._not_started(child, slot, problem)
                else:
                    actions += self._has_started(child, started, action.after)
                # After a single start the message loop pauses, if a pause is due.
                if len(actions) > 1 and router.pause_is_due():
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
        """Record a successful start and return the next actions."""
        process = self._process
        self._running[child.name] = started
        if after is not None:
            process.kernel.lifetimes.past.count_restart(child.spec.name)
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
        """Record a failed start and return the next actions."""
        process = self._process
        if process.kernel.log.wants("warning"):
            process.log.warning("child cannot start", child=child.name, error=shown(error))
        original = error.error if is_a(error, InitError) else error
        decision = self._decide(slot, original)
        actions = self._plan.start_failed(
            child.name, error, Crashed(original), decision, trio.current_time()
        )
        if self._plan.ended and self._is_first_start(child):
            add_note(error, f"It is the child {child.name!r} of the supervisor {process}.")
            self._failure = error
        return actions

    def _is_first_start(self, child: Child) -> bool:
        return self._process.task is not self._process.callback_task and not child.has_run

    def _decide(self, slot: ChildSlot | None, error: BaseException) -> Decision | None:
        """Ask the child's ``decide`` about a failed start. No process exists to RESUME, so RESUME
        means RESTART.
        """
        if slot is None or slot.rules.decide is None or not is_a(error, Exception):
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
        self._slot(child).expect_stop(returns=returns)
        if drain:
            # Queue the stop behind the messages in the mailbox, so that the child handles all of
            # them first.
            process.router.signal(
                ending, Lane.MAIN, (STOP, process.id, None, Shutdown("removed when idle"))
            )
        else:
            # Stop it in a separate task: the supervisor keeps answering while the child shuts down.
            process.kernel.start(ending.shut, Shutdown(), name=f"stop {child.name}")

    def _announce_cycle(self) -> Iterator[None]:
        """Mark the children that are stopped together, and refuse those of them that wait for a
        sibling: it restarts only after they have ended.

        Runs once for the whole group, when its first child is stopped: a scan of all children for
        each stop would take quadratic time.
        """
        slots = self._process.slots or {}
        for number, child in enumerate(self._plan.children.values(), 1):
            if child.cycles:
                slots[child.name].expect_group_stop()
            if not number % _MANY:
                yield
        for number, slot in enumerate(slots.values(), 1):
            if slot.pid is None:
                slot.turn_away(Shutdown("it restarts only after the waiting process has ended"))
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
        delay = max(0.0, at - trio.current_time())
        # Without a receiver name: it arrives as a signal, which a full mailbox does not refuse.
        self._timer = process.kernel.clock.arm_timer(delay, process, None, None, None)

    def _end(self, reason: Reason) -> None:
        if self._failure is not None:
            return  # init raises it
        if isinstance(reason, RestartLimit):
            self._process.log.error("supervisor gives up", reason=str(reason))
        self._process.end(STOP, reason)

    # -- termination -------------------------------------------------------------------------------

    def _has_order(self) -> bool:
        return self._plan.spec.strategy is not Strategy.SIMPLE_ONE_FOR_ONE

    async def _wind_down(self, reason: Reason) -> None:
        """Called by the kernel before it stops the children: order them so that they stop in
        reverse of the spec.
        """
        owned = self._process.owned
        if not owned:
            return
        router = self._process.router
        if not self._has_order():
            # There may be many: stop all at once.
            async with trio.open_nursery() as nursery:
                for running in list(owned.values()):
                    nursery.start_soon(running.shut, reason)
                    if router.pause_is_due():
                        await router.turn()
            return
        for child in self._plan.children.values():
            if child.pid in owned:
                owned[child.pid] = owned.pop(child.pid)
            if router.pause_is_due():
                await router.turn()

    # -- slots of the children ---------------------------------------------------------------------

    def _take_slots(self, spec: SupervisorSpec) -> None:
        """Give each child a slot: a new slot, or the slot that a predecessor of this supervisor
        left.
        """
        process = self._process
        slots = process.open_slots()
        names = (
            set()
            if spec.strategy is Strategy.SIMPLE_ONE_FOR_ONE
            else {child.name for child in spec.children}
        )
        for name in slots.keys() - names:
            drop_slot(
                process.kernel,
                slots.pop(name),
                Shutdown("its supervisor no longer has such a child"),
            )
        for child in self._plan.children.values():
            slot = self._slot(child)
            if slot.supervisor is not process:
                self._join(slot, child.spec)

    def _slot(self, child: Child) -> ChildSlot:
        slots = self._process.slots
        assert slots is not None
        return slots.get(child.name) or self._add_slot(slots, child)

    def _add_slot(self, slots: dict[str, ChildSlot], child: Child) -> ChildSlot:
        slot = ChildSlot(child.name)
        if child.spec.register and child.spec.name == child.name:
            self._offer(self._process.kernel, slot)
        slots[child.name] = slot
        self._join(slot, child.spec)
        return slot

    def _join(self, slot: ChildSlot, spec: ChildSpec) -> None:
        made = self._rules
        if made is None or made[0] is not spec:
            rules = Rules(spec.decide, spec.mailbox, spec.max_waiters, spec.restart.wants)
            made = self._rules = spec, rules
        slot.join(self._process, made[1])

    def _offer(self, kernel: Kernel, slot: ChildSlot) -> None:
        taken = kernel.services.get(slot.name)
        if taken is not None and taken.gone is None:
            error = NameTakenError(slot.name, taken.supervisor)
            error.add_note(
                "ChildSpec(…, register=False) keeps the name of a child to its supervisor."
            )
            raise error
        kernel.services[slot.name] = slot


class _Inside:
    """The asker of an operation inside the supervisor: gets the answer without a call."""

    def __init__(self) -> None:
        self.done = False
        self._pid: object = None
        self._error: BaseException | None = None

    def settle(self, pid: object, error: BaseException | None) -> bool:
        self.done = True
        self._pid, self._error = pid, error
        return True

    def result(self, process: Process) -> Any:
        if not self.done:
            raise NotAllowedError(f"{process} is ending, and its children with it")
        if self._error is not None:
            raise self._error
        return self._pid
