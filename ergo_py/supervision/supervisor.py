"""A supervisor as people know it: what it is told, what can be asked of it, and what it shows."""

import inspect
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import trio

from .._core.vocabulary.errors import BadInputError, BehaviourError
from .._core.vocabulary.ids import PID
from .._core.vocabulary.info import ChildInfo, Phase, RestartRecord, SupervisorInfo
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
from .driver import Supervising
from .specs import ChildSpec, SupervisorSpec

__all__ = ["ChildCount", "Supervisor", "describe", "read_spec"]


@dataclass(frozen=True, slots=True)
class ChildCount:
    """How many children a supervisor has, and how they are."""

    total: int
    running: int
    supervisors: int
    phases: Mapping[Phase, int]
    """Only those that occur."""


class Supervisor(Supervising):
    """An actor that looks after others: say in ``children`` whom, and how.

    They are started in order before ``spawn`` returns, and stopped in reverse order when the
    supervisor ends. It may have callbacks of its own like any actor; only ``init`` is taken, and
    what would be done there can be done in ``children``.
    """

    is_supervisor = True
    _given: SupervisorSpec | Sequence[ChildSpec] | None = None

    def __init__(self, spec: SupervisorSpec | Sequence[ChildSpec] | None = None) -> None:
        self._given = spec

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "init" in cls.__dict__:
            raise BehaviourError(
                f"{cls.__qualname__}.init",
                cls.__dict__["init"],
                "no init in a supervisor, which starts its children there; do it in `children`, "
                "plain or async, "
                "before it returns the spec",
            )

    def children(
        self,
    ) -> SupervisorSpec | Sequence[ChildSpec] | Awaitable[SupervisorSpec | Sequence[ChildSpec]]:
        """Say whom to supervise and how. Called once, before anything is started; may be ``async``."""
        if self._given is None:
            raise BadInputError(
                f"{type(self).__qualname__}.children",
                None,
                "`def children(self) -> SupervisorSpec`, or Supervisor(spec)",
            )
        return self._given

    async def init(self) -> None:
        """Start the children. Each has time limits of its own, and all together may take longer
        than one.
        """
        process = self._process
        options = process.options
        # For one that has a slot its spec has decided.
        if process.slot is None:
            if process._scope is not None and "init_timeout" not in options.said:
                process._scope.deadline = inf
            if "shutdown" not in options.said:
                process.options = replace(options, shutdown=inf)
        given = self.children()
        await self._perform(
            self._take_plan(read_spec(await given if inspect.isawaitable(given) else given))
        )
        if self._failure is not None:
            raise self._failure

    # -- operations --------------------------------------------------------------------------------

    async def start_child(self, child: str, *args: Any) -> PID:
        """Start a child that does not run. With SIMPLE_ONE_FOR_ONE, name the template, and give the
        further arguments.

        Raises:
            ChildUnknownError, ChildRunningError, ChildDisabledError, ChildBusyError: it is refused,
                and nothing is changed.
            SpawnError: it could not be started; it is as it was before.
        """
        pid: PID = await self._operate(StartChild(child, args))
        return pid

    async def stop_child(self, child: str | PID) -> PID:
        """Stop a child, within its shutdown time; it stays down until it is started. Returns the
        process that was stopped.

        Raises:
            ChildUnknownError, ChildNotRunningError, ChildBusyError: it is refused, and nothing is
                changed.
        """
        pid: PID = await self._operate(StopChild(child))
        return pid

    async def restart_child(self, child: str | PID) -> PID:
        """Stop a child if it runs, and start it, without back-off and without its siblings.

        Raises:
            ChildUnknownError, ChildDisabledError, ChildBusyError: it is refused, and nothing is
                changed.
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
            ChildUnknownError, ChildEnabledError, ChildBusyError: it is refused, and nothing is
                changed.
            SpawnError: it could not be started, and stays disabled.
        """
        pid: PID = await self._operate(EnableChild(child))
        return pid

    async def disable_child(self, child: str | PID) -> PID | None:
        """Stop a child if it runs, and refuse to start it until it is enabled. Returns its last
        process.

        Raises:
            ChildUnknownError, ChildDisabledError, ChildBusyError: it is refused, and nothing is
                changed.
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
        """The address of a child of this supervisor; or, if it has none of that name, of one that
        is registered on the node.

        Raises:
            ChildUnknownError: there is none.
        """
        slot = (self._process.slots or {}).get(name)
        return (
            super().service(name)
            if slot is None
            else Service(self._process.kernel, slot, self._process)
        )

    # -- looking inside ----------------------------------------------------------------------------

    def supervision(self) -> SupervisorInfo:
        """The children and the last restarts, as they are at this moment."""
        self._check_planned()
        spec, now = self._plan.spec, trio.current_time()
        wall = time.time() - now
        return SupervisorInfo(
            spec.strategy.value,
            spec.intensity,
            spec.period,
            tuple([self._info(child, now) for child in self._plan.children.values()]),
            tuple(
                RestartRecord(at + wall, child, reason, delay)
                for at, child, reason, delay in self._plan.history
            ),
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
        slot = (self._process.slots or {}).get(child.name)
        return ChildInfo(
            name=child.name,
            phase=child.phase,
            pid=child.pid,
            behaviour=child.spec.cls.__qualname__,
            restart=child.spec.restart.value,
            significant=child.spec.significant,
            restarts=child.restarts,
            resumed=0 if slot is None else slot.resumed,
            dropped=0 if slot is None else slot.dropped,
            waiting=0 if slot is None else len(slot.line),
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
            pairs[f"restart {number}"] = (
                f"{at} {record.child} after {record.delay:.3f} s: {record.reason}"
            )
        return pairs


def read_spec(given: object) -> SupervisorSpec:
    """Read what ``children`` returned, or what was given in its place.

    Raises:
        BadInputError: it is no spec.
    """
    if isinstance(given, SupervisorSpec):
        return given
    if isinstance(given, Sequence) and not isinstance(given, str):
        return SupervisorSpec(given)
    raise BadInputError(
        "children of a supervisor", given, "a SupervisorSpec, or a list of ChildSpec"
    )


def describe(child: ChildInfo) -> str:
    """One line about a child."""
    parts = [
        child.phase.value
        if child.starts_in is None
        else f"{child.phase.value}, starts in {child.starts_in:.3g} s"
    ]
    if child.pid is not None:
        parts.append(str(child.pid))
    for number, what in (
        (child.restarts, "restarts"),
        (child.resumed, "resumed"),
        (child.waiting, "waiting for it"),
    ):
        if number:
            parts.append(f"{number} {what}")
    if child.reason is not None:
        parts.append(f"last ended: {child.reason}")
    return ", ".join(parts)
