"""TLS over bytes in memory: a thread may decrypt what it read while the loop encrypts what it
sends.

One TLS object must not be used by a blocking reader and a writer at once. So it never touches a
socket: it works on two buffers, under a lock that is held for the short steps of encrypting and
decrypting only, and blocking is done outside of it.
"""

import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..._core.runtime.bridge import Lock
from ..._core.vocabulary.errors import BadInputError
from .messages import TLSFacts

__all__ = ["Contexts", "Secure", "TLSFiles"]

_RECORDS: Final = 256 * 1024
_HEADER: Final = 5
"""Bytes of the header of a record; the last two say how many follow."""
Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """Where certificates are. Files that change are read again for the connections that come after
    that.

    Args:
        certificate: the certificate of this side and those that lead to its authority; a client may
            have none.
        key: its private key, if that is not in the same file.
        password: for an encrypted key.
        authorities: whom to trust for the other side's certificate; by default, for a client, whom
            the system trusts.
        require_certificate: for a server: clients must show a certificate (mutual TLS). No tickets
            are given out then: a session that began at one of the ``names`` would be resumed at the
            others, where nobody looked at the certificate. (A session of TLS 1.2 that is resumed
            without a ticket keeps the name at which it began.)
        names: for a server: other certificates for other names that clients ask for. What they do
            not say is as for the whole.
        alpn: protocols to offer, the best first. Two sides that have none in common connect all the
            same, which is how Python's ``ssl`` does it: look at ``tls.alpn`` in ``TCPConnected``,
            which is None then.
        revoked: the list of certificates that ``authorities`` have revoked (a CRL, as PEM). The
            certificate of the other side is refused if it is on the list, and also if its authority
            has no list in the file, or one that is out of date.
    """

    certificate: Path | None = None
    key: Path | None = None
    password: str | None = None
    authorities: Path | None = None
    require_certificate: bool = False
    names: "Mapping[str, TLSFiles]" = field(default_factory=dict)
    alpn: tuple[str, ...] = ()
    revoked: Path | None = None

    def __post_init__(self) -> None:
        if self.require_certificate and self.authorities is None:
            raise BadInputError(
                "TLSFiles(require_certificate)",
                True,
                "True together with authorities to check against",
            )
        if self.revoked is not None and self.authorities is None:
            raise BadInputError(
                "TLSFiles(revoked)",
                self.revoked,
                "a list together with the authorities that made it",
            )
        if self.key is not None and self.certificate is None:
            raise BadInputError("TLSFiles(key)", self.key, "a key together with its certificate")
        for name, other in self.names.items():
            if not isinstance(other, TLSFiles) or other.certificate is None or other.names:
                raise BadInputError(
                    f"TLSFiles(names[{name!r}])",
                    other,
                    "a TLSFiles with a certificate, and no names",
                )
            if other.require_certificate and not self.require_certificate:
                # OpenSSL settles this before it hears the name, and would let everybody in.
                raise BadInputError(
                    f"TLSFiles(names[{name!r}], require_certificate)",
                    True,
                    "require_certificate for the whole server; it cannot be for one of its names "
                    "alone",
                )

    def paths(self) -> Iterator[Path]:
        """All files it speaks of."""
        yield from (
            path
            for path in (self.certificate, self.key, self.authorities, self.revoked)
            if path is not None
        )
        for other in self.names.values():
            yield from other.paths()

    def context(self, server_side: bool) -> ssl.SSLContext:
        """Read the files.

        Raises:
            OSError: one cannot be read, or is not what it should be.
        """
        context = ssl.SSLContext(
            ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT
        )
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        if self.certificate is not None:
            self._load_certificate(context, self.certificate)
        if self.authorities is not None:
            try:
                context.load_verify_locations(self.authorities)
            except ssl.SSLError as error:
                raise ssl.SSLError(
                    error.errno, f"there are no certificates in {self.authorities}, as PEM"
                ) from error
        elif not server_side:
            context.load_default_certs()
        if self.revoked is not None:
            self._load_revoked(context, self.revoked)
        if server_side and self.require_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
            # OpenSSL does not look at the certificate again where a session is resumed, and all
            # contexts take each other's tickets.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        if self.alpn:
            context.set_alpn_protocols(self.alpn)
        return context

    def _load_revoked(self, context: ssl.SSLContext, revoked: Path) -> None:
        before = context.cert_store_stats()["crl"]
        try:
            context.load_verify_locations(revoked)
        except ssl.SSLError as error:
            raise ssl.SSLError(
                error.errno, f"there is no list of revoked certificates in {revoked}, as PEM"
            ) from error
        if context.cert_store_stats()["crl"] == before:
            raise ssl.SSLError(f"there is no list of revoked certificates in {revoked}, as PEM")
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF

    def _load_certificate(self, context: ssl.SSLContext, certificate: Path) -> None:
        key = certificate if self.key is None else self.key
        is_encrypted = False

        def password() -> str:
            # Without this, OpenSSL would ask for it at the terminal, and the whole node would wait
            # for the answer.
            nonlocal is_encrypted
            is_encrypted = True
            return self.password or ""

        try:
            context.load_cert_chain(certificate, self.key, password)
        except ssl.SSLError as error:
            if is_encrypted:
                text = f"the key in {key} is encrypted, and TLSFiles(password=…) is {'wrong' if self.password else 'missing'}"
            elif error.reason == "KEY_VALUES_MISMATCH":
                text = f"the key in {key} does not belong to the certificate in {certificate}"
            else:
                text = f"there is no certificate in {certificate}, or no key in {key}, both as PEM"
            raise ssl.SSLError(error.errno, text) from error


