"""Checks of the data in messages to bridges and of their addresses, and fast setters for the fields
of frozen messages.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Final
from urllib.parse import urlsplit

from .._core.vocabulary.errors import BadInputError

__all__ = ["check_bytes", "check_conninfo", "check_text", "check_url", "setters"]

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
        BadInputError: it has none of these schemes, or no host, or a password that ends the host
            too early: libraries would tell a part of it as the host or the port.
    """
    try:
        parts = urlsplit(url)
        behind = f"{parts.path}{parts.query}{parts.fragment}"
        is_clear = "@" not in behind and bool(parts.hostname or behind) and parts.port != 0
        if is_clear and parts.scheme in schemes:
            return url
    except ValueError:  # it quotes a part of the password
        pass
    shown = url.rpartition("@")[2] if "@" in url else url.partition(":")[0]
    allowed = " or ".join(f"{scheme}://host" for scheme in schemes)
    raise BadInputError(what, shown, f"{allowed}; {_QUOTED}")


def check_conninfo(what: str, conninfo: str, limits: str = "") -> str:
    """Return the address of a PostgreSQL database, with these limits.

    Raises:
        BadInputError: it cannot be read, or a part of its password would be told as the database.
    """
    from psycopg.conninfo import conninfo_to_dict, make_conninfo  # noqa: PLC0415 - is an extra

    try:
        given = conninfo_to_dict(conninfo)
        place = f"{given.get('host')}{given.get('dbname')}"
        port = str(given.get("port", "")).replace(",", "")
        is_clear = "@" not in place and (not port or port.isdecimal())
    except Exception:  # psycopg quotes a part of the text, and takes any type
        is_clear = False
    if not is_clear:
        # The text is not shown: it may hold a password.
        example = 'the address of a database, such as "postgresql://user@host/database"'
        raise BadInputError(what, f"a {type(conninfo).__name__}", f"{example}; {_QUOTED}")
    return make_conninfo(conninfo, **conninfo_to_dict(limits))
