"""Files and fifos: reading them, following them while they grow, writing them."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from ..._core.tables.pending_calls import Caller
from ..._core.verbs.meta_process import MetaProcess
from ..._core.vocabulary.errors import BadInputError, Reject
from ..._core.vocabulary.ids import Alias, Target
from ..._core.vocabulary.messages import MayBeLate, Request
from ..._core.vocabulary.options import check_number
from ..checks import check_text
from ..parsing.cutter import MessageCutter, check_mode
from ..parsing.framing import Framing
from ..parsing.lines import Text
from ..receivers import check_receiver
from .followed_file import Files, Followed

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
    """A line, without its end. ``is_whole`` is False for a part of a very long one; the rest
    follows.
    """

    source: Alias
    line: str
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class FileData:
    """A frame, or, without a framing, what was read at once."""

    source: Alias
    data: bytes


@dataclass(frozen=True, slots=True)
class FileEnded(MayBeLate):
    """The end was reached, and nothing follows."""

    source: Alias
    size: int
    """How many bytes were read."""


@dataclass(frozen=True, slots=True)
class FileRotated:
    """Another file has taken the place of the one that was followed; what comes next is from its
    beginning.
    """

    source: Alias


@dataclass(frozen=True, slots=True)
class FileTruncated:
    """The file that is followed was cut short; what comes next is from its beginning."""

    source: Alias


# -- to a writer -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileWrite(Request[int]):
    """Write this. Called instead of sent, the answer comes when the operating system has it: how
    many bytes.
    """

    data: bytes | str

    def __post_init__(self) -> None:
        check_text("FileWrite(data)", self.data)


@dataclass(frozen=True, slots=True)
class FileSync(Request[None]):
    """Have the disk take what was written before; the answer comes when it has."""


@dataclass(frozen=True, slots=True)
class FileReopen(Request[None]):
    """Open the path again: after a rotation, what follows goes to the new file."""


# -- reading ---------------------------------------------------------------------------------------


class FileReader(MetaProcess):
    """Reads a file or a fifo in a thread of its own, as fast as the receiver handles what came, and
    no faster.

    A fifo is read until its last writer leaves. With ``follow`` there is no end: what is appended
    is read as it comes. When the file is renamed or removed and another one takes its place, as log
    files are rotated, the old one is read to its end and then the new one from its beginning, with
    no line lost or read twice; the old one is looked at for ``linger`` seconds more, for writers
    that have not noticed. A passing error (no descriptor is free, a disk or a server that does not
    answer) is logged, and it is tried again at the next look, from the same place.

    What cannot be seen: a file that comes and goes within ``interval``; what was written between
    the last look and a truncation; and a truncation after which the file grows within ``interval``
    past the place that was reached, and has there the same bytes as before.

    Args:
        path: the file.
        mode: how it is read: :class:`Text` for lines, or a framing; ``Raw()`` for chunks.
        follow: go on when the end is reached.
        from_end: with ``follow``, begin with what is appended from now on.
        missing_ok: with ``follow``, wait for a file that does not exist yet.
        interval: seconds between two looks, with ``follow``.
        linger: seconds for which a file that was rotated away is looked at, after it last grew.
        receiver: who gets the messages; the owner if not given.

    Raises:
        BadInputError: an argument can never be right.
    """

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
        self._files = Files()
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

    def _open(self, *, from_end: bool = False) -> Followed:
        cutter = MessageCutter(self._mode, partial(FileLine, self.id), partial(FileData, self.id))
        return Followed(self._path, cutter, self._now, follow=self._follow, from_end=from_end)

    def start(self) -> None:
        """Read to the end; or, when following, for ever."""
        if self._follow:
            self._read_on()
        else:
            self._read_to_end(self._files.newest())

    def handle_message(self, message: object, sender: object) -> None:
        """Look whether another file has taken the place of the newest one.

        The reader does not do this itself: while a slow receiver holds it up, several files may
        come and go.
        """
        if not isinstance(message, _Look):
            super().handle_message(message, sender)
            return
        try:
            if not self._files.has_newest(os.stat(self._path)):
                self._files.add(self._open())
            self._look_error = None
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
            # Between two files, or between the making of one and the permission to read it: it is
            # looked for again.
            pass
        except OSError as error:
            # No descriptor is free, or the disk does not answer: that passes, and the place in the
            # file must not be lost.
            self._look_error = self._tell_once("looked at", error, self._look_error)
        self.send_after(self._interval, self.id, message)

    def _tell_once(self, what: str, error: OSError, before: OSError | None) -> OSError:
        """Log an error, but not the same one at each look."""
        if before is None or before.errno != error.errno:
            self.log.warning(
                f"a file cannot be {what}; it is tried again", path=self._path, error=str(error)
            )
        return error

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """Where it is."""
        return {
            "path": self._path,
            "following": str(self._follow),
            "open_files": str(len(self._files)),
            "sent": str(self._sent),
            "rotations": str(self._files.rotations),
            "truncations": str(self._files.truncations),
        }

    def _read_to_end(self, file: Followed) -> None:
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
        """Send until there is no more, or the stop comes; False if there was nothing."""
        to, before = self._to, self._sent
        for message in messages:
            self._sent += 1
            self.send(to, message)
            if self.stopping:
                break
        return self._sent > before


@dataclass(frozen=True, slots=True)
class _Look:
    """To oneself: look whether the file is still the same."""


# -- writing ---------------------------------------------------------------------------------------


class FileWriter(MetaProcess):
    """Writes a file, on worker threads, in the order in which it is told to.

    What is called is answered when it is done, or with what went wrong. What is only sent and
    cannot be written ends the meta-process with that error: nothing is lost in silence. What the
    disk has no room for is not left in the file in part: it is taken back, unless another program
    has written behind it meanwhile. What still waits when it is stopped is not written; call
    :class:`FileSync` first.

    Args:
        path: the file, which is made if there is none.
        append: write behind what is there; otherwise in its place.
        encoding: of a ``str`` that is written.

    Raises:
        BadInputError: an argument can never be right.
    """

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
        """Be there: everything is done for messages."""
        await trio.sleep_forever()

    def handle_message(self, message: object, sender: object) -> None:
        """Do what a message says."""
        if self._serve(message) is NotImplemented:
            super().handle_message(message, sender)

    def handle_call(self, request: object, caller: Caller) -> object:
        """Do what a request says, and answer when it is done; what goes wrong is the answer."""
        try:
            answer = self._serve(request)
        except (OSError, UnicodeError) as error:
            raise Reject(error) from None
        return super().handle_call(request, caller) if answer is NotImplemented else answer

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """How much was written."""
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
                # Whatever the mode: what was written since the rotation must stay.
                self._file.open(self._path, os.O_APPEND)
                return None
        return NotImplemented


class _Writable:
    """The descriptor that is written to."""

    def __init__(self) -> None:
        self.fd = -1

    def open(self, path: str, how: int) -> None:
        # A fifo without a reader is an error here, where it would otherwise hold everything up.
        fd = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK | how, 0o666
        )
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.close(fd)
            raise BadInputError(
                "path",
                path,
                "a file; a fifo may hold the writer up for ever: write to it with a Port",
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
        """Remove what was written last, if nothing follows it: else the next record would stand in
        the same line.
        """
        try:
            end = os.lseek(self.fd, 0, os.SEEK_CUR)
            if os.fstat(self.fd).st_size == end:
                os.ftruncate(self.fd, end - count)
                os.lseek(self.fd, end - count, os.SEEK_SET)
        except OSError:  # no ordinary file, or one that cannot be made shorter; the error of the write says enough
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
    """A thread that reads a file is never blocked for long, and looks by itself whether it is to
    stop.
    """
