"""`StreamConnection`: a connection over a stream socket, composed of a reader, a writer, TLS,
deadlines and its shutdown.
"""

import socket
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, Self

import trio

from ...._core.processes.process import Process
from ...._core.tables.pending_calls import Caller
from ...._core.verbs.meta_process import MetaProcess
from ...._core.vocabulary.envelopes import Lane, Priority
from ...._core.vocabulary.errors import NotAllowedError, Reject, UnhandledCallError
from ...._core.vocabulary.ids import PID, Alias, Target
from ...._core.vocabulary.messages import NO_REPLY, Why
from ...._core.vocabulary.options import check_number
from ...._core.vocabulary.reasons import Reason
from ...parsing.framing import Raw
from ...poller import SocketPoller
from ...readers import ReaderKind, check_reader, start_beside
from ...receivers import check_receiver
from ...thread_inbox import ThreadInbox
from ..messages import (
    Address,
    Cause,
    Endpoint,
    TCPClose,
    TCPConnected,
    TCPDisconnected,
    TCPSend,
    TCPSet,
    TCPStartTLS,
    TLSFacts,
    WhenSlow,
)
from ..options import StreamOptions
from ..socket_setup import describe, prepare
from ..tls import TLSSession
from .deadlines import TICK, Deadlines
from .departure import Departure
from .input import Input, StreamInput
from .installation import install
from .parser import FrameParser, NewParser
from .reader import StreamReader
from .sessions import end_session
from .shutdown import LINGER, Shutdown
from .tls_layer import NO_TLS, TLSLayer, TLSPhase
from .writer import Writer, WriterReports

__all__ = ["AcceptedSockets", "AcceptingServer", "Goal", "StreamConnection", "why_not_in_c"]

_TOO_LATE: Final = (
    "TCP.StartTLS is for a connection with start_tls=True, once; send it while you serve the "
    "message that agrees on it"
)


class AcceptedSockets(NamedTuple):
    """The common properties of the sockets that a server accepts."""

    inherit_options: bool = False
    """They have the options of TCP that the listening socket was given."""
    local: Address | None = None
    """The local address of all of them; None if they may differ."""
    have_limits: bool = True
    """They may have time limits."""


class AcceptingServer(Protocol):
    """The server that has accepted a connection."""

    poller: SocketPoller | None
    inbox: ThreadInbox | None
    sockets: AcceptedSockets
    """The common properties of its connections."""

    @property
    def id(self) -> Alias:
        """The alias of the server."""
        ...

    def new_secure(self) -> TLSSession:
        """The server's side of TLS for a connection."""
        ...

    def _connection_ended(self, connection: "StreamConnection") -> None:
        """Hear of the end of a connection. On the loop."""
        ...


class Goal(NamedTuple):
    """The address that a client connects to, and the seconds that it has for that."""

    address: Address
    timeout: float


