"""`tell`: the history of a failing world, as a text that fits on a screen."""

from typing import Final

from .history import Event
from .world import World

__all__ = ["tell"]

_LINES: Final = 40
"""The most lines of a story."""
_QUIET: Final = frozenset({"call", "answer"})
"""Kinds of events that are left out first."""


def tell(world: World, failure: BaseException) -> str:
    """Tell the history of a world that has failed: faults, starts and ends, calls and answers. A
    long history is cut: its last lines are next to the failure.
    """
    events = world.history.events[: world.history.told]
    if len(events) > _LINES:
        events = [event for event in events if event.kind not in _QUIET or "fails" in event.text]
    lines = [_line(event) for event in events]
    if len(lines) > _LINES:
        faults = [
            _line(event) for event in events[: 1 - _LINES] if event.kind in ("fault", "crash")
        ]
        last = lines[1 - _LINES + len(faults) :] if len(faults) < _LINES else lines[-5:]
        lines = [*faults, f"{'':10}… {len(lines) - len(last) - len(faults)} more events …", *last]
    at = f"{world.clock.current_time():8.2f} s"
    return "\n".join([*lines, f"{at}  {type(failure).__name__}: {failure}"])


def _line(event: Event) -> str:
    mark = "!" if event.kind in ("fault", "crash") else " "
    return f"{event.at:8.2f} s{mark} {event.node and event.node + ': '}{event.text}"
