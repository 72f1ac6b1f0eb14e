"""`Channel`: the connection between a program and its successor. `hand_over`: the side of the
program.

A Unix socket connects both, in a directory that only their user may enter. The lines, in order,
each with the step that follows if the other program ends instead:

1. the successor says ``take``, and gets the ``sockets``. The predecessor goes on alone.
2. the successor says ``up``. The predecessor goes on alone.
3. the predecessor says ``yours``. The successor goes on alone.
4. the successor accepts connections, and says ``mine``. The predecessor goes on.
5. the predecessor drains, and ends.

Until the last step the predecessor serves, so that no step has a gap.
"""

import array
import json
import os
import socket
from collections.abc import Mapping
from typing import Final

import trio

__all__ = ["PATIENCE", "VERSION", "Channel", "hand_over"]

PATIENCE: Final = 60.0
"""Seconds within which a successor has to be up."""
VERSION: Final = 1
_MOST: Final = 250
"""Sockets in a message; Linux allows 253."""
_LONGEST: Final = 65536
"""Bytes of a line."""
Line = dict[str, object]


class Channel:
    """The connection between a program and its successor: lines of JSON, and descriptors."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._sock = sock
        self._received = b""
        self._descriptors = array.array("i")

    async def say(self, line: Line, descriptors: tuple[int, ...] = ()) -> None:
        """Send a line, with copies of the descriptors.

        Raises:
            OSError: the other program has ended.
        """
        data = json.dumps(line).encode() + b"\n"
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        sent = await self._sock.sendmsg([data], rights if descriptors else [])
        while sent < len(data):
            sent += await self._sock.send(data[sent:])

    async def hear(self) -> Line:
        """Wait for a line. It is empty if the other program has ended, or speaks another
        language.
        """
        while b"\n" not in self._received:
            try:
                space = socket.CMSG_SPACE(_MOST * self._descriptors.itemsize)
                data, rights, _, _ = await self._sock.recvmsg(_LONGEST, space)
            except OSError:
                return {}
            for level, kind, given in rights:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    whole = len(given) - len(given) % self._descriptors.itemsize
                    self._descriptors.frombytes(given[:whole])
            if not data or len(self._received) > _LONGEST:
                return {}
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        try:
            said = json.loads(line)
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}

    def take_descriptors(self) -> list[int]:
        """The descriptors that have arrived. The caller closes them."""
        taken, self._descriptors = self._descriptors.tolist(), array.array("i")
        for number in taken:
            os.set_inheritable(number, False)
        return taken

    def close(self) -> None:
        """End the connection."""
        for number in self.take_descriptors():
            os.close(number)
        self._sock.close()


async def hand_over(
    channel: Channel, sockets: Mapping[str, int], patience: float = PATIENCE
) -> bool:
    """Hand the sockets over to a successor. False if this program goes on: the successor has ended,
    or was not up in time.
    """
    try:
        with trio.move_on_after(patience) as scope:
            if (await channel.hear()).get("take") != VERSION or len(sockets) > _MOST:
                return False
            await channel.say({"sockets": list(sockets)}, tuple(sockets.values()))
            if not (await channel.hear()).get("up"):
                return False
        if scope.cancelled_caught:
            await channel.say({"late": patience})
            return False
        await channel.say({"yours": True})
        return bool((await channel.hear()).get("mine"))
    except OSError:  # the successor has ended
        return False
