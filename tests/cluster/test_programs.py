"""Singletons in programs that are killed and stopped, and with a real NATS server."""

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, suppress
from math import inf
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import pytest
import trio

from ergo_py.cluster import Cluster
from ergo_py.network import NATS, StoreError
from ergo_py.network.stores import local_store
from ergo_py.network.stores.local_store import LocalStore
from ergo_py.network.stores.nats_store import bucket_of
from ergo_py.network.stores.store import LARGEST, ConflictError
from tests.actors import Recorder
from tests.cluster.programs import Journal, singleton_program
from tests.network.nats.server import NatsServer, ThreeServers
from tests.network.pairs import carrier_of, until
from tests.network.support import ask_jetstream, publish_to_jetstream
from tests.support import THOROUGH, running_node

T = TypeVar("T")


def _stop(program: trio.Process, *paths: Path) -> None:
    """Stop a program that has none of these locks: the test has them."""
    with ExitStack() as stack:
        for path in paths:
            fcntl.flock(stack.enter_context(path.open()), fcntl.LOCK_EX)
        program.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, program.pid, os.WSTOPPED | os.WNOWAIT)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory for sockets, with a path that is short enough for them."""
    with tempfile.TemporaryDirectory(prefix="ergo-", dir="/tmp") as directory:
        os.chmod(directory, 0o700)
        yield Path(directory)


async def test_the_singleton_of_a_killed_program_starts_elsewhere_at_once(place: Path) -> None:
    journal = Journal(place / "journal")
    local: Any = {"kind": "local", "place": str(place), "lease": 3600.0}
    async with singleton_program("a@test", journal, **local) as program:
        await until(lambda: journal.has("a@test", "act"))
        async with singleton_program("b@test", journal, **local):
            program.kill()
            # The lease lasts an hour, and the lock of the program is gone.
            await until(lambda: journal.has("b@test", "act"))
    journal.check()


async def test_a_stopped_program_does_not_act_after_its_lease(place: Path) -> None:
    journal = Journal(place / "journal")
    local: Any = {"kind": "local", "place": str(place), "lease": 2.0}
    async with (
        singleton_program("a@test", journal, **local) as program,
    ):
        await until(lambda: journal.has("a@test", "act"))
        async with singleton_program("b@test", journal, **local):
            _stop(program, place / "journal.lock", place / "names" / ".lock")
            await until(lambda: journal.has("b@test", "act"))
            program.send_signal(signal.SIGCONT)
            await until(lambda: journal.has("a@test", "end"))
            count = len(journal.lines())
            await until(lambda: len(journal.lines()) > count + 5)
    journal.check()


async def test_names_survive_a_killed_server_and_are_refused_without_jetstream(
    place: Path,
) -> None:
    with NatsServer("", "--jetstream", "--store_dir", str(place)) as server:
        network = NATS(server.url, patience=60.0)
        async with running_node("a@test", network=network) as a:
            cluster, pid = Cluster(a), await a.spawn(Recorder)
            await cluster.register("stock", pid, lease=1.0, ending=0.1, wait=60)
            await cluster.unregister("stock")
            # An entry that was removed leaves a marker, and can be made again.
            await cluster.register("stock", pid, lease=600.0, ending=1.0)
            server.kill()
            with pytest.raises(StoreError, match="JetStream does not answer within 2 s"):
                await cluster.whereis("stock")
            server.start()
            with trio.fail_after(60):
                while True:
                    try:
                        found = await cluster.whereis("stock")
                    except StoreError:
                        continue
                    break
            assert found == pid
    with NatsServer() as server:
        network = NATS(server.url)
        async with running_node("a@test", network=network) as a:
            with pytest.raises(StoreError, match="start the server with `nats-server --jetstream`"):
                await Cluster(a).whereis("stock")


@pytest.mark.skipif(
    not THOROUGH, reason="three servers take a while: python -m benchmarks test-deep"
)
async def test_a_killed_leader_of_three_servers_costs_no_name(place: Path) -> None:
    with ThreeServers(place) as servers:
        network = NATS([server.url for server in servers], patience=60.0)
        async with running_node("a@test", network=network, limit=300) as a:
            cluster, pid = Cluster(a), await a.spawn(Recorder)
            # The marker of a removed entry lets the next registration begin at once.
            await cluster.register("stock", pid, lease=1.0, ending=0.1, wait=120)
            await cluster.unregister("stock")
            await cluster.register("stock", pid, lease=600.0, ending=1.0)
            store = carrier_of(a).store()
            status = await store.status()
            assert status["config"]["num_replicas"] == 3
            servers[int(status["cluster"]["leader"].removeprefix("server-"))].kill()
            with trio.fail_after(120):
                while True:
                    try:
                        await store.put("probe", b"value", 0)
                    except StoreError:
                        continue
                    break
            assert await cluster.whereis("stock") == pid


async def test_each_store_compares_before_it_sets(network: Any) -> None:
    async with running_node("a@test", network=network) as node:
        store = carrier_of(node).store()
        key = "a name/with. odd*signs>ü"
        assert await store.get(key) is None
        with pytest.raises(ConflictError):
            await store.put(key, b"one", 77)
        first = await store.put(key, b"one", 0)
        with pytest.raises(ConflictError):
            await store.put(key, b"two", 0)
        second = await store.put(key, b"two", first.revision)
        assert second.revision > first.revision
        assert first.number < second.number <= LARGEST
        with pytest.raises(ConflictError):
            await store.put(key, b"three", first.revision)
        with pytest.raises(ConflictError):
            await store.delete(key, first.revision)
        assert await store.get(key) == second
        assert second.value == b"two"
        await store.delete(key, second.revision)
        # Some stores leave a marker in its place.
        marker = await store.get(key)
        assert marker is None or not marker.value
        third = await store.put(key, b"three", 0 if marker is None else marker.revision)
        assert third.revision > second.revision
        assert third.number > second.number
        age = await store.age()
        assert age.made >= 0.0
        assert age.whole == inf
        assert not store.is_gone(node.name, node.pid.creation)


async def test_a_clock_that_is_set_back_gives_no_number_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a lease grows, also after its process has given the name up."""
    with closing(LocalStore(tmp_path, "a@test", 1)) as store:
        first = await store.put("key", b"one", 0)
        await store.delete("key", first.revision)
        monkeypatch.setattr(local_store, "time", Mock(time_ns=lambda: 5, monotonic=time.monotonic))
        assert (await store.put("key", b"two", 0)).number > first.number


