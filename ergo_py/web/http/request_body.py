"""`RequestBody`: the body of the request under way. It is collected whole, pulled in pieces, or
skipped.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ..._core.tables.pending_calls import Caller, Deadline
from ..._core.vocabulary.errors import NotAllowedError
from ..parsing.http1 import RequestError, RequestParser
from .exchange import Exchange
from .limits import TimeLimits

__all__ = ["MOST_SKIPPED", "RequestBody"]

MOST_SKIPPED: Final = 64 * 1024
"""Bytes of an unwanted body that are read and dropped, so that the connection can go on."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class RequestBody:
    """The bodies of a connection's requests, a single one at a time."""

    __slots__ = (
        *("_answer_due", "_answer_limit", "_answer_timeout", "_limits", "_pieces", "_put"),
        *("_reader", "_reply", "_size", "_was_read", "awaits_sign"),
    )

    def __init__(
        self,
        limits: TimeLimits,
        put: Callable[[bytes], object],
        reply: Callable[[Caller, Any, BaseException | None], object],
    ) -> None:
        """``put`` writes to the peer, and ``reply`` answers a call."""
        self._limits = limits
        self._put = put
        self._reply = reply
        self._pieces: list[bytes] = []
        self._size = 0
        self._reader: tuple[Caller, int] | None = None
        """A call that waits for the next piece, and how much it takes."""
        self._was_read = False
        """A piece was wanted before."""
        self._answer_limit: Deadline | None = None
        """Ends the time for the answer to a request whose body is pulled."""
        self._answer_timeout = 0.0
        """Seconds for the answer, after the last piece was handed over."""
        self._answer_due = 0.0
        """When the time for the answer is over, unless another piece is handed over before."""
        self.awaits_sign: bool = False
        """The peer waits for ``100 Continue``."""

    def begin(self, awaits_sign: bool) -> None:
        """Another request has begun."""
        self.awaits_sign = awaits_sign
        self._size = 0
        self._was_read = False

    def want(self) -> None:
        """The body is wanted now: its time counts, and the peer may send it."""
        if self._was_read:
            self._limits.resume_body()
        else:
            self._was_read = True
            self._limits.begin_body()
        if self.awaits_sign:
            self.awaits_sign = False
            self._put(_CONTINUE)

    def drop(self) -> None:
        """Forget the body: its request was refused."""
        self._pieces = []
        self.awaits_sign = False

    # -- whole bodies ------------------------------------------------------------------------------

    def collect(self, parser: RequestParser, most: int) -> bytes | None:
        """The whole body; None if it is not complete.

        Raises:
            RequestError: it is longer than ``most`` bytes.
        """
        piece = parser.take_body(most - self._size + 1)
        self._count(piece, most)
        if piece:
            self._pieces.append(piece)
        if not parser.body_is_done:
            return None
        whole = b"".join(self._pieces)
        self._pieces = []
        self._size = 0
        return whole

    def _count(self, piece: bytes, most: int) -> None:
        self._size += len(piece)
        if self._size > most:
            raise RequestError(413, f"the body is longer than {most} bytes")

    # -- unwanted bodies ---------------------------------------------------------------------------

    def begin_skipping(self) -> None:
        """Drop the rest of a body that was not read. Its time counts."""
        self._size = 0
        self._limits.begin_body()

    def skip(self, parser: RequestParser) -> bool:
        """Drop some bytes. False if they are too many to go on."""
        self._size += len(parser.take_body(MOST_SKIPPED))
        return parser.body_is_done or self._size <= MOST_SKIPPED

    # -- bodies that are pulled --------------------------------------------------------------------

    @property
    def has_reader(self) -> bool:
        """Whether a call waits for the next piece."""
        return self._reader is not None

    def read(self, caller: Caller, most: int) -> None:
        """Let a call wait for the next piece.

        Raises:
            NotAllowedError: another call waits for it.
        """
        if self._reader is not None:
            raise NotAllowedError("another HTTPRequest.ReadBody waits for the same body")
        self._reader = caller, most
        self.want()

    def give(self, parser: RequestParser, limit: int) -> bool:
        """Answer the waiting call with a piece, if any has come. Returns whether there is more to
        do without waiting.

        Raises:
            RequestError: the body is longer than ``limit`` bytes.
        """
        assert self._reader is not None
        caller, most = self._reader
        piece = parser.take_body(most)
        if piece or parser.body_is_done:
            self._count(piece, limit)
            self._reader = None
            self._limits.pause_body()
            if self._answer_limit is not None:
                self._prolong_answer()
            self._reply(caller, piece, None)
            return False
        return parser.has_more

    def limit_answer(self, exchange: Exchange, timeout: float) -> None:
        """Let the exchange expire ``timeout`` seconds after the last piece was handed over. The
        time in which a call waits for the peer does not count: the body has its own limits.
        """
        self._answer_timeout = timeout
        self._prolong_answer()
        self._check_answer_in(timeout, exchange)

    def _prolong_answer(self) -> None:
        """The time for the answer begins again."""
        self._answer_due = self._limits.now() + self._answer_timeout

    def _check_answer_in(self, seconds: float, exchange: Exchange) -> None:
        self._answer_limit = limit = Deadline(partial(self._check_answer, exchange))
        self._limits.arm(limit, seconds)

    def _check_answer(self, exchange: Exchange) -> None:
        timeout = self._answer_timeout
        left = timeout if self.has_reader else self._answer_due - self._limits.now()
        if left > 0:
            self._check_answer_in(left, exchange)
        else:
            exchange.expire(timeout)

    def leave_reader(self) -> None:
        """The exchange has ended: so has the waiting call."""
        if self._answer_limit is not None:
            self._answer_limit.abandon()
            self._answer_limit = None
        if self._reader is not None:
            (caller, _), self._reader = self._reader, None
            self._reply(caller, None, NotAllowedError("the exchange has ended"))
