"""The credentials of a NATS client: a user and a password, a token, an nkey, or a signed JWT."""

import base64
import os
import re
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ...._core.vocabulary.errors import BadInputError
from ...errors import NetworkError

__all__ = ["URL_WISH", "Credentials", "ServerAddress", "without_login"]

URL_WISH: Final = (
    "the URL of a NATS server, such as 'nats://127.0.0.1:4222' or 'tls://user:password@host', with "
    "special characters of user and password percent-encoded: %2F for a slash, %2C for a comma, "
    "%40 for an @"
)
_SCHEMES: Final = frozenset({"nats", "tls", "ws", "wss", "http", "https", "tcp"})
_WORD: Final = re.compile(r"[^A-Za-z0-9.-]")
"""Ends the first word of an address."""
_JWT = re.compile(r"-----BEGIN NATS USER JWT-----\s*(\S+)\s*-+END NATS USER JWT-+")
_SEED = re.compile(r"^(SU[A-Z2-7]{20,})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a server, with the login of its URL. Its text shows no secret."""

    host: str
    port: int
    is_tls: bool
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    named_by: str = field(default="", repr=False, compare=False)
    """The host of the server that has named this one. Its TLS certificate is for that host, too."""

    @property
    def tls_name(self) -> str:
        """The name in the certificate of the server."""
        return self.named_by or self.host

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.is_tls else 'nats'}://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the server runs on this machine."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @classmethod
    def parse(cls, url: object) -> "ServerAddress":
        """Read a URL such as ``nats://user:password@host:4222``.

        Raises:
            BadInputError: it is no URL of a NATS server.
        """
        if not isinstance(url, str):
            raise BadInputError("urls", type(url), URL_WISH)
        try:
            parts = urlsplit(url if "://" in url else f"nats://{url}")
            port = parts.port or 4222
        except ValueError:
            raise _refusal(url) from None
        is_plain = not (parts.path.strip("/") or parts.query or parts.fragment)
        if parts.scheme not in ("nats", "tls") or not parts.hostname or not is_plain:
            raise _refusal(url)
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(parts.hostname, port, parts.scheme == "tls", user, password)

    def at(self, place: str) -> "ServerAddress | None":
        """The address of another server of the same cluster, which this server has named."""
        try:
            other = ServerAddress.parse(f"{'tls' if self.is_tls else 'nats'}://{place}")
        except BadInputError:
            return None
        login = (self.user, self.password, self.tls_name)
        return ServerAddress(other.host, other.port, self.is_tls, *login)


def without_login(url: str) -> str:
    """A URL as an error may show it: a usual scheme, and the address behind the last ``@``. Without
    an ``@`` only the first word: anything behind it may be a password whose URL is incomplete.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    shown = f"{scheme}://" if scheme in _SCHEMES else ""
    _, at, place = rest.rpartition("@")
    if at:
        return f"{shown}…@{place}"
    word = _WORD.split(place)[0]
    return f"{shown}{word}" if word == place else f"{shown}{word}…"


def _refusal(url: str) -> BadInputError:
    return BadInputError("urls", without_login(url), URL_WISH)


class Credentials:
    """The credentials in a file: an nkey seed, or a JWT with its seed (``.creds``)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise BadInputError("credentials", path, "the path of a .creds file or an nkey file")
        self._path = Path(path)

    def sign(self, nonce: str) -> dict[str, object]:
        """The fields of the login. The file is read each time: another program may renew it.

        Raises:
            NetworkError: the file is missing or malformed.
        """
        try:
            text = self._path.read_text("utf-8", "replace")
        except OSError as error:
            raise NetworkError(
                f"the credentials in {self._path} cannot be read: {error.strerror}"
            ) from None
        seed = _SEED.search(text)
        if seed is None:
            raise NetworkError(
                f"{self._path} contains no seed of a user, a line that begins with SU; give "
                "credentials= the .creds file of a user, or the file of its nkey"
            )
        keys = _nkeys()
        try:
            pair = keys.from_seed(bytearray(seed[1].encode()))
            signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).decode().rstrip("=")
            public = pair.public_key.decode()
        except Exception:
            # Without the exception: it may contain the seed.
            raise NetworkError(f"the seed in {self._path} is malformed") from None
        jwt = _JWT.search(text)
        if jwt is None:
            return {"nkey": public, "sig": signature}
        return {"jwt": jwt[1], "sig": signature}


def _nkeys() -> Any:
    try:
        return import_module("nkeys")  # an extra; it has no types
    except ModuleNotFoundError:
        raise NetworkError(
            "credentials need the package nkeys; install it with: pip install 'ergo_py[nats]'"
        ) from None
