"""`tree_levels`: the levels of the supervision tree that a viewer has opened."""

from collections.abc import Sequence
from typing import Any, Final

from ..._core.metas.meta import Meta
from ..._core.processes.process import Process
from ..._core.verbs.node import Node
from ..._core.verbs.node_access import applications_of, kernel_of
from ..._core.vocabulary.ids import PID, Alias
from ..._core.vocabulary.info import ChildInfo
from ..rows import RowFormat
from .slices import in_slices, read_again

__all__ = ["find", "tree_levels"]

Level = dict[str, Any]

_MOST_ROWS: Final = 2000
"""Rows of all levels together. Then the levels have a single row each."""


def find(node: Node, number: int) -> Process | Meta | None:
    """The process or meta-process of this number."""
    router = kernel_of(node).router
    for kind in (PID, Alias):
        found = router.resolve(kind(node.name, node.pid.creation, number))
        if isinstance(found, Process | Meta) and found.id.number == number:
            return found
    return None


def tree_levels(
    node: Node, row_format: RowFormat, parents: Sequence[int], limit: int
) -> dict[str, Any]:
    """The children of each of these processes, and at most ``limit`` of each; 0 is the node. A
    process that has ended has no level.
    """
    levels: dict[str, Level] = {}
    left = _MOST_ROWS
    for (parent,) in in_slices(parents, 1):
        most = min(limit, max(1, left))
        if parent == 0:
            levels["0"] = _of_node(node, row_format, most)
        elif (found := find(node, parent)) is not None:
            levels[str(parent)] = _of_process(found, row_format, most)
        else:
            continue
        left -= len(levels[str(parent)]["order"])
    return {"levels": levels}


def _of_node(node: Node, row_format: RowFormat, limit: int) -> Level:
    roots: list[Any] = list(kernel_of(node).roots.values())
    applications = read_again(applications_of(node).infos)
    by_number = {each.pid.number: each for each in applications if each.pid is not None}
    level = _level(
        len(roots) + sum(1 for each in applications if each.pid is None), roots[:limit], row_format
    )
    for row in level["rows"].values():
        application = by_number.get(row["id"])
        if application is not None:
            row |= {"application": application.name, "phase": application.phase.value}
    for application in applications:
        if application.pid is None:
            level["order"].append(application.name)
            level["rows"][application.name] = {
                "child": application.name,
                "application": application.name,
                "behaviour": "Application",
                "phase": application.phase.value,
                "reason": None if application.reason is None else str(application.reason),
                "children": 0,
            }
    return level


def _of_process(found: Process | Meta, row_format: RowFormat, limit: int) -> Level:
    owned: list[Any] = list((found.owned or {}).values())
    if isinstance(found, Meta) or found.slots is None or found.behaviour is None:
        return _level(len(owned), owned[:limit], row_format)
    slots, behaviour = found.slots, found.behaviour_itself
    children: tuple[ChildInfo, ...] = read_again(lambda: behaviour.supervision(limit)).children
    by_id = {child.id: child for child in owned} if len(owned) <= limit else {}
    others = [
        each
        for some in in_slices(owned)
        for each in some
        if isinstance(each, Meta) or each.slot is None
    ]
    level = _level(len(slots) + len(others), (), row_format)
    order, rows = level["order"], level["rows"]
    for child in children:
        process = None if child.pid is None else by_id.get(child.pid) or _present(found, child.pid)
        facts = {"child": child.name, "phase": child.phase.value, "restarts": child.restarts}
        if process is None:
            order.append(child.name)
            rows[child.name] = {"behaviour": child.behaviour, **facts, "children": 0}
            if child.reason is not None:
                rows[child.name]["reason"] = str(child.reason)
            if child.starts_in is not None:
                rows[child.name]["starts_in"] = round(child.starts_in, 1)
        else:
            order.append(process.id.number)
            rows[str(process.id.number)] = {**_row(process, row_format), **facts}
    for each in others[: max(0, limit - len(order))]:
        order.append(each.id.number)
        rows[str(each.id.number)] = _row(each, row_format)
    return level


def _present(parent: Process, pid: PID) -> Process | None:
    found = parent.router.resolve(pid)
    return found if isinstance(found, Process) else None


def _level(count: int, shown: Sequence[Process | Meta], row_format: RowFormat) -> Level:
    return {
        "count": count,
        "order": [process.id.number for process in shown],
        "rows": {str(process.id.number): _row(process, row_format) for process in shown},
    }


def _row(process: Process | Meta, row_format: RowFormat) -> dict[str, Any]:
    row = row_format.of_process(process)
    owned = len(process.owned or ())
    if isinstance(process, Process) and process.slots is not None:
        row["supervisor"] = True
        owned = max(owned, len(process.slots))
    row["children"] = owned
    return row
