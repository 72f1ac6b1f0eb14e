"""What all processes of one node share: its tables, its clock, its nursery and its limits."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import trio
from trio.lowlevel import current_task

from .log import Log
from .messaging.calls import Calls
from .messaging.clock import Clock
from .messaging.observer import ObservedCalls, ObservedRouter, Observer
from .messaging.publisher import Publisher
from .messaging.router import LANES, Router
from .runtime.bridge import Bridge
from .runtime.cancel_scopes import is_being_closed
from .runtime.dispatcher_threads import DispatcherThreads
from .runtime.idle_handlers import IdleHandlers
from .runtime.thread_fairness import ThreadFairness
from .tables.callbacks import CALLBACKS, Callbacks
from .tables.child_slot import ChildSlot
from .tables.dead_letters import DeadLetters
from .tables.obituaries import Obituaries
from .tables.relations import Kind, Relation, Relations, Watched
from .tables.timers import Timer
from .vocabulary.dispatchers import Dispatcher
from .vocabulary.envelopes import CONTROL, DOWN, EXIT, LOG, LOG_LANE, SYSTEM_LANE, URGENT_LANE
from .vocabulary.errors import MailboxFullError, NodeStoppedError, TargetTypeError
from .vocabulary.ids import PID, Alias, EventName, Name, NodeName, Ref, Target
from .vocabulary.info import Ended
from .vocabulary.messages import DeadLetter, LogRecord
from .vocabulary.options import LEVELS, NodeOptions
from .vocabulary.reasons import Crashed, NoProcess, Reason
from .vocabulary.text import shown

if TYPE_CHECKING:
    from .metas.meta import Meta
    from .processes.process import Process

__all__ = ["Kernel"]


def _nothing() -> None:
    """What happens of an error meant for the whole program before anybody waits for one: it is
    kept.
    """


class Kernel:
    """The shared parts of a node. Made when the node opens, on its loop."""

    def __init__(self, options: NodeOptions, creation: int, nursery: trio.Nursery) -> None:
        name, observer = options.name, options.observer
        self.pid = PID(name, creation, 0)
        self.node: Any = None
        """The public face of all this; set by the node itself."""
        self.nursery = nursery
        self.options = options
        self.burst = options.burst
        self.env: Mapping[str, object] = options.env or {}
        self.log = Log(name, options.log_level, options.log_output, self._offer_record)
        self.logger: Any = self.log.logger(self.pid)
        bridge = Bridge(name, trio.lowlevel.current_trio_token(), self._bridge_failed)
        # Asked directly, trio's clock costs half of what it does by way of the task that asks.
        self.clock = Clock(self._fire, bridge.run, trio.lowlevel.current_clock().current_time)
        self.observer = None if observer is None else Observer(observer, self._observer_failed)
        store = DeadLetters(options.dead_letters)
        if self.observer is None:
            self.router = Router(name, creation, bridge, self.clock, store, options.inline_calls)
            self.calls = Calls(self.router)
        else:
            # A call that is answered on the spot is not delivered to anybody who could be observed.
            self.router = ObservedRouter(
                self.observer, name, creation, bridge, self.clock, store, False
            )
            self.calls = ObservedCalls(self.router)
        token = Ref(name, creation, next(self.router.references))
        self.publisher = Publisher(self.router, self.pid, token)
        if self.log.wants("debug"):
            self.publisher.log_dead_letters(self._log_dead_letter)
        self.relations = Relations()
        self.roots: dict[object, Process] = {}
        """What belongs to the node itself, in the order it was started."""
        self.services: dict[str, ChildSlot] = {}
        """The slots of supervised children that have a name on the node."""
        self.escalated: Ended | None = None
        """The supervisor whose end stops the node."""
        self.stopping = False
        self.fatal: BaseException | None = None
        self.spawned = 0
        self.crashed = 0
        self.obituaries = Obituaries(options.obituaries)
        self.on_spawned: Callable[[Process], None] | None = None
        """Called with each new process before it serves its first message; set while the node
        opens.
        """
        self.watches: dict[PID, Any] = {}
        """What is being watched or held, by whoever looks inside; mostly nothing."""
        self.killed: list[Ended] = []
        self.abandoned: list[Ended] = []
        # By weak reference: a program may make its classes at run time, any number of them.
        self._callbacks: WeakKeyDictionary[type, Callbacks] = WeakKeyDictionary()
        self.thread_fairness = ThreadFairness()
        self.dispatcher_threads = DispatcherThreads(bridge, self.thread_fairness, self._cannot_pin)
        self.workers = trio.CapacityLimiter(inf)
        """Places for plain callbacks of meta-processes: their own, so that files, names and
        programs keep theirs.
        """
        self.idle_handlers = IdleHandlers(nursery)
        self.threads_abandoned = 0
        self._loggers: dict[PID, int] = {}
        self._on_fatal: Callable[[], object] = _nothing
        self.on_crash: Callable[[Ended], None] | None = None
        """Told of each crash, on the loop; for those who test."""

    def callbacks_of(
        self, behaviour: type, known: Mapping[str, tuple[str, ...]] = CALLBACKS
    ) -> Callbacks:
        """What a behaviour class can be called for, found out on first use."""
        callbacks = self._callbacks.get(behaviour)
        if callbacks is None:
            callbacks = self._callbacks[behaviour] = Callbacks(behaviour, known)
        return callbacks

    # -- relations ---------------------------------------------------------------------------------

    def watched(self, target: Target | EventName | NodeName) -> Watched:
        """The form under which a target stands in the table of relations."""
        match target:
            case NodeName() | PID() | Alias():
                return target
            case EventName():
                return self.publisher.name(target)
            case str():
                return Name(target, self.pid.node)
            case Name():
                return Name(target.name, target.node or self.pid.node)
        raise TargetTypeError(target)

    def relate(self, watcher: "Process", target: Target | EventName | NodeName, kind: Kind) -> None:
        """Make a relation; if the target is gone already, its end is told at once."""
        watched = self.watched(target)
        relation = self.relations.add(watcher.pid, watched, kind)
        if isinstance(watched, NodeName):
            if watched.node != self.pid.node:
                self.relations.fire(watched)
                self.tell(relation, self.router.missing(Name("", watched.node)))
            return
        if isinstance(watched, EventName):
            if not self.publisher.subscribe(watched, watcher.pid):
                self.relations.fire(watched)
                self.tell(relation, NoProcess())
            return
        receiver = self.router.resolve(watched)
        if receiver is None:
            self.relations.fire(watched)
            self.tell(relation, self.router.missing(watched))

    def unrelate(
        self, watcher: "Process", target: "Target | EventName | NodeName", kind: Kind
    ) -> None:
        """Remove a relation.

        Raises:
            RelationUnknownError: there is none.
        """
        watched = self.watched(target)
        self.relations.remove(watcher.pid, watched, kind)
        if isinstance(watched, EventName):
            self.publisher.unsubscribe(watched, watcher.pid)

    def forget_watcher(self, watcher: PID) -> Iterator[None]:
        """Remove everything a process that ended had watched, events included."""
        for number, target in enumerate(self.relations.forget(watcher), 1):
            if isinstance(target, EventName):
                self.publisher.unsubscribe(target, watcher)
            if not number % 256:
                yield

    def end_event(self, name: EventName, reason: Reason) -> None:
        """Take an event away; its subscribers are told."""
        self.publisher.events.remove(name)
        self.tell_all(name, reason)

    def relate_both(self, parent: "Process", child: "Process") -> None:
        """Link parent and child to each other, as far as ``init`` has not done so."""
        for watcher, target in ((parent, child), (child, parent)):
            if not self.relations.has(watcher.id, target.id, Kind.LINK):
                self.relate(watcher, target.id, Kind.LINK)

    def tell(self, relation: Relation, reason: Reason) -> None:
        """Send a watcher the exit or down of a relation that has fired."""
        watcher = self.router.processes.get(relation.watcher)
        if watcher is None:
            return
        if relation.kind is Kind.LINK:
            self.router.signal(watcher, URGENT_LANE, (EXIT, relation.target, relation, reason))
        else:
            self.router.signal(watcher, SYSTEM_LANE, (DOWN, relation.target, relation, reason))

    def tell_all(self, target: Watched, reason: Reason) -> None:
        """Tell everybody who watches ``target`` that it is no more."""
        for relation in self.relations.fire(target):
            self.tell(relation, reason)

    # -- timers, log, faults -----------------------------------------------------------------------

    def _fire(self, timer: Timer) -> None:
        if timer.to is None:
            # A behaviour's own: as a signal, since a full mailbox must not keep a child from coming
            # back, or a machine in a state. Without a priority it goes before messages, with one it
            # keeps their order.
            lane = SYSTEM_LANE if timer.priority is None else LANES[timer.priority]
            self.router.signal(timer.owner, lane, (CONTROL, timer.owner.id, None, timer.message))
            return
        try:
            self.router.send(timer.owner.id, timer.to, timer.message, timer.priority)
        except (MailboxFullError, NodeStoppedError):
            # It has become a dead letter, or came too late for the node; there is no sender who
            # could be told.
            return

    def _bridge_failed(self, error: BaseException) -> None:
        # Both are accounted for: the one is a dead letter, the other lost a race with the end of
        # the node.
        if not isinstance(error, MailboxFullError | NodeStoppedError):
            self.logger.error("work handed over by a thread failed", error=shown(error))

    def _cannot_pin(self, dispatcher: Dispatcher, why: str) -> None:
        self.logger.warning(
            "a thread cannot stay on its CPU, and uses any", dispatcher=str(dispatcher), why=why
        )

    def _observer_failed(self, error: BaseException) -> None:
        self.logger.error(
            "the observer raised; this is said once", exception=Crashed(error).traceback
        )
        if not isinstance(error, Exception):
            self.panic(error)

    def _log_dead_letter(self, letter: DeadLetter) -> None:
        self.logger.debug(
            "dead letter",
            sender=str(letter.sender),
            target=shown(letter.target),
            message_type=letter.message_type,
            why=letter.why.value,
        )

    def add_logger(self, process: "Process", level: str) -> None:
        """Let a process receive log records of at least ``level``."""
        self._loggers[process.pid] = LEVELS[level]
        self.log.watched = True

    def remove_logger(self, pid: PID) -> bool:
        """Stop sending log records to a process."""
        found = self._loggers.pop(pid, None) is not None
        self.log.watched = bool(self._loggers)
        return found

    def _offer_record(self, record: LogRecord) -> None:
        if not self.router.bridge.on_loop():
            try:
                self.router.bridge.post(self._offer_record, record)
            except NodeStoppedError:  # the loggers are gone, and speaking must never be an error
                pass
            return
        # What a logger says about itself goes to the output only: it would feed on its own words.
        if record.source in self._loggers:
            return
        for pid, level in self._loggers.items():
            process = self.router.processes.get(pid)
            if process is not None and process.accepting and LEVELS[record.level] >= level:
                process.mailbox.admit(LOG_LANE, (LOG, record.source, None, record))
                process.wake()

    def note_crash(self, one: "Process | Meta", reason: Reason) -> None:
        """Count a process or meta-process that ended with an exception."""
        self.crashed += 1
        if self.on_crash is not None:
            self.on_crash(Ended(one.id, one.name, one.callbacks.behaviour, reason))

    def escalate(self, process: "Process", reason: Reason) -> None:
        """Do what the node was told to do when a supervisor of its own gives up."""
        self.logger.error(
            "a supervisor of the node gave up",
            supervisor=repr(process),
            reason=str(reason),
            policy=self.options.on_escalation,
        )
        if self.options.on_escalation == "stop":
            self.stop_because(process, reason)

    def stop_because(self, process: "Process", reason: Reason) -> None:
        """Stop the node, since something has ended that it must not go on without."""
        if self.escalated is None:
            self.escalated = Ended(process.id, process.name, process.callbacks.behaviour, reason)
            self.node.stop()

    def stop_watching(self, pid: PID) -> None:
        """Tell whoever watches a process that it has ended."""
        watch = self.watches.pop(pid, None)
        if watch is not None:
            watch.over()

    def start(self, function: Callable[..., Awaitable[object]], *args: Any, name: str) -> None:
        """Run something in a task of the node. What it raises ends the node in order, and not all
        other tasks in the middle.
        """
        self.nursery.start_soon(self._run, function, args, name=name)

    async def _run(self, function: Callable[..., Awaitable[object]], args: tuple[Any, ...]) -> None:
        task = current_task()
        try:
            await function(*args)
        except trio.Cancelled:
            raise
        except BaseException as error:
            if isinstance(error, GeneratorExit) and is_being_closed(task):
                raise
            self.fail(f"a task of the node failed: {task.name}", error)

    def fail(self, what: str, error: BaseException) -> None:
        """The kernel itself has failed: the node ends in order as far as it can, and its block
        raises the error.
        """
        try:
            self.logger.critical(what, exception=Crashed(error).traceback)
        except BaseException:
            # Code of the error or of the log output has raised. The node ends in any case, and its
            # block raises the error.
            pass
        self.panic(error)

    def panic(self, error: BaseException) -> None:
        """Pass on what must not be kept from the host program: KeyboardInterrupt, SystemExit."""
        if self.fatal is None:
            self.fatal = error
            self._on_fatal()

    def on_fatal(self, callback: Callable[[], object]) -> None:
        """Have ``callback`` called when a process caught something meant for the whole program."""
        self._on_fatal = callback
