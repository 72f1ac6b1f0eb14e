"""Output to a terminal: no control sequences, and only letters that its encoding has."""

import errno
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

from ergo_py import Actor, MetaProcess
from ergo_py.blocking.loop_thread import OwnedNode, open_node
from ergo_py.network import Local
from ergo_py.shell import output
from ergo_py.shell.arguments import make_parser
from ergo_py.shell.cli import main
from ergo_py.shell.exit_codes import Status
from tests.shell.terminal import ERGO, ROOT

ESCAPE = "\x1b]0;owned\x07"
C1, BIDI, TAG = "\x9b31m", "\u202e", "\U000e0001"


class Hostile(Actor):
    """Returns only text that a terminal would obey."""

    def handle_inspect(self, *items: str) -> dict[str, str]:
        if items:
            raise ValueError(f"{ESCAPE}{C1}\n{BIDI}")
        return {f"key{ESCAPE}": f"{C1}{BIDI}{TAG}ä"}

    async def handle_call(self, request: Any, caller: Any) -> Any:
        return (await self.spawn_meta(HostileReader())).number


class HostileReader(MetaProcess):
    """Waits in a file with a name that a terminal would obey."""

    def start(self) -> None:
        code = compile("def wait(pipe):\n    pipe.recv(1)\n", f"<{ESCAPE}>", "exec")
        space: dict[str, Any] = {}
        exec(code, space)
        ours, self.theirs = socket.socketpair()
        with self.opened(ours) as pipe:
            space["wait"](pipe)

    def terminate(self, reason: Any) -> None:
        self.theirs.close()


@pytest.fixture
def node() -> Iterator[OwnedNode]:
    with open_node("demo@localhost", control="look,act", log_output="none", watchdog=None) as node:
        node.spawn(Hostile, name=f"hostile{ESCAPE}")
        node.spawn(Hostile, name="plain")
        yield node


COMMANDS = [
    ["nodes"],
    ["ps"],
    ["tree"],
    ["info"],
    ["info", "demo", "plain"],
    ["ps", "--threads"],
    ["inspect", "demo", "plain"],
    ["inspect", "demo", "plain", "item"],
    ["state", "demo", "plain"],
    ["statistics", "demo", "plain", "--seconds", "0.01"],
    ["peek", "demo", "plain"],
    ["dead-letters"],
    ["crashes", "--all"],
    ["trace", "demo", "plain", "--seconds", "0.01"],
    ["top", "--count", "1", "--interval", "0.01"],
    ["kill", "demo", f"hostile{ESCAPE}"],
    ["kill", "demo", f"nobody{ESCAPE}", "--yes"],
]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_no_command_writes_control_characters_or_fails_to_encode(
    node: OwnedNode, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = str(node.call("plain", "read"))
    for command in [*COMMANDS, ["info", "demo", reader]]:
        for arguments in (command, [*command, "--json"]):
            if arguments[0] == "top" and "--json" in arguments:
                continue
            out, err = io.BytesIO(), io.BytesIO()
            for name, buffer in (("stdout", out), ("stderr", err)):
                monkeypatch.setattr(
                    sys, name, io.TextIOWrapper(buffer, encoding=encoding, write_through=True)
                )
            status = main(arguments)
            written = (out.getvalue() + err.getvalue()).decode(encoding)
            obeyed = [one for one in written if one != "\n" and not one.isprintable()]
            assert obeyed == [], (arguments, written)
            if status == Status.DONE and "--json" in arguments and arguments[0] != "trace":
                json.loads(out.getvalue().decode(encoding))


def test_escaped_json_decodes_to_the_original_values(
    node: OwnedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "demo", "plain", "--json"]) == Status.DONE

    written = capsys.readouterr().out
    assert json.loads(written) == {f"key{ESCAPE}": f"{C1}{BIDI}{TAG}ä"}
    assert "\\u009b" in written
    assert "ä" in written


