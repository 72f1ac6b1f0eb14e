"""``make demo``: it plays its session, ends by itself without a terminal, and serves until Ctrl-C
at a terminal.
"""

import os
import pty
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.examples.programs import ROOT, promised
from tests.shell.terminal import UTF_8
from tests.support import THOROUGH

COMMAND = [sys.executable, "-W", "error", "-m", "examples.demo"]


def demo(**environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        COMMAND,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=200,
        check=False,
        env={
            **{k: v for k, v in os.environ.items() if k != "DEMO_SECONDS"},
            **UTF_8,
            **environment,
        },
    )


def test_make_runs_this_demonstration() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert re.search(r"^DEMO +\?= -m examples\.demo$", makefile, re.MULTILINE)


def test_without_a_terminal_the_demo_plays_its_session_and_exits_with_status_0() -> None:
    done = demo()

    assert done.returncode == 0, done.stderr
    for part in (
        "bob < ann: hello bob",
        "{'visits': '2', 'heat': '21.5 now', 'answer': '3.2 ms, median of 1'}",
        "├─ room Room <PID 3 demo@localhost>",
        "└─ TCPConnection <Alias ",
        "messages in  2",
        "bob > /crash",
        "the room is gone (crashed: RuntimeError: bob asked for it)",
        "(1 restart)",
        "bob < ann: are you still there?",
        "node down in",
    ):
        assert part in done.stdout
    assert [
        line for line in promised("demo").splitlines() if line not in done.stdout.splitlines()
    ] == []
    assert "turn" not in done.stdout
    assert "killed" not in done.stdout
    assert "abandoned" not in done.stdout
    # The crash is in the log, with its traceback, and nothing else is.
    assert done.stderr.count("Traceback") == 1
    assert "RuntimeError: bob asked for it" in done.stderr


def test_the_demo_serves_for_the_configured_time() -> None:
    began = time.monotonic()

    done = demo(DEMO_SECONDS="1")

    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began > 1
    assert "Now it is your turn" in done.stdout
    assert "It ends by itself after 1 seconds." in done.stdout


@pytest.mark.parametrize("seconds", ["soon", "-1", "nan"])
def test_an_invalid_time_is_refused_with_a_hint(
    seconds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEMO_SECONDS", seconds)

    with pytest.raises(SystemExit) as caught:
        runpy.run_module("examples.demo", run_name="__main__")

    assert caught.value.code == (
        f"DEMO_SECONDS is {seconds!r}; it takes a number from 0 up, such as DEMO_SECONDS=60"
    )


def test_the_demo_finds_other_ports_if_its_own_are_taken() -> None:
    is_held, done = False, None
    while done is None or (not is_held and "local  127.0.0.1:7777" in done.stdout):
        # Another program may have the port, and give it back before the demonstration looks: then
        # this is tried again.
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                taken.bind(("127.0.0.1", 7777))
                taken.listen()
                is_held = True
            done = demo()

    assert done.returncode == 0, done.stderr
    assert "local  127.0.0.1:7777" not in done.stdout


def test_the_demo_plays_its_session_in_an_ascii_locale() -> None:
    done = demo(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="")

    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


class Screen:
    """A terminal, as its user sees it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.text = ""

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while text not in self.text:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise AssertionError(f"{text!r} did not appear:\n{self.text}")
            try:
                self.text += os.read(self.fd, 65536).decode()
            except OSError as error:
                raise AssertionError(f"the program ended without {text!r}:\n{self.text}") from error


@contextmanager
def on_a_terminal() -> Iterator[tuple["subprocess.Popen[bytes]", Screen]]:
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("DEMO_SECONDS", "NO_COLOR")}
    process = subprocess.Popen(
        COMMAND,
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield process, Screen(ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.skipif(
    not THOROUGH, reason="it takes its time for people: python -m benchmarks test-deep runs it"
)
def test_at_a_terminal_the_demo_serves_until_ctrl_c() -> None:
    with on_a_terminal() as (process, screen):
        screen.wait_for("Ctrl-C stops everything in order.")
        port = int(re.findall(r"nc 127\.0\.0\.1 (\d+)", screen.text)[0])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as guest:
            guest.sendall(b"carl\n")
            screen.wait_for("welcome, carl")
            process.send_signal(signal.SIGINT)
            screen.wait_for("node down in")
        status = process.wait(timeout=100)

    assert status == 0
    assert "Traceback" not in screen.text.partition("Now it is your turn")[2]
