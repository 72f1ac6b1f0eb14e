"""Inspection of a process without any code in it: its state, holding it, and watching its
callbacks.

Nothing here costs a process anything that nobody looks at. A request travels as one more kind of
signal, and is served by the process between two messages. Whoever watches callbacks has a stand-in
put in the place of the behaviour for as long as that takes.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from trio.lowlevel import current_task

from ..kernel import Kernel
from ..messaging.waiters import TaskCaller
from ..processes import message_loop
from ..tables.pending_calls import Caller
from ..vocabulary.dispatchers import LOOP_VERBS, SENDING_VERBS
from ..vocabulary.envelopes import LOOK, Lane
from ..vocabulary.errors import BadInputError, DeadlockError
from ..vocabulary.ids import PID, Target
from ..vocabulary.reasons import Reason
from ..vocabulary.text import brief
from .callback_watch import (
    TOLD_VERBS,
    CallbackObserver,
    WatchedBehaviour,
    drop_if_unused,
    tell_of_sending,
    tell_of_sending_no_more,
    watch_of,
)

if TYPE_CHECKING:
    from ..processes.process import Process

__all__ = [
    "ask",
    "get_state",
    "observe",
    "remember_messages",
    "replace_state",
    "show",
    "stop_observing",
]

_NOT_STATE: Final = ("_process", *LOOP_VERBS, *SENDING_VERBS, *TOLD_VERBS)
"""What the kernel has put into an instance."""
_SHOWN: Final = 2000
"""Characters of a message or a value that are shown."""


# -- asking ----------------------------------------------------------------------------------------


async def ask(
    kernel: Kernel,
    sender: PID,
    process: "Process",
    to: Target,
    what: str,
    request: Any,
    timeout: float | None,
) -> Any:
    """Have a process do ``request(process, caller)`` in its own turn, before the messages that
    wait, and wait for the answer.
    """
    task = current_task()
    if process.works_in(task):
        raise DeadlockError(process.id, what, [process.id, process.id])
    caller = TaskCaller(sender, next(kernel.router.references), to, what, task)
    caller.callee = process
    kernel.router.signal(process, Lane.SYSTEM, (LOOK, sender, caller, request))
    await kernel.calls.wait(None, caller, timeout)
    return caller.result()


# -- state -----------------------------------------------------------------------------------------


def _real(process: "Process") -> Any:
    watch = process.kernel.watches.get(process.id)
    found = process.behaviour if watch is None or watch.real is None else watch.real
    # One with a thread has a stand-in of its own all the time.
    return getattr(found, "behaviour_itself", found)


def _attributes(behaviour: Any) -> dict[str, object]:
    found: dict[str, object] = {}
    for cls in reversed(type(behaviour).__mro__):
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(behaviour, name):
                found[name] = getattr(behaviour, name)
    found.update(getattr(behaviour, "__dict__", {}))
    for name in _NOT_STATE:
        found.pop(name, None)
    return found


async def get_state(process: "Process", caller: Caller) -> None:
    """Answer with the attributes of the behaviour."""
    caller.settle(_attributes(_real(process)), None)


def replace_state(function: Callable[[dict[str, object]], Mapping[str, object]]) -> Any:
    """Make the request that gives a behaviour the attributes that ``function`` makes of the present
    ones.
    """

    async def replace(process: "Process", caller: Caller) -> None:
        behaviour = _real(process)
        before = _attributes(behaviour)
        try:
            after = function(dict(before))
            if not isinstance(after, Mapping) or not all(isinstance(name, str) for name in after):
                raise BadInputError(
                    "what the function returned", after, "a dict from names of attributes to values"
                )
            _put(behaviour, before, after)
        except Exception as error:
            # Whatever was wrong with the function, it must not harm the process.
            _put(behaviour, _attributes(behaviour), before)
            caller.settle(None, error)
        else:
            caller.settle(dict(after), None)

    return replace


def _put(behaviour: Any, before: Mapping[str, object], after: Mapping[str, object]) -> None:
    for name in before.keys() - after.keys():
        delattr(behaviour, name)
    for name, value in after.items():
        if name not in before or before[name] is not value:
            setattr(behaviour, name, value)


def show(kernel: Kernel, what: str, value: object) -> str:
    """A value as text, after the node's ``redact`` has seen it. Never raises, and is never long."""
    if kernel.options.redact is not None:
        try:
            value = kernel.options.redact(what, value)
        except Exception as error:
            return f"<redact raised {type(error).__name__}>"
    try:
        return brief(value, _SHOWN)
    except Exception as error:
        return f"<{type(value).__qualname__} whose repr raised {type(error).__name__}>"


# -- watching callbacks ----------------------------------------------------------------------------


def observe(observer: CallbackObserver) -> Any:
    """Make the request that has ``observer`` told about every callback from now on."""

    async def begin(process: "Process", caller: Caller) -> Reason | None:
        watch = watch_of(process)
        watch.observers.append(observer)
        if observer.hears_sending:
            tell_of_sending(process, watch, _real(process))
        caller.settle(None, None)
        if watch.real is not None:
            return None
        watch.real = process.behaviour
        process.behaviour = WatchedBehaviour(process, watch)
        return message_loop.AGAIN

    return begin


def remember_messages(process: "Process", count: int) -> None:
    """Keep the types of the last ``count`` messages of a new process for its obituary."""
    watch = watch_of(process)
    watch.recent = deque(maxlen=count)
    watch.real = process.behaviour
    process.behaviour = WatchedBehaviour(process, watch)


def stop_observing(process: "Process", observer: CallbackObserver) -> None:
    """Tell ``observer`` nothing any more; the last one to go gives the process its behaviour back."""
    watch = process.kernel.watches.get(process.id)
    if watch is None or observer not in watch.observers:
        return
    watch.observers.remove(observer)
    if watch.told and not any(one.hears_sending for one in watch.observers):
        tell_of_sending_no_more(watch, _real(process))
    if (
        not watch.observers
        and watch.real is not None
        and watch.recent is None
        and process.behaviour is not None
    ):
        process.behaviour, watch.real = watch.real, None
        process.router.signal(process, Lane.SYSTEM, (LOOK, process.id, None, _look_anew))
    drop_if_unused(process, watch)


async def _look_anew(_process: "Process", _caller: None) -> Reason:
    return message_loop.AGAIN