def test_line_breaks_of_errors_and_stacks_are_kept(
    node: OwnedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = node.call("plain", "read")

    stack = ""
    while "in wait" not in stack:  # the thread of the reader may not have come so far
        assert main(["info", "demo", str(reader)]) == Status.DONE
        stack = capsys.readouterr().out
    assert main(["inspect", "demo", "plain", "item"]) == Status.FAILED
    error = capsys.readouterr().err

    assert '  File "<\\x1b]0;owned\\x07>", line 2, in wait\n' in stack
    assert "\\x1b]0;owned\\x07\\x9b31m\n\\u202e\n" in error


def test_unencodable_letters_get_replacements_of_the_same_width() -> None:
    assert "├─ a…\n└─ 5µs → é".encode("ascii", "ergo_stand_in") == b"|- a~\n`- 5us > \\xe9"
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", "ergo_stand_in")


def test_a_text_only_stream_is_left_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)

    output.prepare()
    output.say("…")

    assert written.getvalue() == "…\n"


def test_no_command_fails_in_an_ascii_locale(node: OwnedNode) -> None:
    ascii_locale = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "",
    }

    for command in (["tree"], ["top", "--count", "1", "--interval", "0.01"]):
        done = subprocess.run(
            [*ERGO, *command],
            cwd=ROOT,
            env={**os.environ, **ascii_locale},
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.isascii()


WRITING = [
    *(words for words in COMMANDS if words[0] != "kill" and "item" not in words),
    *(["network"], ["names"], ["groups"], ["pipelines"], ["entities"], ["reload"]),
    *(["suspend", "demo", "plain", "--yes"], ["resume", "demo", "plain", "--yes"]),
    *(["send", "demo", "plain", "1", "--yes"], ["kill", "demo", "killed", "--yes"]),
    *(["exit", "demo", "ended", "--yes"], ["drain", "demo", "--yes"]),
    *(["observe", "--port", "0"], ["demo", "--no-browser"], ["completion", "bash"]),
    *(["nats", "permissions", "shop@berlin"], ["new", "shop"]),
]
OF_PROGRAMS = {"run", "shell", "attach", "upgrade", "simulate"}
"""Their output is that of a program, or they ask at a terminal."""


def test_the_commands_that_write_and_those_of_programs_are_all() -> None:
    listed = re.findall(r"^    ([a-z-]+)(?:  |$)", make_parser().format_help(), re.MULTILINE)

    assert {words[0] for words in WRITING} | OF_PROGRAMS == set(listed)


@contextmanager
def closed_pipe() -> Iterator[IO[str]]:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", encoding="utf-8", buffering=1) as pipe:
        yield pipe


@contextmanager
def full_disk() -> Iterator[IO[str]]:
    if not Path("/dev/full").exists():
        pytest.skip("this platform has no /dev/full")
    with Path("/dev/full").open("w", encoding="utf-8", buffering=1) as disk:
        yield disk


@contextmanager
def closed_stream() -> Iterator[None]:
    """As Python shows a stream that the caller has closed."""
    yield None


Lost = Callable[[], AbstractContextManager[IO[str] | None]]


def cannot_write(error: int) -> str:
    return f"ergo: the output cannot be written: {os.strerror(error)}\n"


def run_without(name: str, lost: Lost, words: list[str]) -> int:
    """The status of a command whose output or complaints go to a lost stream."""
    with lost() as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, name, stream)
        try:
            return main(words)
        except SystemExit as leave:
            return int(leave.code or 0)
        finally:
            if stream is None:
                with suppress(OSError):  # what was not written is lost
                    getattr(sys, name).close()


