from collections.abc import Callable

import pytest

from ergo_py._core.text import printable, shown, text_of


class Raises:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        raise self.error

    __str__ = __repr__


@pytest.mark.parametrize("error", [RuntimeError("no"), GeneratorExit(), SystemExit(3)], ids=repr)
def test_a_value_that_cannot_speak_for_itself_is_replaced_by_a_remark(error: BaseException) -> None:
    assert text_of(Raises(error)) == "<its __str__ raised>"
    assert shown(Raises(error)) == "<Raises: its __repr__ raised>"


@pytest.mark.parametrize("function", [text_of, shown])
def test_ctrl_c_is_passed_on(function: Callable[[object], str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        function(Raises(KeyboardInterrupt()))


def test_values_are_shown_as_they_are() -> None:
    assert text_of("five") == "five"
    assert shown("five") == "'five'"


@pytest.mark.parametrize(
    "text,safe",
    [
        ("grüße, 世界", "grüße, 世界"),
        ("two\nlines\r", r"two\nlines\r"),
        ("\x1b[2J\x9b\u2028\u202e\ud800", r"\x1b[2J\x9b\u2028\u202e\ud800"),
    ],
)
def test_what_ends_a_line_or_moves_the_cursor_is_escaped(text: str, safe: str) -> None:
    assert printable(text) == safe
