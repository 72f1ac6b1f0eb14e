"""The node for asyncio code: FastAPI, aiohttp, a notebook. The node's loop runs in its own thread.

::

    from ergo_py.aio import open_node

    async with open_node("demo@localhost") as node:
        counter = await node.spawn(Counter, 5)
        total = await node.call(counter, Total())
"""

from .._core.vocabulary.public_names import show_under
from .context import OpenNode, handle, open_node
from .handles import AsyncioService, AsyncioStream
from .node import AsyncioNode

__all__ = ["AsyncioNode", "AsyncioService", "AsyncioStream", "OpenNode", "handle", "open_node"]

show_under(__name__, __all__, globals())
