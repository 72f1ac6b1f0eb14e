"""Checks of the data in messages to bridges and of their addresses, and fast setters for the fields
of frozen messages.
"""

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Final
from urllib.parse import urlsplit

from .._core.vocabulary.errors import BadInputError

__all__ = [
    "DATABASE_LIMITS",
    "check_bytes",
    "check_conninfo",
    "check_hosts",
    "check_name",
    "check_text",
    "check_topic",
    "check_url",
    "check_urls",
    "host_of",
    "setters",
]

DATABASE_LIMITS: Final = (
    "connect_timeout=5 keepalives_idle=5 keepalives_interval=5 tcp_user_timeout=20000"
)
"""Settings by which a session of PostgreSQL notices a dead server, also if it sends nothing."""

_OPTIONS: Final = re.compile(r"\w+=[^&=]*(&\w+=[^&=]*)*")
"""The options of an address. A password that holds a question mark hardly looks like them."""
_QUOTED: Final = "write signs of a password as %2F, which is a slash"
_HOST: Final = r"((plaintext|ssl|sasl_plaintext|sasl_ssl)://)?([\w.-]+|\[[\da-f:.]+\])(:\d+)?"
_HOSTS: Final = re.compile(rf"{_HOST}(\s*,\s*{_HOST})*", re.ASCII | re.IGNORECASE)


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
    raise BadInputError(what, _without_login(url), f"{allowed}; {_QUOTED}")


def check_urls(what: str, urls: str | list[str], *schemes: str) -> list[str]:
    """Return the addresses of one or more servers. Those without a scheme get the first of these.

    Raises:
        BadInputError: there is none, or one of them has another scheme or no host.
    """
    given = [urls] if isinstance(urls, str) else urls
    if not isinstance(given, list) or not given:
        wish = f"{schemes[0]}://host, or a list of such addresses"
        raise BadInputError(what, f"a {type(given).__name__}", wish)
    found: list[str] = []
    for url in given:
        is_bare = isinstance(url, str) and "://" not in url
        checked = check_url(what, f"{schemes[0]}://{url}" if is_bare else url, *schemes)
        if not urlsplit(checked).hostname:
            raise BadInputError(what, _without_login(checked), f"{schemes[0]}://host, with a host")
        found.append(checked)
    return found


def _without_login(address: str) -> str:
    return address.rpartition("@")[2] if "@" in address else address.partition(":")[0]


def check_hosts(what: str, servers: str) -> str:
    """Return the addresses of servers, which are hosts with their ports, and commas between them.

    Raises:
        BadInputError: there is none, or they are not written so.
    """
    is_text = isinstance(servers, str)
    if not is_text or not _HOSTS.fullmatch(servers):
        given = _without_login(servers) if is_text else servers
        raise BadInputError(what, given, 'hosts, such as "kafka1:9092,kafka2:9092"')
    return servers


def check_name(what: str, name: str, allowed: bytes, wish: str) -> str:
    """Return a name at a broker or a server.

    Raises:
        BadInputError: its bytes do not match the pattern ``allowed``.
    """
    try:
        is_right = re.fullmatch(allowed, name.encode(), re.DOTALL) is not None
    except (AttributeError, UnicodeEncodeError):  # no text, or half of a pair
        is_right = False
    if not is_right:
        raise BadInputError(what, name, wish)
    return name


def check_topic(what: str, topic: str, signs: str = "/+#") -> str:
    """Return a topic of MQTT, a subject of NATS, or the pattern of several of them.

    Args:
        what: the name of the argument.
        topic: the topic.
        signs: the sign between two levels, the wildcard for a level, and the wildcard for all
            further levels.

    Raises:
        BadInputError: it is empty, has the sign NUL, a wildcard beside other signs, or the last
            wildcard before its end. A subject has no empty level and no space, either.
    """
    between, one, rest = signs[0], signs[1], signs[2]
    is_text = isinstance(topic, str) and topic != "" and "\0" not in topic
    levels = topic.split(between) if is_text else []
    wild = {level for level in levels if {one, rest} & {*level}}
    is_right = bool(levels) and wild <= {one, rest} and rest not in levels[:-1]
    if between == ".":
        is_right &= all(level and not any(map(str.isspace, level)) for level in levels)
    if not is_right:
        like = [between.join(("hall", level)) for level in ("lamp", one, rest)]
        kind = "subject" if between == "." else "topic"
        wish = f'a {kind} such as "{like[0]}", "{like[1]}" or "{like[2]}"'
        raise BadInputError(what, topic, wish)
    return topic


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
