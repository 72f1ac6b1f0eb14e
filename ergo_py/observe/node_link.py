"""`NodeLink`: a connection to the control socket of a node, for tasks of the page's own loop."""

from pathlib import Path
from typing import Any

import trio

from ..control.conversation import GREETING, READ_SIZE, Output, Transport

__all__ = ["NodeLink"]


class NodeLink(Transport):
    """A connection to a node, with a single request at a time."""

    def __init__(self, path: Path, other: str | None = None) -> None:
        super().__init__(path, other)
        self._stream: trio.SocketStream | None = None

    async def open(self) -> None:
        """Connect.

        Raises:
            OSError: no node listens there, or it does not answer.
            ControlError: the node refuses the connection.
        """
        try:
            with trio.fail_after(GREETING):
                self._stream = await trio.open_unix_socket(self.path)
                await self._receive(None)
        except trio.TooSlowError:
            self.close()
            raise TimeoutError(f"{self.path} does not answer") from None
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
        out: Output | None = None,
    ) -> Any:
        """Send a request and wait for the answer; ``out`` gets output that comes before it.

        Raises:
            ControlError: the node refuses.
            OSError: the connection is closed, or the node does not answer in time.
        """
        try:
            with trio.fail_after(timeout):
                await self._send(self.conversation.ask(do, arguments))
                return await self._receive(out)
        except trio.TooSlowError:
            self.close()
            raise TimeoutError(f"{self.node} does not answer") from None
        except trio.BrokenResourceError as error:
            self.close()
            raise ConnectionError(f"{self.node} closed the connection") from error
        except (OSError, trio.Cancelled, trio.ClosedResourceError):
            # The answer to a cancelled request must not pass for the answer to the next.
            self.close()
            raise

    async def cancel(self) -> None:
        """Ask the node to end the request in progress early; its answer comes as usual."""
        await self._send(self.conversation.cancel())

    async def _send(self, data: bytes) -> None:
        await self._connected().send_all(data)

    async def _receive(self, out: Output | None) -> object:
        answer = self.conversation.answer(out)
        while answer is None:
            answer = self.conversation.feed(await self._connected().receive_some(READ_SIZE), out)
        return answer.result

    def _connected(self) -> trio.SocketStream:
        if self._stream is None:
            raise ConnectionError(f"{self.node or self.path} is not connected")
        return self._stream
