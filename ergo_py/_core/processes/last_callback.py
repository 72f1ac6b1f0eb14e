"""`LastCallback`: runs ``pre_stop``, ``pre_restart`` or ``terminate`` of an ending process, within
its time limit.
"""

from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import current_task

from ..runtime.cancel_scopes import CancelScopes, is_being_closed, left_open
from ..tables.callbacks import check_plain
from ..tables.pending_calls import Deadline
from ..vocabulary.hints import explain
from ..vocabulary.reasons import Crashed, Reason, is_a, is_for_program

if TYPE_CHECKING:
    from .process import Process

__all__ = ["GRACE", "LastCallback", "run_plain"]

_TURN: Final = 1.0
"""Length in seconds of a turn of a last callback. After each turn the countdown checks whether the
loop stood still.
"""
# Not measured: enough for the cleanup of a callback that is cancelled on a busy machine, and added
# once for each level of a tree that has to be abandoned.
GRACE: Final = 0.5
"""Seconds that a killed process has to end, beyond its own time limits."""


class LastCallback:
    """An async last callback and its time limit. When the limit is over the callback is cancelled;
    if it ignores that, the process is abandoned.

    The limit is counted in turns, and a turn that ends late extends it: time in which the loop
    itself stood still does not count.
    """

    __slots__ = ("_clock", "_due", "_end", "_name", "_patience", "_process", "_turn", "scope")

    def __init__(self, process: "Process", name: str) -> None:
        self._process = process
        self._name = name
        self._clock = process.kernel.clock
        self._patience = Deadline(
            partial(process.kernel.start, process.abandon, name=f"leave {name} behind")
        )
        """Abandons the process: its callback has ignored the cancellation."""
        self.scope = trio.CancelScope(shield=True)
        """Cancelled when the limit is over, or by a kill."""

    async def run(self, reason: Reason) -> bool:
        """Run the callback. Returns whether a kill cut it off."""
        process, name, limit = self._process, self._name, self.scope
        timeout = process.options.terminate_timeout
        process.turn.handle_again(None)
        self._end = self._clock.now() + timeout
        self._begin_turn(timeout)
        try:
            with limit:
                scopes = CancelScopes(current_task())
                await getattr(process.behaviour, name)(reason)
                if scopes.are_left():
                    error = left_open(process.callbacks.behaviour, name, scopes.nurseries())
                    await scopes.close()
                    raise error
            if limit.cancelled_caught:
                # A single scope for both: if it was cancelled before its deadline, a kill has done
                # that.
                was_killed = trio.current_time() < limit.deadline
                cause = " by a kill" if was_killed else ""
                process.log.error(f"{name} was cut off{cause}", limit=timeout)
                return was_killed
        except BaseException as error:
            if process.abandoned or (
                is_a(error, GeneratorExit) and is_being_closed(process.callback_task)
            ):
                raise
            _account_for(process, name, error)
        finally:
            self._turn.abandon()
            self._patience.abandon()
        return False

    def _end_turn(self) -> None:
        """A turn is over: begin the next one, or cancel the callback."""
        now = self._clock.now()
        self._end += max(0.0, now - self._due)
        if now < self._end:
            self._begin_turn(self._end - now)
        else:
            self.scope.deadline = now
            self._clock.arm_call(self._patience, 2 * GRACE)

    def _begin_turn(self, most: float) -> None:
        seconds = min(most, _TURN)
        self._due = self._clock.now() + seconds
        self._turn = Deadline(self._end_turn)
        self._clock.arm_call(self._turn, seconds)


def run_plain(process: "Process", name: str, reason: Reason) -> None:
    """Run a plain last callback."""
    process.turn.handle_again(None)
    # For a process that ends while it sleeps, this is the task of its owner.
    task = current_task()
    status = task._cancel_status
    try:
        check_plain(process, name, getattr(process.behaviour, name)(reason))
    except BaseException as error:
        _account_for(process, name, error)
    if task._cancel_status is not status:
        scopes = CancelScopes.since(task, status)
        _account_for(
            process, name, left_open(process.callbacks.behaviour, name, scopes.nurseries())
        )
        scopes.close_plain()


def _account_for(process: "Process", name: str, error: BaseException) -> None:
    """Log an exception that left a last callback. Termination continues."""
    if is_for_program(error):
        process.kernel.panic(error)
    else:
        explain(error, process.behaviour)
        process.log.error(f"{name} raised", exception=Crashed(error).traceback)
