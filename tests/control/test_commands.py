"""Every command, its answer, and its error for invalid arguments."""

import json
from typing import Any

import pytest
import trio

from ergo_py import Actor, ChildSpec, MetaProcess, Node
from ergo_py._core.vocabulary.errors import CallTimeoutError, NodeStoppedError
from ergo_py.control.commands import COMMANDS, explain
from tests.actors import Failed, Puppet, Recorder
from tests.control.rig import Wire, in_thread, served


class Reader(MetaProcess):
    kind = "waits"

    def start(self) -> None:
        with self.opened(self.make_pipe()) as pipe:
            pipe.recv(1)

    def make_pipe(self) -> Any:
        import socket

        ours, self.theirs = socket.socketpair()
        return ours

    def terminate(self, reason: Any) -> None:
        self.theirs.close()

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"is": "a reader", **dict.fromkeys(items, "asked")}


class Bomb(Actor):
    def handle_message(self, message: Any, sender: Any) -> None:
        raise Failed("boom")


async def populate(node: Node) -> None:
    await node.supervise([ChildSpec("puppet", Puppet)], name="root")
    await node.call("puppet", lambda me: me.spawn_meta(Reader()))
    bomb = await node.spawn(Bomb, name="bomb")
    node.send(bomb, "now")
    await node.wait_ended(bomb)
    node.send(bomb, "too late")


def talk(path: Any, *questions: tuple[str, dict[str, Any]]) -> list[Any]:
    with Wire(path) as wire:
        wire.hear()
        return [wire.ask(do, **arguments) for do, arguments in questions]


async def test_every_look_command_answers() -> None:
    async with served("look") as (node, server):
        await populate(node)
        alias = node.metas()[0].number

        (
            ps,
            threads,
            info,
            tree,
            process,
            meta,
            told,
            asked,
            state,
            peeked,
            counted,
            letters,
            crashes,
            ended,
        ) = await in_thread(
            talk,
            server.path,
            ("ps", {}),
            ("ps", {"threads": True}),
            ("info", {}),
            ("tree", {}),
            ("info", {"to": "puppet"}),
            ("info", {"to": alias}),
            ("inspect", {"to": "puppet", "items": ["x"]}),
            ("inspect", {"to": str(alias), "items": ["y"], "timeout": 1}),
            ("state", {"to": "puppet"}),
            ("peek", {"to": "puppet", "contents": True}),
            ("statistics", {"to": "puppet", "seconds": 0.01}),
            ("dead-letters", {}),
            ("crashes", {"count": 5}),
            ("crashes", {"all": True}),
        )

        assert [(row["name"], row["kind"]) for row in ps["rows"]] == [
            ("root", "process"),
            ("puppet", "process"),
            (None, "meta"),
        ]
        assert (ps["alive"], ps["found"], ps["blocked"]) == (3, 3, None)
        assert [row["thread"] for row in threads["rows"]] == [f"ergo-waits-{alias}"]
        assert "pipe.recv(1)" in threads["rows"][0]["frames"][-1]
        assert (info["name"], info["processes"], info["metas"], info["crashed"]) == (
            node.name,
            2,
            1,
            1,
        )
        assert "└─ puppet Puppet" in tree["text"]
        assert tree["tree"]["children"][0]["children"][0]["name"] == "puppet"
        assert (process["kind"], process["name"], process["phase"]) == (
            "process",
            "puppet",
            "running",
        )
        assert (meta["kind"], meta["alias"], meta["behaviour"]) == ("meta", alias, "Reader")
        assert "pipe.recv(1)" in meta["stack"]
        assert told == {"heard": "0", "x": "asked"}
        assert asked == {"is": "a reader", "y": "asked"}
        assert state == {"heard": "[]"}
        assert peeked == []
        assert counted["callbacks"] == []
        assert letters["counts"] == {"no_process": 1}
        assert letters["last"][0]["message_type"] == "str"
        assert [(one["name"], one["reason"], one["failed"]) for one in crashes] == [
            ("bomb", "crashed: Failed: boom", True)
        ]
        assert 'raise Failed("boom")' in crashes[0]["traceback"]
        assert ended == crashes
        kind, *lines = crashes[0]["group"].split("\n")
        assert (kind, lines[:2]) == ("Bomb", ["handle_message", "crashed: Failed"])
        assert lines[2].endswith("in handle_message")


