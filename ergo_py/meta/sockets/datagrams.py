"""Messages between UDP sockets and their users, and the faults of a single datagram."""

import errno
import socket
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.ids import Alias
from ..._core.vocabulary.messages import Request
from ..._core.vocabulary.public_names import show_members, show_public_names
from ..checks import check_bytes, setters
from .messages import Endpoint

__all__ = [
    "UDP",
    "UDPData",
    "UDPFailed",
    "UDPFault",
    "UDPJoin",
    "UDPLeave",
    "UDPSend",
    "check_group",
    "fault_of",
    "udp_data",
]


@dataclass(frozen=True, slots=True)
class UDPData:
    """A datagram that arrived."""

    socket: Alias
    peer: Endpoint
    data: bytes
    truncated: bool = False
    """The datagram was longer than ``max_datagram``, and the rest of it is lost."""


@dataclass(slots=True)
class _Unfrozen:
    socket: Alias
    peer: Endpoint
    data: bytes
    truncated: bool = False


def udp_data(socket: Alias, peer: Endpoint, data: bytes) -> UDPData:
    """Make a :class:`UDP.Data` in half the time: filling a frozen object costs a call for each
    field, so the object is filled first and frozen afterwards.
    """
    message: Any = _Unfrozen(socket, peer, data)
    message.__class__ = UDPData  # hot path: UDP.Data.__init__
    return message  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, init=False)
class UDPSend(Request[int]):
    """Tell a UDP socket to send a datagram. ``peer`` is a host and a port; a client leaves it out.

    With ``call``, the socket answers with the number of bytes once the operating system has taken
    the datagram, or the call raises ``OSError``. With ``send``, the sender gets ``UDP.Failed`` if
    the datagram cannot be sent, or if the network reports a failure later.
    """

    data: bytes
    peer: tuple[str, int] | None = None

    def __init__(self, data: bytes, peer: tuple[str, int] | None = None) -> None:
        if type(data) is not bytes:
            check_bytes("UDP.Send(data)", data)
        if peer is not None and not (
            isinstance(peer, tuple)
            and len(peer) == 2
            and isinstance(peer[0], str)
            and isinstance(peer[1], int)
        ):
            raise BadInputError(
                "UDP.Send(peer)", peer, "a host and a port, such as ('127.0.0.1', 8125)"
            )
        _set_data(self, data)
        _set_peer(self, peer)


_set_data, _set_peer = setters(UDPSend)


class UDPFault(Enum):
    """The kinds of failure of a datagram."""

    UNREACHABLE = "the peer cannot be reached, or no process listens there"
    TOO_LONG = "it is longer than the network takes"
    NO_ADDRESS = "there is no such address"
    NOT_ALLOWED = "the operating system does not allow it"
    OTHER = "it could not be sent"


@dataclass(frozen=True, slots=True)
class UDPFailed:
    """A datagram was not delivered. The socket tells the sender of the datagram, and stays open."""

    socket: Alias
    peer: Endpoint | None
    fault: UDPFault
    detail: str
    data: bytes
    """The bytes of the datagram, as far as they are known."""


@dataclass(frozen=True, slots=True)
class UDPJoin(Request[None]):
    """Tell a UDP socket to join a multicast group at an interface, given by name or address. With
    None, the system chooses the interface.
    """

    group: str
    interface: str | None = None

    def __post_init__(self) -> None:
        check_group("UDPJoin", self.group, self.interface)


@dataclass(frozen=True, slots=True)
class UDPLeave(Request[None]):
    """Tell a UDP socket to leave a multicast group."""

    group: str
    interface: str | None = None

    def __post_init__(self) -> None:
        check_group("UDPLeave", self.group, self.interface)


def check_group(what: str, group: object, interface: object) -> None:
    """Refuse a group or an interface of the wrong type."""
    if not isinstance(group, str):
        raise BadInputError(
            f"{what}(group)", group, "the address of a multicast group, such as '239.1.2.3'"
        )
    if not isinstance(interface, str | None):
        raise BadInputError(
            f"{what}(interface)", interface, "the name or the address of an interface, or None"
        )


_FAULTS: Final = {
    errno.EMSGSIZE: UDPFault.TOO_LONG,
    errno.ECONNREFUSED: UDPFault.UNREACHABLE,
    errno.EHOSTUNREACH: UDPFault.UNREACHABLE,
    errno.ENETUNREACH: UDPFault.UNREACHABLE,
    errno.EHOSTDOWN: UDPFault.UNREACHABLE,
    errno.ENETDOWN: UDPFault.UNREACHABLE,
    getattr(errno, "ENONET", errno.EHOSTDOWN): UDPFault.UNREACHABLE,
    errno.EACCES: UDPFault.NOT_ALLOWED,
    errno.EPERM: UDPFault.NOT_ALLOWED,
    errno.EADDRNOTAVAIL: UDPFault.NO_ADDRESS,
    errno.EAFNOSUPPORT: UDPFault.NO_ADDRESS,
    errno.EDESTADDRREQ: UDPFault.NO_ADDRESS,
    errno.EINVAL: UDPFault.NO_ADDRESS,
}


def fault_of(error: Exception) -> UDPFault:
    """The fault of a datagram that an exception stands for."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return UDPFault.NO_ADDRESS
    return (
        _FAULTS.get(error.errno or 0, UDPFault.OTHER)
        if isinstance(error, OSError)
        else UDPFault.OTHER
    )


class UDP:
    """The messages of UDP sockets."""

    Data: TypeAlias = UDPData
    Failed: TypeAlias = UDPFailed
    Join: TypeAlias = UDPJoin
    Leave: TypeAlias = UDPLeave
    Send: TypeAlias = UDPSend


show_public_names(__name__)
show_members(UDP)
