"""Inspection of any process without changing its code: read and replace its state, observe its
callbacks.

A process that is not inspected pays nothing. A request travels as a signal, which the process
serves between two messages. While there are observers, a proxy replaces the behaviour.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..kernel import Kernel
from ..messaging.calls import refuse_inside
from ..processes import message_loop
from ..tables.pending_calls import Caller
from ..vocabulary.dispatchers import LOOP_VERBS, SENDING_VERBS
from ..vocabulary.envelopes import LOOK, Lane
from ..vocabulary.errors import BadInputError
from ..vocabulary.ids import PID, Target
from ..vocabulary.reasons import Reason
from ..vocabulary.text import brief
from .callback_watch import (
    REPORTED_VERBS,
    CallbackObserver,
    drop_if_unused,
    report_sends,
    stop_reporting_sends,
    watch_of,
)

if TYPE_CHECKING:
    from ..processes.process import Process

__all__ = [
    "ask",
    "attributes_of",
    "get_state",
    "observe",
    "redacted",
    "remember_messages",
    "replace_state",
    "show",
    "stop_observing",
]

_NOT_STATE: Final = ("_process", *LOOP_VERBS, *SENDING_VERBS, *REPORTED_VERBS)
"""The attributes that the kernel adds to an instance."""
_SHOWN: Final = 2000
"""Longest text of a message or a value, in characters."""


# -- asking ----------------------------------------------------------------------------------------


async def ask(
    kernel: Kernel,
    sender: PID,
    process: "Process",
    to: Target,
    verb: str,
    request: object,
    timeout: float | None,
) -> Any:
    """Have a process run ``request(process, caller)`` in its own turn, before its waiting messages.
    Wait for the answer.
    """
    refuse_inside(process, verb)
    return await kernel.calls.ask(sender, process, to, Lane.SYSTEM, LOOK, verb, request, timeout)


# -- state -----------------------------------------------------------------------------------------


def attributes_of(behaviour: object) -> dict[str, object]:
    """The attributes of a behaviour, without those that the kernel adds."""
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
    caller.settle(attributes_of(process.behaviour_itself), None)


def replace_state(function: Callable[[dict[str, object]], Mapping[str, object]]) -> Any:
    """Make a request that replaces the attributes of a behaviour by the result of ``function``."""

    async def replace(process: "Process", caller: Caller) -> None:
        behaviour = process.behaviour_itself
        before = attributes_of(behaviour)
        try:
            after = function(dict(before))
            if not isinstance(after, Mapping) or not all(isinstance(name, str) for name in after):
                raise BadInputError(
                    "result of the function", after, "a dict from names of attributes to values"
                )
            _put(behaviour, before, after)
        except Exception as error:
            # An error in the function must not harm the process: restore the former attributes.
            _put(behaviour, attributes_of(behaviour), before)
            caller.settle(None, error)
        else:
            caller.settle(dict(after), None)

    return replace


def _put(behaviour: object, before: Mapping[str, object], after: Mapping[str, object]) -> None:
    for name in before.keys() - after.keys():
        delattr(behaviour, name)
    for name, value in after.items():
        if name not in before or before[name] is not value:
            setattr(behaviour, name, value)


def redacted(kernel: Kernel, what: str, value: object) -> object:
    """A value after the node's ``redact``, which may raise."""
    return value if kernel.options.redact is None else kernel.options.redact(what, value)


def show(kernel: Kernel, what: str, value: object) -> str:
    """Convert a value to a short text, after the node's ``redact``. Never raises."""
    try:
        value = redacted(kernel, what, value)
    except Exception as error:
        return f"<redact raised {type(error).__name__}>"
    try:
        return brief(value, _SHOWN)
    except Exception as error:
        return f"<{type(value).__qualname__} whose repr raised {type(error).__name__}>"


# -- watching callbacks ----------------------------------------------------------------------------


def observe(observer: CallbackObserver) -> object:
    """Make a request that reports every callback to ``observer`` from now on."""

    async def begin(process: "Process", caller: Caller) -> Reason | None:
        watch = watch_of(process)
        watch.observers.append(observer)
        if observer.wants_sends:
            report_sends(process, watch)
        caller.settle(None, None)
        if watch.real is not None:
            return None
        watch.stand_in(process)
        return message_loop.AGAIN

    return begin


def remember_messages(process: "Process", count: int) -> None:
    """Keep the types of the last ``count`` messages of a new process for its obituary."""
    watch = watch_of(process)
    watch.remember(count)
    watch.stand_in(process)


def stop_observing(process: "Process", observer: CallbackObserver) -> None:
    """Stop reporting to ``observer``. After the last observer, the process gets its own behaviour
    back.
    """
    watch = process.kernel.watches.get(process.id)
    if watch is None or observer not in watch.observers:
        return
    watch.observers.remove(observer)
    if process.behaviour is not None and not any(left.wants_sends for left in watch.observers):
        stop_reporting_sends(process)
    if (
        not watch.observers
        and watch.real is not None
        and watch.recent is None
        and process.behaviour is not None
    ):
        watch.step_back(process)
        process.router.signal(process, Lane.SYSTEM, (LOOK, process.id, None, _read_callbacks_again))
    drop_if_unused(process, watch)


async def _read_callbacks_again(_process: "Process", _caller: None) -> Reason:
    return message_loop.AGAIN
