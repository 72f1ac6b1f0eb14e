"""``allow=`` of a network: the acts that a node permits another node."""

import ast
from typing import Any

import pytest

from ergo_py import Actor, BadInputError, Caller, Down, Name, Why
from ergo_py.network import NotPermittedError
from ergo_py.network.access.permits import DEFAULT_PERMITS, PERMITS, Permits, refusal_text
from tests.actors import Puppet
from tests.network.pairs import Add, Echo, Total, make_network, two_nodes, until
from tests.network.test_nodes import Counter, Talker
from tests.support import running_node


class Forwarding(Actor):
    """Passes everything on to a process of a third node."""

    def __init__(self, to: Any) -> None:
        self.to = to

    def handle_call(self, request: Any, caller: Caller) -> Any:
        return self.forward(self.to, request, caller)

    def handle_message(self, message: Any, sender: Any) -> None:
        self.forward(self.to, message, sender)


def test_the_longest_pattern_that_fits_counts() -> None:
    permits = Permits({"*": "send", "ops@*": ["default", "look"], "ops@berlin": ""})

    assert permits.of("shop@berlin") == {"send"}
    assert permits.of("ops@paris") == {*DEFAULT_PERMITS, "look"}
    assert permits.of("ops@berlin") == set()


def test_a_name_counts_before_all_patterns() -> None:
    permits = Permits({"ops@berlin": "", "???@*erlin*": "look", "web[1]@x": "kill", "*@*": "call"})

    assert permits.of("ops@berlin") == frozenset()
    assert permits.of("dev@berlin") == {"look"}
    assert permits.of("web[1]@x") == {"kill"}
    assert permits.of("web1@x") == {"kill"}
    assert permits.of("*@*") == {"call"}


@pytest.mark.parametrize("node", ["web[1]@x", "*@*", "a?@x", "ops@berlin"])
def test_the_advice_of_a_refusal_permits_that_node_only(node: str) -> None:
    text = refusal_text("here@x", node, "look")
    advice = ast.literal_eval(text.partition("allow=")[2])

    permits = Permits(advice)
    assert "look" in permits.of(node)
    assert permits.of("web1@x") == permits.of("any@x") == DEFAULT_PERMITS


def test_a_node_that_is_not_named_has_the_default_permits() -> None:
    assert Permits().of("b@site") == {"send", "call", "watch", "exit", "forward"}
    assert Permits({"ops@*": "look"}).of("b@site") == DEFAULT_PERMITS
    assert Permits("default, look").of("b@site") == {*DEFAULT_PERMITS, "look"}


@pytest.mark.parametrize(
    "allow, text",
    [
        ("lok", "'lok'; allowed is send, call, .*; did you mean 'look'?"),
        ({"a@x": 5}, "permits with commas between them"),
        ({"": "look"}, "patterns of names of nodes"),
        ({5: "look"}, "patterns of names of nodes"),
        ({"a@x": [5]}, "got 5; allowed is send, call"),
    ],
)
def test_a_wrong_permit_is_refused_with_the_words_that_are_allowed(allow: Any, text: str) -> None:
    with pytest.raises(BadInputError, match=text):
        make_network("memory", allow=allow)


@pytest.mark.counted
async def test_each_act_without_its_permit_is_refused_and_counted(networks: Any) -> None:
    """Each node permits the other nothing."""
    heard: list[Any] = []
    async with two_nodes(networks(allow="", beat=0.1)) as (a, b):
        pid = await b.spawn(Puppet, name="puppet")
        there = a.at("b@test")
        assert await there.ping() >= 0.0

        a.send(pid, Add(1))
        with pytest.raises(
            NotPermittedError,
            match=r"the node 'b@test' does not permit 'a@test' to send messages to its processes; "
            r"open the network of 'b@test' with allow=\{'a@test': 'default,send'\}",
        ) as refused:
            await a.send_wait(pid, Add(2))
        assert refused.value.target == pid
        assert isinstance(refused.value, PermissionError)
        with pytest.raises(NotPermittedError, match="to call its processes"):
            await a.call(pid, Total())
        with pytest.raises(NotPermittedError, match="to call its processes, and ask"):
            await there.whereis("puppet")
        for act in (there.info, there.processes, there.tree, there.crashes, there.network):
            with pytest.raises(NotPermittedError, match="to look into it"):
                await act()
        with pytest.raises(NotPermittedError, match="to look into it"):
            await a.inspect(pid)
        with pytest.raises(NotPermittedError, match="to start processes on it"):
            await there.spawn("worker")
        with pytest.raises(NotPermittedError, match="to link to its processes"):
            await a.wait_ended(pid)
        watcher = await a.spawn(Talker, heard)
        await a.call(watcher, lambda me: me.monitor(pid))
        await until(lambda: heard)
        assert isinstance(heard[0], Down)
        assert "does not permit 'a@test' to link to its processes" in str(heard[0].reason)
        assert a.send_exit(pid)
        assert a.kill(pid)

        counts = {"send": 2, "call": 2, "look": 6, "spawn": 1, "watch": 2, "exit": 1, "kill": 1}
        expected = {f"not permitted: {permit}": count for permit, count in counts.items()}
        await until(lambda: b.network().peers["a@test"].refused == expected)
        await until(lambda: a.network().peers["b@test"].refused_there == expected)
        assert b.process_info(pid).messages_in == 0
        assert [letter.why for letter in b.dead_letters()] == 2 * [Why.NOT_PERMITTED]
        account = b.network().peers["a@test"]
        assert account.taken == account.received - sum(counts.values())


async def test_the_sender_of_a_third_node_needs_the_permit_to_forward(networks: Any) -> None:
    network = networks(allow={"b@test": "send,call"})
    async with (
        two_nodes(network) as (a, b),
        running_node("c@test", network=network) as c,
    ):
        counter = await c.spawn(Counter, name="counter")
        relay = await b.spawn(Forwarding, counter)
        with pytest.raises(NotPermittedError, match="to send messages of a third node"):
            await a.call(relay, Total())
        a.send(relay, Add(1))
        await until(lambda: c.network().peers["b@test"].refused)
        assert await b.call(counter, Total()) == 0
        assert await a.call(Name("counter", "c@test"), Total()) == 0
        assert c.network().peers["b@test"].refused == {"not permitted: forward": 2}


async def test_a_node_with_all_permits_may_do_all(networks: Any) -> None:
    network = networks(allow={"a@*": list(PERMITS)}, spawns={"counter": Counter})
    async with two_nodes(network) as (a, b):
        pid = await a.at("b@test").spawn("counter")
        assert await a.call(pid, Echo(1)) == 1
        assert (await a.at("b@test").process_info(pid)).pid == pid
        assert a.kill(pid)
        assert str(await b.wait_ended(pid)) == "killed"
