"""`Files`: static files of a directory."""

import os
import re
import stat
from collections.abc import Awaitable
from mimetypes import guess_type
from pathlib import Path
from typing import Any, BinaryIO, Final

import trio

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import show_public_names
from ..messages.requests import HTTPRequest
from ..messages.responses import HTTPError, Response, bare_response, http_date
from ..routes import Place
from .dialogue import Dialogue, PeerLeftError

__all__ = ["Files"]

_PIECE: Final = 256 * 1024
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII)

Found = tuple[BinaryIO, os.stat_result, str]
"""An open file, its facts, and its encoding."""


class Files(Place):
    """Static files of a directory, for ``GET`` and ``HEAD``. Threads read them.

    A path never leads out of the directory: its parts are decoded once, links are followed only
    inside, and names that begin with a dot do not exist. A directory is its ``index.html``. If the
    client takes ``gzip`` and there is a file with ``.gz`` beside it, that is sent.

    Args:
        prefix: the path of the directory's root.
        directory: the directory.
        max_age: seconds for which a client may keep a file without asking again.

    Raises:
        BadInputError: there is no such directory, or a value is wrong.
    """

    kind = "files"

    def __init__(self, prefix: str, directory: str | os.PathLike[str], *, max_age: int = 0) -> None:
        super().__init__(prefix, methods=["GET", "HEAD"], max_body=0)
        if not isinstance(directory, str | os.PathLike) or not Path(directory).is_dir():
            raise BadInputError("Files(directory)", directory, "an existing directory")
        check_number("Files(max_age)", max_age, least=0, whole=True)
        self._root = Path(directory).resolve()
        self._max_age = max_age

    def answer(self, session: Any, request: HTTPRequest) -> Awaitable[None] | None:
        """Read the file in a thread, and write it."""
        return self._serve(Dialogue(session, request))

    async def _serve(self, dialogue: Dialogue) -> None:
        request = dialogue.request
        takes_gzip = "gzip" in request.headers.get("accept-encoding", "")
        parts = request.path[len(self.parts) :]
        try:
            found = await trio.to_thread.run_sync(self._open, parts, takes_gzip)
        except HTTPError as error:
            if not dialogue.has_ended:
                dialogue.respond(error.response)
            return
        file, facts, encoding = found
        try:
            await self._send(dialogue, file, facts, encoding)
        except PeerLeftError:
            pass
        finally:
            await trio.to_thread.run_sync(file.close)

    def _open(self, parts: tuple[str, ...], takes_gzip: bool) -> Found:
        """Find and open a file. In a thread.

        Raises:
            HTTPError: there is no such file.
        """
        if parts and parts[-1] == "":
            parts = (*parts[:-1], "index.html")
        for part in parts:
            if not part or part.startswith(".") or "/" in part or "\\" in part or "\0" in part:
                raise HTTPError(404)
        path = self._root.joinpath(*parts)
        try:
            path = path.resolve(strict=True)
            if path.is_dir():
                path = (path / "index.html").resolve(strict=True)
            if takes_gzip:
                packed = self._opened(path.with_name(path.name + ".gz"), "gzip", path.name)
                if packed is not None:
                    return packed
            plain = self._opened(path, "", path.name)
        except (OSError, RuntimeError, ValueError):
            raise HTTPError(404) from None
        if plain is None:
            raise HTTPError(404)
        return plain

    def _opened(self, path: Path, encoding: str, name: str) -> Found | None:
        try:
            path = path.resolve(strict=True)
        except OSError:
            return None
        inside = path.relative_to(self._root)
        if any(part.startswith(".") for part in inside.parts):
            return None
        # A pipe would block, and a device is no file.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        facts = os.fstat(number)
        if not stat.S_ISREG(facts.st_mode):
            os.close(number)
            return None
        kind = guess_type(name)[0] or "application/octet-stream"
        if kind.startswith("text/"):
            kind += "; charset=utf-8"
        return os.fdopen(number, "rb"), facts, f"{encoding}|{kind}"

    async def _send(
        self, dialogue: Dialogue, file: BinaryIO, facts: os.stat_result, told: str
    ) -> None:
        request = dialogue.request
        encoding, _, kind = told.partition("|")
        tag = f'"{facts.st_mtime_ns:x}-{facts.st_size:x}{"-gz" if encoding else ""}"'
        fields = [
            ("content-type", kind),
            ("etag", tag),
            ("last-modified", http_date(facts.st_mtime)),
            ("vary", "accept-encoding"),
            ("x-content-type-options", "nosniff"),
            ("cache-control", f"max-age={self._max_age}" if self._max_age else "no-cache"),
            ("accept-ranges", "bytes"),
        ]
        known = [each.strip(" \t") for each in request.headers.get("if-none-match", "").split(",")]
        if tag in known or f"W/{tag}" in known or known == ["*"]:
            dialogue.respond(Response(304, b"", fields[1:]))
            return
        if encoding:
            fields.append(("content-encoding", encoding))
        begin, end, status = 0, facts.st_size, 200
        asked = request.headers.get("range")
        if asked is not None and request.headers.get("if-range", tag) == tag:
            chosen = _read_range(asked, facts.st_size)
            if chosen == (-1, -1):
                dialogue.respond(
                    bare_response(416, [("content-range", f"bytes */{facts.st_size}")]),
                )
                return
            if chosen is not None:
                (begin, end), status = chosen, 206
                fields.append(("content-range", f"bytes {begin}-{end - 1}/{facts.st_size}"))
        dialogue.respond(Response(status, b"", fields, stream=True, length=end - begin))
        if request.method == "HEAD":
            return
        await trio.to_thread.run_sync(file.seek, begin)
        left = end - begin
        while left:
            piece = await trio.to_thread.run_sync(file.read, min(_PIECE, left))
            if not piece:
                raise OSError("a file has become shorter while it was sent")
            left -= len(piece)
            await dialogue.write(piece)
        dialogue.end()


def _read_range(asked: str, size: int) -> tuple[int, int] | None:
    """The part of a file that a client asks for; None to send all of it, (-1, -1) if there is no
    such part.
    """
    match = _RANGE.fullmatch(asked.strip(" \t"))
    if match is None or match[1] == match[2] == "":
        return None  # several parts, or another unit: the whole file is a right answer
    if not match[1]:
        length = min(int(match[2]), size)
        return (size - length, size) if length else (-1, -1)
    begin = int(match[1])
    end = min(int(match[2]) + 1, size) if match[2] else size
    if match[2] and int(match[2]) < begin:
        return None
    return (begin, end) if begin < end else (-1, -1)


show_public_names(__name__)
