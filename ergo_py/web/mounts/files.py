"""`Files`: static files of a directory."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import trio

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import show_public_names
from ..messages.requests import HTTPRequest
from ..messages.responses import HTTPError, Response, bare_response
from ..routes import Place
from .application_exchange import ApplicationExchange, PeerLeftError
from .directory import Directory, OpenedFile
from .file_cache import MOST_BYTES, FileCache, Key, StoredFile
from .file_conditions import NO_SUCH_PART, asks_for_all, choose_part, refusal, takes_gzip
from .file_facts import FileFacts, file_facts

__all__ = ["Files"]

_PIECE: Final = 256 * 1024
"""Bytes to read of a file at a time: a slow peer holds a piece in memory, and other work of the
loop waits for a piece. Not measured for other sizes.
"""
_TRIES: Final = 3


class Files(Place):
    """Static files of a directory, for ``GET`` and ``HEAD``.

    A path never leads out of the directory: its parts are decoded once, links are followed only
    inside, and names that begin with a dot do not exist, except ``.well-known``. A directory is its
    ``index.html``; a path to it without a slash at its end is redirected. If the client takes
    ``gzip`` and there is a file with ``.gz`` beside it, that is sent.

    Threads read the files, unless Linux has them in memory and hands them out without blocking.
    Files of at most 1 MiB stay in memory here, and are read again when they have changed: each
    request looks at the file, on the loop if its file system is local, and otherwise in a thread.

    Args:
        prefix: the path of the directory's root.
        directory: the directory.
        max_age: seconds for which a client may keep a file without asking again.
        cache: bytes of files that may stay in memory; 0 for none.

    Raises:
        BadInputError: there is no such directory, or a value is wrong.
    """

    kind = "files"

    def __init__(
        self,
        prefix: str,
        directory: str | os.PathLike[str],
        *,
        max_age: int = 0,
        cache: int = 16 * 1024 * 1024,
    ) -> None:
        super().__init__(prefix, methods=["GET", "HEAD"], max_body=0)
        if not isinstance(directory, str | os.PathLike) or not Path(directory).is_dir():
            raise BadInputError("Files(directory)", directory, "an existing directory")
        check_number("Files(max_age)", max_age, least=0, whole=True)
        check_number("Files(cache)", cache, least=0, whole=True)
        self._directory = Directory(os.fspath(directory))
        self._max_age = max_age
        self._cache = FileCache(cache)

    def answer(self, http: Any, request: HTTPRequest) -> Awaitable[None] | None:
        """Answer at once if the file is in memory, here or in the operating system; otherwise read
        it in a thread, and write it.
        """
        accepted = request.headers.get("accept-encoding")
        key = request.path[len(self.parts) :], accepted is not None and takes_gzip(accepted)
        stored = self._cache.get(key)
        if stored is not None and stored.is_local and stored.is_current():
            http.answer(request.exchange, _response_of(request, stored.facts, stored.whole)[0])
            return None
        response = self._answer_cached(request, key)
        if response is not None:
            http.answer(request.exchange, response)
            return None
        return self._serve(ApplicationExchange(http, request), key, stored)

    def _answer_cached(self, request: HTTPRequest, key: Key) -> Response | None:
        """The response that needs no thread; None if a thread has to read the file, or if the file
        is too long for a single response.
        """
        opened = self._directory.open_cached(*self._place_of(key))
        if opened is None:
            return None
        try:
            if request.method == "HEAD" or opened.facts.st_size > MOST_BYTES:
                response, begin, end = _response_of(request, self._facts_of(opened), None)
                return response if begin == end or request.method == "HEAD" else None
            read = self._try_to_read(opened, opened.read_cached)
            if read is None:
                return None
            self._cache.put(key, read)
            return _response_of(request, read.facts, read.whole)[0]
        finally:
            opened.close()

    async def _serve(
        self, exchange: ApplicationExchange, key: Key, stored: StoredFile | None
    ) -> None:
        request = exchange.request
        found: StoredFile | OpenedFile | Response
        # Opened a second time: a request that ends before this task has begun leaves no file open.
        opened = self._directory.open_cached(*self._place_of(key))
        if opened is not None and opened.facts.st_size <= MOST_BYTES:
            opened.close()
            opened = None
        try:
            if opened is not None:
                found = opened
            else:
                found = await trio.to_thread.run_sync(self._find, request, key, stored)
        except HTTPError as error:
            if not exchange.has_ended:
                exchange.respond(error.response)
            return
        if isinstance(found, OpenedFile):
            await self._send(exchange, found)
            return
        if isinstance(found, StoredFile):
            if found is not stored:
                self._cache.put(key, found)
            found = _response_of(request, found.facts, found.whole)[0]
        if not exchange.has_ended:
            exchange.respond(found)

    def _place_of(self, key: Key) -> tuple[tuple[str, ...], bool, bool]:
        """The parts of a path without the slash at its end, whether the client takes gzip, and
        whether there was such a slash.
        """
        parts, wants_packed = key
        is_folder = parts[-1] == "" if parts else not self.parts
        return parts[:-1] if parts and is_folder else parts, wants_packed, is_folder

    def _find(
        self, request: HTTPRequest, key: Key, stored: StoredFile | None
    ) -> StoredFile | OpenedFile | Response:
        """Look at a file that is in memory, or find and open it, and read a small one. In a thread.

        Raises:
            HTTPError: there is no such file.
        """
        if stored is not None and stored.is_current():
            return stored
        opened = self._directory.open(*self._place_of(key))
        if opened is None:
            path, question, query = request.head.path.partition("?")
            return bare_response(301, [("location", f"{path}/{question}{query}")])
        if request.method == "HEAD":
            return opened
        if opened.facts.st_size > MOST_BYTES:
            if "range" not in request.headers:
                opened.read_ahead(_PIECE)
            return opened
        try:
            for _ in range(_TRIES):
                read = self._try_to_read(opened, opened.read)
                if read is not None:
                    return read
        finally:
            opened.close()
        raise OSError("a file becomes shorter whenever it is read")

    def _try_to_read(
        self, opened: OpenedFile, read: Callable[[int, int], bytes]
    ) -> StoredFile | None:
        """Read a small file; None if that fails. Another program may change it meanwhile."""
        facts = self._facts_of(opened)
        body = read(0, facts.size)
        opened.look_again()
        if len(body) != facts.size:
            return None
        return StoredFile(
            facts,
            facts.without_body.with_body(body),
            opened.marks,
            is_local=opened.is_local,
            changed=opened.facts.st_ctime,
        )

    def _facts_of(self, opened: OpenedFile) -> FileFacts:
        found = opened.facts
        return file_facts(
            found.st_size, found.st_mtime_ns, opened.name, opened.encoding, self._max_age
        )

    async def _send(self, exchange: ApplicationExchange, opened: OpenedFile) -> None:
        """Send a file in pieces."""
        try:
            if exchange.has_ended:
                return
            response, begin, end = _response_of(exchange.request, self._facts_of(opened), None)
            exchange.respond(response)
            if exchange.has_ended:
                return
            piece = opened.take_ahead(end - begin)
            while begin < end:
                upto = min(begin + _PIECE, end)
                piece = piece or opened.read_cached(begin, upto)
                if piece:
                    # A peer that takes everything at once must not keep the loop from other work.
                    await trio.lowlevel.checkpoint()
                else:
                    piece = await trio.to_thread.run_sync(opened.read, begin, upto)
                if not piece:
                    raise OSError("a file has become shorter while it was sent")
                begin += len(piece)
                await exchange.write(piece)
                piece = b""
            exchange.end()
        except PeerLeftError:
            pass  # no peer is left that could be told
        finally:
            # On the loop, also if this task is cancelled: there is nothing to write back.
            opened.close()


def _response_of(
    request: HTTPRequest, facts: FileFacts, whole: Response | None
) -> tuple[Response, int, int]:
    """The response to a request for a file, and the part of the file that has to be sent after it.
    ``whole`` is the response with the whole file, if the file is in memory.
    """
    headers = request.headers
    if whole is not None and asks_for_all(headers):
        return whole, 0, 0
    match refusal(headers, facts.tag, facts.modified, facts.seconds):
        case 304:
            return facts.not_modified, 0, 0
        case 412:
            return bare_response(412), 0, 0
    part = None
    if request.method == "GET":
        part = choose_part(headers, facts.tag, facts.seconds, facts.size)
    if part == NO_SUCH_PART:
        return bare_response(416, [("content-range", f"bytes */{facts.size}")]), 0, 0
    status, fields = 200, facts.fields
    begin, end = part or (0, facts.size)
    if part is not None:
        status, fields = 206, [*fields, ("content-range", f"bytes {begin}-{end - 1}/{facts.size}")]
    if whole is None:
        return Response(status, b"", fields, stream=True, length=end - begin), begin, end
    return whole if part is None else Response(status, whole.body[begin:end], fields), 0, 0


show_public_names(__name__)
