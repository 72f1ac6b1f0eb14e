"""Texts that are not UTF-8, such as file names of `os.fsdecode`: they end neither a process that
tells them nor its node, and arrive escaped.
"""

import os
from typing import Any

import pytest

from ergo_py import (
    Actor,
    Caller,
    Crashed,
    Custom,
    Down,
    Exit,
    GroupLeft,
    Name,
    Reject,
    Shutdown,
    SpawnError,
    TargetDownError,
)
from ergo_py.cluster import Cluster
from ergo_py.errors import CallFailedError, ProcessUnknownError
from ergo_py.network import RemoteError, UnreadableError
from ergo_py.network.errors import MessageTypeError
from tests.actors import Puppet
from tests.network.pairs import Add, Echo, make_network, network_of, two_nodes, until
from tests.network.test_nodes import Talker

ODD = os.fsdecode(b"x\xff")
READ = "x\\udcff"
"""The same, as a reader of another node sees it."""


class OddError(Exception):
    """An exception that no node lists."""


class Reader(Actor):
    """Fails in several ways, with an odd text."""

    def handle_message(self, message: Any, sender: Any) -> None:
        if message == Add(1):
            raise ValueError(f"cannot read {ODD}")
        self.stop(Shutdown(ODD))

    def handle_call(self, request: Any, caller: Caller) -> Any:
        match request:
            case Echo("crash"):
                raise ValueError(f"cannot read {ODD}")
            case Echo("crash by another error"):
                raise OddError(ODD) from KeyError(ODD)
            case Echo("reject"):
                raise Reject(ValueError(ODD))
            case Echo("reject by another error"):
                raise Reject(OddError(ODD))
            case Echo("unknown"):
                raise Reject(ProcessUnknownError(Name(ODD, "b@test")))
            case Echo("unreadable"):
                raise Reject(UnreadableError(ODD, None, None))
            case Echo("stop"):
                self.stop(Shutdown(ODD))
        return ODD


async def told(number: int) -> Any:
    """The reason that a watcher of another node gets, and whether the supervisor of the node has
    gone on.
    """
    heard: list[Any] = []
    async with two_nodes(make_network("memory")) as (a, b):
        pid = await b.spawn(Reader)
        watcher = await a.spawn(Talker, heard)
        await a.call(watcher, lambda me: me.monitor(pid))
        await a.call(watcher, lambda me: me.link(pid))
        await a.at("b@test").ping()
        a.send(pid, Add(number))
        await until(lambda: len(heard) == 2)
        await a.at("b@test").ping()
        assert {type(notice) for notice in heard} == {Down, Exit}
        assert heard[0].reason == heard[1].reason
        return heard[0].reason


async def test_a_crash_with_an_odd_text_is_told_to_watchers_of_other_nodes() -> None:
    reason = await told(1)
    assert isinstance(reason, Crashed)
    assert isinstance(reason.error, RemoteError)
    assert reason.error.type_name == "ValueError"
    assert reason.error.text == f"cannot read {READ}"
    assert f"ValueError: cannot read {READ}" in reason.traceback


async def test_a_stop_with_an_odd_text_is_told_to_watchers_of_other_nodes() -> None:
    assert await told(2) == Shutdown(f"shutdown: {READ}")


@pytest.mark.parametrize("reason", [Shutdown(ODD), Custom(ODD), Custom({"file": ODD})])
async def test_an_exit_signal_with_an_odd_text_arrives(reason: Any) -> None:
    heard: list[Any] = []
    async with two_nodes(make_network("memory")) as (a, b):
        pid, sender = await b.spawn(Talker, heard), await a.spawn(Puppet)
        await a.call(sender, lambda me: me.send_exit(pid, reason))
        await until(lambda: heard)
        assert heard[0].source == sender
        assert READ in str(heard[0].reason).replace("\\\\", "\\")


