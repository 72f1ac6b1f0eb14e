"""`LastRuns`: the entity that keeps the last runs of the jobs of a scheduler."""

from dataclasses import dataclass, field

from .._core.tables.pending_calls import Caller
from .._core.vocabulary.errors import Reject
from .._core.vocabulary.public_names import show_public_names
from ..schedules.run_notes import KnownRuns, NoteRuns
from .entity import Entity

__all__ = ["LastRuns", "SettledRuns"]


@dataclass
class SettledRuns:
    """The moments up to which the runs of jobs are settled, by the names of the jobs."""

    moments: dict[str, float] = field(default_factory=dict)


class LastRuns(Entity[SettledRuns]):
    """Keeps the last runs of the jobs of a `Scheduler`, so that a later program knows which it has
    missed. List it among the kinds of ``Entities``, and write ``Scheduler(jobs,
    last_runs=LastRuns)``.
    """

    def handle_call(self, request: object, caller: Caller) -> object:
        """Keep moments, or tell them."""
        moments = self.state.moments
        match request:
            case NoteRuns(noted):
                for name, moment in noted.items():
                    if moment is None:
                        moments.pop(name, None)
                    else:  # also an earlier one: the clock may have been wrong
                        moments[name] = moment
                return None
            case KnownRuns():
                return dict(moments)
        raise Reject(LookupError(request))


show_public_names(__name__)
