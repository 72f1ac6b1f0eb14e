"""The life of a meta-process: a reader that may block, a handler that comes when there are messages, and one order of ending."""

import contextvars
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import outcome
import trio
from trio.lowlevel import Task, current_task

from .bridge import Parker, ReaderThread, get_ident
from .callbacks import META_CALLBACKS
from .errors import (
    BehaviourError,
    InitError,
    InitTimeoutError,
    NodeStoppedError,
    NotAllowedError,
    SpawnError,
    TargetDownError,
    TooManyReadersError,
)
from .ids import PID, Alias, Ref, Target
from .info import Ended
from .kernel import Kernel
from .mailbox import RESPONSE, Envelope, Lane, Mailbox, Priority, Verdict, kind_name
from .messages import Response
from .metaending import close, release
from .metaserving import serve
from .options import MetaOptions
from .outbox import Outbox
from .parking import park_as, wake
from .reasons import Crashed, Custom, Killed, Normal, Reason
from .relay import Relay
from .requests import Caller
from .router import LANES
from .shared import watch_writes
from .states import MetaOperation, MetaState, Operation, check_meta_allowed, check_meta_transition
from .timers import Timer
from .unblocking import Resources
from .waiters import TaskWaiter

if TYPE_CHECKING:
    from .process import Process

__all__ = ["Meta"]

_GRACE: Final = 0.5
_HISTORY: Final = 16


class TwoLanes(Mailbox):
    """The mailbox of a meta-process: what users send goes to SYSTEM or MAIN; signals still come before both."""

    __slots__ = ()

    def admit(self, lane: Lane, envelope: Envelope) -> tuple[Verdict, Envelope | None]:
        return super().admit(Lane.SYSTEM if lane is Lane.URGENT else lane, envelope)

    def depths(self) -> dict[str, int]:
        return {"system": len(self.urgent) + len(self.system), "main": len(self.main)}


class RequestCaller(Caller):
    """A request of a meta-process: its answer is a message to the handler."""

    __slots__ = ("meta",)

    def __init__(self, meta: "Meta", number: int, to: object, request: object) -> None:
        super().__init__(meta.id, number, to, request)
        self.meta = meta

    def awaken(self) -> None:
        meta = self.meta
        meta.requests.pop(self.number, None)
        if meta.reason is None:
            meta.mailbox.push(Lane.MAIN, (RESPONSE, self.pid, None, Response(self.ref, self.value, self.error)))
            meta.wake()


