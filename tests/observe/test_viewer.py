"""What pages see and do: views, differences, acts, the past, several nodes, a blocked loop."""

import base64
import gzip
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import NO_REPLY, Actor, BadInputError, Caller, ChildSpec, ask, open_node
from ergo_py.control.server import open_control
from ergo_py.entities import Entities, MemoryStore
from ergo_py.entity_handles import entity_figures
from ergo_py.observe import Observe
from ergo_py.observe.history import History, read_recording
from ergo_py.observe.messages import Enter, Entered, Update
from ergo_py.observe.node_list import Plan
from ergo_py.observe.patches import apply_patch, find_patch
from ergo_py.observe.server import Listening, Server, Url
from ergo_py.observe.strangers import Strangers
from ergo_py.observe.viewer import Viewer
from ergo_py.web import WS
from tests.actors import Puppet, Recorder
from tests.entities.bank import Account
from tests.network.pairs import make_network
from tests.observe.rig import TOKEN, Page, http, in_thread, merged, observed, page_of, serving
from tests.support import kernel_of, running_node

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e"


class Blocker(Actor):
    """Blocks the loop until an event is set."""

    def handle_message(self, message: Any, sender: Any) -> None:
        message.wait()


# -- views -----------------------------------------------------------------------------------------


async def test_a_page_sees_the_whole_state_first_and_then_differences() -> None:
    async with observed() as (node, url):
        pid = await node.spawn(Recorder, name=HOSTILE)

        def look(page: Page) -> list[dict[str, Any]]:
            page.watch(table={"kind": "rows"}, sample={"kind": "sample"})
            page.until(lambda: len(page.views) == 2)
            node.send(pid, 1)
            seen: list[dict[str, Any]] = []
            while page.views["table"]["rows"][str(pid.number)]["messages"] == 0:
                seen.append(page.hear())
            return [page.views["table"], *seen[-1:]]

        table, last = await in_thread(lambda: page_of(url, look))

        assert table["rows"][str(pid.number)]["name"] == HOSTILE
        assert "whole" not in last
        assert "name" not in last["patch"]["rows"][str(pid.number)]


async def test_a_changed_window_is_sent_at_once_and_whole() -> None:
    async with observed() as (node, url):
        for number in range(5):
            await node.spawn(Recorder, name=f"name-{number}")

        def look(page: Page) -> tuple[Any, Any, Any]:
            page.watch(table={"kind": "rows", "limit": 2})
            page.until(lambda: page.views)
            first = page.views["table"]["order"]
            page.watch(table={"kind": "rows", "limit": 2, "from": 2})
            said = page.hear()
            return first, page.views["table"]["order"], said.get("whole")

        first, second, is_whole = await in_thread(lambda: page_of(url, look))

        assert len(first) == len(second) == 2
        assert not set(first) & set(second)
        assert is_whole


@pytest.mark.parametrize(
    "kind",
    [
        *("calls", "threads", "crashes", "dead-letters", "events", "log", "applications"),
        *("children", "entities", "pipelines"),
    ],
)
async def test_every_kind_of_view_arrives(kind: str) -> None:
    async with observed() as (_, url):

        def look(page: Page) -> Any:
            page.watch(it={"kind": kind, **({"of": [0]} if kind == "children" else {})})
            page.until(lambda: page.views or page.errors)
            return page.errors

        assert await in_thread(lambda: page_of(url, look)) == {}


async def test_a_view_of_a_process_that_ended_is_an_error_and_others_go_on() -> None:
    async with observed() as (node, url):
        pid = await node.spawn(Recorder)

        def look(page: Page) -> Any:
            page.watch(
                one={"kind": "process", "to": pid.number},
                near={"kind": "near", "to": pid.number},
                wrong={"kind": "rows", "sort": "colour"},
                sample={"kind": "sample"},
            )
            page.until(lambda: {"one", "near"} <= set(page.views))
            node.kill(pid)
            page.until(lambda: {"one", "near"} <= set(page.errors))
            return page.errors

        errors = await in_thread(lambda: page_of(url, look))

        assert errors["one"]["code"] == errors["near"]["code"] == "no_such_process"
        assert errors["wrong"]["code"] == "bad_argument"


