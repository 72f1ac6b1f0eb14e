"""`StreamReader`: the reading half of a stream connection, from the socket to messages, until the
peer closes its half.
"""

import socket
import ssl
from collections.abc import Sequence
from functools import cache
from math import inf
from typing import Any, Final

import trio
from trio.lowlevel import wait_readable, wait_writable

from ..._core.vocabulary.envelopes import Lane
from ..._core.vocabulary.ids import Target
from ..._core.vocabulary.reasons import Custom, Normal
from ..parsing.framing import FramingError, Raw
from ..poller import SocketPoller, watch_alone
from ..readers import EitherReader, ReaderKind, when_served
from .messages import (
    ORDERLY,
    Address,
    Cause,
    TCPConnected,
    TCPData,
    TCPFrames,
    TCPProtocolError,
    TCPSecured,
    TLSFacts,
)
from .options import StreamOptions
from .socket_setup import describe
from .tls import TLSSession
from .writer import Writer

__all__ = ["StreamReader", "shake_hands"]

_LEAST: Final = 4 * 1024
_MOST: Final = 256 * 1024
"""Limits of the size of a read. It grows only while much data comes, so that thousands of idle
readers do not hold large buffers.
"""
_TURN: Final = 512
"""Frames to cut in one step. The rest waits as bytes, so that many small frames cost neither memory
nor a long turn of the loop.
"""
_KEPT: Final = 2 * 1024 * 1024
"""Half of the bytes that may be queued for a receiver before its readers wait."""


