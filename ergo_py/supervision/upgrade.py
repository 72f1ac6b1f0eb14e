"""`Upgrade`: another class in the place of the class of a running child."""

import inspect
from collections.abc import Callable
from types import CoroutineType
from typing import Any, Final, cast

from .._core.inspection.state import attributes_of
from .._core.kernel import Kernel
from .._core.processes.process import Handlers, Process
from .._core.processes.threaded_process import DispatchedProcess
from .._core.vocabulary.errors import BadInputError, BehaviourError, NotAllowedError
from .._core.vocabulary.hints import add_note
from .specs import ChildSpec

__all__ = ["Migrate", "Upgrade"]

Migrate = Callable[[Any, Any], object]
"""Moves the state from the old instance to the new one."""


_PLAIN: Final = "a plain function: `def migrate(old, new)`; no message is handled while it runs"


class Upgrade:
    """The replacement of a child's class. It performs all of it, or raises and changes nothing."""

    __slots__ = ("_child", "_migrate", "spec")

    def __init__(self, child: str, spec: ChildSpec, migrate: Migrate | None) -> None:
        self._child = child
        self.spec: ChildSpec = spec
        """The spec of the child with the new class."""
        self._migrate = migrate

    def check(self, kernel: Kernel, process: Process) -> None:
        """Refuse a class that cannot follow the class of the process.

        Raises:
            BadInputError: ``migrate`` is no plain function.
            BehaviourError: the class is not of the same kind, or has a faulty callback.
            NotAllowedError: the callbacks of the process run in a thread.
        """
        given, cls, old = self._migrate, self.spec.cls, type(process.behaviour_itself)
        called = f"upgrade_child({self._child!r}, {cls.__qualname__})"
        if given is not None and (not callable(given) or inspect.iscoroutinefunction(given)):
            raise BadInputError(f"{called} with migrate", given, _PLAIN)
        if isinstance(process, DispatchedProcess):
            raise NotAllowedError(
                f"{called}: the callbacks of {process} run in a thread, which may still use the "
                "old instance; use restart_child"
            )
        if process.callbacks.supervises or getattr(cls, "is_supervisor", False):
            raise BehaviourError(
                called,
                cls,
                "no supervisor, which has its children from its own class; upgrade "
                "its children, or use restart_child",
            )
        if cls._succeed is not old._succeed:
            raise BehaviourError(
                called,
                cls,
                f"a class of the same kind as {old.__qualname__}: a StateMachine goes "
                "on as a StateMachine, and no other class does",
            )
        kernel.callbacks_of(cls)

    def perform(self, process: Process) -> None:
        """Replace the behaviour of a process, between two of its messages."""
        old, kernel = process.behaviour_itself, process.kernel
        try:
            new = self.spec.behaviour(*self.spec.args)
            new._act_for(old)
            if self._migrate is None:
                for name, value in attributes_of(old).items():
                    setattr(new, name, value)
            elif isinstance(awaited := self._migrate(old, new), CoroutineType):
                # A lambda or an object may hide that its function is async.
                awaited.close()  # else Python would warn about it, too
                raise BadInputError("upgrade_child with migrate", self._migrate, _PLAIN)
            new._succeed(old)
        except Exception as error:
            add_note(
                error,
                f"upgrade_child({self._child!r}, {self.spec.cls.__qualname__}) has changed "
                "nothing.",
            )
            raise
        process.change_class(cast(Handlers, new), kernel.callbacks_of(self.spec.cls))
        watch = kernel.watches.get(process.id)
        if watch is not None and watch.real is not None:
            watch.stand_in(process)
