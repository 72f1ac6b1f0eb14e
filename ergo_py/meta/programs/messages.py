"""Messages between ports and their users."""

from dataclasses import dataclass

from ..._core.vocabulary.ids import Alias
from ..._core.vocabulary.messages import MayBeLate, Request
from ..._core.vocabulary.public_names import show_public_names
from ..checks import check_text
from .options import Terminal

__all__ = [
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
]


# -- from the port ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PortStarted:
    """The program runs; ``pid`` is its number in the operating system."""

    port: Alias
    pid: int


@dataclass(frozen=True, slots=True)
class PortLine:
    """A line of the program's output, without the line end. ``is_whole`` is False for a part of a
    very long line; the rest follows.
    """

    port: Alias
    line: str
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class PortData:
    """A frame of the program's output; without a framing, the bytes of a read."""

    port: Alias
    data: bytes


@dataclass(frozen=True, slots=True)
class PortErrorLine:
    """A line of the program's error output."""

    port: Alias
    line: str
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class PortErrorData:
    """A frame of the program's error output."""

    port: Alias
    data: bytes


@dataclass(frozen=True, slots=True)
class PortInputLost:
    """The program has closed its input although the port has not: further data is dropped. Sent
    once.
    """

    port: Alias
    reason: str


@dataclass(frozen=True, slots=True)
class PortExited(MayBeLate):
    """The program has ended, and no more of its output follows. Either ``status`` or ``signal`` is
    set.
    """

    port: Alias
    status: int | None
    signal: int | None
    seconds: float
    """How long the program ran."""
    bytes_in: int
    """Bytes that the port wrote to the program's input."""
    bytes_out: int
    bytes_err: int


# -- to the port -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PortWrite(Request[int]):
    """Write data to the program's input. With ``call``, the port answers with the number of bytes
    when they are written.
    """

    data: bytes | str

    def __post_init__(self) -> None:
        check_text("Port.Write(data)", self.data)


@dataclass(frozen=True, slots=True)
class PortCloseInput(Request[None]):
    """Close the program's input, so that it sees the end."""


@dataclass(frozen=True, slots=True)
class PortSignal(Request[bool]):
    """Send a signal to the program and to all processes it has started. The answer is False if none
    of them is left.
    """

    signal: int


@dataclass(frozen=True, slots=True)
class PortResize(Request[None]):
    """Change the size of the program's terminal."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        Terminal(self.rows, self.columns)


show_public_names(__name__)
