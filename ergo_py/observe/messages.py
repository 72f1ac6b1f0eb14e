"""Messages between the actors of the page: list of nodes, samplers, viewers."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .._core.vocabulary.ids import PID
from .._core.vocabulary.messages import MayBeLate, Request

__all__ = [
    "Answer",
    "AskHistory",
    "Enter",
    "Entered",
    "FindNode",
    "KINDS",
    "Neighbours",
    "NodeState",
    "NodesChanged",
    "Reopen",
    "Tick",
    "Update",
    "View",
    "WatchViews",
]


KINDS: Final = frozenset(
    {
        "sample",
        "rows",
        "children",
        "process",
        "near",
        "calls",
        "threads",
        "crashes",
        "dead-letters",
        "events",
        "log",
        "applications",
        "entities",
        "pipelines",
    }
)
"""The kinds of views."""


@dataclass(frozen=True, slots=True)
class View:
    """A view that a page watches."""

    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Enter(Request["Entered"]):
    """A page wants in."""

    token: str


@dataclass(frozen=True, slots=True)
class Entered:
    """The decision about a page."""

    is_admitted: bool
    code: int = 0
    """The code to close with."""
    reason: str = ""
    wait: float = 0.0
    """Seconds to wait before the answer."""
    nodes: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NodesChanged(MayBeLate):
    """The list of nodes, for all pages."""

    nodes: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class NodeState(MayBeLate):
    """A sampler tells the list of nodes about its node."""

    key: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Neighbours(MayBeLate):
    """The nodes that a node is connected to, over its network."""

    key: str
    path: Path
    nodes: list[str]


@dataclass(frozen=True, slots=True)
class FindNode(Request[tuple[Path, str | None, bool] | None]):
    """Where is this node: its socket, the node to pass requests on to, and whether it has ended."""

    key: str


@dataclass(frozen=True, slots=True)
class WatchViews(MayBeLate):
    """A page watches these views of a node from now on; none if empty."""

    viewer: PID
    key: str
    views: dict[str, View]


@dataclass(frozen=True, slots=True)
class Update(MayBeLate):
    """The present state of a view."""

    key: str
    view: str
    at: float
    value: dict[str, Any] | None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AskHistory(Request[dict[str, Any]]):
    """Ask for figures over time, for the state at a moment, or for a piece of a recording."""

    key: str
    do: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer(MayBeLate):
    """A line for the page: an answer, or output before it."""

    content: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time for the next look."""


@dataclass(frozen=True, slots=True)
class Reopen:
    """The node of a sampler runs at this socket now."""

    path: Path
