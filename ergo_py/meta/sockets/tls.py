"""`TLSSession`: TLS over buffers in memory, so that a thread may decrypt its input while the loop
encrypts the output.

A blocking reader and a writer must not use a TLS object at the same time. So the object never
touches a socket: it works on two buffers under a lock. The lock is held only for the short steps of
encrypting and decrypting; blocking happens outside of it.
"""

import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ..._core.runtime.bridge import Lock
from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.public_names import show_public_names
from .messages import TLSFacts

__all__ = ["TLSContexts", "TLSSession", "TLSFiles"]

_RECORDS: Final = 256 * 1024
"""Bytes to encrypt or decrypt in a call of the library: 16 records of TLS. Not measured."""
_HEADER: Final = 5
"""Bytes of a record's header; the last two hold the length of the rest."""
Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """The files with the certificates. If a file changes, later connections use the new content.

    Args:
        certificate: the certificate of this side, and the chain that leads to its authority. A
            client may have none.
        key: the private key, if it is not in the same file.
        password: the password of an encrypted key.
        authorities: the authorities to trust for the other side's certificate. By default, a client
            trusts those of the system.
        require_certificate: for a server: clients must show a certificate (mutual TLS). The server
            gives out no session tickets then: a client could resume a session of one of the
            ``names`` at another name, where no certificate was checked. (A session of TLS 1.2 that
            is resumed without a ticket keeps the name at which it began.)
        names: for a server: other certificates, for other names that clients ask for (SNI).
            Settings that such an entry leaves out are those of the whole.
        alpn: protocols to offer, the best first. Two sides without a common protocol connect all
            the same, as Python's ``ssl`` does it: look at ``tls.alpn`` in ``TCP.Connected``, which
            is None then.
        revoked: the list of certificates that ``authorities`` have revoked (a CRL, as PEM). The
            certificate of the other side is refused if it is on the list, and also if its authority
            has no list in the file, or only an outdated one.
    """

    certificate: Path | None = None
    key: Path | None = None
    password: str | None = None
    authorities: Path | None = None
    require_certificate: bool = False
    names: Mapping[str, "TLSFiles"] = field(default_factory=dict)
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
                # OpenSSL decides this before it reads the name, and would let every client in.
                raise BadInputError(
                    f"TLSFiles(names[{name!r}], require_certificate)",
                    True,
                    "require_certificate for the whole server; a single name cannot have it alone",
                )

    def paths(self) -> Iterator[Path]:
        """The paths of all files."""
        yield from (
            path
            for path in (self.certificate, self.key, self.authorities, self.revoked)
            if path is not None
        )
        for other in self.names.values():
            yield from other.paths()

    def context(self, server_side: bool) -> ssl.SSLContext:
        """Read the files and make a context of them.

        Raises:
            OSError: a file cannot be read, or does not hold the right content.
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
            except OSError as error:
                raise _naming(error, self.authorities) from None
        elif not server_side:
            context.load_default_certs()
        if self.revoked is not None:
            self._load_revoked(context, self.revoked)
        if server_side and self.require_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
            # OpenSSL does not check the certificate again when a session is resumed, and every
            # context accepts the tickets of the others.
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
        except OSError as error:
            raise _naming(error, revoked) from None
        if context.cert_store_stats()["crl"] == before:
            raise ssl.SSLError(f"there is no list of revoked certificates in {revoked}, as PEM")
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF

    def _load_certificate(self, context: ssl.SSLContext, certificate: Path) -> None:
        key = certificate if self.key is None else self.key
        is_encrypted = False

        def password() -> str:
            # Without this function, OpenSSL would ask for the password at the terminal, and the
            # whole node would wait for the answer.
            nonlocal is_encrypted
            is_encrypted = True
            return self.password or ""

        try:
            context.load_cert_chain(certificate, self.key, password)
        except ssl.SSLError as error:
            if is_encrypted:
                fault = "wrong" if self.password else "missing"
                text = f"the key in {key} is encrypted, and TLSFiles(password=…) is {fault}"
            elif error.reason == "KEY_VALUES_MISMATCH":
                text = f"the key in {key} does not belong to the certificate in {certificate}"
            else:
                text = f"there is no certificate in {certificate}, or no key in {key}, both as PEM"
            raise ssl.SSLError(error.errno, text) from error
        except OSError as error:
            raise _naming(error, certificate, key) from None


class TLSContexts:
    """Makes the TLS context of the next connection, and reads changed files again."""

    def __init__(self, tls: ssl.SSLContext | TLSFiles | bool, server_side: bool) -> None:
        """Read the files, if there are any.

        Raises:
            OSError: a file cannot be read, or does not hold the right content.
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

    def reload(self) -> None:
        """Read the files now, also those that seem to be the same; keep the old context if that
        fails.

        Raises:
            OSError: a file cannot be read, or does not hold the right content.
        """
        files = self._files
        if files is not None:
            self._refused = stamp = _stamp(files)
            self._context = self._read(files)
            self._stamp = stamp

    def current(self, failed: Callable[[Exception], object]) -> ssl.SSLContext:
        """The context to use now. Read files that have changed; if that fails, keep the old context
        and call ``failed``.
        """
        files = self._files
        if files is not None:
            try:
                stamp = _stamp(files)
                if stamp not in (self._stamp, self._refused):
                    # Note this version first: if reading fails, it is not tried again until the
                    # files change once more.
                    self._refused = stamp
                    self._context = self._read(files)
                    self._stamp = stamp
            except (OSError, ValueError) as error:
                # Report the same failure only once, not for every connection.
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
            for each in (context, *others.values()):
                each.sni_callback = self._choose
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
    """Changes with the content of the files, and with who may read them: a program that renews
    certificates perhaps writes a key first, and gives it to the user of the server later.
    """
    return [
        (
            *(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino),
            *(status.st_mode, status.st_uid, status.st_gid),
        )
        for status in map(os.stat, files.paths())
    ]


