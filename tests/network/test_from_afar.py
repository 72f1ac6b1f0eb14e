"""`node.at("b@site")` looks into another node, and starts processes there."""

from typing import Any

import pytest
import trio

from ergo_py import (
    PID,
    Actor,
    Application,
    BadInputError,
    CallTimeoutError,
    ChildSpec,
    Crashed,
    Exit,
    InitError,
    Name,
    NameTakenError,
    NoNode,
    NotAllowedError,
    RestartPolicy,
    Shutdown,
    SpawnError,
    TargetDownError,
)
from ergo_py.errors import ProcessUnknownError
from ergo_py.meta import UnixServer
from ergo_py.network import RemoteError, UnreadableError
from ergo_py.network.access import spawns
from ergo_py.network.node_requests import chunks
from tests.actors import Puppet
from tests.network.pairs import Add, Total, make_network, network_of, two_nodes, until
from tests.network.test_nodes import Counter, Talker
from tests.support import running_node

LOOK: dict[str, Any] = {"allow": "default,look"}
SPAWN: dict[str, Any] = {"allow": "default,spawn"}


class Inspected(Actor):
    """Has diagnostics, and fails on request."""

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"items": ",".join(items)}

    def handle_message(self, message: Any, sender: Any) -> None:
        raise ValueError("broken")


class Guarded(Actor):
    """Its diagnostics depend on the asker."""

    def handle_inspect(self, *items: str, asker: PID | None = None) -> dict[str, str]:
        return {"asker": str(asker)}


async def test_an_inspection_passes_the_node_of_its_asker(networks: Any) -> None:
    async with two_nodes(networks(**LOOK)) as (a, b):
        pid = await b.spawn(Guarded)

        assert await a.inspect(pid) == {"asker": str(a.pid)}
        assert await a.at(b.name).inspect(pid) == {"asker": str(a.pid)}


class Choosy(Actor):
    """Its ``init`` fails for some numbers."""

    def __init__(self, number: int) -> None:
        self.number = number

    def init(self) -> None:
        if self.number < 0:
            raise ValueError("negative")

    def handle_call(self, request: Any, caller: Any) -> int:
        return self.number


async def test_a_node_looks_into_another_node_as_into_itself(networks: Any) -> None:
    """Answers have the same types, and the same values, as on the node itself."""
    async with two_nodes(networks(**LOOK), expose_env=True, env={"key": object()}) as (a, b):
        supervisor = await b.supervise(
            [ChildSpec("inspected", Inspected, restart=RestartPolicy.TEMPORARY)], name="top"
        )
        pid = supervisor.children()[0].pid
        assert pid is not None
        there = a.at("b@test")
        await there.ping()

        info, local = await there.process_info(pid), b.process_info(pid)
        assert type(info) is type(local)
        assert (info.pid, info.state, info.lanes, info.parent, info.phase) == (
            local.pid,
            local.state,
            local.lanes,
            local.parent,
            local.phase,
        )
        assert info.env is not None
        assert str(info.env["key"]).startswith("<object object")
        above = await there.process_info("top")
        assert above.supervision is not None
        assert above.supervision.children[0].name == "inspected"
        assert await there.process_info(Name("top", "b@test")) is not None
        assert await there.processes() == b.processes()
        assert (await there.tree()).text() == b.tree().text()
        node = await there.info()
        assert (node.name, node.processes) == ("b@test", b.info().processes)
        assert await there.inspect(pid, "x", "y") == {"items": "x,y"}
        assert await a.inspect(pid, "z") == {"items": "z"}
        assert "ergo.node_up" in await there.events()
        assert await there.applications() == []
        assert (await there.network()).peers["a@test"].state == "up"

        b.send(pid, "fail")
        await until(b.crashes)
        obituary = (await there.crashes(1))[0]
        assert isinstance(obituary.reason, Crashed)
        assert isinstance(obituary.reason.error, ValueError)
        assert obituary.traceback == b.crashes()[0].traceback
        assert (await there.ended())[0] == obituary
        assert a.send(pid, Add(1))
        await until(b.dead_letters)
        assert await there.dead_letters() == b.dead_letters()


