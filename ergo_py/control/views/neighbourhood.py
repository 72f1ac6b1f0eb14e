"""`neighbourhood`: the processes around a process: owner, children, links, monitors, calls."""

from collections.abc import Iterator
from typing import Any

from ..._core.metas.meta import Meta
from ..._core.processes.process import Process
from ..._core.tables.pending_calls import Caller
from ..._core.tables.relations import Kind, Watched
from ..._core.vocabulary.ids import EventName, Name, NodeName
from ..rows import RowFormat
from .slices import read_again
from .waits import callee_of

__all__ = ["neighbourhood"]

Neighbour = tuple[Any, bool, str]
"""A neighbour, whether the edge goes to it, and the kind of the edge."""


def neighbourhood(center: Process | Meta, row_format: RowFormat, limit: int) -> dict[str, Any]:
    """The neighbours of a process, at most ``limit``, and the edges to them. An edge goes from the
    side that acts: from the owner, the linking, the monitoring and the calling process.
    """
    number = center.id.number
    nodes: dict[str, dict[str, Any]] = {str(number): row_format.of_process(center)}
    edges: list[list[object]] = []
    left_out: set[object] = set()
    for neighbour, is_to, kind in read_again(lambda: list(_neighbours(center))):
        key, row = _described(neighbour, row_format)
        if str(key) not in nodes:
            if len(nodes) > limit:
                left_out.add(key)
                continue
            nodes[str(key)] = row
        edge: list[object] = [number, key, kind] if is_to else [key, number, kind]
        if edge not in edges:
            edges.append(edge)
    return {"center": number, "nodes": nodes, "edges": edges, "left_out": len(left_out)}


def _neighbours(center: Process | Meta) -> Iterator[Neighbour]:
    """Rare and telling relations first, so that the limit cuts children."""
    router, relations = center.router, center.kernel.relations
    owner = center.owner if isinstance(center, Meta) else center.parent
    yield owner, False, "owner"
    if isinstance(center, Process):
        waiting = callee_of(center.waiting)
        if waiting is not None:
            yield waiting, True, "waits"
    me: list[Watched] = [center.id]
    if isinstance(center, Process):
        me += center.aliases or ()
        if center.name is not None:
            me.append(Name(center.name, router.node))
        for kind in (Kind.LINK, Kind.MONITOR):
            for target in relations.of_watcher(center.id, kind):
                yield _resolved(center, target), True, kind.value
    for target in me:
        for kind in (Kind.LINK, Kind.MONITOR):
            for pid in relations.of_target(target, kind):
                yield _resolved(center, pid), False, kind.value
    for envelope in (
        *list(center.mailbox.main)[:1000],
        *(() if center.handling is None else (center.handling,)),
    ):
        if isinstance(envelope[2], Caller) and not envelope[2].settled:
            yield _resolved(center, envelope[2].pid), False, "waits"
    for caller in list(center.deferred or ()):
        yield _resolved(center, caller.pid), False, "waits"
    for child in (center.owned or {}).values():
        yield child, True, "owner"


def _resolved(center: Process | Meta, target: Any) -> object:
    if isinstance(target, EventName | NodeName):
        return target
    found = center.router.resolve(target)
    return found if isinstance(found, Process | Meta) else target


def _described(neighbour: object, row_format: RowFormat) -> tuple[object, dict[str, Any]]:
    """The key of a neighbour, and its row. A text for what is no process of this node."""
    if neighbour is None:
        return 0, {"id": 0, "kind": "node"}
    if isinstance(neighbour, Process | Meta):
        return neighbour.id.number, row_format.of_process(neighbour)
    if isinstance(neighbour, EventName):
        return f"event {neighbour.name}", {"kind": "event", "name": neighbour.name}
    if isinstance(neighbour, NodeName):
        return f"node {neighbour.node}", {"kind": "node", "name": neighbour.node}
    return str(neighbour), {"kind": "gone", "name": str(neighbour)}
