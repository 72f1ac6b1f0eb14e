"""`NodeWatch`: follows a node through its control socket, from an asyncio program. Finds the node
again after a restart.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ..._core.vocabulary.errors import ControlSocketError
from ...control.conversation import GREETING, READ_SIZE, Output, Transport
from ...control.protocol import ControlError
from ...control.socket_paths import sockets

__all__ = ["Connection", "NodeWatch", "Request"]

_SILENCE: Final = 2.0
"""Seconds without an answer after which the view says so."""
_SEARCH: Final = 0.5
"""Seconds between two searches for a node that has ended."""
_PACE: Final = 0.1
"""Minimum seconds between two requests."""
_REST: Final = 2.0
"""Pause before the next request, as a multiple of the time that the last answer took: on a large
node the rows cost the control thread more.
"""


class Connection(Transport):
    """A connection to a node. It serves a single request at a time; a request whose task is
    cancelled is cancelled at the node, too.
    """

    def __init__(
        self, path: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__(path)
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, path: Path) -> "Connection":
        """Connect.

        Raises:
            OSError: no node listens there, or it does not answer.
            ControlError: the node refuses the connection.
        """
        async with asyncio.timeout(GREETING):
            connection = cls(path, *await asyncio.open_unix_connection(str(path)))
            try:
                await connection._receive(None)
            except BaseException:
                connection.close()
                raise
        return connection

    async def ask(self, do: str, out: Output | None = None, **arguments: object) -> Any:
        """Send a request and wait for its answer, without a time limit; ``out`` gets the output
        before the answer. Requests take turns: the task of a cancelled request may still read.

        Raises:
            ControlError: the node refuses.
            ConnectionError: the node closed the connection.
        """
        async with self._turn:
            try:
                self._send(self.conversation.ask(do, arguments))
                await self._writer.drain()
                return await self._receive(out)
            except asyncio.CancelledError:
                self._send(self.conversation.cancel())
                raise

    def _send(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    async def _receive(self, out: Output | None) -> object:
        answer = self.conversation.answer(out)
        while answer is None:
            answer = self.conversation.feed(await self._reader.read(READ_SIZE), out)
        return answer.result

    def close(self) -> None:
        """Disconnect. The node continues unaffected."""
        self._writer.close()


@dataclass(frozen=True, slots=True)
class Request:
    """The rows that the view shows."""

    sort: str = "mailbox"
    find: str = ""
    skip: int = 0
    limit: int = 50


class NodeWatch:
    """Asks a node for its processes again and again, and tells a listener.

    ``run`` never ends by itself: a blocked node, a node that has ended and a node that has been
    started again are states that the listener is told of.
    """

    def __init__(
        self,
        path: Path,
        node: str,
        os_pid: int,
        *,
        interval: float,
        request: Request,
        on_rows: Callable[[Request, dict[str, Any]], object],
        on_trouble: Callable[[str], object],
    ) -> None:
        self.path: Path = path
        self.node = node
        self.os_pid: int = os_pid
        self.may: list[str] = []
        self.request: Request = request
        self.is_paused: bool = False
        self._interval = interval
        self._on_rows = on_rows
        self._on_trouble = on_trouble
        self._changed = asyncio.Event()

    def change(self, **parts: Any) -> None:
        """Ask for other rows, soon."""
        self.request = replace(self.request, **parts)
        self._changed.set()

    def pause(self, is_paused: bool) -> None:
        """Ask for rows on a change only, or at each interval."""
        self.is_paused = is_paused
        self._changed.set()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        """A further connection to the program that is shown now.

        Raises:
            OSError: the program has ended, or does not answer.
            ControlError: the node refuses.
        """
        connection = await Connection.open(self.path)
        try:
            yield connection
        finally:
            connection.close()

    async def run(self) -> None:
        """Follow the node.

        Raises:
            ControlError: the node does not permit it.
        """
        while True:
            connection = await self._find()
            try:
                await self._follow(connection)
            except OSError:  # the node has ended
                self._on_trouble(f"{self.node} has ended; the view waits for it to start again")
            except ControlError as error:
                if error.code in ("not_permitted", "version", "bad_argument", "unknown"):
                    raise
                self._on_trouble(error.text)
            finally:
                connection.close()
            await asyncio.sleep(_SEARCH)

    async def _find(self) -> Connection:
        """Connect to the program of the last connection; else to another program with a node of the
        same name.
        """
        while True:
            others = [path for path in _paths_of(self.node) if path != self.path]
            trouble = ""
            for paths in ([self.path], others):
                found, refusals = await self._open(paths)
                if len(found) == 1 and not refusals:
                    return found[0]
                for connection in found:
                    connection.close()
                if len(found) > 1:
                    refusals.append(
                        f"{self.node} has ended, and {len(found)} other programs have a node of "
                        "this name; leave with q, and choose with --pid"
                    )
                trouble = trouble or " ".join(refusals)
            self._on_trouble(
                trouble or f"{self.node} has ended; the view waits for it to start again"
            )
            await asyncio.sleep(_SEARCH)

    async def _open(self, paths: list[Path]) -> tuple[list[Connection], list[str]]:
        """Connections to these sockets, and why others that listen cannot be used."""
        found, refusals = [], []
        for path in paths:
            try:
                found.append(await Connection.open(path))
            except TimeoutError:
                refusals.append(
                    f"{self.node} does not answer: its program is stopped, or gets no time to run"
                )
            except OSError:  # a socket that a killed program has left
                continue
            except ControlError as error:
                if error.code == "version":
                    raise
                refusals.append(error.text)
        return found, refusals

    async def _follow(self, connection: Connection) -> None:
        self.path, self.os_pid, self.may = connection.path, connection.os_pid, connection.may
        clock = asyncio.get_running_loop().time
        # The node counts rates from the request before.
        await self._ask(connection, Request(limit=1))
        await asyncio.sleep(_PACE)
        while True:
            self._changed.clear()
            request, began = self.request, clock()
            answer = await self._ask(connection, request)
            took = clock() - began
            self._on_rows(request, answer)
            await asyncio.sleep(max(_PACE, _REST * took))
            left = None if self.is_paused else max(0.0, self._interval - (clock() - began))
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue

    async def _ask(self, connection: Connection, request: Request) -> dict[str, Any]:
        arguments: dict[str, object] = {"sort": request.sort, "limit": request.limit}
        if request.find:
            arguments["find"] = request.find
        if request.skip:
            arguments["skip"] = request.skip
        asked = asyncio.ensure_future(connection.ask("ps", None, **arguments))
        try:
            clock = asyncio.get_running_loop().time
            began = clock()
            while not (await asyncio.wait({asked}, timeout=_SILENCE))[0]:
                self._on_trouble(
                    f"{self.node} has not answered for {clock() - began:.0f} s: its program is "
                    "stopped, or gets no time to run"
                )
            answer: dict[str, Any] = asked.result()
            return answer
        finally:
            asked.cancel()


def _paths_of(node: str) -> list[Path]:
    try:
        return [path for name, _, path in sockets() if name == node]
    except (ControlSocketError, OSError):  # the directory is gone, or is another user's
        return []
