"""The fast paths that are off, with their reasons, as ``ergo --version`` prints them."""

import select

import pytest

from ergo_py._core.runtime.handoff import SWITCH
from ergo_py._core.speed.installation import is_fast, why_not_fast
from ergo_py.control import fast_paths as module
from ergo_py.control.fast_paths import fast_paths_off
from ergo_py.meta.thread_inbox import ThreadInbox


@pytest.fixture(autouse=True)
def _ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in which every path is on, whichever build runs the tests."""
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(module, "is_fast", True)
    monkeypatch.setattr(module, "why_not_in_c", "")
    monkeypatch.setattr(module, "datagram_reader", object())
    monkeypatch.setattr(module, "unmet", list)
    monkeypatch.setattr(ThreadInbox, "is_possible", True)
    monkeypatch.setattr(select, "epoll", object(), raising=False)


def test_no_path_is_off_in_an_ordinary_program() -> None:
    assert fast_paths_off() == []


def test_without_the_extension_its_parts_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_fast", False)
    monkeypatch.setattr(module, "why_not_fast", "it was not built")
    monkeypatch.setattr(module, "datagram_reader", None)

    assert fast_paths_off() == ["the C extension: it was not built"]


def test_each_part_of_the_extension_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "why_not_in_c", "Writer has no slot sock")
    monkeypatch.setattr(module, "datagram_reader", None)
    monkeypatch.setattr(ThreadInbox, "is_possible", False)

    assert fast_paths_off() == [
        "stream connections in C: Writer has no slot sock",
        "reader threads without the GIL: the system has no eventfd",
        "many datagrams in a system call: the system has no recvmmsg",
    ]


def test_a_system_without_epoll_has_no_poller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll")

    assert fast_paths_off() == ["a poller for all sockets of a server: the system has no epoll"]


def test_hand_off_tells_whether_trio_or_the_environment_forbids_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "unmet", lambda: ["no runq", "no deadlines"])
    trio_differs = fast_paths_off()
    monkeypatch.setenv(SWITCH, "0")
    is_forbidden = fast_paths_off()

    assert trio_differs == ["direct hand-off of turns: no runq; no deadlines"]
    assert is_forbidden == [f"direct hand-off of turns: {SWITCH}=0 is set"]


def test_the_build_that_runs_the_tests_has_its_reason() -> None:
    assert is_fast is (why_not_fast == "")
