"""I/O bridges: meta-processes that turn sockets, programs and files into messages, one kind a file."""

from .call import Apply, BlockingCalls, Invoke, Poller
from .datagrams import UDPData, UDPFailed, UDPFault, UDPJoin, UDPLeave, UDPSend
from .fd import Descriptors, FdLost, FdReadable, FdWritable, UnwatchFd, WatchFd
from .files import (
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
from .framing import Delimiter, FixedLength, Framing, FramingError, LengthHeader, Netstring, Raw, Varint
from .lines import Text
from .messages import Cause, Endpoint, TCPClose, TCPConnected, TCPData, TCPDisconnected, TCPSend, TLSFacts
from .options import KeepAlive, StreamOptions, WhenFull, WhenSlow
from .port import (
    Port,
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
from .program import ProgramFailedError, StopTimes, Terminal
from .signals import SignalReceived, Signals
from .stdin import StandardInput, StdinEnded, StdinLine
from .tcp import TCPConnection, TCPServer
from .tls import TLSFiles
from .udp import UDPClient, UDPServer
from .unix import UnixConnection, UnixServer
from .watch import Change, DirectoryWatch, PathChanged

__all__ = [
    "Apply",
    "BlockingCalls",
    "Cause",
    "Change",
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
    "TCPSend",
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
