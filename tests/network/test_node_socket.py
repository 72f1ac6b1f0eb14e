"""The socket and the lock of a node's name in a `Local` network, whose files are removed."""

import os
import signal
import socket
import time
from contextlib import closing
from pathlib import Path

import pytest

from ergo_py import TargetDownError
from ergo_py.cluster import Cluster
from ergo_py.network.carriers import local_carrier
from ergo_py.network.carriers.node_socket import NodeSocket, remove_leftovers
from tests.actors import Recorder
from tests.network.pairs import Total, make_network, two_nodes, until
from tests.network.programs import COUNTER, running_program
from tests.network.test_nodes import Counter
from tests.support import running_node


@pytest.fixture
def path(meeting_place: Path) -> Path:
    return meeting_place / "a@test.node"


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def make_old(path: Path) -> None:
    os.utime(path, (time.time() - 1e6, time.time() - 1e6))


def test_a_name_that_is_given_up_leaves_no_file(path: Path) -> None:
    first = NodeSocket(path)
    with pytest.raises(BlockingIOError):
        NodeSocket(path)
    assert first.keep() == ""
    first.close()
    first.close()
    assert os.listdir(path.parent) == []
    with closing(NodeSocket(path)) as second:
        assert second.keep() == ""


def test_a_lock_is_touched_so_that_no_cleaner_removes_it(path: Path) -> None:
    with closing(NodeSocket(path)) as ours:
        lock = path.with_suffix(".lock")
        make_old(lock)
        assert ours.keep() == ""
        assert time.time() - lock.stat().st_mtime < 3600


def test_a_lock_that_was_removed_is_made_again(path: Path) -> None:
    with closing(NodeSocket(path)) as ours:
        path.with_suffix(".lock").unlink()
        assert ours.keep() == ""
        with pytest.raises(BlockingIOError):
            NodeSocket(path)


def test_a_name_that_another_node_has_by_now_is_lost(path: Path) -> None:
    first = NodeSocket(path)
    path.with_suffix(".lock").unlink()
    with closing(NodeSocket(path)) as second:
        assert "another node has its name" in first.keep()
        first.close()  # leaves the files of the other node alone
        assert second.keep() == ""
        assert listens(path)


def test_a_socket_that_was_removed_or_replaced_is_lost(path: Path) -> None:
    first = NodeSocket(path)
    path.with_suffix(".lock").unlink()
    second = NodeSocket(path)
    os.rename(path, path.with_name("kept"))
    second.close()
    assert "was removed" in first.keep()
    os.rename(path.with_name("kept"), path)
    assert "has replaced its socket" in first.keep()
    first.close()


def test_a_directory_that_takes_no_socket_keeps_no_lock(path: Path) -> None:
    path.mkdir()
    with pytest.raises(OSError, match=r"directory|not empty"):
        NodeSocket(path)
    assert os.listdir(path.parent) == ["a@test.node"]


def test_the_files_of_killed_programs_are_removed(path: Path) -> None:
    place = path.parent
    running, killed = NodeSocket(path), NodeSocket(place / "b@test.node")
    fresh = NodeSocket(place / "c@test.node")
    killed.forked()
    fresh.forked()  # a program that was killed a moment ago
    for name in ("a@test.lock", "b@test.lock"):
        make_old(place / name)
    remove_leftovers(place)
    assert sorted(os.listdir(place)) == ["a@test.lock", "a@test.node", "c@test.lock", "c@test.node"]
    running.close()


async def test_a_node_without_its_name_leaves_the_network_and_joins_it_again(
    meeting_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_carrier, "_KEEP", 0.01)
    monkeypatch.setattr(local_carrier, "_AGAIN", 0.01)
    network = make_network("local", meeting_place)
    async with two_nodes(network) as (a, b):
        await b.spawn(Counter, name="counter")
        assert await a.call(COUNTER, Total()) == 0
        (meeting_place / "a@test.lock").unlink()
        with closing(NodeSocket(meeting_place / "a@test.node")):
            await until(lambda: a.network().left)
            assert "another node has its name" in a.network().left
            with pytest.raises(TargetDownError, match="another node has its name"):
                await a.call(COUNTER, Total())
        await until(lambda: not a.network().left)
        assert await a.call(COUNTER, Total()) == 0


FORKING = """
import os, sys, time, trio
from ergo_py import open_node
from ergo_py.cluster import Cluster
from tests.network.pairs import make_network
from tests.actors import Recorder

async def main():
    network = make_network("local", sys.argv[1])
    async with open_node("a@test", network=network, watchdog=None) as node:
        await Cluster(node).register("stock", await node.spawn(Recorder))
        child = os.fork()
        if not child:
            time.sleep(600)
        with open(sys.argv[1] + "/child", "w") as file:
            file.write(str(child))
        print("ready", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


async def test_a_forked_child_keeps_neither_the_name_nor_the_leases_of_its_parent(
    meeting_place: Path,
) -> None:
    place = str(meeting_place)
    async with running_program("-c", FORKING, place) as program:
        child = int((meeting_place / "child").read_text(encoding="ascii"))
        try:
            program.kill()
            await program.wait()
            # The child has a copy of all descriptors.
            async with running_node("a@test", network=make_network("local", place)) as node:
                assert await Cluster(node).whereis("stock") is None
                await Cluster(node).register("stock", await node.spawn(Recorder))
        finally:
            os.kill(child, signal.SIGKILL)
