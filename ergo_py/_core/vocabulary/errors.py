"""The errors of the framework, in a single tree.

::

    ErgoError
    ├── BadInputError (ValueError)          an invalid value; the text says what is allowed
    │   ├── BehaviourError (TypeError)      not a behaviour, or a callback with a wrong signature
    │   └── TargetTypeError (TypeError)     not an address
    ├── SpawnError                          nothing was started
    │   ├── InitError                       ``init`` raised; the original is the cause
    │   ├── InitTimeoutError (TimeoutError) ``init`` took too long
    │   ├── TooManyProcessesError           the node's ``max_processes`` is reached
    │   └── TooManyReadersError             the node's ``max_reader_threads`` is reached
    ├── NameTakenError                      another process has the name
    ├── NameUnknownError (LookupError)      no process has that name or alias
    ├── KeyTakenError                       another process has the key of a registry
    ├── EventTakenError                     another process has registered the event
    ├── EventUnknownError (LookupError)     there is no such event
    ├── ProcessUnknownError (LookupError)   no process at this address
    ├── RelationExistsError                 already linked to, or monitoring, that target
    ├── RelationUnknownError (LookupError)  not linked to, or not monitoring, that target
    ├── SendError                           carries target and message: nothing is lost
    │   └── MailboxFullError                the receiver's mailbox is full
    ├── CallError                           carries target and request
    │   ├── TargetDownError                 the callee has ended; carries its reason
    │   ├── CallFailedError                 the callee failed on this request and continues
    │   ├── CallTimeoutError (TimeoutError) no answer in time
    │   ├── DeadlockError                   the call would wait for itself
    │   └── UnhandledCallError              the callee has no answer to this request
    ├── MethodUnknownError (LookupError)    the actor exposes no such method
    ├── SupervisionError                    an operation on a child failed; carries the child
    │   ├── ChildUnknownError (LookupError)  the supervisor has no such child
    │   ├── ChildExistsError                the supervisor has a child of that name
    │   ├── ChildRunningError               the child runs; carries its PID
    │   ├── ChildNotRunningError            there is nothing to stop
    │   ├── ChildDisabledError              the child was disabled
    │   ├── ChildEnabledError               the child is not disabled
    │   ├── ChildBusyError                  another operation on the child is in progress
    │   └── TooManyChildrenError            the supervisor has max_children already
    ├── ServiceError                        carries service and message: nothing is lost
    │   ├── ServiceGoneError                its child does not restart; carries the reason
    │   ├── ServiceBusyError                too many requests wait for its child to restart
    │   └── ServiceTimeoutError (TimeoutError)  its child did not restart in time
    ├── TaskError                           a task of ``run_task`` has no result; carries its name
    │   ├── TaskTimeoutError (TimeoutError) its function took longer than ``timeout``
    │   ├── TaskEndedError                  it was cancelled or ended; carries the reason
    │   └── TooManyTasksError               its ``TaskSupervisor`` runs as many as it may
    ├── ApplicationError                    carries the application's name
    │   ├── ApplicationUnknownError (LookupError)  no application of that name is loaded
    │   ├── ApplicationStartError           the application failed to start; nothing of it runs
    │   └── ApplicationNeededError          running applications depend on it
    ├── EscalationError                     a supervisor or application ended, so the node stops
    ├── NotAllowedError (RuntimeError)      not here, or not in this state; says where instead
    ├── NodeStoppedError (RuntimeError)     the node has stopped, or is stopping
    ├── ControlSocketError (OSError)        the control socket cannot be opened safely
    └── CallbackError (TypeError)           a callback did something it must not

    Reject                                  raise it in ``handle_call``: the caller gets ``error``
"""

from collections.abc import Sequence
from types import CoroutineType
from typing import Final

from .hints import did_you_mean
from .ids import local_name
from .public_names import show_public_names
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
    "KeyTakenError",
    "MailboxFullError",
    "NameTakenError",
    "NameUnknownError",
    "NodeStoppedError",
    "MethodUnknownError",
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
    "TaskEndedError",
    "TaskError",
    "TaskTimeoutError",
    "TooManyChildrenError",
    "TooManyProcessesError",
    "TooManyReadersError",
    "TooManyTasksError",
    "UnhandledCallError",
]


class ErgoError(Exception):
    """Base class of all errors the framework raises, except :class:`Reject`."""


