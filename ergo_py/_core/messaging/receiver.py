"""`Receiver`, `Asker`, `Stoppable`: the interfaces of processes and meta-processes that the rooms
below them need.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

from trio.lowlevel import Task

from ..runtime.cancel_scopes import CancelScopes, Killing
from ..runtime.parking import TaskPlaceholder
from ..tables.callbacks import Callbacks
from ..tables.mailbox import Mailbox
from ..tables.pending_calls import Callee, Caller
from ..vocabulary.envelopes import Envelope
from ..vocabulary.ids import PID, Alias
from ..vocabulary.reasons import Reason
from .waiters import TaskCaller

__all__ = [
    "NO_RECEIVER",
    "AnyProcess",
    "Asker",
    "DirectReceiver",
    "NoReceiver",
    "Receiver",
    "Stoppable",
]


class Receiver(Callee, Protocol):
    """A process or a meta-process: an object with a mailbox."""

    mailbox: Mailbox
    accepting: bool
    """Whether it takes user messages. It takes signals of the kernel until it has ended."""

    @property
    def is_remote(self) -> bool:
        """Whether it is another node, which stands for all its processes."""
        ...

    @property
    def inline(self) -> bool:
        """Whether a call may run its plain ``handle_call`` inline, in the caller's task, while the
        process sleeps.
        """
        ...

    @property
    def takes_direct(self) -> bool:
        """Whether senders may append to its main lane without any check. Nearly always true."""
        ...

    @property
    def takes_bounded(self) -> bool:
        """Whether senders may append to its main lane after checking only the mailbox's bound."""
        ...

    def wake(self) -> None:
        """Wake it, so that it looks at its mailbox. On the loop's thread only."""

    def wake_from_any_thread(self) -> None:
        """Wake it after an append, from any thread if ``takes_direct`` or ``takes_bounded``."""

    def serves_in_passing(self, message: object, sender: PID | Alias, /) -> bool:
        """Serve a message in the sender's turn of the scheduler, if that is possible. False if the
        message has to go into the mailbox.
        """
        ...


class DirectReceiver(Receiver, Protocol):
    """A process: a receiver for which ``takes_direct``, ``takes_bounded`` and ``inline`` may be
    true. For a meta-process they are always false.
    """

    def answer_now(self, caller: TaskCaller, request: object) -> CancelScopes | None:
        """Serve a call inline, as if it had been queued and taken. Returns the cancel scopes that
        the callback left open, if any.
        """
        ...


class Asker(DirectReceiver, Protocol):
    """A process that makes calls."""

    callback_task: Task
    """The task in which its callbacks run."""

    @property
    def id(self) -> PID: ...

    def waits_for_task(self, task: Task) -> bool:
        """Whether a callback waits at the end of a nursery until that task has ended."""
        ...

    def begin_wait(self, caller: Caller) -> None:
        """Record that the process waits in a call."""

    def end_wait(self) -> None:
        """Record that the process has stopped waiting in a call."""

    def begin_wait_beside(self, awaited: Caller | Callee) -> None:
        """Record that a callback waits for room in a mailbox; or, at the end of a nursery, for a
        task that waits for it or in a call.
        """

    def end_wait_beside(self, awaited: Caller | Callee) -> None:
        """Record that this wait is over."""


class Stoppable(Protocol):
    """A process or a meta-process that its owner stops."""

    @property
    def id(self) -> PID | Alias: ...

    @property
    def name(self) -> str | None: ...

    @property
    def callbacks(self) -> Callbacks: ...

    @property
    def reason(self) -> Reason | None:
        """The reason with which it ended or is ending."""
        ...

    @property
    def killer(self) -> Killing | None:
        """The kill of a whole tree that it belongs to, if any."""
        ...

    def join_killing(self, killing: Killing) -> None:
        """Note the kill of a whole tree that it belongs to."""

    @property
    def owned(self) -> "Mapping[object, Stoppable] | None":
        """Its own children and meta-processes."""
        ...

    def is_unborn_in(self, task: Task, /) -> bool:
        """Whether its failed ``init`` ran in this task and has not been undone."""
        ...

    def stop_accepting(self) -> Sequence[Any]:
        """Stop accepting sessions, if it is a server. Returns the processes of its sessions."""
        ...

    async def shut(self, reason: Reason, /) -> None:
        """Stop it in bounded time: ask it to exit, then kill it, then abandon it."""

    def force_end(self) -> None:
        """Kill it because it did not end when asked."""

    async def abandon(self) -> None:
        """Release everything of it, although it did not end when killed."""

    async def wait_gone(self) -> None:
        """Wait until it has ended and all of it is released."""


class AnyProcess(Asker, Stoppable, Protocol):
    """A process, as far as the rooms below it need its type. `processes_of` has the whole type."""

    main: deque[Envelope]
    """The main lane of its mailbox."""
    trap_exit: bool
    """Whether it gets exits as messages."""

    @property
    def task(self) -> Task | TaskPlaceholder:
        """The task that reads the mailbox."""
        ...

    @property
    def id(self) -> PID: ...

    def close_mailbox(self) -> None:
        """Let no sender append to its mailbox from now on."""

    def borrows_thread(self) -> bool:
        """Say whether its callbacks run in a thread that waits for this process."""
        ...


class NoReceiver:
    """Null object for a receiver: the sender has not sent anything yet, or its last receiver has
    ended.
    """

    __slots__ = ()

    id: Final = None
    takes_direct: Final = False
    takes_bounded: Final = False


# A process for type checkers: no sender reads more of it than its class has.
NO_RECEIVER: Final = cast(AnyProcess, NoReceiver())
