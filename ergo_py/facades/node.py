"""`NodeVerbs`: the table of a node's verbs, for both kinds of facades. Each verb is defined in
`Node`; a row makes it a verb of `ergo_py.blocking` and of `ergo_py.aio`.

The verbs with overloads, such as ``call``, have a row in each of the two classes.
"""

from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .._core.inspection.trace import TraceEntry
from .._core.kernel import Kernel
from .._core.messaging.requests import ask as begin_call
from .._core.verbs.behaviour import Behaviour
from .._core.verbs.common import check_priority, check_timeout
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.ids import Called, Target
from .._core.vocabulary.messages import Request, Untyped
from ..node import Node
from .facade import Facade
from .handles import (
    AsyncioEntity,
    AsyncioGroup,
    AsyncioPool,
    AsyncioRegistry,
    AsyncioService,
    AsyncioSupervisor,
    AsyncioTimer,
    BlockingEntity,
    BlockingPool,
    BlockingService,
    BlockingSupervisor,
)
from .rows import direct, handle, value, verb

if TYPE_CHECKING:
    from ..network.remote_node import RemoteNode
    from .remote_node import AsyncioRemoteNode, BlockingRemoteNode

__all__ = ["NodeVerbs", "ask", "run", "trace"]

Callee = TypeVar("Callee")
R = TypeVar("R")
T = TypeVar("T")


@overload
async def run(node: Node, function: Callable[[Node], Awaitable[T]]) -> T: ...
@overload
async def run(node: Node, function: Callable[[Node], T]) -> T: ...
async def run(node: Node, function: Callable[[Node], Any]) -> Any:
    """Run a plain or async function on the node's loop, with the node whose methods are awaited
    there; return its result. It reaches everything that has no verb here:
    ``node.run(lambda node: Cluster(node).whereis("total"))``.
    """
    result = function(node)
    return await result if isinstance(result, Awaitable) else result


@overload
def ask(
    node: Node,
    to: Target,
    request: Untyped | None,
    *,
    timeout: float | None = 5.0,
    priority: Priority = Priority.NORMAL,
) -> "Future[Any]": ...
@overload
def ask(
    node: Node,
    to: Called[Callee],
    request: Request[R, Callee],
    *,
    timeout: float | None = 5.0,
    priority: Priority = Priority.NORMAL,
) -> "Future[R]": ...
def ask(
    node: Node,
    to: Target,
    request: object,
    *,
    timeout: float | None = 5.0,
    priority: Priority = Priority.NORMAL,
) -> "Future[Any]":
    """Call a process without waiting: the answer, or the error that ``call`` would raise, comes as
    a ``concurrent.futures.Future``. To cancel the future abandons the call.
    """
    check_timeout(timeout)
    check_priority(priority)
    kernel = node._kernel
    return begin_call(kernel.calls, kernel.router, kernel.pid, to, request, timeout, priority)


async def trace(
    node: Node,
    to: Target,
    *,
    types: Collection[type | str] = (),
    callbacks: Collection[str] = (),
    contents: bool = False,
    limit: int = 1000,
    seconds: float = 1.0,
) -> list[TraceEntry]:
    """The callbacks and messages of a process during the next ``seconds``, at most ``limit``. Takes
    the arguments and raises the errors of ``Node.trace``.
    """
    async with node.trace(
        to, types=types, callbacks=callbacks, contents=contents, limit=limit, seconds=seconds
    ) as entries:
        return [entry async for entry in entries]


def _blocking_remote(remote: "RemoteNode", kernel: Kernel) -> "BlockingRemoteNode":
    from .remote_node import BlockingRemoteNode  # noqa: PLC0415 - few nodes have a network

    return BlockingRemoteNode(remote, kernel)


def _asyncio_remote(remote: "RemoteNode", kernel: Kernel) -> "AsyncioRemoteNode":
    from .remote_node import AsyncioRemoteNode  # noqa: PLC0415 - few nodes have a network

    return AsyncioRemoteNode(remote, kernel)


