"""`NodeVerbs`: the table of a node's verbs, for both kinds of facades. Each verb is defined in
`Node`; a row makes it a verb of `ergo_py.blocking` and of `ergo_py.aio`.

The verbs with overloads, such as ``call``, have a row in each of the two classes.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from .._core.inspection.trace import TraceEntry
from .._core.kernel import Kernel
from .._core.messaging.requests import ask as begin_call
from .._core.verbs.behaviour import Behaviour
from .._core.verbs.common import check_priority, check_timeout
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import BadInputError, ProcessUnknownError
from .._core.vocabulary.ids import Called, Target
from .._core.vocabulary.messages import Request, Untyped
from ..node import Node
from ..supervision.handle import SupervisorHandle
from ..tasks.handle import Task
from .facade import Facade
from .handles import (
    AsyncioGroup,
    AsyncioPool,
    AsyncioRegistry,
    AsyncioService,
    AsyncioSupervisor,
    AsyncioTimer,
    BlockingPool,
    BlockingService,
    BlockingSupervisor,
)
from .rows import direct, handle, value, verb

if TYPE_CHECKING:
    from ..network.remote_node import RemoteNode
    from .remote_node import AsyncioRemoteNode, BlockingRemoteNode

__all__ = ["NodeVerbs", "ask", "node_of", "run", "trace"]

_OF_ASYNCIO: Final = {
    "ask": "write `asyncio.create_task(node.call(…))`",
    "close": "write `await node.stop()`, or leave the block of `async with open_node(…)`",
    "run_main": "a program of asyncio has the main thread: write `asyncio.run(main())`",
}
"""What asyncio code writes instead of verbs that only synchronous code has."""

A = TypeVar("A", bound=Awaitable[object])
Callee = TypeVar("Callee")
R = TypeVar("R")
T = TypeVar("T")


# Not a single overload for `Awaitable[T]`: mypy gives up (`Any`) at a lambda that fits into several
# overloads, unless all of them see the same type in it.
@overload
async def run(node: Node, function: Callable[[Node], Coroutine[Any, Any, T]]) -> T: ...
@overload
async def run(node: Node, function: Callable[[Node], Task[T]]) -> T: ...
@overload
async def run(node: Node, function: Callable[[Node], A]) -> Any: ...
@overload
async def run(node: Node, function: Callable[[Node], T]) -> T: ...
async def run(node: Node, function: Callable[[Node], object]) -> object:
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


def node_of(given: "Node | NodeVerbs") -> Node:
    """The node of an argument of ``handle``.

    Raises:
        BadInputError: it is no node.
    """
    if isinstance(given, NodeVerbs):
        return given._subject
    if not isinstance(given, Node):
        raise BadInputError(
            "handle(node)",
            given,
            "an open node, as `as node` of `open_node(…)` of ergo_py, ergo_py.aio or "
            "ergo_py.blocking names it",
        )
    return given


def _end(node: Node, supervisor: SupervisorHandle) -> None:
    with suppress(ProcessUnknownError):  # it has ended meanwhile
        node.send_exit(supervisor.pid)


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
        if name == "exit_report":
            return (
                f"{type(self).__name__} has no 'exit_report', which is known after the end of the "
                "node: write `opened = open_node(…)`, and `opened.exit_report` after its block"
            )
        if name == "call_from_thread":
            return super()._unknown(name) + ": `call` does it"
        if self._kind == "asyncio" and name in _OF_ASYNCIO:
            return f"{type(self).__name__} has no {name!r}: {_OF_ASYNCIO[name]}"
        if not hasattr(self._subject, name):
            return super()._unknown(name)
        called = "(…)" if callable(getattr(self._subject, name)) else ""
        before = "await " if self._kind == "asyncio" else ""
        return (
            f"{type(self).__name__} has no {name!r}; run a function on the node's loop: write "
            f"`{before}node.run(lambda node: node.{name}{called})`"
        )

    name: Final = value(Node, lambda node: node.name)
    pid: Final = value(Node, lambda node: node.pid)
    env: Final = value(Node, lambda node: node.env)
    log: Final = value(Node, lambda node: node.log)
    draining: Final = value(Node, lambda node: node.draining)
    stopping: Final = value(Node, lambda node: node.stopping)

    # -- processes ---------------------------------------------------------------------------------

    spawn: Final = verb(Node.spawn, Node.send_exit)
    send_exit: Final = verb(Node.send_exit)
    kill: Final = verb(Node.kill)
    wait_ended: Final = verb(Node.wait_ended)

    # -- messages ----------------------------------------------------------------------------------

    send: Final = direct(Node.send)
    send_wait: Final = verb(Node.send_wait)
    send_after: Final = handle(Node.send_after, asyncio=AsyncioTimer)
    send_every: Final = handle(Node.send_every, asyncio=AsyncioTimer)
    reply: Final = direct(Node.reply)
    reply_error: Final = direct(Node.reply_error)

    # -- supervision and applications --------------------------------------------------------------

    supervise: Final = handle(
        Node.supervise, _end, blocking=BlockingSupervisor, asyncio=AsyncioSupervisor
    )
    supervisor: Final = handle(
        Node.supervisor, blocking=BlockingSupervisor, asyncio=AsyncioSupervisor
    )
    pool: Final = handle(Node.pool, blocking=BlockingPool, asyncio=AsyncioPool)
    service: Final = handle(Node.service, blocking=BlockingService, asyncio=AsyncioService)
    tree: Final = verb(Node.tree)
    load_applications: Final = verb(Node.load_applications)
    start_applications: Final = verb(Node.start_applications)
    stop_applications: Final = verb(Node.stop_applications)
    applications: Final = verb(Node.applications)

    # -- names, groups and other nodes -------------------------------------------------------------

    register: Final = verb(Node.register)
    unregister: Final = verb(Node.unregister)
    whereis: Final = verb(Node.whereis)
    registry: Final = handle(Node.registry, asyncio=AsyncioRegistry)
    registries: Final = verb(Node.registries)
    group: Final = handle(Node.group, asyncio=AsyncioGroup)
    groups: Final = verb(Node.groups)
    at: Final = direct(Node.at, blocking=_blocking_remote, asyncio=_asyncio_remote)
    nodes: Final = verb(Node.nodes)
    discover: Final = verb(Node.discover)
    network: Final = verb(Node.network)

    # -- events ------------------------------------------------------------------------------------

    open_topic: Final = verb(Node.open_topic)
    close_topic: Final = verb(Node.close_topic)
    publish: Final = verb(Node.publish)
    event_info: Final = verb(Node.event_info)

    # -- inspection --------------------------------------------------------------------------------

    info: Final = verb(Node.info)
    processes: Final = verb(Node.processes)
    process_info: Final = verb(Node.process_info)
    inspect: Final = verb(Node.inspect)
    metas: Final = verb(Node.metas)
    meta_info: Final = verb(Node.meta_info)
    inspect_meta: Final = verb(Node.inspect_meta)
    get_state: Final = verb(Node.get_state)
    replace_state: Final = verb(Node.replace_state)
    suspend: Final = verb(Node.suspend)
    resume: Final = verb(Node.resume)
    trace: Final = verb(trace)
    statistics: Final = verb(Node.statistics)
    peek: Final = verb(Node.peek)
    crashes: Final = verb(Node.crashes)
    ended: Final = verb(Node.ended)
    dead_letters: Final = verb(Node.dead_letters)
    resend: Final = verb(Node.resend)
    alive: Final = verb(Node.alive)
    add_logger: Final = verb(Node.add_logger)
    remove_logger: Final = verb(Node.remove_logger)

    # -- shutdown ----------------------------------------------------------------------------------

    drain: Final = verb(Node.drain)
    reload: Final = verb(Node.reload)
    stop: Final = verb(Node.stop)
    stop_soon: Final = direct(Node.stop_soon)
