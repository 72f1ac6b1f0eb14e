"""Programs that a service manager starts with sockets: `systemd-socket-activate`, or a parent of
the tests that does the same.
"""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.guide import inherited_socket
from tests.support import loopback_of_this_program

PROGRAM = [sys.executable, str(Path(inherited_socket.__file__))]
START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.close(int(sys.argv[1]))
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "echo"}
os.execv(sys.argv[2], sys.argv[2:])
"""
CHILDREN = """
import subprocess
from ergo_py import run
async def main(node):
    seen = "env | grep ^LISTEN; (: <&3) 2>/dev/null && echo a socket; echo started"
    subprocess.run(["sh", "-c", seen], close_fds=False)
run(main)
"""


def by_hand(address: tuple[str, int], command: Sequence[str]) -> "subprocess.Popen[str]":
    """Start a command with a socket ``echo``."""
    with socket.create_server(address) as sock:
        return subprocess.Popen(
            [sys.executable, "-S", "-c", START, str(sock.fileno()), *command],
            pass_fds=[sock.fileno()],
            stdout=subprocess.PIPE,
            text=True,
        )


def by_systemd(address: tuple[str, int], command: Sequence[str]) -> "subprocess.Popen[str]":
    """The same: the first peer starts the command."""
    program = subprocess.Popen(
        ["systemd-socket-activate", "-l", "{}:{}".format(*address), "--fdname=echo", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stderr is not None
    assert "Listening on" in program.stderr.readline()
    return program


def test_a_program_listens_with_the_socket_of_its_manager() -> None:
    address = loopback_of_this_program(), 7778
    start = by_systemd if shutil.which("systemd-socket-activate") else by_hand

    with start(address, PROGRAM) as program:
        try:
            with socket.create_connection(address, timeout=60) as peer:
                peer.sendall(b"hello")
                assert peer.recv(10) == b"hello"
            assert program.stdout is not None
            assert program.stdout.readline() == f"listening at {address[0]}:7778\n"
        finally:
            program.send_signal(signal.SIGTERM)


def test_programs_that_a_program_starts_get_neither_variables_nor_sockets() -> None:
    address = loopback_of_this_program(), 7779

    with by_hand(address, [sys.executable, "-c", CHILDREN]) as program:
        assert program.stdout is not None
        assert program.stdout.read() == "started\n"
