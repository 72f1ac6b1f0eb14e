"""A real terminal: a program on a pty, and the test at the other end."""

import codecs
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["ERGO", "ROOT", "UTF_8", "Terminal", "at_terminal", "background"]

ROOT = Path(__file__).parent.parent.parent
ERGO = [sys.executable, "-W", "error", "-m", "ergo_py"]
# In a session of its own, so that Ctrl-C at this terminal is a signal there, and a new size is
# announced. A shell that runs the tests in the background has Ctrl-C ignored, which programs
# inherit.
_TAKE_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)
UTF_8 = {"PYTHONIOENCODING": "utf-8"}
"""For a program with output that a test reads: the letters are the same in every locale."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x07")


class Terminal:
    """As its user sees it."""

    def __init__(self, fd: int, process: "subprocess.Popen[bytes]") -> None:
        self.fd = fd
        self.process = process
        self.raw = ""
        self._seen = 0
        # A character may come in two parts.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def text(self) -> str:
        """All that has appeared, without colours and the like."""
        return _ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    def type(self, text: str) -> None:
        """Press keys; \\n is Return."""
        os.write(self.fd, text.encode())

    def receive(self) -> bool:
        """Read some output; False if the program has ended."""
        try:
            self.raw += self._decoder.decode(os.read(self.fd, 65536))
        except OSError:
            return False
        return True

    def wait_for(self, text: str, seconds: float = 60.0) -> str:
        """Wait until ``text`` appears after the last match; returns the output until then."""
        end = time.monotonic() + seconds
        while (found := self.text.find(text, self._seen)) < 0:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise AssertionError(f"{text!r} did not appear:\n{self.text}")
            if not self.receive():
                raise AssertionError(f"the program ended without {text!r}:\n{self.text}")
        shown = self.text[self._seen : found]
        self._seen = found + len(text)
        return shown

    def ask(self, source: str) -> str:
        """Type an input at a prompt; returns the output before the next prompt."""
        self.type(f"{source}\n")
        self.wait_for("\n")
        return self.wait_for(">>> ")

    def interrupt(self) -> None:
        """Press Ctrl-C at a prompt until it is noticed. Readline does not notice a Ctrl-C that
        comes while it is busy with a key.
        """
        for _ in range(10):
            self.type("\x03")
            try:
                self.wait_for("KeyboardInterrupt\n>>> ", 3.0)
            except AssertionError:
                continue
            return
        raise AssertionError(f"Ctrl-C was not noticed:\n{self.text}")

    def resize(self, lines: int, columns: int) -> None:
        """Change the size of the window; the program is told."""
        termios.tcsetwinsize(self.fd, (lines, columns))

    def status(self, seconds: float = 100.0) -> int:
        """How it ended. Its output until then is read, since a terminal that is full holds a
        program up.
        """
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            if select.select([self.fd], [], [], 0.05)[0] and not self.receive():
                break
        return self.process.wait(max(0.1, end - time.monotonic()))


def _program(
    arguments: tuple[object, ...], command: list[str] | None, python: str = sys.executable
) -> list[str]:
    return [*ERGO, *map(str, arguments)] if command is None else [python, *command]


def _surroundings() -> dict[str, str]:
    """The environment without the wishes of the user that runs the tests: whether there are
    colours, and how large a window is.
    """
    wishes = ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES")
    return {name: value for name, value in os.environ.items() if name not in wishes}


@contextmanager
def at_terminal(
    *arguments: object,
    command: list[str] | None = None,
    lines: int = 30,
    columns: int = 120,
    cwd: Path = ROOT,
    python: str = sys.executable,
    **environment: str,
) -> Iterator[Terminal]:
    """``ergo`` with these arguments in a terminal of its own, or ``python`` with those of
    ``command``.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (lines, columns))
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", _TAKE_TERMINAL, *_program(arguments, command, python)],
        cwd=cwd,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={
            **_surroundings(),
            "TERM": "xterm",
            "HOME": os.environ.get("XDG_RUNTIME_DIR", ""),
            **UTF_8,
            **environment,
        },
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)


@contextmanager
def background(
    *arguments: object, command: list[str] | None = None, **environment: str
) -> Iterator["subprocess.Popen[str]"]:
    """A program without a terminal, ended by Ctrl-C."""
    with subprocess.Popen(
        _program(arguments, command),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env={**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", **UTF_8, **environment},
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
