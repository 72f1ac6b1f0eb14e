"""`Hook`: a part of a node that sees each message of it on the way to the mailbox.

An observed node, a traced node and a node that checks whether its messages can travel have hooks,
and a `HookedRouter` and `HookedCalls` for them. Any other node has none, and pays nothing.
"""

from typing import TYPE_CHECKING, ClassVar

from ..vocabulary.ids import PID, Alias, EventName, Target

if TYPE_CHECKING:
    from .router import Router

__all__ = ["Hook"]


class Hook:
    """Does nothing. A subclass overrides the methods that it needs."""

    __slots__ = ()

    sees_all: ClassVar[bool] = True
    """Whether each message and call has to come to it: none takes a short cut past the router."""

    def sending(
        self, _router: "Router", _sender: PID | Alias, _to: Target | EventName, message: object, /
    ) -> object:
        """A message, a request or a publication is sent, from any thread. Returns the object that
        the receiver gets.

        Raises:
            SendError: the message must not be sent.
        """
        return message

    def answering(self, _router: "Router", _to: Target, answer: object, /) -> object:
        """A call is answered. Returns the object that the caller gets.

        Raises:
            CallFailedError: the caller must not get the answer.
        """
        return answer

    def context_of(self, _sender: PID | Alias, _is_outside: bool, /) -> object | None:
        """The context of the trace to which a message of this sender belongs, now; None if it
        belongs to none. ``is_outside``: no process sends it, so that it may begin a trace.
        """
        return None
