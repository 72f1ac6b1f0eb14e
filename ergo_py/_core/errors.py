"""Every error of the framework, in one tree.

::

    ErgoError
    ├── BadInputError (ValueError)          a value that can never be right: given, allowed, what to write
    │   ├── BehaviourError (TypeError)      something that is no behaviour, or a callback that cannot be called
    │   └── TargetTypeError (TypeError)     something that is no address
    ├── SpawnError                          nothing was started
    │   ├── InitError                       ``init`` raised; the original is the cause
    │   ├── InitTimeoutError (TimeoutError) ``init`` took too long
    │   ├── TooManyProcessesError           the node's ``max_processes`` is reached
    │   └── TooManyReadersError             the node's ``max_reader_threads`` is reached
    ├── NameTakenError                      the name belongs to somebody else
    ├── NameUnknownError (LookupError)      nobody has that name or alias
    ├── ProcessUnknownError (LookupError)   no process at this address
    ├── RelationExistsError                 already linked to, or monitoring, that target
    ├── RelationUnknownError (LookupError)  not linked to, or not monitoring, that target
    ├── SendError                           carries target and message: nothing is lost
    │   └── MailboxFullError                the receiver is full and refuses
    ├── CallError                           carries target and request
    │   ├── TargetDownError                 the callee died or was gone; carries its reason
    │   ├── CallTimeoutError (TimeoutError) no answer in time
    │   ├── DeadlockError                   the call would wait for itself
    │   └── UnhandledCallError              the callee has no answer to such a request
    ├── NotAllowedError (RuntimeError)      not here, or not in this state; says where instead
    ├── NodeStoppedError (RuntimeError)     the node has stopped, or is stopping
    └── CallbackError (TypeError)           a callback returned something it must not

    Reject                                  raised by ``handle_call``: the caller gets ``error``, the process lives on
"""

from collections.abc import Sequence

from .reasons import Crashed, Reason

__all__ = [
    "BadInputError",
    "BehaviourError",
    "CallError",
    "CallTimeoutError",
    "CallbackError",
    "DeadlockError",
    "ErgoError",
    "InitError",
    "InitTimeoutError",
    "MailboxFullError",
    "NameTakenError",
    "NameUnknownError",
    "NodeStoppedError",
    "NotAllowedError",
    "ProcessUnknownError",
    "Reject",
    "RelationExistsError",
    "RelationUnknownError",
    "SendError",
    "SpawnError",
    "TargetDownError",
    "TargetTypeError",
    "TooManyProcessesError",
    "TooManyReadersError",
    "UnhandledCallError",
]


class ErgoError(Exception):
    """Base of every error the framework raises."""


class BadInputError(ErgoError, ValueError):
    """A value that can never be right, with what is allowed instead."""

    def __init__(self, what: str, given: object, allowed: str) -> None:
        super().__init__(f"{what}: got {_short(given)}; allowed is {allowed}")
        self.what = what
        self.given = given
        self.allowed = allowed


class BehaviourError(BadInputError, TypeError):
    """What was given to ``spawn`` is no behaviour, or one of its callbacks cannot be called."""


class TargetTypeError(BadInputError, TypeError):
    """What was given as a target is no address."""

    def __init__(self, given: object) -> None:
        super().__init__("target", given, "a PID, an Alias, a Name, or a str that is a name on this node")


class SpawnError(ErgoError):
    """A process could not be started; nothing of it remains."""


class InitError(SpawnError):
    """``init`` raised. The original exception is the ``__cause__``."""

    def __init__(self, behaviour: str, error: BaseException) -> None:
        super().__init__(f"init of {behaviour} raised {type(error).__name__}: {error}")
        self.behaviour = behaviour
        self.error = error


class InitTimeoutError(SpawnError, TimeoutError):
    """``init`` took longer than ``init_timeout``."""

    def __init__(self, behaviour: str, timeout: float) -> None:
        super().__init__(
            f"init of {behaviour} took more than {timeout:g} s; give spawn a larger init_timeout, or do less in init"
        )
        self.behaviour = behaviour
        self.timeout = timeout


class TooManyProcessesError(SpawnError):
    """The node runs as many processes as its ``max_processes`` allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the node already runs its max_processes={limit} processes; open_node(max_processes=…) sets the limit"
        )
        self.limit = limit


class TooManyReadersError(SpawnError):
    """As many meta-processes have a reader thread as the node's ``max_reader_threads`` allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the node already runs its max_reader_threads={limit}; open_node(max_reader_threads=…) sets the limit, "
            "and a meta-process with `async def start` needs no thread"
        )
        self.limit = limit


