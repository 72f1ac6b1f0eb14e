"""``python -m benchmarks conformance``: the Autobahn test suite against our WebSocket server."""

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import trio

from ergo_py import PID, Actor, Alias, Node, open_node
from ergo_py.web import WS, Route, WebServer

__all__ = ["main"]

GOOD = {"OK", "NON-STRICT", "INFORMATIONAL", "UNIMPLEMENTED"}
"""Results that break no rule of RFC 6455."""
LARGEST = 64 * 1024 * 1024


class Echo(Actor):
    """Sends every message back."""

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case WS.Text(connection, content) | WS.Binary(connection, content):
                self.send(connection, WS.Send(content))


class Owner(Actor):
    def __init__(self, server: WebServer) -> None:
        self.server = server

    async def init(self) -> None:
        await self.spawn_meta(self.server)


async def _run(suite: Path, cases: list[str], output: Path) -> None:
    server = WebServer(
        routes=[Route("/", websocket=Echo, compress=True, max_message=LARGEST, origins=["*"])]
    )
    node: Node
    async with open_node("conformance@localhost", log_output="none") as node:
        await node.spawn(Owner, server)
        spec = {
            "outdir": str(output),
            "servers": [{"agent": "ergo_py", "url": f"ws://127.0.0.1:{server.local.port}"}],
            "cases": cases,
            "exclude-cases": [],
            "exclude-agent-cases": {},
        }
        path = output / "spec.json"
        await trio.Path(path).write_text(json.dumps(spec))
        # The cases of compression take many minutes: the suite names each case that it begins.
        await trio.run_process(
            [str(suite), "-m", "fuzzingclient", "-s", str(path)],
            stdout=sys.stderr,
            capture_stderr=True,
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description=__doc__)
    parser.add_argument("--suite", type=Path, required=True, help="the program wstest")
    parser.add_argument(
        "--cases", default="*", help="the cases to run, such as 1.*,2.* (default: all)"
    )
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        output = Path(place)
        trio.run(_run, chosen.suite.absolute(), chosen.cases.split(","), output)
        results = json.loads((output / "index.json").read_text())["ergo_py"]
    counts = Counter(result["behavior"] for result in results.values())
    unclean = [name for name, one in results.items() if one["behaviorClose"] not in GOOD]
    wrong = [name for name, one in results.items() if one["behavior"] not in GOOD]
    print(f"{len(results)} cases:", ", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
    for name in sorted({*wrong, *unclean}):
        one = results[name]
        print(f"  {name}: {one['behavior']}, its close {one['behaviorClose']}")
    return 1 if wrong or unclean or not results else 0


if __name__ == "__main__":
    sys.exit(main())
