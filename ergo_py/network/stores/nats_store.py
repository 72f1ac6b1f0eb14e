"""`NatsStore`: the store of a network over NATS: a bucket of JetStream's key-value store.

The bucket is made on first use, with three replicas where the servers allow it. A removed entry
leaves a marker that the server drops after an hour. An entry begins with its number, which its
writer takes from the clock: the sequence of a bucket that is restored from a backup begins again at
an old value. The revision of an entry is its sequence, since the server compares sequences.
"""

import json
import re
import time
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from datetime import datetime
from math import inf
from typing import Any, Final, Protocol

import trio

from ..errors import StoreError
from .seen_revisions import SeenRevisions
from .store import LARGEST, TIMEOUT, Age, ConflictError, Entry

__all__ = ["NatsStore", "Publisher", "bucket_of", "subjects_of_store"]

_NO_RESPONDERS: Final = 503
_NOT_FOUND: Final = 404
_WRONG_SEQUENCE: Final = 10071
_FEW_SERVERS: Final = (10005, 10074)
"""Errors of a server that cannot place three replicas."""
_EXISTS: Final = 10058
# Not measured: far longer than the usual lease of 30 s, after which no node relies on the removed
# entry.
_MARKER: Final = "3600s"
"""How long the server keeps the marker of a removed entry."""
_NUMBER: Final = 20
"""Digits of the number at the beginning of an entry."""
_LOSS: Final = "=loss"
"""The key of the message that tells all nodes of a loss. No name is encoded so."""
_MESSAGE: Final = 4 << 10
"""The most bytes of an entry: the names of a process and of its node, and 200 bytes."""
_BUCKET: Final = 64 << 20
"""The most bytes of the bucket: some 200,000 names."""
_NANOSECONDS: Final = re.compile(r"(\.\d{6})\d+")