class BadInputError(ErgoError, ValueError):
    """An invalid value. The text says what was given and what is allowed."""

    def __init__(self, what: str, given: object, allowed: str) -> None:
        super().__init__(f"{what}: got {_short(given)}; allowed is {allowed}")
        self.what = what
        """The name of the argument."""
        self.given = given
        """The invalid value."""
        self.allowed = allowed
        """A description of the values that are allowed."""


class BehaviourError(BadInputError, TypeError):
    """The argument of ``spawn`` is no behaviour class, or has a callback with a wrong signature."""


_ACTING: Final = ("Behaviour", "MetaProcess")
"""The classes whose verbs a program writes with ``self``."""


class TargetTypeError(BadInputError, TypeError):
    """The target is not an address: a PID, an alias, or a name."""

    def __init__(self, given: object) -> None:
        allowed = "a PID, an Alias, a Name, a Key, or a str that is a name on this node"
        if isinstance(given, CoroutineType):
            # Python would warn about it as well, without the line.
            given.close()
            owner, _, verb = given.__qualname__.rpartition(".")
            before = "node." if owner == "Node" else "self." if owner in _ACTING else ""
            allowed += f"; `await` is missing: write `await {before}{verb}(…)`"
        super().__init__("target", given, allowed)


class SpawnError(ErgoError):
    """A process could not be started. Nothing of it remains."""


class InitError(SpawnError):
    """``init`` raised. The original exception is the ``__cause__``."""

    def __init__(self, behaviour: str, error: BaseException, reason: Reason | None = None) -> None:
        super().__init__(f"init of {behaviour} raised {type(error).__name__}: {text_of(error)}")
        self.behaviour = behaviour
        self.error = error
        if isinstance(reason, Crashed):
            _add_traceback(self, "", reason)


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
    """The node runs as many reader threads as its ``max_reader_threads`` allows."""

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
        """The PID of the process that has the name."""


class KeyTakenError(ErgoError):
    """The key of a registry with unique keys belongs to another process."""

    def __init__(self, registry: str, key: object, holder: object) -> None:
        super().__init__(
            f"the key {key!r} of the registry {registry!r} belongs to {holder}; it is free again "
            "once that process has terminated"
        )
        self.registry = registry
        self.key = key
        self.holder = holder
        """The PID of the process that has the key."""


class NameUnknownError(ErgoError, LookupError):
    """No process on this node has that name or alias."""

    def __init__(self, name: object) -> None:
        super().__init__(f"no process on this node has the name or alias {name!r}")
        self.name = name


class EventTakenError(ErgoError):
    """Another process has registered an event of that name."""

    def __init__(self, name: str, producer: object) -> None:
        super().__init__(
            f"the event {name!r} belongs to {producer}; it is free again once that process ends "
            "or unregisters it"
        )
        self.name = name
        self.producer = producer


class EventUnknownError(ErgoError, LookupError):
    """There is no event of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"there is no event {name!r} on this node; its producer creates it with "
            f"register_event({name!r})"
        )
        self.name = name


class ProcessUnknownError(ErgoError, LookupError):
    """There is no living process at this address."""

    def __init__(self, target: object, what: str = "process", names: Sequence[str] = ()) -> None:
        super().__init__(f"there is no {what} at {target!r}")
        self.target = target
        self._names = names

    def __str__(self) -> str:
        # Compared only when a person reads the text: many errors are caught and never shown.
        return super().__str__() + did_you_mean(local_name(self.target), self._names)


class RelationExistsError(ErgoError):
    """The link or monitor exists already."""

    def __init__(self, kind: str, target: object) -> None:
        super().__init__(
            f"this process already has a {kind} to {target!r}; a second {kind} is not needed"
        )
        self.target = target


class RelationUnknownError(ErgoError, LookupError):
    """There is no such link or monitor to remove."""

    def __init__(self, kind: str, target: object) -> None:
        super().__init__(f"this process has no {kind} to {target!r}")
        self.target = target


class SendError(ErgoError):
    """A message was not accepted. ``target`` and ``message`` are the arguments of ``send``."""

    def __init__(self, text: str, target: object, message: object) -> None:
        super().__init__(text)
        self.target = target
        self.message = message


class MailboxFullError(SendError):
    """The receiver's mailbox is full and its overflow rule is to refuse messages."""

    def __init__(self, target: object, message: object, limit: int) -> None:
        super().__init__(
            f"the mailbox of {target!r} holds its mailbox_size={limit} messages; "
            "send later, use `await send_wait(...)`, or spawn the receiver with another overflow",
            target,
            message,
        )
        self.limit = limit


