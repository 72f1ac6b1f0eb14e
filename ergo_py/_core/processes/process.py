"""`Process`: a trio task that serves a mailbox, from ``init`` until its watchers are notified of
its end.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from time import perf_counter
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast

from trio.lowlevel import Task, current_task

from ..kernel import Kernel
from ..messaging.receiver import NO_RECEIVER, AnyProcess, Stoppable
from ..messaging.requests import RequestCaller, begin_request
from ..messaging.router import Router, check_priority
from ..messaging.waiters import TaskCaller
from ..runtime.cancel_scopes import CancelScopes, Killing, left_open
from ..runtime.parking import PARKED, TaskPlaceholder
from ..tables.callbacks import Callbacks, check_plain, check_waiting, runs_callbacks
from ..tables.child_slot import ChildSlot
from ..tables.mailbox import LanedMailbox, Mailbox
from ..tables.pending_calls import Caller
from ..tables.timers import Owned
from ..tables.verb_chain import VerbChain
from ..vocabulary.envelopes import (
    EXIT,
    KILL,
    MAIN_LANE,
    URGENT_LANE,
    Envelope,
    Lane,
    Overflow,
    Priority,
)
from ..vocabulary.errors import NameTakenError, NotAllowedError
from ..vocabulary.ids import PID, Alias, EventName, Target
from ..vocabulary.info import Ended
from ..vocabulary.messages import Why
from ..vocabulary.options import Options
from ..vocabulary.reasons import SHUTDOWN, Killed, Reason
from ..vocabulary.states import (
    INIT,
    RUNNING,
    SLEEP,
    STOPPING,
    TERMINATED,
    Operation,
    State,
    check_allowed,
)
from ..vocabulary.unmatched import Unmatched
from .background_task import BackgroundTask, BackgroundTasks
from .inline_calls import answer_now
from .lifecycle import NOT_YET, asked_by_none
from .message_loop import NO_TURN, Callback, Turn
from .ownership import Owner
from .termination import Ending, end_at_once
from .unhandled_messages import skip_given_up

__all__ = ["BehaviourProxy", "Process", "processes_of"]

R = TypeVar("R")

_LEFT_TO_SENDERS: Final = (Overflow.RAISE, Overflow.WAIT)
"""The overflow rules that a sender follows without the mailbox."""


class Handlers(Protocol):
    """The instance of a behaviour, as its process sees it. A callback that is not async returns
    None or the answer instead of an awaitable; `Callbacks.asynchronous` has the names of the
    others.
    """

    _process: "Process"

    def init(self) -> Coroutine[Any, Any, None]:
        """Prepare the behaviour for its first message."""
        ...

    def handle_message(self, message: object, sender: PID | Alias, /) -> Awaitable[object]:
        """Handle a message."""
        ...

    def handle_call(self, request: object, caller: Caller, /) -> Awaitable[object]:
        """Answer a call."""
        ...

    def handle_event(self, event: object, /) -> Awaitable[object]:
        """Handle a publication of an event."""
        ...

    def _control(
        self, sender: PID | Alias, caller: Caller | None, operation: object, /
    ) -> Coroutine[Any, Any, None]:
        """Perform an operation on the children of a supervisor."""
        ...

    def _wind_down(self, reason: Reason, /) -> Awaitable[None]:
        """Stop the children of a supervisor."""
        ...


_NO_BEHAVIOUR: Final = cast(Handlers, None)


class BehaviourProxy:
    """Stands in for a behaviour: has callbacks of its own, and the other attributes of the
    behaviour.
    """

    def __init__(self, behaviour: Any) -> None:
        self.behaviour_itself = behaviour

    def __getattr__(self, name: str) -> object:
        return getattr(self.behaviour_itself, name)


class Process(Owner):
    """The kernel's side of a process; the behaviour is the user's side. All methods run on the
    loop's thread, unless they say otherwise.
    """

    blameless: ClassVar[bool] = False
    """Whether its failure is blamed on another object. A process is to blame for its own
    failures.
    """
    __slots__ = (
        *("behaviour", "env", "parent", "last_receiver", "priority", "reason", "sent", "trap_exit"),
        "unhandled",
        # Created on first use.
        *("deferred", "ending", "postponed", "verbs"),
    )

    # The base classes say what these are. Without the types, each checker would infer its own from
    # the constructor here.
    id: PID
    router: Router
    name: str | None
    mailbox: Mailbox
    main: deque[Envelope]
    task: Task | TaskPlaceholder
    takes_direct: bool
    takes_bounded: bool
    inline: bool
    left_to: ChildSlot | None
    state: State
    history: list[State | float]
    turn: Turn
    callback_task: Task
    waiting: "Caller | Process | None"
    asked_by: Callable[[], Task | None]
    owned: dict[object, Stoppable] | None
    events: list[EventName] | None
    timers: Owned | None
    requests: dict[int, RequestCaller] | None
    slots: dict[str, ChildSlot] | None
    parent: "Process | None"
    """The process that has spawned it; None if the node has."""
    behaviour: Handlers
    """The instance of the behaviour; None until ``__init__`` has made it."""
    last_receiver: AnyProcess
    """The receiver of its last message. A cache: most processes send to the same receiver again,
    and need no lookup.
    """
    priority: Priority
    """The priority of the messages that it sends."""
    trap_exit: bool
    """Whether exits of linked processes reach it as messages."""
    env: Mapping[str, object]
    """Its settings: its own over those of its parent."""
    reason: Reason | None
    """The reason with which it ended or is ending."""
    sent: int
    """Messages that it has sent."""
    unhandled: int
    """Messages and calls that its behaviour has no callback for."""
    deferred: dict[Caller, None] | None
    """The calls that it answers later."""
    postponed: deque[Envelope] | None
    """Envelopes that its behaviour has postponed. They are served before the queued ones."""
    ending: Ending | None
    """The work of ending it, from the first request to end it until it is gone."""
    verbs: VerbChain | None
    """The verbs of its behaviour that the kernel has changed."""

    def __init__(
        self, kernel: Kernel, callbacks: Callbacks, options: Options, parent: "Process | None"
    ) -> None:
        self.kernel = kernel
        self.router = router = kernel.router
        self.id = PID(router.node, router.creation, next(router.numbers))
        self.callbacks = callbacks
        self.options = options
        self.name = options.name
        size, overflow = options.mailbox_size, options.overflow
        self.mailbox = mailbox = Mailbox(size or 0, overflow)
        self.main = mailbox.main
        self.task = NOT_YET
        self.accepting = True
        is_plain = not router.sees_all and not callbacks.supervises
        self.takes_direct = is_plain and not size
        self.takes_bounded = bool(is_plain and size and overflow in _LEFT_TO_SENDERS)
        self.inline = router.inline_calls and callbacks.answers_at_once
        self.wake_requested = False
        self.aliases = self.slot = self.left_to = self._logger = None
        self.state = INIT
        born = perf_counter()
        self.born = born
        self.history = [INIT, born]
        self.turn = NO_TURN
        self.callback_task = current_task()
        self.waiting = None
        self.asked_by = asked_by_none
        self.parent = parent
        self.behaviour = _NO_BEHAVIOUR
        self.last_receiver = NO_RECEIVER
        self.priority = options.priority
        self.trap_exit = False
        inherited = kernel.env if parent is None else parent.env
        self.env = {**inherited, **options.env} if options.env else inherited
        self.reason = None
        self.sent = self.unhandled = 0
        self.is_owner = False
        # Created on first use: a process that never needs these does not pay for them.
        self.owned = self.events = self.timers = self.requests = self.slots = self.tasks = None
        self.deferred = self.postponed = self.ending = self.verbs = None

    def allow(self, operation: Operation) -> None:
        """Raise unless ``operation`` is allowed in the current state."""
        if self.state is RUNNING:
            return  # in nearly all cases: a callback may do everything
        if self.tasks is not None and self.state is SLEEP and self.tasks.are_running_here():
            # A background task acts for its process between two callbacks, too.
            return
        check_allowed(operation, self.state, self)

    # -- sending -----------------------------------------------------------------------------------

    def count_sent(self) -> None:
        """Count a message that it sends."""
        self.sent += 1

    def count_unhandled(self) -> None:
        """Count a message or call that its behaviour has no callback for."""
        self.unhandled += 1

    def remember_receiver(self, receiver: AnyProcess) -> None:
        """Keep the receiver of its last message, so that the next message needs no lookup."""
        self.last_receiver = receiver

    def send_with(self, priority: Priority) -> None:
        """Send messages with this priority, unless a message has its own."""
        self.priority = priority
        # The fast way of `send` trusts the last receiver without a look at the priority: the next
        # message must take the general way.
        self.remember_receiver(NO_RECEIVER)

    def trap_exits(self, traps: bool) -> None:
        """Take exits as messages from now on, or no longer."""
        self.trap_exit = traps

    # -- start -------------------------------------------------------------------------------------

    def take_place(self, slot: ChildSlot | None, after: Reason | None) -> bool:
        """Take its name, its slot under a supervisor with the messages that its predecessor left
        there, and its place in the tables. Returns whether its ``init`` runs in a callback of its
        parent, which waits for it: an ``init`` that calls its parent would wait forever.

        Raises:
            NameTakenError: another process has the name; nothing is changed.
        """
        if "handle_batch" in self.callbacks.defined:
            self.remember_lanes()
        name, router, parent = self.name, self.router, self.parent
        names = router.registry.names
        if name is not None and name in names:
            raise NameTakenError(name, names[name].id)
        if slot is not None:
            self.slot: ChildSlot | None = slot
            kept = slot.inherit(self, after)
            if kept:
                for lane in kept.values():
                    skip_given_up(lane)
                self.mailbox.inherit(kept)
                self.main = self.mailbox.main
        if name is not None:
            # After the slot's messages are in the mailbox: from now on threads may send to the
            # name, and must not overtake these messages.
            names[name] = self
        router.processes[self.id] = self
        if parent is None:
            self.kernel.roots[self.id] = self
            return False
        (parent.begin_to_own() if parent.owned is None else parent.owned)[self.id] = self
        if self.callback_task is not parent.callback_task:
            return False
        parent.waiting = self
        return True

    @runs_callbacks
    def make_behaviour(self, factory: Callable[..., Handlers], args: tuple[object, ...]) -> None:
        """Create the behaviour, and run its ``init`` unless that is async."""
        self.behaviour = behaviour = factory(*args)
        behaviour._process = self
        callbacks = self.callbacks
        if "init" not in callbacks.defined or "init" in callbacks.asynchronous:
            return
        task = self.callback_task
        status, depth = task._cancel_status, len(task._child_nurseries)
        if (result := behaviour.init()) is not None:
            check_plain(self, "init", result)
        if task._cancel_status is not status or len(task._child_nurseries) != depth:
            scopes = CancelScopes.since(task, status)
            scopes.close_plain()
            raise left_open(callbacks.behaviour, "init", scopes.nurseries())

    def begin_to_serve(self) -> tuple[Turn, Callback, Callback, Unmatched | None]:
        """Begin to serve envelopes, in the first turn with the present callbacks. Returns the turn,
        the functions for messages and calls, of the behaviour or of the observer around them, and
        the judge of messages without a case.
        """
        if self.turn is NO_TURN:
            self.turn = Turn()
        turn, behaviour, observer = self.turn, self.behaviour, self.kernel.observer
        turn.woken = woken = perf_counter()  # hot path: Turn.begin
        self.state = RUNNING
        self.history += (RUNNING, woken)
        judge = self.callbacks.unmatched and self.judge()
        if observer is None:
            return turn, behaviour.handle_message, behaviour.handle_call, judge
        message, call = observer.watch(self.id, behaviour.handle_message, behaviour.handle_call)
        return turn, message, call, judge

    @property
    def behaviour_itself(self) -> Any:
        """The behaviour, also behind the proxy of a watch or of a dispatcher."""
        behaviour = self.behaviour
        # Not isinstance(), which asks the behaviour for its class.
        is_proxy = issubclass(type(behaviour), BehaviourProxy)
        return cast(BehaviourProxy, behaviour).behaviour_itself if is_proxy else behaviour

    def judge(self) -> Unmatched | None:
        """The judge of messages without a case, unless the behaviour has another function in the
        place of the method that the judge has read.
        """
        judge = self.callbacks.unmatched
        if judge is None or not judge.judges(self.behaviour_itself.handle_message):
            return None
        return judge

    def own_verbs(self) -> VerbChain:
        """The verbs that the kernel has put into the behaviour, created on first use."""
        if self.verbs is None:
            self.verbs = VerbChain(self.behaviour_itself)
        return self.verbs

    def replace_behaviour(self, behaviour: Handlers) -> Handlers:
        """Put another object in the place of the behaviour, and return the former one."""
        former, self.behaviour = self.behaviour, behaviour
        return former

    def change_class(self, behaviour: Handlers, callbacks: Callbacks) -> None:
        """Go on with an instance of another class in the place of the behaviour. The changed verbs
        of the behaviour are changed in the instance, too.
        """
        changed, self.verbs = self.verbs, None
        self.behaviour = behaviour
        before = self.callbacks.behaviour
        self.kernel.lifetimes.past.rename(
            *(partial(self.use_callbacks, callbacks), before, callbacks.behaviour),
            *(self.turn.handled, self.sent, self.turn.time(perf_counter())),
        )
        if changed is not None:
            self.own_verbs().take(changed)
        if "handle_batch" in callbacks.defined:
            self.remember_lanes()

    def lift_limits(self, *, init: bool, shutdown: bool) -> None:
        """Let ``init`` and the shutdown take any time, because the children have limits of their
        own.
        """
        if init:
            self.turn.lift_deadline()
        if shutdown:
            self.options: Options = replace(self.options, shutdown=inf)

    def start_task(
        self,
        function: Callable[[], Awaitable[object]],
        name: str,
        host: "Process | None" = None,
    ) -> BackgroundTask:
        """Start a background task. It ends with this process. With ``host``, the task may act for
        that process as well, and ends with either.
        """
        self.allow(Operation.SPAWN)
        return self.own_tasks().start(function, name, None if host is None else host.own_tasks())

    def own_tasks(self) -> BackgroundTasks:
        """Its background tasks, created on first use."""
        if self.tasks is None:
            self.become_owner()
            self.tasks = BackgroundTasks(self)
        return self.tasks

    # -- postponed envelopes -----------------------------------------------------------------------

    def postpone(self, envelope: Envelope) -> None:
        """Set the envelope in progress aside until :meth:`requeue_postponed`. As many as the
        mailbox may hold; the others are discarded.
        """
        limit = self.mailbox.limit
        if limit and len(self.postponed or ()) >= limit:
            self.mailbox.count_dropped()
            # On the loop: the callback may run in a thread, and dead letters are counted on the
            # loop only.
            self.router.bridge.run(self.router.discard, envelope, self.id, Why.FULL, self)
            return
        if self.postponed is None:
            self.postponed = deque()
        if isinstance(envelope[2], Caller):
            # A callback has seen the request: if the process ends now, its caller must not learn
            # that it was never begun.
            envelope[2].note_begun()
        self.postponed.append(envelope)
        self.turn.postpone()

    def requeue_postponed(self) -> "Iterable[Envelope]":
        """Put the postponed envelopes back to the head of MAIN, and return them."""
        postponed, self.postponed = self.postponed or (), None
        self.main.extendleft(reversed(postponed))
        return postponed

    def begin_batch(self, first: Envelope) -> deque[Envelope]:
        """Set the envelope in progress aside until :meth:`take_batch`. Returns the batch, for the
        envelopes that follow.
        """
        self.turn.postpone()
        self.postponed = batch = deque((first,))
        return batch

    def take_batch(self) -> list[object]:
        """Handle the batch now. Returns its messages."""
        batch, self.postponed = self.postponed, None
        assert batch is not None
        self.turn.handle_batch(batch)
        return [envelope[3] for envelope in batch]

    def lane(self) -> Lane:
        """The lane of the envelope in progress; MAIN if the mailbox does not remember it."""
        box = self.mailbox
        return box.lane_of(self.turn.handled) if isinstance(box, LanedMailbox) else MAIN_LANE

    def remember_lanes(self) -> None:
        """Use a mailbox that remembers the lane of the envelope in progress, from the next envelope
        on.
        """
        former = self.mailbox
        if isinstance(former, LanedMailbox):
            return
        laned = LanedMailbox(former.limit, former.overflow, lambda: self.turn.handled)
        # Under the lock, since threads reserve slots. They may append to MAIN all the time.
        with self.router.bridge.lock:
            laned.replace(former)
            self.begin_mailbox(laned)

    # -- calls -------------------------------------------------------------------------------------

    # The function itself, without a method that forwards to it: each inline call would pay for it.
    answer_now = answer_now

    def borrows_thread(self) -> bool:
        """Say whether its callbacks run in a thread that waits for this process. Never on the
        loop.
        """
        return False

    def wait_for(self, waiting: Coroutine[Any, Any, R]) -> R:
        """Refuse to wait: only processes with a thread may block in a callback."""
        check_waiting(waiting)
        waiting.close()
        raise NotAllowedError(
            f"the callbacks of {self} run on the loop, which wait_for(...) would block: write "
            "`async def` and `await`"
        )

    def request(
        self, to: Target, request: object, timeout: float | None, priority: Priority | None
    ) -> RequestCaller:
        """Send a request without waiting for its answer."""
        self.allow(Operation.REQUEST)
        chosen = self.priority if priority is None else check_priority(priority)
        self.router.resolve(to)
        caller = self.new_request(to, request)
        begin_request(self.kernel.calls, self.kernel.clock, caller, timeout, chosen)
        return caller

    def new_request(self, to: object, request: object) -> RequestCaller:
        """Open a request, which is not sent yet."""
        self.count_sent()
        return RequestCaller(self, next(self.router.references), to, request)

    def takes_responses(self) -> bool:
        """Whether it still handles answers."""
        return self.accepting

    # -- addresses ---------------------------------------------------------------------------------

    def take_name(self, name: str) -> None:
        """Register under a name.

        Raises:
            NameTakenError: another process has this name.
        """
        self.router.registry.take_name(name, self)
        self.be_called(name)

    def make_alias(self) -> Alias:
        """Create another address of this process."""
        alias = Alias(self.router.node, self.router.creation, next(self.router.numbers))
        self.router.registry.aliases[alias] = self
        if self.aliases is None:
            self.become_owner()
            self.aliases: dict[Alias, None] | None = {}
        self.aliases[alias] = None
        return alias

    # -- termination -------------------------------------------------------------------------------

    def to_end(self) -> Ending:
        """Its ending, created by the first request to end it."""
        if self.ending is None:
            self.ending = Ending(self)
        return self.ending

    @property
    def abandoned(self) -> bool:
        """Whether it survived its kill and was abandoned."""
        return self.ending is not None and self.ending.abandoned

    def end(self, kind: int, reason: Reason) -> None:
        """End the process after the callback in progress, before it serves queued messages."""
        # In front of all signals: the process ends before it serves an exit or an inspection that
        # came first.
        self.mailbox.push_first((kind, self.id, None, reason))
        self.wake()

    def ask_to_exit(self, sender: PID | Alias, reason: Reason) -> None:
        """Send an exit signal. The process takes it between two messages. A process that traps
        exits gets it as a message instead, unless its parent sent it.
        """
        self.router.signal(self, URGENT_LANE, (EXIT, sender, None, reason))

    def kill(self) -> None:
        """Kill the process: it ends at its next checkpoint. A second kill also cuts its termination
        short.
        """
        if self.state is TERMINATED:
            return
        if self.state is STOPPING:
            self.to_end().cut_short()
            return
        if self.task is NOT_YET and self.state is not SLEEP:
            # Its ``init`` is still running, in the spawner's task.
            self.reason = Killed()
        self.mailbox.push_first((KILL, self.id, None, Killed()))
        # Awake, it runs a callback, which the scope cancels. If the callback swallows that, the
        # envelope in front of all others ends the process afterwards.
        if self.task.custom_sleep_data is PARKED:
            self.wake()
        else:
            self.turn.cancel()

    @property
    def killer(self) -> Killing | None:
        """The kill of a whole tree that it belongs to, if any."""
        return None if self.ending is None else self.ending.killer

    def join_killing(self, killing: Killing) -> None:
        """Note the kill of a whole tree that it belongs to."""
        self.to_end().join_killing(killing)

    def force_end(self) -> None:
        """Kill the process because it ignored the exit signal."""
        self.to_end().force()

    def cut(self, reason: Reason) -> None:
        """Cancel the callback in progress, as a kill does, but end with this reason."""
        if self.turn.scope is not None and self.reason is None:
            self.reason = reason
            self.turn.cancel()

    def leave_wait(self, reason: Reason) -> bool:
        """Cancel a call without a timeout that the callee has deferred, since it may wait forever.

        False if the process is in no such call.
        """
        call = self.waiting
        if not isinstance(call, TaskCaller) or call.has_limit or not call.deferred:
            return False
        self.cut(reason)
        return True

    def stop_accepting(self) -> "Sequence[Process]":
        """Stop accepting sessions. Only servers have any."""
        return ()

    async def shut(self, _reason: Reason) -> None:
        """Stop the process for its owner: ask it to exit, then kill it, then abandon it. Never
        takes longer than the sum of its time limits.
        """
        # The most frequent case first: the process is asleep.
        if (
            self.task.custom_sleep_data is PARKED
            and self.options.shutdown > 0
            and self._end_asleep(SHUTDOWN)
        ):
            if self.router.pause_is_due():
                await self.router.turn()
        else:
            await self.to_end().shut()

    end_at_once = end_at_once

    @runs_callbacks
    def _end_asleep(self, reason: Reason) -> bool:
        """Terminate the sleeping process in its owner's task, if that takes no wait. Waking it and
        waiting would cost three times as much as the termination itself.

        A sleeping process has empty lanes and runs no callback: this is where it would take the
        exit signal.
        """
        task, has_callback = self.task, "terminate" in self.callbacks.defined
        assert isinstance(task, Task)
        try:
            # With a callback in the context of the process: `terminate` shares the context
            # variables of all its callbacks, and the task of the owner has others.
            if not (
                task.context.run(self.end_at_once, reason)
                if has_callback
                else self.end_at_once(reason)
            ):
                return False
        except BaseException as error:
            self.to_end().fail(error)
        # The task wakes up, finds the process terminated and returns.
        self.router.turns.end_asleep(task)
        return True

    async def abandon(self) -> None:
        """Abandon the process, which ignores its kill."""
        if self.state is not TERMINATED:
            await self.to_end().abandon()

    async def wait_gone(self) -> None:
        """Wait until the process has ended and all of it is released."""
        if self.state is not TERMINATED:
            await self.to_end().wait()

    def record_reason(self, reason: Reason) -> Reason:
        """Record the reason to end with, unless there is one already. Returns the recorded
        reason.
        """
        if self.reason is None:
            self.reason = reason
        return self.reason

    def begin_to_end(self, reason: Reason) -> None:
        """Refuse user messages and enter STOPPING. A call that was interrupted fails together with
        the queued calls.
        """
        self.reason = reason
        self.refuse()
        self.kernel.lifetimes.obituaries.note(self, self.turn.handled, self.turn.handling)
        self.enter(STOPPING)
        handling = self.turn.handling
        if handling is not None and isinstance(handling[2], Caller):
            handling[2].defer(self)

    def become_terminated(self) -> None:
        """Enter TERMINATED, and drop the objects that the remains must not keep alive."""
        self.enter(TERMINATED)
        self.behaviour = _NO_BEHAVIOUR
        self.waiting = self.tasks = self.verbs = None
        self.last_receiver = NO_RECEIVER

    def be_gone(self) -> None:
        """Tell the tasks in :meth:`wait_gone` that all of it is released."""
        ending = self.to_end()
        if ending.over is not None:
            ending.over.set()
        if not ending.abandoned:
            # Without a cycle of references, the remains need no garbage collection. The task of an
            # abandoned process may still ask.
            self.ending = None

    def as_ended(self) -> Ended:
        """Its entry in the exit report."""
        return Ended(self.id, self.name, self.callbacks.behaviour, self.reason)


def processes_of(router: Router) -> dict[PID, Process]:
    """All processes of a node. The router, in a room below, knows only a part of their type."""
    return cast(dict[PID, Process], router.processes)