@pytest.mark.parametrize(
    "lost, status, text",
    [
        (closed_pipe, Status.DONE, ""),
        (full_disk, Status.FAILED, cannot_write(errno.ENOSPC)),
        (closed_stream, Status.FAILED, cannot_write(errno.EBADF)),
    ],
    ids=["head", "full", "closed"],
)
def test_a_command_without_a_reader_or_disk_shows_no_traceback(
    lost: Lost,
    status: Status,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = {}
    with open_node(
        "demo@localhost", control="look,act", network=Local(types=[]), log_output="none"
    ) as node:
        for name in ("plain", "killed", "ended"):
            node.spawn(Hostile, name=name)
        for words in [*WRITING, ["--help"], ["--version"], ["ps", "--help"]]:
            ended[tuple(words)] = (run_without("stdout", lost, words), capsys.readouterr().err)

    assert [pair for pair in ended.items() if pair[1] != (status, text)] == []


COMPLAINING = {
    (): Status.USAGE,
    ("ps", "nobody"): Status.NO_NODE,
    ("ps", "--yess"): Status.USAGE,
    ("psx",): Status.USAGE,
    ("kill", "demo", "nobody", "--yes"): Status.NO_PROCESS,
    ("kill", "demo", "plain"): Status.NOT_CONFIRMED,
    ("run", "nothing.py"): Status.USAGE,
    ("shell", "nothing.py"): Status.USAGE,
    ("upgrade", "nobody"): Status.NO_NODE,
    ("simulate", "nothing.py::test"): Status.USAGE,
    ("nodes",): Status.DONE,
}


@pytest.mark.parametrize("lost", [closed_pipe, full_disk, closed_stream])
def test_a_complaint_that_cannot_be_written_leaves_the_status_as_it_is(
    lost: Lost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = {}
    with open_node("demo@localhost", control="look,act", log_output="none") as node:
        node.spawn(Hostile, name="plain")
        for words in COMPLAINING:
            ended[words] = run_without("stderr", lost, [*words])

    assert ended == COMPLAINING


PRINTS = """\
async def main(node):
    print("done")
"""
FAILS = "async def main(node): raise ValueError('no')"


@pytest.mark.parametrize(
    "command, status, text",
    [
        ("--version >&-", Status.FAILED, cannot_write(errno.EBADF)),
        ("--version <&- 2>&-", Status.DONE, ""),
        ("--version >&- 2>&-", Status.FAILED, ""),
        ("--help > /dev/full", Status.FAILED, cannot_write(errno.ENOSPC)),
        ("> /dev/full", Status.FAILED, cannot_write(errno.ENOSPC)),
        ("ps --yess 2> /dev/full", Status.USAGE, ""),
        ("kill demo plain <&-", Status.NO_NODE, None),
        ("run prints.py > /dev/full", Status.FAILED, cannot_write(errno.ENOSPC)),
        ("run prints.py >&-", Status.DONE, ""),
        ("run prints.py <&- >&- 2>&-", Status.DONE, ""),
        ("run fails.py 2> /dev/full", Status.FAILED, ""),
        ("run fails.py 2>&-", Status.FAILED, ""),
        ("shell > /dev/full", Status.FAILED, cannot_write(errno.ENOSPC)),
        ("shell >&-", Status.FAILED, cannot_write(errno.EBADF)),
    ],
)
def test_a_program_with_closed_or_full_streams_ends_with_its_status(
    command: str, status: Status, text: str | None, tmp_path: Path
) -> None:
    if "/dev/full" in command and not Path("/dev/full").exists():
        pytest.skip("this platform has no /dev/full")
    (tmp_path / "prints.py").write_text(PRINTS, encoding="utf-8")
    (tmp_path / "fails.py").write_text(FAILS, encoding="utf-8")

    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {command}', "sh", *ERGO],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
        input="1 + 1\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stderr) == (status, done.stderr if text is None else text)
    assert "Traceback" not in done.stderr


def test_the_observer_page_is_served_if_its_advice_cannot_be_written() -> None:
    with (
        full_disk() as disk,
        subprocess.Popen(
            [*ERGO, "observe", "--port", "0", "--open"],
            cwd=ROOT,
            # The browser is opened after the advice, and prints the address a second time.
            env={**os.environ, "BROWSER": "echo %s"},
            stdout=subprocess.PIPE,
            stderr=disk,
            text=True,
        ) as program,
    ):
        assert program.stdout is not None
        address, opened = program.stdout.readline(), program.stdout.readline()
        program.send_signal(signal.SIGINT)

    assert "#token=" in address
    assert opened == address
    assert program.returncode == Status.INTERRUPTED
