"""The views of a node: sample, windows, tree, neighbourhood, waits, threads, profile, flow, log."""

import json
import socket
import threading
import time
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import Actor, Application, ChildSpec, MetaProcess, TargetDownError
from ergo_py.control.rows import RowFormat
from ergo_py.control.views.slices import encode_in_slices, read_again
from ergo_py.control.views.survey import Survey, Window
from ergo_py.control.views.tree_levels import tree_levels
from ergo_py.control.views.waits import cycles_of
from tests.actors import Failed, Puppet, Recorder
from tests.control.rig import Impatient, Wire, in_thread, served
from tests.support import kernel_of, running_node

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J"


def talk(path: Any, *questions: tuple[str, dict[str, Any]]) -> list[Any]:
    with Wire(path) as wire:
        wire.hear()
        return [wire.ask(do, **arguments) for do, arguments in questions]


async def ask(path: Any, do: str, **arguments: Any) -> Any:
    (answer,) = await in_thread(talk, path, (do, arguments))
    return answer


async def stream(path: Any, do: str, **arguments: Any) -> tuple[list[Any], Any]:
    """The lines before the answer, and the answer."""

    def hear() -> tuple[list[Any], Any]:
        with Wire(path) as wire:
            wire.hear()
            question = {"v": 1, "id": 1, "do": do, "with": arguments}
            wire.say(json.dumps(question).encode() + b"\n")
            lines: list[Any] = []
            while "out" in (said := wire.hear()):
                lines += [json.loads(line) for line in said["out"].splitlines()]
            return lines, said["result"] if said["ok"] else said["error"]

    return await in_thread(hear)


class Reader(MetaProcess):
    """A reader thread that waits for bytes that never come."""

    kind = "waits"

    def start(self) -> None:
        ours, self.theirs = socket.socketpair()
        with self.opened(ours) as pipe:
            pipe.recv(1)

    def terminate(self, reason: Any) -> None:
        self.theirs.close()


# -- the survey ------------------------------------------------------------------------------------


async def test_a_sample_has_sums_by_behaviour_and_rates() -> None:
    async with served("look") as (node, server):
        pids = [await node.spawn(Recorder) for _ in range(3)]
        await node.spawn(Puppet, name=HOSTILE)

        def look() -> tuple[Any, Any]:
            with Wire(server.path) as wire:
                wire.hear()
                first = wire.ask("sample")
                for pid in pids:
                    node.send(pid, 1)
                node.call_from_thread(pids[-1], "all before are handled")
                return first, wire.ask("sample", windows=[{"sort": "rate", "down": True}])

        first, second = await in_thread(look)

        rates = ("rate", "sent_rate", "cpu", "busy")
        assert [first["sample"][name] for name in rates] == [None] * 4
        assert all(second["sample"][name] is not None for name in rates)
        assert first["windows"] == []
        assert second["sample"]["processes"] == 4
        assert second["sample"]["behaviours"]["Recorder"]["count"] == 3
        assert second["sample"]["behaviours"]["Recorder"]["rate"] > 0
        assert second["sample"]["messages"] == 4
        assert second["sample"]["loop"]["blocked"] is None
        (window,) = second["windows"]
        assert window["order"][0] == pids[-1].number
        assert window["rows"][str(window["order"][-1])]["name"] == HOSTILE
        assert (window["found"], window["alive"]) == (4, 4)