async def test_questions_are_answered_and_streams_flow() -> None:
    async with observed() as (node, url):
        pid = await node.spawn(Puppet, name="puppet")

        def look(page: Page) -> Any:
            inspected = page.ask("inspect", to="puppet")
            node.send(pid, "a secret")
            peeked = page.ask("peek", to=pid.number)
            window = page.ask("window", limit=1)
            *flow, total = page.ask_all("flow", ids=[pid.number], seconds=0.3)
            *_, profile = page.ask_all("profile", seconds=0.1)
            missing = page.ask("inspect", to=999)
            return inspected, peeked, window, flow, total, profile, missing

        inspected, peeked, window, flow, total, profile, missing = await in_thread(
            lambda: page_of(url, look)
        )

        assert isinstance(inspected, dict)
        assert "secret" not in json.dumps(peeked)
        assert window["found"] == 1
        assert flow
        assert "messages" in total
        assert profile["samples"] > 0
        assert missing["code"] == "no_such_process"


async def test_a_trace_can_be_cancelled_and_shows_types_only() -> None:
    async with observed() as (node, url):
        pid = await node.spawn(Recorder)

        def look(page: Page) -> tuple[Any, Any]:
            question = {"id": 70, "do": "trace", "node": "shop@localhost"}
            page.say({**question, "with": {"to": pid.number, "seconds": 600}})
            heard: list[Any] = []
            while not heard:
                node.send(pid, "a secret")
                page.say({"id": 71, "do": "watch", "node": "", "with": {"views": {}}})
                while (said := page.hear()).get("id") != 71:
                    heard += [said["out"]] if "out" in said else []
            page.say({"id": 72, "do": "cancel", "with": {"id": 70}})
            while (said := page.hear()).get("id") != 70 or "out" in said:
                pass
            return heard, said

        heard, said = await in_thread(lambda: page_of(url, look))

        assert heard[0]["callback"] == "handle_message"
        assert heard[0]["message_type"] == "str"
        assert "secret" not in json.dumps(heard)
        assert said["error"]["code"] == "cancelled"


# -- acts ------------------------------------------------------------------------------------------


async def test_acts_need_the_permission_of_the_page_and_of_the_node() -> None:
    async with observed(permissions="look,act") as (node, url):
        pid = await node.spawn(Recorder)
        refused = await in_thread(
            lambda: page_of(url, lambda page: page.ask("kill", to=pid.number))
        )
        assert refused["code"] == "not_permitted"

    async with observed(Plan(TOKEN, frozenset({"look", "act"})), "look") as (node, url):
        pid = await node.spawn(Recorder)
        refused = await in_thread(
            lambda: page_of(url, lambda page: page.ask("kill", to=pid.number))
        )
        assert refused["code"] == "not_permitted"
        assert pid in node.processes()


async def test_an_act_is_done_and_logged_with_its_peer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer: Any = None
    number = 0
    async with (
        running_node("shop@localhost", control="look,act") as node,
        open_node("observe@localhost", watchdog=None, log_output="json") as own,
    ):
        plan = Plan(TOKEN, frozenset({"look", "act"}))
        url = await own.call(await own.spawn(Server, plan, Listening(port=0)), Url())
        pid = await node.spawn(Recorder)
        answer = await in_thread(lambda: page_of(url, lambda page: page.ask("kill", to=pid.number)))
        await node.wait_ended(pid)
        number = pid.number

    assert answer == {"killed": True}
    (line,) = [json.loads(line) for line in capsys.readouterr().err.splitlines() if "act" in line]
    assert (line["act"], line["to"], line["on"]) == ("kill", str(number), "shop@localhost")
    assert line["peer"] == "127.0.0.1"
    assert TOKEN not in json.dumps(line)


