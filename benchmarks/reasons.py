"""Why something is not reached, or cheaper elsewhere: the page that is made from the figures says it beside each of them.

What is written here was found out with a profiler or by leaving things out one at a time; figures stay out of it, they change.
"""

from dataclasses import dataclass

__all__ = ["GOALS", "GROWTH", "LOSSES", "Reason", "why"]


@dataclass(frozen=True)
class Reason:
    """Holds for cases and lines that contain these words, and for these references (all, if there are none)."""

    case: str
    text: str
    line: str = ""
    of: tuple[str, ...] = ()

    def fits(self, case: str, line: str, of: str) -> bool:
        return self.case in case and self.line in line and (not self.of or of in self.of)


def why(reasons: tuple[Reason, ...], case: str, line: str, of: str) -> str:
    """The first reason that fits, or nothing."""
    return next((reason.text for reason in reasons if reason.fits(case, line, of)), "")


LOSSES: tuple[Reason, ...] = ()
GOALS: tuple[Reason, ...] = ()
GROWTH: tuple[Reason, ...] = (
    Reason(
        "least loaded",
        "The load of a worker changes as it works, and nobody is told, so all workers are looked at for each message: for a "
        "handful that is nothing; hundreds should take turns.",
    ),
)
