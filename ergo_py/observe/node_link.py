"""`NodeLink`: a connection to the control socket of a node, for tasks of the page's own loop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import trio

from ..control.client import read_answer, read_greeting, read_refusal
from ..control.protocol import MAX_ANSWER, VERSION, encode

__all__ = ["NodeLink"]

_GREETING: Final = 2.0
"""Seconds a node has for its greeting."""


class NodeLink:
    """A connection to a node, with a single request at a time."""

    def __init__(self, path: Path, other: str | None = None) -> None:
        """``other`` is another node of the network of the node with this socket, which passes all
        requests on to it.
        """
        self._path = path
        self._other = other
        self._stream: trio.SocketStream | None = None
        self._buffer = bytearray()
        self._number = 0
        self.node = ""
        self.os_pid = 0
        self.may: list[str] = []

    async def open(self) -> None:
        """Connect.

        Raises:
            OSError: no node listens there, or it does not answer.
            ControlError: the node refuses the connection.
        """
        try:
            with trio.fail_after(_GREETING):
                self._stream = await trio.open_unix_socket(self._path)
                self.node, self.os_pid, self.may = read_greeting(await self._receive(), self._path)
        except trio.TooSlowError:
            self.close()
            raise TimeoutError(f"{self._path} does not answer") from None
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether it is connected, as far as is known."""
        return self._stream is not None

    def close(self) -> None:
        """Disconnect."""
        if self._stream is not None:
            self._stream.socket.close()
            self._stream = None

    async def ask(
        self,
        do: str,
        arguments: dict[str, Any],
        *,
        timeout: float = 30.0,
        out: Callable[[str], object] | None = None,
    ) -> Any:
        """Send a request and wait for the answer; ``out`` gets output that comes before it.

        Raises:
            ControlError: the node refuses.
            OSError: the connection is closed, or the node does not answer in time.
        """
        self._number += 1
        if self._other is not None:
            do, arguments = "at", {"node": self._other, "do": do, "with": arguments}
        try:
            with trio.fail_after(timeout):
                await self._send({"v": VERSION, "id": self._number, "do": do, "with": arguments})
                while True:
                    answer = await self._receive()
                    if answer.get("id") not in (self._number, None):
                        continue
                    if "out" in answer:
                        if out is not None:
                            out(str(answer["out"]))
                    elif answer.get("ok"):
                        return answer.get("result")
                    else:
                        raise read_refusal(answer.get("error"), self._path)
        except trio.TooSlowError:
            self.close()
            raise TimeoutError(f"{self.node} does not answer") from None
        except trio.BrokenResourceError as error:
            self.close()
            raise ConnectionError(f"{self.node} closed the connection") from error
        except BaseException as error:
            # The answer to a cancelled request must not pass for the answer to the next.
            if isinstance(error, OSError | trio.Cancelled | trio.ClosedResourceError):
                self.close()
            raise

    async def cancel(self) -> None:
        """Ask the node to end the request in progress early; its answer comes as usual."""
        await self._send({"v": VERSION, "id": None, "do": "cancel"})

    async def _send(self, message: dict[str, Any]) -> None:
        if self._stream is None:
            raise ConnectionError(f"{self.node or self._path} is not connected")
        await self._stream.send_all(encode(message))

    async def _receive(self) -> dict[str, Any]:
        stream = self._stream
        if stream is None:
            raise ConnectionError(f"{self.node or self._path} is not connected")
        while b"\n" not in self._buffer:
            data = await stream.receive_some(65536)
            if not data:
                raise ConnectionError(f"{self.node or self._path} closed the connection")
            self._buffer += data
            if len(self._buffer) > 2 * MAX_ANSWER:
                raise ConnectionError(f"{self._path} sent more than the protocol allows")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return read_answer(bytes(line), self._path)
