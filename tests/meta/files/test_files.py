"""Files and fifos on a real file system."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import trio

from ergo_py import Alias, BadInputError, Crashed, InitError, Normal, Shutdown
from ergo_py.errors import UnhandledCallError
from ergo_py.meta.files.files import (
    FileData,
    FileEnded,
    FileLine,
    FileReader,
    FileReopen,
    FileRotated,
    FileSync,
    FileTruncated,
    FileWrite,
    FileWriter,
)
from ergo_py.meta.files.followed_file import FollowedFile
from ergo_py.meta.parsing.framing import LengthHeader, Raw
from ergo_py.meta.parsing.lines import Text
from tests.meta.owner import Owned, eventually, owning
from tests.support import open_descriptors

SOON = 0.01


def lines(owned: Owned) -> list[str]:
    return [message.line for message in owned.of(FileLine)]


async def heard_lines(owned: Owned, *wanted: str) -> None:
    for line in wanted:
        assert (await owned.until(FileLine)).line == line


def follower(path: Path, **options: object) -> FileReader:
    settings = {"follow": True, "interval": SOON, "linger": 0.05, **options}
    return FileReader(path, **settings)  # type: ignore[arg-type]


# -- reading ---------------------------------------------------------------------------------------


async def test_a_file_is_read_line_by_line_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one\ntwo\r\nthree")
    async with owning() as owned:
        source = await owned.spawn(FileReader(path))
        ended = await owned.until(FileEnded)

        assert lines(owned) == ["one", "two", "three"]
        assert ended == FileEnded(source, 14)
        assert await owned.down() == Normal()


async def test_a_file_is_read_in_chunks_or_in_frames(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\x02ab\x01c" + b"\x05torn")
    async with owning() as owned:
        await owned.spawn(FileReader(path, mode=Raw()))
        await owned.until(FileEnded)
        chunks = [message.data for message in owned.of(FileData)]
        owned.heard.clear()
        await owned.spawn(FileReader(path, mode=LengthHeader(size=1)))
        await owned.until(FileEnded)

        assert b"".join(chunks) == path.read_bytes()
        assert [message.data for message in owned.of(FileData)] == [b"ab", b"c"]


@pytest.mark.no_cover
async def test_a_large_file_waits_for_a_slow_owner_and_no_line_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("".join(f"{n}\n" for n in range(20_000)))
    async with owning() as owned:
        go_on = await owned.hold()
        await owned.spawn_elsewhere(FileReader(path, receiver=owned.owner), backlog=10)

        queued = await owned.filled(10)
        go_on()
        await owned.until(FileEnded)

        assert queued == 10
        assert lines(owned) == [str(n) for n in range(20_000)]


async def test_a_fifo_is_read_until_its_last_writer_leaves(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    async with owning() as owned:
        # There is no writer yet, and no reader waits for it.
        await owned.spawn(FileReader(path))
        writer = os.open(path, os.O_WRONLY)
        os.write(writer, b"hello\n")
        await heard_lines(owned, "hello")
        os.close(writer)

        await owned.until(FileEnded)
        assert await owned.down() == Normal()


async def test_a_followed_fifo_continues_with_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    async with owning() as owned:
        source = await owned.spawn(follower(path))
        for text in ("first", "second"):
            writer = os.open(path, os.O_WRONLY)
            os.write(writer, f"{text}\n".encode())
            os.close(writer)
            await heard_lines(owned, text)
        owned.node.send_exit(source)

        assert await owned.down() == Shutdown()
        assert owned.of(FileEnded) == []


async def test_a_fifo_without_a_writer_does_not_delay_the_stop(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    async with owning() as owned:
        source = await owned.spawn(FileReader(path), stop_timeout=60)

        with trio.fail_after(30):
            owned.node.send_exit(source)
            assert await owned.down() == Shutdown()


async def test_a_file_that_cannot_be_opened_fails_the_spawn(tmp_path: Path) -> None:
    async with owning() as owned:
        with pytest.raises(InitError, match="No such file"):
            await owned.spawn(FileReader(tmp_path / "missing"))
        with pytest.raises(InitError, match="No such file"):
            await owned.spawn(follower(tmp_path / "missing"))
        with pytest.raises(InitError, match="directory has no lines"):
            await owned.spawn(FileReader(tmp_path))


async def test_bytes_that_are_no_text_end_a_strict_reader(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xff\n")
    async with owning() as owned:
        await owned.spawn(FileReader(path, mode=Text(errors="strict")))
        reason = await owned.down()

        assert isinstance(reason, Crashed)
        assert isinstance(reason.error, UnicodeDecodeError)


# -- following -------------------------------------------------------------------------------------


async def test_appended_lines_arrive_and_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    async with owning() as owned:
        source = await owned.spawn(follower(path))
        with path.open("a", buffering=1) as file:
            await heard_lines(owned, "old")
            file.write("new\nha")
            file.flush()
            await heard_lines(owned, "new")
            file.write("lf\n")
            await heard_lines(owned, "half")

        shown = await owned.node.inspect_meta(source)
        assert (shown["following"], shown["open_files"], shown["sent"]) == ("True", "1", "3")


async def test_from_the_end_only_appended_lines_arrive(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    async with owning() as owned:
        await owned.spawn(follower(path, from_end=True))

        with path.open("a") as file:
            file.write("new\n")

        await heard_lines(owned, "new")
        assert lines(owned) == ["new"]


async def test_the_reader_waits_for_a_file_that_does_not_exist_yet(tmp_path: Path) -> None:
    path = tmp_path / "log"
    async with owning() as owned:
        await owned.spawn(follower(path, missing_ok=True))

        path.write_text("at last\n")

        await heard_lines(owned, "at last")
        assert owned.of(FileRotated) == []


async def test_a_truncated_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("long enough\n")
    async with owning() as owned:
        await owned.spawn(follower(path))
        await heard_lines(owned, "long enough")

        path.write_text("short\n")

        await owned.until(FileTruncated)
        await heard_lines(owned, "short")


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ELOOP, errno.ENXIO, errno.ESTALE, errno.EIO]
)
async def test_a_temporary_error_at_a_rotation_is_logged_once_and_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "log"
    path.write_text("a\n")
    refusals, logged = 0, []

    class Log:
        def warning(self, event: str, **facts: object) -> None:
            logged.append((event, facts["path"]))

    def refuse(reader: FileReader, **_: object) -> NoReturn:
        nonlocal refusals
        refusals += 1
        raise OSError(number, os.strerror(number))

    async with owning() as owned:
        await owned.spawn(follower(path))
        await heard_lines(owned, "a")
        with monkeypatch.context() as broken:
            broken.setattr(FileReader, "log", Log())
            broken.setattr(FileReader, "_open", refuse)
            path.rename(tmp_path / "log.1")
            path.write_text("b\n")
            await eventually(lambda: refusals >= 3)
        await owned.until(FileRotated)
        await heard_lines(owned, "b")

    assert logged == [("a file cannot be checked; trying again", str(path))]


async def test_a_temporary_error_of_a_read_is_logged_once_and_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_text("a\n")
    refusals, logged = 0, []

    class Log:
        def warning(self, event: str, **facts: object) -> None:
            logged.append(event)

    def refuse(file: FollowedFile) -> bool:
        nonlocal refusals
        refusals += 1
        file.error = OSError(errno.EIO, "I/O error")
        return False

    async with owning() as owned:
        await owned.spawn(follower(path))
        await heard_lines(owned, "a")
        with monkeypatch.context() as broken:
            broken.setattr(FileReader, "log", Log())
            broken.setattr(FollowedFile, "was_truncated", refuse)
            await eventually(lambda: refusals >= 3)
        with path.open("a") as file:
            file.write("b\n")
        await heard_lines(owned, "b")

    assert logged == ["a file cannot be read; trying again"]


async def test_a_renamed_file_is_read_to_its_end_before_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_text("a1\n")
    # No time passes before all is written, however busy the machine: lines that come too late are
    # not read.
    now = [0.0]
    monkeypatch.setattr(FileReader, "_now", lambda _: now[0])
    async with owning() as owned:
        source = await owned.spawn(follower(path))
        await heard_lines(owned, "a1")
        with path.open("a", buffering=1) as old:
            path.rename(tmp_path / "log.1")
            # The writer has not noticed yet.
            old.write("a2\n")
            await heard_lines(owned, "a2")
            path.write_text("b1\n")
            await owned.until(FileRotated)
            await heard_lines(owned, "b1")
            # Not even now; and its last line has no end.
            old.write("a3\nlast")
            old.flush()
            await heard_lines(owned, "a3")
            now[0] = 1.0
            await heard_lines(owned, "last")

        await _opened(owned, source, 1)
        assert (await owned.node.inspect_meta(source))["rotations"] == "1"


async def test_a_file_that_is_removed_and_made_again_is_another_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a\n")
    async with owning() as owned:
        await owned.spawn(follower(path))
        for text in ("a", "b", "c"):
            await heard_lines(owned, text)
            path.unlink()
            path.write_text(f"{chr(ord(text) + 1)}\n")

        await heard_lines(owned, "d")
        assert len(owned.of(FileRotated)) == 3


async def test_a_file_that_is_unreadable_for_a_while_is_read_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = folder / "log"
    log.write_text("one\n")
    async with owning() as owned:
        source = await owned.spawn(FileReader(log, follow=True, interval=0.01, linger=0.0))
        await owned.until(FileLine)

        async def looked() -> None:
            before = owned.node.meta_info(source).messages_in
            await eventually(lambda: owned.node.meta_info(source).messages_in > before + 2)

        log.unlink()
        log.mkdir()
        await looked()
        log.rmdir()
        folder.rmdir()
        folder.touch()
        await looked()
        folder.unlink()
        folder.mkdir()
        log.write_text("two\n")

        assert (await owned.until(FileLine)).line == "two"


@pytest.mark.no_cover
async def test_rotation_under_load_neither_loses_nor_repeats_a_line(tmp_path: Path) -> None:
    path, count, rotations = tmp_path / "log", 30_000, 12
    path.touch()
    rotated = threading.Semaphore(0)

    def write() -> None:
        """Write as fast as it goes, and rotate every so often, when the reader has had a look."""
        generation = 0
        file = path.open("a")
        for number in range(count):
            file.write(f"{number}\n")
            if (number + 1) % (count // rotations) == 0:
                file.flush()
                generation += 1
                path.rename(tmp_path / f"log.{generation}")
                file.write(f"{number}.late\n")
                file.close()
                file = path.open("a")
                assert rotated.acquire(timeout=20)
        file.close()

    async with owning(limit=60) as owned:
        await owned.spawn(follower(path), backlog=50)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, write)
            for _ in range(count + 2 * rotations):
                if isinstance(await owned.next(), FileRotated):
                    rotated.release()

    late = [line for line in lines(owned) if line.endswith(".late")]
    numbers = [int(line) for line in lines(owned) if not line.endswith(".late")]
    assert len(late) == len(set(late)) == rotations
    assert numbers == list(range(count))


async def test_files_that_come_and_go_while_the_owner_is_slow_are_all_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"0:{n}\n" for n in range(200)))
    async with owning() as owned:
        go_on = await owned.hold()
        source = await owned.spawn_elsewhere(follower(path, receiver=owned.owner), backlog=5)
        await owned.filled(5)
        for generation in range(1, 5):
            path.rename(tmp_path / f"log.{generation}")
            path.write_text("".join(f"{generation}:{n}\n" for n in range(200)))
            await _opened(owned, source, generation + 1)
        go_on()

        while len(lines(owned)) < 1000:
            await owned.until(FileLine)

        assert lines(owned) == [f"{generation}:{n}" for generation in range(5) for n in range(200)]


async def test_rotations_leave_no_descriptor_open(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("0\n")
    async with owning() as owned:
        before = open_descriptors()
        source = await owned.spawn(follower(path, interval=0.001, linger=0.0))
        for number in range(300):
            await heard_lines(owned, str(number))
            path.unlink()
            path.write_text(f"{number + 1}\n")
        owned.node.send_exit(source)
        await owned.down()

        assert open_descriptors() <= before


# -- writing ---------------------------------------------------------------------------------------


async def test_all_writes_are_in_the_file_in_order_when_the_call_is_answered(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    async with owning() as owned:
        writer = await owned.spawn(FileWriter(path))
        for number in range(100):
            owned.node.send(writer, FileWrite(f"{number}\n"))

        size = await owned.node.call(writer, FileWrite("\u00e9\n"))
        await owned.node.call(writer, FileSync())

        assert size == 3
        assert (
            path.read_text(encoding="utf-8")
            == "".join(f"{number}\n" for number in range(100)) + "\u00e9\n"
        )
        assert await owned.node.inspect_meta(writer) == {
            "path": str(path),
            "bytes": "293",
            "syncs": "1",
        }


async def test_a_file_is_appended_to_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old ")
    async with owning() as owned:
        await owned.node.call(await owned.spawn(FileWriter(path)), FileWrite(b"new "))
        appended = path.read_text(encoding="utf-8")
        await owned.node.call(await owned.spawn(FileWriter(path, append=False)), FileWrite("only"))

        assert appended == "old new "
        assert path.read_text(encoding="utf-8") == "only"


async def test_after_a_rotation_the_new_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    async with owning() as owned:
        writer = await owned.spawn(FileWriter(path))
        await owned.node.call(writer, FileWrite("one"))
        path.rename(tmp_path / "file.1")

        await owned.node.call(writer, FileReopen())
        await owned.node.call(writer, FileWrite("two"))

        assert (
            (tmp_path / "file.1").read_text(encoding="utf-8"),
            path.read_text(encoding="utf-8"),
        ) == ("one", "two")


async def test_a_full_disk_fails_a_call_and_crashes_the_writer_after_a_message() -> None:
    async with owning() as owned:
        writer = await owned.spawn(FileWriter("/dev/full"))

        with pytest.raises(OSError, match="No space left"):
            await owned.node.call(writer, FileWrite("x"))
        owned.node.send(writer, FileWrite("x"))
        reason = await owned.down()

        assert isinstance(reason, Crashed)
        assert isinstance(reason.error, OSError)


@pytest.mark.parametrize("append", [True, False])
async def test_a_partly_written_record_on_a_full_disk_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, append: bool
) -> None:
    path = tmp_path / "file"
    async with owning() as owned:
        writer = await owned.spawn(FileWriter(path, append=append))
        await owned.node.call(writer, FileWrite("<0>"))
        with monkeypatch.context() as full:
            full.setattr(os, "write", half_then_full(path))
            with pytest.raises(OSError, match="No space left"):
                await owned.node.call(writer, FileWrite("<1xxxxxxx>"))
        await owned.node.call(writer, FileWrite("<2>"))

        assert path.read_text(encoding="utf-8") == "<0><2>"
        assert (await owned.node.inspect_meta(writer))["bytes"] == "6"


async def test_the_bytes_of_another_program_behind_a_torn_record_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"

    def write_behind() -> None:
        with path.open("a") as other:
            other.write("other")

    async with owning() as owned:
        writer = await owned.spawn(FileWriter(path))
        with monkeypatch.context() as full:
            full.setattr(os, "write", half_then_full(path, write_behind))
            with pytest.raises(OSError, match="No space left"):
                await owned.node.call(writer, FileWrite("1234"))

        assert path.read_text(encoding="utf-8") == "12other"


async def test_a_partly_written_record_that_cannot_be_removed_is_the_same_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"

    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EPERM, "append only")

    async with owning() as owned:
        writer = await owned.spawn(FileWriter(path))
        with monkeypatch.context() as full:
            full.setattr(os, "write", half_then_full(path))
            full.setattr(os, "ftruncate", refuse)
            with pytest.raises(OSError, match="No space left"):
                await owned.node.call(writer, FileWrite("1234"))


def half_then_full(path: Path, meanwhile: Callable[[], None] = lambda: None) -> Callable[..., int]:
    """A disk with room for half of a record: the first write to this file is short, the second
    fails.
    """
    real, writes = os.write, 0

    def write(fd: int, data: "memoryview[int] | bytes") -> int:
        nonlocal writes
        if not os.path.samestat(os.fstat(fd), path.stat()):
            return real(fd, data)
        writes += 1
        if writes == 1:
            return real(fd, data[: len(data) // 2])
        meanwhile()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return write


async def test_a_file_that_cannot_be_written_fails_the_spawn(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    async with owning() as owned:
        with pytest.raises(InitError, match="No such file"):
            await owned.spawn(FileWriter(tmp_path / "nowhere" / "file"))
        with pytest.raises(InitError, match="Is a directory"):
            await owned.spawn(FileWriter(tmp_path))
        with pytest.raises(InitError, match="No such device"):
            await owned.spawn(FileWriter(tmp_path / "fifo"))
        reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(InitError, match="block the writer forever"):
            await owned.spawn(FileWriter(tmp_path / "fifo"))
        os.close(reader)


async def test_unknown_requests_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    async with owning() as owned:
        writer = await owned.spawn(FileWriter(path))
        reader = await owned.spawn(follower(path))

        for meta in (writer, reader):
            owned.node.send(meta, "what?")
            with pytest.raises(UnhandledCallError):
                await owned.node.call(meta, "what?")


@pytest.mark.parametrize(
    "make",
    [
        lambda: FileReader(""),
        lambda: FileReader(7),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        lambda: FileReader(b"x"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        lambda: FileReader("x", from_end=True),
        lambda: FileReader("x", missing_ok=True),
        lambda: FileReader("x", follow=True, interval=0),
        lambda: FileReader("x", mode="lines"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        lambda: FileWriter("x", encoding="klingon"),
        lambda: FileReader("x", receiver=7),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        lambda: FileWrite(7),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    ],
)
def test_invalid_arguments_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(BadInputError):
        make()


async def _opened(owned: Owned, source: Alias, count: int) -> None:
    while True:
        shown = await owned.node.inspect_meta(source)
        if shown["open_files"] == str(count):
            return
        await trio.sleep(SOON)