async def test_a_page_lists_entities_reads_a_record_and_retries() -> None:
    async with observed(Plan(TOKEN, frozenset({"look", "act"}))) as (node, url):
        keeper = Entities.spec(MemoryStore(), [Account], attempts=1)
        await node.supervise([ChildSpec("entities", keeper)])
        for key in ("ada", "bob", "bea"):
            await node.entity(Account, key).call(ask(Account.deposit, 1))
        await node.entity(Account, "ada").post("crash")
        while not entity_figures(node).parked:  # noqa: ASYNC110 - a real clock
            await trio.sleep(0.01)

        def look(page: Page) -> Any:
            page.watch(entities={"kind": "entities", "age": 30})
            page.until(lambda: page.views)
            (store,) = page.views["entities"]["stores"]
            first = page.ask("keys", kind="Account", prefix="b", limit=1)
            second = page.ask("keys", kind="Account", prefix="b", limit=1, after=first["keys"][0])
            record = page.ask("entity", kind="Account", key="ada")
            retried = page.ask("retry", kind="Account", key="ada")
            return store["kinds"], first, second, record, retried

        (kind,), first, second, record, retried = await in_thread(lambda: page_of(url, look))

        assert (kind["kind"], kind["stored"], kind["parked"]) == ("Account", 3, 1)
        assert first == {"keys": ["bea"], "is_more": True}
        assert second == {"keys": ["bob"], "is_more": False}
        assert (record["state"]["amount"], len(record["parked"])) == (1, 1)
        assert retried == {"retried": 1}

    async with observed() as (node, url):
        refused = await in_thread(
            lambda: page_of(url, lambda page: page.ask("retry", kind="Account", key="ada"))
        )
        assert refused["code"] == "not_permitted"


# -- nobody looks ----------------------------------------------------------------------------------


async def test_without_a_page_the_server_does_nothing_and_the_node_has_no_client() -> None:
    async with (
        running_node("shop@localhost", control="look", log_level="info") as node,
        running_node("observe@localhost") as own,
    ):
        url = await own.call(await own.spawn(Server, Plan(TOKEN), Listening(port=0)), Url())

        def look(page: Page) -> None:
            page.watch(sample={"kind": "sample"}, log={"kind": "log"})
            page.until(lambda: len(page.views) == 2)

        await in_thread(lambda: page_of(url, look))

        while own.info().timers:  # noqa: ASYNC110 - the last tick finds no page
            await trio.sleep(0.05)
        # The node keeps log lines while it has a client that reads them.
        while kernel_of(node).log.wants("info"):  # noqa: ASYNC110
            await trio.sleep(0.05)
        handled = [own.process_info(pid).messages_in for pid in own.processes()]
        await trio.sleep(0.3)
        assert [own.process_info(pid).messages_in for pid in own.processes()] == handled
        assert own.info().timers == 0
        assert node.info().processes == 0


# -- a page that does not read ---------------------------------------------------------------------


