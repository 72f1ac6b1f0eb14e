"""`Lifecycle`: the states of a process, its turns and its waits."""

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final, cast
from weakref import ref

from trio.lowlevel import Task

from ..messaging.waiters import TaskCaller
from ..runtime.parking import ENDED, TaskPlaceholder
from ..tables.pending_calls import Callee, Caller
from ..tables.pending_calls import awaited as awaited_by
from ..vocabulary.envelopes import Envelope, kind_name
from ..vocabulary.states import (
    HISTORY,
    INIT,
    RUNNING,
    SLEEP,
    STOPPING,
    TERMINATED,
    TRANSITIONS,
    WAIT_RESPONSE,
    State,
    check_transition,
)
from .addressee import Addressee
from .message_loop import NO_TURN, Turn

if TYPE_CHECKING:
    from .process import Process

__all__ = ["NOT_YET", "Lifecycle", "asked_by_none"]

NOT_YET: Final = TaskPlaceholder()
_GONE: Final = TaskPlaceholder(ENDED)


def asked_by_none() -> None:
    """The `asked_by` of a process before its first call."""
    return


class Lifecycle(Addressee):
    """An addressee that changes its state: it starts, serves envelopes, waits and ends.

    A base class, and not a part of the process: every call reads and changes the state.
    """

    __slots__ = ("asked_by", "born", "history", "callback_task", "state", "turn", "waiting")

    # The constructor of `Process` sets these: each spawn would pay for another constructor.
    asked_by: Callable[[], Task | None]
    """Returns the task whose call it got last. A weak reference: the task may have ended."""
    born: float
    """When it was made, as ``perf_counter`` counts."""
    history: list[State | float]
    """Its last states, each followed by the moment in which it began."""
    callback_task: Task
    """The task in which the callbacks run: the spawner's task during ``init``, then its own."""
    state: State
    """What it does now."""
    turn: Turn
    """What its message loop does now, and has done so far."""
    waiting: "Caller | Process | None"
    """The call in which it waits, or the child whose ``init`` it waits for."""

    # -- states ------------------------------------------------------------------------------------

    def enter(self, state: State) -> None:
        """Change state, if the table allows the transition, and record the time."""
        # Inlined check_transition(): every start and every end of a process pays for it.
        if state not in TRANSITIONS[self.state]:
            check_transition(self.state, state)
        self.state = state
        history = self.history
        history += (state, perf_counter())
        if len(history) > HISTORY:
            # Half at once: to remove the oldest entry with each change would move the list each
            # time.
            del history[: HISTORY // 2]

    def own_turn(self) -> Turn:
        """Its turn, created when it first serves an envelope, or when a callback can be
        interrupted.
        """
        if self.turn is NO_TURN:
            self.turn = Turn()
        return self.turn

    def begin_turn(self) -> None:
        """Begin to serve envelopes. The message loop inlines this, as it does :meth:`end_turn`."""
        self.turn.begin(perf_counter())
        self.enter(RUNNING)

    def end_turn(self) -> None:
        """Fall asleep: all envelopes are served."""
        self.turn.end(perf_counter())
        self.enter(SLEEP)

    @property
    def handling(self) -> Envelope | None:
        """The envelope that it handles now."""
        return self.turn.handling

    @property
    def handled(self) -> int:
        """How many envelopes it has handled."""
        return self.turn.handled

    def is_unborn_in(self, task: Task) -> bool:
        """Whether its failed ``init`` ran in this task and has not been undone, because another
        exception was raised where it should have been.
        """
        return (
            self.task is NOT_YET
            and self.callback_task is task
            and self.state not in (SLEEP, TERMINATED)
        )

    def begin_task(self, task: Task) -> None:
        """Take its own task, which reads the mailbox and runs the callbacks from now on."""
        self.task = self.callback_task = task

    def has_work(self) -> bool:
        """Whether it must not sleep before it has looked at its mailbox."""
        box = self.mailbox
        return bool(self.callbacks.has_start_hooks or box.main or box.ahead or box.log)

    def close_task(self) -> None:
        """Note that no task reads the mailbox any more: a thread looks at the task after its
        append, and sees that it was too late.
        """
        self.task = _GONE
        turn = self.turn
        if (
            # A process that ends in its sleep, as most do, has ended its turn already.
            turn.handling is not None
            or turn.scope is not None
            or turn.woken
            or turn.batch is not None
        ):
            turn.close()

    def fail_to_end(self) -> None:
        """Be terminated in any state: an exception has interrupted the termination."""
        self.task = _GONE
        self.state = TERMINATED

    def current_callback(self) -> str | None:
        """The name of the callback in progress, if any."""
        if self.state is INIT:
            return "init"
        if self.state is STOPPING:
            return "terminate"
        return None if self.handling is None else kind_name(self.handling[0])

    # -- calls -------------------------------------------------------------------------------------

    def is_asked_again_by(self, task: Task) -> bool:
        """Note the task that calls this process. Returns whether the last call was its own, too."""
        if self.asked_by() is task:
            return True
        self.asked_by = ref(task)
        return False

    # -- waits -------------------------------------------------------------------------------------

    def works_in(self, task: Task) -> bool:
        """Whether it runs a callback in that task. Before its first step, its ``callback_task`` is
        still the spawner's task.
        """
        return self.callback_task is task and self.state is not SLEEP

    def waits_for_task(self, task: Task) -> bool:
        """Whether a callback waits at the end of a nursery until that task has ended."""
        if self.task is not self.callback_task:
            return False
        nursery = task.parent_nursery
        # Only its callbacks open nurseries in its own task.
        while nursery is not None and nursery._parent_waiting_in_aexit:
            if nursery.parent_task is self.callback_task:
                return True
            nursery = nursery.parent_task.parent_nursery
        return False

    def begin_wait(self, caller: Caller) -> None:
        """Record that the process waits in a call."""
        self.waiting = caller
        # A last callback may call, too: the state stays STOPPING, so that a kill cuts the end short
        # and begins no other.
        if self.state is not STOPPING:
            # Without check_transition(): every state that allows calls allows this transition.
            # Inlined, as in end_wait, which also trims the history: every call pays for both.
            self.state = WAIT_RESPONSE
            self.history += (WAIT_RESPONSE, perf_counter())

    def end_wait(self) -> None:
        """Record that the process has stopped waiting in a call."""
        self.waiting = None
        if self.state is WAIT_RESPONSE:
            self.state = state = INIT if self.task is NOT_YET else RUNNING
            history = self.history
            history += (state, perf_counter())
            if len(history) > HISTORY:
                del history[: HISTORY // 2]

    def begin_wait_for_init(self, child: "Process") -> None:
        """Record that a callback waits for the ``init`` of a process that belongs to the node."""
        self.waiting = child

    def begin_wait_beside(self, awaited: Caller | Callee) -> None:
        """Record that a callback waits for room in a mailbox; or, at the end of a nursery, for a
        task that waits for it or in a call. The threads of the others serve such waits one after
        the other.
        """
        self.own_turn().begin_wait_beside(awaited)
        # A wait of the callback itself comes first; this wait is shown when that is over.
        if self.own_wait() is None:
            self.waiting = cast("Process", awaited)

    def end_wait_beside(self, awaited: Caller | Callee) -> None:
        """Record that this wait is over, and wait for the next. Another wait of the callback may
        have replaced it meanwhile.
        """
        following = self.turn.end_wait_beside(awaited)
        if self.own_wait() is awaited:
            self.waiting = cast("Process | None", following)
            self._lend_threads()

    def own_wait(self) -> object:
        """The call or the process that its own callback waits for."""
        return self.waiting

    def _lend_threads(self) -> None:
        """Have a callback that waits for this process, in the thread of a process that this one
        waits for, serve the latter.
        """
        for process in awaited_by(cast("Process", self)):
            group = getattr(process, "thread_group", None)
            if group is not None:
                group.lend()

    def waits_within_limit(self) -> bool:
        """Whether it waits in a call with a timeout."""
        return isinstance(self.waiting, TaskCaller) and self.waiting.has_limit
