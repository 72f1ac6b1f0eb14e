"""Fuzzing targets for other programs: those that run functions, the service manager, and the
program whose connections this one takes over.
"""

import json
import os
import re
from typing import Any, Final

from hypothesis import strategies as st

from benchmarks.targets.control import JSON
from benchmarks.targets.network import TYPES, Flat
from benchmarks.targets.target import Target, spliced
from ergo_py import Crashed
from ergo_py.handover.arriving_connections import read_batch
from ergo_py.meta.inherited_sockets import InheritedSockets
from ergo_py.service_manager import ServiceManager
from ergo_py.workers.process_calls import NUMBER, read_answer

__all__ = ["TARGETS"]

_REQUEST: Final = 7
_FAR: Final = 1 << 20
"""A descriptor that is not open here."""


def _word(error: Exception) -> str:
    text = str(error)
    assert len(text) < 2000, "the text of an error is not bounded"
    return "refused: " + re.sub(r"['\"`\[(<].*|\d+", "n", text)[:50]


def worker_answer(data: bytes) -> str:
    """A frame on the pipe of a program that runs a function."""
    try:
        answer = read_answer(TYPES, _REQUEST, data)
    except ValueError as error:
        return _word(error)
    if isinstance(answer, Crashed):
        answer.error.add_note(f"In the program:\n{answer.traceback}")
        return "an error"
    return f"a {type(answer[0]).__name__}"


def handover_batch(data: bytes) -> str:
    """A line of the predecessor that describes connections, and their bytes."""
    line, _, body = data.partition(b"\n")
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(said, dict):
        return "no object"
    try:
        _, _, found = read_batch({**said, "body": body})
    except ValueError as error:
        return _word(error)
    size = sum(len(one.unread) + len(one.unsent) + len(one.state) for one in found)
    assert size <= len(body), "a connection has bytes of another"
    return f"{min(len(found), 3)} connections"


def service_environment(data: bytes) -> str:
    """The variables of a service manager, a line for each: sockets, notifications, a watchdog. The
    word ``me`` stands for this process.
    """
    text = data.replace(b"\0", b"").decode(errors="surrogateescape")
    pairs = (line.partition("=") for line in text.replace("me", str(os.getpid())).split("\n"))
    environ = {name: value for name, _, value in pairs}
    manager = ServiceManager(environ)
    try:
        is_told = manager.tell("READY=1")
    finally:
        manager.close()
    assert manager.watchdog is None or 0.0 < manager.watchdog < float("inf")
    sockets = InheritedSockets(environ, first=_FAR)
    assert "LISTEN_FDS" not in environ, "a program of this one would take them for its own"
    try:
        sockets.open("http")
    except OSError as error:
        why = re.sub(r"\d+|'.*?'", "n", str(error).rpartition(": ")[2])[:18]
    else:
        raise AssertionError("a socket that is not open")
    is_watched = manager.watchdog is not None
    return f"{'told' if is_told else 'silent'}, {'watched' if is_watched else 'alone'}, {why}"


# -- nearly valid inputs ---------------------------------------------------------------------------


def _answers() -> list[bytes]:
    values: tuple[Any, ...] = ((1,), (Flat(1),), (None,), Crashed(LookupError("no")), 5, (1, 2))
    return [NUMBER.pack(_REQUEST) + TYPES.encode(value) for value in values]


_ANSWERS: Final = st.builds(
    lambda whole, at, new: spliced(whole, at, len(new), new),
    st.sampled_from(_answers()),
    st.integers(0, 40),
    st.binary(max_size=3),
)
_SIZES: Final = st.integers(0, 3) | JSON
_BATCHES: Final = st.builds(
    lambda said, body: json.dumps(said).encode() + b"\n" + body,
    st.fixed_dictionaries(
        {"batch": st.just(1) | JSON, "turn": st.just(2) | JSON},
        optional={
            "connections": st.lists(
                st.tuples(st.integers(), st.just("http") | JSON, st.integers(), _SIZES, _SIZES)
                | st.lists(_SIZES, max_size=7)
                | st.tuples(*[st.just(1), st.just("http"), st.just(3), *[st.integers(0, 1)] * 3]),
                max_size=3,
            )
            | JSON
        },
    ),
    st.binary(max_size=4),
)
_NAMES: Final = (
    *("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"),
    *("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"),
)
_VALUES: Final = (
    st.sampled_from(
        ["me", "1", "0", "-1", "http", "http:http", ":", "@x", "/nowhere", "@", "1_0", " 5"]
    )
    | st.sampled_from(["9" * 9, "9" * 400, "9" * 5000, "\u0663", "/" + "x" * 200, "vsock:1:2"])
    | st.text(max_size=5)
)
_ENVIRONMENTS: Final = st.dictionaries(st.sampled_from(_NAMES), _VALUES).map(
    lambda given: "\n".join(f"{name}={value}" for name, value in given.items()).encode(
        errors="surrogatepass"
    )
)

TARGETS: Final[dict[str, Target]] = {
    "worker answer": Target(worker_answer, _ANSWERS),
    "handover batch": Target(handover_batch, _BATCHES),
    "service environment": Target(service_environment, _ENVIRONMENTS),
}
