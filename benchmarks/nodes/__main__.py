"""``python -m benchmarks.nodes``: calls and messages between two programs, beside Erlang's
distribution and xoscar, and beside two programs of trio that exchange the same bytes by hand, which
is the limit; and a function on all cores. All in one run, in turn; each figure is the best of the
rounds, since other programs only make a round slower.
"""

import argparse
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .cores import speed_ups
from .local import local_ratios
from .ours import BYTES, PARALLEL

Figures = dict[str, float]
_TITLES = {
    "p50": "call, p50, ms",
    "calls": f"calls/s, {PARALLEL} at once",
    "messages": "messages/s, one way",
    "cpu": "CPU of a message, both programs, µs",
}
_RATES = frozenset({"calls", "messages"})
_GOALS = {"p50": 2.5, "calls": 1.0, "messages": 0.4}
"""Goals of a `Local` network, as multiples of Erlang's distribution."""
_INSIDE = {"tell": 1.01, "call": 1.03}
"""Goals inside a node."""


def verdict(figure: str, ratio: float, goal: float, limit: float | None = None) -> str:
    """Says whether a goal is met. If it is missed, ``limit`` shows whether two programs of trio by
    hand meet it.
    """
    is_rate = figure in _RATES

    def meets(value: float) -> bool:
        return value >= goal if is_rate else value <= goal

    text = f"goal {'≥' if is_rate else '≤'} {goal:g}: {'met' if meets(ratio) else 'missed'}"
    if meets(ratio) or limit is None:
        return text
    return f"{text}; by hand {limit:.2f}, which {'meets it' if meets(limit) else 'misses it, too'}"


@contextmanager
def _serving(command: Sequence[str], **options: Any) -> Iterator[str]:
    """A program that serves, until the block ends. Gives the rest of its first line."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, **options
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().removeprefix("ready").strip()
        finally:
            server.kill()


def _ask(command: Sequence[str], env: dict[str, str] | None = None) -> Figures:
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=300, env=env
    )
    figures: Figures = json.loads(done.stdout)
    return figures


def _ours(size: int) -> Figures:
    return _in_directory("benchmarks.nodes.ours", size)


def _by_hand(size: int) -> Figures:
    return _in_directory("benchmarks.nodes.by_hand", size)


def _in_directory(module: str, size: int) -> Figures:
    """Two programs that meet at a directory."""
    with tempfile.TemporaryDirectory(prefix="ergo-", dir="/tmp") as directory:
        os.chmod(directory, 0o700)
        program = [sys.executable, "-m", module]
        with _serving([*program, "serve", directory]):
            return _ask([*program, "ask", directory, str(size)])


def _xoscar(size: int) -> Figures:
    program = [sys.executable, "-m", "benchmarks.nodes.with_xoscar"]
    with _serving([*program, "serve"]) as address:
        return _ask([*program, "ask", address, str(size)])


def _erlang(size: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="erlang-") as directory, socket.socket() as probe:
        source = Path(__file__).with_name("distribution.erl")
        subprocess.run(["erlc", "-o", directory, str(source)], check=True)
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        # A name server of its own, on loopback, that ends with the measurement.
        env = {**os.environ, "ERL_EPMD_PORT": port, "ERL_EPMD_ADDRESS": "127.0.0.1"}
        begin = ["erl", "-noshell", "-pa", directory, "-setcookie", secrets.token_hex(16)]
        begin += ["-kernel", "inet_dist_use_interface", "{127,0,0,1}"]
        with _serving(["epmd", "-port", port, "-d"], env=env, stderr=subprocess.STDOUT):
            serve = [*begin, "-sname", "b@localhost", "-run", "distribution", "serve", "x"]
            ask = [*begin, "-sname", "a@localhost", "-run", "distribution", "ask", "b@localhost"]
            with _serving(serve, env=env):
                return _ask([*ask, str(size), str(BYTES), str(PARALLEL)], env)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--size", type=int, default=20_000, help="messages of a measurement")
    chosen = parser.parse_args()
    contestants: dict[str, Callable[[int], Figures]] = {"Local": _ours, "by hand": _by_hand}
    if shutil.which("erlc") and shutil.which("epmd"):
        contestants["Erlang"] = _erlang
    else:
        print("left out: Erlang (no erlc and epmd here; on Debian, `apt install erlang-base`)")
    if find_spec("xoscar") is not None:
        contestants["xoscar"] = _xoscar
    else:
        print("left out: xoscar (not installed; `python -m benchmarks nodes` brings it)")
    rounds = [
        {name: work(chosen.size) for name, work in contestants.items()}
        for _ in range(chosen.rounds)
    ]
    print(
        f"{'two programs, ' + str(BYTES) + ' bytes':38}", *(f"{name:>12}" for name in contestants)
    )
    for figure, title in _TITLES.items():
        choose = max if figure in _RATES else min
        best = {name: choose(one[name][figure] for one in rounds) for name in contestants}
        print(
            f"{title:38}",
            *(f"{value:12,.3g}" if value < 100 else f"{value:12,.0f}" for value in best.values()),
        )
        for name in list(contestants)[1:]:
            ratio = best["Local"] / best[name]
            told = ""
            if name == "Erlang" and figure in _GOALS:
                limit = best["by hand"] / best[name]
                told = "  " + verdict(figure, ratio, _GOALS[figure], limit)
            print(f"{'  Local / ' + name:38} {ratio:12.2f}{told}")
    print("\ninside a node: cost with a network, times the cost without")
    for verb, ratio in local_ratios(chosen.size).items():
        print(f"{verb:38} {ratio:12.3f}  {verdict(verb, ratio, _INSIDE[verb])}")
    count = len(os.sched_getaffinity(0))
    taken = [speed_ups(8 * count, count) for _ in range(chosen.rounds)]
    print(f"\na function on {count} cores: times as fast as in a single program")
    for name in taken[0]:
        print(f"{name:38} {max(one[name] for one in taken):12.2f}")


if __name__ == "__main__":
    main()
