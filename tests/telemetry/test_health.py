"""The probes: alive, ready, started; from supervision, from own checks, and while blocked."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    Actor,
    Application,
    Backoff,
    BadInputError,
    Caller,
    ChildSpec,
    Reject,
    RestartPolicy,
    SupervisorSpec,
)
from ergo_py.network import Memory
from ergo_py.telemetry import Health, HealthPage, read_figures
from ergo_py.telemetry import health as module
from ergo_py.telemetry.metrics import families_of
from ergo_py.telemetry.text import write_prometheus
from ergo_py.web import Drain, Route, WebServer
from tests.actors import Puppet, Recorder
from tests.network.pairs import network_of
from tests.support import running_node
from tests.web.rig import get, serving


async def probe(health: Health, path: str) -> tuple[int, Any]:
    status, body = await trio.to_thread.run_sync(health.answer, path)
    return status, json.loads(body)


async def test_a_node_that_works_is_alive_ready_and_started() -> None:
    async with running_node() as node:
        health = Health(node)

        assert await probe(health, "/healthz") == (200, {"status": "alive"})
        assert await probe(health, "/readyz") == (200, {"status": "ready"})
        assert await probe(health, "/below/startupz") == (200, {"status": "started"})
        status, facts = await probe(health, "/metrics")
        assert (status, facts["status"]) == (404, "unknown")


async def test_a_blocked_loop_is_dead_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.3)
    async with running_node() as node:
        pid = await node.spawn(Puppet, name="till")
        found: list[Any] = []
        done = threading.Event()
        health = Health(node, {"till": "till"})

        def look() -> None:
            statuses: list[int] = []
            while 503 not in statuses:
                statuses.append(health.answer("/healthz")[0])
            found.append([json.loads(health.answer(path)[1]) for path in ("healthz", "readyz")])
            done.set()

        def block(_: Puppet) -> bool:
            threading.Thread(target=look).start()
            return done.wait(30)

        assert await node.call(pid, block)
        live, ready = found[0]

        assert live["status"] == "blocked"
        assert live["seconds"] >= 0.3
        assert live["by"] == {
            "process": str(pid),
            "name": "till",
            "behaviour": "Puppet",
            "callback": "handle_call",
            "message_type": "function",
        }
        assert "blocked" in ready["because"][0]
        assert await probe(health, "/healthz") == (200, {"status": "alive"})


async def test_a_node_is_ready_only_while_every_application_runs() -> None:
    async with running_node() as node:
        health = Health(node)
        node.load_applications(Application("shop", [ChildSpec("till", Recorder)]))

        assert await probe(health, "/startupz") == (
            503,
            {"status": "not ready", "because": ["the application 'shop' is pending"]},
        )
        await node.start_applications()
        assert await probe(health, "/readyz") == (200, {"status": "ready"})
        await node.stop_applications()
        assert (await probe(health, "/readyz"))[1]["because"] == [
            "the application 'shop' is completed"
        ]
        assert await probe(health, "/startupz") == (200, {"status": "started"})


class Broken(Actor):
    """Starts once, and never again."""

    starts = 0

    def init(self) -> None:
        type(self).starts += 1
        if self.starts > 1:
            raise OSError("the till is jammed")

    def handle_message(self, message: object, sender: object) -> None:
        raise ValueError("told to")


@pytest.fixture(autouse=True)
def unbroken() -> None:
    Broken.starts = 0


async def test_a_node_that_has_left_its_network_is_not_ready() -> None:
    async with running_node("a@test", network=Memory()) as node:
        health, network = Health(node), network_of(node)
        assert await probe(health, "/readyz") == (200, {"status": "ready"})
        assert read_figures(node).network_joined is True

        network.left("another node has the name 'a@test'")
        because = ["the node has left its network: another node has the name 'a@test'"]
        assert await probe(health, "/readyz") == (503, {"status": "not ready", "because": because})
        assert await probe(health, "/healthz") == (200, {"status": "alive"})
        assert node.network().left == "another node has the name 'a@test'"
        assert 'ergo_network_joined{node="a@test"} 0' in joined_line(node)

        network.joined()
        assert await probe(health, "/readyz") == (200, {"status": "ready"})
        assert node.network().left == ""
        assert 'ergo_network_joined{node="a@test"} 1' in joined_line(node)


def joined_line(node: Any) -> str:
    return write_prometheus(families_of(read_figures(node)))


async def test_a_node_without_a_network_has_no_metric_of_it() -> None:
    async with running_node() as node:
        assert read_figures(node).network_joined is None
        assert "ergo_network_joined" not in joined_line(node)


def till(restart: RestartPolicy) -> SupervisorSpec:
    return SupervisorSpec(
        [ChildSpec("till", Broken, restart=restart, backoff=Backoff(4.0, 4.0, jitter=0.0))],
        intensity=1000,
    )


@pytest.mark.counted
async def test_a_permanent_child_that_stays_down_makes_the_node_not_ready(
    autojump_clock: MockClock,
) -> None:
    async with running_node(limit=1000) as node:
        await node.supervise(till(RestartPolicy.PERMANENT), name="front")
        health = Health(node)
        node.send("till", "crash")
        await trio.sleep(9)
        early = health.answer("readyz")
        await trio.sleep(2)
        late = health.answer("readyz")
        Broken.starts = 0
        await trio.sleep(5)

        assert early[0] == 200
        assert json.loads(late[1])["because"] == ["the child 'till' of front is backing off"]
        assert health.answer("readyz")[0] == 200


async def test_a_child_that_is_not_permanent_may_end(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        await node.supervise(till(RestartPolicy.TEMPORARY))
        node.send("till", "crash")
        await trio.sleep(30)

        assert Health(node).answer("readyz")[0] == 200


@pytest.mark.counted
async def test_a_disabled_child_makes_the_node_not_ready(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        front = await node.supervise([ChildSpec("till", Recorder)], name="front")
        await front.disable_child("till")

        assert json.loads(Health(node).answer("readyz")[1])["because"] == [
            "the child 'till' of front is disabled"
        ]


async def test_a_node_that_stops_or_drains_is_not_ready() -> None:
    async with running_node() as node:
        server = WebServer()
        owner = await node.spawn(Puppet)
        alias = await node.call(owner, lambda me: me.spawn_meta(server))
        health = Health(node)
        before = await probe(health, "readyz")
        await node.call(alias, Drain(timeout=1.0))
        draining = await probe(health, "readyz")
        node.stop()
        stopping = health.answer("readyz")

    assert before[0] == 200
    assert draining[1]["because"] == ["the WebServer is draining"]
    assert json.loads(stopping[1])["because"] == ["the node is stopping"]
    assert await probe(health, "healthz") == (503, {"status": "stopped"})


class Checked(Actor):
    """Answers a check with what it was told."""

    def __init__(self, answer: Callable[[], object]) -> None:
        self.answer = answer
        self.asked = 0

    def handle_call(self, request: object, caller: Caller) -> object:
        assert request == Health.Check()
        self.asked += 1
        return self.answer()


def reject() -> object:
    raise Reject(ValueError("password 1234"))


def crash() -> object:
    raise ValueError("password 1234")


@pytest.mark.parametrize(
    "answer, because",
    [
        (lambda: "no connection", "no connection"),
        (lambda: False, "the answer is not True"),
        (lambda: None, "the answer is not True"),
        (reject, "ValueError"),
        (crash, "TargetDownError"),
    ],
)
async def test_a_check_that_fails_says_so_without_secrets(
    answer: Callable[[], object], because: str
) -> None:
    async with running_node() as node:
        await node.spawn(Checked, answer, name="store")
        health = Health(node, {"db": "store"})

        assert await probe(health, "/readyz") == (
            503,
            {"status": "not ready", "because": [f"the check 'db': {because}"]},
        )
        assert (await probe(health, "/healthz"))[0] == 200


async def test_a_check_that_succeeds_serves_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    now = 1000.0
    monkeypatch.setattr(module, "perf_counter", lambda: now)

    def answer() -> bool:
        asked.append(1)
        return True

    async with running_node() as node:
        await node.spawn(Checked, answer, name="store")
        health = Health(node, {"db": "store"})
        for moment in (1000.0, 1001.0, 1001.1, 1002.0):
            now = moment
            assert (await probe(health, "/readyz"))[0] == 200

        assert len(asked) == 2


async def test_a_check_without_an_answer_or_without_a_process_fails() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        gate = trio.Event()

        async def hold(_: Puppet) -> None:
            await gate.wait()

        node.send(pid, hold)
        await wait_all_tasks_blocked()

        # Two, since a busy machine answers nothing within the short time of the first.
        _, slow = await probe(Health(node, {"slow": pid}, check_timeout=0.05), "/readyz")
        _, gone = await probe(Health(node, {"gone": "nowhere"}, check_timeout=60), "/readyz")
        gate.set()

        assert slow["because"] == ["the check 'slow': no answer within 0.05 s"]
        assert gone["because"] == ["the check 'gone': TargetDownError"]


async def test_routes_serve_the_probes() -> None:
    async with running_node() as node:
        page = HealthPage(Health(node))
        routes = [Route("/healthz", to=page), Route("/readyz", to=HealthPage(node))]
        async with serving(routes=routes) as served:
            alive = await served.ask(get("/healthz"))
            ready = await served.ask(get("/readyz"))
            posted = await served.ask(get("/readyz", method="DELETE"))

            assert (alive.status, alive.body) == (200, b'{"status": "alive"}')
            assert (ready.status, ready.body) == (200, b'{"status": "ready"}')
            assert alive.headers["content-type"] == "application/json"
            assert posted.status == 405


@pytest.mark.parametrize("checks", ["store", ["store"], {"db": 5}, {5: "store"}, {"db": None}])
async def test_a_check_that_is_no_address_is_refused(checks: Any) -> None:
    async with running_node() as node:
        with pytest.raises(BadInputError, match="Health"):
            Health(node, checks)


def test_another_value_than_a_node_is_refused() -> None:
    wrong: Any = "shop@localhost"
    with pytest.raises(BadInputError, match="an open node"):
        HealthPage(wrong)
