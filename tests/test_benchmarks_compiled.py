"""The compiled peers: a stand-in runs their programs here, since the tests need no compiler."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("pykka", reason="needs the package pykka")

from benchmarks.harness import Figures, discover
from benchmarks.peers.compiled import MORE, SOURCES, adds, build

PROGRAM = """
import json, socket, sys, threading

work, *numbers = sys.argv[1:]
if work == "tcp":
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)

    def echo(sock):
        while data := sock.recv(65536):
            sock.sendall(data)

    def accept():
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=echo, args=(sock,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.readline()
elif work == "udp":
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    print(sock.getsockname()[1], flush=True)
    sock.recv(2048)
    print(json.dumps({"cpu": 1.0, "wall": int(numbers[0])}), flush=True)
else:
    print(json.dumps({"wall": int(numbers[1]), "cpu": int(numbers[0])}))
"""


def run(case: str, size: int, tmp_path: Path) -> Figures:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    (variant,) = adds("Peer", lambda: [sys.executable, str(program)])[case].values()
    return variant(size)


def test_a_compiled_peer_joins_existing_cases_only() -> None:
    names = {case.name for case in discover()}

    assert adds("Peer", list).keys() <= names


def test_a_compiled_peer_gets_more_work_than_a_python_variant(tmp_path: Path) -> None:
    assert run("tell, 100 to 100", 7, tmp_path) == {"wall": 7 * MORE, "cpu": 100}
    assert run("crowd of 10,000", 7, tmp_path) == {"wall": 7, "cpu": 1}


def test_an_echo_server_of_a_compiled_peer_is_measured_by_wall_time(tmp_path: Path) -> None:
    figures = run("TCP echo, 64 bytes", 50, tmp_path)

    assert figures.keys() == {"wall"}
    assert figures["wall"] > 0


def test_a_datagram_sink_of_a_compiled_peer_reports_its_own_figures(tmp_path: Path) -> None:
    assert run("UDP flood, 64 bytes", 9, tmp_path) == {"cpu": 1.0, "wall": 9}


def test_a_failed_build_raises_the_words_of_the_compiler() -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        build(sys.executable, "-c", "raise SystemExit('no such thing')")


def test_a_build_puts_its_output_into_a_directory_of_its_own() -> None:
    script = "import sys, pathlib; pathlib.Path(sys.argv[1], 'made').write_text('x')"

    made = build(sys.executable, "-c", script, "{directory}")

    assert (made / "made").read_text(encoding="utf-8") == "x"
    assert SOURCES not in made.parents