class CallError(ErgoError):
    """A call ended without an answer. ``target`` and ``request`` are the arguments of ``call``."""

    def __init__(self, text: str, target: object, request: object) -> None:
        super().__init__(text)
        self.target = target
        self.request = request


class TargetDownError(CallError):
    """The callee ended before it answered, or did not exist. ``reason`` says why."""

    def __init__(
        self, target: object, request: object, reason: Reason, names: Sequence[str] = ()
    ) -> None:
        super().__init__(f"{target!r} cannot answer: {reason}", target, request)
        self.reason = reason
        self._names = names
        if isinstance(reason, Crashed):
            self.__cause__ = reason.error
            _add_traceback(self, f"in {target!r}:\n", reason)

    def __str__(self) -> str:
        return super().__str__() + did_you_mean(local_name(self.target), self._names)


class CallFailedError(CallError):
    """The callee failed on this request, and its supervisor let it continue with the next message.
    Its error is the ``__cause__``.
    """

    def __init__(self, target: object, request: object, reason: Crashed) -> None:
        super().__init__(
            f"{target!r} failed on {type(request).__name__} and continues; it {reason}",
            target,
            request,
        )
        self.reason = reason
        self.__cause__ = reason.error
        _add_traceback(self, f"in {target!r}:\n", reason)


class CallTimeoutError(CallError, TimeoutError):
    """No answer came in time. The callee is not cancelled; its late answer is dropped."""

    def __init__(self, target: object, request: object, timeout: float) -> None:
        super().__init__(
            f"{target!r} did not answer {type(request).__name__} within {timeout:g} s",
            target,
            request,
        )
        self.timeout = timeout


class DeadlockError(CallError):
    """The call would close a ring of processes that wait for each other. ``ring`` lists them in
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
        super().__init__(f"this call would wait forever: {path}; {instead}", target, request)
        self.ring = tuple(ring)


class UnhandledCallError(CallError):
    """The callee's behaviour has no ``handle_call``, or its ``handle_call`` answered None to a
    request that declares another type of answer.
    """

    def __init__(
        self, target: object, request: object, behaviour: str, why: str | None = None
    ) -> None:
        super().__init__(
            f"{behaviour} at {target!r} "
            + (why or f"has no handle_call, so it cannot answer {type(request).__name__}"),
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
        self.known = tuple(known)
        """The methods that it exposes."""


class SupervisionError(ErgoError):
    """An operation on a child was refused, and nothing was changed. ``child`` is the name that was
    given.
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
    """The supervisor already has a child of that name."""

    def __init__(self, child: str) -> None:
        super().__init__(
            f"there is a child {child!r} already; remove_child({child!r}) first, or use another "
            "name",
            child,
        )


class TooManyChildrenError(SupervisionError):
    """The supervisor has as many children as its ``max_children`` allows. ``limit`` is that
    number.
    """

    def __init__(self, child: str, limit: int) -> None:
        super().__init__(
            f"the supervisor has max_children={limit} children, so {child!r} was not started; "
            "stop or remove a child first, or raise the limit",
            child,
        )
        self.limit = limit


class ChildRunningError(SupervisionError):
    """The child runs already. ``pid`` is its process."""

    def __init__(self, child: str, pid: object) -> None:
        super().__init__(
            f"child {child!r} runs already, as {pid}; restart_child({child!r}) restarts it",
            child,
        )
        self.pid = pid


class ChildNotRunningError(SupervisionError):
    """The child does not run and will not restart, so there is nothing to stop."""

    def __init__(self, child: str, phase: str) -> None:
        super().__init__(f"child {child!r} does not run: it is {phase}", child)


class ChildDisabledError(SupervisionError):
    """The child is disabled, so it cannot be started."""

    def __init__(self, child: str) -> None:
        super().__init__(
            f"child {child!r} is disabled; enable_child({child!r}) enables and starts it", child
        )


class ChildEnabledError(SupervisionError):
    """The child is not disabled, so it cannot be enabled."""

    def __init__(self, child: str) -> None:
        super().__init__(
            f"child {child!r} is not disabled; if it does not run, start_child({child!r}) starts "
            "it",
            child,
        )


class ChildBusyError(SupervisionError):
    """Another operation on the child is in progress."""

    def __init__(self, child: str, phase: str) -> None:
        super().__init__(
            f"child {child!r} is {phase}, and another operation waits for that; try again when "
            "that operation is done",
            child,
        )


