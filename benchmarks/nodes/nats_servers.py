"""``python -m benchmarks.nodes.nats_servers``: two nodes over a NATS server, beside nats-py over
the same server, and beside two programs of trio by hand, which is the limit. All in one run; each
figure is the median of the rounds.
"""

import argparse
import sys
from statistics import median

from tests.network.nats.server import NatsServer

from .__main__ import _TITLES, _ask, _serving, verdict
from .ours import BYTES

_GOALS = {"p50": 0.85, "calls": 1.3}
"""Goals as multiples of nats-py."""


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes.nats_servers")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--size", type=int, default=20_000, help="messages of a measurement")
    chosen = parser.parse_args()
    programs = {"NATS": "ours", "by hand": "by_hand", "nats-py": "with_nats_py"}
    rounds = []
    with NatsServer() as server:
        for number in range(chosen.rounds):
            figures = {}
            # Alternate which comes first: a machine becomes slower and faster.
            for name in list(programs)[:: 1 if number % 2 else -1]:
                program = [sys.executable, "-m", f"benchmarks.nodes.{programs[name]}"]
                with _serving([*program, "serve", server.url]):
                    figures[name] = _ask([*program, "ask", server.url, str(chosen.size)])
            rounds.append(figures)
    print(
        f"{'two programs, ' + str(BYTES) + ' bytes, a server':38}",
        *(f"{name:>12}" for name in (*programs, "/ nats-py")),
    )
    for figure, title in _TITLES.items():
        values = (median(one[name][figure] for one in rounds) for name in programs)
        ratio, limit = (
            median(one[name][figure] / one["nats-py"][figure] for one in rounds)
            for name in ("NATS", "by hand")
        )
        told = verdict(figure, ratio, _GOALS[figure], limit) if figure in _GOALS else ""
        print(
            f"{title:38}",
            *(f"{value:12,.3g}" if value < 100 else f"{value:12,.0f}" for value in values),
            f"{ratio:12.2f}  {told}",
        )


if __name__ == "__main__":
    main()
