"""Entities that wait for each other in calls, above the limit of entities that are awake."""

from dataclasses import dataclass
from typing import Any

import pytest
import trio

from ergo_py import Actor, Caller, ChildSpec, Reject, Request, ask, exposed
from ergo_py.entities import Entity, MemoryStore
from ergo_py.entities.activations import awaited
from ergo_py.errors import DeadlockError
from tests.entities.support import keeping_of

from .bank import open_bank, run_virtual


@dataclass
class Visits:
    """How often an entity was asked."""

    number: int = 0


@dataclass(frozen=True)
class Follow(Request[str]):
    """Ask the entities of a path in order, each by the one before it."""

    way: str
    path: tuple[str, ...]


class Guide(Actor):
    """Asks an entity for another."""

    async def handle_call(self, request: Any, caller: Caller) -> object:
        """Pass the request on."""
        return await self.entity(Hiker, request.path[0]).call(
            Follow(request.way, request.path[1:]), timeout=None
        )


class Hiker(Entity[Visits]):
    """Asks the next entity while it handles a request."""

    async def init(self) -> None:
        """Ask another entity before the start."""
        if self.key == "waits in init":
            await self.entity(Hiker, "c").call(ask(Hiker.count), timeout=None)

    @exposed
    def count(self) -> int:
        """How often this entity was asked."""
        return self.state.number

    async def handle_call(self, request: Any, caller: Caller) -> object:
        """Ask the next."""
        self.state.number += 1
        if not request.path:
            return self.key
        follow = Follow(request.way, request.path[1:])
        try:
            match request.way:
                case "handle":
                    return await self.entity(Hiker, request.path[0]).call(follow, timeout=None)
                case "node":
                    handle = self.node.entity(Hiker, request.path[0])
                    return await handle.call(follow, timeout=None)
                case _:
                    return await self.service("guide").call(request, timeout=None)
        except DeadlockError as error:
            raise Reject(error) from None


async def _answer(way: str, *path: str, limit: int = 1) -> str:
    kinds = [Hiker]
    async with open_bank(MemoryStore(), kinds=kinds, types=[Follow], max_awake=limit) as node:
        await node.supervise([ChildSpec("guide", Guide)], name="guides")
        with trio.fail_after(60):
            answer = await node.entity(Hiker, "a").call(Follow(way, path), timeout=None)
            # The limit holds again as soon as nothing waits.
            await node.entity(Hiker, "z").call(Follow(way, ()), timeout=None)
            while len(keeping_of(node, Hiker).active) > limit:  # noqa: ASYNC110 - virtual time
                await trio.sleep(1)
        return answer


@pytest.mark.parametrize(
    "way, path", [("handle", "bcd"), ("node", "bcd"), ("through an actor", "b")]
)
def test_entities_that_call_each_other_do_not_wait_for_room(way: str, path: str) -> None:
    assert run_virtual(lambda: _answer(way, *path)) == path[-1]


def test_an_entity_that_calls_another_in_its_init_does_not_wait_for_room() -> None:
    assert run_virtual(lambda: _answer("handle", "waits in init")) == "waits in init"


def test_a_ring_of_entities_is_refused_also_while_a_member_sleeps() -> None:
    with pytest.raises(DeadlockError):
        run_virtual(lambda: _answer("handle", "b", "a"))


def test_without_the_rule_entities_that_call_each_other_stall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(awaited, "Entity", ())

    with pytest.raises(trio.TooSlowError):
        run_virtual(lambda: _answer("handle", "b"))
