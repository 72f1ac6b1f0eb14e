"""`FileReader` and `FileWriter`: read files and fifos, follow them while they grow, write them."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import trio

from ..._core.tables.pending_calls import Caller
from ..._core.verbs.meta_process import MetaProcess
from ..._core.vocabulary.errors import BadInputError, Reject
from ..._core.vocabulary.ids import Alias, Target
from ..._core.vocabulary.messages import MayBeLate, Request
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import show_members, show_public_names
from ..checks import check_text
from ..parsing.cutter import MessageCutter, check_mode
from ..parsing.framing import Framing
from ..parsing.lines import Text
from ..receivers import check_receiver
from .followed_file import FollowedFile, FollowedFiles

__all__ = [
    "FileData",
    "FileEnded",
    "FileLine",
    "FileReader",
    "FileReopen",
    "FileRotated",
    "FileSync",
    "FileTruncated",
    "FileWrite",
    "FileWriter",
]

_TEXT: Final = Text()
Path = str | os.PathLike[str]

# -- from a reader ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileLine:
    """A line, without the line end. ``is_whole`` is False for a part of a very long line; the rest
    follows.
    """

    source: Alias
    line: str
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class FileData:
    """A frame; without a framing, the bytes of a read."""

    source: Alias
    data: bytes


@dataclass(frozen=True, slots=True)
class FileEnded(MayBeLate):
    """The end of the file was reached, and nothing follows."""

    source: Alias
    size: int
    """Bytes that were read."""


@dataclass(frozen=True, slots=True)
class FileRotated:
    """Another file has taken the place of the followed file; the next messages are from its
    beginning.
    """

    source: Alias


@dataclass(frozen=True, slots=True)
class FileTruncated:
    """The followed file was truncated; the next messages are from its beginning."""

    source: Alias


# -- to a writer -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileWrite(Request[int]):
    """Write data. With ``call``, the writer answers with the number of bytes when the operating
    system has them.
    """

    data: bytes | str

    def __post_init__(self) -> None:
        check_text("FileWriter.Write(data)", self.data)


@dataclass(frozen=True, slots=True)
class FileSync(Request[None]):
    """Flush all earlier data to the disk; with ``call``, the answer comes when the disk has it."""


@dataclass(frozen=True, slots=True)
class FileReopen(Request[None]):
    """Open the path again: after a rotation, further data goes to the new file."""


# -- reading ---------------------------------------------------------------------------------------


class FileReader(MetaProcess):
    """Reads a file or a fifo in a thread of its own, only as fast as the receiver handles the
    messages (backpressure).

    A fifo is read until its last writer leaves. With ``follow`` there is no end: appended data is
    read as it comes. When the file is renamed or removed and another file takes its place, as log
    files are rotated, the reader reads the old file to its end and then the new file from its
    beginning, with no line lost or read twice. It keeps checking the old file for ``linger``
    seconds, for writers that have not noticed. A temporary error (no free descriptor, a disk or a
    server that does not answer) is logged, and the reader tries again at the next check, from the
    same position.

    The reader cannot see: a file that comes and goes within ``interval``; data that was written
    between the last check and a truncation; and a truncation after which the file grows, within
    ``interval``, beyond the reader's position with the same bytes there as before.

    Args:
        path: the file.
        mode: how it is read: :class:`Text` for lines, or a framing; ``Raw()`` for chunks.
        follow: continue when the end is reached.
        from_end: with ``follow``, begin with the data that is appended from now on.
        missing_ok: with ``follow``, wait for a file that does not exist yet.
        interval: seconds between two checks, with ``follow``.
        linger: how many seconds a rotated file is still checked after it last grew.
        receiver: the address that gets the messages; None for the owner.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    Data: TypeAlias = FileData
    Ended: TypeAlias = FileEnded
    Line: TypeAlias = FileLine
    Rotated: TypeAlias = FileRotated
    Truncated: TypeAlias = FileTruncated

    kind = "file"

    def __init__(
        self,
        path: Path,
        *,
        mode: Text | Framing = _TEXT,
        follow: bool = False,
        from_end: bool = False,
        missing_ok: bool = False,
        interval: float = 0.2,
        linger: float = 1.0,
        receiver: Target | None = None,
    ) -> None:
        self._path = _check_path(path)
        check_mode("mode", mode)
        if (from_end or missing_ok) and not follow:
            raise BadInputError("from_end, missing_ok", True, "follow=True with it")
        check_number("interval", interval, least=0.001)
        check_number("linger", linger, least=0.0)
        self._mode = mode
        self._follow = follow
        self._from_end = from_end
        self._missing_ok = missing_ok
        self._interval = interval
        self._linger = linger
        self._receiver = check_receiver(receiver)
        self._files = FollowedFiles()
        self._look_error: OSError | None = None
        self._sent = 0

    @property
    def _to(self) -> Target:
        return self.parent if self._receiver is None else self._receiver

    def init(self) -> None:
        """Open the file."""
        self.opened(self._files, unblock=_nothing)
        try:
            self._files.add(self._open(from_end=self._from_end))
        except FileNotFoundError:
            if not self._missing_ok:
                raise
        if self._follow:
            self.send_after(self._interval, self.id, _Look())

    def _open(self, *, from_end: bool = False) -> FollowedFile:
        cutter = MessageCutter(self._mode, partial(FileLine, self.id), partial(FileData, self.id))
        return FollowedFile(self._path, cutter, self._now, follow=self._follow, from_end=from_end)

    def start(self) -> None:
        """Read to the end; with ``follow``, forever."""
        if self._follow:
            self._read_on()
        else:
            self._read_to_end(self._files.newest())

    def handle_message(self, message: object, sender: object) -> None:
        """Check whether another file has taken the place of the newest file.

        The handler does this, and not the reader: while a slow receiver holds the reader up,
        several files may come and go.
        """
        if not isinstance(message, _Look):
            super().handle_message(message, sender)
            return
        try:
            if not self._files.has_newest(os.stat(self._path)):
                self._files.add(self._open())
            self._look_error = None
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
            # Between two files, or between the creation of a file and the permission to read it:
            # check again later.
            pass
        except OSError as error:
            # No descriptor is free, or the disk does not answer: such an error is temporary, and
            # the position in the file must not be lost.
            self._look_error = self._tell_once("checked", error, self._look_error)
        self.send_after(self._interval, self.id, message)

    def _tell_once(self, done: str, error: OSError, before: OSError | None) -> OSError:
        """Log an error, but not the same error at each check."""
        if before is None or before.errno != error.errno:
            self.log.warning(
                f"a file cannot be {done}; trying again", path=self._path, error=str(error)
            )
        return error

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The counters and the state of the reader, by name."""
        return {
            "path": self._path,
            "following": str(self._follow),
            "open_files": str(len(self._files)),
            "sent": str(self._sent),
            "rotations": str(self._files.rotations),
            "truncations": str(self._files.truncations),
        }

    def _read_to_end(self, file: FollowedFile) -> None:
        while self.wait_readable(file.fd):
            data = file.read()
            if not data:
                self._send_all(file.cutter.end())
                self.send(self._to, FileEnded(self.id, file.count))
                return
            self._send_all(file.cutter.feed(data))

    def _read_on(self) -> None:
        rotated, truncated = FileRotated(self.id), FileTruncated(self.id)
        read_error: OSError | None = None
        while not self.stopping:
            had_something = self._send_all(self._files.read(self._linger, rotated, truncated))
            error = self._files.error()
            read_error = error if error is None else self._tell_once("read", error, read_error)
            if not had_something:
                self.pause(self._interval)

    def _send_all(self, messages: Iterator[object]) -> bool:
        """Send until there are no more messages, or the stop comes. False if there were none."""
        to, before = self._to, self._sent
        for message in messages:
            self._sent += 1
            self.send(to, message)
            if self.stopping:
                break
        return self._sent > before


@dataclass(frozen=True, slots=True)
class _Look:
    """A reader's message to itself: check whether the file is still the same."""