class Publisher(Protocol):
    """The client of NATS."""

    def publish(
        self, subject: str, reply: str, payload: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish a message, or drop it if the client is not connected."""


def bucket_of(cluster: str) -> str:
    """The name of the bucket of a cluster. Names of buckets have letters, digits, _ and - only."""
    return "ergo-" + _encoded(cluster, "_")


def subjects_of_store(cluster: str, may_create: bool) -> list[str]:
    """The subjects that a node publishes to. A node that may create the bucket chooses the subjects
    that the bucket keeps and publishes again: it can read and send the messages of all nodes.
    """
    bucket = bucket_of(cluster)
    verbs = ("INFO", "MSG.GET", *(("CREATE",) if may_create else ()))
    return [*(f"$JS.API.STREAM.{verb}.KV_{bucket}" for verb in verbs), f"$KV.{bucket}.>"]


def _encoded(name: str, escape: str) -> str:
    return re.sub(
        r"[^A-Za-z0-9-]", lambda found: "".join(f"{escape}{b:02x}" for b in found[0].encode()), name
    )


class NatsStore:
    """The table, as a single node sees it. Answers of the server arrive at :meth:`receive`."""

    def __init__(
        self,
        client: Publisher,
        cluster: str,
        inbox: str,
        warn: Callable[[str], None],
        fresh: Callable[[], int],
    ) -> None:
        """``fresh`` returns numbers of 128 bits that nobody can guess."""
        self._client = client
        self._bucket = bucket_of(cluster)
        self._stream = f"KV_{self._bucket}"
        self._inbox = inbox
        self._warn = warn
        self._fresh = fresh
        self._answers: dict[str, _Answer] = {}
        self._is_open = False
        self._seen = SeenRevisions(time.time_ns)
        self._created: object = None
        """When the bucket was made, on the clock of its server, as the server writes it."""
        self._is_loss_told = True

    # -- entries -----------------------------------------------------------------------------------

    async def get(self, key: str) -> Entry | None:
        """As :meth:`Store.get`."""
        await self._open()
        expected = self._seen.expect(key)
        message = await self._message(self._subject(key))
        found = None if message is None else _entry(message)
        if self._seen.shows_loss(key, found, expected):
            await self._note_loss()
        return found

    async def _message(self, subject: str) -> dict[str, Any] | None:
        """The last message of a subject."""
        answer = await self._ask(
            f"$JS.API.STREAM.MSG.GET.{self._stream}", {"last_by_subj": subject}
        )
        if "error" in answer:
            if answer["error"].get("code") == _NOT_FOUND:
                # The same code stands for a missing key and for a missing bucket. The second must
                # not read as a free name: the leases in the bucket are lost, and a new bucket waits
                # for a lease.
                if answer["error"].get("err_code") != 10037:  # not "no message found"
                    self._is_open = False
                    raise StoreError(f"the bucket {self._bucket!r} is gone; it is made again")
                return None
            raise self._refusal(answer)
        message = answer.get("message")
        if not isinstance(message, dict):
            raise StoreError("the server's answer about an entry is malformed")
        return message

    async def put(self, key: str, value: bytes, revision: int) -> Entry:
        """As :meth:`Store.put`."""
        return await self._write(key, value, revision, {})

    async def delete(self, key: str, revision: int) -> None:
        """As :meth:`Store.delete`."""
        await self._write(key, b"", revision, {"KV-Operation": "DEL", "Nats-TTL": _MARKER})

    async def _write(self, key: str, value: bytes, revision: int, headers: dict[str, str]) -> Entry:
        await self._open()
        expected, number = self._seen.expect(), self._seen.next_number()
        answer = await self._publish(
            self._subject(key),
            b"%0*d%b" % (_NUMBER, number, value),
            {"Nats-Expected-Last-Subject-Sequence": str(revision), **headers},
        )
        # Also if an earlier try of the same write was carried out and its answer lost: the caller
        # has to read the entry.
        if answer.get("error", {}).get("err_code") == _WRONG_SEQUENCE:
            raise ConflictError(key)
        if "error" in answer:
            raise self._refusal(answer)
        written = Entry(value, _sequence(answer.get("seq", 0)), number)
        if self._seen.shows_lost_writes(key, written, expected):
            await self._note_loss()
        return written

    def _subject(self, key: str) -> str:
        return f"$KV.{self._bucket}.{_encoded(key, '=')}"

    async def age(self) -> Age:
        """As :meth:`Store.age`."""
        self._is_open = False  # another node may have made it again
        info = await self._open()
        if not self._is_loss_told:
            await self._tell_loss()
        told = await self._message(f"$KV.{self._bucket}.{_LOSS}")
        whole = inf if told is None else _seconds(told.get("time"), info.get("ts"))
        return Age(
            0.0 if info.get("did_create") else _seconds(info.get("created"), info.get("ts")),
            min(whole, trio.current_time() - self._seen.lost_at),
        )

    # -- losses ------------------------------------------------------------------------------------

    def reconnected(self) -> None:
        """The client is connected again: perhaps to a server with an older copy of the bucket."""
        self._is_open = False

    async def _note_loss(self) -> None:
        """The bucket shows less than before: it is a new bucket, or an older copy."""
        before = self._created, self._seen.lost_at
        self._is_open = False
        await self._open()
        if (self._created, self._seen.lost_at) == before:
            await self._distrust()

    async def _distrust(self) -> None:
        self._seen.note_loss(trio.current_time())
        self._warn(
            "the store of names has lost confirmed writes, as a server does that was restored from "
            "a backup, or had a power failure without `sync_interval: always`: free names wait for "
            "a lease"
        )
        self._is_loss_told = False
        await self._tell_loss()

    async def _tell_loss(self) -> None:
        """Tell the other nodes, also those that have not seen the bucket before."""
        answer = await self._publish(f"$KV.{self._bucket}.{_LOSS}", self._inbox.encode(), {})
        self._is_loss_told = "error" not in answer

    def is_gone(self, _node: str, _creation: int) -> bool:
        """As :meth:`Store.is_gone`. A server does not know: a node may only be disconnected."""
        return False

    # -- the bucket --------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """The status of the bucket, as JetStream tells it.

        Raises:
            StoreError: JetStream cannot be reached.
        """
        return await self._ask(f"$JS.API.STREAM.INFO.{self._stream}", {})

    async def _open(self) -> dict[str, Any]:
        """Look at the bucket, unless nothing has happened since the last look, or make it."""
        if self._is_open:
            return {}
        expected = self._seen.expect()
        info = await self.status()
        if info.get("error", {}).get("code") == _NOT_FOUND:
            info = await self._make()
        if "error" in info:
            raise self._refusal(info)
        if info.get("created") != self._created:  # another bucket than before
            self._created = info.get("created")
            self._seen.forget()
        self._is_open = True
        if self._seen.shows_less(_last_sequence(info), expected):
            await self._distrust()
        return info

    async def _make(self) -> dict[str, Any]:
        try:
            # Three servers first: a single server answers at once that it cannot, and a cluster
            # must not begin with a single copy.
            info = await self._create(3)
        except StoreError as error:
            raise StoreError(
                f"the bucket {self._bucket!r} does not exist, and this node cannot make it: "
                f"{error}. The node that is listed first there makes the bucket when it first "
                "uses a name"
            ) from None
        if info.get("error", {}).get("err_code") in _FEW_SERVERS:
            info = await self._create(1)
            if "error" not in info:
                self._warn(
                    "the names of this cluster have a single server: while it is down no name "
                    "is found, and a singleton ends; three servers allow the loss of one"
                )
        if info.get("error", {}).get("err_code") == _EXISTS:  # another node was faster
            info = await self.status()
        return info

    async def _create(self, replicas: int) -> dict[str, Any]:
        return await self._ask(
            f"$JS.API.STREAM.CREATE.{self._stream}",
            {
                "name": self._stream,
                "description": "leases of the names of a cluster of ergo_py nodes",
                "subjects": [f"$KV.{self._bucket}.>"],
                "retention": "limits",
                # The last entry of a key only: the bucket would grow with each renewal otherwise.
                # "discard": "new" refuses a write to a full bucket, where "old" would drop the
                # lease of another name.
                "max_msgs_per_subject": 1,
                "max_msg_size": _MESSAGE,
                "max_bytes": _BUCKET,
                "discard": "new",
                "storage": "file",
                "num_replicas": replicas,
                # A new bucket uses no sequence of an earlier bucket: a program that was stopped may
                # still write with such a sequence.
                "first_seq": time.time_ns(),
                "allow_rollup_hdrs": False,
                "allow_direct": True,
                "allow_msg_ttl": True,
                # A node that may write must not remove a message: an entry changes by
                # compare-and-set only.
                "deny_delete": True,
                "deny_purge": True,
            },
        )

    # -- requests ----------------------------------------------------------------------------------

    async def _ask(self, subject: str, question: dict[str, object]) -> dict[str, Any]:
        verb = subject.removeprefix("$JS.API.").rpartition(".")[0]
        kind = f"io.nats.jetstream.api.v1.{verb.replace('.', '_').lower()}_response"
        payload = json.dumps(question).encode() if question else b""
        return await self._request(subject, payload, {}, ("type", kind))

    async def _publish(
        self, subject: str, payload: bytes, headers: dict[str, str]
    ) -> dict[str, Any]:
        return await self._request(subject, payload, headers, ("stream", self._stream))

    async def _request(
        self, subject: str, payload: bytes, headers: dict[str, str], mark: tuple[str, str]
    ) -> dict[str, Any]:
        """Ask JetStream. ``mark`` is a field that each answer to this request has."""
        # No other node can guess the number, and so let a server send another answer to it.
        number = f"{self._fresh():032x}"
        answer = self._answers[number] = _Answer(subject)
        try:
            self._client.publish(subject, f"{self._inbox}.{number}", payload, headers)
            with trio.move_on_after(TIMEOUT):
                await answer.arrived.wait()
        finally:
            # Also if the wait is cancelled: a late answer finds no entry, and is dropped.
            del self._answers[number]
        if not answer.arrived.is_set():
            raise StoreError(f"JetStream does not answer within {TIMEOUT:g} s")
        if answer.refusal:
            raise StoreError(
                f"the NATS server refuses: {answer.refusal}; `ergo nats permissions` prints the "
                "permissions of nodes"
            )
        if answer.status == _NO_RESPONDERS:
            raise StoreError(
                "JetStream is off at the NATS server, or has no leader now; names and singletons "
                "need it: start the server with `nats-server --jetstream`"
            )
        try:
            values = json.loads(answer.payload)
        except (ValueError, RecursionError):
            values = None
        if (
            not isinstance(values, dict)
            # Any node can let JetStream answer to this inbox: an answer of another type, or of
            # another stream, is none to this request. An error may lack the mark.
            or values.get(mark[0], mark[1] if "error" in values else "") != mark[1]
            or not isinstance(values.get("error", {}), dict)
        ):
            raise StoreError("the answer of JetStream is malformed")
        return values

    def receive(self, number: str, status: int, payload: bytes) -> None:
        """Take an answer of the server."""
        answer = self._answers.get(number)
        if answer is not None:
            answer.set(status, payload)

    def refuse(self, text: str) -> None:
        """The server does not permit this node to publish to the subject that the text names."""
        for answer in self._answers.values():
            if f'"{answer.subject}"' in text:
                answer.refuse(text)

    def _refusal(self, answer: dict[str, Any]) -> StoreError:
        error = answer["error"]
        return StoreError(
            f"JetStream refuses: {error.get('description', 'no reason')!s:.500} "
            f"(code {error.get('err_code', error.get('code', 0))!s:.20})"
        )


class _Answer:
    """An answer that is awaited."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.arrived = trio.Event()
        self.status = 0
        self.payload = b""
        self.refusal = ""

    def set(self, status: int, payload: bytes) -> None:
        """Take the answer."""
        self.status, self.payload = status, payload
        self.arrived.set()

    def refuse(self, text: str) -> None:
        """Take the refusal of the server."""
        self.refusal = text
        self.arrived.set()


def _entry(message: dict[str, Any]) -> Entry:
    """The entry in a message of the bucket. Entries of version 0.1.0 have no number: theirs is the
    sequence.

    Raises:
        StoreError: the message is malformed.
    """
    try:
        data = b64decode(message.get("data", ""))
    except (TypeError, ValueError, AttributeError, Base64Error):
        raise StoreError("the server's answer about an entry is malformed") from None
    sequence = _sequence(message.get("seq"))
    digits = data[:_NUMBER]
    if len(digits) == _NUMBER and digits.isdigit() and int(digits) <= LARGEST:
        return Entry(data[_NUMBER:], sequence, int(digits))
    return Entry(data, sequence, sequence)


def _sequence(value: object) -> int:
    """The sequence of a message, as a server tells it.

    Raises:
        StoreError: the value is none.
    """
    if type(value) is int and 0 <= value <= LARGEST:
        return value
    raise StoreError(
        f"the server's answer about an entry is malformed: its sequence is {value!r:.40}"
    )


def _last_sequence(info: dict[str, Any]) -> int:
    state = info.get("state")
    last = state.get("last_seq") if isinstance(state, dict) else None
    return last if isinstance(last, int) else 0


def _seconds(start: object, end: object) -> float:
    """The time between two moments on the clock of a server, as the server writes them; 0.0 if they
    are unreadable.
    """
    try:
        first, last = (
            datetime.fromisoformat(_NANOSECONDS.sub(r"\1", str(moment))) for moment in (start, end)
        )
        return max(0.0, (last - first).total_seconds())
    except (TypeError, ValueError):
        return 0.0
