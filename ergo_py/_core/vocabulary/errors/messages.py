"""The errors of messages and calls."""

from collections.abc import Sequence

from ..hints import did_you_mean
from ..ids import name_in
from ..reasons import Crashed, Reason, is_a
from ..text import type_of
from .base import BadInputError, ErgoError, add_traceback

__all__ = [
    "CallError",
    "CallFailedError",
    "CallTimeoutError",
    "DeadlockError",
    "MailboxFullError",
    "MethodUnknownError",
    "Reject",
    "SendError",
    "TargetDownError",
    "UnhandledCallError",
    "check_raisable",
]


class SendError(ErgoError):
    """A message was not accepted. ``target`` and ``message`` are the arguments of ``send``."""

    def __init__(self, text: str, target: object, message: object) -> None:
        super().__init__(text)
        self.target = target
        self.message = message


class MailboxFullError(SendError):
    """The receiver's mailbox is full and its overflow rule is to refuse messages; or the receiver
    is an actor in which as many calls wait as its ``option`` allows.
    """

    option: str = "mailbox_size"
    """The option that sets the limit."""

    def __init__(self, target: object, message: object, limit: int, option: str = option) -> None:
        super().__init__(
            f"the mailbox of {target!r} holds its mailbox_size={limit} messages; "
            "send later, use `await send_wait(...)`, or spawn the receiver with another overflow"
            if option == "mailbox_size"
            else f"{limit} calls wait for {target!r}, as many as its {option}={limit} allows; call "
            f"later, or give it a larger {option}=",
            target,
            message,
        )
        self.limit = limit
        self.option = option


class CallError(ErgoError):
    """A call ended without an answer. ``target`` and ``request`` are the arguments of ``call``."""

    def __init__(self, text: str, target: object, request: object) -> None:
        super().__init__(text)
        self.target = target
        self.request = request


class TargetDownError(CallError):
    """The callee ended before it answered, or did not exist. ``reason`` says why. ``begun`` is
    False if no callback has begun to handle the request: it is safe to call again.
    """

    def __init__(
        self,
        target: object,
        request: object,
        reason: Reason,
        names: Sequence[str] = (),
        *,
        begun: bool = True,
    ) -> None:
        super().__init__(f"{target!r} cannot answer: {reason}", target, request)
        self.reason = reason
        self.begun = begun
        self._names = names
        if isinstance(reason, Crashed):
            self.__cause__: BaseException | None = reason.error
            add_traceback(self, f"in {target!r}:\n", reason)

    def __str__(self) -> str:
        return super().__str__() + did_you_mean(name_in(self.target), self._names)


class CallFailedError(CallError):
    """The callee failed on this request, and its supervisor let it continue with the next message.
    Its error is the ``__cause__``.
    """

    def __init__(self, target: object, request: object, reason: Crashed) -> None:
        super().__init__(
            f"{target!r} failed on {type_of(request)} and continues; it {reason}",
            target,
            request,
        )
        self.reason = reason
        self.__cause__: BaseException | None = reason.error
        add_traceback(self, f"in {target!r}:\n", reason)


class CallTimeoutError(CallError, TimeoutError):
    """No answer came in time. The callee is not cancelled; its late answer is dropped."""

    def __init__(self, target: object, request: object, timeout: float) -> None:
        super().__init__(
            f"{target!r} did not answer {type_of(request)} within {timeout:g} s",
            target,
            request,
        )
        self.timeout = timeout


class DeadlockError(CallError):
    """The call, or the wait for room in a mailbox, would close a ring of processes that wait for
    each other. ``ring`` lists them in order.
    """

    def __init__(
        self,
        target: object,
        request: object,
        ring: Sequence[object],
        instead: str = "send a message instead, or answer with NO_REPLY and reply later",
        verb: str = "call",
    ) -> None:
        path = " → ".join(map(str, ring))
        super().__init__(f"this {verb} would wait forever: {path}; {instead}", target, request)
        self.ring: tuple[object, ...] = tuple(ring)


class UnhandledCallError(CallError):
    """The callee's behaviour has no ``handle_call``, or its ``handle_call`` answered None to a
    request that declares another type of answer.
    """

    def __init__(
        self, target: object, request: object, behaviour: str, why: str | None = None
    ) -> None:
        super().__init__(
            f"{behaviour} at {target!r} "
            + (why or f"has no handle_call, so it cannot answer {type_of(request)}"),
            target,
            request,
        )
        self.behaviour = behaviour


class MethodUnknownError(ErgoError, LookupError):
    """The class of the callee exposes no method of that name."""

    def __init__(self, behaviour: str, method: str, known: Sequence[str]) -> None:
        super().__init__(
            f"{behaviour} exposes no method {method!r}; it exposes {', '.join(known) or 'none'}"
        )
        self.behaviour = behaviour
        self.method = method
        self.known: tuple[str, ...] = tuple(known)
        """The methods that it exposes."""


def check_raisable(what: str, error: BaseException) -> None:
    """Raise BadInputError for an exception that no ``call`` can raise."""
    if is_a(error, (StopIteration, StopAsyncIteration)):
        raise BadInputError(
            what,
            error,
            "another exception, such as LookupError('no more'): Python turns StopIteration into a "
            "RuntimeError where a coroutine raises it",
        )


class Reject(Exception):
    """Raise it in ``handle_call`` to refuse a request: the caller's ``call`` raises ``error``, and
    the process continues.

    Example: ``raise Reject(LookupError("no such key"))``.
    """

    def __init__(self, error: BaseException) -> None:
        if not isinstance(error, BaseException):
            raise BadInputError(
                "Reject(error)", error, "an exception, such as Reject(ValueError('why'))"
            )
        check_raisable("Reject(error)", error)
        super().__init__(error)
        self.error = error
