"""``RepliesAndTimers``: the verbs for deferred answers and for timers, which processes,
meta-processes and nodes have alike.
"""

from typing import TYPE_CHECKING, TypeVar

from ..messaging.calls import Calls
from ..tables.pending_calls import Caller
from ..tables.timers import Timer
from ..vocabulary.envelopes import Priority
from ..vocabulary.ids import Target
from ..vocabulary.messages import Sent
from ..vocabulary.options import check_number
from ..vocabulary.public_names import name_for_annotations
from .common import check_caller, check_error

if TYPE_CHECKING:
    from .behaviour import Behaviour
else:
    name_for_annotations(__name__, {"ergo_py._core.verbs.behaviour": "Behaviour"})

__all__ = ["RepliesAndTimers"]

M = TypeVar("M")


class RepliesAndTimers:
    """The verbs that differ only in who may use them, and from where."""

    __slots__ = ()

    # Programs subclass Actor and MetaProcess: these two names must not meet names of theirs.

    def _calls_for_reply(self) -> Calls:
        """The calls of the node; raises if the owner may not answer now."""
        raise NotImplementedError

    def _arm_timer_for(
        self, delay: float, period: float, to: Target, message: object, priority: Priority | None
    ) -> Timer:
        """Arm a timer of the owner."""
        raise NotImplementedError

    def reply(self, caller: Caller, value: object) -> bool:
        """Answer a call for which ``handle_call`` returned ``NO_REPLY``. False if the caller has
        stopped waiting.

        Raises:
            NotAllowedError: this process or meta-process is ending.
        """
        return self._calls_for_reply().reply(check_caller(caller), value, None)

    def reply_error(self, caller: Caller, error: BaseException) -> bool:
        """Answer such a call with an exception, which its ``call`` raises. False if the caller has
        stopped waiting.

        Raises:
            NotAllowedError: this process or meta-process is ending.
        """
        return self._calls_for_reply().reply(check_caller(caller), None, check_error(error))

    def send_after(
        self,
        delay: float,
        to: "Target[Behaviour[M]]",
        message: Sent[M],
        *,
        priority: Priority | None = None,
    ) -> Timer:
        """Send a message ``delay`` seconds from now, unless the process or meta-process that sends
        it ends first.

        Raises:
            BadInputError: the delay is negative or not a number.
        """
        # Nearly every delay is a valid float, so check for that first.
        if not (type(delay) is float and delay >= 0.0):
            check_number("delay", delay, least=0.0)
        return self._arm_timer_for(delay, 0.0, to, message, priority)

    def send_every(
        self,
        period: float,
        to: "Target[Behaviour[M]]",
        message: Sent[M],
        *,
        priority: Priority | None = None,
    ) -> Timer:
        """Send a message every ``period`` seconds, the first after ``period`` seconds, until the
        timer is cancelled, or the process or meta-process that sends it ends.

        Raises:
            BadInputError: the period is not positive.
        """
        check_number("period", period, least=1e-6)
        return self._arm_timer_for(period, period, to, message, priority)
