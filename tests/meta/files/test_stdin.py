"""Standard input, with pipes and terminals that stand for it."""

import os
import pty
import sys
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergo_py import BadInputError, InitError, Normal, Shutdown
from ergo_py.meta.files.stdin import StandardInput, StdinEnded, StdinLine
from ergo_py.meta.parsing.lines import Text
from tests.meta.owner import owning


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        try:
            os.close(fd)
        except OSError:
            pass


async def test_lines_from_a_pipe_become_messages_until_its_end(pipe: tuple[int, int]) -> None:
    read, write = pipe
    async with owning() as owned:
        source = await owned.spawn(StandardInput(fd=read))

        os.write(write, b"one\ntwo\nthr")
        os.write(write, b"ee")
        os.close(write)
        await owned.until(StdinEnded)

        assert [message.line for message in owned.of(StdinLine)] == ["one", "two", "three"]
        assert owned.of(StdinLine)[0].source == source
        assert await owned.down() == Normal()
        os.fstat(read)


async def test_a_terminal_sends_line_by_line_and_ctrl_d_ends_the_input() -> None:
    master, slave = pty.openpty()
    try:
        async with owning() as owned:
            source = await owned.spawn(StandardInput(fd=slave))

            os.write(master, b"hello\n")
            line = await owned.until(StdinLine)
            shown = await owned.node.inspect_meta(source)
            os.write(master, b"\x04")
            await owned.until(StdinEnded)

            assert line.line == "hello"
            assert shown == {"fd": str(slave), "terminal": "True", "lines": "1"}
    finally:
        os.close(master)
        os.close(slave)


async def test_a_hang_up_of_the_terminal_is_an_end_of_input() -> None:
    master, slave = pty.openpty()
    tty.setraw(slave)
    async with owning() as owned:
        await owned.spawn(StandardInput(fd=slave))

        os.close(master)

        await owned.until(StdinEnded)
        assert await owned.down() == Normal()
    os.close(slave)


async def test_a_file_that_was_redirected_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"\xe4\n")
    with path.open("rb") as file:
        async with owning() as owned:
            await owned.spawn(StandardInput(fd=file.fileno(), text=Text(encoding="latin-1")))
            await owned.until(StdinEnded)

            assert [message.line for message in owned.of(StdinLine)] == ["\u00e4"]


async def test_the_stop_does_not_wait_for_a_line_and_restores_the_descriptor(
    pipe: tuple[int, int],
) -> None:
    read, write = pipe
    async with owning() as owned:
        source = await owned.spawn(StandardInput(fd=read))

        owned.node.send_exit(source)

        assert await owned.down() == Shutdown()
        assert os.get_blocking(read)
        os.write(write, b"for somebody else")
        assert os.read(read, 100) == b"for somebody else"


async def test_a_slow_receiver_slows_the_reading(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.set_blocking(write, False)
    async with owning() as owned:
        go_on = await owned.hold()
        await owned.spawn_elsewhere(StandardInput(fd=read, receiver=owned.owner), backlog=5)

        os.write(write, b"x\n" * 1000)
        queued = await owned.filled(5)
        go_on()
        os.close(write)
        await owned.until(StdinEnded)

        assert queued == 5
        assert len(owned.of(StdinLine)) == 1000


async def test_a_descriptor_that_is_not_open_fails_the_spawn() -> None:
    async with owning() as owned:
        with pytest.raises(InitError, match="Bad file descriptor"):
            await owned.spawn(StandardInput(fd=99_999))


@pytest.mark.parametrize("options", [{"fd": -1}, {"fd": "0"}, {"text": "utf-8"}, {"receiver": 7}])
def test_invalid_arguments_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(BadInputError):
        StandardInput(**options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


async def test_a_closed_standard_input_fails_the_spawn(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    monkeypatch.setattr(sys, "__stdin__", None)
    async with owning() as owned:
        with pytest.raises(InitError, match="standard input was closed when this program started"):
            await owned.spawn(StandardInput())
        await owned.spawn(StandardInput(fd=pipe[0]))
