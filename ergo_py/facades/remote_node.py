"""Table of the verbs of another node, as ``node.at("b@site")`` returns it, and its facades."""

from ..network.remote_node import RemoteNode
from .facade import Asyncio, Blocking, Facade
from .handles import AsyncioService, BlockingService
from .rows import handle, value, verb

__all__ = ["AsyncioRemoteNode", "BlockingRemoteNode"]


class RemoteNodeVerbs(Facade):
    """The verbs of a :class:`RemoteNode`."""

    _variable = "node.at(…)"

    name = value(RemoteNode, lambda remote: remote.name)
    ping = verb(RemoteNode.ping)
    whereis = verb(RemoteNode.whereis)
    service = handle(RemoteNode.service, blocking=BlockingService, asyncio=AsyncioService)
    wait_up = verb(RemoteNode.wait_up)
    wait_down = verb(RemoteNode.wait_down)
    spawn = verb(RemoteNode.spawn)
    info = verb(RemoteNode.info)
    processes = verb(RemoteNode.processes)
    process_info = verb(RemoteNode.process_info)
    inspect = verb(RemoteNode.inspect)
    metas = verb(RemoteNode.metas)
    meta_info = verb(RemoteNode.meta_info)
    inspect_meta = verb(RemoteNode.inspect_meta)
    tree = verb(RemoteNode.tree)
    crashes = verb(RemoteNode.crashes)
    ended = verb(RemoteNode.ended)
    dead_letters = verb(RemoteNode.dead_letters)
    events = verb(RemoteNode.events)
    applications = verb(RemoteNode.applications)
    network = verb(RemoteNode.network)


class BlockingRemoteNode(RemoteNodeVerbs, Blocking):
    """A :class:`RemoteNode` without ``await``, for every thread except the node's own."""

    is_connected = value(RemoteNode, lambda remote: remote.is_connected)


class AsyncioRemoteNode(RemoteNodeVerbs, Asyncio):
    """A :class:`RemoteNode` whose verbs are awaited on asyncio's loop."""