@pytest.mark.counted
async def test_a_meta_process_of_another_node_is_looked_at(networks: Any, short_path: Any) -> None:
    class Owner(Actor):
        async def init(self) -> None:
            await self.spawn_meta(UnixServer(short_path / "s"))

    async with two_nodes(networks(**LOOK)) as (a, b):
        await b.spawn(Owner)
        there = a.at("b@test")
        (alias,) = await there.metas()
        info = await there.meta_info(alias)
        assert (info.alias, info.behaviour) == (alias, "UnixServer")
        assert (await there.inspect_meta(alias, "local"))["local"] == str(short_path / "s")
        assert (await a.inspect_meta(alias, "local"))["local"] == str(short_path / "s")
        with pytest.raises(NotAllowedError, match=r"write `await node.at\('b@test'\)"):
            a.meta_info(alias)


async def test_a_look_at_a_missing_process_raises_the_error_of_its_node(networks: Any) -> None:
    async with two_nodes(networks(**LOOK)) as (a, b):
        pid = await b.spawn(Puppet, name="puppet")
        there = a.at("b@test")
        with pytest.raises(ProcessUnknownError, match="did you mean 'puppet'") as missing:
            await there.process_info("pupet")
        assert missing.value.target == Name("pupet", "b@test")
        with pytest.raises(BadInputError, match="an address on the node b@test"):
            await there.process_info(a.pid)
        with pytest.raises(BadInputError, match="count"):
            await there.crashes(-1)
        with pytest.raises(NotAllowedError, match=r"write `await node.at\('b@test'\)"):
            a.process_info(pid)
        with pytest.raises(NotAllowedError, match=r"write `await node.at\('b@test'\)"):
            await a.get_state(pid)
        with pytest.raises(NotAllowedError, match=r"write `await node.at\('b@test'\)"):
            a.peek(pid)
        peer = network_of(a).peer("b@test")
        for asked in (["stop", [], {}], ["info"], 5, ["get_state", [pid], {}]):
            with pytest.raises(UnreadableError, match="does not know the request 'look'"):
                await peer.ask("look", None, asked, 5.0)


async def test_a_busy_process_is_given_up_after_the_time_limit(autojump_clock: Any) -> None:
    class Busy(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await trio.sleep(100)

    async with two_nodes(make_network("memory", **LOOK), limit=1000) as (a, b):
        pid = await b.spawn(Busy)
        b.send(pid, "work")
        with pytest.raises(CallTimeoutError) as late:
            await a.inspect(pid, timeout=2)
        assert late.value.timeout == 2


async def test_a_large_tree_travels_in_pieces(monkeypatch: Any) -> None:
    monkeypatch.setattr(chunks, "_CHUNK", 1000)
    async with two_nodes(make_network("memory", **LOOK)) as (a, b):
        for number in range(100):
            await b.spawn(Puppet, name=f"process {number}")
        there = a.at("b@test")
        trees = []
        async with trio.open_nursery() as nursery:
            for _ in range(3):

                async def take() -> None:
                    trees.append((await there.tree()).text())

                nursery.start_soon(take)
        assert trees == 3 * [b.tree().text()]

        peer = network_of(a).peer("b@test")
        first = [await peer.ask("look", None, ["tree", [], {}], 5.0) for _ in range(5)]
        with pytest.raises(NotAllowedError, match="no longer kept; ask again"):
            await peer.ask("more", None, [first[0][1], 1000], 5.0)
        assert await peer.ask("more", None, [first[1][1], 1000], 5.0)

        monkeypatch.setattr(chunks, "LARGEST_ANSWER", 5000)
        with pytest.raises(NotAllowedError, match="the limit between nodes is 5000; ask for less"):
            await there.tree()


async def test_the_node_is_lost_while_it_is_asked(autojump_clock: Any) -> None:
    network = make_network("memory", **LOOK)
    errors: list[Any] = []
    reasons: list[Any] = []
    async with two_nodes(network, limit=1000) as (a, b):
        pid = await b.spawn(Puppet)
        there = a.at("b@test")
        await there.ping()

        async def ask() -> None:
            with pytest.raises(TargetDownError) as error:
                await there.tree(timeout=None)
            errors.append(error.value.reason)

        async def wait() -> None:
            reasons.append(await a.wait_ended(pid))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1)
            network.freeze("b@test")
            nursery.start_soon(ask)
        network.thaw("b@test")
    assert errors == reasons == [NoNode("b@test")]


async def test_the_end_of_a_process_of_another_node_is_awaited(networks: Any) -> None:
    async with two_nodes(networks()) as (a, b):
        pid = await b.spawn(Puppet)
        reasons = []
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                reasons.append(await a.wait_ended(pid))

            nursery.start_soon(wait)
            await a.at("b@test").ping()
            b.send_exit(pid, Shutdown("enough"))
        assert reasons == [Shutdown("enough")]
        assert await a.wait_ended(pid) == Shutdown("enough")
        with pytest.raises(ProcessUnknownError):
            await a.wait_ended(Name("nothing", "b@test"))


