"""Fuzzing targets for the stores of names: files, answers of a server, and the entries in both."""

import json
import tempfile
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Final

import trio
from hypothesis import strategies as st

from benchmarks.targets.control import JSON
from benchmarks.targets.target import Target
from ergo_py.cluster.lease import Holder
from ergo_py.network.errors import StoreError
from ergo_py.network.stores.local_store import LocalStore
from ergo_py.network.stores.nats_store import NatsStore
from ergo_py.network.stores.store import LARGEST, ConflictError, Entry, Store

__all__ = ["TARGETS"]

_KEY: Final = "k"
_STREAM: Final = "KV_ergo-fuzz"


def store_holder(data: bytes) -> str:
    """The value of an entry."""
    holder = Holder.decode(data, 5.0)
    assert 0.0 <= holder.lease < float("inf"), "a lease without an end"
    assert Holder.decode(holder.encode(), 5.0) == holder, "no round trip"
    if holder.node == "unknown":
        return "unknown"
    return f"at {type(holder.address).__name__}"


async def _use(store: Store) -> list[str]:
    """Use a store in all ways: an entry is read or refused, and nothing else happens."""
    found: Entry | None = None

    async def get() -> object:
        nonlocal found
        found = await store.get(_KEY)
        if found is None:
            return "missing"
        holder = Holder.decode(found.value, 5.0)
        store.is_gone(holder.node, holder.creation)
        assert found.number <= LARGEST, "a number that databases do not take"
        return "found" if holder.node == "unknown" else "held"

    async def put() -> object:
        written = await store.put(_KEY, b"value", 0 if found is None else found.revision)
        assert written.number <= LARGEST, "a number that databases do not take"
        return "written"

    async def age() -> object:
        age = await store.age()
        assert age.made >= 0.0
        assert age.whole >= 0.0
        return "old"

    return [await _outcome(step) for step in (get, put, get, age)]


async def _outcome(step: Callable[[], Awaitable[object]]) -> str:
    try:
        return str(await step())
    except ConflictError:
        return "conflict"
    except StoreError as error:
        text = str(error)
    assert len(text) < 2000, "the text of an error is not bounded"
    return "refused"


def local_store(data: bytes) -> str:
    """The files of a store: a line for the age, a line for the last revision, then the entry."""
    lines = data.split(b"\n", 2)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "names").mkdir()
        for name, content in zip((".born", ".last", f"={_KEY}"), lines, strict=False):
            (place / "names" / name).write_bytes(content)
        store = LocalStore(place, "fuzz@x", 1)
        try:
            return " ".join(trio.run(_use, store))
        finally:
            store.close()


class _Server:
    """Answers each request with the next line. An ``@`` stands for the mark of the answer."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = cycle(lines)
        self.store: NatsStore | None = None

    def publish(
        self,
        subject: str,
        reply: str,
        payload: bytes,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take a request."""
        verb = subject.removeprefix("$JS.API.").rpartition(".")[0].replace(".", "_").lower()
        is_question = subject.startswith("$JS.API.")
        mark = f"io.nats.jetstream.api.v1.{verb}_response" if is_question else _STREAM
        assert self.store is not None
        self.store.receive(
            reply.rpartition(".")[2], 0, next(self._lines).replace(b"@", mark.encode())
        )


def nats_store(data: bytes) -> str:
    """The answers of a server, a line for each."""
    server = _Server(data.split(b"\n"))
    server.store = NatsStore(server, "fuzz", "inbox", lambda _text: None, lambda: 1)
    return " ".join(trio.run(_use, server.store))


_NUMBERS = st.integers(0, 10) | st.sampled_from([LARGEST, LARGEST + 1, 1e400, -1]) | JSON
_HOLDERS = st.fixed_dictionaries(
    {},
    optional={
        "node": st.sampled_from(["a@x", "\ud800", "../..", "\x00"]) | JSON,
        "creation": _NUMBERS,
        "number": _NUMBERS,
        "registered": st.just("") | JSON,
        "lease": st.just(5.0) | _NUMBERS,
        "token": _NUMBERS,
        "began": _NUMBERS,
    },
).map(lambda values: json.dumps(values).encode())
_FULL_HOLDER = Holder("a@x", 1, 2, "", 5.0, 3).encode()
_REVISIONS = st.sampled_from((b"0" * 19 + b"7", b"9" * 20, b"-1", b"", b" 1_0", b"9" * 40))
_FILES = st.builds(
    lambda born, last, revision, value: b"\n".join((born, last, revision + value)),
    st.sampled_from((b"", b" -inf", b"x 1", b" nan", b"\xff")),
    _REVISIONS,
    _REVISIONS,
    _HOLDERS | st.sampled_from((b"", _FULL_HOLDER)),
)
_ERRORS = st.fixed_dictionaries(
    {},
    optional={
        "code": st.sampled_from([404, 503]) | JSON,
        "err_code": st.sampled_from([10037, 10005, 10058, 10071]) | JSON,
        "description": JSON,
    },
)
_MOMENTS = st.sampled_from(["2024-01-01T00:00:00.123456789Z", "2024-01-01", "9" * 30]) | JSON
_ANSWERS = st.fixed_dictionaries(
    {"type": st.just("@"), "stream": st.just("@")},
    optional={
        "error": _ERRORS,
        "seq": _NUMBERS,
        "created": _MOMENTS,
        "ts": _MOMENTS,
        "did_create": st.booleans(),
        "state": st.fixed_dictionaries({}, optional={"last_seq": _NUMBERS}) | JSON,
        "message": st.fixed_dictionaries(
            {},
            optional={
                "seq": _NUMBERS,
                "time": _MOMENTS,
                "data": st.sampled_from(["", "MDAw", "=", "OTk5OTk5OTk5OTk5OTk5OTk5OTlh"]) | JSON,
            },
        )
        | JSON,
    },
)
_GOOD_ANSWERS: Final = (
    {"type": "@", "created": "2024-01-01T00:00:00Z", "ts": "2024-01-02T00:00:00Z"},
    {"type": "@", "message": {"seq": 7, "data": b64encode(b"7" * 19 + _FULL_HOLDER).decode()}},
    {"type": "@", "error": {"code": 404, "err_code": 10037}},
    {"stream": "@", "seq": 8},
)

TARGETS: Final[dict[str, Target]] = {
    "store holder": Target(store_holder, _HOLDERS),
    "store local": Target(local_store, _FILES),
    "store nats": Target(
        nats_store,
        st.lists(st.sampled_from(_GOOD_ANSWERS) | _ANSWERS, max_size=6).map(
            lambda answers: b"\n".join(json.dumps(each).encode() for each in answers)
        ),
    ),
}