class Meta:
    """The kernel's side of a meta-process; the behaviour is the user's side."""

    def __init__(
        self, kernel: Kernel, behaviour: Any, options: MetaOptions, owner: "Process | Meta", process: "Process"
    ) -> None:
        router = kernel.router
        self.kernel = kernel
        self.router = router
        self.id = Alias(router.node, router.creation, next(router.numbers))
        self.behaviour = behaviour
        self.callbacks = kernel.callbacks_of(type(behaviour), META_CALLBACKS)
        self.options = options
        self.owner = owner
        self.process = process
        self.mailbox: Mailbox = TwoLanes(options.mailbox_size or 0, options.overflow)
        self.outbox = Outbox(router, self.id, options.backlog, options.when_behind)
        self.resources = Resources()
        self.accepting = True
        self.splits = False
        self.waiting = None
        self.state = MetaState.SLEEP
        self.born = perf_counter()
        self.history: list[MetaState | float] = [MetaState.SLEEP, self.born]
        self.reason: Reason | None = None
        self.deferred: set[Caller] | None = None
        self.timers: set[Timer] | None = None
        self.owned: dict[object, Meta] = {}
        self.requests: dict[int, RequestCaller] = {}
        inherited: Mapping[str, object] = owner.env
        self.env: Mapping[str, object] = {**inherited, **options.env} if options.env else inherited
        self.priority = options.priority
        self.handling: Envelope | None = None
        self.handled = 0
        self.unhandled = 0
        self.sent = 0
        self.thread: ReaderThread | None = None
        self.abandoned = False
        """The reader would not end, and was left: it may not send any more."""
        self.hop_scope: trio.CancelScope | None = None
        """Around the worker thread in which a plain callback runs."""
        self._initialised = False
        self._logger: Any = None
        self.gone = trio.Event()
        self.reader_gone = trio.Event()
        self.reader_scope: trio.CancelScope | None = None
        self.reader_relay: Relay | None = None
        self.reader_task: Task | None = None
        self.handler_task: Task | None = None
        self.handler_relay: Relay | None = None
        self.handler_scope: trio.CancelScope | None = None
        self.handler_gone: trio.Event | None = None
        self._retired = False
        self.hurry = False

    def __repr__(self) -> str:
        return f"<{self.callbacks.behaviour} {self.id}>"

    @property
    def log(self) -> Any:
        """The logger bound to this meta-process."""
        if self._logger is None:
            self._logger = self.kernel.log.logger(
                self.id, self.options.log_level, behaviour=self.callbacks.behaviour, process=str(self.process.id)
            )
        return self._logger

    @property
    def has_thread(self) -> bool:
        """Whether its reader is a thread; otherwise it is a task."""
        return "start" not in self.callbacks.asynchronous

    def allow(self, operation: MetaOperation | Operation) -> None:
        """Raise unless ``operation`` may be done in the present state."""
        check_meta_allowed(MetaOperation[operation.name], self.state, self)

    def enter(self, state: MetaState) -> None:
        """Change state, if the table knows the change, and note when."""
        check_meta_transition(self.state, state)
        self.state = state
        self.history += (state, perf_counter())
        if len(self.history) > _HISTORY:
            del self.history[: _HISTORY // 2]

    def own(self, key: object, thing: "Meta") -> None:
        """Note a meta-process that must not outlive this one."""
        self.owned[key] = thing

    def disown(self, key: object) -> None:
        """Forget one that has ended."""
        self.owned.pop(key, None)

    # -- birth -------------------------------------------------------------------------------------------------------

    @classmethod
    async def spawn(cls, owner: "Process | Meta", behaviour: Any, options: MetaOptions) -> "Meta":
        """Make a meta-process, run its ``init``, start its reader.

        Raises:
            SpawnError: and nothing of it remains.
        """
        kernel = owner.kernel
        process = owner.process if isinstance(owner, Meta) else owner
        if kernel.router.stopped:
            raise NodeStoppedError(kernel.pid.node, "it starts nothing any more")
        meta = cls(kernel, behaviour, options, owner, process)
        for name in ("handle_inspect", "unblock"):
            if name in meta.callbacks.asynchronous:
                raise BehaviourError(
                    f"{meta.callbacks.behaviour}.{name}", f"async def {name}", f"a plain, quick `def {name}`"
                )
        if meta.has_thread and kernel.breather.readers >= kernel.max_reader_threads:
            raise TooManyReadersError(kernel.max_reader_threads)
        behaviour._meta = meta
        kernel.router.registry.add_alias(meta.id, meta)
        owner.own(meta.id, meta)
        try:
            await meta._initialise()
            meta._start_reader()
        except BaseException as error:
            meta.reader_gone.set()
            meta._undo(error)
            if isinstance(error, SpawnError) or not isinstance(error, Exception):
                raise
            raise InitError(meta.callbacks.behaviour, error) from error
        meta._initialised = True
        if meta.kernel.debug_shared_state:
            watch_writes(behaviour, meta._is_reader, meta._report_shared)
        if len(meta.mailbox):
            meta.wake()
        return meta

    async def _initialise(self) -> None:
        if "init" not in self.callbacks.defined:
            return
        timeout = self.options.init_timeout
        with trio.CancelScope(deadline=trio.current_time() + timeout) as self.handler_scope:
            await self.callback("init")
        cut, self.handler_scope = self.handler_scope.cancelled_caught, None
        if self.reason is not None:
            raise SpawnError(f"{self.callbacks.behaviour} was stopped during its init: {self.reason}")
        if cut:
            raise InitTimeoutError(self.callbacks.behaviour, timeout)

    def _start_reader(self) -> None:
        if not self.has_thread:
            self.reader_relay = Relay()
            contextvars.Context().run(self.kernel.nursery.start_soon, self._read_in_task)
            return
        kind = self.behaviour.kind or type(self.behaviour).__name__.lower()
        thread = ReaderThread(f"ergo-{kind}-{self.id.number}", self._read_in_thread)
        self.kernel.breather.reader_started()
        self.thread = thread
        try:
            thread.start()
        except RuntimeError as error:
            self.thread = None
            self.kernel.breather.reader_ended()
            raise SpawnError(f"the system has no thread for {self.callbacks.behaviour}: {error}") from error

    def _undo(self, error: BaseException) -> None:
        """Nothing was started: only the tables, and what ``init`` had opened."""
        self.reason = self.reason or Crashed(error)
        self.accepting = False
        self.resources.unblock()
        self.enter(MetaState.TERMINATED)
        release(self)

    # -- the reader --------------------------------------------------------------------------------------------------

    def _read_in_thread(self) -> None:
        result = outcome.capture(self.behaviour.start)
        try:
            # After everything it has sent: the bridge keeps the order of a thread.
            self.router.bridge.post(self._thread_ended, result)
        except NodeStoppedError:
            return

    def _thread_ended(self, result: outcome.Outcome[Any]) -> None:
        self.kernel.breather.reader_ended()
        self._reader_ended(result)
        if self.abandoned:
            # Only now is it safe to close what the thread was reading from.
            self.resources.close()

    async def _read_in_task(self) -> None:
        assert self.reader_relay is not None
        self.reader_task = current_task()
        result: outcome.Outcome[Any] = outcome.Value(None)

        async def read() -> None:
            nonlocal result
            with trio.CancelScope() as self.reader_scope:
                if self.reason is not None:
                    self.reader_scope.cancel()
                try:
                    await self.behaviour.start()
                except Exception as error:
                    result = outcome.Error(error)

        try:
            await self.reader_relay.run(read())
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            result = outcome.Error(error)
        finally:
            self._reader_ended(result)

    def _reader_ended(self, result: outcome.Outcome[Any]) -> None:
        self.reader_gone.set()
        if self.reason is not None:
            # It was told to end: how it did so says nothing.
            return
        if isinstance(result, outcome.Error):
            self.finish(self.failed("start", result.error))
        else:
            self.finish(Normal())

    def _is_reader(self) -> bool:
        if self.thread is not None:
            return get_ident() == self.thread.ident
        return self.router.bridge.on_loop() and current_task() is self.reader_task

    def in_reader_thread(self) -> bool:
        """Whether this is the thread of the reader."""
        return self.thread is not None and get_ident() == self.thread.ident

    # -- the handler -------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have the handler look at the mailbox: start it, or wake it if it lingers."""
        if self.handler_task is not None:
            wake(self.handler_task)
        elif self._initialised and self.handler_gone is None and self.reason is None:
            self.handler_gone = trio.Event()
            # Not in the context of whoever sent the message: it serves everybody.
            contextvars.Context().run(self.kernel.nursery.start_soon, self._handle)

    def retire(self) -> None:
        """Let a handler go that had nothing to do for a while."""
        self._retired = True
        self.wake()

    async def _handle(self) -> None:
        self.handler_relay = relay = Relay()
        task = current_task()
        try:
            await relay.run(self._handle_in_scope(task))
        finally:
            self.handler_task = self.handler_relay = None
            gone, self.handler_gone = self.handler_gone, None
            if gone is not None:
                gone.set()
        if self.reason is None and len(self.mailbox):
            # Something came between the decision to go and this line.
            self.wake()

    async def _handle_in_scope(self, task: Task) -> None:
        with trio.CancelScope() as self.handler_scope:
            self.handler_task = task
            self._retired = False
            if self.reason is None:
                self.enter(MetaState.RUNNING)
                try:
                    await serve(self, task)
                except trio.Cancelled:
                    raise
                except BaseException as error:
                    if isinstance(error, GeneratorExit):
                        raise
                    self.finish(self.failed(self.current_callback() or "handler", error))
        self.handler_scope = None
        if self.state is MetaState.RUNNING and self.reason is None:
            self.enter(MetaState.SLEEP)

    def has_retired(self) -> bool:
        """Whether the handler is to go, now that there is nothing to do."""
        return self._retired

    async def callback(self, name: str, *args: Any) -> Any:
        """Call a callback where its colour says: ``async def`` on the loop, a plain ``def`` on a worker thread."""
        function = getattr(self.behaviour, name)
        if name in self.callbacks.asynchronous:
            return await function(*args)
        return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=True, limiter=self.kernel.workers)

    def current_callback(self) -> str | None:
        """The callback in progress, if any."""
        if self.state is MetaState.TERMINATED:
            return None if self.gone.is_set() else "terminate"
        return None if self.handling is None else kind_name(self.handling[0])

    def answers_at_once(self) -> bool:
        """A meta-process always has a handler do it."""
        return False

    def answer_now(self, caller: Caller, request: object) -> None:
        """Never asked for."""
        raise AssertionError("a meta-process does not answer on the spot")

    def failed(self, callback: str, error: BaseException) -> Reason:
        """Account for an exception that left a callback, and tell the caller it was serving."""
        reason = Crashed(error)
        self.kernel.crashed += 1
        _, _, ref, payload = self.handling or (0, None, None, None)
        if self.kernel.log.wants("error"):
            self.log.error(
                "meta-process crashed",
                callback=callback,
                message_type=None if self.handling is None or callback == "start" else type(payload).__qualname__,
                lanes=self.mailbox.depths(),
                error=str(reason),
                exception=reason.traceback,
            )
        if isinstance(ref, Caller) and callback != "start":
            ref.settle(None, TargetDownError(ref.to, ref.request, reason))
        if not isinstance(error, Exception) and callback != "start":
            self.kernel.panic(error)
        return reason

    def _report_shared(self, attribute: str) -> None:
        self.log.warning(
            "an attribute is written by the reader and by the handler; use Counter or Flag, or let one side own it",
            attribute=attribute,
        )

    # -- verbs that both sides use -----------------------------------------------------------------------------------

    def send(self, to: Target, message: object, priority: Priority | None) -> bool:
        """Send; from the reader's thread within its bound, from elsewhere directly."""
        chosen = self.priority if priority is None else priority
        if self.thread is not None and get_ident() == self.thread.ident:
            if self.abandoned:
                raise NotAllowedError(
                    f"{self} was stopped, and its reader was left behind because it did not end; it cannot send"
                )
            return self.outbox.put(to, message, chosen, self._overrun)
        self.sent += 1
        return self.router.send(self.id, to, message, chosen)

    async def send_wait(self, to: Target, message: object, priority: Priority | None) -> bool:
        """Send from async code, as far ahead of the receiver as the reader's thread may be."""
        chosen = self.priority if priority is None else priority
        waited = await self.wait_for_room(to, LANES[chosen])
        self.sent += 1
        sent = self.router.send(self.id, to, message, chosen)
        if not waited:
            await self.router.pause()
        return sent

    async def wait_for_room(self, to: Target, lane: Lane = Lane.MAIN) -> bool:
        """Wait while a receiver is too far behind, or full. Returns whether it waited; cancelling loses nothing."""
        waited = False
        while True:
            receiver = self.router.resolve(to)
            if receiver is None or not receiver.accepting or not self.outbox.is_behind(receiver, lane):
                return waited
            waiter = TaskWaiter(current_task())
            receiver.mailbox.wait_for_room(lane, None, waiter, self.options.backlog)
            waited = True
            try:
                await park_as(waiter.task, waiter)
            finally:
                if waiter.admitted is None:
                    receiver.mailbox.stop_waiting(lane, waiter)

    def _overrun(self) -> None:
        self.router.bridge.post(
            self.finish, Custom(f"its receivers were more than {self.options.backlog} messages behind")
        )

    def request(self, to: Target, request: object, timeout: float | None, priority: Priority | None) -> Ref:
        """Ask without waiting."""
        caller = RequestCaller(self, next(self.router.numbers), to, request)
        self.requests[caller.number] = caller
        self.kernel.calls.begin(caller, self.priority if priority is None else priority)
        if timeout is not None and not caller.settled:
            self.kernel.clock.arm_call(caller, timeout)
        return caller.ref

    def cancel_request(self, ref: Ref) -> bool:
        """Take a request back; no response follows."""
        caller = self.requests.pop(ref.number, None)
        if caller is None:
            return False
        caller.abandon()
        return True

    def spawn_from_thread(self, behaviour: Any, options: MetaOptions) -> Alias:
        """Spawn a child, blocking this thread until it is registered or refused."""
        parker: Parker[outcome.Outcome[Meta]] = Parker()

        async def spawn() -> None:
            parker.settle(await outcome.acapture(Meta.spawn, self, behaviour, options))

        def start() -> None:
            contextvars.Context().run(self.kernel.nursery.start_soon, spawn)

        self.router.bridge.post(start)
        parker.wait(None)
        if parker.value is None:
            raise NodeStoppedError(self.router.node)
        return parker.value.unwrap().id

    # -- the end -----------------------------------------------------------------------------------------------------

    def ask_to_exit(self, _sender: PID | Alias, reason: Reason) -> None:
        """End; the callback in progress is allowed to finish, what waits is not begun."""
        self.finish(reason)

    def kill(self) -> None:
        """End without waiting for the handler."""
        self.hurry = True
        self.finish(Killed())
        if self.handler_scope is not None:
            self.handler_scope.cancel()

    def finish(self, reason: Reason) -> None:
        """Begin the end. The first reason counts."""
        if self.reason is not None:
            return
        self.reason = reason
        self.accepting = False
        self.mailbox.refuse_waiters()
        if not self._initialised:
            if self.handler_scope is not None:
                self.handler_scope.cancel()
            return
        contextvars.Context().run(self.kernel.nursery.start_soon, close, self)

    async def shut(self, reason: Reason) -> None:
        """Stop it on behalf of its owner. Every step is bounded, so this is."""
        self.finish(reason)
        await self.gone.wait()

    async def wait_gone(self) -> None:
        """Wait until nothing of it is left."""
        await self.gone.wait()

    async def abandon(self) -> None:
        """Leave it behind: its own ending is bounded, but nobody waits for it."""
        self.abandoned = True
        if not self.gone.is_set():
            self.kernel.abandoned.append(Ended(self.id, None, self.callbacks.behaviour, self.reason))
            if self.state is not MetaState.TERMINATED:
                self.enter(MetaState.TERMINATED)
            release(self)