# -- spawn ---------------------------------------------------------------------------------------


async def test_a_node_starts_listed_behaviours_on_another_node(networks: Any) -> None:
    network = networks(spawns={"choosy": Choosy, "five": Choosy.spec(5)}, **SPAWN)
    async with two_nodes(network) as (a, b):
        there = a.at("b@test")
        pid = await there.spawn("choosy", 7, name="seven")
        assert pid.node == "b@test"
        assert await a.call(Name("seven", "b@test"), Total()) == 7
        assert b.process_info(pid).parent == b.pid
        assert await a.call(await there.spawn("five"), Total()) == 5

        with pytest.raises(NameTakenError) as taken:
            await there.spawn("choosy", 8, name="seven")
        assert taken.value.holder == pid
        with pytest.raises(InitError, match="init of Choosy raised ValueError: negative") as failed:
            await there.spawn("choosy", -1)
        assert isinstance(failed.value.__cause__, ValueError)
        with pytest.raises(InitError, match=r"Choosy\.__init__"):
            await there.spawn("choosy")
        with pytest.raises(
            SpawnError,
            match=r"the node 'b@test' lists no behaviour 'chosy', but 'choosy', 'five'; open its "
            r"network with spawns=\{'chosy': …\}; did you mean 'choosy'?",
        ):
            await there.spawn("chosy", 1)
        assert len(b.processes()) == 2


async def test_a_linked_process_ends_with_the_process_that_started_it(networks: Any) -> None:
    heard: list[Any] = []
    network = networks(spawns={"counter": Counter}, **SPAWN)
    async with two_nodes(network) as (a, b):
        talker = await a.spawn(Talker, heard)

        async def spawn(me: Any) -> Any:
            return await me.node.at("b@test").spawn("counter", link=True)

        first, second = await a.call(talker, spawn), await a.call(talker, spawn)
        b.send_exit(first, Shutdown("first"))
        await until(lambda: heard)
        assert heard == [Exit(first, Shutdown("first"))]
        a.kill(talker)
        assert str(await b.wait_ended(second)) == "killed"
        with pytest.raises(BadInputError, match="in a callback of a process"):
            await a.at("b@test").spawn("counter", link=True)


async def test_a_node_lists_nothing_by_default_and_limits_the_rate(
    autojump_clock: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(spawns, "_RATE", 3)
    async with two_nodes(make_network("memory", **SPAWN), limit=1000) as (a, _):
        with pytest.raises(SpawnError, match="lists no behaviour 'x', but none"):
            await a.at("b@test").spawn("x")
        wrong: Any
        for wrong in (5, "", Counter):
            with pytest.raises(BadInputError, match="a name that b@test lists"):
                await a.at("b@test").spawn(wrong)
    network = make_network("memory", spawns={"counter": Counter}, **SPAWN)
    async with two_nodes(network, limit=1000) as (a, b):
        there = a.at("b@test")
        for _ in range(3):
            await there.spawn("counter")
        with pytest.raises(SpawnError, match="may start 3 processes in a second on 'b@test'"):
            await there.spawn("counter")
        await trio.sleep(0.4)
        await there.spawn("counter")
        assert len(b.processes()) == 4


async def test_a_wrong_list_is_refused_when_the_network_is_described() -> None:
    wrong: Any
    for wrong in ({"x": 5}, {5: Counter}, {"": Counter}, [Counter]):
        with pytest.raises(BadInputError, match="spawn"):
            make_network("memory", spawns=wrong)


async def test_an_error_of_an_unlisted_class_arrives_as_text(networks: Any) -> None:
    class OwnError(Exception):
        pass

    class Failing(Actor):
        def init(self) -> None:
            raise OwnError("odd")

    async with two_nodes(networks(spawns={"failing": Failing}, **SPAWN)) as (a, _):
        with pytest.raises(InitError, match="Failing raised OwnError: odd") as failed:
            await a.at("b@test").spawn("failing")
        assert isinstance(failed.value.__cause__, RemoteError)


async def test_an_application_of_another_node_is_shown(networks: Any) -> None:
    async with (
        running_node("a@test", network=(network := networks(**LOOK))) as a,
        running_node("b@test", network=network) as b,
    ):
        await b.start_applications(Application("shop", [ChildSpec("counter", Counter)]))
        (found,) = await a.at("b@test").applications()
        assert (found.name, found.phase) == (b.applications()[0].name, b.applications()[0].phase)