async def test_a_bucket_that_is_removed_is_made_again_and_counts_as_new(
    jetstream: NatsServer,
) -> None:
    network = NATS(jetstream.url, cluster="removed, ü")
    async with running_node("a@test", network=network) as node:
        store = carrier_of(node).store()
        first = await store.put("key", b"value", 0)
        before = (await store.age()).made
        await trio.sleep(0.2)
        assert (await store.age()).made > before
        client = carrier_of(node).client
        client.publish(f"$JS.API.STREAM.DELETE.KV_{bucket_of('removed, ü')}", "", b"")
        await client.flush()
        with pytest.raises(StoreError, match="is gone; it is made again"):
            while True:
                await store.get("key")
        assert await store.get("key") is None
        age = await store.age()
        assert age.made < 60.0
        # No revision is used again: a program that was stopped may still write with it.
        second = await store.put("key", b"value", 0)
        assert second.revision > first.revision
        assert second.number > first.number


async def test_a_bucket_restored_from_a_backup_counts_as_new_and_gives_no_number_twice(
    place: Path,
) -> None:
    jetstream, backup = place / "jetstream", place / "backup"
    with NatsServer("", "--jetstream", "--store_dir", str(jetstream)) as server:

        async def answered(function: Callable[[], Awaitable[T]]) -> T:
            while True:
                with suppress(StoreError):
                    return await function()

        network = NATS(server.url, patience=60.0)
        async with (
            running_node("a@test", network=network, limit=60) as a,
            running_node("b@test", network=network, limit=60) as b,
        ):
            store, other = carrier_of(a).store(), carrier_of(b).store()
            first = await store.put("key", b"one", 0)
            await store.delete("key", first.revision)
            server.kill()
            shutil.copytree(jetstream, backup)
            server.start()
            marker = await answered(lambda: other.get("key"))
            assert marker is not None
            assert (await answered(other.age)).whole == inf  # nothing is lost
            second = await answered(lambda: store.put("key", b"two", marker.revision))
            server.kill()
            shutil.rmtree(jetstream)
            shutil.copytree(backup, jetstream)
            server.start()

            # Node a notices the loss, and node b, which has not seen the second entry, is told.
            assert (await answered(lambda: store.get("key"))) == marker
            assert (await answered(store.age)).whole < 60
            assert (await answered(other.age)).whole < 60
            third = await answered(lambda: other.put("key", b"three", marker.revision))
            assert third.revision <= second.revision + 1  # sequences of the lost bucket again
            assert third.number > second.number


async def test_the_bucket_takes_no_large_entries_and_is_not_emptied(jetstream: NatsServer) -> None:
    async with running_node("a@test", network=NATS(jetstream.url, cluster="limits")) as node:
        store = carrier_of(node).store()
        first = await store.put("key", b"value", 0)
        with pytest.raises(StoreError, match="size exceeds"):
            await store.put("large", bytes(5000), 0)
        config = (await store.status())["config"]
        assert config["max_bytes"] == 64 << 20
        stream, bucket = f"KV_{bucket_of('limits')}", bucket_of("limits")
        answer = await ask_jetstream(store, f"$JS.API.STREAM.PURGE.{stream}", {})
        assert "purge not permitted" in answer["error"]["description"]
        answer = await publish_to_jetstream(store, f"$KV.{bucket}.x", {"Nats-Rollup": "all"})
        assert "rollup not permitted" in answer["error"]["description"]
        assert await store.get("key") == first


async def test_files_of_names_that_cannot_be_used_are_named(place: Path) -> None:
    store = LocalStore(place, "a@test", 1)
    await store.put("key", b"value", 0)
    (file,) = (place / "names").glob("=*")
    file.write_bytes(b"broken")
    with pytest.raises(StoreError, match="is no entry of a name; remove the file"):
        await store.get("key")
    assert not store.is_gone("a@test", 1)
    store.close()
    assert not store.is_gone("b@test", 7)
    store = LocalStore(place / "missing" / "place", "a@test", 1)
    with pytest.raises(StoreError, match="No such file"):
        await store.put("key", b"value", 0)