class StreamConnection(MetaProcess):
    """A connection: bytes from the peer become messages to the receiver, and messages to its alias
    become bytes to the peer.
    """

    kind = "stream"
    _socket: socket.socket
    since: float
    """When the connection was spawned, by the node's clock."""

    def __init__(
        self,
        to: Target | None,
        options: StreamOptions,
        reader: ReaderKind,
        *,
        given: socket.socket | None = None,
        goal: Goal | None = None,
        server: AcceptingServer | None = None,
        address: object = None,
        new_parser: NewParser | None = None,
        early: bytes = b"",
    ) -> None:
        """``given`` is a connected socket, with the ``address`` of its peer if ``server`` has
        accepted it, and the bytes ``early`` that the server has read from it; otherwise ``goal``
        tells where to connect to. ``new_parser`` makes the object that turns bytes into messages;
        by default, the framing of the options decides.
        """
        if server is None:
            check_reader(reader)
        self._reads_in_task = reader == "task"
        self._to = to
        self._options = options
        if given is not None:
            self._socket = given
        self._goal = goal
        """Where a client connects to; None for a socket that was given."""
        self._server = server
        self._address = address
        self._new_parser = new_parser
        if new_parser is None and not isinstance(options.framing, Raw):
            self._new_parser = partial(
                FrameParser, decoder=options.framing.decoder(), batch=options.batch
            )
        self._session: Process | None = None
        """The process that was spawned for this connection alone. It owns the connection, and ends
        with it.
        """
        self.local: Address = ""
        self.peer: Address = ""
        self._compose(options, early)

    def _compose(self, options: StreamOptions, early: bytes) -> None:
        """Make the parts, each of which knows those before it."""
        self._tls = tls = TLSLayer(options.start_tls) if options.tls else NO_TLS
        self._writer = writer = Writer(
            tls,
            options,
            WriterReports(
                start=partial(start_beside, self),
                changed=self._written,
                answer=lambda caller, size: self._meta.kernel.calls.reply(caller, size, None),
            ),
            failed=self._broken,
            slow=self._drop_if_slow,
        )
        self._serve_in_passing = writer.serve
        self._shutdown = shutdown = Shutdown(self, tls, writer, options)
        self._input = incoming = StreamInput(self, tls, writer, shutdown, options)
        self._reader = StreamReader(
            self,
            tls,
            writer,
            shutdown,
            incoming,
            options,
            is_accepted=self._server is not None,
            early=early,
            greet=self._greet,
            secured=self._secured,
        )
        self._deadlines: Deadlines | None = None
        """The time limits; None while there is none, as for most connections."""

    @classmethod
    def _connect_to(
        cls,
        goal: Address,
        connect_timeout: float,
        receiver: Target | None,
        options: StreamOptions,
        reader: ReaderKind,
    ) -> Self:
        """Make a client."""
        check_number("connect_timeout", connect_timeout, least=0.001)
        self = cls.__new__(cls)
        StreamConnection.__init__(
            self, check_receiver(receiver), options, reader, goal=Goal(goal, connect_timeout)
        )
        return self

    @classmethod
    def accepted_by(
        cls,
        server: AcceptingServer,
        sock: socket.socket,
        address: object,
        to: Target | None,
        options: StreamOptions,
        reader: ReaderKind,
        new_parser: NewParser | None,
        early: bytes = b"",
    ) -> Self:
        """Make the connection of a socket that ``server`` has accepted."""
        self = cls.__new__(cls)
        StreamConnection.__init__(
            self,
            to,
            options,
            reader,
            given=sock,
            server=server,
            address=address,
            new_parser=new_parser,
            early=early,
        )
        return self

    # -- birth -------------------------------------------------------------------------------------

    def _begin_tls(self, session: TLSSession) -> None:
        """Begin with a TLS handshake, before the connection is spawned."""
        self._tls.begin(session)

    def _belong_to(self, session: Process) -> None:
        """Note the session that was spawned for this connection."""
        self._session = session

    async def init(self) -> None:
        """Open the socket, unless it was given, and set everything up."""
        if self._goal is not None:
            self._socket = await self._open(self._goal)
        self._set_up(self._socket)
        await self._secure_first(self._socket)
        self._arm_deadlines()

    def _begin_in_passing(self) -> bool:
        """Do the same for an accepted socket, without a task: there is nothing to wait for."""
        if self._server is None:
            return False
        self._set_up(self._socket)
        if self._server.sockets.have_limits:
            self._arm_deadlines()
        return True

    def _arm_deadlines(self) -> None:
        """Follow the time limits of the options from now on, if there are any."""
        options = self._options
        if self._deadlines is None:
            if (
                options.idle_timeout is None
                and options.frame_timeout is None
                and options.keepalive_period is None
                and self._tls.phase is not TLSPhase.HANDSHAKE
            ):
                return
            self._deadlines = Deadlines(
                self, self._tls, self._writer, self._shutdown, self._input, self._reader
            )
        self._deadlines.arm(options)

    def _set_up(self, sock: socket.socket) -> None:
        meta = self._meta
        now = meta.kernel.clock.now
        self.since = since = now()
        if self._session is not None:
            # Keep a value that the behaviour has set itself.
            vars(self._session.behaviour).setdefault("connection", meta.id)
        # Before the reader can be freed: a step below may fail, as with a peer that has left.
        self._reader.use(sock, self._receiver())
        meta.resources.add(sock, self._reader.free)
        server = self._server
        if server is None or not server.sockets.inherit_options:
            prepare(sock, self._options, blocking=not self._reads_in_task)
        elif sock.gettimeout() != (timeout := 0.0 if self._reads_in_task else None):
            sock.settimeout(timeout)
        local, address = None if server is None else server.sockets.local, self._address
        if local is not None and type(address) is tuple and len(address) == 2:
            # A peer of IPv4: its host and port are known, and nothing is left to ask the system.
            self.local, self.peer = local, Endpoint(*address)
        else:
            self.local, self.peer = self._ends(sock)
        if self._tls.phase is TLSPhase.HANDSHAKE:
            self._tls.start_clock(since)
        self._writer.use(sock, now, meta.router.turns, since)
        parser = None if self._new_parser is None else self._new_parser(meta.id)
        self._input.use(parser, now, since)
        inbox = None if server is None else server.inbox
        if inbox is not None and self._new_parser is None and self._tls.phase is TLSPhase.CLEAR:
            self._reader.use_inbox(inbox)

    def _receiver(self) -> Target:
        return self.parent if self._to is None else self._to

    async def _open(self, goal: Goal) -> socket.socket:
        with trio.move_on_after(goal.timeout) as scope:
            return await self._connect(goal.address)
        assert scope.cancelled_caught
        raise TimeoutError(
            f"no connection to {self._goal_text(goal.address)} within {goal.timeout:g} s"
        )

    async def _connect(self, goal: Any) -> socket.socket:
        raise NotImplementedError

    def _goal_text(self, goal: Any) -> str:
        raise NotImplementedError

    def _ends(self, sock: socket.socket) -> tuple[Address, Address]:
        raise NotImplementedError

    async def _secure_first(self, sock: socket.socket) -> None:
        """For clients: do the TLS handshake before anything else, so that ``spawn_meta`` raises the
        error of a bad certificate.
        """

    # -- the reader --------------------------------------------------------------------------------

    def start(self) -> Awaitable[None] | None:
        """Read until the end, in a thread or in a task."""
        if self._reads_in_task:
            return self._reader.read_in_task(None if self._server is None else self._server.poller)
        self._reader.read_in_thread()
        return None

    def _stop_in_passing(self) -> None:
        poller = None if self._server is None else self._server.poller
        assert poller is not None
        poller.drop(self._socket)

    def unblock(self) -> None:
        """Wake the reader if it waits for the loop."""
        self._reader.release()

    def _greet(self) -> TCPConnected | None:
        server = None if self._server is None else self._server.id
        return TCPConnected(self.id, self.peer, self.local, self._tls.facts, server)

    def _secured(self) -> None:
        """The handshake is done: idle and frame timeouts count from now on, and data that was sent
        too early is written. On the loop.
        """
        if not self.stopping:
            self._arm_deadlines()
        if not self._meta.ending.over:
            self._writer.write_tls()

    # -- the handler -------------------------------------------------------------------------------

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        """Serve the messages of the receiver and of other processes."""
        if type(message) is TCPSend:
            if self._writer.is_closing:
                self._meta.router.dead_letters.add(sender, self.id, message, Why.STOPPING)
                return
            self._writer.put(message.data, None)
            if self._writer.is_slow:
                await self._peer_is_slow()
        elif type(message) is TCPClose:
            self._shutdown.close(message)
        elif type(message) is TCPSet:
            self._change(message)
        elif type(message) is TCPStartTLS:
            if self._tls.phase is TLSPhase.OFFERED:
                self._start_tls(message)
            else:
                # End the connection: the sender believes that it is encrypted from now on.
                self._shutdown.end(Cause.FAILED, _TOO_LATE)
        elif message is TICK:
            assert self._deadlines is not None
            self._deadlines.check()
        elif message is LINGER:
            # Otherwise the close is still in the mailbox: this message only had to wake the
            # handler.
            if self._writer.is_closing:
                self._shutdown.look()
        else:
            super().handle_message(message, sender)

    async def handle_call(self, request: object, caller: Caller) -> object:
        """Serve requests: the caller waits until the work is done."""
        if type(request) is TCPSend:
            if self._writer.is_closing:
                raise Reject(BrokenPipeError("the connection is closing"))
            if self._writer.put(request.data, caller):
                return len(request.data)
            if self._writer.is_slow:
                await self._peer_is_slow()
            return NO_REPLY
        if type(request) is TCPClose:
            self._shutdown.close(request, caller)
            return NO_REPLY
        if type(request) is TCPSet:
            self._change(request)
            return None
        if type(request) is TCPStartTLS:
            if self._tls.phase is not TLSPhase.OFFERED:
                raise Reject(NotAllowedError(_TOO_LATE))
            self._start_tls(request)
            return None
        raise Reject(UnhandledCallError(self.id, request, type(self).__qualname__))

    def _change(self, settings: TCPSet) -> None:
        self._options = options = replace(self._options, **settings.changes())
        self._writer.change(options)
        self._shutdown.change(options)
        self._arm_deadlines()

    def _start_tls(self, message: TCPStartTLS) -> None:
        """Let the waiting reader start the handshake once ``say`` is written. Everything after that
        is encrypted.
        """
        self._tls.withdraw()
        try:
            secure = self._new_secure()
        except OSError as error:
            self._shutdown.end(Cause.FAILED, f"TLS cannot begin: {describe(error)}")
            return
        if message.say:
            self._writer.put(message.say, None)
        self._tls.begin(secure)
        self._tls.start_clock(self._now())
        self._arm_deadlines()

    def _new_secure(self) -> TLSSession:
        assert self._server is not None
        return self._server.new_secure()

    # -- the writer --------------------------------------------------------------------------------

    def _written(self) -> None:
        """Some of the waiting bytes are out."""
        self._reader.ring()
        self._meta.wake()

    def _broken(self, error: OSError) -> None:
        self._shutdown.end_after(error)

    def _drop_if_slow(self) -> None:
        if self._options.when_slow is WhenSlow.DROP:
            waiting, limit = self._writer.pending, self._options.write_limit
            self._shutdown.end(Cause.SLOW_PEER, f"{waiting} bytes are waiting, {limit} may")

    async def _peer_is_slow(self) -> None:
        await self._meta.handler.wait_in_callback(self._shutdown.waits_for_peer)

    # -- the end -----------------------------------------------------------------------------------

    async def terminate(self, reason: Reason) -> None:
        """Graceful shutdown: write the data that was sent before the end was requested, as far as
        the peer takes it; close; tell the receiver.
        """
        if self._write_last(reason):
            await self._shutdown.wait_until_taken()
        message = self._close_for_good()
        if message is not None:
            await self.send_wait(self._receiver(), message)
        self._end_session()

    def _end_in_passing(self, reason: Reason) -> bool:
        """Do the same without a task, if the peer has closed its half and taken everything, or has
        reset the connection, and the receiver takes the message at once.
        """
        if self._server is None or self._writer.pending:
            return False
        if self.cause not in (Cause.EOF, Cause.RESET) and not (
            self.cause is Cause.ASKED and self._input.state is Input.DONE
        ):
            return False
        meta, to = self._meta, self._receiver()
        receiver = meta.router.resolve(to)
        if len(meta.outbox) or (
            receiver is not None and meta.outbox.is_behind(receiver, Lane.MAIN)
        ):
            return False
        self._write_last(reason)
        message = self._close_for_good()
        if message is not None:
            self.send(to, message)
        self._end_session()
        return True

    def _write_last(self, reason: Reason) -> bool:
        return self._shutdown.write_last(
            reason,
            is_connected=self.connected is not None,
            peer_is_done=self._input.state is Input.DONE,
        )

    def _close_for_good(self) -> TCPDisconnected | None:
        """Close the socket. Returns the message for the receiver."""
        detail = self._shutdown.close_socket()
        if self._server is not None:
            self._server._connection_ended(self)
        connected = self._reader.connected
        if connected is None or self._shutdown.is_silent:
            return None
        return TCPDisconnected(
            self.id,
            self.cause or Cause.ASKED,
            self._input.received,
            self._writer.written,
            self._now() - connected,
            detail,
        )

    def _end_session(self) -> None:
        if self._session is not None:
            end_session(self._session, self.id)

    # -- the move to the next program --------------------------------------------------------------

    @property
    def session(self) -> Process | None:
        """The process that was spawned for this connection alone."""
        return self._session

    def departure(self) -> Departure | None:
        """The steps of a move to the next program; None for a connection that cannot move."""
        poller = None if self._server is None else self._server.poller
        if poller is None or self._session is None or self._input.rest() is None:
            return None
        return Departure(
            self, poller, self._tls, self._writer, self._shutdown, self._input, self._reader
        )

    @property
    def protocol(self) -> tuple[object, ...]:
        """What the next program has to know about the connection, beside its bytes and its
        session.
        """
        return ()

    def end_stream(self, is_ending: bool) -> bool:
        """Whether the connection ends: it has no last bytes."""
        return is_ending

    def leave(self) -> None:
        """End without a word to the peer or to the receiver: both go on in the next program."""
        self._shutdown.be_silent()
        self._session = None

    def arrive(self, session: Process) -> None:
        """Go on for a session that knows its peer already."""
        self._reader.skip_greeting()
        self._session = session

    def go_on(self, unsent: bytes) -> None:
        """Write the bytes that the program before has not sent."""
        if unsent:
            self._writer.put(unsent, None)

    def write_late(self, data: bytes, closes: bool) -> None:
        """Write the bytes that processes of the program before have sent during the move, and close
        if the connection was closed there.
        """
        send, node = self._meta.router.send, self._meta.kernel.pid
        if data:
            send(node, self.id, TCPSend(data), Priority.NORMAL)
        if closes:
            send(node, self.id, TCPClose(), Priority.NORMAL)

    # -- looking inside ----------------------------------------------------------------------------

    @property
    def reader(self) -> ReaderKind:
        """Where it reads: in a thread or in a task."""
        return "task" if self._reads_in_task else "thread"

    @property
    def bytes_in(self) -> int:
        """Bytes that came from the peer."""
        return self._input.received

    def _traffic(self) -> tuple[str, int, int]:
        counted = self if self._server is None else self._server
        return type(counted).__qualname__, self._input.received, self._writer.written

    @property
    def messages_in(self) -> int:
        """Messages for the receiver that were made of these bytes."""
        return self._input.messages

    @property
    def last_in(self) -> float:
        """When bytes last came from the peer."""
        return self._input.last

    @property
    def frame_since(self) -> float | None:
        """When the incomplete frame was begun, if there is any."""
        return self._input.frame_since

    @property
    def bytes_out(self) -> int:
        """Bytes that the operating system has taken."""
        return self._writer.written

    @property
    def messages_out(self) -> int:
        """Messages whose data was accepted."""
        return self._writer.messages

    @property
    def pending(self) -> int:
        """Bytes that wait for the peer to take them."""
        return self._writer.pending

    @property
    def tls(self) -> TLSFacts | None:
        """The facts of the TLS handshake, once it is done."""
        return self._tls.facts

    @property
    def connected(self) -> float | None:
        """When the connection was ready, by the node's clock."""
        return self._reader.connected

    def cut(self, cause: Cause, detail: str) -> None:
        """End on behalf of the server: bytes that wait are written as far as the system takes them
        at once.
        """
        self._shutdown.end(cause, detail)

    @property
    def cause(self) -> Cause | None:
        """Why the connection is ending."""
        return self._shutdown.cause

    @property
    def detail(self) -> str:
        """The cause in more words."""
        return self._shutdown.detail

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The counters and the state of the connection, by name."""
        meta, writer, incoming, tls = self._meta, self._writer, self._input, self._tls.facts
        facts = {
            "local": str(self.local),
            "peer": str(self.peer),
            "receiver": str(self._receiver()),
            "reader": self.reader,
            "state": "handshake"
            if self._reader.connected is None
            else "closing"
            if writer.is_closing
            else "open",
            "bytes in": str(incoming.received),
            "bytes out": str(writer.written),
            "messages in": str(incoming.messages),
            "messages out": str(writer.messages),
            "pending": str(writer.pending),
            "unfinished": str(incoming.unfinished),
            "drops": str(meta.outbox.dropped + meta.mailbox.dropped),
            "age": f"{self._now() - self.since:.3f}",
            "tls": "" if tls is None else str(tls),
        }
        return {item: facts[item] for item in items if item in facts} if items else facts


why_not_in_c: Final = install()
"""Why the functions of the C extension do not read and write for connections; empty if they do."""
