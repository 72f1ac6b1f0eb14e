"""`BlockingNode`: a node's methods for synchronous code. Each runs on the node's loop while the
calling thread waits.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, overload
from warnings import warn

from .._core.vocabulary.ids import EventName
from ..facades.facade import Blocking
from ..facades.handles import blocking_entity
from ..facades.node import NodeVerbs, ask, run
from ..facades.rows import blocked, plain
from ..facades.streams import BlockingEvents, blocking_map, blocking_stream
from ..node import Node
from .main_thread import run_main
from .tasks import blocking_task

__all__ = ["BlockingNode"]

T = TypeVar("T")


@overload
def events(node: Node) -> dict[str, int]: ...
@overload
def events(
    node: Node, event: str | EventName, *, max_waiting: int = 1000, follow: bool = False
) -> BlockingEvents: ...
def events(
    node: Node,
    event: str | EventName | None = None,
    *,
    max_waiting: int = 1000,
    follow: bool = False,
) -> dict[str, int] | BlockingEvents:
    """Subscribe to an event, and iterate over its publications; without an argument, return all
    events of this node, each with the number of its subscribers. Raises as ``Node.events``.
    """
    if event is None:
        return node.events()
    return BlockingEvents(node.events(event, max_waiting=max_waiting, follow=follow), node._kernel)


class BlockingNode(NodeVerbs, Blocking):
    """A node's methods without ``await``, for every thread except the node's own. Errors are raised
    in the calling thread; Ctrl-C ends the wait, and not the node. :meth:`run` reaches everything
    else.
    """

    call: Final = plain(Node.call_from_thread)
    ask: Final = plain(ask)
    call_stream: Final = blocking_stream(Node.call_stream)
    entity: Final = blocking_entity(Node.entity)
    events: Final = plain(events)
    run_task: Final = blocking_task(Node.run_task)
    map_stream: Final = blocking_map(Node.map_stream)
    run: Final = blocked(run)
    run_main: Final = plain(run_main)

    def run_async(self, function: Callable[[Node], Awaitable[T]]) -> T:
        """Deprecated name of :meth:`run`, which takes plain functions, too."""
        warn(
            "node.run_async(function) is node.run(function) now; version 0.2 removes the old name",
            DeprecationWarning,
            stacklevel=2,
        )
        result: T = self.run(function)
        return result
