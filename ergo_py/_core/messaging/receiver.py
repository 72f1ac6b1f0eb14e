"""What the router needs to know of somebody who receives: a process, or a meta-process."""

from typing import TYPE_CHECKING, Any, Final, Protocol

from ..tables.mailbox import Mailbox
from ..vocabulary.ids import PID, Alias
from ..vocabulary.reasons import Reason

if TYPE_CHECKING:
    from ..runtime.cancel_scopes import CancelScopes
    from ..tables.pending_calls import Caller
    from .waiters import TaskCaller

__all__ = ["NOBODY", "Nobody", "Receiver"]


class Receiver(Protocol):
    """Anything with a mailbox."""

    mailbox: Mailbox
    accepting: bool
    """User messages are still taken; signals are until the very end."""
    splits: bool
    """It wants to know how a message was addressed."""
    reason: Reason | None
    """Why it ended, or is ending."""
    deferred: "set[Caller] | None"
    """Calls it has promised to answer later."""

    waiting: Any
    """The call it waits in, or the child it waits for; None if it can serve."""

    @property
    def inline(self) -> bool:
        """A process with a plain ``handle_call``: while it sleeps, a call may be answered on the
        spot.
        """
        ...

    @property
    def id(self) -> PID | Alias: ...

    @property
    def open(self) -> bool:
        """Accepting, and with nothing to look at before an append to its main lane: as nearly all
        are, nearly always.
        """
        ...

    @property
    def measured(self) -> bool:
        """Accepting, and with nothing but the bound to look at before an append."""
        ...

    def wake(self) -> None:
        """Have it look at its mailbox."""

    def stir(self) -> None:
        """The same, from any thread, for one that is ``open`` or ``measured``."""

    def serves_in_passing(self, message: object, sender: PID | Alias, /) -> bool:
        """Serve a message in its sender's turn if that is possible; False if it is to be put into
        the mailbox, as usual.
        """
        ...

    def answer_now(self, caller: "TaskCaller", request: object) -> "CancelScopes | None":
        """Serve a call on the spot, as if it had been queued and taken. Returns the scopes that it
        has left open, if any.
        """
        ...


class Nobody:
    """Stands for the receiver of somebody who has not sent anything yet, or to one that is no more."""

    __slots__ = ()

    id: Final = None
    open: Final = False
    measured: Final = False


NOBODY: Final = Nobody()
