"""Table of the verbs of another node, as ``node.at("b@site")`` returns it, and its facades."""

from typing import Final

from ..network.remote_node import RemoteNode
from .facade import Asyncio, Blocking, Facade
from .handles import AsyncioService, BlockingService
from .rows import handle, value, verb

__all__ = ["AsyncioRemoteNode", "BlockingRemoteNode"]


class RemoteNodeVerbs(Facade):
    """The verbs of a :class:`RemoteNode`."""

    _variable = "node.at(…)"

    name: Final = value(RemoteNode, lambda remote: remote.name)
    ping: Final = verb(RemoteNode.ping)
    whereis: Final = verb(RemoteNode.whereis)
    service: Final = handle(RemoteNode.service, blocking=BlockingService, asyncio=AsyncioService)
    wait_up: Final = verb(RemoteNode.wait_up)
    wait_down: Final = verb(RemoteNode.wait_down)
    spawn: Final = verb(RemoteNode.spawn)
    info: Final = verb(RemoteNode.info)
    processes: Final = verb(RemoteNode.processes)
    process_info: Final = verb(RemoteNode.process_info)
    inspect: Final = verb(RemoteNode.inspect)
    metas: Final = verb(RemoteNode.metas)
    meta_info: Final = verb(RemoteNode.meta_info)
    inspect_meta: Final = verb(RemoteNode.inspect_meta)
    tree: Final = verb(RemoteNode.tree)
    crashes: Final = verb(RemoteNode.crashes)
    ended: Final = verb(RemoteNode.ended)
    dead_letters: Final = verb(RemoteNode.dead_letters)
    events: Final = verb(RemoteNode.events)
    applications: Final = verb(RemoteNode.applications)
    network: Final = verb(RemoteNode.network)


class BlockingRemoteNode(RemoteNodeVerbs, Blocking):
    """A :class:`RemoteNode` without ``await``, for every thread except the node's own."""

    is_connected: Final = value(RemoteNode, lambda remote: remote.is_connected)


class AsyncioRemoteNode(RemoteNodeVerbs, Asyncio):
    """A :class:`RemoteNode` whose verbs are awaited on asyncio's loop."""
