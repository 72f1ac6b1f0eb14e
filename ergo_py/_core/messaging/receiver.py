"""`Receiver`: the interface of processes and meta-processes that the router needs."""

from typing import TYPE_CHECKING, Any, Final, Protocol

from ..tables.mailbox import Mailbox
from ..vocabulary.ids import PID, Alias
from ..vocabulary.reasons import Reason

if TYPE_CHECKING:
    from ..runtime.cancel_scopes import CancelScopes
    from ..tables.pending_calls import Caller
    from .waiters import TaskCaller

__all__ = ["NO_RECEIVER", "NoReceiver", "Receiver"]


class Receiver(Protocol):
    """A process or a meta-process: an object with a mailbox."""

    mailbox: Mailbox
    accepting: bool
    """Whether it takes user messages. It takes signals of the kernel until it has ended."""
    splits: bool
    """Whether it has separate callbacks for messages addressed to a name or to an alias."""
    reason: Reason | None
    """The reason with which it ended or is ending."""
    deferred: "set[Caller] | None"
    """Calls for which it has returned NO_REPLY, and must reply to later."""

    waiting: Any
    """The call in which it waits, or the child whose start it waits for; None if it can serve."""

    @property
    def inline(self) -> bool:
        """Whether a call may run its plain ``handle_call`` inline, in the caller's task, while the
        process sleeps.
        """
        ...

    @property
    def id(self) -> PID | Alias: ...

    @property
    def open(self) -> bool:
        """Whether senders may append to its main lane without any check. Nearly always true."""
        ...

    @property
    def measured(self) -> bool:
        """Whether senders may append to its main lane after checking only the mailbox's bound."""
        ...

    def wake(self) -> None:
        """Wake it, so that it looks at its mailbox. On the loop's thread only."""

    def stir(self) -> None:
        """Wake it from any thread, after an append. It must be ``open`` or ``measured``."""

    def serves_in_passing(self, message: object, sender: PID | Alias, /) -> bool:
        """Serve a message in the sender's turn of the scheduler, if that is possible. False if the
        message has to go into the mailbox.
        """
        ...

    def answer_now(self, caller: "TaskCaller", request: object) -> "CancelScopes | None":
        """Serve a call inline, as if it had been queued and taken. Returns the cancel scopes that
        the callback left open, if any.
        """
        ...


class NoReceiver:
    """Null object for a receiver: the sender has not sent anything yet, or its last receiver has
    ended.
    """

    __slots__ = ()

    id: Final = None
    open: Final = False
    measured: Final = False


NO_RECEIVER: Final = NoReceiver()
