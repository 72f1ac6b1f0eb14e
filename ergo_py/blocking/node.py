"""`BlockingNode`: a node's methods for synchronous code. Each runs on the node's loop while the
calling thread waits.
"""

import contextvars
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, overload

import outcome
import trio

from .._core.inspection.trace import Statistics, TraceEntry
from .._core.messaging.futures import ask
from .._core.runtime.bridge import Parker
from .._core.tables.obituaries import Obituary
from .._core.tables.pending_calls import Caller
from .._core.tables.timers import Timer
from .._core.verbs.behaviour import Behaviour
from .._core.verbs.common import check_priority, check_timeout
from .._core.verbs.node_inspection import Queued
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import NodeStoppedError
from .._core.vocabulary.ids import PID, Alias, EventName, Ref, Target
from .._core.vocabulary.info import ApplicationInfo, EventInfo, MetaInfo, NodeInfo, ProcessInfo
from .._core.vocabulary.messages import DeadLetter, Published, Request
from .._core.vocabulary.options import SpawnKeywords
from .._core.vocabulary.reasons import Reason, Shutdown
from ..applications.application import Application
from ..groups import Group, Registry
from ..node import Node
from ..streams.parts import PartStream
from ..supervision.specs import ChildSpec, SupervisorSpec
from ..supervision.tree import TreeNode
from .handles import BlockingService, BlockingStream, BlockingSupervisor
from .tasks import BlockingTaskVerbs

if TYPE_CHECKING:
    from ..network.traffic.info import NetworkInfo

