"""`run_main`: the main thread runs the callbacks of ``Threads.MAIN`` until its node is down."""

import signal
from collections.abc import Callable
from contextvars import copy_context
from time import monotonic
from types import FrameType
from typing import Any

import outcome
import trio

from .._core.runtime.dispatcher_threads import check_main_thread
from .._core.runtime.keyboard_interrupt import REPEAT
from .._core.vocabulary.errors import NodeStoppedError
from .._core.vocabulary.reasons import is_a
from ..facades.node import run
from ..node import Node

__all__ = ["run_main"]


def run_main(node: Node, start: Callable[[Node], Any] | None = None) -> None:
    """Run the callbacks of all processes with the dispatcher ``Threads.MAIN`` in this thread, the
    main thread of the program, until the node has stopped.

    ``start(node)``, plain or async, runs on the node's loop first: it starts these processes. If it
    raises, the node stops, and its exception is raised here. Ctrl-C stops the node; a second Ctrl-C
    raises ``KeyboardInterrupt`` here at once: the node goes down without the callbacks that the
    main thread has not begun.

    Raises:
        NotAllowedError: this is not the main thread, or a callback that runs in it.
        NodeStoppedError: the node has stopped before.
    """
    kernel = node._kernel
    bridge = kernel.router.bridge
    bridge.refuse_on_loop("run_main()", "dispatcher=LOOP")
    check_main_thread()
    failures: list[BaseException] = []

    async def begin() -> None:
        assert start is not None
        result = await outcome.acapture(run, node, start)
        if isinstance(result, outcome.Error) and not is_a(result.error, trio.Cancelled):
            failures.append(result.error)
            node.stop_soon()

    with _Interrupts(node) as interrupts:
        group = bridge.run(kernel.dispatcher_threads.join_main)
        if start is not None:
            name = "start of run_main"
            bridge.post(copy_context().run, lambda: kernel.start(begin, name=name))
        try:
            group.work_here()
        except BaseException:
            # Otherwise the node would wait for this thread, until it kills the processes.
            bridge.undo(kernel.dispatcher_threads.leave_main, group)
            raise
    if interrupts.is_urgent:
        # A callback got the exception, and its process crashed with it.
        raise KeyboardInterrupt
    if failures:
        raise failures[0]


class _Interrupts:
    """Ctrl-C while the main thread runs callbacks, unless the program has a handler of its own. It
    stops the node: the exception that Python raises would make the process crash whose callback
    runs.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_held = False
        self._asked: float | None = None
        """Time of the first signal."""
        self.is_urgent = False
        """Whether there was another after it."""

    def __enter__(self) -> "_Interrupts":
        self._is_held = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._is_held:
            signal.signal(signal.SIGINT, self._stop)
        return self

    def __exit__(self, *_error: object) -> None:
        # A callback may have set a handler of the program meanwhile.
        if self._is_held and signal.getsignal(signal.SIGINT) == self._stop:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        now = monotonic()
        if self._asked is None:
            self._asked = now
            try:
                self._node.stop_soon()
            except NodeStoppedError:  # run_main returns next
                pass
        elif now - self._asked >= REPEAT:
            self.is_urgent = True
            signal.default_int_handler(number, frame)