class Slow(Actor):
    """Stands in for the list of nodes, and for a connection that reads when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Caller] = []
        self.sent: list[Any] = []

    def handle_call(self, request: Any, caller: Caller) -> Any:
        match request:
            case Enter():
                return Entered(True)
            case WS.Send(data):
                assert not self.waiting
                self.sent.append(json.loads(data))
                self.waiting.append(caller)
                return NO_REPLY
            case "read":
                while self.waiting:
                    self.reply(self.waiting.pop(), 1)
        return self.sent


async def test_a_page_that_does_not_read_gets_the_newest_state_only() -> None:
    async with running_node("observe@localhost") as node:
        slow: Any = await node.spawn(Slow)
        viewer = await node.spawn(Viewer, slow, Strangers(), Plan(TOKEN), "0")
        for message in (
            WS.Connected(slow, None),
            WS.Text(slow, json.dumps({"hello": 1, "token": TOKEN})),
            WS.Text(slow, json.dumps({"do": "watch", "with": {"views": {"x": {"kind": "rows"}}}})),
        ):
            node.send(viewer, message)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(100):
            node.send(viewer, Update("", "x", 0.0, {"n": number, "same": 1}))

        for _ in range(6):
            await trio.testing.wait_all_tasks_blocked()
            await node.call(slow, "read")

        sent = await node.call(slow, "sent")
        patches = [each["patch"] for each in sent if each.get("push") == "view"]
        assert patches == [{"n": 99, "same": 1}]


# -- blocked, ended, started again, several --------------------------------------------------------


async def test_a_blocked_loop_is_named_and_the_page_goes_on() -> None:
    over = threading.Event()
    async with running_node("shop@localhost", limit=120) as node:
        observe = Observe(0, metrics=True, health=True, token=TOKEN)
        close = await in_thread(_open_with_control, node, observe)
        try:
            blocker = await node.spawn(Blocker, name="blocker")

            def look(page: Page) -> tuple[Any, Any, int, int]:
                page.watch(
                    sample={"kind": "sample"},
                    table={"kind": "rows"},
                    threads={"kind": "threads"},
                    one={"kind": "process", "to": "blocker"},
                )
                page.until(lambda: len(page.views) == 4)
                node.send(blocker, over)
                page.until(lambda: page.views["sample"]["loop"].get("blocked"))
                blocked = page.views["sample"]["loop"]["blocked"]
                at = page.views["sample"]["at"]
                page.until(lambda: page.views["sample"]["at"] > at)
                page.until(lambda: page.views["one"].get("callback"))
                with Page(observe.url) as another:
                    # A page that is opened while the loop is blocked sees the same.
                    another.watch(sample={"kind": "sample"}, table={"kind": "rows"})
                    another.until(lambda: len(another.views) == 2)
                    assert another.views["sample"]["loop"]["blocked"]["name"] == "blocker"
                health, _, _ = http(observe.url, "/healthz")
                metrics, _, _ = http(observe.url, "/metrics")
                over.set()
                page.until(lambda: not page.views["sample"]["loop"].get("blocked"))
                return blocked, page.views["one"], health, metrics

            def run() -> tuple[Any, Any, int, int]:
                try:
                    return page_of(observe.url, look)
                finally:
                    over.set()

            blocked, _, health, metrics = await in_thread(run)
        finally:
            over.set()
            await in_thread(close)

    assert (blocked["name"], blocked["callback"]) == ("blocker", "handle_message")
    assert "message.wait()" in blocked["line"]
    assert health in (200, 503)
    assert metrics == 200


async def test_the_first_page_may_open_while_the_loop_is_blocked() -> None:
    over, begun = threading.Event(), threading.Event()

    class Block(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            begun.set()
            over.wait()

    async with running_node("shop@localhost", limit=120) as node:
        observe = Observe(0, token=TOKEN)
        close = await in_thread(_open_with_control, node, observe)
        try:
            pid = await node.spawn(Block, name="blocker")

            def look(page: Page) -> Any:
                page.watch(sample={"kind": "sample"}, table={"kind": "rows"})
                page.until(lambda: len(page.views) == 2)
                page.until(lambda: page.views["sample"]["loop"].get("blocked"))
                return page.views["sample"]["loop"]["blocked"]["name"], page.nodes[0]["state"]

            def run() -> Any:
                try:
                    node.send(pid, "block")
                    begun.wait()
                    return page_of(observe.url, look)
                finally:
                    over.set()

            assert await in_thread(run) == ("blocker", "up")
        finally:
            over.set()
            await in_thread(close)


def _open_with_control(node: Any, observe: Observe) -> Any:
    control = open_control(node, frozenset({"look"}))
    close = observe.open(node)

    def close_both() -> None:
        close()
        control.close()

    return close_both


async def test_a_node_that_ends_and_starts_again_is_found_again() -> None:
    async with serving() as url:
        states: list[str] = []

        async def run(started: trio.Event, over: trio.Event) -> None:
            async with running_node("shop@localhost", control="look") as node:
                await node.spawn(Recorder)
                started.set()
                await over.wait()

        def until_state(page: Page, state: str) -> None:
            page.until(lambda: [node["state"] for node in page.nodes] == [state])
            states.append(state)

        async with trio.open_nursery() as nursery:
            first, over = trio.Event(), trio.Event()
            nursery.start_soon(run, first, over)
            await first.wait()
            page = await in_thread(Page, url)
            await in_thread(until_state, page, "up")
            await in_thread(lambda: page.watch(sample={"kind": "sample"}))
            await in_thread(lambda: page.until(lambda: page.views))
            over.set()
            await in_thread(until_state, page, "ended")
            ended = await in_thread(lambda: page.ask("inspect", to=1))
            past = await in_thread(lambda: page.ask("history"))
            second, over = trio.Event(), trio.Event()
            nursery.start_soon(run, second, over)
            await in_thread(until_state, page, "up")
            at = page.views["sample"]["at"]
            await in_thread(lambda: page.until(lambda: page.views["sample"]["at"] > at))
            over.set()
            await in_thread(page.close)

        assert states == ["up", "ended", "up"]
        assert ended["code"] == "node_ended"
        assert past["columns"]["processes"][0] == 1


async def test_several_nodes_are_listed_and_a_page_chooses_a_node() -> None:
    plan = Plan(TOKEN, only=lambda name, _: name != "hidden@localhost")
    async with (
        running_node("one@localhost", control="look") as one,
        running_node("two@localhost", control="look"),
        running_node("hidden@localhost", control="look"),
        serving(plan) as url,
    ):
        await one.spawn(Recorder)

        def look(page: Page) -> tuple[list[str], int, int, Any]:
            page.until(lambda: len(page.nodes) == 2)
            page.watch("one@localhost", sample={"kind": "sample"})
            page.until(lambda: page.views)
            first = page.views["sample"]["processes"]
            page.watch("two@localhost", sample={"kind": "sample"})
            page.until(lambda: page.views["sample"]["processes"] != first)
            hidden = page.ask("inspect", "hidden@localhost", to=1)
            return [node["key"] for node in page.nodes], first, 0, hidden

        names, first, _, hidden = await in_thread(lambda: page_of(url, look))

        assert sorted(names) == ["one@localhost", "two@localhost"]
        assert first == 1
        assert hidden["code"] == "no_such_node"


# -- the past --------------------------------------------------------------------------------------


def test_a_patch_turns_a_state_into_the_next_state() -> None:
    before = {"a": 1, "b": {"c": 1, "e": [1]}, "f": {}, "g": None, "h": True}
    after = {"a": 2, "b": {"c": None, "e": [1, 2], "x": {"y": 1}}, "f": 3, "i": 0, "h": 1}

    patch = find_patch(before, after)

    wanted = {"a": 2, "b": {"e": [1, 2], "x": {"y": 1}}, "f": 3, "i": 0, "h": 1}
    assert apply_patch(before, patch) == merged(before, patch) == {**wanted, "g": None}
    assert find_patch(after, after) == {}


def test_the_past_is_read_at_any_moment_and_is_bounded() -> None:
    history = History("shop@localhost")
    for second in range(900):
        history.add("sample", {}, {"rate": second, "loop": {"delay": 0.5}}, 1000.0 + second)
        if second % 2:
            history.add("rows", {"sort": "id"}, {"order": [second]}, 1000.0 + second)

    columns = history.columns(0, 1e12)
    moment = history.at(1850.5)

    assert len(columns["columns"]["at"]) == 600
    assert columns["columns"]["rate"][-1] == 899
    assert (moment["views"]["sample"]["rate"], moment["at"]) == (850, 1850.0)
    assert moment["views"]["rows"] == {"order": [849]}
    assert moment["with"]["rows"] == {"sort": "id"}
    assert history.at(1000.0)["views"] == {}
    parts = 0
    begin: float | None = 0.0
    while begin is not None:
        _, begin = history.part(begin)
        parts += 1
    assert parts <= 11


def test_a_sample_without_rates_has_none_in_the_columns() -> None:
    history = History("shop@localhost")
    history.add("sample", {}, {"rate": None, "cpu": None, "mailbox": 4}, 1000.0)
    history.add("sample", {}, {"rate": 0.0, "cpu": 0.5, "mailbox": 4}, 1001.0)

    columns = history.columns(0, 1e12)["columns"]

    assert (columns["rate"], columns["cpu"]) == ([None, 0.0], [None, 0.5])
    assert columns["mailbox"] == [4, 4]


def test_a_minute_of_too_much_keeps_samples_only() -> None:
    history = History("shop@localhost")
    for second in range(50):
        text = [f"{second} {number}" for number in range(20_000)]
        history.add("log", {}, {"lines": text}, 1000.0 + second)
        history.add("sample", {}, {"rate": second}, 1000.0 + second)

    piece, later = history.part(0)

    assert later is None

    assert len(gzip.decompress(piece)) < 3 * 1024 * 1024
    assert history.at(1049.0)["views"]["sample"]["rate"] == 49


async def test_a_recording_opens_without_the_node(tmp_path: Path) -> None:
    file = tmp_path / "shop.ergo"
    async with observed() as (node, url):
        await node.spawn(Recorder, name=HOSTILE)

        def look(page: Page) -> bytes:
            page.watch(sample={"kind": "sample"}, table={"kind": "rows"})
            page.until(lambda: len(page.views) == 2)
            data = b""
            # The page may show rows before the history has them.
            while not data or not any(
                json.loads(line).get("kind") == "rows"
                for line in gzip.decompress(data).splitlines()
            ):
                data, piece = b"", 0
                while piece is not None:
                    given: dict[str, Any] = {"from": piece}
                    answer = page.ask("recording", "shop@localhost", **given)
                    data += base64.b64decode(answer["data"])
                    piece = answer["next"]
            return data

        file.write_bytes(await in_thread(lambda: page_of(url, look)))

    async with serving(Plan(TOKEN, replay=file.name, recorded=read_recording(file))) as url:

        def replay(page: Page) -> tuple[Any, Any, Any, Any, Any]:
            hello = page.hear()
            page.until(lambda: page.nodes)
            past = page.ask("history")
            moment = page.ask("at", at=past["to"])
            return hello, page.nodes, moment, page.ask("inspect", to=1), page.ask("watch", views={})

        hello, nodes, moment, refused, watched = await in_thread(lambda: page_of(url, replay))

    assert hello["replay"] == "shop.ergo"
    assert [(each["key"], each["state"]) for each in nodes] == [("shop@localhost", "recorded")]
    assert [row["name"] for row in moment["views"]["rows"]["rows"].values()] == [HOSTILE]
    assert refused["code"] == "replay"
    assert watched == {}


async def test_a_recording_is_written_while_no_page_is_open(tmp_path: Path) -> None:
    file = tmp_path / "shop.ergo"
    async with (
        running_node("shop@localhost", control="look") as node,
        running_node("observe@localhost") as own,
    ):
        await node.spawn(Recorder, name="recorded")
        server = await own.spawn(Server, Plan(TOKEN, record=file), Listening(port=0))
        while not any("Sampler" in line for line in own.alive()):  # noqa: ASYNC110
            await trio.sleep(0.02)
        while node.info().calls_in_flight or not _watched(own):  # noqa: ASYNC110
            await trio.sleep(0.05)
        own.send_exit(server, "enough")
        await own.wait_ended(server)

    nodes, found = read_recording(file)
    history = found["shop@localhost"]
    past = history.columns(0, time.time())
    assert [each["key"] for each in nodes] == ["shop@localhost"]
    assert past["columns"]["processes"][0] == 1
    assert "log" in history.at(past["to"])["views"]


def _watched(own: Any) -> bool:
    """Whether a sampler has handled its first look."""
    return any(
        own.process_info(pid).behaviour == "Sampler" and own.process_info(pid).messages_in >= 2
        for pid in own.processes()
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b""),
        gzip.compress(b"{}\n"),
        gzip.compress(b"[1]\n"),
        gzip.compress(b'{"ergo-recording": 2, "nodes": []}\n'),
        gzip.compress(b'{"ergo-recording": 1, "nodes": [1]}\n'),
        gzip.compress(b'{"ergo-recording": 1, "nodes": []}\n{"at": 1}\n'),
        gzip.compress(
            b'{"ergo-recording": 1, "nodes": []}\n'
            b'{"at": 1, "node": "a", "kind": "secrets", "patch": {}}\n'
        ),
        gzip.compress(b'{"ergo-recording": 1, "nodes": []}\n{"at": "1", "node": "a"}\n'),
        gzip.compress(b'{"ergo-recording": 1, "nodes": []}\n' + b"[" * 100_000 + b"\n"),
        gzip.compress(b'{"ergo-recording": 1, "nodes": []}\n')[:-8],
    ],
    ids=range(12),
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file.ergo"
    file.write_bytes(content)

    with pytest.raises(BadInputError, match="ergo observe --record"):
        read_recording(file)


@pytest.mark.parametrize("line, count", [(b'"%s"' % (b" " * 900), 400), (b"{}", 4000)])
def test_a_small_file_that_unpacks_to_much_is_refused_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, count: int
) -> None:
    monkeypatch.setattr("ergo_py.observe.history._SLACK", 10_000)
    monkeypatch.setattr("ergo_py.observe.history._FEW_LINES", 100)
    entry = b'{"at": 1, "nodes": [], "more": %s}\n' % line
    file = tmp_path / "file.ergo"
    for lines, is_refused in ((10, False), (count, True)):
        first = b'{"ergo-recording": 1, "nodes": []}\n'
        file.write_bytes(gzip.compress(first + entry * lines))
        if is_refused:
            with pytest.raises(BadInputError, match="longer than any recording in a file of its"):
                read_recording(file)
        else:
            assert read_recording(file) == ([], {})


WRONG: list[Any] = ["x", [1], {"a": "b"}, True, float("nan"), float("inf"), 10**400, [], {}]
"""Values that are no numbers."""
FIGURES = ["rate", "busy", "mailbox", "processes", "metas", "cpu", "memory", "crashed"]
SAMPLE = {"rate": 1.5, "processes": 3, "loop": {"delay": 0.1}, "dead_letters": {"full": 2}}


def recorded(tmp_path: Path, *entries: dict[str, Any]) -> Path:
    lines = [{"ergo-recording": 1, "nodes": [{"key": "a"}]}]
    lines += [{"at": 1, "node": "a", "kind": "sample", "patch": {}} | entry for entry in entries]
    file = tmp_path / "file.ergo"
    file.write_bytes(gzip.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode()))
    return file


def with_value(column: str, value: Any) -> dict[str, Any]:
    if column == "delay":
        return SAMPLE | {"loop": {"delay": value}}
    if column == "letter":
        return SAMPLE | {"dead_letters": {"full": value}}
    return SAMPLE | {column: value}


@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:10])
@pytest.mark.parametrize("column", [*FIGURES, "delay", "letter", "loop", "dead_letters", "at"])
def test_a_recording_with_a_value_of_a_wrong_type_is_refused(
    tmp_path: Path, column: str, value: Any
) -> None:
    if (column in ("memory", "loop", "dead_letters") and not value) or (
        (column, value) in (("loop", {"a": "b"}), ("letter", True))
    ):
        return  # as good as a figure that is missing
    good, entry = {"patch": SAMPLE}, {"patch": with_value(column, value)}
    if column == "at":
        entry = {"patch": SAMPLE, "at": value}

    assert read_recording(recorded(tmp_path, good, good))[0] == [{"key": "a"}]
    for entries in ([entry], [good, entry]):
        with pytest.raises(BadInputError, match="ergo observe --record"):
            read_recording(recorded(tmp_path, *entries))


class Counted(str):
    """A key that counts how often it is looked up."""

    looks = 0

    def __hash__(self) -> int:
        Counted.looks += 1
        return super().__hash__()


def test_the_nodes_of_a_recording_are_read_in_their_order_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of many lines, each with a node, takes no longer for the later lines."""
    names = [f"n{number % 500}" for number in range(510)]
    lines = ({"nodes": [{"key": Counted(name)}]} for name in names)
    entries = iter([{"ergo-recording": 1, "nodes": [{"key": Counted("a")}]}, *lines])
    monkeypatch.setattr("ergo_py.observe.history._object", lambda _line, _path: next(entries))
    file = tmp_path / "file.ergo"
    file.write_bytes(gzip.compress(b"{}\n" * (1 + len(names))))

    nodes, found = read_recording(file)

    assert [node["key"] for node in nodes] == ["a", *names[:500]]
    assert found == {}
    assert Counted.looks < 5 * len(names)