class ServiceError(ErgoError):
    """A service could not deliver a message or request. ``service`` is its name, ``message`` the
    message or request.
    """

    def __init__(self, text: str, service: str, message: object) -> None:
        super().__init__(text)
        self.service = service
        self.message = message


class ServiceGoneError(ServiceError):
    """The child behind the service has ended and will not restart. ``reason`` says why it ended."""

    def __init__(self, service: str, message: object, reason: Reason) -> None:
        super().__init__(f"service {service!r} is gone: {reason}", service, message)
        self.reason = reason
        self.__cause__ = error_of(reason)


class ServiceBusyError(ServiceError):
    """The child behind the service restarts, and as many requests wait for it as its
    ``max_waiters`` allows.
    """

    def __init__(self, service: str, message: object, limit: int) -> None:
        super().__init__(
            f"service {service!r} is restarting, and max_waiters={limit} requests wait for it "
            "already; try later, or give its ChildSpec a larger max_waiters",
            service,
            message,
        )
        self.limit = limit


class ServiceTimeoutError(ServiceError, TimeoutError):
    """The child behind the service did not restart in time. The message was not sent."""

    def __init__(self, service: str, message: object, timeout: float) -> None:
        super().__init__(
            f"service {service!r} did not restart within {timeout:g} s", service, message
        )
        self.timeout = timeout


class TaskError(ErgoError):
    """A task of ``run_task`` or an item of ``map_stream`` has no result, although its function
    has raised no exception.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name
        """The name of the task."""


class TaskTimeoutError(TaskError, TimeoutError):
    """The function of a task took longer than its ``timeout``."""

    def __init__(self, name: str, timeout: float) -> None:
        super().__init__(name, f"the task {name} took more than {timeout:g} s, and was cancelled")
        self.timeout = timeout


class TaskEndedError(TaskError):
    """A task was cancelled, killed, or ended with its parent before its function returned."""

    def __init__(self, name: str, reason: Reason) -> None:
        super().__init__(name, f"the task {name} ended before its function returned: {reason}")
        self.reason = reason


class TooManyTasksError(TaskError):
    """A ``TaskSupervisor`` runs as many tasks as its ``max_tasks`` allows."""

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(
            name,
            f"the task {name} was not started: its supervisor already runs its "
            f"max_tasks={limit}; TaskSupervisor(max_tasks=…) sets the limit",
        )
        self.limit = limit


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
    """An application could not be started. Neither it nor the dependencies that were started for it
    run.
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
        """The exception that ended the start."""
        self.undone = tuple(undone)
        """The dependencies that were started for it and stopped again."""


class ApplicationNeededError(ApplicationError):
    """Running applications depend on the application to be stopped. Nothing was stopped."""

    def __init__(self, application: str, needed_by: Sequence[str]) -> None:
        super().__init__(
            f"{', '.join(needed_by)} run and depend on {application!r}; stop them as well: "
            f"stop_applications({', '.join(map(repr, (*needed_by, application)))})",
            application,
        )
        self.needed_by = tuple(needed_by)


class EscalationError(ErgoError):
    """The node stops, because a supervisor gave up with ``on_escalation="stop"``, or an application
    ended that must not end.
    """

    def __init__(self, supervisor: object, reason: Reason) -> None:
        super().__init__(f"{supervisor} gave up, and the node stopped: {reason}")
        self.supervisor = supervisor
        self.reason = reason
        self.__cause__ = error_of(reason)


class NotAllowedError(ErgoError, RuntimeError):
    """The operation is not allowed here or now. The text says how to do it instead."""


class NodeStoppedError(ErgoError, RuntimeError):
    """The node has stopped or is stopping."""

    def __init__(self, node: str, what: str = "") -> None:
        super().__init__(
            f"node {node} has stopped{': ' + what if what else ''}; open a new node with "
            "open_node(...)"
        )
        self.node = node


class ControlSocketError(ErgoError, OSError):
    """The control socket cannot be opened, or its location is not safe. Nothing was opened."""


class CallbackError(ErgoError, TypeError):
    """A callback did something it must not: it returned a wrong value, or left a nursery open."""


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
        super().__init__(error)
        self.error = error


def _add_traceback(error: BaseException, head: str, reason: Crashed) -> None:
    """Show the frames of the cause as a note. The reason has removed them from the cause, since
    they would keep the variables of the failed process alive. The cause names itself.
    """
    where = reason.where()
    if where:
        error.add_note(head + where.rstrip("\n"))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


show_public_names(__name__)
