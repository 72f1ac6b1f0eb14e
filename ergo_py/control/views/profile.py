"""`Profile`: the stacks of the loop and of the reader threads, sampled and counted."""

import os
import sys
from collections import Counter
from collections.abc import Callable
from time import perf_counter, sleep
from types import CodeType, FrameType
from typing import Any, Final

from ..._core.inspection.watchdog import frames_from, process_in, waits_for_io
from ..._core.metas.meta import Meta
from ..._core.processes.process import Process
from ..._core.runtime.bridge import thread_names
from ..._core.verbs.node import Node
from ..._core.verbs.node_access import kernel_of
from .thread_list import thread_owners

__all__ = ["Profile"]

Stack = tuple[str, ...]

_DEPTH: Final = 64
_STACKS: Final = 2000
"""Different stacks of a profile; others are counted as left out."""
_KERNEL: Final = ("ergo_py._core.", "trio.", "outcome.")


class Profile:
    """Counts the stacks of a node, in a thread of its own."""

    def __init__(self, node: Node, target: Process | Meta | None) -> None:
        self._node = node
        self._target = target
        self._loop = kernel_of(node).router.loop_thread
        self._stacks: Counter[Stack] = Counter()
        self._names: dict[CodeType, str] = {}
        self._threads: dict[str, None] = {}
        self._samples = self._idle = self._left_out = 0

    def take(
        self,
        seconds: float,
        rate: float,
        tell: Callable[[dict[str, Any]], object],
        is_cancelled: Callable[[], bool],
    ) -> dict[str, Any]:
        """Sample for some seconds, and tell once a second how many samples there are."""
        began = told = perf_counter()
        owners = thread_owners(self._node)
        for due in (began + number / rate for number in range(max(1, int(seconds * rate)))):
            now = perf_counter()
            # A busy machine may leave no time: one sample is taken nevertheless.
            if (self._samples and now > began + seconds) or is_cancelled():
                break
            if due > now:
                sleep(due - now)
            if perf_counter() - told >= 1.0:
                told = perf_counter()
                owners = thread_owners(self._node)
                tell({"samples": self._samples, "seconds": round(told - began, 2)})
            self._sample(owners)
        return {
            "samples": self._samples,
            "seconds": round(perf_counter() - began, 2),
            "idle": self._idle,
            "threads": list(self._threads),
            "stacks": [[list(stack), count] for stack, count in self._stacks.most_common()],
            "left_out": self._left_out,
        }

    def _sample(self, owners: dict[int, Any]) -> None:
        self._samples += 1
        frames = sys._current_frames()
        loop = frames.get(self._loop)
        if loop is not None:
            self._take_loop(loop)
        names = None
        for ident, owner in owners.items():
            frame = frames.get(ident)
            if frame is not None and self._target in (None, owner):
                names = names or thread_names()
                name = names.get(ident, "thread")
                self._threads[name] = None
                self._count(f"thread {name}: {_label(owner)}", frames_from(frame))

    def _take_loop(self, innermost: FrameType) -> None:
        if waits_for_io(innermost):
            self._idle += 1
            return
        # The loop moves on while this thread reads its stack: collect the frames first.
        frames = frames_from(innermost)
        try:
            process, served_in = process_in(frames)
        except KeyError:  # the frame ended meanwhile
            return
        if self._target is not None and process is not self._target:
            return
        self._threads["loop"] = None
        if process is None or served_in is None:
            self._count("loop", frames)
        else:
            self._count(_label(process), frames[: frames.index(served_in)])

    def _count(self, root: str, frames: list[FrameType]) -> None:
        """Count a stack, from its outermost frame. The frames of the kernel before the program's
        own are left out.
        """
        outer = frames[::-1]
        own = next(
            (
                number
                for number, frame in enumerate(outer)
                if not (frame.f_globals.get("__name__") or "").startswith(_KERNEL)
            ),
            0,
        )
        shown = [self._name(frame.f_code) for frame in outer[own : own + _DEPTH]]
        stack = (root, *shown)
        if stack in self._stacks or len(self._stacks) < _STACKS:
            self._stacks[stack] += 1
        else:
            self._left_out += 1

    def _name(self, code: CodeType) -> str:
        name = self._names.get(code)
        if name is None:
            file = os.path.basename(code.co_filename)
            name = self._names[code] = f"{code.co_name} ({file}:{code.co_firstlineno})"
        return name


def _label(process: Process | Meta) -> str:
    called = f" {process.name}" if process.name else ""
    return f"{process.callbacks.behaviour} {process.id.number}{called}"
