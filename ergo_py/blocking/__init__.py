"""The node for synchronous code: a prompt, a notebook, a web handler. The loop runs in its own
thread.

::

    from ergo_py.blocking import open_node

    node = open_node("demo@localhost")
    counter = node.spawn(Counter, 5)
    node.call(counter, Total())
    node.close()
"""

from .._core.vocabulary.public_names import show_under
from ..facades.handles import BlockingPool, BlockingService, BlockingSupervisor
from ..facades.streams import BlockingStream
from .loop_thread import OwnedNode, handle, open_node
from .node import BlockingNode
from .tasks import BlockingTask

__all__ = [
    "BlockingNode",
    "BlockingPool",
    "BlockingService",
    "BlockingStream",
    "BlockingSupervisor",
    "BlockingTask",
    "OwnedNode",
    "handle",
    "open_node",
]

show_under(__name__, __all__, globals())