def test_a_recording_that_changes_a_large_view_again_and_again_is_refused(tmp_path: Path) -> None:
    large: dict[str, Any] = {"whole": True, "kind": "rows", "patch": {"rows": "x" * 100_000}}
    small: dict[str, Any] = {"kind": "rows", "patch": {"rate": 1}}

    for entries in ([large, *[small] * 150], [large, *[small] * 90] * 4, [small] * 150):
        assert read_recording(recorded(tmp_path, *entries))[0] == [{"key": "a"}]
    with pytest.raises(BadInputError, match="its views change more often than those of any"):
        read_recording(recorded(tmp_path, large, *[small] * 500))


def test_a_recording_of_deep_views_is_read_or_refused(tmp_path: Path) -> None:
    refused = 0
    for depth in range(0, sys.getrecursionlimit(), 20):
        text = '{"a":' * depth + "{}" + "}" * depth
        file = tmp_path / "file.ergo"
        file.write_bytes(
            gzip.compress(
                b'{"ergo-recording": 1, "nodes": []}\n'
                + f'{{"at": 1, "node": "a", "kind": "tree", "patch": {text}}}\n'.encode()
            )
        )
        try:
            read_recording(file)
        except BadInputError:
            refused += 1

    assert refused


def test_a_recording_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="No such file"):
        read_recording(tmp_path / "missing.ergo")


