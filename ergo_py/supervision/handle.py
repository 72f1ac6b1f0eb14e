"""`SupervisorHandle`: the operations of a supervisor, for code outside its callbacks."""

from collections.abc import Callable
from typing import Any, TypeVarTuple

from .._core.kernel import Kernel
from .._core.processes.process import Process
from .._core.verbs.behaviour import Behaviour
from .._core.verbs.common import check_timeout
from .._core.vocabulary.ids import PID, Target
from .._core.vocabulary.info import ChildInfo
from .._core.vocabulary.public_names import show_public_names
from ..service import Service
from .actions import (
    AddChild,
    DisableChild,
    EnableChild,
    Operation,
    RemoveChild,
    RestartChild,
    StartChild,
    StopChild,
)
from .specs import ChildSpec
from .supervisor import ChildCount, Supervisor

__all__ = ["SupervisorHandle"]

Ts = TypeVarTuple("Ts")


class SupervisorHandle:
    """The operations of a supervisor, for code outside its callbacks."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self._kernel = kernel
        self._target = target

    def __repr__(self) -> str:
        return f"<SupervisorHandle {self._target}>"

    @property
    def pid(self) -> PID:
        """The supervisor's process.

        Raises:
            ProcessUnknownError: it has ended.
        """
        return self._process().id

    def children(self) -> list[ChildInfo]:
        """The children, in order. From any thread, also while the supervisor is busy."""
        return self._kernel.router.bridge.run(lambda: self._supervisor().which_children())

    def count(self) -> ChildCount:
        """How many children there are, and how they are. From any thread, also while the supervisor
        is busy.
        """
        return self._kernel.router.bridge.run(lambda: self._supervisor().count_children())

    def service(self, child: str | PID) -> Service:
        """The address of a child, which survives its restarts.

        Raises:
            ChildError: there is no such child.
        """
        supervisor = self._supervisor()
        return Service(self._kernel, supervisor._slot(supervisor._plan.find(child)))

    async def start_child(self, child: str, *args: object, timeout: float | None = None) -> PID:
        """As :meth:`Supervisor.start_child`."""
        pid: PID = await self._operate(StartChild(child, args), timeout)
        return pid

    async def stop_child(self, child: str | PID, *, timeout: float | None = None) -> PID:
        """As :meth:`Supervisor.stop_child`."""
        pid: PID = await self._operate(StopChild(child), timeout)
        return pid

    async def restart_child(self, child: str | PID, *, timeout: float | None = None) -> PID:
        """As :meth:`Supervisor.restart_child`."""
        pid: PID = await self._operate(RestartChild(child), timeout)
        return pid

    async def upgrade_child(
        self,
        child: str | PID,
        behaviour: Callable[[*Ts], Behaviour],
        *args: *Ts,
        migrate: Callable[[Any, Any], None] | None = None,
        timeout: float | None = None,
    ) -> PID:
        """As :meth:`Supervisor.upgrade_child`."""
        check_timeout(timeout)
        return await self._supervisor()._upgrade(
            self._kernel.pid, child, behaviour, args, migrate, timeout
        )

    async def add_child(self, spec: ChildSpec, *, timeout: float | None = None) -> PID:
        """As :meth:`Supervisor.add_child`."""
        pid: PID = await self._operate(AddChild(spec), timeout)
        return pid

    async def remove_child(self, child: str | PID, *, timeout: float | None = None) -> PID | None:
        """As :meth:`Supervisor.remove_child`."""
        pid: PID | None = await self._operate(RemoveChild(child), timeout)
        return pid

    async def enable_child(self, child: str, *, timeout: float | None = None) -> PID:
        """As :meth:`Supervisor.enable_child`."""
        pid: PID = await self._operate(EnableChild(child), timeout)
        return pid

    async def disable_child(self, child: str | PID, *, timeout: float | None = None) -> PID | None:
        """As :meth:`Supervisor.disable_child`."""
        pid: PID | None = await self._operate(DisableChild(child), timeout)
        return pid

    def _process(self) -> Process:
        found = self._kernel.router.resolve(self._target)
        if (
            not isinstance(found, Process)
            or found.slots is None
            or not isinstance(found.behaviour_itself, Supervisor)
        ):
            raise self._kernel.router.unknown(self._target, "supervisor")
        return found

    def _supervisor(self) -> Supervisor:
        supervisor: Supervisor = self._process().behaviour_itself
        return supervisor

    async def _operate(self, operation: Operation, timeout: float | None) -> Any:
        check_timeout(timeout)
        return await self._kernel.calls.control(
            self._kernel.pid, self._process(), operation, timeout
        )


show_public_names(__name__)
