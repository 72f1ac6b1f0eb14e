"""`UDPSocket`: datagrams become messages, and messages datagrams. A failed datagram is reported to
its sender and does not end the socket.
"""

import errno
import ipaddress
import os
import socket
from collections import Counter
from collections.abc import Awaitable
from struct import unpack
from typing import Any, ClassVar, Final

from trio.lowlevel import current_task, notify_closing, wait_readable, wait_writable

from ..._core.runtime.parking import yield_turn
from ..._core.speed.installation import datagram_reader
from ..._core.tables.pending_calls import Caller
from ..._core.verbs.meta_process import MetaProcess
from ..._core.vocabulary.envelopes import Lane
from ..._core.vocabulary.errors import Reject, UnhandledCallError
from ..._core.vocabulary.ids import PID, Alias, Target
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.reasons import Reason
from ..readers import ReaderKind, check_reader, hand_over
from .datagrams import UDPData, UDPFailed, UDPFault, UDPJoin, UDPLeave, UDPSend, fault_of, udp_data
from .messages import Endpoint
from .multicast import Membership
from .options import LARGEST
from .socket_setup import describe, endpoint, resolve

__all__ = ["LONGEST", "UDPSocket"]

_DONT_WAIT: Final = socket.MSG_DONTWAIT
_BATCH: Final = 64
"""Datagrams to read for a wake-up."""
_KNOWN: Final = 1024
"""Peers to remember, for their endpoints and for the senders of failed datagrams."""
LONGEST: Final = 65535
_ONLY_PEER: Final = Endpoint("", 0)
"""Stands for the peer of a client."""
_ERROR_QUEUE: Final = getattr(socket, "MSG_ERRQUEUE", 0x2000)
# Linux's numbers, which the socket module lacks: report every datagram that the network could not
# deliver.
_RECEIVE_ERRORS: Final = {socket.AF_INET: (0, 11), socket.AF_INET6: (41, 25)}
_MEMORY_INFO: Final = 55
_TRIES: Final = 8
_BROKEN: Final = frozenset(
    {errno.EBADF, errno.EFAULT, errno.EINVAL, errno.ENOTCONN, errno.ENOTSOCK}
)
"""Errors of a read that are the fault of the socket itself. All other errors report the fate of
datagrams: the number comes from an ICMP packet, and any host can send such a packet, so those
numbers never end the socket.
"""

_FINAL: Final = _BROKEN | {errno.EMSGSIZE}
"""Errors after which sending again is useless. The system reports a datagram that is too long once
for each attempt.
"""


