"""`open_node`: a node for asyncio code, whose loop runs in its own thread."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, TypeVar, Unpack

import outcome

from .._core.node_lifecycle import NodeKeywords
from .._core.runtime.bridge import Thread
from .._core.vocabulary.errors import NotAllowedError
from .._core.vocabulary.info import ExitReport
from ..blocking.loop_thread import OwnedNode
from ..blocking.loop_thread import open_node as open_blocking_node
from ..facades.node import NodeVerbs, node_of
from ..node import Node
from .node import AsyncioNode

__all__ = ["OpenNode", "handle", "open_node"]

T = TypeVar("T")


class OpenNode:
    """A node that runs inside ``async with``, in a thread of its own. Leaving the block stops all
    its processes, and waits for the thread.
    """

    def __init__(self, name: str, options: NodeKeywords) -> None:
        self._name, self._options = name, options
        self._owned: OwnedNode | None = None

    def __repr__(self) -> str:
        return f"<open_node({self._name!r}), to be entered: `async with open_node(…) as node:`>"

    if not TYPE_CHECKING:  # type checkers report this themselves

        def __enter__(self) -> NoReturn:
            raise NotAllowedError(
                "a node is up while entered: write `async with open_node(...) as node:`; or, in "
                "code that is not async, `from ergo_py.blocking import open_node`"
            )

        __exit__ = __await__ = __enter__

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                # Python itself probes for special methods.
                raise AttributeError(name)
            raise AttributeError(
                f"open_node(...).{name}: open_node(...) is not a node yet; write `async with "
                f"open_node(...) as node:`, and `node.{name}` inside; at a prompt, `opened = "
                "open_node(...)` and `node = await opened.__aenter__()`",
                name=name,
                obj=None,
            )

    async def __aenter__(self) -> AsyncioNode:
        if self._owned is not None:
            raise NotAllowedError(
                "this open_node(...) was entered before; call open_node again for another node"
            )
        opening = partial(open_blocking_node, self._name, **self._options)
        try:
            self._owned = await _to_its_end(opening, self._keep)
        except asyncio.CancelledError:
            await self._close()
            raise
        return AsyncioNode(self._owned._subject)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    @property
    def exit_report(self) -> ExitReport | None:
        """How the node came down; None while it is up."""
        return None if self._owned is None else self._owned.exit_report

    def _keep(self, owned: OwnedNode) -> None:
        self._owned = owned

    async def _close(self) -> None:
        if self._owned is not None:
            await _to_its_end(self._owned.close, lambda _: None)


async def _to_its_end(work: Callable[[], T], keep: Callable[[T], object]) -> T:
    """Run a function that must not be interrupted. A cancellation is raised afterwards.

    The function has a thread of its own: all threads of asyncio's executor may wait for the node.
    The future belongs to no task: at its end asyncio cancels all tasks, and a SystemExit of another
    task would end the program before the block has ended.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[outcome.Outcome[T]] = loop.create_future()

    def run() -> None:
        result = outcome.capture(work)
        with suppress(RuntimeError):  # asyncio's loop is closed
            loop.call_soon_threadsafe(future.set_result, result)

    thread = Thread(target=run, name="ergo-aio", daemon=True)
    thread.start()
    cancellation: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            cancellation = error
    thread.join()
    result = future.result().unwrap()
    keep(result)
    if cancellation is not None:
        raise cancellation
    return result


def open_node(name: str = "node@localhost", **options: Unpack[NodeKeywords]) -> OpenNode:
    """Open a node in a thread of its own, for ``async with`` in an asyncio program. The options are
    those of :func:`ergo_py.open_node`.

    Raises:
        BadInputError: an option is invalid; raised when the block is entered.
    """
    return OpenNode(name, options)


def handle(node: Node | NodeVerbs) -> AsyncioNode:
    """The methods of a node in a running program of trio, or in a thread of its own, for code on an
    asyncio loop in another thread, such as the coroutines of ``AsyncioCalls``.
    """
    return AsyncioNode(node_of(node))
