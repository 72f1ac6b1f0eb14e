"""The verbs: what a process can do from inside its callbacks."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, cast, overload

from trio.lowlevel import enable_ki_protection

from ..messaging.receiver import NO_RECEIVER
from ..processes.background_task import BackgroundTask
from ..processes.process import Process
from ..processes.threaded_process import process_type
from ..runtime.bridge import get_ident
from ..tables.pending_calls import Caller
from ..tables.timers import Timer
from ..vocabulary.envelopes import MESSAGE, STOP, Priority
from ..vocabulary.errors import BadInputError, BehaviourError
from ..vocabulary.ids import PID, Alias, Target
from ..vocabulary.info import MetaInfo
from ..vocabulary.messages import NO_REPLY, NoReply, Request
from ..vocabulary.options import MetaKeywords, SpawnKeywords, check_number, read_options
from ..vocabulary.reasons import Normal, as_reason
from ..vocabulary.states import CALLS_ALLOWED, Operation
from .common import (
    NotSpawned,
    arm_timer,
    check_caller,
    check_error,
    check_priority,
    check_timeout,
    exit_target,
    kill_target,
)
from .links_and_events import LinksAndEvents
from .meta_process import MetaProcess, spawn_meta

if TYPE_CHECKING:
    from ...node import Node

__all__ = ["Behaviour", "behaviour_of", "check_task"]

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class _NoConnection:
    """Stands for the connection in a process that was not made for one."""

    def __get__(self, one: object, _: object) -> object:
        if one is None:
            return self
        raise AttributeError(
            "self.connection: this process was not made for a connection, or its init() is not "
            "done; a server has to be given "
            "its class, such as TCPServer(receiver=Session), and the connection is there from "
            "TCPConnected on"
        )


class Behaviour(LinksAndEvents):
    """Base of what users write: the verbs, over the process that the kernel gives each instance.

    There is no ``super().__init__()`` to call. A class is called anew for each start, and the
    process it speaks for exists from ``init`` on.
    """

    _process: Process = cast(
        Process,
        NotSpawned(
            "the process does not exist yet while __init__ runs; do this in `async def "
            "init(self)`, which is called next"
        ),
    )

    # -- identity ----------------------------------------------------------------------------------

    @property
    def pid(self) -> PID:
        """The identity of this process."""
        return self._process.id

    @property
    def registered_name(self) -> str | None:
        """The name it is registered under, if any."""
        return self._process.name

    @property
    def parent(self) -> PID:
        """Who spawned it: a process, or the node itself."""
        process = self._process
        return process.kernel.pid if process.parent is None else process.parent.id

    @property
    def node(self) -> "Node":
        """The node it lives on."""
        return self._process.kernel.node  # type: ignore[no-any-return]

    @property
    def env(self) -> Mapping[str, object]:
        """Its environment: its own settings over its parent's over the node's."""
        return MappingProxyType(dict(self._process.env))

    @property
    def log(self) -> Any:
        """A structlog logger bound to this process."""
        return self._process.log

    connection: Any = _NoConnection()
    """The alias of the connection that this process was made for, where a server has a behaviour as
    its ``receiver=``.

    It is there from the first message on. A process that sets ``self.connection`` itself, by then,
    keeps what it has set.
    """

    # -- messages ----------------------------------------------------------------------------------

    # Protected, because a KeyboardInterrupt between the append and the wake-up would leave a
    # message nobody looks at.
    @enable_ki_protection
    def send(self, to: Target, message: object, *, priority: Priority | None = None) -> bool:
        """Send a message. May be used anywhere, from any thread.

        Returns False if nobody is there to receive it; it is a dead letter then. The other side's
        death is never an error here.

        Raises:
            MailboxFullError: the receiver is full and its rule is to refuse.
            TargetTypeError: ``to`` is no address.
        """
        process = self._process
        process.sent += 1
        receiver: Any = process.peer
        if priority is None:
            if to is not receiver.id:
                receiver = NO_RECEIVER
                if type(to) is PID and not process.priority:
                    receiver = process.router.processes.get(to, NO_RECEIVER)
                    # Not from a thread: it might do so just after the loop has set another
                    # priority.
                    if get_ident() == process.router.loop_thread:
                        process.peer = receiver
            if receiver.open:
                # A call of the router would cost a third of a message.
                # inlined copy of Router.send
                receiver.main.append((MESSAGE, process.id, None, message))
                if receiver.task.custom_sleep_data is not None:
                    receiver.stir()
                return True
            priority = process.priority
        return process.router.send(process.id, to, message, priority)

    async def send_wait(
        self,
        to: Target,
        message: object,
        *,
        priority: Priority | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Send a message, and wait for room if the receiver is full and its rule is
        ``Overflow.WAIT``.

        Raises:
            MailboxFullError: there was no room within ``timeout`` seconds, or the receiver refuses
                at once.
            TargetTypeError: ``to`` is no address.
        """
        check_timeout(timeout)
        process = self._process
        process.sent += 1
        return await process.router.send_wait(
            process.id,
            to,
            message,
            process.priority if priority is None else check_priority(priority),
            timeout,
        )

    def send_after(
        self, delay: float, to: Target, message: object, *, priority: Priority | None = None
    ) -> Timer:
        """Send a message ``delay`` seconds from now. It is taken back if this process ends first.

        Raises:
            BadInputError: the delay is negative or no number.
        """
        # First what nearly every delay passes, as for the time limit of a call.
        if not (type(delay) is float and delay >= 0.0):
            check_number("delay", delay, least=0.0)
        return arm_timer(self._process, delay, 0.0, to, message, priority)

    def send_every(
        self, period: float, to: Target, message: object, *, priority: Priority | None = None
    ) -> Timer:
        """Send a message every ``period`` seconds, first after one period, until cancelled or until
        this process ends.

        Raises:
            BadInputError: the period is not positive.
        """
        check_number("period", period, least=1e-6)
        return arm_timer(self._process, period, period, to, message, priority)

    @overload
    def forward(
        self, to: Target, message: object, origin: Caller, *, priority: Priority | None = None
    ) -> NoReply: ...
    @overload
    def forward(
        self, to: Target, message: object, origin: PID | Alias, *, priority: Priority | None = None
    ) -> bool: ...
    def forward(
        self,
        to: Target,
        message: object,
        origin: PID | Alias | Caller,
        *,
        priority: Priority | None = None,
    ) -> bool | NoReply:
        """Hand on a message as if its sender had sent it, or a call as if its caller had called.

        For a call, write ``return self.forward(to, request, caller)`` in ``handle_call``.
        """
        process = self._process
        process.sent += 1
        sent = process.kernel.calls.forward(
            to, message, origin, process.priority if priority is None else priority
        )
        return NO_REPLY if isinstance(origin, Caller) else sent

    # -- calls -------------------------------------------------------------------------------------

    @overload
    def call(
        self,
        to: Target,
        request: Request[R],
        *,
        timeout: float | None = 5.0,
        priority: Priority | None = None,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def call(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority | None = None,
    ) -> Coroutine[Any, Any, Any]: ...
    def call(
        self,
        to: Target,
        request: Any,
        *,
        timeout: float | None = 5.0,
        priority: Priority | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Ask and wait for the answer. ``timeout=None`` waits as long as the callee lives.

        Raises:
            TargetDownError: the callee died before it answered, or was not there.
            CallTimeoutError: it did not answer in time.
            DeadlockError: it waits, directly or through others, for this very process.
            MailboxFullError: it is full and refuses.
            Exception: whatever the callee gave to ``Reject`` or ``reply_error``.
        """
        process = self._process
        if process.state not in CALLS_ALLOWED:
            process.allow(Operation.CALL)
        if timeout is not None and timeout != 5.0:
            # Most leave it as it is, and every call would pay for a look.
            check_timeout(timeout)
        process.sent += 1
        # Not async itself: a second coroutine would be woken through at every answer.
        return process.kernel.calls.call(
            process,
            process.id,
            to,
            request,
            timeout,
            process.priority if priority is None else priority,
        )

    def wait_for(self, waiting: Coroutine[Any, Any, R]) -> R:
        """Wait for what is awaited elsewhere, in a plain callback that runs in a thread:
        ``self.wait_for(self.call(to, request))``.

        It is done on the loop, as part of this process: whatever holds for an ``async def``
        callback that awaits it holds here.

        Raises:
            NotAllowedError: this is not such a callback. On the loop, write ``async def`` and
                ``await``.
        """
        return self._process.wait_for(waiting)

    def reply(self, caller: Caller, value: object) -> bool:
        """Answer a call for which ``handle_call`` returned ``NO_REPLY``. False if nobody waits any
        more.
        """
        self._process.allow(Operation.REPLY)
        return self._process.kernel.calls.reply(check_caller(caller), value, None)

    def reply_error(self, caller: Caller, error: BaseException) -> bool:
        """Answer such a call with an exception, which its ``call`` raises. False if nobody waits
        any more.
        """
        self._process.allow(Operation.REPLY)
        return self._process.kernel.calls.reply(check_caller(caller), None, check_error(error))

    # -- children ----------------------------------------------------------------------------------

    async def spawn(
        self, behaviour: "Callable[[*Ts], Behaviour]", *args: *Ts, **options: Unpack[SpawnKeywords]
    ) -> PID:
        """Start a child process, and return when its ``init`` has succeeded. It never outlives this
        process.

        Raises:
            InitError: its ``init`` raised; the original is the cause, and nothing of the child
                remains.
            InitTimeoutError: its ``init`` took longer than ``init_timeout``.
            NameTakenError: ``name`` belongs to another process.
            TooManyProcessesError: the node's limit is reached.
            BehaviourError: ``behaviour`` is not a class of behaviours.
        """
        process = self._process
        process.allow(Operation.SPAWN)
        checked = read_options(options)
        cls = behaviour_of(behaviour)
        child = await process_type(checked).spawn(
            process.kernel, process, behaviour, cls, args, checked
        )
        return child.id

    async def spawn_meta(self, behaviour: MetaProcess, **options: Unpack[MetaKeywords]) -> Alias:
        """Start a meta-process that belongs to this process, and return when its ``init`` has
        succeeded and its reader runs.

        With ``needed=True`` this process ends when the meta-process fails, with the same reason, as
        by a link: one that traps exits gets an ``Exit`` instead. Servers are needed unless
        ``needed=False`` is given.

        Raises:
            InitError: its ``init`` raised; the original is the cause, and nothing of it remains.
            InitTimeoutError: its ``init`` took longer than ``init_timeout``.
            TooManyReadersError: as many reader threads run as the node allows.
            BehaviourError: ``behaviour`` is not an instance of a ``MetaProcess``, or was spawned
                before.
        """
        process = self._process
        process.allow(Operation.SPAWN)
        return await spawn_meta(process, behaviour, options)

    async def inspect_meta(self, alias: Alias, *items: str, timeout: float = 5.0) -> dict[str, str]:
        """Have a meta-process tell about itself, through its ``handle_inspect``, before its waiting
        messages.

        Raises:
            ProcessUnknownError: there is none.
            CallTimeoutError: its handler is busy for longer than ``timeout``.
        """
        return await self.node.inspect_meta(alias, *items, timeout=timeout)

    def meta_info(self, alias: Alias) -> MetaInfo:
        """A meta-process as it is at this moment, also while its handler is busy.

        Raises:
            ProcessUnknownError: there is none.
        """
        return self.node.meta_info(alias)

    def start_task(
        self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: str | None = None
    ) -> BackgroundTask:
        """Run ``function(*args)`` in a task beside the callbacks of this process, for instance a
        loop that waits for something.

        The task may use the verbs of the process and its attributes; other callbacks run whenever
        it waits. If it raises, the process crashes. When the process ends, the task is cancelled
        first, before the children are stopped, and has ``terminate_timeout`` to clean up. The
        result of the function is dropped.

        Returns a handle with ``cancel()`` and ``done``.

        Raises:
            BadInputError: ``function`` is not an async function.
        """
        check_task(function)
        called = name or getattr(function, "__qualname__", None) or repr(function)
        return self._process.start_task(partial(function, *args), called)

    # -- ends --------------------------------------------------------------------------------------

    def stop(self, reason: object = Normal()) -> None:
        """End this process when the current callback returns; a reply it returns is still sent."""
        self._process.allow(Operation.STOP)
        self._process.end(STOP, as_reason(reason))

    def send_exit(self, to: Target, reason: object) -> bool:
        """Ask a process or meta-process to end, politely: it is taken between messages. False if
        nobody is there.
        """
        return exit_target(self._process, self._process.id, to, reason)

    def kill(self, to: Target) -> bool:
        """End a process at its next checkpoint, whatever it is doing. False if nobody is there."""
        return kill_target(self._process, to)

    @property
    def trap_exit(self) -> bool:
        """Whether exits of linked processes, and ones sent by others than the parent, arrive as
        ``Exit`` messages.
        """
        return self._process.trap_exit

    @trap_exit.setter
    def trap_exit(self, value: bool) -> None:
        self._process.allow(Operation.CONFIGURE)
        self._process.trap_exit = bool(value)

    @property
    def send_priority(self) -> Priority:
        """The priority of what this process sends without saying another."""
        return self._process.priority

    @send_priority.setter
    def send_priority(self, value: Priority) -> None:
        self._process.allow(Operation.CONFIGURE)
        self._process.priority = check_priority(value)
        self._process.peer = NO_RECEIVER


def check_task(function: object) -> None:
    """Refuse a function that cannot be a background task.

    Raises:
        BadInputError: it is not an async function.
    """
    if not inspect.iscoroutinefunction(function) and not isinstance(function, partial):
        raise BadInputError(
            "start_task(function)",
            function,
            "an async function and its arguments: `self.start_task(self.watch, path)`",
        )


def behaviour_of(given: object) -> type[Behaviour]:
    """The behaviour class in what was given to ``spawn``: a class, or a ``functools.partial`` of
    one.

    Raises:
        BehaviourError: there is none, with the line to write instead.
    """
    cls = given
    while isinstance(cls, partial):
        cls = cls.func
    if isinstance(cls, type) and issubclass(cls, Behaviour):
        return cls
    if isinstance(given, Behaviour):
        name = type(given).__name__
        raise BehaviourError(
            "spawn(behaviour)",
            given,
            f"the class and its arguments, `spawn({name}, …)`; each start makes an instance of "
            "its own",
        )
    if isinstance(given, MetaProcess) or (isinstance(cls, type) and issubclass(cls, MetaProcess)):
        name = (cls if isinstance(cls, type) else type(cls)).__name__
        raise BehaviourError(
            "spawn(behaviour)",
            given,
            "a subclass of Actor; a meta-process belongs to a process, which writes `await "
            f"self.spawn_meta({name}(…))`",
        )
    raise BehaviourError(
        "spawn(behaviour)", given, "a subclass of Actor, such as `spawn(Counter, 5)`"
    )
