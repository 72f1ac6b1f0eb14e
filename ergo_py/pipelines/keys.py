"""Keys of items as texts: in rows, as keys of entities, and in headers."""

import string
from collections.abc import Hashable
from typing import Final
from urllib.parse import quote, unquote

__all__ = ["header_of", "key_of", "text_of_key"]

_AS_IT_IS: Final = string.punctuation.replace("%", "")
"""The signs that a key has in its header, besides letters and digits. All others are quoted."""


def text_of_key(key: Hashable) -> str:
    """A key as a text. Bytes are read as UTF-8; a key that is no such text, or has NUL, is quoted
    as in a header.
    """
    text = key.decode(errors="surrogateescape") if isinstance(key, bytes) else str(key)
    is_odd = "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text)
    return header_of(text) if is_odd else text


def header_of(key: str | bytes) -> str:
    """A key as a header, which is a line without spaces at its ends. Bytes that are no text stay
    apart, too.
    """
    text = key.decode(errors="surrogateescape") if isinstance(key, bytes) else key
    try:
        return quote(text, _AS_IT_IS, errors="surrogateescape")
    except UnicodeEncodeError:  # half of a pair, such as JSON may have
        return quote(text, _AS_IT_IS, errors="surrogatepass")


def key_of(header: str) -> str:
    """The key that a header has."""
    return unquote(header, errors="surrogateescape")
