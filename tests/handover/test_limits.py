"""Hand-overs at a limit: of descriptors, of time, and of sessions that are not ready."""

import os
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py.handover.channel import connect as connect_to_program
from examples.guide.moved_session import Visitor
from tests.actors import LogKeeper
from tests.handover.test_moved_connections import (
    connect,
    door,
    move_to,
    own_sockets,
    receive,
)
from tests.handover.test_moved_processes import old_program
from tests.handover.test_succession import place

__all__ = ["own_sockets", "place"]


@contextmanager
def few_descriptors(free: int) -> Iterator[None]:
    """Let this program open only so many descriptors more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit, used = 0, set(map(int, os.listdir("/proc/self/fd")))
    while free:
        free -= limit not in used
        limit += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_connections_without_a_descriptor_stay_and_the_others_move(
    place: Path, autojump_clock: Any
) -> None:
    log = list[Any]()
    async with old_program(door(Visitor, unix=place), log_level="info", limit=inf) as (old, _):
        old.node.add_logger(await old.node.spawn(LogKeeper, log), "info")
        peers = [await connect(place) for _ in range(40)]
        for peer in peers:
            assert await receive(peer, 8) == b"welcome\n"
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            with few_descriptors(40):
                await move_to(channel, "states", "taken", "yours", "mine")
            for peer in peers:
                await peer.aclose()
            await old.has_ended.wait()
        (taken,) = (record for record in log if record.event == "a successor has taken over")
        moved, staying = taken.fields["connections"], taken.fields["staying"]
        assert moved
        assert staying == {"no descriptor is left": 40 - moved}
