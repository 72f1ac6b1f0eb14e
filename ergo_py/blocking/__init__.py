"""The node for synchronous code: a prompt, a notebook, a web handler. The loop runs in its own
thread.

::

    from ergo_py.blocking import open_node

    node = open_node("demo@localhost")
    counter = node.spawn(Counter, 5)
    node.call(counter, Total())
    node.close()
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use, show_under
from .loop_thread import handle, open_node
from .node import BlockingNode

__all__ = [
    "BlockingNode",
    "handle",
    "open_node",
]

show_under(__name__, __all__, globals())

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(__name__, {})