async def test_a_window_is_a_part_of_the_sorted_and_filtered_table() -> None:
    async with running_node() as node:
        pids = [await node.spawn(Recorder, name=f"name-{number:02}") for number in range(30)]
        await node.spawn(Puppet)
        survey = Survey(kernel_of(node))
        for pid in pids[10:13]:
            for _ in range(pid.number):
                node.send(pid, 1)
        await trio.testing.wait_all_tasks_blocked()

        def order(*windows: Window) -> list[list[int]]:
            _, found = survey.look(windows)
            return [[each.id.number for each in chosen.processes] for chosen in found]

        numbers = [pid.number for pid in pids]
        assert order(Window(begin=2, limit=3)) == [numbers[2:5]]
        assert order(Window(down=True, begin=1, limit=2)) == [numbers[:-3:-1]]
        busiest = [numbers[12], numbers[11], numbers[10]]
        assert order(Window("messages", True, limit=5)) == [[*busiest, *numbers[:2]]]
        assert order(Window("messages", limit=2)) == [numbers[:2]]
        lowest = Window("messages", begin=26, limit=10)
        assert order(lowest) == [[numbers[29], numbers[29] + 1, *busiest[::-1]]]
        assert order(Window("name", True, find="name-1", limit=2)) == [numbers[19:17:-1]]
        assert order(Window("name", find="Puppet")) == [[numbers[29] + 1]]
        assert order(Window("behaviour", limit=1)) == [[numbers[29] + 1]]
        assert order(Window(find=str(numbers[29] + 1)), Window("state", limit=1)) == [
            [numbers[29] + 1],
            [numbers[0]],
        ]
        assert order(Window("rate", True, begin=31)) == [[]]


async def test_a_window_deep_in_a_long_sorted_table_is_merged_from_slices() -> None:
    async with running_node() as node:
        pids = [await node.spawn(Recorder) for _ in range(2100)]
        for pid in pids:
            node.send(pid, 1)
        await trio.testing.wait_all_tasks_blocked()
        survey = Survey(kernel_of(node))

        _, (chosen,) = survey.look([Window("messages", True, begin=2050, limit=3)])

        assert [each.id for each in chosen.processes] == pids[2050:2053]


async def test_idle_processes_follow_busy_processes_in_a_window() -> None:
    async with running_node() as node:
        pids = [await node.spawn(Recorder) for _ in range(600)]
        survey = Survey(kernel_of(node))
        survey.look()
        node.send(pids[300], 1)
        await trio.testing.wait_all_tasks_blocked()

        _, (top, deep) = survey.look(
            [Window("rate", True, limit=2), Window("rate", True, begin=299, limit=3)]
        )

        assert [each.id for each in top.processes] == [pids[300], pids[0]]
        assert [each.id for each in deep.processes] == [pids[298], pids[299], pids[301]]


async def test_the_survey_forgets_processes_that_have_ended() -> None:
    async with running_node() as node:
        survey = Survey(kernel_of(node))
        pids = [await node.spawn(Recorder) for _ in range(1100)]
        survey.look()
        for pid in pids:
            node.kill(pid)
            await node.wait_ended(pid)

        survey.look()

        assert survey.remembered == 0


def test_a_table_that_changes_all_the_time_is_an_answer() -> None:
    def read() -> None:
        raise RuntimeError("dictionary changed size during iteration")

    with pytest.raises(Exception, match="faster than they can be read"):
        read_again(read)


# -- the tree and the neighbourhood ----------------------------------------------------------------


async def test_children_come_level_by_level_including_children_that_are_down() -> None:
    async with served("look") as (node, server):
        handle = await node.supervise(
            [ChildSpec("one", Puppet), ChildSpec("two", Recorder)], name="root"
        )
        await handle.stop_child("two")
        await node.call("one", lambda me: me.spawn(Recorder))
        root = handle.pid.number

        answer = await ask(server.path, "children", of=[0, root, 999])

        levels = answer["levels"]
        assert set(levels) == {"0", str(root)}
        (row,) = levels["0"]["rows"].values()
        assert (row["name"], row["supervisor"], row["children"]) == ("root", True, 2)
        below = levels[str(root)]
        assert below["count"] == 2
        assert below["order"][1] == "two"
        running = below["rows"][str(below["order"][0])]
        assert (running["child"], running["phase"], running["children"]) == ("one", "running", 1)
        down = below["rows"]["two"]
        assert (down["phase"], down["behaviour"]) == ("completed", "Recorder")

        deeper = await ask(server.path, "children", of=[below["order"][0]])
        assert deeper["levels"][str(below["order"][0])]["count"] == 1


