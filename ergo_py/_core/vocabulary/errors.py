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
    ├── EventTakenError                     the event belongs to somebody else
    ├── EventUnknownError (LookupError)     there is no such event
    ├── ProcessUnknownError (LookupError)   no process at this address
    ├── RelationExistsError                 already linked to, or monitoring, that target
    ├── RelationUnknownError (LookupError)  not linked to, or not monitoring, that target
    ├── SendError                           carries target and message: nothing is lost
    │   └── MailboxFullError                the receiver is full and refuses
    ├── CallError                           carries target and request
    │   ├── TargetDownError                 the callee died or was gone; carries its reason
    │   ├── CallFailedError                 the callee failed on this request and lives on; its error is the cause
    │   ├── CallTimeoutError (TimeoutError) no answer in time
    │   ├── DeadlockError                   the call would wait for itself
    │   └── UnhandledCallError              the callee has no answer to such a request
    ├── SupervisionError                    an operation on a child was refused; carries the child
    │   ├── ChildUnknownError (LookupError)  the supervisor has no such child
    │   ├── ChildExistsError                it has one of that name already
    │   ├── ChildRunningError               the child runs; carries its PID
    │   ├── ChildNotRunningError            there is nothing to stop
    │   ├── ChildDisabledError              the child was disabled
    │   ├── ChildEnabledError               the child is not disabled
    │   └── ChildBusyError                  another operation on it is under way
    ├── ServiceError                        carries service and message: nothing is lost
    │   ├── ServiceGoneError                the child behind it does not come back; carries its last reason
    │   ├── ServiceBusyError                too many wait for the child to come back
    │   └── ServiceTimeoutError (TimeoutError)  it did not come back in time
    ├── ApplicationError                    carries the application's name
    │   ├── ApplicationUnknownError (LookupError)  none of that name is loaded
    │   ├── ApplicationStartError           it could not be started, and nothing of it runs
    │   └── ApplicationNeededError          it cannot be stopped while others that run depend on it
    ├── EscalationError                     a supervisor or an application ended, and the node stops because of that
    ├── NotAllowedError (RuntimeError)      not here, or not in this state; says where instead
    ├── NodeStoppedError (RuntimeError)     the node has stopped, or is stopping
    ├── ControlSocketError (OSError)        the control socket cannot be offered, or is not to be trusted
    └── CallbackError (TypeError)           a callback returned something it must not

    Reject                                  raised by ``handle_call``: the caller gets ``error``, the process lives on
"""

from collections.abc import Sequence

from .reasons import Crashed, Reason, error_of
from .text import text_of

__all__ = [
    "ApplicationError",
    "ApplicationNeededError",
    "ApplicationStartError",
    "ApplicationUnknownError",
    "BadInputError",
    "BehaviourError",
    "CallError",
    "CallFailedError",
    "CallTimeoutError",
    "CallbackError",
    "ChildBusyError",
    "ChildDisabledError",
    "ChildEnabledError",
    "ChildExistsError",
    "ChildNotRunningError",
    "ChildRunningError",
    "ChildUnknownError",
    "ControlSocketError",
    "DeadlockError",
    "ErgoError",
    "EventTakenError",
    "EventUnknownError",
    "EscalationError",
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
    "ServiceBusyError",
    "ServiceError",
    "ServiceGoneError",
    "ServiceTimeoutError",
    "SpawnError",
    "SupervisionError",
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
        super().__init__(
            "target", given, "a PID, an Alias, a Name, or a str that is a name on this node"
        )


class SpawnError(ErgoError):
    """A process could not be started; nothing of it remains."""


class InitError(SpawnError):
    """``init`` raised. The original exception is the ``__cause__``."""

    def __init__(self, behaviour: str, error: BaseException, reason: Reason | None = None) -> None:
        super().__init__(f"init of {behaviour} raised {type(error).__name__}: {text_of(error)}")
        self.behaviour = behaviour
        self.error = error
        if isinstance(reason, Crashed):
            # The reason has taken the frames, which would keep the variables of one that never
            # lived.
            self.add_note(reason.traceback)


class InitTimeoutError(SpawnError, TimeoutError):
    """``init`` took longer than ``init_timeout``."""

    def __init__(self, behaviour: str, timeout: float) -> None:
        super().__init__(
            f"init of {behaviour} took more than {timeout:g} s; give spawn a larger init_timeout, "
            "or do less in init"
        )
        self.behaviour = behaviour
        self.timeout = timeout


class TooManyProcessesError(SpawnError):
    """The node runs as many processes as its ``max_processes`` allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the node already runs its max_processes={limit} processes; "
            "open_node(max_processes=…) sets the limit"
        )
        self.limit = limit