# -- writing ---------------------------------------------------------------------------------------


class FileWriter(MetaProcess):
    """Writes a file, on worker threads, in the order of its messages.

    A ``call`` is answered when it is done, or raises the error. If a message that was only sent
    cannot be written, the meta-process ends with that error: no data is lost in silence. If the
    disk is full, no partial record stays in the file: the writer removes it, unless another program
    has written behind it meanwhile. Messages that still wait when the writer is stopped are not
    written; call :class:`FileWriter.Sync` first.

    Args:
        path: the file, which is created if it does not exist.
        append: True appends to the file; False replaces its content.
        encoding: the encoding of a ``str``.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    Reopen: TypeAlias = FileReopen
    Sync: TypeAlias = FileSync
    Write: TypeAlias = FileWrite

    kind = "filewriter"

    def __init__(self, path: Path, *, append: bool = True, encoding: str = "utf-8") -> None:
        self._path = _check_path(path)
        self._append = append
        self._encoding = Text(encoding).encoding
        self._file = _Writable()
        self._written = 0
        self._syncs = 0

    def init(self) -> None:
        """Open the file."""
        self.opened(self._file, unblock=_nothing)
        self._file.open(self._path, os.O_APPEND if self._append else os.O_TRUNC)

    async def start(self) -> None:
        """Do nothing: the handler does all the work."""
        await trio.sleep_forever()

    def handle_message(self, message: object, sender: object) -> None:
        """Carry out a message."""
        if self._serve(message) is NotImplemented:
            super().handle_message(message, sender)

    def handle_call(self, request: object, caller: Caller) -> object:
        """Carry out a request, and answer when it is done; an error is the answer."""
        try:
            answer = self._serve(request)
        except (OSError, UnicodeError) as error:
            raise Reject(error) from None
        return super().handle_call(request, caller) if answer is NotImplemented else answer

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The number of bytes and of syncs."""
        return {"path": self._path, "bytes": str(self._written), "syncs": str(self._syncs)}

    def _serve(self, order: object) -> object:
        match order:
            case FileWrite(data):
                size = self._file.write(
                    data.encode(self._encoding) if isinstance(data, str) else data
                )
                self._written += size
                return size
            case FileSync():
                os.fsync(self._file.fd)
                self._syncs += 1
                return None
            case FileReopen():
                # Append in either mode: data that was written since the rotation must stay.
                self._file.open(self._path, os.O_APPEND)
                return None
        return NotImplemented


