"""The report at the end: a table for people, and everything as JSON for programs."""

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import trio

from .rig import Findings

__all__ = ["as_json", "line", "summary"]

HEADER = (
    f"{'':>4} {'s':>6} {'outage':>8} {'answer':>8} "
    f"{'TCP':>6} {'UDP':>6} {'lost':>5} {'may':>5}  scenario"
)


def line(number: int, findings: Findings) -> str:
    """A single scenario."""
    told = "" if findings.is_good else "   VIOLATED: " + "; ".join(findings.violations)
    return (
        f"{number:>4} {findings.seconds:>6.2f} {findings.outage:>7.2f}s "
        f"{1000 * findings.worst_answer:>6.0f}ms"
        f" {findings.tcp_sent:>6} {findings.udp_sent:>6} {findings.udp_lost:>5} "
        f"{findings.udp_allowed:>5}  {findings.name}{told}"
    )


def summary(seed: int, all_: Sequence[Findings]) -> str:
    """The results of all scenarios."""
    good = [findings for findings in all_ if findings.is_good]
    strikes = sum(len(findings.struck) for findings in all_)
    missed = sum(struck.startswith("(") for findings in all_ for struck in findings.struck)
    restarts = sum(sum(findings.restarts.values()) for findings in all_)
    lines = [
        f"seed {seed}: {len(all_)} scenarios, {strikes - missed} strikes ({missed} more found "
        f"nobody), {restarts} restarts",
        f"TCP: {sum(f.tcp_sent for f in all_)} readings sent over "
        f"{sum(f.tcp_connections for f in all_)} connections"
        + (", all of them stored, each once" if len(good) == len(all_) else ""),
        f"UDP: {sum(f.udp_sent for f in all_)} datagrams sent, {sum(f.udp_lost for f in all_)} "
        "lost,"
        f" of which the documentation gives up {sum(f.udp_allowed for f in all_)} at most"
        f" and the operating system dropped {sum(f.udp_dropped for f in all_)}",
        "longest time without an acknowledgement: "
        f"{max((f.outage for f in all_), default=0.0):.1f} s;"
        f" threads left behind: {sum(f.abandoned for f in all_)}",
        f"{len(all_) - len(good)} scenarios violated what is promised"
        if len(good) < len(all_)
        else "nothing was violated",
    ]
    notes = {f"{findings.name}: {note}" for findings in all_ for note in findings.notes.values()}
    return "\n".join([*lines, *sorted(notes)])


def as_json(seed: int, all_: Sequence[Findings]) -> str:
    """Everything."""
    document: dict[str, Any] = {
        "seed": seed,
        "python": sys.version.split()[0],
        "trio": trio.__version__,
        "system": platform.platform(),
        "good": all(findings.is_good for findings in all_),
        "scenarios": [asdict(findings) for findings in all_],
    }
    return json.dumps(document, indent=1) + "\n"
