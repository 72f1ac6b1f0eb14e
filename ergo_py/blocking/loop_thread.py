"""`OwnedNode`: a node for synchronous code, whose loop runs in its own thread.

::

    from ergo_py.blocking import open_node

    node = open_node("demo@localhost")
    counter = node.spawn(Counter, 5)
    node.call(counter, Total())
    node.close()
"""

import atexit
import os
import threading
from contextlib import suppress
from importlib import import_module
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, Unpack
from weakref import WeakSet

import outcome
import trio

from .._core.node_lifecycle import NodeKeywords
from .._core.runtime.bridge import Parker, wait_in_slices
from .._core.runtime.dispatcher_threads import job_here
from .._core.runtime.thread_parent import is_thread_of
from .._core.vocabulary.errors import NodeStoppedError, NotAllowedError
from .._core.vocabulary.info import ExitReport
from ..facades.node import NodeVerbs, node_of
from ..node import Node
from ..node import open_node as open_async_node
from .node import BlockingNode

__all__ = ["BlockingNode", "OwnedNode", "handle", "open_node"]

_AT_EXIT = 5.0
"""Seconds that an unclosed node may take to stop when the interpreter exits."""


class OwnedNode(BlockingNode):
    """A node together with the thread its loop runs in. Close it, or use it with ``with``."""

    def __init__(self, name: str, options: NodeKeywords) -> None:
        self._up: Parker[outcome.Outcome[Node]] = Parker()
        self._over = threading.Event()
        self._is_unwanted = False
        self._exit: SystemExit | None = None
        self._is_forgotten = True
        """Whether the program has not closed the node."""
        self._thread = threading.Thread(
            target=self._run, args=(name, options), name=f"ergo-loop {name}", daemon=True
        )
        try:
            self._thread.start()
            self._up.wait(None)
            assert self._up.value is not None
            if isinstance(self._up.value, outcome.Error):
                self._thread.join()
            super().__init__(self._up.value.unwrap())
            _open.add(self)
        except BaseException:
            # Ctrl-C: the caller gets no node to close. The order avoids a race: the thread settles
            # `_up` and then reads the flag; here the flag is set before `_up` is read.
            self._is_unwanted = True
            if isinstance(self._up.value, outcome.Value):
                self._up.value.value.stop_soon()
            raise

    def __enter__(self) -> "OwnedNode":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    if not TYPE_CHECKING:  # type checkers report this themselves

        def __aenter__(self) -> NoReturn:
            self._ask_to_stop()
            raise NotAllowedError(
                "the verbs of this node block: write `with open_node(...) as node:`, without "
                "`async` and `await`; or, on asyncio's loop, `from ergo_py.aio import open_node`"
            )

        __aexit__ = __aenter__

    def close(self, timeout: float | None = None) -> ExitReport | None:
        """Stop the node and end its thread; return its exit report, or None if that took longer
        than ``timeout``.

        ``SystemExit`` of a callback, which stops the node, is raised here: it is meant for the
        program. Closing again has no effect.

        Raises:
            NotAllowedError: this is the thread of the loop or of a callback, for which the node
                would wait: write ``node.stop_soon()`` there.
        """
        if not self._over.is_set():
            self._refuse_own_threads()
        self._is_forgotten = False
        self._ask_to_stop()
        if not wait_in_slices(self._is_over, timeout):
            return None
        self._thread.join()
        _open.discard(self)
        exit, self._exit = self._exit, None
        if exit is not None:
            raise exit
        return self._subject.exit_report

    def _refuse_own_threads(self) -> None:
        bridge = self._kernel.router.bridge
        bridge.refuse_on_loop("close()", "`node.stop_soon()`")
        if job_here(bridge) is not None or is_thread_of(bridge):
            raise NotAllowedError(
                "close() would wait for the callback that calls it; write `node.stop_soon()` "
                "instead"
            )

    def _ask_to_stop(self) -> None:
        try:
            self._subject.stop_soon()
        except NodeStoppedError:  # already stopped
            pass

    def _is_over(self, seconds: float) -> bool:
        # Not `Thread.join`, which takes a thread for ended after Ctrl-C has interrupted it once.
        return self._over.wait(None if seconds < 0 else seconds)

    def _forked(self) -> None:
        """Mark the node as over in a forked child, which has no loop thread. Replace the event: its
        lock may have been held during the fork.
        """
        self._over = threading.Event()
        self._over.set()

    @property
    def exit_report(self) -> ExitReport | None:
        """How the node came down; None while it is up."""
        return self._subject.exit_report

    def _run(self, name: str, options: NodeKeywords) -> None:
        async def main() -> None:
            try:
                context = open_async_node(name, **options)
                node = await context.__aenter__()
            except BaseException as error:
                self._up.settle(outcome.Error(error))
                return
            self._up.settle(outcome.Value(node))
            reason: BaseException | None = None
            try:
                if not self._is_unwanted:
                    await trio.sleep_forever()
            except trio.Cancelled as cancelled:
                # Asked to stop: the node's own scope absorbs this when it exits.
                reason = cancelled
            await context.__aexit__(type(reason) if reason is not None else None, reason, None)

        try:
            trio.run(main)
        except SystemExit as error:
            self._exit = error  # for the thread that closes the node: it would only end this one
        finally:
            self._over.set()


_open: Final[WeakSet[OwnedNode]] = WeakSet()
"""The nodes that are not down, also after a close that took longer than its time limit."""


def _close_forgotten() -> None:
    """At interpreter exit: stop all unclosed nodes gracefully, within a few seconds. Their daemon
    threads would not keep the interpreter alive.
    """
    forgotten = [node for node in tuple(_open) if node._is_forgotten]
    for node in forgotten:
        node._ask_to_stop()
    end = monotonic() + _AT_EXIT
    for node in forgotten:
        with suppress(SystemExit):  # the program exits already
            node.close(max(0.0, end - monotonic()))


def _mark_over_in_forked_child() -> None:
    for node in tuple(_open):
        node._forked()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_over_in_forked_child)

# Run before Python joins the non-daemon threads, which is before atexit: such a thread may wait for
# a node, and would wait forever. Pool threads are joined in the same way. The last function
# registered runs first, so import their module before.
import_module("concurrent.futures.thread")
getattr(threading, "_register_atexit", atexit.register)(_close_forgotten)


def open_node(name: str = "node@localhost", **options: Unpack[NodeKeywords]) -> OwnedNode:
    """Open a node whose loop runs in a background thread. The options are those of
    :func:`ergo_py.open_node`.

    Raises:
        BadInputError: an option is invalid.
    """
    return OwnedNode(name, options)


def handle(node: Node | NodeVerbs) -> BlockingNode:
    """The blocking methods of a node in a running program of trio or of asyncio, for that program's
    other threads, such as those of plain endpoints in FastAPI.
    """
    return BlockingNode(node_of(node))
