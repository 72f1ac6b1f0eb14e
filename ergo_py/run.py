"""Run a program: a node, its signals, and what happens when they come twice."""

import inspect
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, TypeVar, cast

import trio

from ._core.behaviour import Behaviour, behaviour_of
from ._core.bridge import get_ident, thread_names
from ._core.errors import BadInputError, NodeStoppedError
from ._core.options import DEFAULTS
from ._core.process import Process
from .node import Node, open_node

__all__ = ["run"]

T = TypeVar("T")


def run(
    main: Callable[[Node], Awaitable[T]] | type[Behaviour], *, name: str = "node@localhost", **options: Any
) -> T | Any:
    """Open a node, run ``main`` on it, and stop everything when it is done or when Ctrl-C or SIGTERM comes.

    ``main`` is an async function that gets the node, whose result is returned; or a behaviour class, which is started as a process
    and whose end is the end of the program; its reason is returned. After a signal the result is None. The options are those of
    :func:`open_node`.

    The first signal stops the node in order, within its ``stop_timeout``. The second says what is still alive, with stacks, and
    leaves at once.

    Raises:
        BadInputError: ``main`` is neither, or an option cannot be right.
    """
    is_behaviour = isinstance(main, type) and issubclass(main, Behaviour)
    if not is_behaviour and not inspect.iscoroutinefunction(main):
        raise BadInputError("run(main)", main, "an `async def main(node)`, or a behaviour class such as `run(MyApp)`")
    context = open_node(name, **options)

    async def whole() -> T | Any:
        with _Signals() as signals:
            async with context as node:
                signals.watch_over(node)
                if is_behaviour:
                    # Not by its PID: a process may have ended before anybody can ask for it.
                    process = await Process.spawn(node._kernel, None, main, behaviour_of(main), (), DEFAULTS)
                    await process.wait_gone()
                    return process.reason
                return await cast(Any, main)(node)
        return None

    # Ctrl-C never strikes inside a callback, where it would look like a crash of that process.
    return trio.run(whole, restrict_keyboard_interrupt_to_checkpoints=True)


class _Signals:
    """Takes SIGINT and SIGTERM until the node is down, and gives them back then."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._came)
            except ValueError:  # not the main thread: signals are somebody else's business
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None stands for one that was not set from Python, and that Python cannot set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def watch_over(self, node: Node) -> None:
        """Know which node is meant; a signal that came before now counts."""
        self._node = node
        if self._asked:
            node.stop()

    def _came(self, number: int, frame: FrameType | None) -> None:
        # A signal handler may run anywhere, in the middle of the scheduler too: so only what a thread might do.
        if not self._asked:
            self._asked = True
            if self._node is not None:
                try:
                    self._node.stop_soon()
                except NodeStoppedError:  # it is down already; only the handlers have not been given back yet
                    pass
            return
        try:
            if self._node is not None:
                sys.stderr.write(_what_is_alive(self._node, frame))
                sys.stderr.flush()
        finally:
            # Whatever becomes of the report: the signal may have come in the middle of writing to that very stream.
            os._exit(128 + number)


def _what_is_alive(node: Node, frame: FrameType | None) -> str:
    lines = [f"\nleaving at once; still alive on {node.name}:\n"]
    lines += [f"  {line}\n" for line in node.alive(stacks=True)]
    here, names = get_ident(), thread_names()
    for thread, stack in sys._current_frames().items():
        lines.append(f"stack of thread {names.get(thread, thread)}:\n")
        lines += traceback.format_stack(frame if thread == here else stack)
    return "".join(lines)
