"""`Supervisor`: the actor that starts, restarts and stops its children; its operations and its
diagnostics.
"""

import inspect
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVarTuple

from .._core.verbs.behaviour import Behaviour
from .._core.vocabulary.errors import BadInputError, BehaviourError
from .._core.vocabulary.ids import PID
from .._core.vocabulary.info import ChildInfo, Phase, RestartRecord, SupervisorInfo
from .._core.vocabulary.late_methods import dataclass
from .._core.vocabulary.public_names import show_public_names
from ..service import Service
from .actions import (
    AddChild,
    DisableChild,
    EnableChild,
    RemoveChild,
    RestartChild,
    StartChild,
    StopChild,
)
from .child import Child
from .driver import SupervisionDriver
from .specs import ChildSpec, SupervisorSpec

__all__ = ["ChildCount", "Supervisor", "describe", "read_spec"]

Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class ChildCount:
    """The number of children of a supervisor, by state."""

    total: int
    running: int
    supervisors: int
    phases: Mapping[Phase, int]
    """Only the phases that occur."""


class Supervisor(SupervisionDriver):
    """An actor that supervises children: it starts them, restarts those that fail, and stops them.

    The lifecycle, in order:

    1. ``children`` returns the specs; it may be ``async``.
    2. The children start in the order of the list, each when the previous child is ready, before
       ``spawn`` returns. If a child cannot start, ``spawn`` raises and nothing remains.
    3. When a child ends, its ``restart`` policy decides whether it comes back, and the strategy
       decides which siblings restart with it. More than ``intensity`` restarts within ``period``
       seconds end the supervisor itself, so that the next supervisor up the tree decides.
    4. When the supervisor ends, its children stop in reverse order.

    A supervisor with a single child, whose service survives the crash::

        from ergo_py import Actor, ChildSpec, Node, Supervisor, SupervisorSpec, run

        class Counter(Actor):
            def init(self):
                self.total = 0

            def handle_message(self, message, sender):
                self.total += message  # a str ends the process with a TypeError

            def handle_call(self, request, caller):
                return self.total

        class Root(Supervisor):
            def children(self):
                return SupervisorSpec([ChildSpec("counter", Counter)], intensity=3, period=5.0)

        async def main(node: Node):
            await node.spawn(Root)
            counter = node.service("counter")
            counter.send(2)
            print(await counter.call("total"))
            counter.send("two")
            print(await counter.call("total", retry=True))

        run(main)  # prints 2, then 0: the restarted counter has a fresh state

    ``node.supervise([ChildSpec("counter", Counter)])`` does the same without a class.

    A supervisor may define the other callbacks of an actor, but not ``init``: do the preparation in
    ``children``.
    """

    is_supervisor = True
    _given: SupervisorSpec | Sequence[ChildSpec] | None = None

    def __init__(self, spec: SupervisorSpec | Sequence[ChildSpec] | None = None) -> None:
        self._given = spec

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        if "init" in cls.__dict__:
            raise BehaviourError(
                f"{cls.__qualname__}.init",
                cls.__dict__["init"],
                "no init in a supervisor, which starts its children there; do it in `children`, "
                "plain or async, before it returns the spec",
            )

    def children(
        self,
    ) -> SupervisorSpec | Sequence[ChildSpec] | Awaitable[SupervisorSpec | Sequence[ChildSpec]]:
        """Return the specs of the children. Called once, before any starts; may be ``async``."""
        if self._given is None:
            raise BadInputError(
                f"{type(self).__qualname__}.children",
                None,
                "`def children(self) -> SupervisorSpec`, or Supervisor(spec)",
            )
        return self._given

    async def init(self) -> None:
        """Start the children, or try it. Each child has its own time limits; together they may
        exceed the limit of a single process, so the supervisor has none by default.
        """
        process = self._process
        # In a supervised supervisor the ChildSpec has set both limits.
        if process.slot is None:
            limited = process.options.given
            process.lift_limits(
                init="init_timeout" not in limited, shutdown="shutdown" not in limited
            )
        given = self.children()
        await self._perform(
            self._take_plan(read_spec(await given if inspect.isawaitable(given) else given))
        )
        while self._postponed is not None and self._failure is None:
            # A sibling is tried until it has started; the others start before this returns.
            await self._perform(self._take_postponed())
        if self._failure is not None:
            raise self._failure

    # -- operations --------------------------------------------------------------------------------

    async def start_child(self, child: str, *args: object) -> PID:
        """Start a child that is down. With SIMPLE_ONE_FOR_ONE, name the template and give the
        further arguments.

        Raises:
            ChildError: of kind ``"unknown"``, ``"running"``, ``"disabled"``, ``"busy"``, ``"too
                many"``; the operation is refused, and nothing is changed.
            SpawnError: the child could not be started; its state is as before.
        """
        pid: PID = await self._operate(StartChild(child, args))
        return pid

    async def stop_child(self, child: str | PID) -> PID:
        """Stop a child within its shutdown time; it stays down until it is started. Return the PID
        of the stopped process.

        Raises:
            ChildError: of kind ``"unknown"``, ``"not running"``, ``"busy"``; the operation is
                refused, and nothing is changed.
        """
        pid: PID = await self._operate(StopChild(child))
        return pid

    async def restart_child(self, child: str | PID) -> PID:
        """Stop a child if it runs, and start it, without back-off and without its siblings.

        Raises:
            ChildError: of kind ``"unknown"``, ``"disabled"``, ``"busy"``; the operation is refused,
                and nothing is changed.
            SpawnError: the child could not be started; the supervisor retries as after a failure.
        """
        pid: PID = await self._operate(RestartChild(child))
        return pid

    async def upgrade_child(
        self,
        child: str | PID,
        behaviour: Callable[[*Ts], Behaviour],
        *args: *Ts,
        migrate: Callable[[Any, Any], None] | None = None,
    ) -> PID:
        """Replace the class of a running child, between two of its messages. The process goes on:
        its PID, name, mailbox, links, monitors, children, timers and open calls stay. Later
        restarts use the new class.

        ``behaviour(*args)`` makes the new instance, without ``init``; then ``migrate(old, new)``
        moves the state. Without ``migrate`` the new instance gets all attributes of the old one. If
        either raises, the child goes on with the old instance.

        Raises:
            ChildError: of kind ``"unknown"``, ``"not running"``, ``"busy"``; the operation is
                refused, and nothing is changed.
            BehaviourError: the class cannot follow the class of the child.
            NotAllowedError: the strategy is SIMPLE_ONE_FOR_ONE, or the callbacks of the child run
                in a thread.
            TargetDownError: the child ended before its turn came.
            Exception: the constructor or ``migrate`` raised it; nothing is changed.
        """
        return await self._upgrade(self._process.id, child, behaviour, args, migrate, None)

    async def add_child(self, spec: ChildSpec) -> PID:
        """Start a further child, after all others.

        Raises:
            ChildError: of kind ``"exists"``, ``"too many"``; the operation is refused, and nothing
                is changed.
            NameTakenError: another process has the name.
            BadInputError: the child is significant, and the supervisor never ends by itself.
            SpawnError: the child could not be started, and was not added.
            NotAllowedError: the strategy is SIMPLE_ONE_FOR_ONE.
        """
        pid: PID = await self._operate(AddChild(spec))
        return pid

    async def remove_child(self, child: str | PID) -> PID | None:
        """Stop a child if it runs, and forget it. Return the PID of its last process.

        Raises:
            ChildError: of kind ``"unknown"``, ``"busy"``; the operation is refused, and nothing is
                changed.
        """
        pid: PID | None = await self._operate(RemoveChild(child))
        return pid

    async def enable_child(self, child: str) -> PID:
        """Start a disabled child, with a fresh budget.

        Raises:
            ChildError: of kind ``"unknown"``, ``"enabled"``, ``"busy"``; the operation is refused,
                and nothing is changed.
            SpawnError: the child could not be started, and stays disabled.
        """
        pid: PID = await self._operate(EnableChild(child))
        return pid

    async def disable_child(self, child: str | PID) -> PID | None:
        """Stop a child if it runs, and refuse to start it until it is enabled. Return the PID of
        its last process.

        Raises:
            ChildError: of kind ``"unknown"``, ``"disabled"``, ``"busy"``; the operation is refused,
                and nothing is changed.
        """
        pid: PID | None = await self._operate(DisableChild(child))
        return pid

    def which_children(self) -> list[ChildInfo]:
        """The children, in order."""
        return list(self.supervision().children)

    def count_children(self) -> ChildCount:
        """Count the children by state."""
        self._check_planned()
        children = self._plan.children.values()
        phases = Counter(child.phase for child in children)
        return ChildCount(
            len(children),
            phases[Phase.RUNNING],
            sum(getattr(child.spec.cls, "is_supervisor", False) for child in children),
            dict(phases),
        )

    def service(self, name: str, node: str = "") -> Service:
        """Return the address of a child of this supervisor; or, without a child of that name, of a
        child registered on the node. With ``node``, of a child of that node.

        Raises:
            ChildError: of kind ``"unknown"``; neither has a child of that name.
        """
        slot = None if node else (self._process.slots or {}).get(name)
        return (
            super().service(name, node)
            if slot is None
            else Service(self._process.kernel, slot, self._process)
        )

    # -- looking inside ----------------------------------------------------------------------------

    def supervision(self, limit: int | None = None) -> SupervisorInfo:
        """The children, or the first ``limit`` of them, and the last restarts at this moment. From
        any thread.
        """
        self._check_planned()
        spec, now = self._plan.spec, self._process.kernel.clock.now()
        wall = time.time() - now
        return SupervisorInfo(
            spec.strategy.value,
            spec.intensity,
            spec.period,
            tuple(
                [self._info(child, now) for child in islice(self._plan.children.values(), limit)]
            ),
            tuple(
                RestartRecord(at + wall, child, reason, delay)
                for at, child, reason, delay in self._plan.history
            ),
        )

    def phase_of(self, name: str) -> Phase | None:
        """The lifecycle phase of a child; None if there is no such child."""
        child = self._plan.children.get(name)
        return None if child is None else child.phase

    def _info(self, child: Child, now: float) -> ChildInfo:
        slot = (self._process.slots or {}).get(child.name)
        return ChildInfo(
            name=child.name,
            phase=child.phase,
            pid=child.pid,
            behaviour=child.spec.cls.__qualname__,
            restart=child.spec.restart.value,
            significant=child.spec.significant,
            restarts=0 if slot is None else slot.restarts,
            resumed=0 if slot is None else slot.resumed,
            dropped=0 if slot is None else slot.dropped,
            waiting=0 if slot is None else len(slot.waiters),
            reason=child.reason,
            starts_in=max(0.0, child.due - now) if child.phase is Phase.BACKING_OFF else None,
        )

    def missing_children(self, patience: float) -> dict[str, Phase]:
        """The phases of the permanent children that do not run: they have failed for good, or have
        been down for longer than ``patience`` seconds. From any thread.
        """
        if self._process.slots is None:
            return {}
        now = self._process.kernel.clock.now()
        return {
            child.name: child.phase
            for child in list(self._plan.children.values())
            if child.is_missing(now, patience)
        }

    def handle_inspect(self, *items: str) -> Mapping[str, str] | Awaitable[Mapping[str, str]]:
        """Diagnostics for a human reader: the strategy, each child with its phase, and the last
        restarts.
        """
        return self._describe()

    def _describe(self) -> dict[str, str]:
        info = self.supervision()
        pairs = {
            "strategy": info.strategy,
            "limit": f"{info.intensity} restarts in {info.period:g} s",
            **{f"child {child.name}": describe(child) for child in info.children},
        }
        for number, record in enumerate(reversed(info.restarts), 1):
            at = time.strftime("%H:%M:%S", time.localtime(record.at))
            pairs[f"restart {number}"] = (
                f"{at} {record.child} after {record.delay:.3f} s: {record.reason}"
            )
        return pairs


def read_spec(given: object) -> SupervisorSpec:
    """Read the return value of ``children``, or the spec given to the constructor.

    Raises:
        BadInputError: the value is no spec.
    """
    if isinstance(given, SupervisorSpec):
        return given
    if isinstance(given, Sequence) and not isinstance(given, str):
        return SupervisorSpec(given)
    raise BadInputError(
        "children of a supervisor", given, "a SupervisorSpec, or a list of ChildSpec"
    )


def describe(child: ChildInfo) -> str:
    """Describe a child in a line."""
    parts = [
        child.phase.value
        if child.starts_in is None
        else f"{child.phase.value}, starts in {child.starts_in:.3g} s"
    ]
    if child.pid is not None:
        parts.append(str(child.pid))
    for number, noun in (
        (child.restarts, "restarts"),
        (child.resumed, "resumed"),
        (child.waiting, "waiting for it"),
    ):
        if number:
            parts.append(f"{number} {noun}")
    if child.reason is not None:
        parts.append(f"last ended: {child.reason}")
    return ", ".join(parts)


show_public_names(__name__)
