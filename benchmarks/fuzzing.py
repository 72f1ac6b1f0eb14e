"""``python -m benchmarks.fuzzing``: any input from outside is understood or refused within a budget
of time and memory for each of its bytes, and nothing else ever happens.

Each target takes bytes and returns the outcome in a word or two. Hypothesis makes the bytes up,
partly out of earlier findings, and repeats parts of them until they are long. Inputs with a new
outcome are kept in ``tests/corpus``, a small file for each outcome, and the ordinary tests feed all
of them to the targets again. An input that makes a target fail is shrunk, shown, and tried first
the next time; ``.fuzzed`` holds it.
"""

import argparse
import hashlib
import re
import sys
import time
import traceback
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from benchmarks.budgets import Spent
from benchmarks.targets import (
    control,
    entities,
    network,
    observer,
    programs,
    stores,
    streams,
    web,
)
from benchmarks.targets.target import Target, spliced

__all__ = ["CORPUS", "MISSING", "TARGETS", "Tally", "corpus_of", "made_up", "main"]

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "corpus"
TARGETS: dict[str, Target] = {
    **streams.TARGETS,
    **control.TARGETS,
    **web.TARGETS,
    **network.TARGETS,
    **stores.TARGETS,
    **observer.TARGETS,
    **entities.TARGETS,
    **programs.TARGETS,
}
MISSING = ", ".join(
    package
    for package in ("confluent_kafka", "nats", "paho", "pika", "psycopg", "redis")
    if find_spec(package) is None
)
"""The packages that this machine lacks for the target of broker messages."""
if not MISSING:
    from benchmarks.targets import brokers

    TARGETS |= brokers.TARGETS
_LONGEST: Final = 1 << 18
"""Bytes of the longest inputs: costs that grow with the square of the input show there."""
_MOST_KEPT: Final = 1 << 14
"""Bytes of the longest input that the corpus keeps."""
_MEASURED: Final = 1 << 14
"""Bytes of the shortest input whose cost for each byte is told: shorter inputs cost a constant."""


def corpus_of(target: str) -> list[Path]:
    """Earlier findings."""
    return sorted((CORPUS / target.replace(" ", "-")).glob("*.bin"))


def made_up(target: str, longest: int = _LONGEST) -> st.SearchStrategy[bytes]:
    """Anything; nearly valid input; earlier findings with a change in them; and any of these with a
    part that is repeated.
    """
    ways: list[st.SearchStrategy[bytes]] = [st.binary(max_size=200)]
    nearly_valid = TARGETS[target].nearly_valid
    if nearly_valid is not None:
        ways.append(nearly_valid)
    if found := [path.read_bytes() for path in corpus_of(target)]:
        ways.append(
            st.builds(
                spliced,
                st.sampled_from(found),
                st.integers(0, 200),
                st.integers(0, 4),
                st.binary(max_size=4),
            )
        )
    if TARGETS[target].grow is None:
        ways.append(
            st.builds(
                stretched,
                st.one_of(ways),
                st.integers(0, 200),
                st.integers(1, 40) | st.just(longest),
                st.integers(10, longest.bit_length() - 1).map(lambda bits: 1 << bits),
            )
        )
    return st.one_of(ways)


def stretched(whole: bytes, at: int, size: int, longest: int) -> bytes:
    """An input in which a part is repeated until it has many bytes."""
    part = whole[at : at + size] or whole[-1:]
    return spliced(whole, at, 0, part * ((longest - len(whole)) // max(len(part), 1)))


# -- the program -----------------------------------------------------------------------------------


@dataclass
class Tally:
    """The attempts of a target."""

    tried: int = 0
    new: int = 0
    """Inputs with an outcome that was not known before."""
    seconds_per_byte: float = 0.0
    memory_per_byte: float = 0.0
    problem: str = ""
    """The failure that ended the attempts."""

    def add(self, spent: Spent) -> None:
        """Count an attempt."""
        self.tried += 1
        if spent.size >= _MEASURED:
            self.seconds_per_byte = max(self.seconds_per_byte, spent.seconds / spent.size)
            self.memory_per_byte = max(self.memory_per_byte, spent.memory / spent.size)

    def __str__(self) -> str:
        return (
            f"{self.tried} tried, {self.new} new outcomes, at most "
            f"{self.seconds_per_byte * 1e6:.2f} µs and {self.memory_per_byte:.0f} bytes for a byte"
        )


def keep(target: str, outcome: str, data: bytes) -> bool:
    """Keep an input that led to a new outcome, or to a known outcome in fewer bytes. Returns
    whether it was kept.
    """
    words = re.sub(r"[^a-z0-9]+", "-", outcome.lower()).strip("-")[:40]
    name = f"{words}-{hashlib.sha1(outcome.encode()).hexdigest()[:8]}.bin"
    path = CORPUS / target.replace(" ", "-") / name
    if len(data) > _MOST_KEPT or (path.exists() and path.stat().st_size <= len(data)):
        return False
    is_new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return is_new


def fuzz(target: str, seconds: float) -> Tally:
    """Try a single target for some time."""
    tally = Tally()
    deadline = time.monotonic() + seconds

    @settings(
        max_examples=500,
        deadline=None,
        database=DirectoryBasedExampleDatabase(CORPUS.parent.parent / ".fuzzed"),
        phases=[Phase.reuse, Phase.generate, Phase.shrink],
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
            HealthCheck.filter_too_much,
        ],
    )
    @given(made_up(target))
    def attempt(data: bytes) -> None:
        if time.monotonic() >= deadline and not tally.problem:
            return  # a failure is still shrunk
        try:
            spent = TARGETS[target].attempt(data)
        except Exception:
            tally.problem = "an input fails"
            raise
        tally.add(spent)
        tally.new += keep(target, spent.outcome, data)

    while time.monotonic() < deadline:
        try:
            attempt()
        except Exception:
            tally.problem = traceback.format_exc()
            break
    return tally


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzzing", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=3.0, help="how long, for all targets together (default: 3)"
    )
    parser.add_argument(
        "--each", type=float, help="how long for each target, in minutes, instead of --minutes"
    )
    parser.add_argument("--only", default="", help="only targets with this in their names")
    chosen = parser.parse_args(arguments)
    names = [name for name in TARGETS if chosen.only in name]
    if not names:
        parser.error(f"no target has {chosen.only!r} in its name; there are {', '.join(TARGETS)}")
    if MISSING:
        print(f"broker message: skipped, needs {MISSING}", flush=True)
    problems = 0
    for name in names:
        each = chosen.minutes / len(names) if chosen.each is None else chosen.each
        tally = fuzz(name, 60 * each)
        print(f"{name}: {tally}, {len(corpus_of(name))} kept", flush=True)
        if tally.problem:
            problems += 1
            print(tally.problem, flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