class TooManyReadersError(SpawnError):
    """As many meta-processes have a reader thread as the node's ``max_reader_threads`` allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the node already runs its max_reader_threads={limit}; "
            "open_node(max_reader_threads=…) sets the limit, "
            "and a meta-process with `async def start` needs no thread"
        )
        self.limit = limit


class NameTakenError(ErgoError):
    """The name belongs to another process."""

    def __init__(self, name: str, holder: object) -> None:
        super().__init__(
            f"the name {name!r} belongs to {holder}; it is free again once that process has "
            "terminated"
        )
        self.name = name
        self.holder = holder
        """Its PID."""


class NameUnknownError(ErgoError, LookupError):
    """Nobody on this node has that name or alias."""

    def __init__(self, name: object) -> None:
        super().__init__(f"nobody on this node holds {name!r}")
        self.name = name


class EventTakenError(ErgoError):
    """An event of that name exists."""

    def __init__(self, name: str, producer: object) -> None:
        super().__init__(
            f"the event {name!r} belongs to {producer}; it is free again once that process ends "
            "or gives it up"
        )
        self.name = name
        self.producer = producer


class EventUnknownError(ErgoError, LookupError):
    """There is no event of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"there is no event {name!r} on this node; its producer makes it with "
            f"register_event({name!r})"
        )
        self.name = name


class ProcessUnknownError(ErgoError, LookupError):
    """There is no living process at this address."""

    def __init__(self, target: object, what: str = "process") -> None:
        super().__init__(f"there is no {what} at {target!r}")
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


class CallFailedError(CallError):
    """The callee failed on this request, and its supervision let it go on with the next. Its error
    is the ``__cause__``.
    """

    def __init__(self, target: object, request: object, reason: Crashed) -> None:
        super().__init__(
            f"{target!r} failed on {type(request).__name__} and goes on; it {reason}",
            target,
            request,
        )
        self.reason = reason
        self.__cause__ = reason.error
        self.add_note(f"Traceback in {target!r}:\n{reason.traceback}")


class CallTimeoutError(CallError, TimeoutError):
    """No answer came in time."""

    def __init__(self, target: object, request: object, timeout: float) -> None:
        super().__init__(
            f"{target!r} did not answer {type(request).__name__} within {timeout:g} s",
            target,
            request,
        )
        self.timeout = timeout


class DeadlockError(CallError):
    """The call would close a ring of processes that wait for one another. ``ring`` names them in
    order.
    """

    def __init__(
        self,
        target: object,
        request: object,
        ring: Sequence[object],
        instead: str = "send a message instead, or answer with NO_REPLY and reply later",
    ) -> None:
        path = " → ".join(map(str, ring))
        super().__init__(f"this call would wait for ever: {path}; {instead}", target, request)
        self.ring = tuple(ring)


class UnhandledCallError(CallError):
    """The callee's behaviour has no ``handle_call``."""

    def __init__(self, target: object, request: object, behaviour: str) -> None:
        super().__init__(
            f"{behaviour} at {target!r} has no handle_call, so it cannot answer "
            f"{type(request).__name__}",
            target,
            request,
        )


class SupervisionError(ErgoError):
    """An operation on a child was refused, and nothing was changed. ``child`` is the name, or what
    was given instead.
    """

    def __init__(self, text: str, child: object) -> None:
        super().__init__(text)
        self.child = child


class ChildUnknownError(SupervisionError, LookupError):
    """The supervisor has no such child."""

    def __init__(self, child: object, known: Sequence[str] = ()) -> None:
        listed = ", ".join(map(repr, known[:10])) + (", …" if len(known) > 10 else "")
        super().__init__(
            f"there is no child {child!r}; "
            + (f"there are {listed}" if known else "there is none"),
            child,
        )


class ChildExistsError(SupervisionError):
    """The supervisor has a child of that name already."""

    def __init__(self, child: str) -> None:
        super().__init__(
            f"there is a child {child!r} already; remove_child({child!r}) first, or use another "
            "name",
            child,
        )


class ChildRunningError(SupervisionError):
    """The child runs already. ``pid`` is its process."""

    def __init__(self, child: str, pid: object) -> None:
        super().__init__(
            f"child {child!r} runs already, as {pid}; restart_child({child!r}) starts it anew",
            child,
        )
        self.pid = pid


class ChildNotRunningError(SupervisionError):
    """The child does not run and is not coming back, so there is nothing to stop."""

    def __init__(self, child: str, phase: str) -> None:
        super().__init__(f"child {child!r} does not run: it is {phase}", child)


class ChildDisabledError(SupervisionError):
    """The child is disabled."""

    def __init__(self, child: str) -> None:
        super().__init__(
            f"child {child!r} is disabled; enable_child({child!r}) enables and starts it", child
        )


