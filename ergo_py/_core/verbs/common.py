"""Helpers that the verbs of nodes, processes and meta-processes share."""

from collections.abc import Callable
from typing import Any, Final, NoReturn

from ..messaging.router import check_priority
from ..messaging.traces import Carried
from ..processes.process import Process
from ..tables.pending_calls import Caller
from ..tables.timers import Timer
from ..vocabulary.envelopes import Priority
from ..vocabulary.errors import BadInputError, NameUnknownError, NotAllowedError
from ..vocabulary.errors.messages import check_raisable
from ..vocabulary.ids import PID, Name, Target
from ..vocabulary.options import check_number
from ..vocabulary.reasons import Unregistered, as_reason
from ..vocabulary.states import Operation

__all__ = [
    "NotSpawned",
    "arm_timer",
    "check_caller",
    "check_error",
    "check_priority",
    "check_timeout",
    "exit_target",
    "kill_target",
    "refused_verb",
    "release_name",
]

_ARM_TIMER: Final = Operation.ARM_TIMER


class NotSpawned:
    """Placeholder for the kernel's object until a behaviour is spawned: each access raises."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            # Python itself probes for special methods, in help() for example.
            raise AttributeError(name)
        raise NotAllowedError(self._message)


def refused_verb(text: str) -> Callable[..., NoReturn]:
    """A verb that a class does not have: its call raises the text."""

    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        """Not available: its call says what to write instead."""
        raise NotAllowedError(text)

    return refuse


def arm_timer(
    process: Any,
    delay: float,
    period: float,
    to: Target,
    message: object,
    priority: Priority | None,
) -> Timer:
    """Arm a timer that belongs to ``process``: a process, a meta-process or a node."""
    process.allow(_ARM_TIMER)
    router = process.router
    if type(to) is not PID or to.node != router.node:
        receiver = router.resolve(to)
        if receiver is not None and receiver.is_remote:
            message = (
                Carried(message.mark, receiver.pack(to, message.message))
                if type(message) is Carried
                else receiver.pack(to, message)
            )
    chosen = process.priority if priority is None else check_priority(priority)
    timer: Timer = process.kernel.clock.arm_timer(delay, process, to, message, chosen, period)
    return timer


def release_name(process: Process) -> None:
    """Remove the name of a process, and notify the processes that watch the name."""
    name = process.name
    if name is None:
        raise NameUnknownError(None)
    process.router.registry.free_name(name)
    process.be_called(None)
    process.kernel.links.tell_all(Name(name, process.router.node), Unregistered())


def exit_target(owner: Any, sender: PID, to: Target, reason: object) -> bool:
    """Ask the process or meta-process at ``to`` to end."""
    receiver = owner.router.resolve(to)
    if receiver is None:
        return False
    if receiver.is_remote:
        receiver.send_exit(sender, to, as_reason(reason))
    else:
        receiver.ask_to_exit(sender, as_reason(reason))
    return True


def kill_target(owner: Any, to: Target) -> bool:
    """Kill the process or meta-process at ``to``."""
    receiver = owner.router.resolve(to)
    if receiver is None:
        return False
    if receiver.is_remote:
        receiver.send_kill(to)
    else:
        receiver.kill()
    return True


def check_timeout(timeout: float | None) -> None:
    """Raise BadInputError unless ``timeout`` is None or a number from 0 up."""
    # Nearly every call passes a valid float, so check for that first.
    if timeout is not None and not (type(timeout) is float and timeout >= 0.0):
        check_number("timeout", timeout, least=0.0)


def check_error(error: object) -> BaseException:
    """Raise BadInputError unless ``error`` is an exception."""
    if not isinstance(error, BaseException):
        raise BadInputError(
            "error", error, "an exception; for an ordinary answer use reply(caller, value)"
        )
    check_raisable("error", error)
    return error


def check_caller(caller: object) -> Caller:
    if not isinstance(caller, Caller):
        raise BadInputError("caller", caller, "the Caller that handle_call was given")
    return caller
