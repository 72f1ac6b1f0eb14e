"""`thread_list`: the threads of the program, with the stack and the process of each."""

import os
import sys
import traceback
from types import FrameType
from typing import Any, Final

from ..._core.inspection.census import list_living
from ..._core.metas.meta import Meta
from ..._core.processes.threaded_process import DispatchedProcess
from ..._core.runtime.bridge import thread_names
from ..._core.verbs.node import Node
from ..._core.verbs.node_access import kernel_of
from .slices import in_slices

__all__ = ["thread_list", "thread_owners"]

_DEPTH: Final = 12
"""Frames of a stack, the innermost."""


def thread_owners(node: Node) -> dict[int, Meta | DispatchedProcess]:
    """The process for which each thread works now: readers of meta-processes, and callbacks in
    threads.
    """
    kernel = kernel_of(node)
    processes, metas = list_living(kernel)
    owners: dict[int, Meta | DispatchedProcess] = {}
    for some in in_slices(metas):
        owners |= {thread.ident: meta for meta in some if (thread := meta.reader.thread)}
    for others in in_slices(processes) if kernel.dispatcher_threads.threads else ():
        for process in others:
            if isinstance(process, DispatchedProcess):
                job = process.job
                if job is not None and job.ident:
                    owners[job.ident] = process
    return owners


def thread_list(node: Node, limit: int) -> dict[str, Any]:
    """The threads of the program, at most ``limit``: those of the node first."""
    owners, names = thread_owners(node), thread_names()
    loop = kernel_of(node).router.loop_thread
    frames = sys._current_frames()
    found: list[dict[str, Any]] = []
    ranked = sorted(names, key=lambda ident: (ident != loop, ident not in owners, names[ident]))
    for some in in_slices(ranked[:limit], 20):
        for ident in some:
            frame, owner = frames.get(ident), owners.get(ident)
            stack = [] if frame is None else _stack(frame)
            facts: dict[str, Any] = {
                "id": ident,
                "name": names[ident],
                "kind": _kind(ident == loop, owner, names[ident]),
                "frames": stack,
                "where": stack[-1] if stack else None,
            }
            if owner is not None:
                facts |= {
                    "process": owner.id.number,
                    "behaviour": owner.callbacks.behaviour,
                    "name_of": owner.name,
                }
                if isinstance(owner, Meta) and owner.reader.thread is not None:
                    facts["native"] = owner.reader.thread.native_id
            found.append(facts)
    return {"threads": found, "left_out": max(0, len(names) - limit)}


def _kind(is_loop: bool, owner: Meta | DispatchedProcess | None, name: str) -> str:
    if is_loop:
        return "loop"
    if owner is not None:
        return "reader" if isinstance(owner, Meta) else "dispatcher"
    if name.startswith("ergo-control"):
        return "control"
    return "watchdog" if name == "ergo-watchdog" else "other"


def _stack(frame: FrameType) -> list[str]:
    """The innermost frames of a stack, newest last, a line each."""
    return [
        f"{os.path.basename(entry.filename)}:{entry.lineno} in {entry.name}: {entry.line}"
        for entry in traceback.extract_stack(frame, _DEPTH)
    ]
