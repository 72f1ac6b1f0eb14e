"""`Channel`: the connection between a program and its successor. `hand_over`: the side of the
program. `connect`: how the successor, or ``ergo upgrade``, finds the program.

A Unix socket connects both, in a directory that only their user may enter. The lines, in order,
each with the step that follows if the other program ends or hangs instead:

1. the successor says ``take``, and gets the ``sockets``. The predecessor goes on alone.
2. the successor says ``up``, which processes it ``takes``, and for which servers it takes
   ``connections``. The predecessor suspends the processes, and sends the ``state`` of each. The
   predecessor resumes them, and goes on alone.
3. the successor gives its processes these states, and says ``taken``. The predecessor resumes its
   processes, and goes on alone.
4. the predecessor says ``yours``, with the turn. A successor that hears it goes on alone.
5. the successor takes the turn, accepts connections, and says ``mine``. The predecessor goes on if
   the successor ends; if it hangs, then the program that takes the turn first goes on.
6. the predecessor forwards the messages to its moved processes, and sends open connections, batch
   by batch (`leaving_connections`). It says ``moved``, and the successor answers that all have
   ``arrived``; then the predecessor drains, and ends. If the successor ends before this answer, and
   no state has moved with it, the predecessor goes on.

The turn is a pipe with a single byte, which both programs can read. A successor that hangs with
``yours`` unread would take over whenever it wakes, and both programs would serve; the pipe lets the
predecessor take ``yours`` back, and the successor finds the pipe empty.

Until the last step the predecessor serves, so that no step has a gap. Both keep the channel until
one of them ends: the end of the channel is the end of the other program. A successor with another
`VERSION` hears that the hand-over has ``failed``, before anything moves.
"""

import array
import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, unquote

import trio

from .._core.vocabulary.errors import ControlSocketError, NotAllowedError
from .._core.vocabulary.options import check_name
from ..control.socket_paths import directory

__all__ = [
    "LARGEST",
    "PATIENCE",
    "REQUEST",
    "Channel",
    "Line",
    "Outcome",
    "Part",
    "States",
    "connect",
    "hand_over",
    "items_of",
    "make_turn",
    "read_sizes",
    "socket_path",
    "take_turn",
    "waiting_programs",
]

PATIENCE: Final = 60.0
"""Seconds within which a successor has to be up."""
_TURN: Final = 10.0
"""Seconds within which a successor has to take its turn; it does so at once unless it hangs."""
_FAREWELL: Final = 1.0
"""Seconds for the last line to a late successor, which perhaps reads no more."""
VERSION: Final = 1
"""The protocol. Programs with different protocols do not hand over to each other."""
_PATH: Final = 100
"""Maximum bytes of the path of a socket; operating systems allow 104 or 108."""
_MOST: Final = 250
"""Sockets in a message; Linux allows 253."""
_LONGEST: Final = 1 << 26
"""Bytes of a line, without its body: it names all processes that take a state over."""
_PART: Final = 65536
"""Bytes that are received at once."""
LARGEST: Final = 1 << 30
"""Bytes of a body: a state, or a message."""
_BUFFERS: Final = (socket.SO_RCVBUF, socket.SO_SNDBUF)
_LARGEST_SIZE: Final = (1 << 31) - 1
"""Bytes of a buffer that a system call takes; more would raise when the program has its turn."""
Line = dict[str, Any]
REQUEST: Final[Line] = {"take": VERSION}
"""The first line of a successor."""


class Part(NamedTuple):
    """A line with its body and its descriptors."""

    line: Line
    body: bytes
    descriptors: tuple[int, ...] = ()


