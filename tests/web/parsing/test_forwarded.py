"""The words of proxies: which words of which field count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergo_py.web.parsing.forwarded import FAMILIES, FORWARDED, X_FORWARDED, Hop, read_hops


def hops(field: str) -> list[Hop]:
    return list(read_hops({"forwarded": field}, FORWARDED))


@pytest.mark.parametrize(
    "field,found",
    [
        ("for=1.2.3.4", [("1.2.3.4", "", "")]),
        ("For=1.2.3.4:80; PROTO=HTTPS ;host=a:80", [("1.2.3.4", "https", "a:80")]),
        ('for="[::1]:5", for="1.2.3.4"', [("1.2.3.4", "", ""), ("::1", "", "")]),
        ("proto=https", [("", "https", "")]),
        ("for=unknown;by=x", [("unknown", "", "")]),
        ("proto=gopher;host=a/b", [("", "", "")]),
        ("", []),
        ("for", []),
        ("for=1.2.3.4;for=5.6.7.8", []),
        ("for=1.2.3.4;;proto=https", []),
        ("xfor=1.2.3.4", [("", "", "")]),
        ('for="1.2.3.4', []),
        ('for="a\\"b"', []),
        ('for="1.2.3.4, for=5.6.7.8', [("5.6.7.8", "", "")]),
        ("bad, for=5.6.7.8", [("5.6.7.8", "", "")]),
        ("for=5.6.7.8, bad", []),
    ],
)
def test_elements_are_read_from_the_last_to_the_first_that_is_wrong(
    field: str, found: list[tuple[str, str, str]]
) -> None:
    assert hops(field) == found


def test_the_fields_of_x_forwarded_are_read_from_their_last_value() -> None:
    headers = {
        "x-forwarded-for": "1.2.3.4, ::1, [::2]:5,6.7.8.9:1",
        "x-forwarded-proto": "https, HTTP",
        "x-forwarded-host": "a, b:80",
        "forwarded": "for=9.9.9.9",
    }

    assert list(read_hops(headers, X_FORWARDED)) == [
        ("6.7.8.9", "http", "b:80"),
        ("::2", "", ""),
        ("::1", "", ""),
        ("1.2.3.4", "", ""),
    ]
    assert list(read_hops({}, X_FORWARDED)) == [("", "", "")]


@pytest.mark.parametrize("family", FAMILIES)
def test_hops_are_bounded(family: str) -> None:
    headers = {"forwarded": "for=1.1.1.1," * 1000 + "for=2.2.2.2"}
    headers["x-forwarded-for"] = headers["forwarded"].replace("for=", "")
    found = list(read_hops(headers, family))

    assert len(found) == 64
    assert found[0].client == "2.2.2.2"


@given(st.text(max_size=60), st.sampled_from(FAMILIES))
def test_the_words_of_the_nearest_proxy_do_not_depend_on_those_of_its_client(
    text: str, family: str
) -> None:
    headers = {"forwarded": f"{text}, for=1.2.3.4;proto=https"}
    headers |= {"x-forwarded-for": f"{text}, 1.2.3.4", "x-forwarded-proto": f"{text}, https"}

    assert next(read_hops(headers, family)) == ("1.2.3.4", "https", "")
