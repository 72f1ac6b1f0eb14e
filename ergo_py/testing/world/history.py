"""`History`: the events of a world, the lifetimes of its processes, the operations of its clients,
and the digest of all of it.
"""

import re
from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf
from typing import Any, Final, NamedTuple

from ..._core.vocabulary.ids import PID
from ..._core.vocabulary.text import shown

__all__ = ["Event", "History", "Lifetime", "Operation", "text_of"]

_LONGEST: Final = 100
_LINES: Final = 40
"""The most lines of a story."""
_QUIET: Final = frozenset({"call", "answer"})
"""Kinds of events that a long story leaves out first."""
_LOUD: Final = frozenset({"fault", "crash"})
_PASSES: Final = 4096
"""The most passes of the loop that wait for the digest."""
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


def text_of(value: object) -> str:
    """A value as a text of a history: cut, and without the address of an object."""
    text = _ADDRESS.sub("", shown(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


class Event(NamedTuple):
    """A line of the story of a world."""

    at: float
    node: str
    """The node that it concerns; empty for the world."""
    kind: str
    """fault, crash, start, end, call, answer or note."""
    text: str


@dataclass(slots=True)
class Lifetime:
    """The life of a process of a world."""

    name: str
    """Its registered name, or the name of its behaviour."""
    pid: PID
    node: str
    began: float
    ended: float = inf
    behaviour: str = ""
    """The name of its behaviour, also if it has a registered name."""


@dataclass(slots=True)
class Operation:
    """A call of a client of a world."""

    client: str
    to: object
    request: Any
    began: float
    ended: float = inf
    answer: Any = None
    error: BaseException | None = None
    """Why there is no answer. The operation may have had its effect, or have it later."""
    began_as: int = 0
    """The number of events before its begin, which puts operations of the same moment in order: a
    call takes no time of the world if no fault delays it.
    """
    ended_as: int = 0
    """The number of events before its end."""

    @property
    def is_answered(self) -> bool:
        """Whether there was an answer."""
        return self.ended < inf and self.error is None


@dataclass(slots=True)
class History:
    """All that has happened in a world."""

    now: Callable[[], float]
    events: list[Event] = field(default_factory=list)
    lifetimes: list[Lifetime] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    pauses: list[tuple[str, float, float]] = field(default_factory=list)
    """Nodes whose programs were stopped, from when, and until when."""
    told: int | None = None
    """The number of events of the story: the nodes of a world end after its test."""
    _hash: Any = field(default_factory=sha256)
    _passes: "array[float]" = field(default_factory=lambda: array("d"))
    """The passes of the loop that the digest has not counted yet: the time and the number of tasks
    of each. There are several passes for each event, and to hash them together costs less.
    """
    _living: dict[PID, Lifetime] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The same for the same history: of all passes of the loop, frames, starts, ends, calls,
        answers, faults and notes, each with its time.
        """
        whole = self._hash.copy()
        whole.update(self._passes)
        return str(whole.hexdigest())

    def mix(self, *values: object, data: bytes = b"") -> None:
        """Let values count for the digest, and bytes that travel. These come apart: their
        ``repr()`` takes longer than the hash.
        """
        self._passes.append(self.now())
        self._mix_passes()
        self._hash.update(repr((*values, len(data))).encode())
        self._hash.update(data)

    def mix_pass(self, tasks: int) -> None:
        """Let a pass of the loop count for the digest."""
        self._passes.append(self.now())
        self._passes.append(tasks)
        if len(self._passes) >= 2 * _PASSES:
            self._mix_passes()

    def _mix_passes(self) -> None:
        self._hash.update(self._passes)
        del self._passes[:]

    def note(self, kind: str, node: str, text: str) -> None:
        """Add an event."""
        self.mix(kind, node, text)
        self.events.append(Event(self.now(), node, kind, text))

    def end_story(self) -> None:
        """Note that the test is over."""
        self.told = len(self.events)

    def note_lifetime(self, process: Any, lives: bool) -> None:
        """Note the start or the end of a process."""
        pid = process.id
        behaviour = process.callbacks.behaviour
        name = process.name or behaviour
        if lives:
            self._living[pid] = Lifetime(name, pid, pid.node, self.now(), behaviour=behaviour)
            self.lifetimes.append(self._living[pid])
            self.note("start", pid.node, f"{name} starts")
        elif pid in self._living:
            self._living.pop(pid).ended = self.now()
            self.note("end", pid.node, f"{name} ends: {text_of(process.reason)}")

    def living(self, node: str, names: Collection[str] | None) -> list[PID]:
        """The processes of a node that live now, in the order of their starts; with names: those
        of these names.
        """
        return [
            pid
            for pid, life in self._living.items()
            if life.node == node and (names is None or life.name in names)
        ]

    def note_crash(self, node: str) -> None:
        """Note that all processes of a node are gone."""
        for pid, lifetime in list(self._living.items()):
            if lifetime.node == node:
                lifetime.ended = self.now()
                del self._living[pid]
        self.note("crash", node, "crashes")

    def begin(self, client: str, to: object, request: object) -> Operation:
        """Note that a client calls."""
        operation = Operation(client, to, request, self.now(), began_as=len(self.events))
        self.operations.append(operation)
        self.note("call", client, f"calls {to}: {text_of(request)}")
        return operation

    def finish(self, operation: Operation, answer: object, error: BaseException | None) -> None:
        """Note that a call was answered, or has failed."""
        operation.ended, operation.answer, operation.error = self.now(), answer, error
        operation.ended_as = len(self.events)
        request = text_of(operation.request)
        text = f"answers {text_of(answer)}" if error is None else f"fails: {text_of(error)}"
        self.note("answer", operation.client, f"{operation.to} {text}, to {request}")

    def tell(self, failure: BaseException) -> str:
        """The story of a world that has failed, on a screen: faults, starts and ends, calls and
        answers. A long story keeps its faults, and the last lines before the failure.
        """
        events = self.events[: self.told]
        if len(events) > _LINES:
            events = [each for each in events if each.kind not in _QUIET or "fails" in each.text]
        lines = [_line(event) for event in events]
        if len(lines) > _LINES:
            loud = [_line(event) for event in events if event.kind in _LOUD][: _LINES - 10]
            last = lines[len(loud) - _LINES + 1 :]
            left = len(lines) - len(last)
            loud = [line for line in loud if line not in last]
            lines = [*loud, f"{'':10}… {left - len(loud)} more events …", *last]
        end = Event(self.now(), "", "failure", f"{type(failure).__name__}: {failure}")
        return "\n".join([*lines, _line(end)])


def _line(event: Event) -> str:
    mark = "!" if event.kind in _LOUD else " "
    return f"{event.at:8.2f} s{mark} {event.node and event.node + ': '}{event.text}"
