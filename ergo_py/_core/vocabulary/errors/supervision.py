"""The errors of supervisors, services, tasks and applications."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from ..reasons import Reason, error_of
from ..text import shown
from .base import ErgoError, Kinds

__all__ = [
    "ApplicationError",
    "ApplicationNeededError",
    "ApplicationStartError",
    "ApplicationUnknownError",
    "ChildBusyError",
    "ChildError",
    "ChildDisabledError",
    "ChildEnabledError",
    "ChildExistsError",
    "ChildNotRunningError",
    "ChildRunningError",
    "ChildUnknownError",
    "ServiceBusyError",
    "ServiceError",
    "ServiceGoneError",
    "ServiceTimeoutError",
    "TaskEndedError",
    "TaskError",
    "TaskTimeoutError",
    "TooManyChildrenError",
    "TooManyTasksError",
]


ChildErrorKind = Literal[
    "unknown", "exists", "too many", "running", "not running", "disabled", "enabled", "busy"
]


class ChildError(Kinds, ErgoError):
    """An operation on a child was refused, and nothing was changed. ``child`` is the name that was
    given.

    ``kind`` says why: there is no such child (``"unknown"``, which is also a :class:`LookupError`),
    there is a child of that name (``"exists"``), there are ``max_children`` children (``"too
    many"``), it runs already (``"running"``, with its ``pid``), there is nothing to stop (``"not
    running"``), it is ``"disabled"``, it is not (``"enabled"``), or another operation on it is in
    progress (``"busy"``).
    """

    kind: ClassVar[ChildErrorKind]
    known: tuple[str, ...] = ()
    """The names of the children, if there is no such child."""
    limit: int | None = None
    pid: object = None

    def __init__(self, text: str, child: object) -> None:
        super().__init__(text)
        self.child = child


class ChildUnknownError(ChildError, LookupError):
    """The supervisor has no such child."""

    kind = "unknown"

    def __init__(self, child: object, known: Sequence[str] = ()) -> None:
        listed = ", ".join(map(repr, known[:10])) + (", …" if len(known) > 10 else "")
        super().__init__(
            f"there is no child {child!r}; "
            + (f"there are {listed}" if known else "there is none"),
            child,
        )
        self.known = tuple(known)


class ChildExistsError(ChildError):
    """The supervisor already has a child of that name."""

    kind = "exists"

    def __init__(self, child: str) -> None:
        super().__init__(
            f"there is a child {child!r} already; remove_child({child!r}) first, or use another "
            "name",
            child,
        )


class TooManyChildrenError(ChildError):
    """The supervisor has as many children as its ``max_children`` allows. ``limit`` is that
    number.
    """

    kind = "too many"

    def __init__(self, child: str, limit: int) -> None:
        super().__init__(
            f"the supervisor has max_children={limit} children, so {child!r} was not started; "
            "stop or remove a child first, or raise the limit",
            child,
        )
        self.limit = limit


class ChildRunningError(ChildError):
    """The child runs already. ``pid`` is its process."""

    kind = "running"

    def __init__(self, child: str, pid: object) -> None:
        super().__init__(
            f"child {child!r} runs already, as {pid}; restart_child({child!r}) restarts it",
            child,
        )
        self.pid = pid


class ChildNotRunningError(ChildError):
    """The child does not run and will not restart, so there is nothing to stop."""

    kind = "not running"

    def __init__(self, child: str, phase: str) -> None:
        super().__init__(f"child {child!r} does not run: it is {phase}", child)


class ChildDisabledError(ChildError):
    """The child is disabled, so it cannot be started."""

    kind = "disabled"

    def __init__(self, child: str) -> None:
        super().__init__(
            f"child {child!r} is disabled; enable_child({child!r}) enables and starts it", child
        )


class ChildEnabledError(ChildError):
    """The child is not disabled, so it cannot be enabled."""

    kind = "enabled"

    def __init__(self, child: str) -> None:
        super().__init__(
            f"child {child!r} is not disabled; if it does not run, start_child({child!r}) starts "
            "it",
            child,
        )


class ChildBusyError(ChildError):
    """Another operation on the child is in progress."""

    kind = "busy"

    def __init__(self, child: str, phase: str) -> None:
        super().__init__(
            f"child {child!r} is {phase}, and another operation waits for that; try again when "
            "that operation is done",
            child,
        )


class ServiceError(Kinds, ErgoError):
    """A service could not deliver a message or request. ``service`` is its name, ``message`` the
    message or request.

    ``kind`` says why: its child has ended and will not restart (``"gone"``, with the ``reason`` of
    the end), the child restarts, and as many requests wait for it as ``max_waiters`` allows
    (``"busy"``, with that ``limit``), or the child did not restart in time, and the message was not
    sent (``"timeout"``, which is also a :class:`TimeoutError`).
    """

    kind: ClassVar[Literal["gone", "busy", "timeout"]]
    reason: Reason | None = None
    limit: int | None = None
    timeout: float | None = None

    def __init__(self, text: str, service: str, message: object) -> None:
        super().__init__(text)
        self.service = service
        self.message = message


class ServiceGoneError(ServiceError):
    """The child behind the service has ended and will not restart. ``reason`` says why it ended."""

    kind = "gone"

    def __init__(self, service: str, message: object, reason: Reason) -> None:
        super().__init__(f"service {service!r} is gone: {reason}", service, message)
        self.reason: Reason = reason  # pyright: ignore[reportIncompatibleVariableOverride]
        self.__cause__: BaseException | None = error_of(reason)


class ServiceBusyError(ServiceError):
    """The child behind the service restarts, and as many requests wait for it as its
    ``max_waiters`` allows.
    """

    kind = "busy"

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

    kind = "timeout"

    def __init__(self, service: str, message: object, timeout: float) -> None:
        super().__init__(
            f"service {service!r} did not restart within {timeout:g} s", service, message
        )
        self.timeout = timeout


class TaskError(Kinds, ErgoError):
    """A task of ``run_task`` or an item of ``map_stream`` has no result, although its function
    has raised no exception.

    ``kind`` says why: its function took longer than ``timeout`` (``"timeout"``, which is also a
    :class:`TimeoutError`), the task was cancelled, killed, or ended with its parent (``"ended"``,
    with the ``reason``), or its ``TaskSupervisor`` runs as many tasks as ``max_tasks`` allows
    (``"too many"``, with that ``limit``).
    """

    kind: ClassVar[Literal["timeout", "ended", "too many"]]
    timeout: float | None = None
    reason: Reason | None = None
    limit: int | None = None

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name
        """The name of the task."""


class TaskTimeoutError(TaskError, TimeoutError):
    """The function of a task took longer than its ``timeout``."""

    kind = "timeout"

    def __init__(self, name: str, timeout: float) -> None:
        super().__init__(name, f"the task {name} took more than {timeout:g} s, and was cancelled")
        self.timeout = timeout


class TaskEndedError(TaskError):
    """A task was cancelled, killed, or ended with its parent before its function returned."""

    kind = "ended"

    def __init__(self, name: str, reason: Reason) -> None:
        super().__init__(name, f"the task {name} ended before its function returned: {reason}")
        self.reason: Reason = reason  # pyright: ignore[reportIncompatibleVariableOverride]


class TooManyTasksError(TaskError):
    """A ``TaskSupervisor`` runs as many tasks as its ``max_tasks`` allows."""

    kind = "too many"

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(
            name,
            f"the task {name} was not started: its supervisor already runs its "
            f"max_tasks={limit}; TaskSupervisor(max_tasks=…) sets the limit",
        )
        self.limit = limit


class ApplicationError(Kinds, ErgoError):
    """An operation on an application was refused or failed. ``application`` is its name.

    ``kind`` says why: no application of that name is loaded (``"unknown"``, which is also a
    :class:`LookupError`), it could not be started, and nothing of it runs (``"start"``), or running
    applications depend on it, and nothing was stopped (``"needed"``).
    """

    kind: ClassVar[Literal["unknown", "start", "needed"]]
    known: tuple[str, ...] = ()
    """The applications that are loaded."""
    error: BaseException | None = None
    """The exception that ended the start."""
    undone: tuple[str, ...] = ()
    """The dependencies that were started for it and stopped again."""
    needed_by: tuple[str, ...] = ()
    """The running applications that depend on it."""

    def __init__(self, text: str, application: str) -> None:
        super().__init__(text)
        self.application = application


class ApplicationUnknownError(ApplicationError, LookupError):
    """No application of that name is loaded."""

    kind = "unknown"

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

    kind = "start"

    def __init__(self, application: str, error: BaseException, undone: Sequence[str]) -> None:
        also = (
            f"; stopped again, since they were started with it: {', '.join(undone)}"
            if undone
            else ""
        )
        super().__init__(
            f"application {application!r} could not be started: {shown(error)}{also}", application
        )
        self.error = error
        self.undone = tuple(undone)


class ApplicationNeededError(ApplicationError):
    """Running applications depend on the application to be stopped. Nothing was stopped."""

    kind = "needed"

    def __init__(self, application: str, needed_by: Sequence[str]) -> None:
        super().__init__(
            f"{', '.join(needed_by)} run and depend on {application!r}; stop them as well: "
            f"stop_applications({', '.join(map(repr, (*needed_by, application)))})",
            application,
        )
        self.needed_by = tuple(needed_by)
