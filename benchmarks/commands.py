"""The commands of ``python -m benchmarks NAME [OPTIONS]``: measurements, long searches for faults,
and the work before a release. A newcomer needs the targets of ``make help`` only.
"""

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_ROOT = Path(__file__).parent.parent
_WORKERS = f"--numprocesses={(os.cpu_count() or 1) + 1} --dist=worksteal"
_PYTEST = '"$python" -m pytest -o faulthandler_timeout=1800'
_PAGES = '"$python" -m tests.pages'


@dataclass(frozen=True, slots=True)
class Command:
    """A script of bash, in which ``$python`` is the interpreter and ``$@`` are the options."""

    purpose: str
    script: str
    environment: str = ""
    """The directory of an environment that a rule of the Makefile creates, if it needs its own."""


COMMANDS = {
    "test-deep": Command(
        "run the tests with many more examples, in pure Python and with the C extension",
        f"""
export HYPOTHESIS_PROFILE=thorough
ERGO_PURE=1 {_PYTEST} "$@"
{_PYTEST} "$@"
""",
    ),
    "test-matrix": Command(
        "run the tests on every Python from 3.11 to 3.14 and 3.14t found here",
        '.ci/test-matrix "$@"',
    ),
    "test-bounds": Command(
        "run a part of the tests with the lowest and the newest dependencies that pyproject.toml "
        "allows",
        '.ci/test-bounds "$@"',
    ),
    "test-loops": Command(
        "run the tests of other loops with asyncpg, redis, FastAPI, IPython, a notebook and a "
        "window",
        'ERGO_TEST_LOOPS=1 "$python" -m pytest tests/loops "$@"',
        ".venv-loops",
    ),
    "test-environments": Command(
        'run the tests in the unusual environments of .ci/environment; ENVIRONMENTS="ascii '
        'no-ipv6" before the command selects',
        f"""
HYPOTHESIS_PROFILE=fast .ci/test-environments "${{ENVIRONMENTS:-}}" \
    "$python" -m pytest {_WORKERS} "$@"
""",
    ),
    "sanitize": Command(
        "run the tests of the C extension under AddressSanitizer and UndefinedBehaviorSanitizer",
        '.ci/sanitize "$python" "$@"',
    ),
    "partitions": Command(
        "search 1,000 seeded partitions for two singletons that run at once, with bad clocks and "
        "with whole nodes",
        f"""
HYPOTHESIS_PROFILE=thorough {_PYTEST} \
    tests/cluster/test_partitions.py tests/cluster/test_worlds.py tests/cluster/test_groups.py "$@"
""",
    ),
    "conformance": Command(
        'run the Autobahn test suite against our WebSockets (needs Python 2.7); --cases "1.*" '
        "selects",
        '.ci/conformance "$python" "$@"',
    ),
    "clients": Command(
        "run curl, wrk, node's ws and a browser against the web server, as far as they are "
        "installed",
        """
# Without ws its test is skipped.
test -d .venv-node/node_modules/ws || npm install --silent --no-fund --prefix .venv-node ws || true
NODE_PATH="$PWD/.venv-node/node_modules" HYPOTHESIS_PROFILE=thorough \
    "$python" -m pytest -rs tests/web/test_clients.py "$@"
""",
    ),
    "mutants": Command(
        "break the code in small ways, and list the breaks that no test notices",
        'ERGO_PURE=1 "$python" -m benchmarks.mutants "$@"',
    ),
    "power": Command(
        "lose power at every sync of the file of entities, with lost and torn writes",
        f"""
HYPOTHESIS_PROFILE=thorough {_PYTEST} tests/entities/stores/test_power.py "$@"
""",
    ),
    "planted": Command(
        "plant faults into the protocols, and search worlds for a seed that finds each",
        '"$python" -m benchmarks.planted "$@"',
    ),
    "worlds": Command(
        "explore seeds of the worlds that check networks, clusters and entities, on all cores; "
        "--seeds 20000 --only bank",
        '"$python" -m benchmarks.worlds "$@"',
    ),
    "digests": Command(
        "compare the digests of worlds in many programs: pure and with the C extension, with "
        "several hash seeds, idle and under load; --seeds 200 --runs 5 --only singletons",
        '"$python" -m benchmarks.digests "$@"',
    ),
    "leaks": Command("run the leak tests for longer", '"$python" -m benchmarks.leaks "$@"'),
    "devices": Command(
        "unplug a serial line 1,000 times, and measure serial lines and a CAN bus beside the bare "
        "loops of their libraries",
        '"$python" -m benchmarks.devices "$@"',
    ),
    "fleet": Command(
        "entities on three nodes and PostgreSQL: the pause of a key when its shard moves or its "
        "node is killed, and the commands of three nodes beside a single node",
        '"$python" -m benchmarks.fleet "$@"',
    ),
    "interrupts": Command(
        "press Ctrl-C at random moments in 500 busy programs; --trials 1000 --seed 2 for others",
        '"$python" -m benchmarks.interrupts "$@"',
    ),
    "slow-peers": Command(
        "attack the web server with 10,000 slow heads, and with slowhttptest if it is installed",
        '"$python" -m benchmarks.slow_peers "$@"',
    ),
    "replacements": Command(
        "connect 100,000 peers while the server at their address is replaced again and again",
        '"$python" -m benchmarks.replacements "$@"',
    ),
    "upgrades": Command(
        "connect 100,000 peers while 1,000 upgrades replace their program, and check its counter; "
        "--upgrades 50 --peers 5000 for fewer",
        '"$python" -m benchmarks.upgrades "$@"',
    ),
    "moves": Command(
        "move 10,000 open connections with an upgrade, of TCP and of WebSockets, beside a move by "
        "hand; --connections 1000 --only websocket for fewer",
        '"$python" -m benchmarks.moves "$@"',
    ),
    "soak-nodes": Command(
        "run four programs on a NATS server for ten minutes, with seeded kills of programs and "
        "server",
        '"$python" -m benchmarks.soak_nodes "$@"',
    ),
    "brokers": Command(
        "run pipelines on the brokers that are installed (Redis, PostgreSQL, RabbitMQ, "
        "mosquitto, NATS), with ITEMS=100000 items and 51 kills of consumer, program and broker, "
        "and measure them beside the loops of their libraries",
        'ERGO_BROKERS="${ITEMS:-100000}" "$python" -m pytest tests/pipelines/brokers '
        "tests/examples/test_cookbook.py tests/devices/test_postgres_listen.py "
        'tests/devices/test_mqtt_topics.py -rP "$@"\n'
        '"$python" -m benchmarks.broker_throughput',
    ),
    "sizing": Command(
        "simulate a network of 1,000 nodes in virtual time: traffic, detection of losses, windows",
        '"$python" -m benchmarks.sizing "$@"',
    ),
    "goals": Command(
        "measure as `make bench` does, and write that part of docs/design/measurements.md",
        f'"$python" -m benchmarks --page docs/performance "$@"\n{_PAGES}',
    ),
    "peers": Command(
        "measure beside other frameworks, and write that part of docs/performance.md",
        f'"$python" -m benchmarks.compare --page docs/performance "$@"\n{_PAGES}',
        ".venv-peers",
    ),
    "growth": Command(
        "measure how cost grows with the work, and write that part of docs/performance.md",
        f'"$python" -m benchmarks.grow --page docs/performance "$@"\n{_PAGES}',
    ),
    "before": Command(
        "measure all work of ours beside an earlier commit, in turns: before COMMIT --only tell; "
        "ERGO_PURE=1 before the command for pure Python",
        '"$python" -m benchmarks.before "$@"',
    ),
    "profile": Command(
        "show where the time of the hot paths goes; --before COMMIT shows where it went before, "
        "too",
        f'"$python" -m benchmarks.profiling --page docs/performance "$@"\n{_PAGES}',
        ".venv-peers",
    ),
    "performance": Command(
        "measure goals, peers and growth, and write their pages",
        'for name in goals peers growth; do "$python" -m benchmarks $name "$@"; done',
    ),
    "performance-page": Command(
        "write the pages of the figures again, without measuring",
        f"""
kept=docs/performance
"$python" -m benchmarks --from $kept/goals.json --page $kept
"$python" -m benchmarks.compare --from $kept/peers.json --page $kept
"$python" -m benchmarks.grow --from $kept/growth.json --page $kept
"$python" -m benchmarks.profiling --from $kept/profiles.json --page $kept
{_PAGES}
""",
    ),
    "web": Command(
        "measure the web server beside uvicorn, hypercorn, aiohttp and Go, and WebSockets beside "
        "websockets",
        '"$python" -m benchmarks --only web "$@"',
        ".venv-peers",
    ),
    "redraws": Command(
        "measure what a second costs the browser, for an open page on 10,000 processes",
        '"$python" -m tests.observe.page.redraws "$@"',
    ),
    "pictures": Command(
        "record ergo top, ergo upgrade and the demonstration, and draw docs/pictures; --only demo",
        '"$python" -m tests.pictures "$@"',
    ),
    "screenshots": Command(
        "take the pictures of the observer page for README and documentation, in Chromium",
        '"$python" -m tests.observe.page.pictures "$@"',
    ),
    "test-wheels": Command(
        "build the wheels, and install each into empty environments on every Python found here",
        """
make build
.ci/test-wheels
""",
        ".venv-release",
    ),
    "release-check": Command(
        "build wheel and sdist, and check that version, changelog and files are ready for a "
        "release; --upload checks the addresses, too",
        """
make build
.venv-release/bin/twine check --strict dist/*
"$python" .ci/release_check.py dist "$@"
""",
        ".venv-release",
    ),
}


def listed() -> str:
    """A line for each command."""
    width = max(map(len, COMMANDS))
    return "\n".join(f"  {name:{width}}  {COMMANDS[name].purpose}" for name in COMMANDS)


def run(name: str, options: list[str]) -> NoReturn:
    """Become the command of this name, or print the commands for ``list``."""
    if name == "list":
        print(listed())
        sys.exit(0)
    command = COMMANDS.get(name)
    if command is None:
        sys.exit(
            f"there is no command {name!r}; `python -m benchmarks list` lists the commands, and "
            "`python -m benchmarks --only NAME` measures the cases with this word in their names"
        )
    os.chdir(_ROOT)
    # Many tests start programs, and each program would compile all its imports again.
    environment = {key: os.environ[key] for key in os.environ if key != "PYTHONDONTWRITEBYTECODE"}
    os.execvpe(
        "bash",
        ["bash", "-euo", "pipefail", "-c", _script(command), name, *options],
        environment | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )


def _script(command: Command) -> str:
    place = command.environment
    if not place:
        return f"python={shlex.quote(sys.executable)}\n{command.script}"
    prepare = f"make --no-print-directory {place}/.installed"
    return f"{prepare}\npython={place}/bin/python\n{command.script}"
