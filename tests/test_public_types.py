"""The check of the public types can fail, and its list holds public names only."""

from tests.public_types import MOST, complaints, listed, public


def test_a_public_name_without_a_known_type_is_reported_unless_it_is_listed() -> None:
    assert complaints({"p.A": True, "p.B": False}, {"p.A", "p.B"}, {"p.B"}) == []
    assert [line.partition(":")[0] for line in complaints({"p.A": False}, {"p.A"}, set())] == [
        "p.A"
    ]


def test_a_listed_name_that_is_known_or_gone_is_reported() -> None:
    found = complaints({"p.A": True, "p.B": False}, {"p.A"}, {"p.A", "p.B"})

    assert [line.partition(";")[0] for line in found] == [
        "p.A: its type is known in full",
        "p.B: no public name",
    ]


def test_a_name_that_the_report_does_not_have_is_reported() -> None:
    assert complaints({}, {"p.A"}, set()) == ["p.A: basedpyright does not see this name"]


def test_the_list_has_public_names_and_never_grows() -> None:
    assert listed() <= public()
    assert len(listed()) <= MOST
