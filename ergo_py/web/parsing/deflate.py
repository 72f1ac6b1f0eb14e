"""`Deflate`: the compression of WebSocket messages (RFC 7692), each message for itself."""

import re
import zlib
from typing import Final

__all__ = ["SMALLEST", "Deflate", "accepted_deflate", "offered_deflate"]

SMALLEST: Final = 1024
"""Shorter messages are not compressed."""
_LEVEL: Final = 6
_TAIL: Final = b"\x00\x00\xff\xff"
_NAME: Final = "permessage-deflate"
_ALONE: Final = "server_no_context_takeover; client_no_context_takeover"
_BITS: Final = re.compile(r"[89]|1[0-5]", re.ASCII)


class Deflate:
    """Compresses and inflates messages. No message depends on an earlier message, so a connection
    keeps no window.
    """

    __slots__ = ("_bits",)

    def __init__(self, bits: int = 15) -> None:
        """``bits`` is the size of the window that the peer allows."""
        self._bits = bits

    def compress(self, data: bytes) -> bytes:
        """Compress a message."""
        made = zlib.compressobj(_LEVEL, zlib.DEFLATED, -self._bits)
        packed = made.compress(data) + made.flush(zlib.Z_SYNC_FLUSH)
        return packed.removesuffix(_TAIL)

    def inflate(self, data: bytes, most: int) -> bytes:
        """Inflate a message of at most ``most`` bytes.

        Raises:
            OverflowError: it is longer. No more than that is ever made.
            ValueError: it is not compressed.
        """
        made = zlib.decompressobj(-15)
        try:
            clear = made.decompress(data + _TAIL, most + 1)
        except zlib.error as error:
            raise ValueError(f"a message cannot be inflated: {error}") from None
        if len(clear) > most:
            raise OverflowError
        return clear


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
