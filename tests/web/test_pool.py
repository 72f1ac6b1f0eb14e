"""A pool behind a route: every request has a response, whatever is killed."""

import random

import trio

from ergo_py import PID, Actor, Caller, ChildSpec, Node, Pool, PoolSpec, Supervisor, SupervisorSpec
from ergo_py.web import Response, Route
from tests.web.rig import Served, get, serving


class Worker(Actor):
    alive: set[PID] = set()

    def init(self) -> None:
        self.alive.add(self.pid)

    async def handle_call(self, request: object, caller: Caller) -> object:
        await trio.sleep(0.001)
        return Response(200)


def top() -> SupervisorSpec:
    workers = PoolSpec(Worker, size=4, intensity=10_000)
    return SupervisorSpec([ChildSpec("pool", Pool, workers)], intensity=10_000)


async def ask_often(served: Served, statuses: list[int]) -> None:
    peer = await served.dial()
    statuses.extend([(await peer.ask(get())).status for _ in range(40)])


async def kill_often(node: Node, choose: random.Random) -> None:
    """Kill a worker, and sometimes the pool with all its workers."""
    while True:
        pool = node.whereis("pool")
        if pool is not None:
            is_worker = Worker.alive and choose.random() < 0.8
            node.kill(Worker.alive.pop() if is_worker else pool)
        await trio.sleep(0.005)


async def test_every_request_has_a_response_while_a_pool_and_its_workers_are_killed() -> None:
    statuses: list[int] = []
    async with serving(routes=[Route("/", to="pool")]) as served:
        await served.node.spawn(Supervisor, top())
        async with trio.open_nursery() as killing:
            killing.start_soon(kill_often, served.node, random.Random(1))
            async with trio.open_nursery() as asking:
                for _ in range(10):
                    asking.start_soon(ask_often, served, statuses)
            killing.cancel_scope.cancel()

    assert len(statuses) == 400
    assert set(statuses) <= {200, 500, 503}
    assert 200 in statuses