# -- nodes of a network ----------------------------------------------------------------------------


async def test_nodes_of_the_network_are_shown_through_a_node_with_a_socket() -> None:
    network = make_network("memory", allow="default,look")
    async with (
        running_node("a@test", network=network, control="look") as a,
        running_node("b@test", network=network) as b,
        serving() as url,
    ):
        pid = await b.spawn(Recorder, name="far")
        await a.at("b@test").ping()

        def look(page: Page) -> tuple[Any, ...]:
            page.watch("a@test", sample={"kind": "sample"})
            page.until(lambda: len(page.nodes) == 2)
            page.watch("b@test", table={"kind": "rows"}, tree={"kind": "children", "of": [0]})
            page.until(lambda: {"table", "tree"} <= set(page.views))
            far = page.ask("info", "b@test", to="far")
            refused = page.ask("trace", "b@test", to="far")
            page.until(lambda: [each for each in page.nodes if each.get("via") and each["may"]])
            return page.views["table"], far, refused, page.nodes

        table, far, refused, nodes = await in_thread(lambda: page_of(url, look))

        assert table["rows"][str(pid.number)]["name"] == "far"
        assert far["pid"] == pid.number
        assert refused["code"] == "not_permitted"
        (via,) = [each for each in nodes if each.get("via")]
        assert (via["key"], via["may"]) == ("b@test", ["look"])
