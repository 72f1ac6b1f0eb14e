"""I/O bridges: meta-processes that turn sockets, programs and files into messages, one kind a file."""

from .call import Apply, BlockingCalls, Invoke, Poller
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
from .lines import Text
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
from .watch import Change, DirectoryWatch, PathChanged

__all__ = [
    "Apply",
    "BlockingCalls",
    "Change",
    "Descriptors",
    "DirectoryWatch",
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
    "Invoke",
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
    "SignalReceived",
    "Signals",
    "StandardInput",
    "StdinEnded",
    "StdinLine",
    "StopTimes",
    "Terminal",
    "Text",
    "UnwatchFd",
    "WatchFd",
]