async def test_a_level_of_many_children_is_cut_and_counted() -> None:
    async with served("look") as (node, server):
        for _ in range(7):
            await node.spawn(Recorder)

        answer = await ask(server.path, "children", of=[0], limit=3)

        assert answer["levels"]["0"]["count"] == 7
        assert len(answer["levels"]["0"]["order"]) == 3


async def test_applications_stand_in_the_tree_and_in_their_list() -> None:
    async with served("look") as (node, server):
        web = Application("web", [ChildSpec("page", Recorder)])
        idle = Application("idle", [ChildSpec("other", Recorder)])
        node.load_applications(web, idle)
        await node.start_applications("web")

        tree, applications = await in_thread(
            talk, server.path, ("children", {"of": [0]}), ("applications", {})
        )

        rows = {row["application"]: row for row in tree["levels"]["0"]["rows"].values()}
        assert rows["web"]["phase"] == "running"
        assert rows["idle"]["phase"] == "pending"
        assert {each["name"]: each["phase"] for each in applications["applications"]} == {
            "web": "running",
            "idle": "pending",
        }


async def test_the_neighbourhood_has_owner_links_monitors_children_and_waits() -> None:
    async with served("look") as (node, server):
        center = await node.spawn(Puppet, name="center")
        other = await node.spawn(Puppet)
        await node.call(center, lambda me: me.link(other))
        await node.call(other, lambda me: me.monitor("center"))
        child = await node.call(center, lambda me: me.spawn(Recorder))

        near = await ask(server.path, "near", to=center.number)

        edges = [tuple(edge) for edge in near["edges"]]
        assert (0, center.number, "owner") in edges
        assert (center.number, other.number, "link") in edges
        assert (other.number, center.number, "monitor") in edges
        assert (center.number, child.number, "owner") in edges
        assert near["nodes"][str(child.number)]["behaviour"] == "Recorder"
        assert near["left_out"] == 0

        few = await ask(server.path, "near", to=center.number, limit=1)
        assert len(few["nodes"]) == 2
        assert few["left_out"] >= 1


async def test_facts_of_a_process_come_without_the_loop_and_are_cut() -> None:
    async with served("look") as (node, server):
        pid = await node.spawn(Puppet, name="parent")
        for _ in range(230):
            await node.call(pid, lambda me: me.spawn(Recorder))

        facts = await ask(server.path, "process", to="parent")

        assert (facts["kind"], facts["pid"], facts["name"]) == ("process", pid.number, "parent")
        assert facts["children_count"] == 230
        assert len(facts["children"]) == 200
        assert facts["env"] is None


# -- waits -----------------------------------------------------------------------------------------


class Asker(Actor):
    async def handle_message(self, message: Any, sender: Any) -> None:
        await self.call(message, "question", timeout=None)


async def test_waits_name_both_sides_and_keep_their_beginning() -> None:
    async with served("look") as (node, server):
        silent = await node.spawn(Puppet, name="silent")
        asker = await node.spawn(Asker, name="asker")
        release = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.call, silent, lambda me: release.wait())
            await trio.testing.wait_all_tasks_blocked()
            begun = time.time() - 1.0
            node.send(asker, silent)
            await trio.testing.wait_all_tasks_blocked()
            looked = time.time() + 1.0

            first, second, near = await in_thread(
                talk, server.path, ("calls", {}), ("calls", {}), ("near", {"to": "silent"})
            )
            release.set()

        (wait,) = first["waits"]
        assert (wait["from"], wait["to"]) == (asker.number, silent.number)
        assert (wait["from_name"], wait["to_name"], wait["request"]) == ("asker", "silent", "str")
        assert second["waits"][0]["since"] == wait["since"]
        assert begun <= wait["since"] <= looked
        assert first["rings"] == []
        assert [asker.number, silent.number, "waits"] in near["edges"]


async def test_a_refused_ring_of_calls_is_shown_for_an_hour() -> None:
    async with served("look") as (node, server):
        await node.spawn(Puppet, name="a")
        await node.spawn(Puppet, name="b")

        async def ring(me: Any) -> None:
            await me.call("b", lambda other: other.call("a", "back"))

        with pytest.raises(TargetDownError, match="wait forever"):
            await node.call("a", ring)

        answer = await ask(server.path, "calls")

        (deadlock,) = answer["deadlocks"]
        assert sorted(set(deadlock["names"])) == ["a", "b"]
        assert deadlock["request"] == "str"
        assert deadlock["ring"][0] == deadlock["ring"][-1]


