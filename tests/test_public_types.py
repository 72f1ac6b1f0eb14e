"""The check of the public types can fail."""

from tests.public_types import complaints


def test_a_public_name_without_a_known_type_is_reported() -> None:
    found = complaints({"p.A": True, "p.B": False, "p.private": False}, {"p.A", "p.B"})

    assert [line.partition(":")[0] for line in found] == ["p.B"]


def test_a_name_that_the_report_does_not_have_is_reported() -> None:
    assert complaints({}, {"p.A"}) == ["p.A: basedpyright does not see this name"]
