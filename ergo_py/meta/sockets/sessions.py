"""The end of a session: the actor that a server made for one connection ends with that connection."""

from ..._core.kernel import Kernel
from ..._core.processes.process import Process
from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.envelopes import STOP, Lane
from ..._core.vocabulary.ids import Alias
from ..._core.vocabulary.reasons import Normal

__all__ = ["end_session"]


def end_session(session: Process, connection: Alias) -> None:
    """Have a session end in its turn, after all that its connection has said.

    It does not wait without a time limit for an answer that its callee has put off, nor for long in
    a callback that waits for anything else. A call with a time limit ends by itself, and is waited
    for: perhaps it saves what the peer has sent.
    """
    session.router.signal(session, Lane.MAIN, (STOP, connection, None, Normal()))
    if not session.leave_wait(Normal()) and session.callbacks.any_async:
        _Watch(session).arm()


class _Watch(Caller):
    """What the clock gives up on, as on a call, if a callback goes on for long after the connection
    has ended.
    """

    __slots__ = ("handled", "kernel", "patience")

    def __init__(self, session: Process) -> None:
        super().__init__(session.id, 0, session.id, None)
        self.kernel: Kernel = session.kernel
        self.patience = session.options.shutdown
        self.handled = session.handled

    def arm(self) -> None:
        self.kernel.clock.arm_call(self, self.patience)

    def awaken(self) -> None:
        # By its number, so that a session that has ended is not kept.
        session = self.kernel.router.processes.get(self.to)
        if session is None or session.leave_wait(Normal()):
            return
        is_in_same_callback = session.handling is not None and session.handled == self.handled
        if is_in_same_callback and not session.waits_within_limit():
            session.cut(Normal())
        else:
            # It works through what its peer has sent, or is suspended.
            _Watch(session).arm()
