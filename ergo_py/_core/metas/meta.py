"""``Meta``: the kernel's object for a meta-process.

A meta-process has a reader that may block, a handler that runs while there are messages, and a
single order of termination. Each of the three is an object of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from trio.lowlevel import current_task

from ..kernel import Kernel
from ..messaging.observer import Spawned
from ..messaging.requests import RequestCaller, begin_request
from ..messaging.router import LANES, Router, check_priority
from ..messaging.waiters import TaskWaiter
from ..runtime.bridge import get_ident
from ..runtime.cancel_scopes import Killing
from ..runtime.parking import park_as, wake
from ..tables.callbacks import META_CALLBACKS
from ..tables.mailbox import Mailbox
from ..tables.pending_calls import Caller, OwedCalls
from ..tables.timers import Owned
from ..vocabulary.envelopes import MESSAGE, Envelope, Lane, Priority, kind_name
from ..vocabulary.errors import NotAllowedError
from ..vocabulary.hints import explain
from ..vocabulary.ids import PID, Alias, Ref, Target
from ..vocabulary.messages import Why
from ..vocabulary.options import Behind, MetaOptions
from ..vocabulary.reasons import Crashed, Custom, Reason, is_for_program
from ..vocabulary.states import MetaOperation, MetaState, Operation, check_meta_allowed
from .handler import Handler
from .inbox import TwoLanes
from .outbox import Outbox
from .reader import Reader
from .resources import Resources
from .termination import Ending, Phase

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from ..processes.process import Process
    from .spawn import Birth

__all__ = ["Meta"]

_SLEEP: Final = MetaState.SLEEP
_SILENCED: Final = Phase.SILENCED


class Meta:
    """The kernel's side of a meta-process; the behaviour is the user's side. All methods run on the
    loop's thread, unless they say otherwise.

    It has the identity, the mailbox and the outbox. The parts own the rest: ``reader`` the thread
    or task that runs ``start``, ``handler`` the task and the worker threads that serve messages,
    ``ending`` the phase of the lifecycle and the termination, ``birth`` the spawn, unless ``init``
    had nothing to wait for.
    """

    name = None
    """A meta-process has no name, only its alias."""
    inline = takes_direct = takes_bounded = False
    """Its calls are never answered inline, and senders never append to its lanes directly: they
    must ask the mailbox.
    """
    is_remote = False
    waiting = None
    """It never waits in a call."""

    __slots__ = (
        "_logger",
        "accepting",
        "behaviour",
        "birth",
        "born",
        "callbacks",
        "deferred",
        "ending",
        "env",
        "handler",
        "id",
        "kernel",
        "mailbox",
        "options",
        "outbox",
        "owned",
        "owner",
        "priority",
        "process",
        "reader",
        "requests",
        "resources",
        "router",
        "sent",
        "serve_inline",
        "served_inline",
        "timers",
    )

    def __init__(
        self,
        kernel: Kernel,
        behaviour: Any,
        options: MetaOptions,
        owner: "Process | Meta",
        process: "Process",
        birth: "Birth | None",
    ) -> None:
        router = kernel.router
        self.kernel: Kernel = kernel
        """The shared parts of its node."""
        self.router: Router = router
        self.id: Alias = Alias(router.node, router.creation, next(router.numbers))
        """Its alias, the address under which others send to it."""
        self.behaviour: Final = behaviour
        """The instance that the user has made."""
        self.callbacks: Final = kernel.callbacks_of(type(behaviour), META_CALLBACKS)
        """The callbacks that its class has."""
        self.options: MetaOptions = options
        """The options of its spawn."""
        self.owner: Process | Meta = owner
        self.process: Process = process
        """The process or meta-process that has spawned it and ends it, and the topmost owner."""
        self.mailbox: Mailbox = TwoLanes(options.mailbox_size or 0, options.overflow)
        """The messages that wait for its handler."""
        self.outbox: Outbox = Outbox(
            router, self.id, options.backlog, options.when_behind, self._overrun
        )
        """The messages of its reader that wait for their receivers."""
        self.resources: Resources = Resources(self.report)
        """The files and sockets that its end unblocks and closes."""
        self.accepting: bool = True
        """Whether it takes messages of users: until it begins to end."""
        self.born: float = perf_counter()
        """When it was made."""
        self.deferred: dict[Caller, None] | None = None
        """The calls that it answers later."""
        self.timers: Owned | None = None
        """The timers that it has armed."""
        self.owned: dict[object, Meta] = {}
        """The meta-processes that it has spawned."""
        self.requests: dict[int, RequestCaller] | None = None
        """Its requests without an answer so far."""
        self.env: Mapping[str, object] = {**owner.env, **options.env} if options.env else owner.env
        """Its settings: its own over those of its owner."""
        self.priority: Priority = options.priority
        """The priority of the messages that it sends."""
        self.sent: int = 0
        """Messages that bypassed the outbox."""
        self.serve_inline: Callable[[Any, Any], bool] | None = None
        """Serves simple messages in the sender's turn; False: the handler must serve it."""
        self.served_inline: int = 0
        """Messages that were served so."""
        self._logger: FilteringBoundLogger | None = None
        """Its logger; None until it logs."""
        self.birth: Birth | None = birth
        self.reader: Reader = Reader(self)
        self.handler: Handler = Handler(self)
        self.ending: Ending = Ending(self)

    def __repr__(self) -> str:
        return f"<{self.callbacks.behaviour} {self.id}>"

    # -- what others ask for -----------------------------------------------------------------------

    @property
    def state(self) -> MetaState:
        """The public state."""
        return self.handler.state

    @property
    def reason(self) -> Reason | None:
        """The reason with which it ended or is ending."""
        return self.ending.reason

    @property
    def blameless(self) -> bool:
        """Whether a failure is not its fault, but that of its peer or its owner."""
        return self.ending.blameless

    @property
    def handling(self) -> Envelope | None:
        """The message that the handler is serving."""
        return self.handler.handling

    @property
    def handled(self) -> int:
        """Count the messages that were served."""
        return self.handler.handled + self.served_inline

    @property
    def abandoned(self) -> bool:
        """Whether the reader or the handler did not end and was abandoned, so that the resources
        may still be in use.
        """
        return self.reader.abandoned or bool(self.handler.abandoned_threads)

    def uses_resources(self) -> bool:
        """Whether a thread that was abandoned may still use the resources."""
        return bool(self.handler.abandoned_threads) or self.reader.uses_resources()

    def messages_out(self) -> int:
        """Count the messages that the reader and the handler have sent."""
        return self.sent + self.outbox.sent + self.outbox.direct

    def traffic(self) -> tuple[str, int, int] | None:
        """The class of its server or connection, and the bytes received and sent; None if it moves
        no bytes. From any thread.
        """
        count = self.behaviour._traffic
        return None if count is None else count()

    def leave_table(self) -> None:
        """Leave the table of addresses, and add its sums to those of the ended meta-processes."""
        self.kernel.lifetimes.past.take(
            self.router.registry.aliases,
            self.id,
            self.callbacks.behaviour,
            self.handled,
            self.messages_out(),
            is_meta=True,
            traffic=self.traffic(),
        )

    def current_callback(self) -> str | None:
        """Name the callback in progress, if any."""
        phase = self.ending.phase
        if phase <= Phase.ABORTED:
            return "init"
        if phase >= Phase.TERMINATING:
            return "terminate" if phase is Phase.TERMINATING else None
        handling = self.handler.handling
        return None if handling is None else kind_name(handling[0])

    def running_half(self) -> str | None:
        """Name the half in which the current code runs; None if the other half cannot be running.
        From any thread.
        """
        if self.state is MetaState.TERMINATED:
            return None
        if self.reader.is_current():
            # The thread may run before Reader.start has returned.
            return "reader"
        return "handler" if self.ending.phase >= Phase.OPEN else None

    @property
    def log(self) -> "FilteringBoundLogger":
        """The logger bound to this meta-process."""
        if self._logger is None:
            self._logger = self._make_logger()
        return self._logger

    def use_logger(self, logger: "FilteringBoundLogger") -> None:
        """Bind the logger also to the values of another logger, in place of those bound before."""
        self._logger = self.kernel.log.rebound(self._make_logger(), logger)

    def _make_logger(self) -> "FilteringBoundLogger":
        return self.kernel.log.logger(
            self.id,
            self.options.log_level,
            behaviour=self.callbacks.behaviour,
            process=str(self.process.id),
        )

    def report(self, what: str, error: BaseException) -> None:
        """Log an exception of user code, and continue. One for the program is passed on."""
        if is_for_program(error):
            self.pass_on(error)
            return
        explain(error, self.behaviour)
        self.log.error(f"{what} raised", exception=Crashed(error).traceback)

    def allow(self, operation: MetaOperation | Operation) -> None:
        """Raise unless the present state allows ``operation``."""
        check_meta_allowed(MetaOperation[operation.name], self.handler.state, self)

    def allow_spawn(self) -> None:
        """Raise if this meta-process is ending or has ended."""
        reason = self.ending.reason
        if reason is not None:
            self.allow(MetaOperation.SPAWN)
            raise NotAllowedError(f"{self} is ending ({reason}) and starts nothing any more")

    def watch_deferred(self, settled: Callable[[Caller], None]) -> None:
        """Report each deferred call that is settled: it has its answer, or its caller waits no
        longer.
        """
        self.deferred = OwedCalls(settled)

    def begin_timers(self) -> Owned:
        """The list for its first timer, which ends with this meta-process."""
        self.timers = Owned()
        return self.timers

    def own(self, key: object, thing: "Meta") -> None:
        """Add a child, which must not outlive this meta-process."""
        self.owned[key] = thing

    def disown(self, key: object) -> None:
        """Remove a child that has ended."""
        self.owned.pop(key, None)

    def move_to(self, owner: "Process") -> None:
        """Go on with another owner, since the present owner ends."""
        self.owner.disown(self.id)
        self.owner = owner
        owner.own(self.id, self)

    def hand_to(self, process: "Process") -> None:
        """Go on as a meta-process of another process, which is made for it."""
        self.move_to(process)
        self.process = process

    def prefer(self, priority: Priority) -> None:
        """Send with this priority from now on, unless a message has its own."""
        self.allow(MetaOperation.CONFIGURE)
        self.priority = check_priority(priority)

    # -- messages ----------------------------------------------------------------------------------

    def started(self) -> None:
        """Serve messages from now on: ``init`` has succeeded, and the reader runs."""
        self.ending.opened()
        observer = self.kernel.observer
        if observer is None:
            # The observer must see each message, so the handler would serve all of them.
            self.serve_inline = self.behaviour._serve_in_passing
        else:
            observer(Spawned(self.id, self.owner.id, self.callbacks.behaviour, None))

    def refuse_messages(self) -> None:
        """Refuse messages from now on: the termination has begun."""
        self.accepting = False
        self.serve_inline = None
        self.mailbox.refuse_waiters()

    def wake(self) -> None:
        """Have the handler check the mailbox: start the handler, or wake it if it is idle."""
        handler = self.handler.task
        if handler is None:
            self.handler.start()
        elif handler.task is not None:
            wake(handler.task)

    wake_from_any_thread = wake  # only the loop appends to its mailbox

    def serves_in_passing(self, message: object, sender: PID | Alias, /) -> bool:
        """Serve a message in the sender's turn, if the behaviour can do that and no other message
        waits before it.

        The handler is asleep, and nothing interrupts a plain function on the loop. So callbacks do
        not overlap, and no message overtakes another.
        """
        serve, box = self.serve_inline, self.mailbox
        if (
            serve is None
            or self.handler.state is not _SLEEP
            or box.main
            or box.ahead
            or get_ident() != self.router.loop_thread
        ):
            return False
        try:
            served = serve(message, sender)
        except Exception as error:
            self.handler.failed_inline((MESSAGE, sender, None, message), error)
            return True
        self.served_inline += served
        return served

    def failed(self, callback: str, error: BaseException) -> Reason:
        """Record an exception that left a callback, and fail the call that the callback was
        serving.
        """
        explain(error, self.behaviour)
        reason = Crashed(error)
        self.kernel.note_crash(self, reason)
        # The reader fails independently of the message that the handler is serving.
        handling = None if callback == "start" else self.handler.handling
        message_type = None if handling is None else type(handling[3]).__qualname__
        self.kernel.lifetimes.obituaries.note_crash(self, callback, message_type)
        if self.kernel.log.wants("error"):
            self.kernel.log_crash(self, "meta-process crashed", callback, message_type, reason)
        if handling is not None and isinstance(caller := handling[2], Caller):
            caller.fail_begun(reason)
        # A KeyboardInterrupt can only reach the main thread. In a reader thread, SystemExit ends
        # that thread, as in any other thread of Python.
        if callback != "start" or not self.reader.has_thread:
            self.pass_on(error)
        return reason

    def pass_on(self, error: BaseException) -> None:
        """Pass KeyboardInterrupt and SystemExit on to the host program."""
        self.kernel.pass_on(error)

    # -- sending -----------------------------------------------------------------------------------
    # The reader sends within a bound, the handler at once, without overtaking each other.

    def send(self, to: Target, message: object, priority: Priority | None) -> bool:
        """Send from the reader, the handler, or any other code. From any thread."""
        chosen = self._check_sender(priority)
        thread, outbox = self.reader.thread, self.outbox
        if thread is not None and get_ident() == thread.ident:
            return outbox.put(to, message, chosen)
        if thread is None and self.reader.is_current():
            return outbox.offer(to, message, chosen)
        self.sent += 1
        # The handler must not overtake earlier messages of the reader.
        # The length first: most outboxes are empty, and the search for the receiver in the queue
        # costs a lookup for each message.
        if len(outbox) and outbox.follow(to, message, chosen):
            return True
        return self.router.send(self.id, to, message, chosen)

    async def send_wait(self, to: Target, message: object, priority: Priority | None) -> bool:
        """Send from async code. Waits while the receiver is too far behind, as the reader's thread
        does.
        """
        chosen = self._check_sender(priority)
        lane, outbox, router = LANES[chosen], self.outbox, self.router
        if self.options.when_behind is not Behind.WAIT and self.reader.is_current():
            sent = outbox.offer(to, message, chosen)
            await router.pause()
            return sent
        # The same rule for async code, which can wait: it goes behind the messages of the reader.
        if len(outbox):
            await outbox.wait_until_empty()
        receiver = router.resolve(to)
        self.sent += 1
        if receiver is None or not receiver.accepting or not outbox.is_behind(receiver, lane):
            sent = router.send(self.id, to, message, chosen)
            await router.pause()
            return sent
        waiter = TaskWaiter(current_task())
        receiver.mailbox.wait_for_room(
            lane, (MESSAGE, self.id, to, message), waiter, outbox.backlog
        )
        try:
            await park_as(waiter.task, waiter)
        finally:
            # Cancelled while it waits: the message leaves the queue, and does not arrive.
            if waiter.admitted is None:
                receiver.mailbox.stop_waiting(lane, waiter)
        if not waiter.admitted:
            router.dead_letters.add(self.id, to, message, Why.STOPPING)
        return bool(waiter.admitted)

    async def wait_for_room(self, to: Target, lane: Lane = Lane.MAIN) -> bool:
        """Wait while a receiver is full or too far behind. Returns whether it waited. Cancellation
        loses nothing.
        """
        waited = False
        while True:
            receiver = self.router.resolve(to)
            if (
                receiver is None
                or not receiver.accepting
                or not self.outbox.is_behind(receiver, lane)
            ):
                return waited
            waiter = TaskWaiter(current_task())
            receiver.mailbox.wait_for_room(lane, None, waiter, self.outbox.backlog)
            waited = True
            try:
                await park_as(waiter.task, waiter)
            finally:
                if waiter.admitted is None:
                    receiver.mailbox.stop_waiting(lane, waiter)

    def _check_sender(self, priority: Priority | None) -> Priority:
        reader = self.reader
        if self.ending.phase is _SILENCED or (reader.abandoned and reader.is_current()):
            raise NotAllowedError(
                f"{self} was stopped; this thread or task did not end in time and was abandoned, "
                "so it cannot send any more"
            )
        return self.priority if priority is None else check_priority(priority)

    # -- requests ----------------------------------------------------------------------------------

    def request(
        self, to: Target, request: object, timeout: float | None, priority: Priority | None
    ) -> Ref:
        """Send a request without waiting for its reply."""
        self.allow(MetaOperation.REQUEST)
        chosen = self.priority if priority is None else check_priority(priority)
        # For its error only: an address of a wrong type must raise before the request is owned.
        self.router.resolve(to)
        caller = RequestCaller(self, next(self.router.references), to, request)
        begin_request(self.kernel.calls, self.kernel.clock, caller, timeout, chosen)
        return caller.ref

    def cancel_request(self, ref: Ref) -> bool:
        """Cancel a request: no response follows."""
        caller = (self.requests or {}).get(ref.number)
        if caller is None:
            return False
        caller.abandon()
        return True

    def add_request(self, caller: RequestCaller, /) -> None:
        """Own an open request."""
        if self.requests is None:
            self.requests = {}
        self.requests[caller.number] = caller

    def drop_request(self, number: int, /) -> None:
        """Forget a request that is answered or cancelled."""
        (self.requests or {}).pop(number, None)

    def takes_responses(self) -> bool:
        """Whether it still handles answers."""
        return self.ending.reason is None

    # -- termination -------------------------------------------------------------------------------

    def _overrun(self) -> None:
        self.router.bridge.do(
            self.finish,
            Custom(f"its receivers were more than {self.options.backlog} messages behind"),
        )

    def finish(self, reason: Reason) -> None:
        """Begin the termination. Only the first reason counts."""
        self.ending.begin(reason)

    def finish_without_blame(self, reason: Reason) -> None:
        """Begin the termination. A failure is that of the owner or of the peer."""
        self.ending.excuse()
        self.ending.begin(reason)

    def ask_to_exit(self, _sender: PID | Alias, reason: Reason) -> None:
        """End. The callback in progress may finish; the waiting messages are not served."""
        self.ending.begin(reason)

    def kill(self) -> None:
        """End without waiting for the handler. A second kill also shortens every step of the
        termination.
        """
        self.ending.kill()

    force_end = kill

    @property
    def killer(self) -> Killing | None:
        """The kill of a whole tree that it belongs to, if any."""
        return self.ending.killer

    def join_killing(self, killing: Killing) -> None:
        """Note the kill of a whole tree that it belongs to."""
        self.ending.join_killing(killing)

    def is_unborn_in(self, _task: object) -> bool:
        """Always False: the spawn of a meta-process does its own cleanup."""
        return False

    def stop_accepting(self) -> "Sequence[Process]":
        """If this is a server, stop accepting connections. Returns the processes of its
        connections.
        """
        return self.behaviour._stop_accepting() if self.ending.phase >= Phase.OPEN else ()

    async def shut(self, reason: Reason) -> None:
        """Stop on behalf of the owner, in bounded time."""
        await self.ending.shut(reason)

    async def wait_gone(self) -> None:
        """Wait until the meta-process has ended and everything is released."""
        await self.ending.gone.wait()

    async def abandon(self) -> None:
        """Give up on a meta-process that does not end."""
        await self.ending.abandon()
