"""Dispatchers are values: equal if they say the same, readable, and checked when they are made."""

import threading
from typing import Any

import pytest

from ergo_py import LOOP, BadInputError, Threads
from ergo_py._core.vocabulary.dispatchers import check_dispatcher


def test_a_dispatcher_has_a_text() -> None:
    texts = [
        str(one)
        for one in (
            LOOP,
            Threads(),
            Threads(cpu=1),
            Threads("io"),
            Threads("io", cpu=0),
            Threads("io", 4),
            Threads.MAIN,
        )
    ]

    assert texts == [
        "loop",
        "thread",
        "thread on CPU 1",
        "thread io",
        "thread io on CPU 0",
        "4 threads io",
        "main thread",
    ]


def test_dispatchers_with_equal_values_are_equal() -> None:
    assert Threads("io", 2) == Threads("io", 2) != Threads("io", 3)
    assert Threads("io") == Threads("io") != Threads("io", cpu=0)
    assert Threads() == Threads()


@pytest.mark.parametrize("cpu", [-1, True, "0", 1.5])
def test_an_invalid_cpu_is_refused(cpu: Any) -> None:
    with pytest.raises(BadInputError, match="the number of a CPU"):
        Threads(cpu=cpu)
    with pytest.raises(BadInputError, match="the number of a CPU"):
        Threads("io", cpu=cpu)


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "2"])
def test_an_invalid_size_is_refused(size: Any) -> None:
    with pytest.raises(BadInputError, match="from 1 up"):
        Threads("io", size)


def test_several_threads_need_a_name_and_are_pinned_to_no_cpu() -> None:
    with pytest.raises(BadInputError, match=r'1, or a name: Threads\("name", 2\)'):
        Threads(size=2)
    with pytest.raises(BadInputError, match="there are several threads"):
        Threads("io", 2, cpu=0)
    assert Threads("io", 1, cpu=0).cpu == 0


@pytest.mark.parametrize("name", ["", 5])
def test_an_invalid_name_is_refused(name: Any) -> None:
    with pytest.raises(BadInputError, match="share its threads"):
        Threads(name)
    with pytest.raises(BadInputError, match="share its threads"):
        Threads(name, 2)


@pytest.mark.parametrize("given", ["loop", None, Threads])
def test_an_invalid_dispatcher_is_refused_with_the_valid_dispatchers(given: object) -> None:
    with pytest.raises(
        BadInputError,
        match=r"LOOP, Threads\(\), Threads\(cpu=…\), Threads\(name, size\) or Threads.MAIN",
    ):
        check_dispatcher(given)


@pytest.mark.parametrize("settings", [{"size": 2}, {"cpu": 0}])
def test_there_is_a_single_main_thread_and_its_cpus_are_those_of_the_program(settings: Any) -> None:
    with pytest.raises(BadInputError, match=r"Threads\.MAIN, the only main thread"):
        Threads(threading.main_thread().name, **settings)
