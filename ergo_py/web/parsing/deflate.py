"""`Deflate`: the compression of WebSocket messages (RFC 7692), each message for itself."""

import re
import zlib
from typing import Final

__all__ = ["SMALLEST", "Deflate", "Inflation", "accepted_deflate", "offered_deflate"]

SMALLEST: Final = 1024
"""Shorter messages are not compressed."""
_LEVEL: Final = 6
_INPUT: Final = 16 * 1024
"""Compressed bytes to inflate at once: zlib copies the bytes that it could not use."""
_TAIL: Final = b"\x00\x00\xff\xff"
_NAME: Final = "permessage-deflate"
_ALONE: Final = "server_no_context_takeover; client_no_context_takeover"
_BITS: Final = re.compile(r"[89]|1[0-5]", re.ASCII)


class Deflate:
    """Compresses and inflates messages. No message depends on an earlier message, so a connection
    keeps no window.
    """

    __slots__ = ("bits",)

    def __init__(self, bits: int = 15) -> None:
        self.bits: int = bits
        """The size of the window that the peer allows."""

    def compress(self, data: bytes) -> bytes:
        """Compress a message."""
        made = zlib.compressobj(_LEVEL, zlib.DEFLATED, -self.bits)
        packed = made.compress(data) + made.flush(zlib.Z_SYNC_FLUSH)
        return packed.removesuffix(_TAIL)

    def begin(self, data: bytes, most: int) -> "Inflation":
        """Begin to inflate a message of at most ``most`` bytes."""
        return Inflation(data + _TAIL, most)


class Inflation:
    """A message that is inflated in steps, since a few bytes can become megabytes."""

    __slots__ = ("_at", "_data", "_left", "_rest", "_zlib", "is_done")

    def __init__(self, data: bytes, most: int) -> None:
        self._data = data
        self._at = 0
        """Where the bytes begin that zlib has not got yet."""
        self._left = most
        """Bytes that the message may still have."""
        self._rest = b""
        """Bytes that zlib has got and not used."""
        self._zlib = zlib.decompressobj(-15)
        self.is_done: bool = False
        """The message is complete."""

    def step(self, most: int) -> tuple[bytes, int]:
        """Inflate up to ``most`` bytes, at least 1. Returns them, and how many bytes were read and
        made.

        Raises:
            OverflowError: the message is longer than allowed. Only a single byte beyond the limit
                is ever made.
            ValueError: the message is not compressed.
        """
        data = self._rest
        if not data:
            data = self._data[self._at : self._at + _INPUT]
            self._at += len(data)
        room = min(most, self._left + 1)
        try:
            clear = self._zlib.decompress(data, room)
        except zlib.error as error:
            raise ValueError(f"a message cannot be inflated: {error}") from None
        self._rest = self._zlib.unconsumed_tail
        self._left -= len(clear)
        if self._left < 0:
            raise OverflowError
        # With less than there was room for, zlib holds back nothing. Bytes after a block that says
        # it is the last do not count.
        is_read = len(clear) < room and self._at == len(self._data)
        self.is_done = is_read or self._zlib.eof
        return clear, len(data) - len(self._rest) + len(clear)


def _read_offer(offer: str) -> dict[str, str] | None:
    """The parameters of an offer of this extension; None for other or wrong offers."""
    name, *parameters = (part.strip(" \t") for part in offer.split(";"))
    if name.lower() != _NAME:
        return None
    found: dict[str, str] = {}
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        key, value = key.strip(" \t").lower(), value.strip(' \t"')
        if key in found:
            return None
        found[key] = value
    return found


def accepted_deflate(offers: str) -> tuple[Deflate, str] | None:
    """The first offer of a client that can be accepted, and the words that accept it. None without
    such an offer.
    """
    for offer in offers.split(","):
        parameters = _read_offer(offer)
        if parameters is None:
            continue
        bits, words = 15, f"{_NAME}; {_ALONE}"
        asked = parameters.pop("server_max_window_bits", None)
        if asked is not None:
            # zlib makes no window of 8 bits.
            if _BITS.fullmatch(asked) is None or asked == "8":
                continue
            bits = int(asked)
            words += f"; server_max_window_bits={bits}"
        own = parameters.pop("client_max_window_bits", "")
        if own and _BITS.fullmatch(own) is None:
            continue
        if any(
            value or key not in ("server_no_context_takeover", "client_no_context_takeover")
            for key, value in parameters.items()
        ):
            continue
        return Deflate(bits), words
    return None


def offered_deflate(answer: str | None) -> tuple[str, Deflate | None]:
    """For a client: the offer to send; and with the answer of the server, the agreed compression.

    Raises:
        ValueError: the server has agreed on something that was not offered.
    """
    offer = f"{_NAME}; {_ALONE}"
    if not answer:
        return offer, None
    parameters = _read_offer(answer)
    if parameters is None or "server_no_context_takeover" not in parameters:
        raise ValueError(f"the server answers {answer!r} to the extension {offer!r}")
    bits = parameters.get("client_max_window_bits") or "15"
    known = (
        *("server_no_context_takeover", "client_no_context_takeover"),
        *("server_max_window_bits", "client_max_window_bits"),
    )
    if not parameters.keys() <= {*known} or _BITS.fullmatch(bits) is None or bits == "8":
        raise ValueError(f"the server answers {answer!r} to the extension {offer!r}")
    return offer, Deflate(int(bits))
