"""`install`: put the functions of the C extension in place of their Python twins, for the reads and
writes of stream connections.
"""

import socket
from typing import Any, Final

import trio

from ...._core.speed.installation import bind_streams, method
from ...poller import SocketPoller
from ..messages import TCPData, TCPSend
from .buffered_reads import BufferedReads
from .input import Input, StreamInput
from .reader import StreamReader
from .shutdown import Shutdown
from .tls_layer import TLSLayer, TLSPhase
from .writer import Output, Writer

__all__ = ["install", "known_clock"]

_CLOCK: Final[Any] = getattr(trio._core._run, "SystemClock", None)


def install() -> str:
    """Install the functions, if the extension is there. All of them or none. Returns why they are
    not installed; nothing if they are.
    """
    if bind_streams is None:
        return "the C extension is off"
    try:
        bind_streams(
            {
                "BufferedReads": BufferedReads,
                "BufferedReads._has_bytes": BufferedReads._has_bytes,
                "INPUT_OPEN": Input.OPEN,
                "OUTPUT_CLOSED": Output.CLOSED,
                "OUTPUT_OPEN": Output.OPEN,
                "POSSIBLE": TLSPhase.POSSIBLE,
                "Shutdown": Shutdown,
                "SocketPoller._read_some": SocketPoller._read_some,
                "StreamInput": StreamInput,
                "StreamReader": StreamReader,
                "StreamReader._read_once": StreamReader._read_once,
                "SystemClock": _CLOCK,
                "TCPData": TCPData,
                "TCPSend": TCPSend,
                "TLSLayer": TLSLayer,
                "WatchedSocket": SocketPoller.watch_type,
                "Writer": Writer,
                "Writer.flush": Writer.flush,
                "Writer.serve": Writer.serve,
                "Socket": socket.socket,
                "current_time": known_clock(_CLOCK),
            }
        )
    except TypeError as error:
        return f"a class is not as the extension knows it: {error}"
    BufferedReads._has_bytes = method(BufferedReads, "BufferedReads._has_bytes")  # type: ignore[method-assign]
    StreamReader._read_once = method(StreamReader, "StreamReader._read_once")  # type: ignore[method-assign]
    SocketPoller._read_some = method(SocketPoller, "SocketPoller._read_some")  # type: ignore[method-assign]
    Writer.flush = method(Writer, "Writer.flush")  # type: ignore[method-assign]
    Writer.serve = method(Writer, "Writer.serve")  # type: ignore[method-assign]
    return ""


def known_clock(clock: object) -> Any:
    """The function of a class of clocks that C may compute by itself; None if it has other steps
    than C knows.
    """
    read = getattr(clock, "current_time", None)
    names = getattr(getattr(read, "__code__", None), "co_names", None)
    return read if names == ("offset", "perf_counter") else None
