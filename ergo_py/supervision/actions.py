"""Operations: requests to a supervisor. Actions: the decisions of its strategy."""

from typing import Any

from .._core.vocabulary.late_methods import dataclass
from .._core.vocabulary.reasons import Reason
from .specs import ChildSpec

__all__ = [
    "Action",
    "AddChild",
    "Answer",
    "DisableChild",
    "EnableChild",
    "End",
    "Gone",
    "Operation",
    "RemoveChild",
    "Removed",
    "RestartChild",
    "Start",
    "StartChild",
    "Stop",
    "StopChild",
    "Wake",
]

# -- operations ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartChild:
    """Start a child that is down; with SIMPLE_ONE_FOR_ONE, make a child from the template, with
    further arguments.
    """

    child: object
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class StopChild:
    """Stop a child, and do not start it again until asked."""

    child: object


@dataclass(frozen=True, slots=True)
class RestartChild:
    """Stop a child if it runs, and start it at once."""

    child: object


@dataclass(frozen=True, slots=True)
class AddChild:
    """Start a new child, after all others."""

    spec: ChildSpec


@dataclass(frozen=True, slots=True)
class RemoveChild:
    """Stop a child if it runs, and forget it. With ``drain`` the child first handles the messages
    in its mailbox.
    """

    child: object
    drain: bool = False


@dataclass(frozen=True, slots=True)
class EnableChild:
    """Start a child that was disabled."""

    child: object


@dataclass(frozen=True, slots=True)
class DisableChild:
    """Stop a child if it runs, and refuse to start it until it is enabled."""

    child: object


Operation = (
    StartChild | StopChild | RestartChild | AddChild | RemoveChild | EnableChild | DisableChild
)

# -- actions ---------------------------------------------------------------------------------------

# Created for each event and performed at once. Not frozen: frozen dataclasses cost twice as much.


@dataclass(slots=True)
class Start:
    """Start a child. ``after`` is the reason its predecessor ended, if it had a predecessor."""

    child: str
    after: Reason | None = None


@dataclass(slots=True)
class Stop:
    """Ask a child to end. ``returns`` tells whether it restarts afterwards."""

    child: str
    returns: bool = False
    drain: bool = False


@dataclass(slots=True)
class Gone:
    """Tell waiting senders and callers that a child does not come back by itself."""

    child: str
    reason: Reason


@dataclass(slots=True)
class Removed:
    """Forget a child."""

    child: str
    reason: Reason


@dataclass(slots=True)
class Answer:
    """Tell the caller of an operation that it is done, or why it failed."""

    asker: Any
    pid: object = None
    error: BaseException | None = None


@dataclass(slots=True)
class Wake:
    """Call ``woken`` at this time."""

    at: float


@dataclass(slots=True)
class End:
    """End the supervisor, with this reason."""

    reason: Reason


Action = Start | Stop | Gone | Removed | Answer | Wake | End