class UDPSocket(MetaProcess):
    """The common part of UDP servers and clients."""

    kind = "udp"
    local: Endpoint = Endpoint("", 0)
    """The endpoint that the socket is bound to; with port 0, read the port here."""

    _socket: socket.socket
    _membership: Membership
    """Its multicast groups."""
    _reader_type: ClassVar[Any] = datagram_reader

    def __init__(
        self,
        to: Target | None,
        reader: ReaderKind,
        max_datagram: int,
        receive_buffer: int | None,
        send_buffer: int | None,
    ) -> None:
        self._reads_in_task = check_reader(reader) == "task"
        check_number("max_datagram", max_datagram, least=1, whole=True, most=LONGEST)
        for name, size in (("receive_buffer", receive_buffer), ("send_buffer", send_buffer)):
            if size is not None:
                check_number(name, size, least=1, whole=True, most=LARGEST)
        self._to = to
        self._most = max_datagram
        self._buffers = {socket.SO_RCVBUF: receive_buffer, socket.SO_SNDBUF: send_buffer}
        """Bytes that the operating system keeps, in either direction; None for its default."""
        self._is_ipv6 = False
        """The socket is an IPv6 socket, which may talk to IPv4 peers, too."""
        self._endpoints: dict[Any, Endpoint] = {}
        self._senders: dict[Endpoint, PID | Alias] = {}
        """The last sender to each peer: the network reports only later that a datagram was not
        delivered.
        """
        self._numeric: set[str] = set()
        # Changed by the reader only.
        self.bytes_in: int = 0
        self.messages_in: int = 0
        self.truncated: int = 0
        # Changed on the loop only.
        self.bytes_out: int = 0
        self.messages_out: int = 0
        self.faults: Counter[UDPFault] = Counter()

    @property
    def reader(self) -> ReaderKind:
        """Where it reads: in a thread or in a task."""
        return "task" if self._reads_in_task else "thread"

    # -- birth -------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Open the socket: if the port is taken, ``spawn_meta`` raises the error."""
        self._since = self._now()
        self._socket = sock = await self._open()
        if self._is_shared:
            # The bell wakes the thread: a shutdown would end the socket for all that hold it.
            self.opened(sock, unblock=self._meta.resources.bell().ring)
        else:
            self.opened(sock)
            sock.setblocking(not self._reads_in_task)
        self._membership = Membership(sock, is_shared=self._is_shared)
        try:
            sock.setsockopt(*_RECEIVE_ERRORS[sock.family], 1)
        except (
            OSError,
            KeyError,
        ):  # another system: only clients hear of undelivered datagrams there
            pass
        self._is_ipv6 = sock.family == socket.AF_INET6
        try:
            self._prepare()
        except BaseException:
            self._membership.end()
            raise
        self.local = endpoint(sock.getsockname())

    @property
    def _is_shared(self) -> bool:
        """Whether others hold the socket, too: it goes on when this one ends, and never blocks."""
        return False

    async def _open(self) -> socket.socket:
        raise NotImplementedError

    def _prepare(self) -> None:
        """Set the options of the open socket."""
        for option, size in self._buffers.items():
            if size is not None:
                self._socket.setsockopt(socket.SOL_SOCKET, option, size)

    @property
    def _is_client(self) -> bool:
        """Whether it has a single peer."""
        return False

    def _receiver(self) -> Target:
        return self.parent if self._to is None else self._to

    # -- the reader --------------------------------------------------------------------------------

    def start(self) -> Awaitable[None] | None:
        """Read until the end, in a thread or in a task."""
        if self._reads_in_task:
            return self._read_in_task()
        self._read_in_thread()
        return None

    def _read_in_thread(self) -> None:
        meta, to, together = self._meta, self._receiver(), self._read_together()
        while True:
            if self._is_shared and not self.wait_readable(self._socket):
                return
            messages, failed = self._take() if together is None else self._take_together(together)
            # At a stop, these are the datagrams from before it.
            meta.outbox.put_many(to, messages, meta.priority)
            if self.stopping:
                return
            if failed is not None:
                self._failed_to_read(failed)
            elif not messages and self._is_shared:
                # A report of the network wakes the thread, too. The holder of another copy may have
                # read the error and left the report.
                self._report_undelivered()

    def _take(self) -> tuple[list[UDPData], OSError | None]:
        """Wait for a datagram, and also take those that are here already."""
        receive, most = self._socket.recvfrom, self._most + 1
        read: list[tuple[bytes, Any]] = []
        failed: OSError | None = None
        try:
            read.append(receive(most))
            for _ in range(_BATCH - 1):
                read.append(receive(most, _DONT_WAIT))  # noqa: PERF401 - kept before a failure
        except BlockingIOError:  # no more are waiting
            pass
        except OSError as error:
            failed = error
        if self.stopping:
            # The read that the stop has woken has no address.
            read = [(data, peer) for data, peer in read if peer is not None]
        return self._messages(read), failed

    def _read_together(self) -> Any:
        """The reader of the C extension, which reads many datagrams with a single system call and
        takes the interpreter's lock once for all of them; None without it.
        """
        if self._reader_type is None or type(self._socket) is not socket.socket:
            return None
        return self._reader_type(UDPData, self._meta.id, self._most, self._peer_at)

    def _take_together(self, reader: Any) -> tuple[list[UDPData], OSError | None]:
        """The same as :meth:`_take`, in the C extension."""
        try:
            found = reader.read(self._socket.fileno(), _BATCH, not self._is_shared)
        except BlockingIOError:  # the holder of another copy was faster
            return [], None
        except OSError as error:
            return [], error
        messages = self._count(found)
        if messages or self.stopping:
            return messages, None
        # Each further read would return at once.
        return [], OSError(errno.ENOTCONN, "the socket was shut down")

    def _count(self, found: tuple[list[UDPData], int, int]) -> list[UDPData]:
        messages, size, truncated = found
        self.messages_in += len(messages)
        self.bytes_in += size
        self.truncated += truncated
        return messages

    async def _read_in_task(self) -> None:
        sock, to = self._socket, self._receiver()
        receive, most, meta = sock.recvfrom, self._most + 1, self._meta
        turns, task = meta.router.turns, current_task()
        there_is_more, together = False, self._read_together()
        while True:
            if there_is_more:
                await yield_turn(task)
            else:
                await wait_readable(sock)
            room = self._room_for(to)
            read: list[tuple[bytes, Any]] = []
            messages: list[UDPData] = []
            there_is_more, failed = False, None
            try:
                if room < 1:
                    # Read all of them even so: a reader that may drop messages must not leave the
                    # dropping to the operating system.
                    for _ in range(_BATCH):
                        await hand_over(meta, to, self._messages([receive(most)])[0])
                if together is not None and room > 0:
                    messages = self._count(together.read(sock.fileno(), min(_BATCH, room), False))
                    there_is_more = len(messages) == min(_BATCH, room)
                else:
                    for _ in range(min(_BATCH, room)):
                        read.append(receive(most))  # noqa: PERF401 - as above
                    there_is_more = True
            except BlockingIOError:  # no more are waiting
                pass
            except OSError as error:
                failed = error
            is_root = turns.begin(task)
            try:
                messages += self._messages(read)
                meta.outbox.put_many(to, messages, meta.priority)
            except BaseException:
                turns.end(task)
                raise
            if is_root:
                turns.serve(task)
            if failed is not None:
                self._failed_to_read(failed)

    def _room_for(self, to: Target) -> int:
        """How many messages can be sent to ``to`` on the loop before the next check; 0 if each
        needs a check.
        """
        receiver = self._meta.router.resolve(to)
        if receiver is None:
            return 0
        box, outbox = receiver.mailbox, self._meta.outbox
        return 0 if box.limit or len(outbox) else outbox.backlog - box.depth(Lane.MAIN)

    def _messages(self, read: list[tuple[bytes, Any]]) -> list[UDPData]:
        """Turn the datagrams of a read into messages, in a single call: a call for each would cost
        as much as making the message.
        """
        alias, endpoints, most = self._meta.id, self._endpoints, self._most
        messages: list[UDPData] = []
        size = 0
        for data, address in read:
            peer = endpoints.get(address)
            if peer is None:
                peer = self._remember(address)
            size += len(data)
            if len(data) > most:
                self.truncated += 1
                messages.append(UDPData(alias, peer, data[:most], True))
            else:
                messages.append(udp_data(alias, peer, data))
        self.messages_in += len(messages)
        self.bytes_in += size
        return messages

    def _peer_at(self, address: object) -> Endpoint:
        return self._endpoints.get(address) or self._remember(address)

    def _remember(self, address: object) -> Endpoint:
        if len(self._endpoints) >= _KNOWN:
            self._endpoints.clear()
        peer = self._endpoints[address] = endpoint(address)
        return peer

    def _failed_to_read(self, error: OSError) -> None:
        """Report a failed read, which may be about a datagram that was sent before. Raises an error
        of the socket itself, which ends it.
        """
        if error.errno in _BROKEN:
            raise error
        if not self._report_undelivered() and self._is_client:
            self._report(None, fault_of(error), describe(error), b"")

    # -- datagrams that fail -----------------------------------------------------------------------

    def _report_undelivered(self) -> bool:
        """Tell the senders about datagrams that the network could not deliver. From either side;
        False if the network reports none.
        """
        found = False
        while True:
            try:
                data, facts, _, address = self._socket.recvmsg(2048, 512, _ERROR_QUEUE | _DONT_WAIT)
            except OSError:
                return found
            found = True
            number = unpack("=I", facts[0][2][:4])[0] if facts else 0
            peer = endpoint(address) if address else None
            error = OSError(number, errno.errorcode.get(number, ""))
            self._report(peer, fault_of(error), os.strerror(number), data)

    def _report(self, peer: Endpoint | None, fault: UDPFault, detail: str, data: bytes) -> None:
        self._meta.router.bridge.do(self._tell, peer, fault, detail, data, None)

    def _tell(
        self,
        peer: Endpoint | None,
        fault: UDPFault,
        detail: str,
        data: bytes,
        to: PID | Alias | None,
    ) -> None:
        """On the loop: count the fault, and tell the sender of the datagram."""
        self.faults[fault] += 1
        sender = to or self._senders.get(_ONLY_PEER if self._is_client or peer is None else peer)
        if sender is not None:
            self.send(sender, UDPFailed(self.id, peer, fault, detail, data))

    # -- the handler -------------------------------------------------------------------------------

    def _serve_in_passing(self, message: object, sender: PID | Alias) -> bool:
        """Send on the spot, in the sender's turn, if that needs no waiting."""
        if type(message) is not UDPSend:
            return False
        peer = message.peer
        if peer is not None and peer[0] not in self._numeric and not self._is_numeric(peer[0]):
            return False
        try:
            self._write(message.data, peer, sender)
        except BlockingIOError:
            return False
        except (OSError, OverflowError, ValueError) as error:
            self._refused(message, error, sender)
        return True

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        """Send datagrams; join and leave multicast groups."""
        try:
            if not await self._do(message, sender):
                super().handle_message(message, sender)
        except (OSError, OverflowError, ValueError) as error:
            if isinstance(message, UDPSend):
                self._refused(message, error, sender)
            else:
                self.log.warning(
                    "cannot do this", message_type=type(message).__qualname__, error=describe(error)
                )

    async def handle_call(self, request: object, caller: Caller) -> object:
        """The same for callers, which wait for the result."""
        try:
            if not await self._do(request, caller.pid):
                raise Reject(UnhandledCallError(self.id, request, type(self).__qualname__))
        except (OSError, OverflowError, ValueError) as error:
            if isinstance(request, UDPSend):
                self.faults[fault_of(error)] += 1
            raise Reject(error) from None
        return len(request.data) if isinstance(request, UDPSend) else None

    async def _do(self, message: object, sender: PID | Alias) -> bool:
        match message:
            case UDPSend(data, peer):
                if peer is not None and not self._is_numeric(peer[0]):
                    peer = await self._look_up(peer)
                while True:
                    try:
                        self._write(data, peer, sender)
                        return True
                    except BlockingIOError:
                        await wait_writable(self._socket)
            case UDPJoin(group, interface):
                self._membership.join(group, interface)
            case UDPLeave(group, interface):
                self._membership.leave(group, interface)
            case _:
                return False
        return True

    def _write(self, data: bytes, peer: tuple[str, int] | None, sender: PID | Alias) -> None:
        if (peer is None) is not self._is_client:
            raise OSError(
                errno.EDESTADDRREQ,
                "a client sends to its own peer only"
                if peer
                else "a server needs a peer to send to",
            )
        known = Endpoint(*peer) if peer is not None else _ONLY_PEER
        if self._senders.get(known) != sender:
            if len(self._senders) >= _KNOWN:
                self._senders.clear()
            self._senders[known] = sender
        for attempt in range(_TRIES):
            try:
                if peer is None:
                    self._socket.send(data, _DONT_WAIT)
                else:
                    self._socket.sendto(
                        data, _DONT_WAIT, self._as_ipv6(peer) if self._is_ipv6 else peer
                    )
                break
            except BlockingIOError:
                raise
            except OSError as error:
                # The system uses the next send to report that an earlier datagram was lost. This
                # datagram is still to be sent then. An error about this very datagram comes again
                # with the next attempt.
                if attempt == _TRIES - 1 or error.errno in _FINAL:
                    raise
                # There may be nothing to report, if the reader's thread was faster. Send again all
                # the same.
                self._report_undelivered()
        self.messages_out += 1
        self.bytes_out += len(data)

    def _refused(self, message: UDPSend, error: Exception, sender: PID | Alias) -> None:
        peer = None if message.peer is None else Endpoint(*message.peer)
        self._tell(peer, fault_of(error), describe(error), message.data, sender)

    def _is_numeric(self, host: str) -> bool:
        """Whether the host is an address. Looking up a name would block the loop."""
        if host in self._numeric:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        if len(self._numeric) >= _KNOWN:
            self._numeric.clear()
        self._numeric.add(host)
        return True

    def _as_ipv6(self, peer: tuple[str, int]) -> tuple[str, int]:
        return peer if ":" in peer[0] else (f"::ffff:{peer[0]}", peer[1])

    async def _look_up(self, peer: tuple[str, int]) -> tuple[str, int]:
        found = await resolve(*peer, socket.SOCK_DGRAM)
        for wanted in (
            (self._socket.family, socket.AF_INET) if self._is_ipv6 else (self._socket.family,)
        ):
            for family, address in found:
                if family == wanted:
                    return (address[0], address[1])
        raise socket.gaierror(
            socket.EAI_NONAME, f"{peer[0]} has no address that this socket can send to"
        )

    # -- the end, and looking inside ---------------------------------------------------------------

    async def terminate(self, reason: Reason) -> None:
        """Close the socket, so that its port is free again."""
        if not self._meta.abandoned:
            self._membership.end()
            if self._socket.fileno() >= 0:
                notify_closing(self._socket)
            self._socket.close()

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The counters and the state of the socket, by name."""
        lost, waiting = self._kernel_side()
        facts = {
            "local": str(self.local),
            "peer": self._peer_text(),
            "receiver": str(self._receiver()),
            "reader": self.reader,
            "bytes in": str(self.bytes_in),
            "bytes out": str(self.bytes_out),
            "messages in": str(self.messages_in),
            "messages out": str(self.messages_out),
            "pending": str(waiting),
            "drops": str(self._meta.outbox.dropped + lost),
            "truncated": str(self.truncated),
            "errors": str(self.faults.total()),
            "receive buffer": str(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)),
            "age": f"{self._now() - self._since:.3f}",
            "tls": "",
        }
        for fault, count in self.faults.items():
            facts[f"errors: {fault.name.lower().replace('_', ' ')}"] = str(count)
        return {item: facts[item] for item in items if item in facts} if items else facts

    def _traffic(self) -> tuple[str, int, int]:
        return type(self).__qualname__, self.bytes_in, self.bytes_out

    def _peer_text(self) -> str:
        return ""

    def _kernel_side(self) -> tuple[int, int]:
        """Datagrams that the operating system has dropped because its buffer was full, and bytes
        that wait to be read.
        """
        try:
            numbers = unpack("@9I", self._socket.getsockopt(socket.SOL_SOCKET, _MEMORY_INFO, 36))
        except (OSError, ValueError):  # another system, or an old version
            return 0, 0
        return numbers[8], numbers[0]
