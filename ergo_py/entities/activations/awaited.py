"""`is_awaited`: whether an entity that is awake waits in a call for an entity that sleeps."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from ..._core.processes.process import Process
from ..._core.processes.spawn import caller_in
from ..._core.tables.child_slot import ChildSlot
from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.ids import PID
from ..entity import Entity

__all__ = ["is_awaited"]


def is_awaited(slot: ChildSlot, processes: Mapping[Any, Process]) -> bool:
    """Whether an entity that is awake cannot go on before the entity of this slot has answered: it
    waits in a call, directly or through other processes.
    """
    waiting = [_process_in(each, processes) for each in _calls_at(slot)]
    seen: set[PID] = set()
    while waiting:
        process = waiting.pop()
        if process is None or process.id in seen:
            continue
        if isinstance(process.behaviour, Entity):
            return True
        seen.add(process.id)
        waiting += [_process_in(each, processes) for each in _calls_to(process)]
    return False


def _calls_at(slot: ChildSlot) -> Iterator[Caller]:
    """The calls that wait for the next process of a slot."""
    for claim in slot.waiters:
        caller = getattr(claim, "caller", None)
        if caller is not None:
            yield caller
    for envelope in chain.from_iterable(slot.kept.values()):
        if isinstance(envelope[2], Caller):
            yield envelope[2]


def _calls_to(process: Process) -> Iterator[Caller]:
    """The calls that a process has to answer: the call in progress, and deferred calls."""
    handling = process.handling
    if handling is not None and isinstance(handling[2], Caller):
        yield handling[2]
    yield from process.deferred or ()


def _process_in(caller: Caller, processes: Mapping[Any, Process]) -> Process | None:
    """The process that has made a call; None for a caller outside of processes, and for a call that
    has its answer.
    """
    if caller.settled:
        return None
    task = getattr(caller, "task", None)  # it may call through the node
    return processes.get(caller.pid) or (None if task is None else caller_in(task))
