"""Fuzzing targets for the observer page: recordings, and questions about the past."""

import gzip
import json
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

from benchmarks.targets.control import JSON
from benchmarks.targets.target import Target
from ergo_py._core.vocabulary.errors import BadInputError
from ergo_py.observe.history import History, read_recording
from ergo_py.observe.recorder import read_history

__all__ = ["TARGETS"]


def recording(data: bytes) -> str:
    """A file. The first byte says whether the rest is packed."""
    content = gzip.compress(data[1:], 1) if data[:1] < b"\x80" else data[1:]
    with tempfile.NamedTemporaryFile(suffix=".ergo") as file:
        Path(file.name).write_bytes(content)
        try:
            nodes, found = read_recording(file.name)
        except BadInputError as error:
            why = str(error).replace(file.name, "").rpartition("; ")[2]
            return "refused: " + re.sub(r"['\"(\[].*|\d+", "n", why)[:50]
    for key, history in found.items():
        for do, arguments in (("history", {}), ("at", {"at": 1e11}), ("recording", {})):
            assert read_history(history, key, do, arguments)["ok"] is True
            json.dumps(read_history(history, key, do, arguments)).encode(errors="replace")
    return f"{min(len(nodes), 3)} nodes, {min(len(found), 3)} histories"


@cache
def _past() -> History:
    history = History("a@x")
    for second in range(0, 180, 10):
        history.add("sample", {}, {"rate": second, "loop": {"delay": 0.1}}, float(second))
    return history


def history_question(data: bytes) -> str:
    """The arguments of a question about the past: a line for the name, a line for the rest."""
    name, _, rest = data.partition(b"\n")
    try:
        arguments = json.loads(rest)
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(arguments, dict):
        return "no object"
    do = ("history", "at", "recording")[len(name) % 3]
    answer = read_history(_past(), "a@x", do, arguments)
    json.dumps(answer)
    return f"{do}, {answer['ok']}"


_HEADER: Final = {"ergo-recording": 1, "nodes": [{"key": "a@x"}]}
_SAMPLES = st.fixed_dictionaries(
    {},
    optional={
        "rate": st.floats() | JSON,
        "loop": st.just({"delay": 0.1, "blocked": {}}) | JSON,
        "dead_letters": st.just({"x": 1}) | JSON,
        "memory": st.integers() | JSON,
    },
)
_ENTRIES = st.fixed_dictionaries(
    {
        "at": st.integers(0, 300) | JSON,
        "node": st.sampled_from(["a@x", "b@x", "\ud800"]),
        "kind": st.sampled_from(["sample", "rows", "log"]) | JSON,
        "patch": _SAMPLES | JSON,
    },
    optional={"whole": st.booleans(), "with": JSON},
)
_NODES = st.fixed_dictionaries(
    {"nodes": st.lists(st.fixed_dictionaries({"key": st.text(max_size=2)}), max_size=3) | JSON}
)
_RECORDINGS = st.builds(
    lambda first, lines: bytes([first]) + b"\n".join(json.dumps(line).encode() for line in lines),
    st.sampled_from((0, 0, 0, 255)),
    st.lists(_ENTRIES | _NODES, max_size=5).map(lambda lines: [_HEADER, *lines]),
)
_QUESTIONS = st.builds(
    lambda name, arguments: name + b"\n" + json.dumps(arguments).encode(),
    st.sampled_from((b"", b"1", b"22")),
    st.fixed_dictionaries(
        {},
        optional={
            "at": st.floats() | st.integers() | JSON,
            "from": st.floats() | st.integers() | JSON,
            "to": st.floats() | JSON,
            "more": JSON,
        },
    ),
)

TARGETS: Final[dict[str, Target]] = {
    "observer recording": Target(recording, _RECORDINGS),
    "observer question": Target(history_question, _QUESTIONS),
}
