"""``python -m benchmarks.chaos``."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from . import __doc__ as about
from .programme import Scenario, brief, endless, whole
from .report import HEADER, as_json, line, summary
from .rig import Findings, suffer

__all__ = ["main"]

DISK = "CHAOS_DISK"
"""The environment variable with the directory of a small disk of our own, once there is such a
disk.
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=about)
    parser.add_argument(
        "--seed", type=int, default=1, help="decides whatever is left to chance (default: 1)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.0,
        help="go on with random orders until so much time is over",
    )
    parser.add_argument("--brief", action="store_true", help="a few seconds of it")
    parser.add_argument("--only", metavar="TEXT", help="only scenarios with this in their names")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    parser.add_argument("--list", action="store_true", help="name the scenarios, and leave")
    chosen = parser.parse_args(arguments)
    random = Random(chosen.seed)
    programme = list(brief(random) if chosen.brief else whole())
    if chosen.only is not None:
        programme = [scenario for scenario in programme if chosen.only in scenario.name]
    if chosen.list:
        print("\n".join(scenario.name for scenario in programme))
        return 0
    scenarios = until(chosen.seconds, programme, endless(random))
    found = run(scenarios, random)
    print("\n" + summary(chosen.seed, found))
    if chosen.json is not None:
        chosen.json.write_text(as_json(chosen.seed, found), encoding="utf-8")
    return 0 if all(findings.is_good for findings in found) else 1


def until(
    seconds: float, programme: Iterable[Scenario], more: Iterator[Scenario]
) -> Iterator[Scenario]:
    """The whole programme, and more if there is time."""
    end = time.monotonic() + seconds
    yield from programme
    while time.monotonic() < end:
        yield next(more)


def run(scenarios: Iterable[Scenario], random: Random) -> list[Findings]:
    """Do them all, each with a gateway of its own."""
    found: list[Findings] = []
    print(HEADER, flush=True)
    for number, scenario in enumerate(scenarios, start=1):
        with tempfile.TemporaryDirectory() as place:
            directory = Path(os.environ.get(DISK, place))
            found.append(suffer(scenario.name, scenario.ordeal, directory, random))
            for leftover in directory.iterdir():
                leftover.unlink()
        print(line(number, found[-1]), flush=True)
    return found


def on_a_small_disk() -> int | None:
    """Run this again where a small disk is mounted that no other program sees; None if that cannot
    be done here.
    """
    unshare = shutil.which("unshare")
    if unshare is None or DISK in os.environ:
        return None
    with tempfile.TemporaryDirectory() as place:
        mount = f'mount -t tmpfs -o size=8m chaos "{place}"'
        apart = [unshare, "--map-root-user", "--mount", "sh", "-c"]
        if subprocess.run([*apart, mount], capture_output=True, check=False).returncode != 0:
            return None
        command = [
            *apart,
            f'{mount} && exec "$0" -m benchmarks.chaos "$@"',
            sys.executable,
            *sys.argv[1:],
        ]
        # A terminal signals both programs to end; any other sender signals only this program, which
        # passes the signal on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with subprocess.Popen(command, env={**os.environ, DISK: place}) as process:
            signal.signal(signal.SIGTERM, lambda *_: process.terminate())
            return process.wait()


if __name__ == "__main__":
    status = on_a_small_disk()
    if status is None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # In order, as by Ctrl-C: a decoder that is stopped at this moment would not notice that all
        # others are gone.
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        status = main()
    sys.exit(status)
