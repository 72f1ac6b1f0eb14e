"""`Walk`: the steps of a newcomer's walk, each with its seconds, and the page about them."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.examples.programs import ROOT

__all__ = ["PAGE", "STEPS", "Walk"]

PAGE: Final = ROOT / "docs" / "design" / "walk.md"
STEPS: Final = (
    "build wheel and sdist from a checkout",
    "make an environment, and install the wheel",
    "`ergo --version`",
    "`ergo demo`: its page answers, two parts are killed and come back",
    "the program of the README, until it listens",
    "three numbers, a crash, and a number for the successor",
    "`ergo ps` and `ergo crashes` of that program",
    "`ergo new shop`",
    "install the tools of that project, and run its tests",
    "all programs, tests and commands of the tutorial",
)
_HEAD: Final = """\
# The first steps, timed

After this page you know how long a new user waits for each of the first steps. A change that makes
a step slower changes this page.

`make walk` takes these steps in an empty environment with nothing but the wheel, as a user at a
terminal does, checks the output of each, and writes this page. It does not count the time that the
user needs to read and to type.
"""


class Walk:
    """Takes the time of each step, in the order of :data:`STEPS`."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Do a step."""
        assert STEPS[len(self.taken)] == name
        began = time.monotonic()
        yield
        self.taken.append(time.monotonic() - began)

    def page(self) -> str:
        """The page about a walk that is done."""
        rows = [
            f"| {name} | {seconds:.1f} |" for name, seconds in zip(STEPS, self.taken, strict=True)
        ]
        about = (
            f"Measured on {datetime.now(UTC):%Y-%m-%d}: {platform.machine()}, {os.cpu_count()} "
            f"processors, load {os.getloadavg()[0]:.1f} at the end; "
            f"CPython {platform.python_version()}."
        )
        table = ["| step | seconds |", "|---|---|", *rows, f"| all | {sum(self.taken):.0f} |"]
        return "\n".join([_HEAD, about, "", *table, ""])

    def write(self, page: Path = PAGE) -> None:
        """Write the page."""
        page.write_text(self.page(), encoding="utf-8")
