"""I/O bridges: meta-processes that turn sockets, programs and files into messages, each kind in a
module of its own.
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .._core.metas.shared_state import Counter, Flag
    from .asyncio_calls import AsyncioCalls
    from .blocking_calls import BlockingCalls, Poller
    from .descriptors import Descriptors
    from .files.directory_watch import DirectoryWatch
    from .files.files import FileReader, FileWriter
    from .files.stdin import StandardInput
    from .invocations import Apply, Invoke
    from .parsing.decoder import Decoder, FramingError
    from .parsing.framing import (
        Delimiter,
        FixedLength,
        Framing,
        LengthHeader,
        Netstring,
        Raw,
        Varint,
    )
    from .parsing.lines import Text
    from .programs.port import Port
    from .signals import Signals
    from .sockets.datagrams import UDP
    from .sockets.messages import TCP, Endpoint
    from .sockets.tcp import TCPConnection, TCPServer
    from .sockets.tls import TLSFiles
    from .sockets.udp import UDPClient, UDPServer
    from .sockets.unix import UnixConnection, UnixServer

__all__ = [
    "TCP",
    "UDP",
    "Apply",
    "AsyncioCalls",
    "BlockingCalls",
    "Counter",
    "Decoder",
    "Delimiter",
    "Descriptors",
    "DirectoryWatch",
    "Endpoint",
    "FileReader",
    "FileWriter",
    "FixedLength",
    "Flag",
    "Framing",
    "FramingError",
    "Invoke",
    "LengthHeader",
    "Netstring",
    "Poller",
    "Port",
    "Raw",
    "Signals",
    "StandardInput",
    "TCPConnection",
    "TCPServer",
    "TLSFiles",
    "Text",
    "UDPClient",
    "UDPServer",
    "UnixConnection",
    "UnixServer",
    "Varint",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "ergo_py._core.metas.shared_state": "Counter Flag",
            "asyncio_calls": "AsyncioCalls",
            "blocking_calls": "BlockingCalls Poller",
            "descriptors": "Descriptors",
            "files.directory_watch": "DirectoryWatch",
            "files.files": "FileReader FileWriter",
            "files.stdin": "StandardInput",
            "invocations": "Apply Invoke",
            "parsing.decoder": "Decoder FramingError",
            "parsing.framing": "Delimiter FixedLength Framing LengthHeader Netstring Raw Varint",
            "parsing.lines": "Text",
            "programs.port": "Port",
            "signals": "Signals",
            "sockets.datagrams": "UDP",
            "sockets.messages": "TCP Endpoint",
            "sockets.tcp": "TCPConnection TCPServer",
            "sockets.tls": "TLSFiles",
            "sockets.udp": "UDPClient UDPServer",
            "sockets.unix": "UnixConnection UnixServer",
        },
    )
