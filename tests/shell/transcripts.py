"""Transcripts in pages: the inputs, the output after each, and the parts of it that are the same
each time.
"""

import re
import shlex
from collections.abc import Iterator

import pytest

from ergo_py.shell.cli import main
from tests.shell.terminal import Terminal

__all__ = ["assert_ran", "assert_typed", "plain", "split", "transcripts"]


def transcripts(page: str, kind: str) -> list[str]:
    """The blocks of a page that stand below ``<!-- transcript: kind -->``, in order."""
    return re.findall(
        rf"<!-- transcript: {re.escape(kind)} -->\n```\w+\n(.*?)```\n", page, re.DOTALL
    )


def plain(text: str) -> str:
    """A text without the parts that differ from run to run: times, ports, numbers of programs and
    of lines, widths.
    """
    for pattern, instead in (
        (r"(?m)\s+$", ""),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\d\d:\d\d:\d\d\.\d{3}", "WHEN"),
        (r"\b\d+(\.\d+)?(µs|ms| ms|s| s|m\d\ds)(?!\w)", "TIME"),
        (r"'age': '[\d.]+'", "'age': 'TIME'"),
        (r"127\.0\.0\.1:\d+", "ADDRESS"),
        (r'File "[^"]*/', 'File "'),
        (r"(\.py:|line )\d+", r"\1N"),
        # The C extension calls handle_message from another function.
        (r"in serve_batches", "in serve"),
        (
            r"left(?:: Any)? = batch\.run\(\)",
            "elif (result := handle_message(payload, sender)) is not None:",
        ),
        (r"\(\d{3,}\)", "(THREAD)"),
        (r"(?<=@localhost) +\d+", " PROGRAM"),
        (r"[ \t]+", " "),
    ):
        text = re.sub(pattern, instead, text)
    return "\n".join(line.strip() for line in text.splitlines())


def split(transcript: str, prompt: str) -> Iterator[tuple[str, str]]:
    """Each input and the output after it."""
    for part in re.split(rf"(?m)^{re.escape(prompt)}", transcript)[1:]:
        lines = part.splitlines()
        inputs = [lines[0]]
        while len(lines) > len(inputs) and lines[len(inputs)].startswith("..."):
            inputs.append(lines[len(inputs)][4:])
        yield "\n".join(inputs), "\n".join(lines[len(inputs) :])


def assert_typed(terminal: Terminal, transcript: str) -> None:
    for source, expected in split(transcript, ">>> "):
        # A block ends with an empty line.
        terminal.type(source + ("\n\n" if "\n" in source else "\n"))
        shown = terminal.wait_for("\n>>> ")
        # The input is echoed, with the prompts of further lines.
        echoed = [line for line in shown.splitlines() if not line.startswith("...")]
        assert plain("\n".join(echoed[1:])) == plain(expected), source


def assert_ran(transcript: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = 0
    for command, expected in split(transcript, "$ "):
        if command == "echo $?":
            assert expected == str(status)
            continue
        status = main(shlex.split(command)[1:])
        out, err = capsys.readouterr()
        assert plain(out + err) == plain(expected), command