class NodeVerbs(Facade):
    """The verbs of a node."""

    _variable = "node"
    _subject: Node

    def __init__(self, node: Node) -> None:
        super().__init__(node, node._kernel)

    def _unknown(self, name: str) -> str:
        if name.startswith("_"):
            return super()._unknown(name)
        if name == "spawn_meta" or (hasattr(Behaviour, name) and not hasattr(Node, name)):
            return (
                f"{type(self).__name__} has no {name!r}, which belongs to a process: write "
                f"`self.{name}(…)` in a callback of an actor"
            )
        if not hasattr(self._subject, name):
            return super()._unknown(name)
        called = "(…)" if callable(getattr(self._subject, name)) else ""
        before = "await " if self._kind == "asyncio" else ""
        return (
            f"{type(self).__name__} has no {name!r}; run a function on the node's loop: write "
            f"`{before}node.run(lambda node: node.{name}{called})`"
        )

    name = value(Node, lambda node: node.name)
    pid = value(Node, lambda node: node.pid)
    env = value(Node, lambda node: node.env)
    log = value(Node, lambda node: node.log)
    draining = value(Node, lambda node: node.draining)
    stopping = value(Node, lambda node: node.stopping)

    # -- processes ---------------------------------------------------------------------------------

    spawn = verb(Node.spawn)
    send_exit = verb(Node.send_exit)
    kill = verb(Node.kill)
    wait_ended = verb(Node.wait_ended)

    # -- messages ----------------------------------------------------------------------------------

    send = direct(Node.send)
    send_wait = verb(Node.send_wait)
    send_after = handle(Node.send_after, asyncio=AsyncioTimer)
    send_every = handle(Node.send_every, asyncio=AsyncioTimer)
    reply = direct(Node.reply)
    reply_error = direct(Node.reply_error)

    # -- supervision and applications --------------------------------------------------------------

    supervise = handle(Node.supervise, blocking=BlockingSupervisor, asyncio=AsyncioSupervisor)
    supervisor = handle(Node.supervisor, blocking=BlockingSupervisor, asyncio=AsyncioSupervisor)
    pool = handle(Node.pool, blocking=BlockingPool, asyncio=AsyncioPool)
    service = handle(Node.service, blocking=BlockingService, asyncio=AsyncioService)
    entity = handle(Node.entity, blocking=BlockingEntity, asyncio=AsyncioEntity)
    tree = verb(Node.tree)
    load_applications = verb(Node.load_applications)
    start_applications = verb(Node.start_applications)
    stop_applications = verb(Node.stop_applications)
    applications = verb(Node.applications)

    # -- names, groups and other nodes -------------------------------------------------------------

    register = verb(Node.register)
    unregister = verb(Node.unregister)
    whereis = verb(Node.whereis)
    registry = handle(Node.registry, asyncio=AsyncioRegistry)
    registries = verb(Node.registries)
    group = handle(Node.group, asyncio=AsyncioGroup)
    groups = verb(Node.groups)
    at = direct(Node.at, blocking=_blocking_remote, asyncio=_asyncio_remote)
    nodes = verb(Node.nodes)
    discover = verb(Node.discover)
    network = verb(Node.network)

    # -- events ------------------------------------------------------------------------------------

    open_topic = verb(Node.open_topic)
    close_topic = verb(Node.close_topic)
    publish = verb(Node.publish)
    event_info = verb(Node.event_info)

    # -- inspection --------------------------------------------------------------------------------

    info = verb(Node.info)
    processes = verb(Node.processes)
    process_info = verb(Node.process_info)
    inspect = verb(Node.inspect)
    metas = verb(Node.metas)
    meta_info = verb(Node.meta_info)
    inspect_meta = verb(Node.inspect_meta)
    get_state = verb(Node.get_state)
    replace_state = verb(Node.replace_state)
    suspend = verb(Node.suspend)
    resume = verb(Node.resume)
    trace = verb(trace)
    statistics = verb(Node.statistics)
    peek = verb(Node.peek)
    crashes = verb(Node.crashes)
    ended = verb(Node.ended)
    dead_letters = verb(Node.dead_letters)
    resend = verb(Node.resend)
    alive = verb(Node.alive)
    add_logger = verb(Node.add_logger)
    remove_logger = verb(Node.remove_logger)

    # -- shutdown ----------------------------------------------------------------------------------

    drain = verb(Node.drain)
    reload = verb(Node.reload)
    stop = verb(Node.stop)
    stop_soon = direct(Node.stop_soon)
