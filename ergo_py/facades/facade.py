"""`Facade`: the verbs of a node or of a handle, for code that does not run on the node's loop.
`Blocking` and `Asyncio` are its kinds, which differ in how they wait.
"""

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

import outcome
import trio

from .._core.kernel import Kernel
from .._core.runtime.bridge import Parker
from .._core.runtime.detached_task import is_cut_off
from .._core.vocabulary.errors import NodeStoppedError, NotAllowedError
from .._core.vocabulary.hints import did_you_mean, explain
from .rows import Row

__all__ = ["Asyncio", "Blocking", "Facade"]

T = TypeVar("T")


class Facade:
    """The verbs of a subject: a node or a handle. A table is a subclass with rows. A class that
    inherits from a table and from a kind of facade has a verb for each row.
    """

    _kind: ClassVar[str] = ""
    """``blocking`` or ``asyncio``; empty for a table."""
    _variable: ClassVar[str] = "handle"
    """The variable that errors show."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls._kind:
            return
        for name in dir(cls):
            row = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
            if isinstance(row, Row):
                setattr(cls, name, row.derive(cls, name))

    def __init__(self, subject: Any, kernel: Kernel) -> None:
        self._subject = subject
        self._kernel = kernel

    def __repr__(self) -> str:
        return f"<{self._kind} {self._subject!r}>"

    if not TYPE_CHECKING:  # type checkers report this themselves

        def __getattr__(self, name: str) -> NoReturn:
            # With this `obj`, Python adds no suggestion of its own.
            raise AttributeError(self._unknown(name), name=name, obj=None)

    def _unknown(self, name: str) -> str:
        known = () if name.startswith("_") else [each for each in dir(type(self)) if each[0] != "_"]
        return f"{type(self).__name__} has no {name!r}{did_you_mean(name, known, '`{}`')}"


class Blocking(Facade):
    """Verbs that block the calling thread until the node's loop has run them."""

    _kind = "blocking"

    def _wait(
        self, function: Callable[[], Awaitable[T]], undo: Callable[[T], object] | None = None
    ) -> T:
        bridge = self._kernel.router.bridge
        bridge.refuse_on_loop("a blocking verb", "`await` and the node's own verb")
        parker: Parker[outcome.Outcome[T]] = Parker()
        scope = trio.CancelScope()

        async def job() -> None:
            try:
                with scope:
                    result = await outcome.acapture(function)
                    if isinstance(result, outcome.Error) and is_cut_off(result.error):
                        result.unwrap()  # for trio
                    parker.settle(result)
            finally:
                if scope.cancel_called:
                    abandon()
                # Has an effect only without a result: if the waiting thread cancelled the scope, it
                # no longer waits; if the node ended, it gets this error.
                parker.settle(outcome.Error(NodeStoppedError(self._kernel.pid.node)))

        def abandon() -> None:
            """The thread waits no longer: undo the verb."""
            nonlocal undo
            scope.cancel()
            if undo is not None and isinstance(parker.value, outcome.Value):
                undo(parker.value.value)
                undo = None

        def start() -> None:
            self._kernel.start(job, name="for a thread")

        bridge.post(copy_context().run, start)
        try:
            parker.wait(None)
        except BaseException:
            bridge.undo(abandon)
            raise
        assert parker.value is not None
        if isinstance(parker.value, outcome.Error):
            explain(parker.value.error)
        return parker.value.unwrap()


class Asyncio(Facade):
    """Verbs that a task of asyncio awaits while the node's loop runs them, in another thread."""

    _kind = "asyncio"

    async def _wait(
        self, function: Callable[[], Awaitable[T]], undo: Callable[[T], object] | None = None
    ) -> T:
        from .trio_task import TrioTask  # noqa: PLC0415 - synchronous code needs no asyncio

        self._check_loop()
        return await TrioTask(self._kernel, function, undo).result()

    def _check_loop(self) -> None:
        from asyncio import get_running_loop  # noqa: PLC0415 - as above

        self._kernel.router.bridge.refuse_on_loop(
            "a verb of ergo_py.aio", "the verb of the node itself, such as `await node.call(…)`,"
        )
        try:
            get_running_loop()
        except RuntimeError:
            raise NotAllowedError(
                "a verb of ergo_py.aio is awaited on asyncio's loop, and no such loop runs in "
                "this thread; write `asyncio.run_coroutine_threadsafe(node.call(…), loop)` in "
                "other threads, or open the node with `ergo_py.blocking`"
            ) from None
