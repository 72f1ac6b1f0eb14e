"""`TaskProcess`: the process in which a task runs. `TaskSupervisor`: the parent of tasks that do
not end with the process that started them.
"""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from .._core.kernel import Kernel
from .._core.processes.process import Process
from .._core.processes.spawn import spawn_at_once
from .._core.tables.pending_calls import Caller, Deadline
from .._core.verbs.behaviour import Behaviour
from .._core.vocabulary.envelopes import STOP, Priority
from .._core.vocabulary.errors import (
    BadInputError,
    MailboxFullError,
    NodeStoppedError,
    Reject,
    TargetDownError,
    TaskEndedError,
    TaskTimeoutError,
    TooManyTasksError,
    UnhandledCallError,
)
from .._core.vocabulary.ids import Target
from .._core.vocabulary.options import DEFAULTS, check_number
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Crashed, NoProcess, Normal, Reason, Shutdown, error_of
from .function import without_own_frames
from .handle import Completion, Task, TaskResult

__all__ = ["TaskSupervisor", "refusal", "refuse_message", "start_process"]

Runner = Callable[[Process], Coroutine[Any, Any, Any]]
_CANCELLED: Final = Shutdown("the task was cancelled")


class TaskProcess(Behaviour):
    """A process that runs a function in a background task, and ends with it."""

    def __init__(
        self, run: Runner, completion: Completion[Any], timeout: float | None, host: Process | None
    ) -> None:
        self._run = run
        self._completion = completion
        self._timeout = timeout
        self._host = host
        self._limit: Deadline | None = None

    def init(self) -> None:
        process, name = self._process, self._completion.name
        process.be_shown_as(f"Task {name}")
        process.start_task(self._work, name, self._host)
        if self._timeout is not None:
            self._limit = Deadline(self._expire)
            process.kernel.clock.arm_call(self._limit, self._timeout)

    async def _work(self) -> None:
        try:
            value = await self._run(self._process)
        except Exception as error:
            self._finish(None, without_own_frames(error))
        else:
            self._finish(value, None)

    def _finish(self, value: object, error: Exception | None) -> None:
        if self._limit is not None:
            self._limit.abandon()
        if self._completion.settle(value, error):
            self._process.end(STOP, Normal() if error is None else Crashed(error))

    def _expire(self) -> None:
        assert self._timeout is not None
        self._finish(None, TaskTimeoutError(self._completion.name, self._timeout))

    def terminate(self, reason: Reason) -> None:
        if self._limit is not None:
            self._limit.abandon()
        completion = self._completion
        completion.settle(None, error_of(reason) or TaskEndedError(completion.name, reason))

    def handle_inspect(self, *items: str) -> Mapping[str, str]:
        return {"task": self._completion.name}

    def handle_message(self, message: object, sender: object) -> None:
        refuse_message(self._process, message)

    def handle_call(self, request: object, caller: Caller) -> object:
        raise refusal(self._process, request)


class TaskSupervisor(Behaviour):
    """A process under which tasks run: ``self.run_task(function, under="tasks")``.

    A task under it does not end with the process that started the task, but with the supervisor.
    Many processes may share it. Start it as any process, best under a supervisor:
    ``ChildSpec("tasks", TaskSupervisor, 100)``.

    Args:
        max_tasks: how many tasks may run at once; a further ``run_task`` raises
            ``TaskError``. None for no limit.

    Raises:
        BadInputError: ``max_tasks`` is not a positive number.
    """

    def __init__(self, max_tasks: int | None = None) -> None:
        if max_tasks is not None:
            check_number("max_tasks", max_tasks, least=1, whole=True, hint=", or None")
        self._max_tasks = max_tasks
        self._started = 0

    def handle_inspect(self, *items: str) -> Mapping[str, str]:
        """The number of running tasks, of all tasks so far, and the limit."""
        return {
            "tasks": str(len(self._process.owned or ())),
            "started": str(self._started),
            "max_tasks": str(self._max_tasks),
        }

    def handle_message(self, message: object, sender: object) -> None:
        """Refuse the message: a task supervisor has none."""
        refuse_message(self._process, message)

    def handle_call(self, request: object, caller: Caller) -> object:
        """Refuse the call: a task supervisor answers none."""
        raise refusal(self._process, request)

    def admit(self, name: str) -> None:
        """Count a task.

        Raises:
            TaskError: of kind ``"too many"``; there are as many as allowed.
        """
        if self._max_tasks is not None and len(self._process.owned or ()) >= self._max_tasks:
            raise TooManyTasksError(name, self._max_tasks)
        self._started += 1


def start_process(
    kernel: Kernel,
    parent: Process | None,
    run: Runner,
    name: str,
    timeout: float | None,
    under: Target | None,
    reply_to: Target | None,
) -> Task[Any]:
    """Start the process of a task, and return its handle. ``parent`` is the process that starts
    the task; None for the node.
    """
    host, router = parent, kernel.router
    if under is not None:
        parent, host = _supervisor(kernel, under, name), None
    completion: Completion[Any] = Completion(name)
    if reply_to is not None:
        router.resolve(reply_to)
    process = spawn_at_once(kernel, parent, TaskProcess, (run, completion, timeout, host), DEFAULTS)
    completion.belong_to(
        process.id,
        partial(_cancel, process),
        process.wait_gone,
        partial(router.bridge.do, _report, process, name),
    )
    if reply_to is not None:
        completion.deliver_to(partial(_reply, process, name, reply_to))
    return Task(completion)


def _supervisor(kernel: Kernel, under: Target, name: str) -> Process:
    found = kernel.router.resolve(under)
    if found is None or not found.accepting:
        reason = kernel.router.missing(under) if found is None else found.reason
        raise TargetDownError(under, name, reason or NoProcess())
    behaviour = getattr(found, "behaviour_itself", None)
    if not isinstance(behaviour, TaskSupervisor):
        raise BadInputError(
            "run_task(under=…)",
            under,
            "the address of a TaskSupervisor: `await node.spawn(TaskSupervisor, name='tasks')`",
        )
    behaviour.admit(name)
    assert isinstance(found, Process)
    return found


def _cancel(process: Process) -> None:
    try:
        process.router.bridge.do(process.ask_to_exit, process.id, _CANCELLED)
    except NodeStoppedError:  # the task has ended with the node
        return


def _reply(
    process: Process, name: str, to: Target, value: object, error: BaseException | None
) -> None:
    try:
        process.router.send(
            process.id, to, TaskResult(process.id, name, value, error), Priority.NORMAL
        )
    except MailboxFullError:
        # It is a dead letter already, and there is no sender to refuse.
        process.log.warning("the result of a task found the mailbox of its receiver full")


def _report(process: Process, name: str, error: BaseException) -> None:
    reason = process.reason if isinstance(process.reason, Crashed) else Crashed(error)
    process.log.error(
        "a task failed, and no code took its result",
        task=name,
        error=str(reason),
        exception=reason.traceback,
    )
    process.kernel.note_crash(process, reason)


def refuse_message(process: Process, message: object) -> None:
    """Report a message that a process without a mailbox of its own has got."""
    process.count_unhandled()
    process.log.warning("unhandled message", message_type=type(message).__qualname__)


def refusal(process: Process, request: object) -> Reject:
    """The answer to a call of such a process."""
    process.count_unhandled()
    return Reject(UnhandledCallError(process.id, request, process.callbacks.behaviour))


show_public_names(__name__)
