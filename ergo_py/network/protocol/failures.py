"""The failures of calls between nodes: from an exception to an operation, and back."""

from collections.abc import Mapping
from typing import Any, Final

from ..._core.vocabulary.errors import (
    BadInputError,
    CallError,
    CallFailedError,
    CallTimeoutError,
    ChildUnknownError,
    DeadlockError,
    ErgoError,
    EventUnknownError,
    InitError,
    InitTimeoutError,
    MailboxFullError,
    NameTakenError,
    NameUnknownError,
    NodeStoppedError,
    NotAllowedError,
    ProcessUnknownError,
    ServiceBusyError,
    ServiceGoneError,
    SpawnError,
    TargetDownError,
    TooManyProcessesError,
    TooManyReadersError,
    UnhandledCallError,
)
from ..._core.vocabulary.reasons import Crashed
from ..._core.vocabulary.text import brief, shown, text_of, utf8
from ..errors import NotPermittedError, RemoteError, TooManyCallsError, UnreadableError
from ..messages.listed_class import RefusedValueError
from ..messages.message_types import MessageTypes, reason_of
from .operations import Failure

__all__ = ["add_errors", "error_of", "failure_of"]


_ERGO: Final[dict[str, type[ErgoError]]] = {
    "BadInputError": BadInputError,
    "CallTimeoutError": CallTimeoutError,
    "EventUnknownError": EventUnknownError,
    "InitError": InitError,
    "InitTimeoutError": InitTimeoutError,
    "NameTakenError": NameTakenError,
    "NameUnknownError": NameUnknownError,
    "NodeStoppedError": NodeStoppedError,
    "NotAllowedError": NotAllowedError,
    "NotPermittedError": NotPermittedError,
    "ProcessUnknownError": ProcessUnknownError,
    "SpawnError": SpawnError,
    "TooManyCallsError": TooManyCallsError,
    "TooManyProcessesError": TooManyProcessesError,
    "TooManyReadersError": TooManyReadersError,
}
"""Errors of the framework that arrive in their own class, each by its name on the wire: the kinds
of an error have the same name in Python.
"""
_NAMES: Final = {cls: name for name, cls in _ERGO.items()}


_SPECIAL: Final = frozenset({"__cause__", "__notes__"})
"""Fields of all exceptions that travel."""


def add_errors(classes: Mapping[str, type[ErgoError]]) -> None:
    """Let the errors of a further part of the framework arrive in their own class."""
    _ERGO.update(classes)
    _NAMES.update({cls: name for name, cls in classes.items()})


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
            return Failure.UNREADABLE, types.encode(utf8(str(error)))
        case MailboxFullError():
            is_mailbox = error.option == MailboxFullError.option
            return Failure.FULL, types.encode(
                error.limit if is_mailbox else [error.limit, error.option]
            )
        case UnhandledCallError():
            return Failure.UNHANDLED, types.encode(error.behaviour)
        case DeadlockError():
            return Failure.DEADLOCK, types.encode([_part(pid, types) for pid in error.ring])
        case ServiceGoneError():
            return Failure.SERVICE_GONE, types.encode_reason(error.reason)
        case ServiceBusyError():
            return Failure.SERVICE_BUSY, types.encode(error.limit)
        case ChildUnknownError():
            return Failure.SERVICE_UNKNOWN, types.encode(
                [_part(error.child, types), [utf8(name) for name in error.known]]
            )
        case ErgoError() if type(error) in _NAMES:
            return Failure.ERGO, types.encode(_parts_of(error, types))
        case Exception():
            return Failure.REJECTED, types.encode(error)
    # A BaseException that is no Exception, such as a foreign cancellation, must not be raised in
    # the task of a caller on another node.
    return Failure.REJECTED, types.encode(RemoteError(type(error).__qualname__, text_of(error)))


def error_of(kind: str, to: object, request: object, payload: object, begun: bool) -> BaseException:
    """The error that a call to ``to`` raises here for a failure of this kind."""
    try:
        return _error_of(kind, to, request, payload, begun)
    except Exception:
        # The payload is not that of this kind. The call fails nevertheless.
        return RemoteError(kind, brief(payload, 200))


def _error_of(kind: str, to: Any, request: object, payload: Any, begun: bool) -> BaseException:
    match kind:
        case Failure.DOWN:
            return TargetDownError(to, request, reason_of(payload), begun=begun)
        case Failure.CRASHED if isinstance(payload, Crashed):
            return CallFailedError(to, request, payload)
        case Failure.FULL:
            limit, *option = payload if isinstance(payload, list) else [payload]
            return MailboxFullError(to, request, limit, *option)
        case Failure.UNHANDLED:
            return UnhandledCallError(to, request, str(payload))
        case Failure.DEADLOCK:
            return DeadlockError(to, request, payload)
        case Failure.UNREADABLE:
            return UnreadableError(str(payload), to, request)
        case Failure.SERVICE_GONE:
            return ServiceGoneError(to.name, request, reason_of(payload))
        case Failure.SERVICE_BUSY:
            return ServiceBusyError(to.name, request, payload)
        case Failure.SERVICE_UNKNOWN:
            child, known = payload
            return ChildUnknownError(child, tuple(known))
        case Failure.UNSENDABLE:
            name, text = payload if isinstance(payload, list) else ("MessageError", payload)
            return CallFailedError(to, request, Crashed.told(RemoteError(str(name), str(text)), ""))
        case Failure.ERGO:
            return _rebuilt(payload, to, request)
    return payload if isinstance(payload, Exception) else RemoteError(kind, str(payload))


def _parts_of(error: ErgoError, types: MessageTypes) -> list[object]:
    """The class of an error, its text, its cause and its fields."""
    cause = error.__cause__
    text = error.args[0] if error.args else ""
    fields = {
        name: _part(value, types)
        for name, value in vars(error).items()
        # The caller still has its own request and target; `_rebuilt` puts them back as they are,
        # instead of a decoded copy of a request that may have 16 MiB.
        if name not in ("request", "target") or not isinstance(error, CallError)
    }
    return [
        _NAMES[type(error)],
        utf8(text_of(text)),
        cause if isinstance(cause, Exception) else None,
        fields,
    ]


def _part(value: object, types: MessageTypes) -> object:
    try:
        # A value that cannot travel must not turn the error into another class: the value arrives
        # as text.
        types.encode(value)
    except RefusedValueError:
        return utf8(shown(value))
    return value


def _rebuilt(payload: object, to: object, request: object) -> BaseException:
    """An error of the framework, from its parts. Its constructor does not run: the text is the text
    of the other node.
    """
    match payload:
        case [str(name), str(text), (Exception() | None) as cause, dict(fields)] if name in _ERGO:
            error = _ERGO[name].__new__(_ERGO[name])
            BaseException.__init__(error, text)
            fields = {**fields, "__cause__": cause}
            if isinstance(error, CallError):
                fields |= {"target": to, "request": request}
            for field, value in fields.items():
                # The other node chooses the names of the fields: with `__dict__` or `__context__`,
                # it could change more of the error than its own fields.
                if isinstance(field, str) and (field in _SPECIAL or field[:2] != "__"):
                    setattr(error, field, value)
            return error
    # Also for a class that only a later version knows: the call fails with the text of that error.
    return RemoteError("ErgoError", str(payload))
