"""I/O bridges: meta-processes that turn sockets, programs and files into messages, each kind in a
module of its own.
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .._core.metas.shared_state import Counter, Flag
    from .asyncio_calls import AsyncioCalls
    from .blocking_calls import BlockingCalls, Poller
    from .descriptors import Descriptors, FdLost, FdReadable, FdWritable, UnwatchFd, WatchFd
    from .files.directory_watch import Change, DirectoryWatch, PathChanged
    from .files.files import (
        FileData,
        FileEnded,
        FileLine,
        FileReader,
        FileReopen,
        FileRotated,
        FileSync,
        FileTruncated,
        FileWrite,
        FileWriter,
    )
    from .files.stdin import StandardInput, StdinEnded, StdinLine
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
    from .programs.messages import (
        PortCloseInput,
        PortData,
        PortErrorData,
        PortErrorLine,
        PortExited,
        PortInputLost,
        PortLine,
        PortResize,
        PortSignal,
        PortStarted,
        PortWrite,
    )
    from .programs.options import StopTimes, Terminal
    from .programs.port import Port
    from .programs.program import ProgramFailedError
    from .signals import SignalReceived, Signals
    from .sockets.datagrams import UDPData, UDPFailed, UDPFault, UDPJoin, UDPLeave, UDPSend
    from .sockets.messages import (
        Cause,
        Endpoint,
        TCPClose,
        TCPConnected,
        TCPData,
        TCPDisconnected,
        TCPFrames,
        TCPProtocolError,
        TCPSecured,
        TCPSend,
        TCPSet,
        TCPStartTLS,
        TLSFacts,
    )
    from .sockets.options import KeepAlive, StreamOptions, WhenFull, WhenSlow
    from .sockets.tcp import TCPConnection, TCPServer
    from .sockets.tls import TLSFiles
    from .sockets.udp import UDPClient, UDPServer
    from .sockets.unix import UnixConnection, UnixServer

__all__ = [
    "Apply",
    "AsyncioCalls",
    "BlockingCalls",
    "Cause",
    "Change",
    "Counter",
    "Decoder",
    "Delimiter",
    "Descriptors",
    "DirectoryWatch",
    "Endpoint",
    "FdLost",
    "FdReadable",
    "FdWritable",
    "FileData",
    "FileEnded",
    "FileLine",
    "FileReader",
    "FileReopen",
    "FileRotated",
    "FileSync",
    "FileTruncated",
    "FileWrite",
    "FileWriter",
    "FixedLength",
    "Flag",
    "Framing",
    "FramingError",
    "Invoke",
    "KeepAlive",
    "LengthHeader",
    "Netstring",
    "PathChanged",
    "Poller",
    "Port",
    "PortCloseInput",
    "PortData",
    "PortErrorData",
    "PortErrorLine",
    "PortExited",
    "PortInputLost",
    "PortLine",
    "PortResize",
    "PortSignal",
    "PortStarted",
    "PortWrite",
    "ProgramFailedError",
    "Raw",
    "SignalReceived",
    "Signals",
    "StandardInput",
    "StdinEnded",
    "StdinLine",
    "StopTimes",
    "StreamOptions",
    "TCPClose",
    "TCPConnected",
    "TCPConnection",
    "TCPData",
    "TCPDisconnected",
    "TCPFrames",
    "TCPProtocolError",
    "TCPSecured",
    "TCPSend",
    "TCPSet",
    "TCPStartTLS",
    "TCPServer",
    "TLSFacts",
    "TLSFiles",
    "Terminal",
    "Text",
    "UDPClient",
    "UDPData",
    "UDPFailed",
    "UDPFault",
    "UDPJoin",
    "UDPLeave",
    "UDPSend",
    "UDPServer",
    "UnixConnection",
    "UnixServer",
    "UnwatchFd",
    "Varint",
    "WatchFd",
    "WhenFull",
    "WhenSlow",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "ergo_py._core.metas.shared_state": "Counter Flag",
            "asyncio_calls": "AsyncioCalls",
            "blocking_calls": "BlockingCalls Poller",
            "descriptors": "Descriptors FdLost FdReadable FdWritable UnwatchFd WatchFd",
            "files.directory_watch": "Change DirectoryWatch PathChanged",
            "files.files": (
                "FileData FileEnded FileLine FileReader FileReopen FileRotated FileSync "
                "FileTruncated FileWrite FileWriter"
            ),
            "files.stdin": "StandardInput StdinEnded StdinLine",
            "invocations": "Apply Invoke",
            "parsing.decoder": "Decoder FramingError",
            "parsing.framing": "Delimiter FixedLength Framing LengthHeader Netstring Raw Varint",
            "parsing.lines": "Text",
            "programs.messages": (
                "PortCloseInput PortData PortErrorData PortErrorLine PortExited PortInputLost "
                "PortLine PortResize PortSignal PortStarted PortWrite"
            ),
            "programs.options": "StopTimes Terminal",
            "programs.port": "Port",
            "programs.program": "ProgramFailedError",
            "signals": "SignalReceived Signals",
            "sockets.datagrams": "UDPData UDPFailed UDPFault UDPJoin UDPLeave UDPSend",
            "sockets.messages": (
                "Cause Endpoint TCPClose TCPConnected TCPData TCPDisconnected TCPFrames "
                "TCPProtocolError TCPSecured TCPSend TCPSet TCPStartTLS TLSFacts"
            ),
            "sockets.options": "KeepAlive StreamOptions WhenFull WhenSlow",
            "sockets.tcp": "TCPConnection TCPServer",
            "sockets.tls": "TLSFiles",
            "sockets.udp": "UDPClient UDPServer",
            "sockets.unix": "UnixConnection UnixServer",
        },
    )
