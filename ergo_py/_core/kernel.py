"""`Kernel`: the tables, the clock, the nursery and the limits that all processes of a node
share.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

import trio
from trio.lowlevel import Task, current_task

from .messaging.calls import Calls
from .messaging.clock import Clock
from .messaging.hooked import HookedCalls, HookedRouter
from .messaging.hooks import Hook
from .messaging.links import Links
from .messaging.observer import ChangedMessages, Observer, Spawned
from .messaging.publisher import PROCESS_STARTED, THREAD_ABANDONED, Publisher
from .messaging.receiver import AnyProcess, Asker, Stoppable
from .messaging.router import LANES, Router
from .messaging.traces import Carried, Traces
from .runtime.bridge import Bridge
from .runtime.cancel_scopes import is_being_closed
from .runtime.dispatcher_threads import DispatcherThreads
from .runtime.handoff import turns_of_loop
from .runtime.idle_handlers import IdleHandlers
from .runtime.thread_fairness import ThreadFairness
from .runtime.thread_parent import RaiseCancel
from .runtime.time_slices import RequestTurns
from .sources import Chance, chance
from .tables.callbacks import CALLBACKS, Callbacks, check_batches
from .tables.child_slot import ChildSlot
from .tables.class_mistakes import check_names, check_plain, misspelled
from .tables.dead_letters import DeadLetters, MissedAddresses
from .tables.ended_totals import EndedTotals
from .tables.obituaries import Obituaries
from .tables.relations import Relations
from .tables.timers import Timer
from .vocabulary.dispatchers import Dispatcher
from .vocabulary.envelopes import (
    CONTROL,
    LOG,
    LOG_LANE,
    SYSTEM_LANE,
)
from .vocabulary.errors import MailboxFullError, NodeStoppedError, SendError
from .vocabulary.hints import near
from .vocabulary.ids import (
    PID,
    Alias,
    Ref,
    local_name,
)
from .vocabulary.info import Ended
from .vocabulary.messages import DeadLetter, LogRecord
from .vocabulary.options import LEVELS, NodeOptions, read_now
from .vocabulary.reasons import Crashed, Reason, is_a, is_for_program
from .vocabulary.text import shortened, shown
from .vocabulary.unmatched import unmatched_of

__all__ = ["Kernel", "TaskGuard"]


def _nothing() -> None:
    """Default of `on_fatal`: keep the error until a callback is set."""


class Lifetimes:
    """How many processes of a node have started and crashed, and how they ended."""

    __slots__ = (
        "abandoned",
        "crashed",
        "killed",
        "obituaries",
        "on_crash",
        "on_lifetime",
        "past",
        "spawned",
        "stopped",
        "threads_abandoned",
    )

    def __init__(self, obituaries: int) -> None:
        """``obituaries`` is how many of the last ends are kept."""
        self.spawned: int = 0
        """How many processes have started."""
        self.crashed: int = 0
        """How many processes and meta-processes have crashed."""
        self.threads_abandoned: int = 0
        """How many threads processes have left behind."""
        self.obituaries: Obituaries = Obituaries(obituaries)
        """The last processes that have ended, with their reasons."""
        self.past: EndedTotals = EndedTotals()
        """Totals of the processes that have ended."""
        self.stopped: list[Ended] = []
        """The processes that have ended since the node goes down, without a kill."""
        self.killed: list[Ended] = []
        """The processes that were killed at the end of the node."""
        self.abandoned: list[Ended] = []
        """The processes that ignored even the kill."""
        self.on_crash: Callable[[Ended], None] | None = None
        """Called with each crash, on the loop. For the test kit."""
        self.on_lifetime: Callable[[Any, bool], None] | None = None
        """Called with each process that has started or ended, and whether it lives. For the test
        kit: unlike an observer, it leaves the paths of messages as they are.
        """

    def watch_crashes(self, on_crash: Callable[[Ended], None]) -> None:
        """Pass each crash to ``on_crash``, which may pass it on to the function before."""
        self.on_crash = on_crash

    def watch_lifetimes(self, on_lifetime: Callable[[Any, bool], None]) -> None:
        """Pass each process that starts or ends to ``on_lifetime``, with whether it lives."""
        self.on_lifetime = on_lifetime

    def count_abandoned_thread(self) -> None:
        """Count a thread that a process left behind."""
        self.threads_abandoned += 1


class Kernel:
    """The shared parts of a node. Created on its loop when the node opens."""

    def __init__(
        self,
        options: NodeOptions,
        creation: int,
        nursery: trio.Nursery,
        on_spawned: Callable[[Any], None] | None = None,
    ) -> None:
        from .log import Log  # noqa: PLC0415 - structlog is slow to import, and only a node logs

        name = options.name
        self.pid: PID = PID(name, creation, 0)
        """The PID of the node itself, the sender of its messages."""
        self.node: Any = None
        """The public `Node`."""
        self.nursery = nursery
        """The tasks of all processes."""
        self.options = options
        """The arguments of ``open_node``."""
        self.burst: int = options.burst
        """Messages that a process may serve before other tasks run."""
        self.env: Mapping[str, object] = options.env or {}
        """The settings that all processes inherit."""
        self.log: Log = Log(name, "warning", options.log_output, self._offer_record)
        """The log of the node."""
        self.logger: Final = self.log.logger(self.pid)
        """The logger of the node itself."""
        bridge = Bridge(name, trio.lowlevel.current_trio_token(), self._bridge_failed)
        # Read trio's clock directly: trio.current_time() costs twice as much.
        self.clock: Clock = Clock(
            self._fire, bridge.run, trio.lowlevel.current_clock().current_time
        )
        """Timers, and the deadlines of calls."""
        self._compose_messaging(options, bridge)
        self.roots: dict[object, Stoppable] = {}
        """Processes without a parent, in the order in which they were started."""
        self.services: dict[str, ChildSlot] = {}
        """The slots of supervised children with a name on the node."""
        self.escalated: Ended | None = None
        """The supervisor whose end stops the node."""
        self.stopping: bool = False
        """Whether the node goes down, and starts no more processes."""
        self.draining: bool = False
        """Whether the node gives its work up to other nodes."""
        self.fatal: BaseException | None = None
        """The exception that stops the node, and that its block raises."""
        self._compose_records(options)
        self.on_spawned = on_spawned
        """Called with each new process before it serves its first message."""
        self.watches: dict[PID, Any] = {}
        """Processes that a trace or an inspection watches or suspends. Mostly empty."""
        # Weak references: a program may create any number of classes at run time.
        self._callbacks: WeakKeyDictionary[type, Callbacks] = WeakKeyDictionary()
        """The callbacks of each behaviour class."""
        self._compose_threads(bridge)
        self.request_turns: Final = RequestTurns()
        """The turns in which requests of other nodes and of the control socket begin."""
        self._loggers: dict[PID, int] = {}
        """The processes that receive log records, with their least levels."""
        self._on_fatal: Callable[[], object] = _nothing
        """Called when `fatal` is set."""

    def _compose_messaging(self, options: NodeOptions, bridge: Bridge) -> None:
        """Make the parts that carry messages, each of which knows those before it."""
        name, creation, observer = options.name, self.pid.creation, options.observer
        if options.debug_shared_state:
            observer = ChangedMessages(self.logger.warning, observer)
        self.observer: Observer | None = (
            None if observer is None else Observer(observer, self._observer_failed)
        )
        """The observer of the node; None for most nodes."""
        hooks = self._hooks(options)
        store = DeadLetters(options.dead_letters)
        turns = turns_of_loop(options.direct_handoff)
        self.tracing: Any = options.tracing
        """The spans of a traced node; None without tracing."""
        self.trace_sends: Callable[[Any], AbstractContextManager[None]] = nullcontext
        """The sending verbs of a process, while it handles a message of a sampled trace."""
        self.router: Router = (HookedRouter if hooks else Router)(
            name, creation, bridge, self.clock, store, options.inline_calls, turns, hooks
        )
        """Resolves addresses and delivers messages."""
        token = Ref(name, creation, next(self.router.references))
        self.calls: Calls = (HookedCalls if hooks else Calls)(self.router)
        """Makes calls."""
        self.publisher: Publisher = Publisher(self.router, self.pid, token)
        """The events of the node, and of its processes."""
        self.settings: dict[str, Callable[[], None]] = {"log_level": self._read_log_level}
        """The functions that read the settings of the node again, by name. They raise if the new
        value is invalid, and leave the old one.
        """
        self._read_log_level()
        self.relations: Relations = Relations()
        """Which process watches which target."""
        self.links: Links = Links(self.router, self.publisher, self.relations, self.pid)
        """Links and monitors, and their signals."""

    def _compose_records(self, options: NodeOptions) -> None:
        """Make the parts that tell how processes ended, and which addresses had none."""
        self.lifetimes: Lifetimes = Lifetimes(options.obituaries)
        """How many processes have started, and how they ended."""
        names, obituaries = self.router.registry.names, self.lifetimes.obituaries
        missed = MissedAddresses(names, obituaries, self.router.advice, self._warn_of_miss)
        self.router.dead_letters.tell_of_misses(missed.note)

    def _compose_threads(self, bridge: Bridge) -> None:
        """Make the parts that own or limit threads."""
        self.thread_fairness: ThreadFairness = ThreadFairness()
        """Lets the loop run beside busy threads."""
        self.dispatcher_threads: DispatcherThreads = DispatcherThreads(
            bridge, self.thread_fairness, self._cannot_pin
        )
        """The threads of the dispatchers."""
        self.workers: trio.CapacityLimiter = trio.CapacityLimiter(inf)
        """Thread limiter for plain callbacks of meta-processes. Separate from trio's own, so that
        files, name lookups and programs keep their threads.
        """
        self.task_threads: trio.CapacityLimiter = trio.CapacityLimiter(32)
        """Thread limiter for the plain functions of tasks, which are not tied to a resource. As
        many as Python's own thread pools have at most.
        """
        self.idle_handlers: IdleHandlers = IdleHandlers(self.nursery)
        """The handlers of meta-processes that wait for their next message."""
        self.raise_cancel: RaiseCancel | None = None
        """Raises `trio.Cancelled` in any thread; for ``trio.from_thread``."""

    def _hooks(self, options: NodeOptions) -> tuple[Hook, ...]:
        """The parts of the node that see each message, in this order: the observer sees the message
        that its receiver gets.
        """
        hooks: list[Hook] = [] if options.network is None else [*options.network.hooks]
        if self.observer is not None:
            hooks.append(self.observer)
        if options.tracing is not None:
            hooks.append(Traces(options.tracing))
        return tuple(hooks)

    def chance(self, purpose: str) -> Chance:
        """The random numbers of this node for a purpose. Ask again for each number: a test may
        replace them.
        """
        return chance(self.pid.node, purpose)

    def add_setting(self, name: str, read: Callable[[], None]) -> None:
        """Read a further setting at each reload, after the others."""
        self.settings[name] = read

    def _read_log_level(self) -> None:
        self.log.change_level(read_now(self.options.log_level))
        # Building the line of a dead letter costs much, so only nodes that write it build it.
        wanted = self.log.wants("debug")
        self.publisher.log_dead_letters(self._log_dead_letter if wanted else None)

    def attach(self, node: object) -> None:
        """Take the public `Node`, which it belongs to."""
        self.node = node

    def learn_cancellation(self, raise_cancel: RaiseCancel) -> None:
        """Take the function that raises `trio.Cancelled` in threads."""
        self.raise_cancel = raise_cancel

    def learn_traced_sends(
        self, trace_sends: Callable[[Any], AbstractContextManager[None]]
    ) -> None:
        """Take the function that lets a process send with its trace."""
        self.trace_sends = trace_sends

    def begin_stop(self) -> None:
        """Start no more processes of the node: it goes down."""
        self.stopping = True

    def begin_drain(self) -> None:
        """Take up no work that other nodes can do."""
        self.draining = True

    def callbacks_of(
        self, behaviour: type, known: Mapping[str, tuple[str, ...]] = CALLBACKS
    ) -> Callbacks:
        """The callbacks of a behaviour class, computed on first use."""
        # WeakKeyDictionary.get() without its Python frame: every spawn pays for it.
        weak: Any = self._callbacks
        callbacks: Callbacks | None = weak.data.get(ref(behaviour))
        if callbacks is None:
            callbacks = Callbacks(behaviour, known)
            check_names(behaviour, known)
            callbacks.suspect(misspelled(behaviour, known, callbacks.defined))
            if known is CALLBACKS:
                check_batches(behaviour, "handle_batch" in callbacks.defined)
                warn = self.logger.warning
                callbacks.judge_by(unmatched_of(behaviour, callbacks.behaviour, warn))
            else:
                check_plain(callbacks.behaviour, callbacks.asynchronous)
            self._callbacks[behaviour] = callbacks
            for name, meant in callbacks.suspects.items():
                self.logger.warning(
                    f"{callbacks.behaviour}.{name} is no callback, and is never called; did you "
                    f"mean {meant}?"
                )
        return callbacks

    # -- timers, log, faults -----------------------------------------------------------------------

    def _fire(self, timer: Timer) -> None:
        if timer.to is None:
            # A timer of the behaviour itself. It fires as a signal, since a full mailbox must not
            # delay a restart or a state timeout. Without a priority it goes before messages; with a
            # priority it keeps their order.
            lane = SYSTEM_LANE if timer.priority is None else LANES[timer.priority]
            self.router.signal(timer.owner, lane, (CONTROL, timer.owner.id, None, timer.message))
            return
        message, router = timer.message, self.router
        try:
            if type(message) is Carried and isinstance(router, HookedRouter):
                context = message.mark.context
                router.send_traced(
                    timer.owner.id, timer.to, message.message, timer.priority, context
                )
            else:
                router.send(timer.owner.id, timer.to, message, timer.priority)
        except (SendError, NodeStoppedError):
            # The message has become a dead letter, or the node has stopped. No sender waits for the
            # result.
            return

    def _bridge_failed(self, error: BaseException) -> None:
        # Both are expected: a full mailbox has recorded a dead letter, and a stopped node lost the
        # race with its own end.
        if not is_a(error, (MailboxFullError, NodeStoppedError)):
            self.logger.error("work handed over by a thread failed", error=shown(error))

    def _cannot_pin(self, dispatcher: Dispatcher, why: str) -> None:
        self.logger.warning(
            "a thread cannot be pinned to its CPU, and runs on any",
            dispatcher=str(dispatcher),
            why=why,
        )

    def _observer_failed(self, error: BaseException) -> None:
        self.logger.error(
            "the observer raised; further errors are not logged", exception=Crashed(error).traceback
        )
        self.pass_on(error)

    def _log_dead_letter(self, letter: DeadLetter) -> None:
        meant = near(local_name(letter.target), self.router.registry.names)
        self.logger.debug(
            "dead letter",
            sender=str(letter.sender),
            target=shown(letter.target),
            message_type=letter.message_type,
            why=letter.why.value,
            **({} if meant is None else {"did_you_mean": meant}),
        )

    def _warn_of_miss(self, text: str) -> None:
        if not self.stopping:  # then processes end while others still send
            self.logger.warning(text)

    def add_logger(self, process: Asker, level: str) -> None:
        """Let a process receive log records of ``level`` and above."""
        self._loggers[process.id] = LEVELS[level]
        self.log.offer_records(True)

    def remove_logger(self, pid: PID) -> bool:
        """Stop sending log records to a process."""
        found = self._loggers.pop(pid, None) is not None
        self.log.offer_records(bool(self._loggers))
        return found

    def _offer_record(self, record: LogRecord) -> None:
        if not self.router.bridge.on_loop():
            try:
                self.router.bridge.post(self._offer_record, record)
            except NodeStoppedError:  # the loggers have ended, and logging must never raise
                pass
            return
        # A record of a logger process goes to the output only: delivered to loggers, it would cause
        # further records without end.
        if record.source in self._loggers:
            return
        for pid, level in self._loggers.items():
            process = self.router.processes.get(pid)
            if process is not None and process.accepting and LEVELS[record.level] >= level:
                process.mailbox.admit(LOG_LANE, (LOG, record.source, None, record))
                process.wake()

    def note_abandoned_thread(self, pid: PID | Alias) -> None:
        """Count a thread that a process left behind, and announce it."""
        self.lifetimes.count_abandoned_thread()
        self.publisher.announce(THREAD_ABANDONED, pid)

    def note_start(
        self,
        process: AnyProcess,
        parent: AnyProcess | None,
        slot: ChildSlot | None,
        *,
        links: bool,
    ) -> None:
        """Count a process whose ``init`` has succeeded, and let others know of it."""
        lifetimes, observer = self.lifetimes, self.observer
        if links and parent is not None:
            # Before the first step of the process, so that an immediate end is not missed.
            self.links.relate_both(parent, process)
        if slot is not None:
            slot.occupy(process.id)
        if self.on_spawned is not None:
            self.on_spawned(process)
        lifetimes.spawned += 1
        if lifetimes.on_lifetime is not None:
            lifetimes.on_lifetime(process, True)
        if observer is not None:
            above = self.pid if parent is None else parent.id
            observer(Spawned(process.id, above, process.callbacks.behaviour, process.name))
        if self.publisher.heard:
            self.publisher.announce(PROCESS_STARTED, process.id)

    def note_crash(self, crashed: Stoppable, reason: Reason) -> None:
        """Count a process or meta-process that crashed."""
        behaviour, lifetimes = crashed.callbacks.behaviour, self.lifetimes
        lifetimes.crashed += 1
        lifetimes.past.count_crash(behaviour)
        if lifetimes.on_crash is not None:
            lifetimes.on_crash(Ended(crashed.id, crashed.name, behaviour, reason))

    def log_crash(
        self,
        crashed: Any,
        event: str,
        callback: str,
        message_type: str | None,
        reason: Crashed,
        advice: str = "",
    ) -> None:
        """Log the crash of a process or meta-process. ``node.crashes()`` has the whole text of its
        exception.
        """
        facts = {
            "message_type": message_type,
            "waiting": len(crashed.mailbox),
            "advice": advice,
        }
        crashed.log.error(
            event,
            callback=callback,
            **{name: fact for name, fact in facts.items() if fact},
            error=shortened(str(reason)),
            exception=shortened(reason.traceback),
        )

    def escalate(self, process: Stoppable, reason: Reason) -> None:
        """Apply the node's escalation policy when a supervisor without a parent gives up."""
        self.logger.error(
            "a supervisor of the node gave up",
            supervisor=repr(process),
            reason=str(reason),
            policy=self.options.on_escalation,
        )
        if self.options.on_escalation == "stop":
            self.stop_because(process, reason)

    def stop_because(self, process: Stoppable, reason: Reason) -> None:
        """Stop the node, because a process has ended that the node cannot run without."""
        if self.escalated is None:
            self.escalated = Ended(process.id, process.name, process.callbacks.behaviour, reason)
            self.node.stop()

    def stop_watching(self, pid: PID) -> None:
        """End the watch on a process that has ended."""
        watch = self.watches.pop(pid, None)
        if watch is not None:
            watch.over()

    def start(
        self,
        function: Callable[..., Awaitable[object]],
        *args: object,
        name: str,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Run a function in a task of the node. ``failed`` takes its exception. Without it, an
        exception stops the node gracefully, instead of cancelling all other tasks.
        """
        self.nursery.start_soon(self._run, function, args, failed, name=name)

    async def _run(
        self,
        function: Callable[..., Awaitable[object]],
        args: tuple[object, ...],
        failed: Callable[[Exception], None] | None,
    ) -> None:
        with TaskGuard(self):
            try:
                await function(*args)
            except Exception as error:
                if failed is None:
                    raise
                failed(error)

    def fail(self, what: str, error: BaseException) -> None:
        """Handle a failure of the kernel itself: stop the node as gracefully as possible, and raise
        the error from its block.
        """
        try:
            self.logger.critical(what, exception=Crashed(error).traceback)
        except BaseException:
            # The error's own code or the log output has raised. The node stops in any case, and its
            # block raises the error.
            pass
        self.panic(error)

    def pass_on(self, error: BaseException) -> None:
        """Stop the node for KeyboardInterrupt and SystemExit, which are meant for the program."""
        if is_for_program(error):
            self.panic(error)

    def panic(self, error: BaseException) -> None:
        """Stop the node, and raise the exception from its block."""
        if self.fatal is None:
            self.fatal = error
            self._on_fatal()

    def on_fatal(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when a process caught an exception meant for the whole program."""
        self._on_fatal = callback


class TaskGuard:
    """The body of a task of the node, as a context manager: an exception that leaves it stops the
    node gracefully.
    """

    __slots__ = ("_kernel", "_task")

    _task: Task

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __enter__(self) -> None:
        self._task = current_task()

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        # A task that is abandoned inside a nursery cannot leave its scopes in order: trio raises.
        if error is None or is_a(error, trio.Cancelled) or is_being_closed(self._task):
            return False
        self._kernel.fail(f"a task of the node failed: {self._task.name}", error)
        return True
