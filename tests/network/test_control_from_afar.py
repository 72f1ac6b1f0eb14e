"""The command ``at`` of a control socket: the node passes a command on to another node."""

from typing import Any

import pytest

from ergo_py import Node, NotAllowedError
from ergo_py.control.commands import COMMANDS
from ergo_py.control.protocol import ControlError
from ergo_py.control.request import Arguments, Client
from ergo_py.network.node_requests import control
from tests.network.pairs import make_network, two_nodes
from tests.network.test_nodes import Counter
from tests.support import running_node


async def ask(client: Client, node: str, do: str, **given: Any) -> Any:
    at = COMMANDS["at"].on_loop
    assert at is not None
    return await at(client, Arguments("at", {"node": node, "do": do, "with": given}))


def client_of(node: Node) -> Client:
    return Client(node, lambda _text: None)


async def test_each_command_that_looks_is_passed_on(networks: Any) -> None:
    async with two_nodes(networks(allow="default,look")) as (a, b):
        pid = await b.spawn(Counter, name="counter")
        client = client_of(a)
        assert (await ask(client, "b@test", "info"))["name"] == "b@test"
        assert (await ask(client, "b@test", "info", to="counter"))["pid"] == pid.number
        rows = (await ask(client, "b@test", "ps"))["rows"]
        assert [row["name"] for row in rows] == ["counter"]
        assert (await ask(client, "b@test", "tree"))["text"] == b.tree().text()
        assert await ask(client, "b@test", "state", to="counter") == {"total": "0", "senders": "[]"}
        assert await ask(client, "b@test", "peek", to="counter") == []
        assert (await ask(client, "b@test", "statistics", to="counter", seconds=0))[
            "ended"
        ] is False
        assert await ask(client, "b@test", "crashes") == []
        assert (await ask(client, "b@test", "dead-letters"))["last"] == []
        assert await ask(client, "b@test", "inspect", to="counter") == {}
        assert list((await ask(client, "b@test", "network"))["peers"]) == ["a@test"]
        assert await ask(client, "b@test", "names") == []
        assert await ask(client, "b@test", "entities") == []
        assert await ask(client, "b@test", "parked") == []
        b.group("web").join(pid)
        assert await ask(client, "b@test", "groups") == [{"group": "web", "nodes": {"b@test": 1}}]


async def test_a_command_that_acts_or_writes_is_not_passed_on(networks: Any) -> None:
    async with two_nodes(networks(allow="default,look,kill,spawn")) as (a, b):
        pid = await b.spawn(Counter, name="counter")
        for do in ("kill", "eval", "trace", "send", "drain", "retry", "at", "dance"):
            with pytest.raises(ControlError, match="from another node there are ps") as refused:
                await ask(client_of(a), "b@test", do, to="counter")
            assert refused.value.code == "not_permitted"
        assert pid in b.processes()


async def test_each_failure_has_its_code() -> None:
    network = make_network("memory", allow={"a@test": "default,look", "b@test": "default"})
    async with two_nodes(network, limit=1000) as (a, b):
        client = client_of(a)

        async def code(node: str, do: str, **given: Any) -> str:
            with pytest.raises(ControlError) as refused:
                await ask(client, node, do, **given)
            return refused.value.code

        assert await code("nowhere@test", "ps") == "no_such_node"
        assert await code("b@test", "info", to="nobody") == "no_such_process"
        assert await code("b@test", "ps", sort="colour") == "bad_argument"
        assert await code("b@test", "ps", colour="red") == "bad_argument"
        with pytest.raises(ControlError, match="'a@test' does not permit 'b@test' to look into it"):
            await ask(client_of(b), "a@test", "ps")
        at = COMMANDS["at"].on_loop
        assert at is not None
        with pytest.raises(ControlError, match="with is an object, and not 5"):
            await at(client, Arguments("at", {"node": "b@test", "do": "ps", "with": 5}))


async def test_a_silent_node_is_given_up(autojump_clock: Any) -> None:
    network = make_network("memory", allow="default,look", patience=1000.0)
    async with two_nodes(network, limit=1000) as (a, _):
        await a.at("b@test").ping()
        network.freeze("b@test")
        with pytest.raises(ControlError, match="did not answer Look within 60 s") as refused:
            await ask(client_of(a), "b@test", "tree")
        assert refused.value.code == "silent"
        network.thaw("b@test")


async def test_a_node_without_a_network_passes_nothing_on() -> None:
    async with running_node("alone") as alone:
        with pytest.raises(NotAllowedError, match="has no network"):
            await ask(client_of(alone), "b@test", "ps")


async def test_only_so_many_clients_are_remembered(monkeypatch: Any) -> None:
    monkeypatch.setattr(control, "_CLIENTS", 2)
    async with two_nodes(make_network("memory", allow="default,look")) as (a, _):
        clients = [client_of(a) for _ in range(5)]
        for client in clients:
            await ask(client, "b@test", "ps")
        for client in clients:
            assert (await ask(client, "b@test", "ps"))["rows"] == []
