import pytest

from ergo_py import BadInputError
from ergo_py.meta.parsing.cutter import MessageCutter, check_mode
from ergo_py.meta.parsing.decoder import FramingError
from ergo_py.meta.parsing.framing import LengthHeader, Raw
from ergo_py.meta.parsing.lines import Text


def cutter(mode: Text | LengthHeader | Raw) -> MessageCutter:
    return MessageCutter(mode, lambda line, is_whole: (line, is_whole), lambda frame: frame)


def test_the_cutter_turns_lines_and_frames_into_messages() -> None:
    assert list(cutter(Text()).feed(b"a\nb\n")) == [("a", True), ("b", True)]
    assert list(cutter(LengthHeader(size=1)).feed(b"\x01a\x02bc")) == [b"a", b"bc"]
    assert list(cutter(Raw()).feed(b"abc")) == [b"abc"]


def test_at_the_end_half_a_line_is_a_line_and_half_a_frame_is_dropped() -> None:
    lines, frames = cutter(Text()), cutter(LengthHeader(size=1))
    list(lines.feed(b"half"))
    list(frames.feed(b"\x05half"))

    assert list(lines.end()) == [("half", True)]
    assert list(frames.end()) == []


def test_frames_before_a_framing_error_are_yielded_before_it_is_raised() -> None:
    got = []

    with pytest.raises(FramingError):
        for frame in cutter(LengthHeader(size=1, max_frame=3)).feed(b"\x02ok\xff"):
            got.append(frame)  # noqa: PERF402 - it must be kept before the error comes

    assert got == [b"ok"]


def test_a_restart_drops_half_a_line() -> None:
    lines = cutter(Text())
    list(lines.feed(b"half"))

    lines.restart()

    assert list(lines.feed(b"new\n")) == [("new", True)]


def test_an_invalid_mode_is_refused() -> None:
    with pytest.raises(BadInputError, match="mode"):
        check_mode("mode", "lines")
