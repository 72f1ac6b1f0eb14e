"""`Conversation`: the client's side of the protocol of a control socket, without I/O. A transport
sends the bytes of `ask` and `cancel`, and gives the bytes that it receives to `feed`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from .protocol import MAX_ANSWER, VERSION, ControlError, encode

__all__ = ["GREETING", "READ_SIZE", "Answer", "Conversation", "Output", "Transport"]

GREETING: Final = 2.0
"""Seconds a node has for its greeting; its control thread normally answers at once."""
READ_SIZE: Final = 65536
"""Bytes that a transport reads at a time."""
Output = Callable[[str], object]
"""Takes the output that comes before an answer."""


class Answer(NamedTuple):
    """The result of a request; None for the greeting."""

    result: Any


class Conversation:
    """The greeting of a node, and then a single request at a time."""

    def __init__(self, path: Path, other: str | None = None) -> None:
        self._path = path
        self._other = other
        """The node that gets the requests, if it is another node of the network."""
        self._buffer = bytearray()
        self._number = 0
        """The number of the last request; 0 before the first."""
        self.node: str = ""
        self.os_pid: int = 0
        self.may: list[str] = []

    def pass_on(self, node: str) -> None:
        """Have the node pass all further requests on to another node of its network."""
        self._other = self.node = node

    def ask(self, do: str, arguments: dict[str, Any]) -> bytes:
        """The bytes of a request. Answers to earlier requests are skipped from now on."""
        self._number += 1
        if self._other is not None:
            do, arguments = "at", {"node": self._other, "do": do, "with": arguments}
        return encode({"v": VERSION, "id": self._number, "do": do, "with": arguments})

    def cancel(self) -> bytes:
        """The bytes that cancel the request in progress; its answer confirms that. If the request
        was answered before, the node refuses to cancel: the number keeps that apart from the
        answer to the next request.
        """
        return encode({"v": VERSION, "id": "cancel", "do": "cancel"})

    def feed(self, data: bytes, out: Output | None = None) -> Answer | None:
        """Take received bytes: none at the end of the stream. Return as `answer` does.

        Raises:
            ControlError: the node refuses.
            ConnectionError: the stream has ended, or it has not the form of the protocol.
        """
        if not data:
            raise ConnectionError(f"{self.node or self._path} closed the connection")
        self._buffer += data
        if len(self._buffer) > 2 * MAX_ANSWER:
            raise ConnectionError(f"{self._path} sent more than the protocol allows")
        return self.answer(out)

    def answer(self, out: Output | None = None) -> Answer | None:
        """The answer, or the greeting, if the received bytes hold it; the output before it goes to
        ``out``.

        Raises:
            ControlError: the node refuses.
            ConnectionError: the bytes have not the form of the protocol.
        """
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            said = self._parse(bytes(line))
            if not self._number:
                return self._greet(said)
            if said.get("id") not in (self._number, None):
                # The answer to a request that was cancelled.
                continue
            if "out" not in said:
                if not said.get("ok"):
                    raise self._refusal(said.get("error"))
                return Answer(said.get("result"))
            if out is not None:
                out(str(said["out"]))
        return None

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            raise self._not_understood() from None
        if not isinstance(said, dict):
            raise self._not_understood()
        return said

    def _greet(self, said: dict[str, Any]) -> Answer:
        if "error" in said:
            raise self._refusal(said["error"])
        if said.get("ergo") != VERSION:
            raise ControlError(
                "version",
                f"{self._path} speaks version {said.get('ergo')}, and this program {VERSION}",
            )
        match said:
            case {"node": str(node), "os_pid": int(os_pid), "may": [*may]} if all(
                isinstance(permission, str) for permission in may
            ):
                self.node, self.os_pid, self.may = self._other or node, os_pid, may
                return Answer(None)
        raise self._not_understood()

    def _refusal(self, error: object) -> Exception:
        match error:
            case {"code": str(code), "text": str(text), **more}:
                return ControlError(code, text, **{str(key): value for key, value in more.items()})
        return self._not_understood()

    def _not_understood(self) -> ConnectionError:
        return ConnectionError(f"{self._path} does not speak the protocol of control sockets")


class Transport:
    """A connection to a node, whatever moves its bytes."""

    def __init__(self, path: Path, other: str | None = None) -> None:
        """``other`` is another node of the network of the node with this socket, which passes all
        requests on to it.
        """
        self.path = path
        self.conversation: Conversation = Conversation(path, other)

    @property
    def node(self) -> str:
        """The name of the node that answers; empty before the greeting."""
        return self.conversation.node

    @property
    def os_pid(self) -> int:
        """The number of the node's program."""
        return self.conversation.os_pid

    @property
    def may(self) -> list[str]:
        """The permissions of this connection."""
        return self.conversation.may