class Contexts:
    """The context for the next connection."""

    def __init__(self, tls: ssl.SSLContext | TLSFiles | bool, server_side: bool) -> None:
        """Read the files, if there are any.

        Raises:
            OSError: one cannot be read, or is not what it should be.
        """
        self._files = tls if isinstance(tls, TLSFiles) else None
        self._server_side = server_side
        self._stamp: object = None
        self._refused: object = None
        self._complaint = ""
        self._others: dict[str, ssl.SSLContext] = {}
        if isinstance(tls, ssl.SSLContext):
            self._context = tls
        elif isinstance(tls, TLSFiles):
            self._stamp = _stamp(tls)
            self._context = self._read(tls)
        elif server_side:
            raise BadInputError(
                "tls", tls, "an ssl.SSLContext or TLSFiles(certificate, key) for a server"
            )
        else:
            self._context = ssl.create_default_context()

    def current(self, failed: Callable[[Exception], object]) -> ssl.SSLContext:
        """The context to use now. Files that have changed are read; if that fails, what was read
        before stays in use.
        """
        files = self._files
        if files is not None:
            try:
                stamp = _stamp(files)
                if stamp not in (self._stamp, self._refused):
                    # If this fails they are left alone until they change once more.
                    self._refused = stamp
                    self._context = self._read(files)
                    self._stamp = stamp
            except (OSError, ValueError) as error:
                # Said once, and not for every connection.
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    failed(error)
            else:
                self._complaint = ""
        return self._context

    def _read(self, files: TLSFiles) -> ssl.SSLContext:
        others = {
            name.lower(): replace(
                other,
                authorities=other.authorities or files.authorities,
                revoked=other.revoked or (None if other.authorities else files.revoked),
                require_certificate=files.require_certificate,
                alpn=other.alpn or files.alpn,
            ).context(self._server_side)
            for name, other in files.names.items()
        }
        context = files.context(self._server_side)
        if self._server_side:
            for one in (context, *others.values()):
                one.sni_callback = self._choose
        self._others = others
        return context

    def _choose(
        self, secured: ssl.SSLObject | ssl.SSLSocket, name: str | None, _context: ssl.SSLContext
    ) -> None:
        setattr(secured, _ASKED, name)
        other = self._others.get((name or "").lower())
        if other is not None:
            secured.context = other


_ASKED: Final = "_name_asked_for"


def _stamp(files: TLSFiles) -> object:
    return [
        (status.st_mtime_ns, status.st_size, status.st_ino)
        for status in map(os.stat, files.paths())
    ]


