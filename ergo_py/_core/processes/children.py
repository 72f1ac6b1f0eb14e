"""`stop_all`, `kill_all`: the end of the children and meta-processes of a process, a meta-process
or the node.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from ..messaging.receiver import Stoppable
from ..runtime.time_slices import in_slices
from ..vocabulary.reasons import Reason, Shutdown
from .last_callback import GRACE

if TYPE_CHECKING:
    from .process import Process

__all__ = ["kill_all", "stop_all"]

S = TypeVar("S", bound=Stoppable)

_MANY: Final = 256
"""After this many kills, other tasks may run."""


async def stop_all(owned: dict[object, S], reason: Reason) -> None:
    """Stop children and meta-processes in order, each within its own time limit (graceful
    shutdown).

    Servers stop accepting first, or reconnecting peers would keep them busy. Then all their
    sessions stop at the same time. The rest follows in sequence, last started first.
    """
    sessions = [session for child in tuple(owned.values()) for session in child.stop_accepting()]
    if sessions:
        await _stop_together(sessions, reason)
    while owned:
        key, last = owned.popitem()
        owned[key] = last
        await last.shut(reason)
        owned.pop(key, None)


async def _stop_together(sessions: "list[Process]", reason: Reason) -> None:
    """Stop many children of the same process concurrently. The owner's own shutdown limit does not
    run meanwhile, because each child has its own.
    """
    owner = sessions[0].parent
    assert owner is not None
    over = owner.to_end().begin_sessions()
    try:
        async with trio.open_nursery() as nursery:
            for session in sessions:
                session.leave_wait(Shutdown())
                nursery.start_soon(session.shut, reason)
    finally:
        over.set()


async def kill_all(owned: dict[object, S], *, kills: int = 2) -> None:
    """Kill children and meta-processes, and everything below them, without a graceful shutdown.
    Abandon those that survive the kills.
    """
    for _ in range(kills):
        await in_slices(_force_ends(_levels(owned)))
        with trio.move_on_after(GRACE):
            await _wait_until_gone(list(owned.values()))
            owned.clear()
            return
    # Abandon the lowest level first: a process that only waited for its children then ends by
    # itself.
    patience = 0.0
    for level in reversed(_levels(owned)):
        with trio.move_on_after(patience):
            await _wait_until_gone(level)
            continue
        async with trio.open_nursery() as nursery:
            for child in level:
                nursery.start_soon(child.abandon)
        patience = GRACE
    owned.clear()


def _force_ends(levels: list[list[Stoppable]]) -> Iterator[None]:
    """Kill owners before their children, so that no supervisor among them restarts a child."""
    children = [child for level in levels for child in level]
    # Skip a process that begins to end during this loop: its owner, which is ending, asked it to. A
    # kill would cut its last callbacks short.
    are_ending = [child.reason is not None for child in children]
    for number, (child, was_ending) in enumerate(zip(children, are_ending, strict=True), 1):
        if was_ending or child.reason is None:
            child.force_end()
        if not number % _MANY:
            yield


def _levels(owned: Mapping[object, Stoppable]) -> list[list[Stoppable]]:
    """The children and meta-processes in ``owned``, those below them, and so on, level by level."""
    levels = []
    level: list[Stoppable] = list(owned.values())
    while level:
        levels.append(level)
        level = [inner for child in level for inner in (child.owned or {}).values()]
    return levels


async def _wait_until_gone(children: Iterable[Stoppable]) -> None:
    for child in children:
        await child.wait_gone()
