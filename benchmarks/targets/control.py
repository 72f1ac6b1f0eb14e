"""Fuzzing targets for the control socket, both its ends, and for the command line."""

import contextlib
import io
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from hypothesis import strategies as st

from benchmarks.targets.target import Target
from ergo_py.control.conversation import Conversation
from ergo_py.control.protocol import MAX_REQUEST, ControlError, answer, read_request, refusal
from ergo_py.control.request import Arguments
from ergo_py.shell.arguments import parse
from ergo_py.shell.exit_codes import Leave

__all__ = ["JSON", "TARGETS"]

_ROUTER: Final = SimpleNamespace(resolve=lambda _to: None, names_beside=lambda _to: ())
_NOBODY: Any = SimpleNamespace(
    name="fuzz@localhost",
    pid=SimpleNamespace(creation=1),
    _kernel=SimpleNamespace(router=_ROUTER),
)


def control_line(line: bytes) -> str:
    """A line that a client says."""
    try:
        request = read_request(line[:MAX_REQUEST])
    except ControlError as error:
        told = json.loads(refusal(error.more.get("id"), error))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert told["ok"] is False
        return error.code
    echoed = json.loads(answer(request.id, request.arguments))
    assert echoed["ok"] is True
    return "read"


def control_arguments(data: bytes) -> str:
    """The arguments of a command from a client."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(given, dict):
        return "no object"
    arguments = Arguments("fuzz", given)
    outcomes = []
    reads: tuple[Callable[[], object], ...] = (
        lambda: arguments.target(_NOBODY),
        lambda: arguments.number("number", 1.0, 0.0, 10.0),
        lambda: arguments.flag("flag"),
        lambda: arguments.text("text", "", ("", "a", "b")),
        lambda: arguments.words("words"),
        lambda: arguments.anything("anything"),
        arguments.done,
    )
    for read in reads:
        try:
            read()
        except ControlError as error:
            outcomes.append(error.code[0])
            json.loads(refusal(1, error))
        else:
            outcomes.append("-")
    return f"{outcomes.count('-')} taken, {''.join(sorted({*outcomes} - {'-'}))} refused"


def control_greeting(data: bytes) -> str:
    """The first line of a server, or an answer."""
    try:
        Conversation(Path("fuzz")).feed(data + b"\n")
    except ControlError as error:
        return f"refused, {min(len(error.more), 1)} more"
    except ConnectionError:
        return "no greeting"
    return "read"


# -- the command line ------------------------------------------------------------------------------


def command_line(data: bytes) -> str:
    """The words that a user types after ``ergo``."""
    try:
        words = shlex.split(data.decode(errors="replace"))
    except ValueError:
        return "no words"
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            chosen = parse(words)
    except SystemExit as left:
        status = left.code
    except Leave:
        return "left"
    else:
        return f"does {chosen.command}"
    assert status in (0, 2), f"status {status}"
    return f"status {status}"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=10) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)
_VOCABULARY = """
run shell nodes ps tree info inspect state top trace send kill exit --json --pid --name --limit
--sort --control --timeout -h --version demo 1 0 -1 99999 look,act x:y file.py -- '' "a
"""
_LINES = st.fixed_dictionaries(
    {},
    optional={
        "v": st.just(1) | JSON,
        "id": JSON,
        "do": st.text(max_size=5) | JSON,
        "with": JSON,
    },
).map(lambda said: json.dumps(said).encode())
_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "to": st.integers() | st.text() | st.just("9" * 5000) | JSON,
        "number": st.floats() | st.integers() | JSON,
        "flag": st.booleans() | JSON,
        "text": st.sampled_from(["a", "b", "c"]) | JSON,
        "words": st.lists(st.text()) | JSON,
        "anything": JSON,
        "more": JSON,
    },
).map(lambda said: json.dumps(said).encode())
_REFUSAL = st.fixed_dictionaries(
    {"code": st.just("busy"), "text": st.just("later")},
    optional={"id": JSON, "self": JSON, "report": JSON},
)
_GREETINGS = st.fixed_dictionaries(
    {"ergo": st.just(1)},
    optional={
        "node": st.just("a@x") | JSON,
        "os_pid": st.just(1) | JSON,
        "may": st.lists(st.text(max_size=5), max_size=2) | JSON,
        "error": _REFUSAL | JSON,
    },
).map(lambda said: json.dumps(said).encode())
_WORDS = st.lists(st.sampled_from(_VOCABULARY.split()), max_size=6).map(" ".join)

TARGETS: Final[dict[str, Target]] = {
    "control line": Target(control_line, _LINES),
    "control arguments": Target(control_arguments, _ARGUMENTS),
    "control greeting": Target(control_greeting, _GREETINGS),
    "command line": Target(command_line, _WORDS.map(str.encode)),
}