class _Records:
    """Finds out whether a stream of TLS records ends inside of one: their headers say how long they
    are.
    """

    __slots__ = ("_head", "_left")

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    @property
    def unfinished(self) -> bool:
        return self._left > 0 or bool(self._head)

    def reset(self) -> None:
        """A record has just ended."""
        self._head, self._left = b"", 0

    def walk(self, data: bytes) -> None:
        """Take what followed."""
        stream = self._head + data
        begin, have = self._left, len(stream)
        while begin + _HEADER <= have:
            begin += _HEADER + int.from_bytes(stream[begin + 3 : begin + _HEADER], "big")
        self._left = max(0, begin - have)
        self._head = stream[begin:]


class Secure:
    """One side of one TLS connection. Its methods are quick and may be used from any thread.

    What is to be sent must be taken with :meth:`take` in one place only, so that records leave in
    the order they were made.
    """

    def __init__(
        self, context: ssl.SSLContext, server_side: bool, server_name: str | None = None
    ) -> None:
        self._lock = Lock()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side, server_name)
        self._server_side = server_side
        self._rest = b""
        self._record = _Records()
        self.ready = False
        """The handshake is done."""

    def handshake(self, data: bytes) -> bool:
        """Go on with the handshake, with what was read. True when it is done.

        Raises:
            ssl.SSLError: it failed. There may be something to send all the same: the other side
                should know why.
        """
        with self._lock:
            if data:
                self._incoming.write(data)
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                return False
            self.ready = True
            self._rest = self._incoming.read()
            return True

    def take_rest(self) -> bytes:
        """What came along with the end of the handshake, still encrypted. It is for
        :meth:`decrypt`, and given away once.
        """
        rest, self._rest = self._rest, b""
        return rest

    @property
    def unfinished(self) -> bool:
        """Whether a record has begun that is not complete."""
        return self._record.unfinished

    def facts(self) -> TLSFacts:
        """What was agreed on."""
        cipher = self._object.cipher()
        name = (
            getattr(self._object, _ASKED, None)
            if self._server_side
            else self._object.server_hostname
        )
        certificate: Any = self._object.getpeercert() or {}
        return TLSFacts(
            version=self._object.version() or "",
            cipher=cipher[0] if cipher else "",
            server_name=name,
            alpn=self._object.selected_alpn_protocol(),
            peer_certificate=certificate,
        )

    def decrypt(self, data: bytes) -> tuple[bytes, bool, ssl.SSLError | None]:
        """What was read, in clear; whether the other side has said that no more comes; and what is
        wrong with the rest.
        """
        clear: list[bytes] = []
        with self._lock:
            if data:
                self._incoming.write(data)
            try:
                # An exception costs more than these questions, and would end nearly every read.
                while self._incoming.pending or self._object.pending():
                    some = self._object.read(_RECORDS)
                    if not some:
                        return b"".join(clear), True, None
                    clear.append(some)
                self._record.reset()
            except ssl.SSLWantReadError:
                # The rest of a record is still on its way; or there was nothing for us in the last
                # one.
                self._record.walk(data)
            except ssl.SSLZeroReturnError:
                return b"".join(clear), True, None
            except ssl.SSLError as error:
                return b"".join(clear), False, error
        return b"".join(clear) if len(clear) != 1 else clear[0], False, None

    def encrypt(self, data: bytes) -> bool:
        """Encrypt. False if the other side must be read first; then nothing has happened.

        Raises:
            ssl.SSLError: the connection is broken.
        """
        with self._lock, memoryview(data) as view:
            begin = 0
            while begin < len(view):
                try:
                    begin += self._object.write(view[begin : begin + _RECORDS])
                except ssl.SSLWantReadError:
                    if begin:
                        raise
                    return False
        return True

    @property
    def has_output(self) -> bool:
        """Whether there is something to take."""
        return self._outgoing.pending > 0

    def take(self) -> bytes:
        """What is to be sent now."""
        with self._lock:
            return self._outgoing.read()

    def say_goodbye(self) -> None:
        """Encrypt the notice that no more comes."""
        with self._lock:
            try:
                self._object.unwrap()
            except (
                ssl.SSLError,
                ValueError,
            ):  # it has not heard the other side's goodbye, or there is nothing to end
                pass