def test_rings_of_waits_are_found_once() -> None:
    assert cycles_of({1: 2, 2: 3, 3: 1, 4: 2, 5: 6}) == [[1, 2, 3, 1]]
    assert cycles_of({7: 7}) == [[7, 7]]
    assert cycles_of({3: 1, 1: 3, 9: 8, 8: 9}) == [[1, 3, 1], [8, 9, 8]]
    assert cycles_of({}) == []


# -- threads, profile, flow ------------------------------------------------------------------------


async def test_threads_name_their_processes_and_the_line_they_wait_in() -> None:
    async with served("look") as (node, server):
        pid = await node.spawn(Puppet)
        alias = await node.call(pid, lambda me: me.spawn_meta(Reader()))

        # The thread of the reader may still be on its way to that line.
        frames: list[str] = []
        with trio.fail_after(60):
            while not any("pipe.recv(1)" in line for line in frames):
                answer = await ask(server.path, "threads")
                kinds = {each["kind"]: each for each in answer["threads"]}
                assert {"loop", "reader", "control"} <= set(kinds)
                reader = kinds["reader"]
                assert (reader["process"], reader["behaviour"]) == (alias.number, "Reader")
                frames = reader["frames"]


class Busy(Actor):
    def handle_message(self, message: Any, sender: Any) -> None:
        self.spin(message)

    def spin(self, begun: threading.Event) -> None:
        begun.set()
        over: Any = self.env["over"]
        while not over:  # a call here might be the deepest function of a look
            pass


async def test_a_profile_names_functions_while_the_loop_is_blocked() -> None:
    over: list[bool] = []
    begun = threading.Event()
    async with served("look", Impatient) as (node, server):
        pid = await node.spawn(Busy, name="busy", env={"over": over})
        answers: list[Any] = []

        def look() -> None:
            try:
                with Wire(server.path) as wire:
                    wire.hear()
                    node.send(pid, begun)
                    begun.wait()
                    answers.append(wire.ask("profile", seconds=0.3, rate=50, to=pid.number))
                    answers.append(wire.ask("sample"))
                    answers.append(wire.ask("process", to="busy"))
                    answers.append(wire.ask("crashes"))
            finally:
                over.append(True)

        await in_thread(look)

        profile, sample, process, crashes = answers
        (root, *frames), count = profile["stacks"][0]
        assert root == f"Busy {pid.number} busy"
        assert [frame.partition(" ")[0] for frame in frames[:2]] == ["handle_message", "spin"]
        assert 0 < count <= profile["samples"]
        blocked = sample["sample"]["loop"]["blocked"]
        assert (blocked["name"], blocked["callback"]) == ("busy", "handle_message")
        assert "in spin" in blocked["where"]
        assert process["callback"] == "handle_message"
        assert crashes == []


async def test_a_second_profile_is_refused_and_a_profile_can_be_cancelled() -> None:
    async with served("look") as (_, server):

        def look() -> tuple[Any, Any]:
            with Wire(server.path) as first, Wire(server.path) as second:
                first.hear()
                second.hear()
                first.say(b'{"v": 1, "id": 1, "do": "profile", "with": {"seconds": 60}}\n')
                second.ask("ps")
                while (refused := second.ask("profile")).get("code") != "busy":
                    pass
                first.say(b'{"v": 1, "id": null, "do": "cancel"}\n')
                while "out" in (said := first.hear()):
                    pass
                return refused, said

        refused, said = await in_thread(look)

        assert refused["code"] == "busy"
        assert said["result"]["seconds"] < 60


