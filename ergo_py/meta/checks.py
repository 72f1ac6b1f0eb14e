"""Checks of the data in messages to bridges and of their addresses, and fast setters for the fields
of frozen messages.
"""

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Final
from urllib.parse import urlsplit

from .._core.vocabulary.errors import BadInputError

__all__ = ["check_bytes", "check_conninfo", "check_text", "check_url", "host_of", "setters"]

_OPTIONS: Final = re.compile(r"\w+=[^&=]*(&\w+=[^&=]*)*")
"""The options of an address. A password that holds a question mark hardly looks like them."""
_QUOTED: Final = "write signs of a password as %2F, which is a slash"


def setters(message: type) -> tuple[Callable[[object, object], None], ...]:
    """The functions that fill the fields of a frozen message; they cost two thirds of
    ``object.__setattr__``.
    """
    return tuple(getattr(message, field.name).__set__ for field in fields(message))


def check_bytes(what: str, data: object) -> None:
    """Refuse data that is not bytes."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise BadInputError(what, data, "bytes; encode text first, such as 'hello\\n'.encode()")


def check_text(what: str, data: object) -> None:
    """Refuse data that is neither bytes nor text. ``bytes`` would turn a number into that many
    zeros.
    """
    if not isinstance(data, bytes | bytearray | memoryview | str):
        raise BadInputError(what, data, "bytes or a str")


def check_url(what: str, url: str, *schemes: str) -> str:
    """Return the address of a server.

    Raises:
        BadInputError: it has none of these schemes, or a password that ends the host too early:
            libraries would tell a part of it as the host or the port.
    """
    allowed = " or ".join(f"{scheme}://host" for scheme in schemes)
    if not isinstance(url, str):
        raise BadInputError(what, f"a {type(url).__name__}", allowed)
    try:
        parts = urlsplit(url)
        behind = f"{parts.path}{parts.query}{parts.fragment}"
        is_clear = bool(parts.hostname or behind or not parts.netloc) and parts.port != 0
        if "@" in behind:
            # A port may be the start of a password, unless the number of a database follows.
            is_clear &= parts.port is None or parts.path[1:].isdecimal()
            is_clear &= "@" not in parts.path + parts.fragment
            is_clear &= _OPTIONS.fullmatch(parts.query) is not None
        if is_clear and parts.scheme in schemes and url[len(parts.scheme) :].startswith("://"):
            return url
    except ValueError:  # it quotes a part of the password
        pass
    shown = url.rpartition("@")[2] if "@" in url else url.partition(":")[0]
    raise BadInputError(what, shown, f"{allowed}; {_QUOTED}")


def host_of(url: str | list[str]) -> str:
    """The host of an address, and its port if it has one, for logs; of a list, all of them. Empty
    for an address whose password may end the host too early.
    """
    if not isinstance(url, str):
        return ", ".join(map(host_of, url))
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return ""
    is_clear = "@" not in f"{parts.path}{parts.query}{parts.fragment}"
    return f"{parts.hostname or ''}{port}" if is_clear else ""


def check_conninfo(what: str, conninfo: str, limits: str = "") -> str:
    """Return the address of a PostgreSQL database, with these limits.

    Raises:
        BadInputError: it cannot be read, or a part of its password would be told as the database.
    """
    from psycopg.conninfo import conninfo_to_dict, make_conninfo  # noqa: PLC0415 - is an extra

    try:
        given = conninfo_to_dict(conninfo)
        name = str(given.get("dbname", ""))
        if conninfo.startswith(("postgresql://", "postgres://")):
            # The database as it is written: the sign of a name is %40 there.
            name = conninfo.partition("://")[2].partition("/")[2].partition("?")[0]
            is_clear = "@" not in name
        else:
            is_clear = "@" not in name or ":" not in name  # may be user:password@host
        # libpq has abstract sockets, which begin with the sign.
        hosts = str(given.get("host", "")).split(",")
        is_clear &= not any("@" in host[1:] for host in hosts)
        port = str(given.get("port", "")).replace(",", "")
        is_clear &= not port or port.isdecimal()
    except Exception:  # psycopg quotes a part of the text, and takes any type
        is_clear = False
    if not is_clear:
        # The text is not shown: it may hold a password.
        example = 'the address of a database, such as "postgresql://user@host/database"'
        raise BadInputError(what, f"a {type(conninfo).__name__}", f"{example}; {_QUOTED}")
    return make_conninfo(conninfo, **conninfo_to_dict(limits))
