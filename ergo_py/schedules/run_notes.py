"""`NoteRuns`, `KnownRuns`: the requests of a scheduler to the entity that keeps its last runs."""

from collections.abc import Mapping
from dataclasses import dataclass

from .._core.vocabulary.messages import Request

__all__ = ["KnownRuns", "NoteRuns"]


@dataclass(frozen=True, slots=True)
class NoteRuns(Request[None]):
    """Keep the moments up to which the runs of jobs are settled; forget a job with None."""

    moments: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class KnownRuns(Request[dict[str, float]]):
    """The moments up to which the runs of jobs are settled."""