async def test_flow_counts_each_message_once() -> None:
    async with served("look") as (node, server):
        left = await node.spawn(Puppet)
        right = await node.spawn(Recorder)
        outside = await node.spawn(Recorder)
        done = trio.Event()

        async def work() -> None:
            while not done.is_set():
                await node.call(left, lambda me: me.send(right, 1))
                await node.call(left, lambda me: me.send(outside, 2))
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            lines, result = await stream(
                server.path, "flow", ids=[left.number, right.number], seconds=0.6
            )
            done.set()

        edges = {(start, end): count for line in lines for start, end, count in line["edges"]}
        assert (left.number, right.number) in edges
        assert (left.number, outside.number) in edges
        assert (0, left.number) in edges
        assert result["messages"] == sum(count for line in lines for *_, count in line["edges"])
        assert not node.process_info(left).suspended


# -- log, events, dead letters ---------------------------------------------------------------------


async def test_log_lines_are_kept_while_a_client_reads_them() -> None:
    async with served("look", log_level="info") as (node, server):
        pid = await node.spawn(Puppet, name="writer")

        def look() -> tuple[Any, Any, Any]:
            with Wire(server.path) as wire:
                wire.hear()
                before = wire.ask("log")
                node.call_from_thread(pid, lambda me: me.log.info(HOSTILE, order=5))
                node.call_from_thread(pid, lambda me: me.log.error("bad", secret=object()))
                return before, wire.ask("log"), wire.ask("log", level="error", find="ba")

        before, lines, errors = await in_thread(look)

        assert before["lines"] == []
        first, second = lines["lines"]
        assert (first["text"], first["level"], first["source"]) == (HOSTILE, "info", pid.number)
        assert (first["name"], first["behaviour"], first["fields"]) == (
            "writer",
            "Puppet",
            {"order": "5"},
        )
        assert first["n"] < second["n"]
        assert [line["text"] for line in errors["lines"]] == ["bad"]
        while kernel_of(node).log.wants("info"):  # noqa: ASYNC110 - the client has just left
            await trio.sleep(0.01)


async def test_the_log_begins_with_the_crashes_before_the_first_look() -> None:
    async with served("look", log_output="none") as (node, server):
        old, new = await node.spawn(Puppet, name="old"), await node.spawn(Puppet, name="new")

        def fail(me: Puppet) -> None:
            raise Failed("on purpose")

        node.send(old, fail)
        await node.wait_ended(old)

        def look() -> Any:
            with Wire(server.path) as first, Wire(server.path) as second:
                first.hear()
                second.hear()
                before = first.ask("log")
                with pytest.raises(TargetDownError):
                    node.call_from_thread(new, fail)
                return before, first.ask("log"), second.ask("log")

        before, mine, others = await in_thread(look)

        names = [[line["name"] for line in answer["lines"]] for answer in (before, mine, others)]
        assert names == [["old"], ["old", "new"], ["old", "new"]]
        (line,) = before["lines"]
        assert (line["level"], line["text"], line["behaviour"]) == (
            "error",
            "process crashed",
            "Puppet",
        )
        assert line["exception"].endswith("Failed: on purpose\n")
        assert line["fields"]["callback"] == "'handle_message'"


async def test_events_have_producers_subscribers_and_losses() -> None:
    async with served("look") as (node, server):
        node.open_topic("orders", buffer=2)
        reader = node.events("orders")
        node.publish("orders", 1)

        answer = await ask(server.path, "events")

        (event,) = [each for each in answer["events"] if each["name"] == "orders"]
        assert (event["published"], event["kept"], event["subscribers"]) == (1, 1, 1)
        assert event["lost"] == 0
        reader.close()


