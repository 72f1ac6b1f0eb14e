"""Run a program: a node, its signals, and what happens when they come twice."""

import inspect
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Any, Final, TypeVar, cast

import trio

from ._core.processes.process import Process
from ._core.runtime.bridge import get_ident, thread_names
from ._core.runtime.keyboard_interrupt import REPEAT
from ._core.runtime.process_groups import kill_groups
from ._core.verbs.behaviour import Behaviour, behaviour_of
from ._core.vocabulary.errors import BadInputError, NodeStoppedError, NotAllowedError
from ._core.vocabulary.options import DEFAULTS
from .node import Node, open_node

__all__ = ["refusing_run", "run"]

T = TypeVar("T")


def run(
    main: Callable[[Node], Awaitable[T]] | type[Behaviour],
    *,
    name: str = "node@localhost",
    **options: Any,
) -> T | Any:
    """Open a node, run ``main`` on it, and stop everything when it is done or when Ctrl-C, SIGTERM
    or SIGHUP comes.

    ``main`` is an async function that gets the node, whose result is returned; or a behaviour
    class, which is started as a process and whose end is the end of the program; its reason is
    returned. After a signal the result is None. The options are those of :func:`open_node`.

    The first signal stops the node in order, within its ``stop_timeout``. Another one that comes
    within half a second counts as the same: some programs signal both a process and its group. A
    later one kills the programs that ports have started, says what is still alive, with stacks, and
    leaves at once. SIGHUP stays ignored in a program that was started with ``nohup``.

    Raises:
        BadInputError: ``main`` is neither, or an option cannot be right.
        NotAllowedError: it stands at the top of a file that ``ergo run`` or ``ergo shell`` imports,
            and would run twice.
    """
    if _importing:
        raise NotAllowedError(
            f"run(...) was called while {_importing[-1]} is imported, which would run it twice; "
            'write `if __name__ == "__main__":` above it, or start the file with python'
        )
    is_behaviour = isinstance(main, type) and issubclass(main, Behaviour)
    if not is_behaviour and not inspect.iscoroutinefunction(main):
        raise BadInputError(
            "run(main)",
            main,
            "an `async def main(node)`, or a behaviour class such as `run(MyApp)`",
        )
    context = open_node(name, **options)

    async def whole() -> T | Any:
        with _Signals() as signals:
            async with context as node:
                signals.watch_over(node)
                if is_behaviour:
                    # Not by its PID: a process may have ended before anybody can ask for it.
                    process = await Process.spawn(
                        node._kernel, None, main, behaviour_of(main), (), DEFAULTS
                    )
                    await process.wait_gone()
                    return process.reason
                return await cast(Any, main)(node)
        return None

    # Ctrl-C never strikes inside a callback, where it would look like a crash of that process.
    return trio.run(whole, restrict_keyboard_interrupt_to_checkpoints=True)


_importing: Final[list[str]] = []


@contextmanager
def refusing_run(imported: str) -> Iterator[None]:
    """Refuse :func:`run` while a program is imported that somebody else is about to run."""
    _importing.append(imported)
    try:
        yield
    finally:
        _importing.pop()


class _Signals:
    """Takes SIGINT, SIGTERM and SIGHUP until the node is down, and gives them back then."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._asked: float | None = None
        """When the first one came."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        for number in _taken():
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
        if self._asked is not None:
            node.stop()

    def _came(self, number: int, frame: FrameType | None) -> None:
        # A signal handler may run anywhere, in the middle of the scheduler too: so only what a
        # thread might do.
        now = monotonic()
        if self._asked is None:
            self._asked = now
            if self._node is not None:
                try:
                    self._node.stop_soon()
                except (
                    NodeStoppedError
                ):  # it is down already; only the handlers have not been given back yet
                    pass
            return
        if now - self._asked < REPEAT:
            return
        try:
            kill_groups()
            if self._node is not None:
                sys.stderr.write(_what_is_alive(self._node, frame))
                sys.stderr.flush()
        finally:
            # Whatever becomes of the report: the signal may have come in the middle of writing to
            # that very stream.
            os._exit(128 + number)


def _taken() -> list[signal.Signals]:
    """The signals that stop a program: those that would end it otherwise."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    # A terminal that was closed. Not if it is ignored, which is what nohup is for, or if the
    # program handles it by itself.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        numbers.append(signal.SIGHUP)
    return numbers


def _what_is_alive(node: Node, frame: FrameType | None) -> str:
    lines = [f"\nleaving at once; still alive on {node.name}:\n"]
    lines += [f"  {line}\n" for line in node.alive(stacks=True)]
    here, names = get_ident(), thread_names()
    for thread, stack in sys._current_frames().items():
        lines.append(f"stack of thread {names.get(thread, thread)}:\n")
        lines += traceback.format_stack(frame if thread == here else stack)
    return "".join(lines)
