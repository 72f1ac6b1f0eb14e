"""`History`: the last ten minutes of a node, as patches. A recording is a file of them."""

import gzip
import json
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

from .._core.vocabulary.errors import BadInputError
from .messages import KINDS
from .patches import apply_patch, find_patch

__all__ = ["COLUMNS", "History", "header", "nodes_part", "read_recording"]

VERSION: Final = 1
_MINUTE: Final = 60.0
_SEGMENTS: Final = 10
"""Minutes that are kept."""
_MOST_BYTES: Final = 2 * 1024 * 1024
"""Bytes of a segment before compression. Beyond it only samples are kept, so that ten minutes never
take more than 20 MiB.
"""
_LONGEST_LINE: Final = 8 * 1024 * 1024
_LONGEST_RECORDING: Final = 512 * 1024 * 1024
"""Bytes of a recording after decompression."""
_RATIO: Final = 100
_SLACK: Final = 16 * 1024 * 1024
"""A file unpacks to at most so many times its size, and these bytes more: views of a node shrink to
a tenth or a thirtieth.
"""
_BYTES_OF_A_LINE: Final = 8
_FEW_LINES: Final = 100_000
"""A file has at most a line for so many of its bytes, and these lines more: reading a line takes as
long as unpacking hundreds of bytes.
"""
_CHANGES: Final = 200
"""A state is written whole each minute, and changes at most so many times in between."""
_FRESH: Final = 60.0
"""Seconds for which a state counts as the state of a later moment."""

_LATEST: Final = 1e12
"""Seconds since 1970 that no recording reaches."""
_LARGEST: Final = 1e30
"""A figure that no sample reaches; NaN and infinity are no figures either."""

COLUMNS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "rate": lambda sample: sample.get("rate"),
    "busy": lambda sample: sample.get("busy"),
    "mailbox": lambda sample: sample.get("mailbox", 0),
    "processes": lambda sample: sample.get("processes", 0),
    "metas": lambda sample: sample.get("metas", 0),
    "delay": lambda sample: (sample.get("loop") or {}).get("delay", 0),
    "blocked": lambda sample: int(bool((sample.get("loop") or {}).get("blocked"))),
    "cpu": lambda sample: sample.get("cpu"),
    "memory": lambda sample: sample.get("memory") or 0,
    "crashed": lambda sample: sample.get("crashed", 0),
    "dead_letters": lambda sample: sum((sample.get("dead_letters") or {}).values()),
}
"""The figures of a sample that are shown over time. The first sample of a connection has no rates:
they are None.
"""


def header(nodes: list[dict[str, Any]]) -> bytes:
    """The first line of a recording."""
    from importlib import metadata  # noqa: PLC0415 - slow, and needed once for a recording

    try:
        version = metadata.version("ergo_py")
    except metadata.PackageNotFoundError:
        version = ""
    first = {"ergo-recording": VERSION, "ergo_py": version, "at": time.time(), "nodes": nodes}
    return gzip.compress(_line(first), 6)


def nodes_part(nodes: list[dict[str, Any]]) -> bytes:
    """A part of a recording that names further nodes."""
    return gzip.compress(_line({"at": time.time(), "nodes": nodes}), 6)


def _line(value: dict[str, Any]) -> bytes:
    return (
        json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        + b"\n"
    )