async def test_rows_are_sorted_limited_and_found() -> None:
    async with served("look") as (node, server):
        for name in ("anna", "bert", "carl"):
            await node.spawn(Puppet, name=name)
        await node.suspend("bert")
        for _ in range(3):
            node.send("bert", 1)

        by_mailbox, found, limited, last = await in_thread(
            talk,
            server.path,
            ("ps", {"sort": "mailbox"}),
            ("ps", {"find": "ar"}),
            ("ps", {"limit": 2, "sort": "rate"}),
            ("ps", {"limit": 2, "skip": 2}),
        )

        assert [row["name"] for row in by_mailbox["rows"]] == ["bert", "anna", "carl"]
        assert by_mailbox["rows"][0]["state"] == "suspended"
        assert by_mailbox["mailbox"] == 3
        assert [row["name"] for row in found["rows"]] == ["carl"]
        assert (len(limited["rows"]), limited["found"]) == (2, 3)
        assert ([row["name"] for row in last["rows"]], last["found"]) == (["carl"], 3)


async def test_rates_count_from_the_last_request_of_the_client() -> None:
    async with served("look") as (node, server):
        pid = await node.spawn(Recorder)
        with Wire(server.path) as wire:
            await in_thread(wire.hear)
            first = await in_thread(lambda: wire.ask("ps"))
            for number in range(100):
                node.send(pid, number)
            await node.call(pid, "all")
            second = await in_thread(lambda: wire.ask("ps"))

        assert first["rate"] == 0
        assert second["rows"][0]["rate"] == pytest.approx(second["rate"])
        assert second["rate"] > 0


async def test_act_commands_have_their_effect() -> None:
    heard: list[Any] = []
    async with served("act") as (node, server):
        pid = await node.spawn(Recorder, heard, name="recorder")
        victim = await node.spawn(Puppet, name="victim")
        other = await node.spawn(Puppet, name="other")

        answers = await in_thread(
            talk,
            server.path,
            ("suspend", {"to": "recorder"}),
            ("send", {"to": "recorder", "message": {"a": [1, "b"]}}),
            ("send", {"to": pid.number, "message": None, "priority": "high"}),
            ("resume", {"to": "recorder"}),
            ("resume", {"to": "recorder"}),
            ("exit", {"to": "other", "reason": "enough"}),
            ("kill", {"to": "victim"}),
        )
        await node.call(pid, "all")

        assert answers == [
            {"suspended": True},
            {"sent": True},
            {"sent": True},
            {"resumed": True},
            {"resumed": False},
            {"asked": True},
            {"killed": True},
        ]
        assert heard == [None, {"a": [1, "b"]}]
        with trio.fail_after(20):
            while len(node.processes()) > 1:  # noqa: ASYNC110 - they may have ended before a task could wait for it
                await trio.sleep(0.01)
        assert {(one.pid, str(one.reason)) for one in node.crashes()} == {
            (other, "enough"),
            (victim, "killed"),
        }


