"""The node for asyncio code: FastAPI, aiohttp, a notebook. The node's loop runs in its own thread.

::

    from ergo_py.aio import open_node

    async with open_node("demo@localhost") as node:
        counter = await node.spawn(Counter, 5)
        total = await node.call(counter, Total())
"""

from .._core.vocabulary.public_names import show_under
from ..facades.handles import (
    AsyncioGroup,
    AsyncioPool,
    AsyncioRegistry,
    AsyncioService,
    AsyncioSupervisor,
    AsyncioTimer,
)
from ..facades.streams import AsyncioStream
from .context import OpenNode, handle, open_node
from .node import AsyncioNode

__all__ = [
    "AsyncioGroup",
    "AsyncioNode",
    "AsyncioPool",
    "AsyncioRegistry",
    "AsyncioService",
    "AsyncioStream",
    "AsyncioSupervisor",
    "AsyncioTimer",
    "OpenNode",
    "handle",
    "open_node",
]

show_under(__name__, __all__, globals())