class ChildEnabledError(SupervisionError):
    """The child is not disabled, so it cannot be enabled."""

    def __init__(self, child: str) -> None:
        super().__init__(
            f"child {child!r} is not disabled; start_child({child!r}) starts one that does not run",
            child,
        )


class ChildBusyError(SupervisionError):
    """Another operation on the child is under way."""

    def __init__(self, child: str, phase: str) -> None:
        super().__init__(
            f"child {child!r} is {phase}, and another operation waits for that; ask again when it "
            "is done",
            child,
        )


class ServiceError(ErgoError):
    """A service could not take a message or request. ``service`` and ``message`` are what was used
    and given.
    """

    def __init__(self, text: str, service: str, message: object) -> None:
        super().__init__(text)
        self.service = service
        self.message = message


class ServiceGoneError(ServiceError):
    """The child behind the service has ended and does not come back. ``reason`` says why it ended."""

    def __init__(self, service: str, message: object, reason: Reason) -> None:
        super().__init__(f"service {service!r} is gone: {reason}", service, message)
        self.reason = reason
        self.__cause__ = error_of(reason)


class ServiceBusyError(ServiceError):
    """As many wait for the child to come back as its ``max_waiters`` allows."""

    def __init__(self, service: str, message: object, limit: int) -> None:
        super().__init__(
            f"service {service!r} is coming back, and max_waiters={limit} wait for it already; "
            "try later, or give its "
            "ChildSpec a larger max_waiters",
            service,
            message,
        )
        self.limit = limit


class ServiceTimeoutError(ServiceError, TimeoutError):
    """The child behind the service did not come back in time. The message was not sent."""

    def __init__(self, service: str, message: object, timeout: float) -> None:
        super().__init__(
            f"service {service!r} did not come back within {timeout:g} s", service, message
        )
        self.timeout = timeout


class ApplicationError(ErgoError):
    """An operation on an application was refused or failed."""

    def __init__(self, text: str, application: str) -> None:
        super().__init__(text)
        self.application = application


class ApplicationUnknownError(ApplicationError, LookupError):
    """No application of that name is loaded."""

    def __init__(self, application: str, known: Sequence[str]) -> None:
        super().__init__(
            f"no application {application!r} is loaded; there are: {', '.join(known) or 'none'}",
            application,
        )
        self.known = tuple(known)


class ApplicationStartError(ApplicationError):
    """An application could not be started. Nothing of it runs, nor of what was started because of
    it.
    """

    def __init__(self, application: str, error: BaseException, undone: Sequence[str]) -> None:
        also = (
            f"; stopped again, since they were started with it: {', '.join(undone)}"
            if undone
            else ""
        )
        super().__init__(
            f"application {application!r} could not be started: {error!r}{also}", application
        )
        self.error = error
        self.undone = tuple(undone)


class ApplicationNeededError(ApplicationError):
    """Applications that run depend on one that was to be stopped. Nothing was stopped."""

    def __init__(self, application: str, needed_by: Sequence[str]) -> None:
        super().__init__(
            f"{', '.join(needed_by)} run and depend on {application!r}; stop them, too: "
            f"stop_applications({', '.join(map(repr, (*needed_by, application)))})",
            application,
        )
        self.needed_by = tuple(needed_by)


class EscalationError(ErgoError):
    """A supervisor of the node gave up with ``on_escalation="stop"``, or an application ended that
    must not: the node stops.
    """

    def __init__(self, supervisor: object, reason: Reason) -> None:
        super().__init__(f"{supervisor} gave up, and the node stopped: {reason}")
        self.supervisor = supervisor
        self.reason = reason
        self.__cause__ = error_of(reason)


class NotAllowedError(ErgoError, RuntimeError):
    """The operation is not allowed here or now. The text says what to do instead."""


class NodeStoppedError(ErgoError, RuntimeError):
    """The node has stopped or is stopping."""

    def __init__(self, node: str, what: str = "") -> None:
        super().__init__(
            f"node {node} has stopped{': ' + what if what else ''}; open a new one with "
            "open_node(...)"
        )
        self.node = node


class ControlSocketError(ErgoError, OSError):
    """The control socket cannot be offered, or the place where it should be is not to be trusted;
    nothing was opened.
    """


class CallbackError(ErgoError, TypeError):
    """A callback returned something it must not."""


class Reject(Exception):
    """Raised in ``handle_call`` to refuse: the caller's ``call`` raises ``error``, the process goes
    on.

    Example: ``raise Reject(LookupError("no such key"))``.
    """

    def __init__(self, error: BaseException) -> None:
        if not isinstance(error, BaseException):
            raise BadInputError(
                "Reject(error)", error, "an exception, such as Reject(ValueError('why'))"
            )
        super().__init__(error)
        self.error = error


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
