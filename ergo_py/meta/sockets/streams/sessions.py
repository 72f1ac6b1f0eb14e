"""`end_session`: the actor that a server spawned for a connection ends with that connection."""

from functools import partial

from ...._core.kernel import Kernel
from ...._core.processes.process import Process, processes_of
from ...._core.tables.pending_calls import Deadline
from ...._core.vocabulary.envelopes import STOP, Lane
from ...._core.vocabulary.ids import PID, Alias
from ...._core.vocabulary.reasons import Normal

__all__ = ["end_session"]


def end_session(session: Process, sender: PID | Alias) -> None:
    """Let a session end in its turn, after it has served all messages of its connection.

    Two waits of the session are cut short: a wait without a time limit for an answer that its
    callee has deferred, at once; and any other long wait in a callback, after the session's
    ``shutdown`` time. A call with a time limit ends by itself, so the session may finish it:
    perhaps it saves the data of the peer.
    """
    session.router.signal(session, Lane.MAIN, (STOP, sender, None, Normal()))
    if not session.leave_wait(Normal()) and session.callbacks.any_async:
        _limit_callback(session)


def _limit_callback(session: Process) -> None:
    """End a callback that runs for long after the connection has ended."""
    # The deadline finds the session by its number: a reference would keep a session that has ended
    # in memory.
    look = partial(_look_at_callback, session.kernel, session.id, session.handled)
    session.kernel.clock.arm_call(Deadline(look), session.options.shutdown)


def _look_at_callback(kernel: Kernel, pid: PID, handled: int) -> None:
    session = processes_of(kernel.router).get(pid)
    if session is None or session.leave_wait(Normal()):
        return
    is_in_same_callback = session.handling is not None and session.handled == handled
    if is_in_same_callback and not session.waits_within_limit():
        session.cut(Normal())
    else:
        # The session is still working through its messages, or is suspended.
        _limit_callback(session)