def _naming(error: OSError, *paths: Path) -> OSError:
    """The error with the paths, one of which cannot be read: OpenSSL does not say which."""
    names = " or ".join(dict.fromkeys(map(str, paths)))
    return OSError(error.errno, f"{error.strerror}: {names}")


class _Records:
    """Finds out whether a TLS stream ends inside a record: each header holds the length."""

    __slots__ = ("_head", "_left")

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    @property
    def unfinished(self) -> bool:
        return self._left > 0 or bool(self._head)

    def reset(self) -> None:
        """Note that a record has just ended."""
        self._head, self._left = b"", 0

    def walk(self, data: bytes) -> None:
        """Follow the headers through the bytes that came next."""
        stream = self._head + data
        begin, have = self._left, len(stream)
        while begin + _HEADER <= have:
            begin += _HEADER + int.from_bytes(stream[begin + 3 : begin + _HEADER], "big")
        self._left = max(0, begin - have)
        self._head = stream[begin:]


class TLSSession:
    """One side of a TLS connection. Its methods are quick, and any thread may use them.

    Call :meth:`take` in a single place only, so that records leave in the order they were made.
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
        self.ready: bool = False
        """Whether the handshake is done."""

    def handshake(self, data: bytes) -> bool:
        """Continue the handshake with the bytes that were read. True when it is done.

        Raises:
            ssl.SSLError: the handshake failed. There may still be output to send: an alert that
            tells the other side why.
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
        """Encrypted bytes that came together with the end of the handshake. Pass them to
        :meth:`decrypt`; they are returned only once.
        """
        rest, self._rest = self._rest, b""
        return rest

    @property
    def unfinished(self) -> bool:
        """Whether a record has begun that is not complete."""
        return self._record.unfinished

    def facts(self) -> TLSFacts:
        """The facts that both sides agreed on."""
        cipher = self._object.cipher()
        name = (
            getattr(self._object, _ASKED, None)
            if self._server_side
            else self._object.server_hostname
        )
        certificate = self._object.getpeercert() or {}
        return TLSFacts(
            version=self._object.version() or "",
            cipher=cipher[0] if cipher else "",
            server_name=name,
            alpn=self._object.selected_alpn_protocol(),
            peer_certificate=certificate,
        )

    def decrypt(self, data: bytes) -> tuple[bytes, bool, ssl.SSLError | None]:
        """Decrypt. Returns the clear text, whether the other side has announced its end
        (``close_notify``), and the error in the rest, if any.
        """
        clear: list[bytes] = []
        with self._lock:
            if data:
                self._incoming.write(data)
            try:
                # Asking first is cheaper than an exception, which would end nearly every read.
                while self._incoming.pending or self._object.pending():
                    some = self._object.read(_RECORDS)
                    if not some:
                        return b"".join(clear), True, None
                    clear.append(some)
                self._record.reset()
            except ssl.SSLWantReadError:
                # The rest of a record is still on its way, or the last record held no data for us.
                self._record.walk(data)
            except ssl.SSLZeroReturnError:
                return b"".join(clear), True, None
            except ssl.SSLError as error:
                return b"".join(clear), False, error
        return b"".join(clear) if len(clear) != 1 else clear[0], False, None

    def encrypt(self, data: bytes) -> bool:
        """Encrypt. False if the other side must be read first; nothing has happened then.

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
        """Whether there is output to take."""
        return self._outgoing.pending > 0

    def take(self) -> bytes:
        """The bytes to send now."""
        with self._lock:
            return self._outgoing.read()

    def say_goodbye(self) -> None:
        """Encrypt ``close_notify``, the notice that no more data follows."""
        with self._lock:
            try:
                self._object.unwrap()
            except (
                ssl.SSLError,
                ValueError,
            ):  # the other side has not sent its close_notify, or there is no session to end
                pass


show_public_names(__name__)