class _Writable:
    """The descriptor of the file to write."""

    def __init__(self) -> None:
        self.fd = -1

    def open(self, path: str, how: int) -> None:
        # Without blocking: a fifo without a reader raises an error here; otherwise it would hold
        # everything up.
        fd = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK | how, 0o666
        )
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.close(fd)
            raise BadInputError(
                "path",
                path,
                "a file; a fifo may block the writer forever: write to it with a Port",
            )
        os.set_blocking(fd, True)
        self.close()
        self.fd = fd

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.fd, view) :]
        except OSError:
            if len(view) < len(data):
                self._take_back(len(data) - len(view))
            raise
        return len(data)

    def _take_back(self, count: int) -> None:
        """Remove a partial record, if nothing follows it: otherwise the next record would stand in
        the same line.
        """
        try:
            end = os.lseek(self.fd, 0, os.SEEK_CUR)
            if os.fstat(self.fd).st_size == end:
                os.ftruncate(self.fd, end - count)
                os.lseek(self.fd, end - count, os.SEEK_SET)
        except OSError:  # not a regular file, or append-only: the error of the write says enough
            return

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _check_path(path: object) -> str:
    if (
        not isinstance(path, str | os.PathLike)
        or not isinstance(os.fspath(path), str)
        or not os.fspath(path)
    ):
        raise BadInputError("path", path, "a str or a path")
    return str(os.fspath(path))


def _nothing() -> None:
    """Nothing to unblock: a thread that reads a file never blocks for long, and checks for the stop
    itself.
    """


show_public_names(__name__)
show_members(FileWriter)
show_members(FileReader)
