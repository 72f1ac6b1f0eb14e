"""``Behaviour``: the verbs that a process may use in its callbacks."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import copy_context
from functools import partial
from types import FunctionType, MappingProxyType, MethodType, SimpleNamespace
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    TypeVarTuple,
    Unpack,
    cast,
    get_origin,
    get_type_hints,
    overload,
)

from trio.lowlevel import enable_ki_protection

from ..messaging.calls import Calls
from ..messaging.receiver import NO_RECEIVER
from ..processes.background_task import BackgroundTask
from ..processes.process import Process
from ..processes.spawn import spawn_process
from ..runtime.bridge import get_ident
from ..tables.callbacks import READING
from ..tables.pending_calls import Caller
from ..tables.timers import Timer
from ..vocabulary.envelopes import MESSAGE, STOP, Priority
from ..vocabulary.errors import BadInputError, BehaviourError
from ..vocabulary.ids import PID, Alias, Called, Ref, Target
from ..vocabulary.info import MetaInfo
from ..vocabulary.messages import NO_REPLY, NoReply, Request, Sent, Untyped
from ..vocabulary.options import MetaKeywords, SpawnKeywords, read_options
from ..vocabulary.public_names import name_for_annotations
from ..vocabulary.reasons import Normal, as_reason
from ..vocabulary.states import CALLS_ALLOWED, Operation
from .common import (
    NotSpawned,
    arm_timer,
    check_priority,
    check_timeout,
    exit_target,
    kill_target,
)
from .links_and_events import LinksAndEvents
from .meta_process import MetaProcess, spawn_checked_meta
from .replies_and_timers import RepliesAndTimers

if TYPE_CHECKING:
    import typing_extensions
    from structlog.typing import FilteringBoundLogger

    from ...node import Node

    M_contra = typing_extensions.TypeVar("M_contra", contravariant=True, default=Any)
else:
    name_for_annotations(
        __name__,
        {
            "structlog.typing": "FilteringBoundLogger",
            "ergo_py.node": "Node",
        },
    )
    M_contra = TypeVar("M_contra", contravariant=True)

__all__ = ["Behaviour", "M_contra", "behaviour_of", "check_task", "declared_class", "made_by"]

B = TypeVar("B", bound="Behaviour")
Callee = TypeVar("Callee")
M = TypeVar("M")
P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class _NoConnection:
    """Raises an error that explains why the process has no connection."""

    def __get__(self, instance: object, _: object) -> object:
        if instance is None:
            return self
        raise AttributeError(
            "self.connection: this process was not made for a connection, or its init() is not "
            "done; a server has to be given "
            "its class, such as TCPServer(receiver=Session), and the connection is there from "
            "TCP.Connected on"
        )


if TYPE_CHECKING:

    class _OfMessages(Generic[M_contra]): ...

else:

    class _OfMessages:
        """``Actor[Add | Reset]`` is ``Actor``: only a type checker asks for the messages."""

        def __class_getitem__(cls, types: object) -> object:
            of_user = getattr(super(), "__class_getitem__", None)  # a subclass of Generic
            return cls if of_user is None else of_user(types)


class Behaviour(LinksAndEvents, RepliesAndTimers, _OfMessages[M_contra]):
    """Base class of all behaviours: the verbs, bound to the process of the instance.

    There is no ``super().__init__()`` to call. Each start of a process makes a new instance. Its
    process exists from ``init`` on.
    """

    _process: Process = cast(
        Process,
        NotSpawned(
            "the process does not exist yet while __init__ runs; do this in `async def "
            "init(self)`, which is called next"
        ),
    )

    drains: ClassVar[bool] = False
    """Whether ``node.drain()`` calls the process with `Drain`, and waits for its answer."""
    bounds_its_end: ClassVar[bool] = False
    """Whether ``pre_stop`` limits its time by itself: under a supervisor, ``shutdown`` and
    ``terminate_timeout`` have no limit then unless they are given.
    """

    @classmethod  # pyright: ignore[reportArgumentType] - a class is a function of its arguments
    def spec(cls: Callable[P, B], *args: P.args, **kwargs: P.kwargs) -> Callable[[], B]:
        """The class with all arguments of its constructor, keyword arguments too, for every place
        that takes a behaviour: ``spawn(Worker.spec(1, retries=3), name="worker")``.

        The keywords of ``spawn`` and of ``ChildSpec`` are options of the process, so arguments of
        the class go here.

        Raises:
            BadInputError: the arguments do not fit the constructor.
        """
        kind: Any = cls
        try:
            inspect.signature(kind, **READING).bind(*args, **kwargs)
        except TypeError as problem:
            raise BadInputError(
                f"{kind.__qualname__}.spec(…)",
                (args, kwargs),
                f"the arguments of {kind.__qualname__}{inspect.signature(kind, **READING)}: "
                f"{problem}",
            ) from None
        return partial(kind, *args, **kwargs)

    def _act_for(self, former: "Behaviour") -> None:
        """Act for the process of the former behaviour, which `upgrade_child` replaces."""
        self._process = former._process

    def _succeed(self, former: "Behaviour") -> None:
        """Take the values over that the base classes keep in the former behaviour."""

    def _calls_for_reply(self) -> Calls:
        self._process.allow(Operation.REPLY)
        return self._process.kernel.calls

    def _arm_timer_for(
        self, delay: float, period: float, to: Target, message: object, priority: Priority | None
    ) -> Timer:
        return arm_timer(self._process, delay, period, to, message, priority)

    # -- identity ----------------------------------------------------------------------------------

    @property
    def pid(self) -> PID[Self]:
        """The identity of this process."""
        return self._process.id

    @property
    def registered_name(self) -> str | None:
        """The name of this process; None if it has no name."""
        return self._process.name

    @property
    def parent(self) -> PID:
        """The process that spawned this process, or the node itself."""
        process = self._process
        return process.kernel.pid if process.parent is None else process.parent.id

    @property
    def node(self) -> "Node":
        """The node of this process."""
        return self._process.kernel.node  # type: ignore[no-any-return]

    @property
    def env(self) -> Mapping[str, object]:
        """The environment: the settings of this process, over those of its parent, over those of
        the node.
        """
        return MappingProxyType(dict(self._process.env))

    @property
    def log(self) -> "FilteringBoundLogger":
        """A structlog logger bound to this process.

        ``self.log = self.log.bind(order=5)`` adds values to all later lines of the process.
        """
        return self._process.log

    @log.setter
    def log(self, logger: "FilteringBoundLogger") -> None:
        self._process.use_logger(logger)

    connection: Any = _NoConnection()
    """The alias of the connection that this process serves, if a server made the process for its
    ``receiver=``.

    It is set from the first message on. If the process has set ``self.connection`` itself before,
    that value stays.
    """

    # -- messages ----------------------------------------------------------------------------------

    # Protected: a KeyboardInterrupt between the append and the wake-up would leave the message in
    # the mailbox of a process that sleeps on.
    @enable_ki_protection
    def send(
        self, to: "Target[Behaviour[M]]", message: Sent[M], *, priority: Priority | None = None
    ) -> bool:
        """Send a message. May be used anywhere, from any thread.

        Returns False if there is no receiver: the message becomes a dead letter. The death of the
        receiver is never an error here.

        Raises:
            MailboxFullError: the receiver is full and its overflow policy is to refuse.
            TargetTypeError: ``to`` is not an address.
        """
        process = self._process
        process.sent += 1  # hot path: Process.count_sent
        receiver = process.last_receiver
        if priority is None:
            if to is not receiver.id:
                receiver = NO_RECEIVER
                if type(to) is PID and not process.priority:
                    receiver = process.router.processes.get(to, NO_RECEIVER)
                    # Only the loop's thread may cache the receiver: another thread could do so just
                    # after the loop has set another priority, which clears the cache.
                    if get_ident() == process.router.loop_thread:
                        process.last_receiver = receiver  # hot path: Process.remember_receiver
            if receiver.takes_direct:
                # A call of the router would cost a third of a message.
                # inlined copy of Router.send
                receiver.main.append((MESSAGE, process.id, None, message))
                if receiver.task.custom_sleep_data is not None:
                    receiver.wake_from_any_thread()
                return True
            priority = process.priority
        return process.router.send(process.id, to, message, priority)

    async def send_wait(
        self,
        to: "Target[Behaviour[M]]",
        message: Sent[M],
        *,
        priority: Priority | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Send a message. If the receiver is full and its overflow policy is ``Overflow.WAIT``,
        wait for room (backpressure).

        Raises:
            MailboxFullError: there was no room within ``timeout`` seconds, or the receiver refuses
                at once.
            DeadlockError: the receiver waits, directly or through other processes, for this one.
            TargetTypeError: ``to`` is not an address.
        """
        check_timeout(timeout)
        process = self._process
        process.count_sent()
        return await process.router.send_wait(
            process,
            process.id,
            to,
            message,
            process.priority if priority is None else check_priority(priority),
            timeout,
        )

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
        """Forward a message as if its sender had sent it, or a call as if its caller had called.

        For a call, write ``return self.forward(to, request, caller)`` in ``handle_call``.
        """
        process = self._process
        process.count_sent()
        if isinstance(origin, Caller):
            origin.note_begun()
        sent = process.kernel.calls.forward(
            to, message, origin, process.priority if priority is None else priority
        )
        return NO_REPLY if isinstance(origin, Caller) else sent

    # -- calls -------------------------------------------------------------------------------------

    @overload
    def call(
        self,
        to: Target,
        request: Untyped | None,
        *,
        timeout: float | None = 5.0,
        priority: Priority | None = None,
    ) -> Coroutine[Any, Any, Any]: ...
    @overload
    def call(
        self,
        to: Called[Callee],
        request: Request[R, Callee],
        *,
        timeout: float | None = 5.0,
        priority: Priority | None = None,
    ) -> Coroutine[Any, Any, R]: ...
    def call(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Call a process, and wait for its answer. ``timeout=None`` waits as long as the callee
        lives.

        Raises:
            TargetDownError: the callee ended before it answered, or did not exist.
            CallTimeoutError: the callee did not answer in time.
            DeadlockError: the callee waits, directly or indirectly, for this process.
            MailboxFullError: the callee is full and refuses.
            Exception: the callee passed this exception to ``Reject`` or ``reply_error``.
        """
        process = self._process
        if process.state not in CALLS_ALLOWED:
            process.allow(Operation.CALL)
        if timeout is not None and timeout != 5.0:
            # Most calls keep the default, so they need not pay for the check.
            check_timeout(timeout)
        process.sent += 1  # hot path: Process.count_sent
        # Not async: each answer would have to resume a second coroutine.
        return process.kernel.calls.call(
            process,
            process.id,
            to,
            request,
            timeout,
            process.priority if priority is None else priority,
        )

    def request(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority | None = None,
    ) -> Ref:
        """Send a request without waiting for the answer. Exactly one ``handle_response`` follows,
        with the answer or with the error that ``call`` would raise, unless the request is cancelled
        or this process ends.

        The answer comes before the messages that wait. ``timeout=None`` waits as long as the callee
        lives.

        Raises:
            NotAllowedError: this process is ending, so no answer could arrive.
            TargetTypeError: ``to`` is not an address.
        """
        check_timeout(timeout)
        return self._process.request(to, request, timeout, priority).ref

    def cancel_request(self, ref: Ref) -> bool:
        """Cancel a request. True if it was open: then no ``handle_response`` follows."""
        return self._process.cancel_request(ref)

    def wait_for(self, waiting: Coroutine[Any, Any, R]) -> R:
        """Wait for a coroutine in a plain callback that runs in a thread:
        ``self.wait_for(self.call(to, request))``.

        The coroutine runs on the loop, as part of this process, with the same guarantees as if an
        ``async def`` callback awaited it.

        Raises:
            NotAllowedError: the current callback does not run in a thread. On the loop, write
                ``async def`` and ``await``.
        """
        return self._process.wait_for(waiting)

    # -- children ----------------------------------------------------------------------------------

    async def spawn(
        self, behaviour: Callable[[*Ts], B], *args: *Ts, **options: Unpack[SpawnKeywords]
    ) -> PID[B]:
        """Start a child process, and return its PID when its ``init`` has succeeded. The child
        never outlives this process.

        For example::

            worker = await self.spawn(Worker, "jobs", name="worker", mailbox_size=100)
            self.send(worker, Job(1))

        Args:
            behaviour: the class of the process, or ``Worker.spec(…)`` with all its arguments.
            args: the positional arguments of the class.
            name: register the process under this name.
            link: link this process and the child both ways from the start.
            mailbox_size: how many messages may wait in each lane of its mailbox; None for no bound.
            overflow: the policy of a full lane: a member of ``Overflow``, or ``Divert(to=name)``.
            priority: the priority of the messages that the process sends.
            init_timeout: seconds that ``init`` may take.
            terminate_timeout: seconds that ``terminate``, or the cleanup of a background task, may
                take.
            shutdown: seconds that a graceful shutdown of the process may take before it is killed.
            env: settings of its environment, over the inherited ones.
            log_level: the lowest level that its logger writes; None for the node's.
            dispatcher: where its plain callbacks run: ``LOOP``, ``Threads()``, ``Threads(cpu=…)``
                or ``Threads(name, size)``.

        Raises:
            InitError: its ``init`` raised. The cause is the original exception; the child is
                cleaned up.
            InitTimeoutError: its ``init`` took longer than ``init_timeout``.
            NameTakenError: ``name`` belongs to another process.
            LimitError: of kind ``"processes"``; the node's limit is reached.
            BehaviourError: ``behaviour`` is not a class of behaviours.
        """
        process = self._process
        process.allow(Operation.SPAWN)
        checked = read_options(options)
        cls = behaviour_of(behaviour)
        child = await spawn_process(process.kernel, process, behaviour, cls, args, checked)
        return child.id

    async def spawn_meta(self, behaviour: MetaProcess, **options: Unpack[MetaKeywords]) -> Alias:
        """Start a meta-process that belongs to this process. Returns its alias when its ``init``
        has succeeded and its reader runs.

        With ``needed=True`` a failure of the meta-process ends this process with the same reason,
        like a link: if this process traps exits, it gets an ``Exit`` instead. Servers are needed
        unless you pass ``needed=False``.

        Raises:
            InitError: its ``init`` raised. The cause is the original exception; the meta-process is
                cleaned up.
            InitTimeoutError: its ``init`` took longer than ``init_timeout``.
            LimitError: of kind ``"readers"``; the node's limit of reader threads is reached.
            BehaviourError: ``behaviour`` is not an instance of a ``MetaProcess``, or was spawned
                before.
        """
        process = self._process
        process.allow(Operation.SPAWN)
        return await spawn_checked_meta(process, behaviour, options)

    async def inspect_meta(self, alias: Alias, *items: str, timeout: float = 5.0) -> dict[str, str]:
        """Call ``handle_inspect`` of a meta-process, before its waiting messages, and return the
        result.

        Raises:
            ProcessUnknownError: there is no such meta-process.
            CallTimeoutError: its handler is busy for longer than ``timeout``.
        """
        return await self.node.inspect_meta(alias, *items, timeout=timeout)

    def meta_info(self, alias: Alias) -> MetaInfo:
        """Take a snapshot of a meta-process. Works while its handler is busy.

        Raises:
            ProcessUnknownError: there is no such meta-process.
        """
        return self.node.meta_info(alias)

    def start_task(
        self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: str | None = None
    ) -> BackgroundTask:
        """Run ``function(*args)`` in a background task beside the callbacks of this process, for
        example a loop that waits for input.

        The task may use the verbs and the attributes of the process; other callbacks run while the
        task waits. If it raises, the process crashes. When the process ends, it cancels the task
        first, before it stops its children, and the task has ``terminate_timeout`` for its cleanup.
        The result of the function is dropped.

        Returns a handle with ``cancel()`` and ``done``.

        Raises:
            BadInputError: ``function`` is not an async function.
        """
        check_task(function)
        called = name or getattr(function, "__qualname__", None) or repr(function)
        return self._process.start_task(partial(function, *args), called)

    # -- termination -------------------------------------------------------------------------------

    def stop(self, reason: object = Normal()) -> None:
        """End this process after the current callback. The reply that the callback returns is still
        sent.
        """
        self._process.allow(Operation.STOP)
        self._process.end(STOP, as_reason(reason))

    def send_exit(self, to: Target, reason: object) -> bool:
        """Ask a process or meta-process to end: it handles the request between messages. False if
        there is no receiver.
        """
        return exit_target(self._process, self._process.id, to, reason)

    def kill(self, to: Target) -> bool:
        """Kill a process: end it at its next checkpoint, even inside a callback. False if there is
        no receiver.
        """
        return kill_target(self._process, to)

    @property
    def trap_exit(self) -> bool:
        """Whether exits arrive as ``Exit`` messages: exits of linked processes, and exits sent by
        any process but the parent.
        """
        return self._process.trap_exit

    @trap_exit.setter
    def trap_exit(self, value: bool) -> None:
        self._process.allow(Operation.CONFIGURE)
        self._process.trap_exits(bool(value))

    @property
    def send_priority(self) -> Priority:
        """The priority of messages that this process sends without an explicit priority."""
        return self._process.priority

    @send_priority.setter
    def send_priority(self, value: Priority) -> None:
        self._process.allow(Operation.CONFIGURE)
        self._process.send_with(check_priority(value))


def check_task(function: object) -> None:
    """Check that a function can run as a background task.

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
    """Return the behaviour class in the argument of ``spawn``: a class, or a ``functools.partial``
    of a class.

    Raises:
        BehaviourError: the argument has no behaviour class. The error shows the line to write
            instead.
    """
    cls = given
    while isinstance(cls, partial):
        cls = cls.func
    if isinstance(cls, type) and issubclass(cls, Behaviour):
        return cls
    origin = get_origin(cls)  # such as Pool for Pool[Worker]
    if isinstance(origin, type) and issubclass(origin, Behaviour):
        return origin
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


_NOT_PLAIN: Final = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


def declared_class(given: object) -> type[Behaviour] | None:
    """The class of behaviours that a function declares to return; None for anything else, and for
    supervisors, which are not chosen.

    Raises:
        BehaviourError: the function cannot see what it declares, or returns a coroutine or a
            generator instead.
    """
    if not isinstance(given, FunctionType | MethodType):
        return None
    if any(is_other(given) for is_other in _NOT_PLAIN):
        raise BehaviourError("spawn(behaviour)", given, "a plain `def` without `yield`")
    try:
        # Of no parameter: a function may see their types only while it is type-checked.
        returns = SimpleNamespace(__annotations__={"return": given.__annotations__.get("return")})
        returned = get_type_hints(returns, getattr(inspect.unwrap(given), "__globals__", {}))
    except Exception as error:
        declares = f"a class that it can see, not {type(error).__name__}: {error}"
        raise BehaviourError("spawn(behaviour)", given, declares) from error
    cls = get_origin(returned["return"]) or returned["return"]
    if not isinstance(cls, type) or not issubclass(cls, Behaviour):
        return None
    return None if getattr(cls, "is_supervisor", False) else cls


def made_by(
    factory: Callable[..., Behaviour], args: tuple[object, ...], declared: type[Behaviour]
) -> Behaviour:
    """The behaviour that a function has chosen for the start of a process. The context variables
    that the function sets are its own.

    Raises:
        BehaviourError: it is of another class than the function declares, or of another process.
    """
    made = copy_context().run(factory, *args)
    called = f"{factory.__qualname__}(…)"
    if not isinstance(made, declared):
        raise BehaviourError(called, made, f"a {declared.__qualname__}, as it declares")
    if getattr(made, "is_supervisor", False):
        raise BehaviourError(called, made, "an actor; a supervisor has a ChildSpec of its own")
    if "_process" in vars(made):
        raise BehaviourError(called, made, "a new instance for each start")
    return made
