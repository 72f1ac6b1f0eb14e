import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergo_py import BadInputError
from ergo_py.meta.parsing.lines import LineCutter, Text


def cut(chunks: list[bytes], **options: int) -> list[tuple[str, bool]]:
    cutter = LineCutter(**options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    return [*(line for chunk in chunks for line in cutter.feed(chunk)), *cutter.end()]


@given(
    st.text(alphabet="ab\r\n\u00e9\U0001f40d"),
    st.lists(st.integers(min_value=1, max_value=5)),
    st.integers(1, 8),
)
def test_lines_do_not_depend_on_the_ends_of_chunks(
    text: str, sizes: list[int], max_line: int
) -> None:
    data = text.encode()
    chunks, start = [], 0
    for size in [*sizes, max(1, len(data))]:
        chunks.append(data[start : start + size])
        start += size

    lines = cut(chunks, max_line=max_line)

    joined, whole = "", []
    for part, is_whole in lines:
        assert len(part) <= max_line
        joined += part
        if is_whole:
            whole.append(joined)
            joined = ""
    wanted = text.split("\n")
    last = wanted.pop()
    assert joined == ""
    assert whole == [line.removesuffix("\r") for line in wanted] + ([last] if last else [])


def test_a_line_longer_than_the_cap_is_handed_on_in_parts() -> None:
    cutter = LineCutter(max_line=4)

    assert cutter.feed(b"abcdefghij") == [("abcd", False), ("efgh", False)]
    assert cutter.feed(b"k\nxy\n") == [("ijk", True), ("xy", True)]
    assert cutter.end() == []


def test_a_character_may_come_in_two_pieces() -> None:
    assert cut([b"\xc3", b"\xa9\n"]) == [("\u00e9", True)]


def test_bytes_that_are_no_text_follow_the_policy() -> None:
    assert LineCutter(errors="replace").feed(b"\xff\n") == [("\ufffd", True)]
    assert LineCutter(errors="surrogateescape").feed(b"\xff\n") == [("\udcff", True)]
    with pytest.raises(UnicodeDecodeError):
        LineCutter(errors="strict").feed(b"\xff\n")


def test_a_character_cut_off_by_the_end_follows_the_policy() -> None:
    cutter = LineCutter(errors="strict")
    assert cutter.feed(b"\xc3") == []

    with pytest.raises(UnicodeDecodeError):
        cutter.end()


@pytest.mark.parametrize(
    "encoding,errors,max_line",
    [
        ("klingon", "replace", 10),
        (None, "replace", 10),
        ("utf-8", "shrug", 10),
        ("utf-8", "strict", 0),
    ],
)
def test_invalid_settings_are_refused(encoding: object, errors: object, max_line: object) -> None:
    with pytest.raises(BadInputError):
        Text(encoding, errors, max_line)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "encoding",
    ["hex", "zlib", "bz2", "base64", "rot13", "quopri", "idna", "punycode", "undefined", "uu"],
)
def test_a_codec_that_is_no_encoding_of_text_is_refused(encoding: str) -> None:
    with pytest.raises(BadInputError, match="an encoding of text"):
        Text(encoding)


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "UTF8", "latin-1", "utf-16", "utf-32-be", "utf-8-sig", "cp1252", "gb18030"],
)
def test_encodings_of_text_are_accepted(encoding: str) -> None:
    cutter = Text(encoding, "strict").cutter()

    assert cutter.feed("one\ntwo".encode(encoding)) + cutter.end() == [("one", True), ("two", True)]
