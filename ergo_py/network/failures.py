"""The failures of calls between nodes: from an exception to an operation, and back."""

from typing import Any

from .._core.vocabulary.errors import (
    CallFailedError,
    DeadlockError,
    MailboxFullError,
    TargetDownError,
    UnhandledCallError,
)
from .._core.vocabulary.reasons import Crashed
from .errors import RemoteError, UnreadableError
from .messages.message_types import MessageTypes
from .operations import Failure

__all__ = ["error_of", "failure_of"]


def failure_of(error: BaseException, types: MessageTypes) -> tuple[str, bytes]:
    """The kind of an error, and its content as it travels.

    Raises:
        RefusedValueError: a part of the error cannot travel.
    """
    match error:
        case TargetDownError():
            return Failure.DOWN, types.encode_reason(error.reason)
        case CallFailedError():
            return Failure.CRASHED, types.encode_reason(error.reason)
        case UnreadableError():
            return Failure.UNREADABLE, types.encode(str(error))
        case MailboxFullError():
            return Failure.FULL, types.encode(error.limit)
        case UnhandledCallError():
            return Failure.UNHANDLED, types.encode(error.behaviour)
        case DeadlockError():
            return Failure.DEADLOCK, types.encode(list(error.ring))
        case Exception():
            return Failure.REJECTED, types.encode(error)
    return Failure.REJECTED, types.encode(RemoteError(type(error).__qualname__, str(error)))


def error_of(kind: str, to: Any, request: object, payload: Any) -> BaseException:
    """The error that a call to ``to`` raises here for a failure of this kind."""
    match kind:
        case Failure.DOWN:
            return TargetDownError(to, request, payload)
        case Failure.CRASHED:
            return CallFailedError(to, request, payload)
        case Failure.FULL:
            return MailboxFullError(to, request, payload)
        case Failure.UNHANDLED:
            return UnhandledCallError(to, request, str(payload))
        case Failure.DEADLOCK:
            return DeadlockError(to, request, payload)
        case Failure.UNREADABLE:
            return UnreadableError(str(payload), to, request)
        case Failure.UNSENDABLE:
            return CallFailedError(
                to, request, Crashed.told(RemoteError("MessageTypeError", str(payload)), "")
            )
    return payload if isinstance(payload, Exception) else RemoteError(kind, str(payload))