@pytest.mark.parametrize(
    "asked, kind, text",
    [
        ("crash", TargetDownError, f"ValueError: cannot read {READ}"),
        ("crash by another error", TargetDownError, f"OddError: {READ}"),
        ("reject", RemoteError, f"ValueError: {READ}"),
        ("reject by another error", RemoteError, f"OddError: {READ}"),
        ("unknown", ProcessUnknownError, READ),
        ("unreadable", UnreadableError, READ),
        ("text", CallFailedError, "surrogates not allowed"),
    ],
)
async def test_a_call_gets_the_right_error_with_an_odd_text(
    asked: str, kind: type[Exception], text: str
) -> None:
    async with two_nodes(make_network("memory")) as (a, b):
        pid = await b.spawn(Reader)
        with pytest.raises(kind) as caught:
            await a.call(pid, Echo(asked))
        assert text in str(caught.value).replace("\\\\", "\\")
        assert (pid in b.processes()) == (not asked.startswith("crash"))


async def test_a_call_to_a_process_that_stops_with_an_odd_text_is_told_so() -> None:
    async with two_nodes(make_network("memory")) as (a, b):
        pid = await b.spawn(Reader)
        b.send(pid, Add(2))
        await b.wait_ended(pid)
        with pytest.raises(TargetDownError):
            await a.call(pid, Echo("text"))
        reason = await a.wait_ended(pid)
        assert READ in str(reason)


async def test_a_crash_with_a_long_text_stays_a_crash_for_its_caller() -> None:
    class Verbose(Actor):
        def handle_call(self, request: Any, caller: Caller) -> Any:
            raise ValueError("x" * (2 << 20))

    async with two_nodes(make_network("memory")) as (a, b):
        pid = await b.spawn(Verbose)
        with pytest.raises(TargetDownError) as caught:
            await a.call(pid, Echo(1))
        assert isinstance(caught.value.reason, Crashed)
        assert "ValueError: xxx" in str(caught.value)
        assert len(str(caught.value)) < 10_000


async def test_a_spawn_from_afar_that_fails_with_an_odd_text_raises_its_error() -> None:
    class Fragile(Actor):
        async def init(self) -> None:
            raise ValueError(ODD)

    hub = make_network("memory", allow="default,spawn", spawns={"fragile": Fragile})
    async with two_nodes(hub) as (a, _):
        with pytest.raises(SpawnError) as caught:
            await a.at("b@test").spawn("fragile")
        assert READ in str(caught.value).replace("\\\\", "\\")


async def test_a_node_that_looks_sees_odd_texts_of_crashes_and_names() -> None:
    async with two_nodes(make_network("memory", allow="default,look")) as (a, b):
        pid = await b.spawn(Reader, name=ODD)
        info = await a.at("b@test").process_info(pid)
        assert info.name == READ
        b.send(pid, Add(1))
        await b.wait_ended(pid)
        (crash,) = await a.at("b@test").crashes()
        assert READ in str(crash.reason)


async def test_an_address_with_an_odd_text_is_refused_by_a_teaching_error() -> None:
    async with two_nodes(make_network("memory")) as (a, _):
        with pytest.raises(MessageTypeError, match=r"the address .* cannot travel"):
            a.send(Name(ODD, "b@test"), Add(1))


@pytest.mark.counted
async def test_a_member_that_ends_with_an_odd_text_leaves_its_group_everywhere() -> None:
    heard: list[Any] = []
    async with two_nodes(make_network("memory")) as (a, b):
        here, there = await Cluster(a).group("room"), await Cluster(b).group("room")
        pid = await b.spawn(Reader)
        there.join(pid)
        await until(lambda: here.members() == [pid])
        watcher = await a.spawn(Puppet, heard)
        here.monitor(watcher)
        a.send(pid, Add(1))
        await until(lambda: heard)
        assert isinstance(heard[0], GroupLeft)
        assert READ in str(heard[0].reason)
        assert here.members() == []


async def test_a_fault_in_telling_an_end_ends_the_session_and_not_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[Any] = []
    async with two_nodes(make_network("memory")) as (a, b):
        pid = await b.spawn(Reader)
        watcher = await a.spawn(Talker, heard)
        await a.call(watcher, lambda me: me.monitor(pid))
        await a.at("b@test").ping()

        def fail(*_told: Any) -> None:
            raise RuntimeError("a fault of the runtime")

        monkeypatch.setattr(network_of(b).connections["a@test"].executor.watched, "tell", fail)
        b.kill(pid)
        await b.wait_ended(pid)
        await until(lambda: not b.nodes())
        await until(lambda: heard)
        assert isinstance(heard[0], Down)
        assert await a.at("b@test").ping() is None or b.nodes() == ["a@test"]