class _Segment:
    """A minute: lines of a recording, in which each kind begins with its whole state."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.end = begin
        self._lines: list[bytes] = []
        self._size = 0
        self._packed: bytes | None = None
        self.kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        """The arguments and the last state of each kind."""

    def add(
        self, node: str, kind: str, arguments: dict[str, Any], value: dict[str, Any], at: float
    ) -> None:
        """Add the state of a kind at a moment."""
        if self._size > _MOST_BYTES and kind != "sample":
            return
        self.end = at
        known = self.kinds.get(kind)
        is_whole = known is None or known[0] != arguments
        patch = find_patch({} if is_whole or known is None else known[1], value)
        self.kinds[kind] = (arguments, value)
        entry: dict[str, Any] = {"at": round(at, 3), "node": node, "kind": kind}
        if arguments and is_whole:
            entry["with"] = arguments
        if is_whole:
            entry["whole"] = True
        self.append(_line({**entry, "patch": patch}))

    def append(self, line: bytes) -> None:
        """Add a line."""
        self._lines.append(line)
        self._size += len(line)

    def close(self) -> None:
        """Compress the lines: no more come."""
        self._packed = self.packed()
        self._lines = []
        self.kinds = {}

    def packed(self) -> bytes:
        """The lines as a part of a recording."""
        return self._packed or gzip.compress(b"".join(self._lines), 6)

    def lines(self) -> Iterator[dict[str, Any]]:
        """The entries of the minute."""
        text = b"".join(self._lines) if self._packed is None else gzip.decompress(self._packed)
        for line in text.splitlines():
            yield json.loads(line)


class History:
    """The last ten minutes of a node."""

    def __init__(self, node: str, *, is_bounded: bool = True) -> None:
        self._node = node
        self._most = _SEGMENTS if is_bounded else None
        self._segments: deque[_Segment] = deque()
        self._rows: deque[tuple[Any, ...]] = deque(maxlen=600 if is_bounded else 36_000)
        self._arguments: dict[str, dict[str, Any]] = {}
        self.on_segment: Callable[[bytes], None] | None = None
        """Called with each finished minute, for a recording."""

    def record_to(self, write: Callable[[bytes], None]) -> None:
        """Pass each finished minute to a function."""
        self.on_segment = write

    def add(self, kind: str, arguments: dict[str, Any], value: dict[str, Any], at: float) -> None:
        """Note the state of a kind at a moment."""
        segment = self._segments[-1] if self._segments else None
        if segment is None or at - segment.begin >= _MINUTE:
            self.finish()
            segment = _Segment(at)
            self._segments.append(segment)
            while self._most is not None and len(self._segments) > self._most + 1:
                self._segments.popleft()
        self._arguments[kind] = arguments
        segment.add(self._node, kind, arguments, value, at)
        if kind == "sample":
            self._rows.append((at, *(read(value) for read in COLUMNS.values())))

    def arguments_of(self, kind: str) -> dict[str, Any]:
        """The arguments of the last state of a kind."""
        return self._arguments.get(kind, {})

    def finish(self) -> None:
        """Close the minute in progress."""
        if self._segments and self._segments[-1].kinds:
            last = self._segments[-1]
            last.close()
            if self.on_segment is not None:
                self.on_segment(last.packed())

    def columns(self, begin: float, end: float) -> dict[str, Any]:
        """The figures over time, a list for each."""
        rows = [row for row in self._rows if begin <= row[0] <= end]
        names = ["at", *COLUMNS]
        columns: dict[str, list[float | None]] = {
            name: [row[number] for row in rows] for number, name in enumerate(names)
        }
        return {
            "from": rows[0][0] if rows else None,
            "to": rows[-1][0] if rows else None,
            "columns": columns,
        }

    def at(self, moment: float) -> dict[str, Any]:
        """The newest state of each kind up to a moment."""
        values: dict[str, dict[str, Any]] = {}
        arguments: dict[str, Any] = {}
        times: dict[str, float] = {}
        for segment in self._segments:
            if segment.begin > moment or segment.end < moment - 2 * _FRESH:
                continue
            for entry in segment.lines():
                if entry["at"] > moment:
                    break
                kind = entry["kind"]
                before = {} if entry.get("whole") else values.get(kind, {})
                values[kind] = apply_patch(before, entry["patch"])
                times[kind] = entry["at"]
                if entry.get("whole"):
                    arguments[kind] = entry.get("with", {})
        fresh = [kind for kind in values if times[kind] >= moment - _FRESH]
        return {
            "at": max((times[kind] for kind in fresh), default=None),
            "views": {kind: values[kind] for kind in fresh},
            "with": {kind: arguments.get(kind, {}) for kind in fresh},
        }

    def part(self, begin: float) -> tuple[bytes, float | None]:
        """The first minute that begins at ``begin`` or later, as a part of a recording, and the
        begin of the minute after it; None after the last. A minute stays the same part while
        others come and go.
        """
        later = [segment for segment in self._segments if segment.begin >= begin]
        if not later:
            return b"", None
        return later[0].packed(), later[1].begin if len(later) > 1 else None


def read_recording(path: str | Path) -> tuple[list[dict[str, Any]], dict[str, History]]:
    """Read a recording: its nodes, and the history of each.

    Raises:
        BadInputError: the file is no recording.
    """
    try:
        with gzip.open(path, "rb") as file:
            lines = _bounded_lines(file, path)
            reading = _Reading(path, _read_header(next(lines, b""), path))
            for line in lines:
                reading.take(line)
    except (OSError, EOFError, zlib.error, RecursionError) as error:
        raise _refusal(path, str(error)) from error
    return list(reading.nodes.values()), reading.found


def _bounded_lines(file: Any, path: str | Path) -> Iterator[bytes]:
    size, total = Path(path).stat().st_size, 0
    most_bytes = min(_LONGEST_RECORDING, _RATIO * size + _SLACK)
    most_lines = size // _BYTES_OF_A_LINE + _FEW_LINES
    for number in count(1):
        line = file.readline(_LONGEST_LINE + 1)
        if not line:
            return
        total += len(line)
        if len(line) > _LONGEST_LINE or total > most_bytes or number > most_lines:
            raise _refusal(path, "it is longer than any recording in a file of its size")
        yield line


def _read_header(line: bytes, path: str | Path) -> list[dict[str, Any]]:
    first = _object(line, path)
    match first:
        case {"ergo-recording": version, "nodes": [*nodes]} if all(
            isinstance(node, dict) and isinstance(node.get("key"), str) for node in nodes
        ):
            if version != VERSION:
                raise _refusal(
                    path, f"its version is {version!r}, and this program reads {VERSION}"
                )
            return nodes
    raise _refusal(path, "its first line is not that of a recording")


class _Reading:
    """The lines of a recording that were read so far."""

    def __init__(self, path: str | Path, nodes: list[dict[str, Any]]) -> None:
        self._path = path
        self.nodes: dict[str, dict[str, Any]] = {}
        """The nodes by their keys."""
        self._add_nodes(nodes)
        self.found: dict[str, History] = {}
        self._states: dict[tuple[str, str], dict[str, Any]] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        """The bytes of the lines of each state, since its last whole line."""
        self._size = 0
        """The bytes of all lines."""
        self._work = 0
        """The bytes of the states that were compared, a state for each line."""

    def take(self, line: bytes) -> None:
        """Read the next line."""
        entry = _object(line, self._path)
        match entry:
            case {"nodes": [*later]} if all(
                isinstance(node, dict) and isinstance(node.get("key"), str) for node in later
            ):
                self._add_nodes(later)
            case {
                "at": int() | float() as at,
                "node": str(node),
                "kind": str(kind),
                "patch": dict(patch),
            }:
                if isinstance(at, bool) or not -_LATEST < at < _LATEST:
                    raise _refusal(self._path, "it has a line of no time")
                if kind not in KINDS or not isinstance(entry.get("with", {}), dict):
                    raise _refusal(self._path, f"it has a view of the unknown kind {kind!r:.100}")
                self._count(node, kind, len(line), bool(entry.get("whole")))
                self._take_view(entry, node, kind, patch, float(at))
            case _:
                raise _refusal(self._path, "one of its lines is not that of a recording")

    def _add_nodes(self, nodes: list[dict[str, Any]]) -> None:
        for node in nodes:
            self.nodes.setdefault(node["key"], node)

    def _count(self, node: str, kind: str, size: int, is_whole: bool) -> None:
        """Refuse a file whose small lines change large states again and again: a line takes as long
        as its whole state.
        """
        self._size += size
        known = 0 if is_whole else self._sizes.get((node, kind), 0)
        self._sizes[node, kind] = known + size
        self._work += known + size
        if self._work > _CHANGES * self._size + _SLACK:
            raise _refusal(self._path, "its views change more often than those of any recording")

    def _take_view(
        self, entry: dict[str, Any], node: str, kind: str, patch: dict[str, Any], at: float
    ) -> None:
        is_whole = entry.get("whole")
        before = {} if is_whole else self._states.get((node, kind), {})
        value = self._states[node, kind] = apply_patch(before, patch)
        if kind == "sample":
            _check_sample(value, self._path)
        history = self.found.setdefault(node, History(node, is_bounded=False))
        given = entry.get("with", {}) if is_whole else history.arguments_of(kind)
        history.add(kind, given, value, at)


def _check_sample(value: dict[str, Any], path: str | Path) -> None:
    """Refuse a sample whose figures are no numbers."""
    for name, read in COLUMNS.items():
        figure: Any
        try:
            figure = read(value)
        except (AttributeError, TypeError, OverflowError):
            figure = ""
        if figure is not None and not (
            type(figure) in (int, float) and -_LARGEST < figure < _LARGEST
        ):
            raise _refusal(path, f"its sample has no number for {name}")


def _object(line: bytes, path: str | Path) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise _refusal(path, "it has a line that is no JSON") from None
    if not isinstance(found, dict):
        raise _refusal(path, "it has a line that is no JSON object")
    return found


def _refusal(path: str | Path, why: str) -> BadInputError:
    return BadInputError(
        "recording", str(path), f"a file that `ergo observe --record` has written; {why}"
    )