async def test_crashes_and_dead_letters_have_types_only() -> None:
    class Bomb(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            raise Failed("boom")

    async with served("look") as (node, server):
        bomb = await node.spawn(Bomb, name="bomb")
        node.send(bomb, "a secret")
        await node.wait_ended(bomb)
        node.send(bomb, "another secret")

        crashes, letters = await in_thread(talk, server.path, ("crashes", {}), ("dead-letters", {}))

        assert crashes[0]["reason"].endswith("boom")
        assert letters["last"][0]["message_type"] == "str"
        assert "secret" not in json.dumps([crashes, letters])


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "do, arguments",
    [
        ("sample", {"windows": [{}] * 13}),
        ("sample", {"windows": {}}),
        ("sample", {"windows": [{"sort": "colour"}]}),
        ("sample", {"windows": [{"limit": 501}]}),
        ("sample", {"windows": [{"from": -1}]}),
        ("sample", {"windows": [{"unknown": 1}]}),
        ("children", {}),
        ("children", {"of": ["1"]}),
        ("children", {"of": [True]}),
        ("children", {"of": list(range(101))}),
        ("near", {}),
        ("near", {"to": 1, "limit": 61}),
        ("calls", {"limit": 0}),
        ("threads", {"limit": 501}),
        ("profile", {"seconds": 61}),
        ("profile", {"rate": 101}),
        ("flow", {"ids": list(range(65))}),
        ("flow", {"ids": [1], "seconds": 61}),
        ("log", {"level": "loud"}),
        ("events", {"limit": "all"}),
        ("applications", {"all": True}),
    ],
)
async def test_a_wrong_argument_is_an_answer(do: str, arguments: dict[str, Any]) -> None:
    async with served("look") as (node, server):
        await node.spawn(Recorder)

        answer = await ask(server.path, do, **arguments)

        assert answer["code"] in ("bad_argument", "no_such_process"), answer
        assert len(answer["text"]) < 400


async def test_views_of_a_process_that_is_not_there_say_so() -> None:
    async with served("look") as (_, server):
        answers = await in_thread(
            talk,
            server.path,
            ("near", {"to": 99}),
            ("process", {"to": "nobody"}),
            ("profile", {"to": 99}),
            ("flow", {"ids": [99]}),
            ("children", {"of": [99]}),
        )

        assert [each.get("code") for each in answers[:4]] == ["no_such_process"] * 4
        assert answers[4] == {"levels": {}}


def test_long_answers_are_encoded_in_slices_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("ergo_py._core.inspection.thread_slices.sleep", pauses.append)
    monkeypatch.setattr("ergo_py._core.inspection.thread_slices.thread_time", lambda: 0.0)
    value = {
        "rows": {
            str(number): {"name": HOSTILE, "in": [number, None, 0.5]} for number in range(120)
        },
        "order": list(range(101)),
        "none": {},
        "empty": [],
        "deep": [{"a": [True, {"b": "\ud800"}]}],
    }

    text = encode_in_slices(value).decode()

    assert json.loads(text) == json.loads(json.dumps(value).replace("\\ud800", "?"))
    assert len(pauses) == 4


async def test_a_look_pauses_while_its_clock_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    pauses: list[float] = []

    def tick() -> float:
        nonlocal clock
        clock += 0.0002
        return clock

    monkeypatch.setattr("ergo_py._core.inspection.thread_slices.sleep", pauses.append)
    monkeypatch.setattr("ergo_py._core.inspection.thread_slices.thread_time", tick)
    async with running_node() as node:
        for _ in range(1001):
            await node.spawn(Recorder)
        survey = Survey(kernel_of(node))
        await in_thread(survey.look)
        first = len(pauses)
        windows = [Window("load", True), Window("name"), Window("id", find="Rec")]
        await in_thread(survey.look, windows)

    # Each some of 100 takes three looks at the clock at most, and a pause comes after 0.5 ms.
    assert first >= 3
    assert len(pauses) - first > first


async def test_levels_have_a_bounded_number_of_rows_together() -> None:
    async with running_node() as node:
        for _ in range(300):
            await node.spawn(Recorder)

        levels = tree_levels(node, RowFormat(), [0] * 20, 200)["levels"]

        assert len(levels["0"]["order"]) == 1


async def test_many_processes_are_read_in_slices_with_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("ergo_py._core.inspection.thread_slices.sleep", pauses.append)
    monkeypatch.setattr("ergo_py._core.inspection.thread_slices.thread_time", lambda: 0.0)
    async with running_node() as node:
        for _ in range(1001):
            await node.spawn(Recorder)

        await in_thread(Survey(kernel_of(node)).look)

        # One before the processes, and five among them.
        assert len(pauses) == 6