class StreamReader(EitherReader):
    """The state that both halves of a connection share, and the half that reads. Only the reader
    changes the counters here.
    """

    _socket: socket.socket
    since: float
    """When the connection was spawned, by the node's clock."""
    last_in: float
    """When bytes last came from the peer."""

    def __init__(self, to: Target | None, options: StreamOptions, reader: ReaderKind) -> None:
        self._choose_reader(reader)
        self._to = to
        self._options = options
        self._decoder = options.framing.decoder()
        self._is_raw = isinstance(options.framing, Raw)
        self._aborting = False
        """The peer is to see a reset."""
        self._writer = Writer(
            stall=options.idle_timeout,
            start=self._start_on_loop,
            changed=self._written,
            failed=self._broken,
            answer=lambda caller, size: self._meta.kernel.calls.reply(caller, size, None),
        )
        self._secure: TLSSession | None = None
        self._may_write = True
        """False until the TLS handshake of a server's connection is done."""
        self._lockstep = options.start_tls
        """The stream is in clear, and TLS may begin: the reader hands over the next message only
        when the receiver is done with the last.
        """
        self._may_start_tls = False
        """The receiver is at work on a message after which TLS may begin."""
        self._server: Any = None
        """The server that accepted the connection."""
        self._read_limit = inf
        """Backpressure: with more bytes than this waiting for the peer, the reader stops reading.
        Known once reading begins.
        """
        self.local: Address = ""
        self.peer: Address = ""
        self.tls: TLSFacts | None = None
        self.cause: Cause | None = None
        """Why the connection is ending."""
        self.detail = ""
        self.connected: float | None = None
        """When the connection was ready, by the node's clock."""
        self.bytes_in = 0
        self.messages_in = 0
        self.frame_since: float | None = None
        """When the incomplete frame was begun, if there is any."""
        self._closing = False
        self._at_end = False
        """The peer has closed its half."""
        self._peer_is_done = False
        """The peer has closed its half, and the reader saw that before the connection was told to
        end.
        """
        self._is_last_read = False
        """The connection is told to end while its reader thread still reads: the thread discards
        its next read, and ends.
        """
        self._said_goodbye = False
        """The peer has sent TLS's ``close_notify``."""
        self._mistake: str | None = None
        """The protocol error of the peer, if the peer is to hear of it. The reader ignores all
        further input.
        """
        self._owes_last_word = False
        self._answered = False
        self._target: Target = ""
        self._size = _LEAST
        self._held: Sequence[TCPData | TCPFrames | TCPProtocolError] = ()
        """Messages that the poller has read, and that a receiver which is behind has not taken yet.
        """

    def _receiver(self) -> Target:
        return self.parent if self._to is None else self._to

    # -- a thread, and a task: the same steps ------------------------------------------------------

    def _read_in_thread(self) -> None:
        sock, limit = self._socket, self._set_read_limit()
        to = self._target = self._receiver()
        try:
            if (
                self._secure is not None
                and not self._secure.ready
                and not _shake_hands_in_thread(sock, self._secure)
            ):
                self._end(Cause.EOF, "during the TLS handshake")
                return
            if not self._post(to, self._connect()) and not self._has_receiver(to):
                self._end(Cause.NO_RECEIVER)
                return
            data = self._rest_of_handshake()
            while True:
                messages = self._messages(data)
                for number, message in enumerate(messages, 1):
                    if not self._post(to, message) and not self._has_receiver(to):
                        self._end(Cause.NO_RECEIVER)
                        return
                    if self._lockstep:
                        self._may_start_tls = True
                        self._meta.router.bridge.post(self._ask_whether_answered)
                        self._wait_in_thread(self._has_decided)
                        if self._starts_tls(number == len(messages)):
                            assert self._secure is not None
                            if not _shake_hands_in_thread(sock, self._secure):
                                self._end(Cause.EOF, "during the TLS handshake")
                                return
                            self._post(to, self._upgraded())
                        if self.cause is not None:
                            return
                if self.cause is not None:
                    return
                if self._owes_last_word:
                    self._let_answer_in_thread()
                    self._meta.router.bridge.post(self._close_after_last_word)
                    self._owes_last_word = False
                if self._at_end and not self._decoder.has_more:
                    break
                if self._writer.pending > limit and self._mistake is None:
                    self._wait_in_thread(self._may_read)
                if self._decoder.has_more:
                    data = b""
                    continue
                if self._secure is not None and (data := self._secure.take_rest()):
                    continue
                data = sock.recv(self._size)
                if not data or self._is_last_read:
                    break
                self._size = _next_size(self._size, len(data))
        except OSError as error:
            self._broken(error)
            return
        if self._heard_last():
            self._let_answer_in_thread()
        self._end_after_mistake()

    def _let_answer_in_thread(self) -> None:
        """Wait until the receiver has answered everything and the peer has taken the answers, or
        until the peer takes nothing for ``linger`` seconds.
        """
        self._meta.router.bridge.post(self._ask_whether_answered)
        while not (
            self._wait_in_thread(self._nothing_is_open, self._patience()) or self._is_impatient()
        ):
            pass

    async def _read_in_task(self) -> None:
        sock, limit = self._socket, self._set_read_limit()
        to = self._target = self._receiver()
        poller: SocketPoller | None = None if self._server is None else self._server.poller
        try:
            if (
                self._secure is not None
                and not self._secure.ready
                and not await shake_hands(sock, self._secure)
            ):
                self._end(Cause.EOF, "during the TLS handshake")
                return
            if not await self._hand_over(to, self._connect()) and not self._has_receiver(to):
                self._end(Cause.NO_RECEIVER)
                return
            self._held = self._messages(self._rest_of_handshake())
            is_new = self._server is not None
            while True:
                for number, message in enumerate(self._held, 1):
                    if not await self._hand_over(to, message) and not self._has_receiver(to):
                        self._end(Cause.NO_RECEIVER)
                        return
                    if self._lockstep:
                        self._may_start_tls = True
                        self._ask_whether_answered()
                        await self._wait_in_task(self._has_decided)
                        if self._starts_tls(number == len(self._held)):
                            assert self._secure is not None
                            if not await shake_hands(sock, self._secure):
                                self._end(Cause.EOF, "during the TLS handshake")
                                return
                            await self._hand_over(to, self._upgraded())
                        if self.cause is not None:
                            return
                self._held = ()
                if self.cause is not None:
                    return
                if self._owes_last_word:
                    await self._let_answer_in_task()
                    self._close_after_last_word()
                    self._owes_last_word = False
                if self._at_end and not self._decoder.has_more:
                    break
                if self._writer.pending > limit and self._mistake is None:
                    await self._wait_in_task(self._may_read)
                if self._decoder.has_more:
                    await trio.lowlevel.checkpoint()
                    self._held = self._messages(b"")
                    continue
                if self._secure is not None and (rest := self._secure.take_rest()):
                    self._held = self._messages(rest)
                    continue
                if is_new:
                    # Most peers speak first, and their bytes came with the connection: read at
                    # once, without waiting for the poller.
                    is_new = False
                    if not self._read_once():
                        continue
                if poller is None:
                    await watch_alone(sock, self._read_once)
                else:
                    await poller.watch(sock, self._read_once)
        except OSError as error:
            self._broken(error)
            return
        if self._heard_last():
            await self._let_answer_in_task()
        self._end_after_mistake()

    async def _let_answer_in_task(self) -> None:
        self._ask_whether_answered()
        if not self._nothing_is_open():
            while not (
                await self._wait_in_task(self._nothing_is_open, self._patience())
                or self._is_impatient()
            ):
                pass

    def _end_after_mistake(self) -> None:
        """A peer's protocol error is the cause of the end, even if a close was requested later."""
        if self._mistake is not None:
            self._end(Cause.PROTOCOL_ERROR, self._mistake)

    def _read_once(self) -> bool:
        """Read once and hand over, on the loop. Returns whether to keep watching the socket. False
        if the stream has ended or failed, or if the task has more to do or to wait for.
        """
        self._held = ()
        size = self._size
        try:
            data = self._socket.recv(size)
        except BlockingIOError:
            return True
        except OSError as error:
            self._broken(error)
            return False
        if not data:
            self._at_end = True
            return False
        if size != _LEAST or len(data) == _LEAST:
            self._size = _next_size(size, len(data))
        messages, meta = self._messages(data), self._meta
        if self._lockstep:
            self._held = messages
            return False
        for number, message in enumerate(messages):
            # `deliver` is the fast path and nearly always enough; `forward` does the same with more
            # checks.
            if not meta.outbox.deliver(
                self._target, message, meta.priority
            ) and not meta.outbox.forward(self._target, message, meta.priority):
                self._held = messages[number:]
                return False
        return (
            self.cause is None
            and not self._at_end
            and not self._decoder.has_more
            and not self._owes_last_word
            and (self._writer.pending <= self._read_limit or self._mistake is not None)
        )

    # -- the steps ---------------------------------------------------------------------------------

    def _connect(self) -> TCPConnected:
        self._note_handshake()
        self.connected = self.last_in = self._now()
        return TCPConnected(
            self.id,
            self.peer,
            self.local,
            self.tls,
            None if self._server is None else self._server.id,
        )

    def _note_handshake(self) -> None:
        if self._secure is not None:
            self.tls = self._secure.facts()
            self._may_write = True
            self._meta.router.bridge.post(self._secured)

    def _has_decided(self) -> bool:
        """Whether the receiver is done with the last message and all its answers are written, or
        the connection is ending.
        """
        return (self._answered and not self._writer.pending) or self.cause is not None

    def _starts_tls(self, was_last: bool) -> bool:
        """Whether TLS begins after the last message. ``was_last`` says that no other message came
        with it.
        """
        self._may_start_tls = self._answered = False
        if self._secure is None or self.cause is not None or self.stopping:
            return False
        if not was_last or self._decoder.unfinished:
            self._end(Cause.PROTOCOL_ERROR, "something came in clear after TLS was agreed on")
            return False
        return True

    def _upgraded(self) -> TCPSecured:
        self._lockstep = False
        self._note_handshake()
        assert self.tls is not None
        return TCPSecured(self.id, self.tls)

    def _rest_of_handshake(self) -> bytes:
        """Bytes that the peer sent together with the end of its handshake."""
        return b"" if self._secure is None else self._secure.take_rest()

    def _messages(self, data: bytes) -> Sequence[TCPData | TCPFrames | TCPProtocolError]:
        """Turn the bytes of a read into messages. A protocol error ends the connection; frames
        before it are delivered.

        There may be more messages than are returned: then ``has_more`` of the decoder is true, and
        the reader calls again without data.
        """
        if self._mistake is not None:
            self.bytes_in += len(data)
            return ()
        is_unfinished = False
        if data:
            self.bytes_in += len(data)
            if self._secure is not None:
                data = self._decrypted(data)
                is_unfinished = self._secure.unfinished
            if data or not is_unfinished:
                # Bytes of an incomplete TLS record do not count as activity: a peer could send them
                # singly, for hours.
                self.last_in = self._now()
        elif not self._decoder.has_more:
            return ()
        if not self._is_raw:
            return self._framed(data, is_unfinished)
        if not is_unfinished:
            self.frame_since = None
        elif data or self.frame_since is None:
            self.frame_since = self._now()
        if not data:
            return ()
        self.messages_in += 1
        if len(data) >> 12 != self._weight:
            self._weigh(len(data))
        return (TCPData(self._meta.id, data),)

    def _framed(
        self, data: bytes, is_unfinished: bool
    ) -> Sequence[TCPData | TCPFrames | TCPProtocolError]:
        """The same for frames. ``is_unfinished`` says that TLS keeps bytes that may belong to a
        further frame.
        """
        decoder, alias = self._decoder, self._meta.id
        size = decoder.unfinished + len(data)
        try:
            # Cut at most the frames of a single turn.
            frames = decoder.feed(data, _TURN)
        except Exception as error:
            frames = self._cannot_cut(error)
        if decoder.has_more:
            self._size = max(_LEAST, self._size // 4)
        if kept := decoder.unfinished:
            is_unfinished = True
        if not is_unfinished:
            self.frame_since = None
        elif frames or self.frame_since is None:
            self.frame_since = self._now()
        if not frames:
            return () if self._mistake is None else (TCPProtocolError(alias, self._mistake),)
        size -= kept
        self.messages_in += len(frames)
        messages: Sequence[TCPData | TCPFrames | TCPProtocolError]
        if self._options.batch:
            messages = (TCPFrames(alias, frames),)
        else:
            size //= len(frames)
            messages = [TCPData(alias, frame) for frame in frames]
        if size >> 12 != self._weight:
            self._weigh(size)
        return (
            messages
            if self._mistake is None
            else (*messages, TCPProtocolError(alias, self._mistake))
        )

    def _cannot_cut(self, error: Exception) -> Sequence[Any]:
        """Note that the rest of the stream cannot be cut. Returns the frames before the error. An
        exception that is not a ``FramingError`` is a fault of the framing itself, and is raised.
        """
        if not isinstance(error, FramingError):
            # It ends as a crash, which is logged. The peer sees a reset, so that it does not take
            # this for a regular end.
            self._aborting = True
            self._set_cause(Cause.FAILED, f"the framing raised {error!r}")
            raise error
        if self._options.last_word:
            self._mistake, self._owes_last_word = str(error), True
        else:
            self._end(Cause.PROTOCOL_ERROR, str(error))
        return error.frames

    def _decrypted(self, data: bytes) -> bytes:
        secure = self._secure
        assert secure is not None
        clear, self._said_goodbye, wrong = secure.decrypt(data)
        if wrong is not None:
            self._broken(wrong)
        if self._said_goodbye:
            self._at_end = True
        if secure.has_output:
            self._meta.router.bridge.post(self._write_secured)
        return clear

    def _secured(self) -> None:
        raise NotImplementedError

    def _write_secured(self) -> None:
        raise NotImplementedError

    def _written(self) -> None:
        raise NotImplementedError

    def _close_after_last_word(self) -> None:
        raise NotImplementedError

    def _set_read_limit(self) -> float:
        """Only the side that was called ever stops reading. If both sides did, each could wait
        forever for the other to take something (deadlock).
        """
        self._read_limit = inf if self._server is None else self._options.write_limit
        return self._read_limit

    def _may_read(self) -> bool:
        return self._writer.pending <= self._read_limit or self.cause is not None

    def _heard_last(self) -> bool:
        """Note that the peer has closed its half. Returns whether data may be left to write."""
        if self.stopping:
            return False
        self._peer_is_done = True
        # From now on, `linger` counts the time in which the peer takes nothing.
        self.last_in = self._now()
        if self._closing:
            self._set_cause(Cause.ASKED, "")
            # Data that was sent before the close is still to be written; do not wait for further
            # answers.
            self._answered = True
            return bool(self._writer.pending)
        if unfinished := self._decoder.unfinished:
            self._set_cause(
                Cause.TRUNCATED, f"in the middle of a frame, after {unfinished} bytes of it"
            )
        elif self._secure is not None and not self._said_goodbye:
            self._set_cause(Cause.TRUNCATED, "without the goodbye of TLS")
        else:
            self._set_cause(Cause.EOF, "")
        return True

    def _patience(self) -> float | None:
        """Seconds left for writing the last answers. None while closing: a close has its own time
        limit.
        """
        return (
            None
            if self._closing
            else max(self.last_in, self._writer.last) + self._options.linger - self._now()
        )

    def _is_impatient(self) -> bool:
        """Whether the wait is over: the peer took nothing in all that time, or the connection is
        stopping.
        """
        patience = self._patience()
        return self.stopping or (patience is not None and patience <= 0)

    def _ask_whether_answered(self) -> None:
        """Find out when everything is answered, on the loop: the receiver has served all messages,
        and then this handler has served the receiver's answers.
        """

        def answered() -> None:
            self._answered = True
            self._ring()

        receiver = self._meta.router.resolve(self._receiver())
        meta = self._meta
        when_served(meta, receiver, lambda: when_served(meta, meta, answered))

    def _nothing_is_open(self) -> bool:
        return self._answered and not self._writer.pending

    def _is_held_up(self) -> bool:
        """Whether this side holds up the reading, and not the peer: the receiver has a backlog, or
        this handler has. On the loop.
        """
        outbox = self._meta.outbox
        if outbox.reader_waits or self._held or self._waits is not None:
            return True
        receiver = self._meta.router.resolve(self._receiver())
        return receiver is not None and receiver.mailbox.depth(Lane.MAIN) * 2 >= outbox.backlog

    # -- causes ------------------------------------------------------------------------------------

    def _set_cause(self, cause: Cause, detail: str) -> bool:
        if self.cause is not None:
            return False
        if self._mistake is not None and cause in ORDERLY:
            cause, detail = Cause.PROTOCOL_ERROR, self._mistake
        self.cause, self.detail = cause, detail
        return True

    def _end(self, cause: Cause, detail: str = "") -> None:
        """End the connection, from either half. The first cause counts, also while only the last
        answers are still to be written.
        """
        self._set_cause(cause, detail)
        if self.stopping:
            return
        cause, detail = self.cause or cause, self.detail
        reason = (
            Normal()
            if cause in ORDERLY
            else Custom(f"{cause.value}: {detail}" if detail else cause.value)
        )
        # Keep these ends out of the node's record of crashes, or peers could push real crashes out
        # of it.
        self._meta.router.bridge.do(self._meta.finish_with_owner, reason)

    def _broken(self, error: BaseException) -> None:
        """End the connection because of a socket error. Ignored while the connection is stopping,
        since stopping causes such errors.
        """
        if self.stopping:
            return
        if isinstance(error, TimeoutError):
            self._end(Cause.TIMEOUT, describe(error))
        elif isinstance(error, ssl.SSLError):
            self._end(Cause.PROTOCOL_ERROR, f"TLS: {error.reason or error}")
        else:
            self._end(Cause.RESET, describe(error))


def _next_size(size: int, read: int) -> int:
    if read == size:
        _keep_memory()
        return min(2 * size, _MOST)
    return size if read * 4 > size else max(_LEAST, size // 2)


@cache
def _keep_memory() -> None:
    """Let the C library keep the memory of large messages for the next messages.

    By default, glibc gets each block of 128 KiB and more from the operating system, and returns at
    once any more than that at the end of its heap. A server of large messages would get their pages
    again and again: a quarter of its work. Having seen a large block allocated and freed, glibc
    keeps up to twice as much. Other C libraries have their own rules; a block that is never written
    to costs next to nothing.
    """
    bytes(_KEPT)


def _shake_hands_in_thread(sock: socket.socket, secure: TLSSession) -> bool:
    data = b""
    while True:
        try:
            done = secure.handshake(data)
        finally:
            # Also after a failure: the output is an alert that tells the peer why.
            sock.sendall(secure.take())
        if done:
            return True
        data = sock.recv(_MOST)
        if not data:
            return False


async def shake_hands(sock: socket.socket, secure: TLSSession) -> bool:
    """Do the TLS handshake on the loop. False if the peer closed in the middle of it.

    Raises:
        OSError: the handshake failed; an error of TLS is an ``ssl.SSLError``, a subclass.
    """
    data = b""
    while True:
        try:
            done = secure.handshake(data)
        finally:
            await _send_all(sock, secure.take())
        if done:
            return True
        while True:
            try:
                data = sock.recv(_MOST, socket.MSG_DONTWAIT)
                break
            except BlockingIOError:
                await wait_readable(sock)
        if not data:
            return False


async def _send_all(sock: socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            await wait_writable(sock)
    await trio.lowlevel.checkpoint()
