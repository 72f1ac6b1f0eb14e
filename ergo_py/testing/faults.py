"""Fault injection: crash at the n-th message, delay, drop messages, fill a mailbox, ignore the
stop.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Final, TypeVar

import trio

from .._core.runtime.bridge import Parker
from .._core.verbs.behaviour import Behaviour
from .._core.verbs.meta_process import MetaProcess
from .._core.verbs.node import Node
from .._core.vocabulary.envelopes import FENCE, MAIN_LANE
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.ids import Target
from .._core.vocabulary.messages import NO_REPLY
from .._core.vocabulary.options import check_number
from .wrappers import GO_ON, before, message_of, subclass

__all__ = ["Deaf", "Fault", "crashing", "delaying", "dropping", "filled"]

B = TypeVar("B", bound=Behaviour | MetaProcess)

When = int | Collection[int] | Callable[[Any], bool]

MESSAGES: Final = ("handle_message", "handle_call")


class Fault(Exception):
    """The default exception of a behaviour made by :func:`crashing`."""


def crashing(
    behaviour: type[B],
    *,
    on: When = 1,
    error: BaseException | type[BaseException] | None = None,
    callbacks: Collection[str] = MESSAGES,
) -> type[B]:
    """Make a subclass that raises at certain messages, and otherwise behaves like the original.

    Args:
        behaviour: the class to make fail.
        on: the messages: the n-th, several numbers, or a predicate. The count continues across
            restarts, so that a child that crashes at its third message crashes once, not over and
            over.
        error: the exception to raise.
        callbacks: the callbacks that count; also ``init``, ``terminate`` and so on.
    """
    plan = _Plan(on)

    def hook(_: object, name: str, args: tuple[Any, ...]) -> object:
        if plan.strikes(message_of(args)):
            raise (
                Fault(f"{behaviour.__qualname__} was told to crash in {name}")
                if error is None
                else error
            )
        return GO_ON

    return subclass(behaviour, callbacks, before(hook))


def dropping(behaviour: type[B], *, on: When = 1, callbacks: Collection[str] = MESSAGES) -> type[B]:
    """Make a subclass that drops certain messages, like an unreliable network. A dropped call is
    never answered.

    Args:
        behaviour: the class to make lossy.
        on: the messages: as for :func:`crashing`.
        callbacks: the callbacks that count.
    """
    plan = _Plan(on)

    def hook(_: object, name: str, args: tuple[Any, ...]) -> object:
        if not plan.strikes(message_of(args)):
            return GO_ON
        return NO_REPLY if name.startswith("handle_call") else None

    return subclass(behaviour, callbacks, before(hook))


def delaying(
    behaviour: type[B],
    seconds: float,
    *,
    on: When = lambda _: True,
    callbacks: Collection[str] = MESSAGES,
) -> type[B]:
    """Make a subclass that waits before it handles certain messages, by default all of them.

    It waits on the clock of the loop, so that virtual time works. A plain callback of an actor
    becomes ``async`` for that, because it could not wait without blocking the loop. A plain
    callback of a meta-process stays plain, and its thread sleeps in real time.

    Args:
        behaviour: the class to slow down.
        seconds: the delay.
        on: the messages: as for :func:`crashing`.
        callbacks: the callbacks that count.
    """
    check_number("seconds", seconds, least=0.0)
    plan = _Plan(on)
    in_threads = isinstance(behaviour, type) and issubclass(behaviour, MetaProcess)

    def around(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        is_async = inspect.iscoroutinefunction(original)
        if in_threads and not is_async:

            @wraps(original)
            def plain_callback(self: Any, *args: object) -> object:
                if plan.strikes(message_of(args)):
                    self.pause(seconds)
                return original(self, *args)

            return plain_callback

        @wraps(original)
        async def async_callback(self: Any, *args: object) -> object:
            if plan.strikes(message_of(args)):
                await trio.sleep(seconds)
            result = original(self, *args)
            return await result if is_async else result

        return async_callback

    return subclass(behaviour, callbacks, around)


class _Plan:
    """Decides when a fault is due."""

    def __init__(self, on: When) -> None:
        self._seen = 0
        self._function: Callable[[Any], bool] | None = None
        self._numbers: frozenset[int] = frozenset()
        if callable(on):
            self._function = on
            return
        self._numbers = frozenset((on,) if isinstance(on, int) else on)
        for number in self._numbers:
            check_number("on", number, least=1, whole=True)

    def strikes(self, message: object) -> bool:
        self._seen += 1
        return (
            self._seen in self._numbers if self._function is None else bool(self._function(message))
        )


@asynccontextmanager
async def filled(node: Node, target: Target) -> AsyncIterator[int]:
    """Keep a mailbox full inside the block; gives the number of slots taken.

    The process never sees the filler: it is removed at the end of the block, and skipped if the
    process handles messages meanwhile, which makes room again. The mailbox of a sleeping process
    stays full: its overflow rule applies to every sender.

    Raises:
        ProcessUnknownError: there is no process at this address.
        BadInputError: its mailbox has no bound, so it is never full.
    """
    receiver = node._router.resolve(target)
    if receiver is None:
        raise node._router.unknown(target)
    box = receiver.mailbox
    if not box.limit:
        raise BadInputError(
            "filled(target)", target, "a process with a bound: `spawn(…, mailbox_size=10)`"
        )
    # Let a process that was just spawned take its first step now, so that it sleeps afterwards.
    for _ in range(2):
        await trio.lowlevel.checkpoint()
    # Push instead of send, so that the process is not woken.
    filler = (FENCE, node.pid, _Nothing(), None)
    taken = 0
    while box.has_room(MAIN_LANE):
        box.push_signal(MAIN_LANE, filler)
        taken += 1
    try:
        yield taken
    finally:
        for _ in range(box.main.count(filler)):
            box.main.remove(filler)
        box.admit_waiters()
        if len(box):
            receiver.wake()


class _Nothing:
    """Stands in for the waiter of a fence: no task waits."""

    def settle(self, _value: object, _error: object) -> bool:
        return True


class Deaf(MetaProcess):
    """A meta-process whose reader ignores the stop, like a library that cannot be interrupted.

    The node reports its thread and abandons it. The thread ends when the test calls
    :meth:`release`; until then it is a leak.
    """

    kind = "deaf"

    def __init__(self) -> None:
        self._end: Parker[None] = Parker()

    def start(self) -> None:
        """Block, regardless of the stop."""
        self._end.wait(None)

    def release(self) -> None:
        """Let the thread end. May be called from any thread."""
        self._end.settle(None)
