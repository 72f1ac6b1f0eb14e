"""A user that has installed ergo_py and follows the tutorial, line by line, and nothing but the
tutorial.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import time
from itertools import zip_longest
from pathlib import Path
from typing import TextIO
from urllib.request import urlopen

from tests.pages import Block, blocks, path_of
from tests.shell.terminal import UTF_8, at_terminal
from tests.shell.transcripts import assert_typed, plain, split

__all__ = ["Newcomer"]

LIMIT = 200
"""Seconds that anything in the tutorial may take."""


def masked(text: str) -> str:
    """As the page says, numbers may differ."""
    return plain(
        re.sub(r"<(PID|Alias) \d+", r"<\1 N", re.sub(r"(?m)^(\S{10} \S{8} +)\d+ ", r"\1N ", text))
    )


class Newcomer:
    """Works in an empty directory, with the programs of an environment: ``python``, ``ergo``."""

    def __init__(self, place: Path, programs: Path) -> None:
        self.place = place
        self.programs = programs
        (place / "run").mkdir(mode=0o700)
        self.env = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(place),
            "XDG_RUNTIME_DIR": str(place / "run"),
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",
            **UTF_8,
        }
        self.printed = ""
        self.port = 0
        self.done: list[str] = []
        self._program: subprocess.Popen[str] | None = None
        self._peers: list[tuple[socket.socket, TextIO]] = []

    def follow(self, page: Path) -> None:
        """Follow the instructions of the page, in its order, and compare the output with the
        page.
        """
        try:
            for block in blocks(page.read_text(encoding="utf-8")):
                self._do(block)
            self._stop()
        finally:
            self._leave()

    def _do(self, block: Block) -> None:
        match block.info, block.mark:
            case "text", mark if mark.startswith("file: "):
                assert masked(self.printed) == masked(block.text)
            case _, mark if mark.startswith("file: "):
                name = path_of(mark).name
                assert f"`{name}`" in block.above, f"the page does not say that this is {name}"
                (self.place / name).write_text(block.text, encoding="utf-8")
            case "sh", "stays":
                self._stop()
                self._start(block.text.strip())
            case "sh", "observes":
                self._observe(block.text.strip())
            case "sh", _ if "pip install" in block.text:
                pass  # the test that sent this newcomer has done that
            case "sh", _:
                self.printed = self._run(block.text.strip())
            case _, "transcript: nc":
                self._talk(block.text)
            case _, "transcript: nc, asked again until it fits":
                self._ask_until(block.text)
            case _, "transcript: pytest":
                assert masked(self.printed) == masked(block.text)
            case _, "transcript: in another terminal":
                for command, expected in split(block.text, "$ "):
                    assert masked(self._run(command)) == masked(expected), command
            case "pycon", _:
                self._type(["-m", "ergo_py", *shlex.split(block.mark)[2:]], block.text)
            case _:
                raise AssertionError(f"the newcomer does not know what to do with {block}")
        self.done.append(block.mark or block.info)

    def _run(self, command: str) -> str:
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.place,
            env=self.env,
            capture_output=True,
            encoding="utf-8",
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _start(self, command: str) -> None:
        """In a terminal of its own, at a port that is free."""
        name, *arguments = shlex.split(command)
        self._program = subprocess.Popen(
            [str(self.programs / name), *arguments, "0"],
            cwd=self.place,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        assert self._program.stdout is not None
        log: list[str] = []  # on a busy machine there are warnings first
        for said in self._program.stdout:
            if said.startswith("listening at 127.0.0.1:"):
                self.port = int(said.rpartition(":")[2])
                return
            log.append(said)
        raise AssertionError("".join(log))

    def _talk(self, transcript: str) -> None:
        """Type each other line, and see the line after it, or the end of the connection if there is
        none. Else it stays open.
        """
        command, *lines = transcript.splitlines()
        assert command == "$ nc 127.0.0.1 7777"
        peer = socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT)
        file = peer.makefile("rw", encoding="utf-8", newline="\n")
        self._peers.append((peer, file))
        for typed, expected in zip_longest(lines[::2], lines[1::2], fillvalue=""):
            file.write(f"{typed}\n")
            file.flush()
            assert masked(file.readline()) == masked(expected), typed

    def _ask_until(self, transcript: str) -> None:
        """Repeat a question until its answer is that of the page: the program works meanwhile."""
        _, question, expected = transcript.splitlines()
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT) as peer,
            peer.makefile("rw", encoding="utf-8", newline="\n") as file,
        ):
            end = time.monotonic() + LIMIT
            answer = ""
            while answer != expected:
                assert time.monotonic() < end, f"{question}: {answer}"
                file.write(f"{question}\n")
                file.flush()
                answer = file.readline().rstrip("\n")

    def _observe(self, command: str) -> None:
        """Open the address that the command prints."""
        name, *arguments = shlex.split(command)
        with subprocess.Popen(
            [str(self.programs / name), *arguments, "--port", "0"],
            cwd=self.place,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        ) as program:
            try:
                assert program.stdout is not None
                address = program.stdout.readline().partition("#")[0].strip()
                with urlopen(address, timeout=LIMIT) as page:
                    assert b"<title>ergo observe</title>" in page.read()
            finally:
                program.send_signal(signal.SIGINT)

    def _type(self, command: list[str], transcript: str) -> None:
        """Sit down at a prompt."""
        python, run = str(self.programs / "python"), self.env["XDG_RUNTIME_DIR"]
        # With a simple terminal the prompt is that of an installation without extras.
        with at_terminal(
            command=command,
            python=python,
            cwd=self.place,
            XDG_RUNTIME_DIR=run,
            HOME=run,
            TERM="dumb",
        ) as terminal:
            terminal.wait_for(">>> ")
            assert_typed(terminal, transcript)

    def _stop(self) -> None:
        """Press Ctrl-C in the first terminal."""
        program, self._program = self._program, None
        if program is not None:
            program.send_signal(signal.SIGINT)
            said = program.communicate(timeout=LIMIT)[0]
            assert program.returncode in (0, 130), said
        self._leave()

    def _leave(self) -> None:
        for peer, file in self._peers:
            file.close()
            peer.close()
        self._peers.clear()
        if self._program is not None:
            self._program.kill()
            self._program.communicate()