__all__ = ["BlockingNode"]

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class BlockingNode(BlockingTaskVerbs):
    """A node's methods without ``await``, for every thread except the node's own. Errors are raised
    in the calling thread.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    def __repr__(self) -> str:
        return f"<blocking {self._node!r}>"

    @property
    def name(self) -> str:
        """The node's name."""
        return self._node.name

    @property
    def pid(self) -> PID:
        """The sender of messages that the node itself sends."""
        return self._node.pid

    @property
    def env(self) -> Mapping[str, object]:
        """The environment that every process inherits."""
        return self._node.env

    @property
    def log(self) -> Any:
        """A structlog logger bound to the node."""
        return self._node.log

    # -- processes ---------------------------------------------------------------------------------

    def spawn(
        self, behaviour: Callable[[*Ts], Behaviour], *args: *Ts, **options: Unpack[SpawnKeywords]
    ) -> PID:
        """Start a process that belongs to the node, and return when its ``init`` has succeeded.
        Raises as ``Node.spawn``.
        """
        return self._wait(partial(self._node.spawn, behaviour, *args, **options))

    def send_exit(self, to: Target, reason: object = Shutdown()) -> bool:
        """Ask a process or meta-process to end. False if there is no such process."""
        return self._node.send_exit(to, reason)

    def kill(self, to: Target) -> bool:
        """Kill a process at its next checkpoint. False if there is no such process."""
        return self._node.kill(to)

    def wait_ended(self, to: Target) -> Reason:
        """Wait until a process has ended; return its reason. Raises as ``Node.wait_ended``."""
        return self._wait(partial(self._node.wait_ended, to))

    # -- supervision -------------------------------------------------------------------------------

    def supervise(
        self, children: SupervisorSpec | Sequence[ChildSpec], **options: Any
    ) -> BlockingSupervisor:
        """Start a supervisor, and return when all its children are ready. Takes the arguments and
        raises the errors of ``Node.supervise``.
        """
        handle = self._wait(partial(self._node.supervise, children, **options))
        return BlockingSupervisor(handle, self._wait)

    def supervisor(self, target: Target) -> BlockingSupervisor:
        """Return a handle to a supervisor. Raises as ``Node.supervisor``."""
        return BlockingSupervisor(self._node.supervisor(target), self._wait)

    def service(self, name: str) -> BlockingService:
        """Return the restart-proof address of a supervised child. Raises as ``Node.service``."""
        return BlockingService(self._node.service(name), self._wait)

    def start_applications(self, *applications: Application | str) -> list[str]:
        """Start applications, each after its dependencies. Raises as
        ``Node.start_applications``.
        """
        return self._wait(partial(self._node.start_applications, *applications))

    def stop_applications(self, *names: str) -> list[str]:
        """Stop applications, last started first. Raises as ``Node.stop_applications``."""
        return self._wait(partial(self._node.stop_applications, *names))

    def applications(self) -> list[ApplicationInfo]:
        """The loaded applications, in start order."""
        return self._node.applications()

    # -- messages ----------------------------------------------------------------------------------

    def send(self, to: Target, message: object, *, priority: Priority = Priority.NORMAL) -> bool:
        """Send a message. False if there is no receiver. Raises as ``Node.send``."""
        return self._node.send(to, message, priority=priority)

    def send_wait(
        self,
        to: Target,
        message: object,
        *,
        priority: Priority = Priority.NORMAL,
        timeout: float | None = None,
    ) -> bool:
        """Send a message, and wait for room if the receiver's rule is ``Overflow.WAIT``. Raises as
        ``Node.send_wait``.
        """
        return self._wait(
            partial(self._node.send_wait, to, message, priority=priority, timeout=timeout)
        )

    def send_after(
        self, delay: float, to: Target, message: object, *, priority: Priority = Priority.NORMAL
    ) -> Timer:
        """Send a message ``delay`` seconds from now."""
        return self._node.send_after(delay, to, message, priority=priority)

    def send_every(
        self, period: float, to: Target, message: object, *, priority: Priority = Priority.NORMAL
    ) -> Timer:
        """Send a message every ``period`` seconds until the timer is cancelled."""
        return self._node.send_every(period, to, message, priority=priority)

    @overload
    def call(
        self,
        to: Target,
        request: Request[R],
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> R: ...
    @overload
    def call(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> Any: ...
    def call(
        self,
        to: Target,
        request: Any,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> Any:
        """Call a process and wait for the answer. Raises as ``Node.call``. Ctrl-C ends the wait,
        not the node.
        """
        return self._node.call_from_thread(to, request, timeout=timeout, priority=priority)

    @overload
    def ask(
        self,
        to: Target,
        request: Request[R],
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> "Future[R]": ...
    @overload
    def ask(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> "Future[Any]": ...
    def ask(
        self,
        to: Target,
        request: Any,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> "Future[Any]":
        """Call a process without waiting: the answer, or the error that :meth:`call` would raise,
        comes as a ``concurrent.futures.Future``. For other event loops: ``await
        asyncio.wrap_future(node.ask("counter", Total()))``. To cancel the future abandons the call.
        """
        check_timeout(timeout)
        check_priority(priority)
        kernel = self._node._kernel
        return ask(kernel.calls, kernel.router, kernel.pid, to, request, timeout, priority)

    def reply(self, caller: Caller, value: object) -> bool:
        """Answer a deferred call. False if its caller no longer waits."""
        return self._node.reply(caller, value)

    def reply_error(self, caller: Caller, error: BaseException) -> bool:
        """Answer a deferred call with an exception. False if its caller no longer waits."""
        return self._node.reply_error(caller, error)

    # -- names -------------------------------------------------------------------------------------

    def register(self, name: str, to: Target) -> None:
        """Give a process a name. Raises as ``Node.register``."""
        self._node.register(name, to)

    def unregister(self, name: str) -> None:
        """Take a name away from its holder. Raises as ``Node.unregister``."""
        self._node.unregister(name)

    def whereis(self, name: str) -> PID | None:
        """The process with this name; None if the name is free."""
        return self._node.whereis(name)

    def registry(self, name: str, *, unique: bool | None = None) -> Registry:
        """The registry of that name, made on first use. Raises as ``Node.registry``."""
        return self._node.registry(name, unique=unique)

    def registries(self) -> list[str]:
        """The names of all registries, the oldest first."""
        return self._node.registries()

    def group(self, name: Hashable) -> Group:
        """The process group of that name. Raises as ``Node.group``."""
        return self._node.group(name)

    def groups(self) -> list[Any]:
        """The names of all groups that have members."""
        return self._node.groups()

    def nodes(self) -> list[str]:
        """The names of the nodes that are connected to this node. Empty without a network."""
        return self._node.nodes()

    def discover(self, seconds: float = 0.5) -> list[str]:
        """The names of all other nodes of the network that can be reached now. A network that asks
        them waits so many seconds for the answers.
        """
        return self._wait(partial(self._node.discover, seconds))

    def network(self) -> "NetworkInfo":
        """A snapshot of the traffic with each other node. Raises as ``Node.network``."""
        return self._node.network()

    def drain(self, timeout: float = 30.0) -> list[str]:
        """Take the node out of service, and leave it running; as ``Node.drain``."""
        return self._wait(partial(self._node.drain, timeout))

    @property
    def draining(self) -> bool:
        """Whether :meth:`drain` was called."""
        return self._node.draining

    # -- inspection --------------------------------------------------------------------------------

    def info(self) -> NodeInfo:
        """A snapshot of the node."""
        return self._node.info()

    def processes(self) -> list[PID]:
        """All living processes, oldest first."""
        return self._node.processes()

    def process_info(self, to: Target) -> ProcessInfo:
        """A snapshot of a process. Raises as ``Node.process_info``."""
        return self._node.process_info(to)

    def inspect(self, to: Target, *items: str, timeout: float = 5.0) -> dict[str, str]:
        """The diagnostics of a process. Raises as ``Node.inspect``."""
        return self._wait(partial(self._node.inspect, to, *items, timeout=timeout))

    def metas(self) -> list[Alias]:
        """All living meta-processes, oldest first."""
        return self._node.metas()

    def meta_info(self, alias: Alias) -> MetaInfo:
        """A snapshot of a meta-process. Raises as ``Node.meta_info``."""
        return self._node.meta_info(alias)

    def inspect_meta(self, alias: Alias, *items: str, timeout: float = 5.0) -> dict[str, str]:
        """The diagnostics of a meta-process. Raises as ``Node.inspect_meta``."""
        return self._wait(partial(self._node.inspect_meta, alias, *items, timeout=timeout))

    def tree(self) -> TreeNode:
        """The supervision tree: every process, and every supervised child that is down."""
        return self._node.tree()

    def get_state(self, to: Target, *, timeout: float = 5.0) -> dict[str, object]:
        """The attributes of a behaviour, read between two of its messages. Raises as
        ``Node.get_state``.
        """
        return self._wait(partial(self._node.get_state, to, timeout=timeout))

    def replace_state(
        self,
        to: Target,
        function: Callable[[dict[str, object]], Mapping[str, object]],
        *,
        timeout: float = 5.0,
    ) -> dict[str, object]:
        """Replace the attributes of a behaviour, between two of its messages. Raises as
        ``Node.replace_state``.
        """
        return self._wait(partial(self._node.replace_state, to, function, timeout=timeout))

    def suspend(self, to: Target, *, timeout: float = 5.0) -> bool:
        """Suspend a process: it takes no message until it is resumed. Raises as
        ``Node.suspend``.
        """
        return self._wait(partial(self._node.suspend, to, timeout=timeout))

    def resume(self, to: Target, *, timeout: float = 5.0) -> bool:
        """Resume a suspended process. Raises as ``Node.resume``."""
        return self._wait(partial(self._node.resume, to, timeout=timeout))

    def trace(
        self, to: Target, *, limit: int = 1000, seconds: float = 1.0, **filters: Any
    ) -> list[TraceEntry]:
        """The callbacks of a process during the next ``seconds``. Takes the arguments and raises
        the errors of ``Node.trace``.
        """

        async def collect() -> list[TraceEntry]:
            async with self._node.trace(to, limit=limit, seconds=seconds, **filters) as entries:
                return [entry async for entry in entries]

        return self._wait(collect)

    def statistics(self, to: Target, *, seconds: float = 1.0) -> Statistics:
        """Observe a process for a while; return its activity. Raises as ``Node.statistics``."""
        return self._wait(partial(self._node.statistics, to, seconds=seconds))

    def peek(self, to: Target, *, limit: int = 100, contents: bool = False) -> list[Queued]:
        """The messages queued for a process or meta-process. Raises as ``Node.peek``."""
        return self._node.peek(to, limit=limit, contents=contents)

    def crashes(self, count: int | None = None) -> list[Obituary]:
        """The last processes and meta-processes that failed, newest last."""
        return self._node.crashes(count)

    def ended(self, count: int | None = None) -> list[Obituary]:
        """The last processes and meta-processes that ended, newest last."""
        return self._node.ended(count)

    @overload
    def events(self) -> dict[str, int]: ...
    @overload
    def events(
        self, event: str | EventName, *, max_waiting: int = 1000
    ) -> BlockingStream[Published]: ...
    def events(
        self, event: str | EventName | None = None, *, max_waiting: int = 1000
    ) -> dict[str, int] | BlockingStream[Published]:
        """Subscribe to an event, and iterate over its publications; without an argument, all events
        of this node, each with the number of its subscribers. Raises as ``Node.events``.
        """
        if event is None:
            return self._node.events()
        stream = self._node.events(event, max_waiting=max_waiting)
        return BlockingStream(stream, self._wait, stream.close)

    def event_info(self, event: str | EventName) -> EventInfo:
        """A snapshot of an event, with the losses of each subscriber. Raises as
        ``Node.event_info``.
        """
        return self._node.event_info(event)

    def open_topic(self, name: str, *, buffer: int = 0) -> None:
        """Make an event that all may publish. Raises as ``Node.open_topic``."""
        self._node.open_topic(name, buffer=buffer)

    def close_topic(self, name: str) -> None:
        """Remove a topic of the node. Raises as ``Node.close_topic``."""
        self._node.close_topic(name)

    def publish(self, event: str | EventName, message: object, *, token: Ref | None = None) -> int:
        """Publish a message to every subscriber of an event. Raises as ``Node.publish``."""
        return self._node.publish(event, message, token=token)

    @overload
    def call_stream(
        self,
        to: Target,
        request: Request[PartStream[R]],
        *,
        timeout: float | None = 5.0,
        credit: int | None = None,
    ) -> BlockingStream[R]: ...
    @overload
    def call_stream(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        credit: int | None = None,
    ) -> BlockingStream[Any]: ...
    def call_stream(
        self,
        to: Target,
        request: Any,
        *,
        timeout: float | None = 5.0,
        credit: int | None = None,
    ) -> BlockingStream[Any]:
        """Call a process that answers in parts, and iterate over them. Raises as
        ``Node.call_stream``.
        """
        stream = self._node.call_stream(to, request, timeout=timeout, credit=credit)
        return BlockingStream(stream, self._wait, lambda: self._wait(stream.aclose))

    def dead_letters(self, count: int | None = None) -> list[DeadLetter]:
        """The most recent undeliverable messages, newest last."""
        return self._node.dead_letters(count)

    def run_async(self, function: Callable[[Node], Awaitable[T]]) -> T:
        """Run ``await function(node)`` on the node's loop, with the node whose methods are awaited;
        return its result: ``node.run_async(lambda node: node.at("b@site").ping())``.
        """

        async def call() -> T:
            return await function(self._node)

        return self._wait(call)

    # -- waiting -----------------------------------------------------------------------------------

    def _wait(self, function: Callable[[], Awaitable[T]]) -> T:
        bridge = self._node._router.bridge
        bridge.refuse_on_loop("a blocking verb", "`await` and the node's own verb")
        parker: Parker[outcome.Outcome[T]] = Parker()
        scope = trio.CancelScope()

        async def job() -> None:
            with scope:
                parker.settle(await outcome.acapture(function))
            # Has an effect only without a result: if the waiting thread cancelled the scope, it no
            # longer waits; if the node ended, it gets this error.
            parker.settle(outcome.Error(NodeStoppedError(self.name)))

        def start() -> None:
            contextvars.Context().run(lambda: self._node._kernel.start(job, name="for a thread"))

        bridge.post(start)
        try:
            parker.wait(None)
        except BaseException:
            bridge.post(scope.cancel)
            raise
        assert parker.value is not None
        return parker.value.unwrap()