class NameTakenError(ErgoError):
    """The name belongs to another process."""

    def __init__(self, name: str, holder: object) -> None:
        super().__init__(f"the name {name!r} belongs to {holder}; it is free again once that process has terminated")
        self.name = name
        self.holder = holder


class NameUnknownError(ErgoError, LookupError):
    """Nobody on this node has that name or alias."""

    def __init__(self, name: object) -> None:
        super().__init__(f"nobody on this node holds {name!r}")
        self.name = name


class ProcessUnknownError(ErgoError, LookupError):
    """There is no living process at this address."""

    def __init__(self, target: object) -> None:
        super().__init__(f"there is no process at {target!r}")
        self.target = target


class RelationExistsError(ErgoError):
    """The link or monitor exists already."""

    def __init__(self, kind: str, target: object) -> None:
        super().__init__(f"this process already has a {kind} to {target!r}; one is enough")
        self.target = target


class RelationUnknownError(ErgoError, LookupError):
    """There is no such link or monitor to remove."""

    def __init__(self, kind: str, target: object) -> None:
        super().__init__(f"this process has no {kind} to {target!r}")
        self.target = target


class SendError(ErgoError):
    """A message was not accepted. ``target`` and ``message`` are what was given to ``send``."""

    def __init__(self, text: str, target: object, message: object) -> None:
        super().__init__(text)
        self.target = target
        self.message = message


class MailboxFullError(SendError):
    """The receiver's mailbox is full and its overflow rule is to refuse."""

    def __init__(self, target: object, message: object, limit: int) -> None:
        super().__init__(
            f"the mailbox of {target!r} holds its mailbox_size={limit} messages; "
            "send later, use `await send_wait(...)`, or spawn it with another overflow",
            target,
            message,
        )
        self.limit = limit


class CallError(ErgoError):
    """A call ended without an answer. ``target`` and ``request`` are what was given to ``call``."""

    def __init__(self, text: str, target: object, request: object) -> None:
        super().__init__(text)
        self.target = target
        self.request = request


class TargetDownError(CallError):
    """The callee died before it answered, or was not there. ``reason`` says why."""

    def __init__(self, target: object, request: object, reason: Reason) -> None:
        super().__init__(f"{target!r} cannot answer: {reason}", target, request)
        self.reason = reason
        if isinstance(reason, Crashed):
            self.__cause__ = reason.error
            self.add_note(f"Traceback in {target!r}:\n{reason.traceback}")


class CallTimeoutError(CallError, TimeoutError):
    """No answer came in time."""

    def __init__(self, target: object, request: object, timeout: float) -> None:
        super().__init__(f"{target!r} did not answer {type(request).__name__} within {timeout:g} s", target, request)
        self.timeout = timeout


class DeadlockError(CallError):
    """The call would close a ring of processes that wait for one another. ``ring`` names them in order."""

    def __init__(self, target: object, request: object, ring: Sequence[object]) -> None:
        path = " → ".join(map(str, ring))
        super().__init__(
            f"this call would wait for ever: {path}; send a message instead, or answer with NO_REPLY and reply later",
            target,
            request,
        )
        self.ring = tuple(ring)


class UnhandledCallError(CallError):
    """The callee's behaviour has no ``handle_call``."""

    def __init__(self, target: object, request: object, behaviour: str) -> None:
        super().__init__(
            f"{behaviour} at {target!r} has no handle_call, so it cannot answer {type(request).__name__}",
            target,
            request,
        )


class NotAllowedError(ErgoError, RuntimeError):
    """The operation is not allowed here or now. The text says what to do instead."""


class NodeStoppedError(ErgoError, RuntimeError):
    """The node has stopped or is stopping."""

    def __init__(self, node: str, what: str = "") -> None:
        super().__init__(f"node {node} has stopped{': ' + what if what else ''}; open a new one with open_node(...)")
        self.node = node


class CallbackError(ErgoError, TypeError):
    """A callback returned something it must not."""


class Reject(Exception):
    """Raised in ``handle_call`` to refuse: the caller's ``call`` raises ``error``, the process goes on.

    Example: ``raise Reject(LookupError("no such key"))``.
    """

    def __init__(self, error: BaseException) -> None:
        if not isinstance(error, BaseException):
            raise BadInputError("Reject(error)", error, "an exception, such as Reject(ValueError('why'))")
        super().__init__(error)
        self.error = error


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
