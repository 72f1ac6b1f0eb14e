"""`read_hops`: the words of proxies about a client, in the fields ``Forwarded`` (RFC 7239) or
``X-Forwarded-*``. It does no I/O, and knows nothing of trust.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from .http1 import is_host

__all__ = ["FAMILIES", "FORWARDED", "X_FORWARDED", "Hop", "read_hops"]

X_FORWARDED: Final = "x-forwarded-for"
FORWARDED: Final = "forwarded"
FAMILIES: Final = (X_FORWARDED, FORWARDED)
"""The families of fields. A proxy writes the fields of one family, and passes those of the other on
as its client has sent them.
"""
_MOST: Final = 64
"""Hops to read at most: a client can write thousands into a field."""
_PAIR: Final = re.compile(r'[ \t]*([a-z]+)=("[^"\\]*"|[^;,\s"]*)[ \t]*', re.IGNORECASE)


class Hop(NamedTuple):
    """The words of a proxy about its own client. A word that is missing or wrong is empty."""

    client: str
    """The address, without a port."""
    scheme: str
    """``http`` or ``https``."""
    host: str


def read_hops(headers: Mapping[str, str], family: str) -> Iterator[Hop]:
    """The words of proxies in the fields of a family, the nearest proxy first."""
    if family == FORWARDED:
        return _read_forwarded(headers.get("forwarded", ""))
    return _read_x_forwarded(headers)


def _read_x_forwarded(headers: Mapping[str, str]) -> Iterator[Hop]:
    scheme = _scheme(_last(headers.get("x-forwarded-proto", "")))
    host = _host(_last(headers.get("x-forwarded-host", "")))
    for address in _from_last(headers.get("x-forwarded-for", "")):
        yield Hop(_without_port(address), scheme, host)
        scheme = host = ""


def _read_forwarded(field: str) -> Iterator[Hop]:
    # Commas are found before quotes are: a quote that a client has opened cannot hide the elements
    # of proxies behind it.
    for element in _from_last(field):
        pairs: dict[str, str] = {}
        for text in element.split(";"):
            pair = _PAIR.fullmatch(text)
            if pair is None or pair[1].lower() in pairs:
                return
            pairs[pair[1].lower()] = pair[2].strip('"')
        yield Hop(
            _without_port(pairs.get("for", "")),
            _scheme(pairs.get("proto", "")),
            _host(pairs.get("host", "")),
        )


def _from_last(values: str) -> list[str]:
    parts = values.rsplit(",", _MOST)
    return [part.strip(" \t") for part in reversed(parts[-_MOST:])]


def _last(values: str) -> str:
    return values.rpartition(",")[2].strip(" \t")


def _scheme(word: str) -> str:
    return word.lower() if word.lower() in ("http", "https") else ""


def _host(word: str) -> str:
    return word if is_host(word) else ""


def _without_port(address: str) -> str:
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address