class Channel:
    """The connection between a program and its successor: lines of JSON, each perhaps with a body
    of bytes, and descriptors.
    """

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._sock = sock
        self._received = bytearray()
        self._descriptors = array.array("i")
        self._lock = trio.Lock()
        """Keeps the lines of several tasks apart."""
        self.is_cut: bool = False
        """This program has ended the conversation."""
        self.has_ended: bool = False
        """The other program has ended, and this program has heard all its lines."""

    async def say(
        self, line: Line, descriptors: tuple[int, ...] = (), body: bytes | None = None
    ) -> None:
        """Send a line, with copies of the descriptors.

        Raises:
            OSError: the other program has ended.
        """
        if body is not None:
            line = {**line, "size": len(body)}
        data = memoryview(json.dumps(line).encode() + b"\n" + (body or b""))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        async with self._lock:
            sent = await self._sock.sendmsg([data], rights if descriptors else [])
            while sent < len(data):
                sent += await self._sock.send(data[sent:])

    async def hear(self) -> Line:
        """Wait for a line, and for its ``body``. It is empty if the other program has ended, or
        speaks another language.
        """
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            if searched > _LONGEST or not await self._receive():
                return {}
        try:
            said = json.loads(self._received[:end])
        except (ValueError, RecursionError):
            return {}
        del self._received[: end + 1]
        if not isinstance(said, dict):
            return {}
        size = said.pop("size", None)
        if isinstance(size, int):
            if not 0 <= size <= LARGEST:
                return {}
            while len(self._received) < size:
                if not await self._receive():
                    return {}
            said["body"] = bytes(self._received[:size])
            del self._received[:size]
        return said

    async def _receive(self) -> bool:
        """Receive more bytes. False if there are no more."""
        try:
            space = socket.CMSG_SPACE(_MOST * self._descriptors.itemsize)
            data, rights, _, _ = await self._sock.recvmsg(_PART, space)
        except OSError:
            data, rights = b"", []
        for level, kind, given in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                whole = len(given) - len(given) % self._descriptors.itemsize
                self._descriptors.frombytes(given[:whole])
        self._received += data
        self.has_ended = not data and not self.is_cut
        return bool(data)

    def take_descriptors(self) -> list[int]:
        """The descriptors that have arrived. The caller closes them."""
        taken, self._descriptors = self._descriptors.tolist(), array.array("i")
        for number in taken:
            os.set_inheritable(number, False)
        return taken

    def cut(self) -> None:
        """End the conversation: a line is incomplete. A task that hears finds the end."""
        self.is_cut = True
        with suppress(OSError):  # the other program has ended
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection."""
        for number in self.take_descriptors():
            os.close(number)
        self._sock.close()


class Outcome(NamedTuple):
    """How a hand-over has ended."""

    goes_on: bool
    """Whether this program goes on: the successor has not taken over."""
    why: str = ""
    """Why; or how the successor has failed after it has taken over. Empty if it serves."""


class States(Protocol):
    """The states of the processes that move to the successor."""

    fresh: list[str]
    """The names of processes with a state that the successor does not take."""
    are_given: bool
    """The successor has its turn: this program ends the hand-over, also if it is stopped."""

    async def suspend(self, wanted: Iterable[object], servers: Iterable[object] = ()) -> list[Part]:
        """Suspend the wanted processes, and return their states. The connections of the servers
        move later.
        """
        ...

    async def resume(self) -> None:
        """Let the suspended processes go on."""


async def hand_over(
    channel: Channel,
    first: Line,
    sockets: Mapping[str, int],
    states: States,
    patience: float = PATIENCE,
    former_sizes: Mapping[str, Mapping[int, int]] | None = None,
) -> Outcome:
    """Hand the sockets and the states over to a successor, which has said its ``first`` line.

    ``former_sizes`` are those of the buffers of sockets from before the first program.
    """
    outcome = Outcome(True, "the next version has ended before it has taken over")
    try:
        line: Line = {"sockets": list(sockets)}
        if former_sizes:
            line["former_sizes"] = former_sizes
        part = Part(line, b"", tuple(sockets.values()))
        outcome = await _converse(channel, first, part, states, patience)
    except OSError:  # the successor has ended
        pass
    finally:
        if outcome.goes_on:
            await states.resume()
    return outcome


async def _converse(
    channel: Channel,
    first: Line,
    sockets: Part,
    states: States,
    patience: float,
) -> Outcome:
    try:
        turn = _check(first, sockets.descriptors)
    except NotAllowedError as error:
        await channel.say({"failed": str(error)})
        return Outcome(True, str(error))
    try:
        if why := await _agree(channel, sockets, states, patience):
            return Outcome(True, why)
        states.are_given = True
        return await _give_turn(channel, turn)
    finally:
        os.close(turn)


def _check(first: Line, sockets: Sequence[int]) -> int:
    """Make the turn of a successor.

    Raises:
        NotAllowedError: this program cannot hand over to the successor. The text says why.
    """
    if first.get("take") != VERSION:
        raise NotAllowedError(
            f"the running program hands over by the protocol {VERSION} of ergo_py, and the next "
            f"version by {json.dumps(first.get('take'))}; stop the running program, and start the "
            "next version"
        )
    if len(sockets) > _MOST:
        raise NotAllowedError(
            f"the running program has {len(sockets)} sockets with names; {_MOST} at most can be "
            "handed over"
        )
    try:
        return make_turn()
    except OSError as error:
        raise NotAllowedError(f"no descriptor is left for the turn: {error}") from None


async def _agree(channel: Channel, sockets: Part, states: States, patience: float) -> str:
    """The steps before the turn."""
    with trio.move_on_after(patience) as scope:
        await channel.say(sockets.line, sockets.descriptors)
        said = await channel.hear()
        if not said.get("up"):
            return "the next version has ended before it was up"
        wanted, servers = items_of(said.get("takes")), items_of(said.get("connections"))
        try:
            given = await states.suspend(wanted, servers)
        except NotAllowedError as error:
            await channel.say({"failed": str(error)})
            return str(error)
        for part in given:
            await channel.say(part.line, part.descriptors, part.body)
        await channel.say({"states": len(given), "fresh": states.fresh})
        said = await channel.hear()
        if not said.get("taken"):
            return str(said.get("refused", "the next version has ended with the states"))
    if scope.cancelled_caught:
        with trio.move_on_after(_FAREWELL):
            await channel.say({"late": patience})
        return f"the next version was not up within {patience:g} s"
    return ""


def items_of(value: object) -> list[object]:
    """The items of a list in a line; none if it is no list."""
    return value if isinstance(value, list) else []


def read_sizes(value: object, names: Iterable[str]) -> dict[str, dict[int, int]]:
    """The ``former_sizes`` in a line of the predecessor, of these sockets: the sizes of buffers
    from before the first program, or 0 for the default of the system. A size that is none is left
    out: the socket keeps the size that is found.
    """
    told, found = value if isinstance(value, dict) else {}, dict[str, dict[int, int]]()
    for name in names:
        if isinstance(sizes := told.get(name), dict):
            found[name] = {
                option: size
                for option in _BUFFERS
                if type(size := sizes.get(str(option))) is int and 0 <= size <= _LARGEST_SIZE
            }
    return found


async def _give_turn(channel: Channel, turn: int) -> Outcome:
    with trio.move_on_after(_TURN, shield=True):
        await channel.say({"yours": True}, (turn,))
        if (await channel.hear()).get("mine"):
            return Outcome(False)
        return Outcome(True, "the next version has ended before it has served")
    if take_turn(turn):
        return Outcome(True, f"the next version did not take its turn within {_TURN:g} s")
    # It hangs behind its decision, and serves when it goes on: this program must not.
    return Outcome(
        False, f"the next version has taken over, and did not serve within {_TURN:g} s: it hangs"
    )


def make_turn() -> int:
    """A pipe with a single byte, and no writer.

    Raises:
        OSError: no descriptor is left.
    """
    reading, writing = os.pipe()
    os.write(writing, b".")
    os.close(writing)
    return reading


def take_turn(turn: int) -> bool:
    """Whether this program is the first that takes the turn: it serves from now on."""
    return bool(os.read(turn, 1))


def socket_path(name: str) -> Path:
    """The path of the socket at which a program of this name waits for its successor.

    Raises:
        BadInputError: it is no name.
        ControlSocketError: there is no safe directory for the socket, or its path is too long.
    """
    # A name in another encoding comes from the command line with surrogates.
    quoted = quote(check_name(name), safe="", errors="surrogatepass")
    path = directory(create=True) / f"{quoted}.handover"
    if len(os.fsencode(path)) > _PATH:
        raise ControlSocketError(
            f"the path {path} is longer than {_PATH} bytes, the limit for sockets; give handover= "
            "a shorter name, or set XDG_RUNTIME_DIR to a directory with a shorter path"
        )
    return path


def waiting_programs() -> list[str]:
    """The names of the programs that wait for a successor, or were killed while they did."""
    paths = directory().glob("*.handover")
    return sorted(unquote(path.stem, errors="surrogatepass") for path in paths)


async def connect(name: str) -> Channel | None:
    """Connect to the running program of a name; None if there is none.

    Raises:
        ControlSocketError: there is no safe directory for the socket, or its path is too long.
    """
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        await sock.connect(str(socket_path(name)))
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except BaseException:
        sock.close()
        raise
    return Channel(sock)
