"""Dispatchers are values: equal if they say the same, readable, and checked when they are made."""

from typing import Any

import pytest

from ergo_py import LOOP, PINNED, POOL, BadInputError, Pinned, Pod, ThreadPool
from ergo_py._core.vocabulary.dispatchers import check_dispatcher


def test_a_dispatcher_has_a_text() -> None:
    texts = [
        str(one)
        for one in (LOOP, PINNED, Pinned(cpu=1), Pod("io"), Pod("io", cpu=0), POOL("io", 4))
    ]

    assert texts == [
        "loop",
        "pinned",
        "pinned to CPU 1",
        "pod io",
        "pod io on CPU 0",
        "pool io of 4",
    ]


def test_dispatchers_with_equal_values_are_equal() -> None:
    assert POOL("io", 2) == ThreadPool("io", 2) != ThreadPool("io", 3)
    assert Pod("io") == Pod("io") != Pod("io", cpu=0)
    assert Pinned() == PINNED


@pytest.mark.parametrize("cpu", [-1, True, "0", 1.5])
def test_an_invalid_cpu_is_refused(cpu: Any) -> None:
    with pytest.raises(BadInputError, match="the number of a CPU"):
        Pinned(cpu)
    with pytest.raises(BadInputError, match="the number of a CPU"):
        Pod("io", cpu)


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "2"])
def test_an_invalid_size_is_refused(size: Any) -> None:
    with pytest.raises(BadInputError, match="from 1 up"):
        POOL("io", size)


@pytest.mark.parametrize("name", ["", None, 5])
def test_an_invalid_name_is_refused(name: Any) -> None:
    with pytest.raises(BadInputError, match="share its threads"):
        Pod(name)
    with pytest.raises(BadInputError, match="share its threads"):
        POOL(name, 2)


@pytest.mark.parametrize("given", ["loop", None, Pinned, POOL])
def test_an_invalid_dispatcher_is_refused_with_the_valid_dispatchers(given: object) -> None:
    with pytest.raises(
        BadInputError, match=r"LOOP, PINNED, Pinned\(cpu=…\), POOL\(name, size\) or Pod\(name\)"
    ):
        check_dispatcher(given)
