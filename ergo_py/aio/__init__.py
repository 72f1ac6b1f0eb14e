"""The node for asyncio code: FastAPI, aiohttp, a notebook. The node's loop runs in its own thread.

::

    from ergo_py.aio import open_node

    async with open_node("demo@localhost") as node:
        counter = await node.spawn(Counter, 5)
        total = await node.call(counter, Total())
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use, show_under
from .context import handle, open_node
from .node import AsyncioNode

__all__ = [
    "AsyncioNode",
    "handle",
    "open_node",
]

show_under(__name__, __all__, globals())

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(__name__, {})