@pytest.mark.parametrize(
    "do, arguments, code, text",
    [
        ("inspect", {}, "bad_argument", "needs to"),
        ("inspect", {"to": "nobody"}, "no_such_process", "'nobody'"),
        ("inspect", {"to": 99999}, "no_such_process", "99999"),
        ("inspect", {"to": "9" * 5000}, "no_such_process", "99999"),
        ("inspect", {"to": "<PID 1 other@localhost>"}, "no_such_process", "other@localhost"),
        ("inspect", {"to": f"<PID {'9' * 5000} test@localhost>"}, "no_such_process", "99999"),
        ("inspect", {"to": True}, "bad_argument", "needs to"),
        ("inspect", {"to": "recorder", "items": "x"}, "bad_argument", "a list of texts"),
        ("inspect", {"to": "recorder", "timeout": 1e9}, "bad_argument", "from 0 to 60"),
        ("inspect", {"to": "recorder", "verbose": 1}, "bad_argument", "does not know 'verbose'"),
        ("ps", {"sort": "size"}, "bad_argument", "one of id, mailbox"),
        ("ps", {"limit": 0}, "bad_argument", "from 1"),
        ("ps", {"threads": 1}, "bad_argument", "true or false"),
        ("send", {"to": "recorder"}, "bad_argument", "needs message"),
        (
            "send",
            {"to": "recorder", "message": 1, "priority": "highest"},
            "bad_argument",
            "normal, high, max",
        ),
        ("exit", {"to": "recorder", "reason": 5}, "bad_argument", "reason is text"),
        ("eval", {}, "bad_argument", "source is text"),
        ("complete", {"text": 1}, "bad_argument", "text is text"),
        ("tree", {"colour": 3}, "bad_argument", "'colour'"),
        ("launch", {}, "unknown", "there are ps, info"),
        ("_answer", {}, "unknown", "there is no"),
    ],
)
async def test_the_error_about_an_invalid_argument_names_the_valid_values(
    do: str, arguments: dict[str, Any], code: str, text: str
) -> None:
    async with served() as (node, server):
        await node.spawn(Recorder, name="recorder")

        (answer,) = await in_thread(talk, server.path, (do, arguments))

        assert answer["code"] == code
        assert text in answer["text"]


async def test_a_process_can_be_named_by_its_printed_pid() -> None:
    async with served() as (node, server):
        pid = await node.spawn(Puppet)

        (answer,) = await in_thread(talk, server.path, ("info", {"to": repr(pid)}))

        assert answer["pid"] == pid.number


async def test_a_process_that_is_busy_is_reported_as_slow() -> None:
    async with served() as (node, server):
        pid = await node.spawn(Puppet, shutdown=0)

        async def wait(me: Puppet) -> None:
            await trio.sleep_forever()

        node.send(pid, wait)
        await trio.testing.wait_all_tasks_blocked()

        (answer,) = await in_thread(
            talk, server.path, ("inspect", {"to": pid.number, "timeout": 0.05})
        )

        assert answer["code"] == "timeout"


async def test_the_state_is_shown_after_redact() -> None:
    def redact(what: str, value: object) -> object:
        return "…" if what == "password" else value

    class Secretive(Actor):
        def __init__(self) -> None:
            self.password = "hunter2"
            self.tries = 3

    async with served("look", redact=redact) as (node, server):
        await node.spawn(Secretive, name="secretive")

        (answer,) = await in_thread(talk, server.path, ("state", {"to": "secretive"}))

        assert answer == {"password": "'…'", "tries": "3"}


def test_every_command_needs_a_permission_and_errors_have_codes() -> None:
    assert {command.permission for command in COMMANDS.values()} == {"look", "act", "attach"}
    assert explain(NodeStoppedError("x@y")).code == "stopping"
    assert explain(CallTimeoutError("a", 1, 2.0)).code == "timeout"
    assert explain(KeyError("x")).code == "failed"


async def test_a_trace_sends_each_callback_to_the_client() -> None:
    async with served("look") as (node, server):
        pid = await node.spawn(Recorder, name="recorder")
        node.send_every(0.01, pid, {"a": 1})

        def listen(**how: Any) -> list[Any]:
            with Wire(server.path) as wire:
                wire.hear()
                asked = {"to": "recorder", "limit": 2, "seconds": 20, **how}
                wire.say(
                    json.dumps({"v": 1, "id": 1, "do": "trace", "with": asked}).encode() + b"\n"
                )
                return [wire.hear() for _ in range(3)]

        people = await in_thread(listen)
        programs = await in_thread(lambda: listen(contents=True, json=True, types=["dict"]))

        assert "handle_message(dict) from <PID 0" in people[0]["out"]
        assert people[2]["result"] == {"entries": 2, "missed": 0}
        assert json.loads(programs[0]["out"])["message"] == "{'a': 1}"
