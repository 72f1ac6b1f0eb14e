"""The command line, in the program of the test: the output of each command, and the status it ends
with.
"""

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import Actor, Backoff, ChildSpec, Drain, ask, pipelines
from ergo_py._core.vocabulary.states import State
from ergo_py.blocking.loop_thread import OwnedNode, open_node
from ergo_py.cluster import Cluster
from ergo_py.entities import Entities, EntityInspector, MemoryStore
from ergo_py.network import Local
from ergo_py.pipelines import Item, Pipeline, Source, Stage, ToActor
from ergo_py.shell.cli import main
from ergo_py.shell.exit_codes import Status
from tests.actors import Puppet
from tests.control.test_commands import Bomb, Reader
from tests.entities.bank import TYPES, Account
from tests.meta.owner import eventually
from tests.shell.terminal import ROOT
from tests.support import process_of, without_blockages
from tests.test_startup import modules_after


class Counter(Actor):
    def __init__(self) -> None:
        self.total = 0

    def handle_message(self, message: Any, sender: Any) -> None:
        self.total += 1

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"total": str(self.total), **dict.fromkeys(items, "asked")}


class Unfinished(Actor):
    drains = True

    def handle_call(self, request: Any, caller: Any) -> int:
        return 2


class Misconfigured(Actor):
    def handle_reload(self) -> None:
        raise ValueError("no number")


class Blocker(Actor):
    def __init__(self, enough: threading.Event) -> None:
        self.enough = enough

    def handle_message(self, message: Any, sender: Any) -> None:
        self.enough.wait(20)


async def populate(node: Any) -> None:
    await node.supervise([ChildSpec("counter", Counter), ChildSpec("puppet", Puppet)], name="root")
    await node.call("puppet", lambda me: me.spawn_meta(Reader()))
    bomb = await node.spawn(Bomb, name="bomb")
    node.send(bomb, "now")
    await node.wait_ended(bomb)
    node.send(bomb, "too late")


@pytest.fixture
def node() -> Iterator[OwnedNode]:
    with open_node("demo@localhost", control="look,act", log_output="none", watchdog=None) as node:
        node.run(populate)
        yield node


Ergo = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ergo(capsys: pytest.CaptureFixture[str]) -> Ergo:
    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as leave:
            status = int(leave.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return run


# -- start-up --------------------------------------------------------------------------------------


VOCABULARY_OF_COMMANDS = (
    *("choices", "errors", "hints", "ids", "late_methods", "public_names", "reasons", "text"),
)


@pytest.mark.parametrize(
    "command",
    ["nodes", "ps", "tree", "info", "crashes", "dead-letters", "top --count 1 --interval 0.1"],
)
def test_a_command_about_a_running_node_does_not_load_the_kernel(
    node: OwnedNode, command: str
) -> None:
    loaded = modules_after(
        f"from ergo_py.shell.cli import main\nassert main({command.split()!r}) == 0"
    )

    assert "ergo_py.control.client" in loaded
    assert loaded & {"trio", "outcome", "structlog", "logging", "rich", "asyncio"} == set()
    assert loaded & {"pytest", "ssl", "subprocess", "importlib.metadata"} == set()
    errors = "ergo_py._core.vocabulary.errors."
    assert {
        name for name in loaded if name.startswith("ergo_py._core.") and not name.startswith(errors)
    } <= {
        "ergo_py._core.vocabulary",
        *(f"ergo_py._core.vocabulary.{name}" for name in VOCABULARY_OF_COMMANDS),
    }


# -- looking ---------------------------------------------------------------------------------------


def test_nodes_lists_the_nodes_with_a_control_socket(node: OwnedNode, ergo: Ergo) -> None:
    status, out, _ = ergo("nodes")

    assert status == Status.DONE
    assert out == f"NODE            PROGRAM  PERMITS\ndemo@localhost  {os.getpid():>7}  act, look\n"
    assert json.loads(ergo("nodes", "--json")[1])[0]["name"] == "demo@localhost"


def test_every_look_command_prints_text_and_json(node: OwnedNode, ergo: Ergo) -> None:
    alias = node.metas()[0].number
    expected: dict[tuple[object, ...], str] = {
        ("ps",): "counter  Counter",
        ("ps", "demo", "--sort", "mailbox", "--find", "Count"): "counter  Counter",
        ("ps", "demo@localhost", "--threads"): "pipe.recv(1)",
        ("tree", "demo"): "   ├─ counter Counter",
        ("info",): "demo@localhost",
        ("info", "demo", "counter"): "Counter",
        ("info", "demo", alias): "pipe.recv(1)",
        ("inspect", "demo", "counter", "more"): "total  0\n more  asked",
        ("inspect", "demo", alias): "is  a reader",
        ("state", "demo", "counter"): "total  0",
        ("peek", "demo", "counter"): "the mailbox is empty",
        ("statistics", "demo", "counter", "--seconds", 0.01): "0 handled, 0 sent, busy ",
        ("trace", "demo", "counter", "--seconds", 0.01): "0 entries",
        (
            "trace",
            "demo",
            "counter",
            "--seconds",
            0.01,
            "--only",
            "send",
            "--type",
            "int",
        ): "0 entries",
        ("dead-letters",): "there is no process at this address",
        ("crashes",): 'raise Failed("boom")',
        ("crashes", "--all", "--count", 5): "bomb Bomb: crashed: Failed: boom",
    }

    for arguments, text in expected.items():
        status, out, err = ergo(*arguments)
        assert (status, err) == (Status.DONE, ""), arguments
        assert text in out, arguments
        status, out, err = ergo(*arguments, "--json")
        assert (status, err) == (Status.DONE, ""), arguments
        assert json.loads(out) is not None if out else arguments[0] == "trace"


def test_groups_are_listed_with_their_members_on_each_node(node: OwnedNode, ergo: Ergo) -> None:
    assert ergo("groups") == (Status.DONE, "no group has members\n", "")
    for name in ("counter", "puppet"):
        node.group("web").join(name)

    assert ergo("groups") == (
        Status.DONE,
        "MEMBERS  GROUP  NODES\n      2  web    demo@localhost 2\n",
        "",
    )
    assert json.loads(ergo("groups", "--json")[1])[0]["nodes"] == {"demo@localhost": 2}


def test_the_network_of_a_node_is_shown_as_a_table(ergo: Ergo, short_path: Path) -> None:
    (short_path / "nodes").mkdir(mode=0o700)
    network = Local(directory=short_path / "nodes")
    options: Any = {"log_output": "none", "watchdog": None, "network": network}
    with (
        open_node("shop@site", control="look", **options) as shop,
        open_node("stock@site", **options) as stock,
    ):
        assert ergo("network") == (
            Status.DONE,
            "shop@site knows no other node yet; it connects when they talk\n",
            "",
        )
        shop.at("stock@site").ping()

        status, out, err = ergo("network", "shop")
        heads, row = out.splitlines()
        assert (status, err) == (Status.DONE, "")
        assert heads.split()[:5] == ["NODE", "STATE", "TRIP", "SENT", "RECEIVED"]
        assert heads.split()[5:] == ["WAITING", "CALLS", "REFUSED", "LOST"]
        assert row.split()[:2] == ["stock@site", "up"]
        assert json.loads(ergo("network", "--json")[1])["peers"]["stock@site"]["state"] == "up"
        assert stock.name == "stock@site"


def test_names_of_the_cluster_are_listed_with_their_holders(ergo: Ergo, short_path: Path) -> None:
    (short_path / "nodes").mkdir(mode=0o700)
    options: Any = {"log_output": "none", "network": Local(directory=short_path / "nodes")}

    async def register(node: Any) -> None:
        await Cluster(node).register("stock", await node.spawn(Counter))

    with open_node("shop@site", control="look", watchdog=None, **options) as shop:
        assert ergo("names", "shop") == (
            Status.DONE,
            "shop@site holds no name of the cluster, and competes for none\n",
            "",
        )
        shop.run(register)

        heads, row = ergo("names")[1].splitlines()
        assert heads.split() == ["KIND", "NAME", "HOLDER", "TOKEN", "LEFT"]
        assert row.split()[:3] == ["name", "stock", "shop@site"]
        (lease,) = json.loads(ergo("names", "--json")[1])
        assert row.split()[3] == str(lease["token"])
        assert 0 < lease["left"] <= 24


async def keep_accounts(node: Any) -> None:
    settings: Any = {"attempts": 1, "types": TYPES}
    entities = Entities.spec(MemoryStore(), [Account], **settings)
    await node.supervise([ChildSpec("entities", entities)], name="bank")
    for key in ("ada", "adam", "bob"):
        await node.entity(Account, key).call(ask(Account.deposit, 5), once="monday")


def test_entities_are_listed_shown_and_found_by_their_keys(node: OwnedNode, ergo: Ergo) -> None:
    assert ergo("entities") == (Status.DONE, "demo@localhost keeps no entities\n", "")
    node.run(keep_accounts)

    heads, row, store = ergo("entities", "demo")[1].splitlines()
    assert heads.split() == ["KIND", "STORED", "AWAKE", "OWED", "PARKED"]
    assert row.split() == ["Account", "3", "3", "-", "-"]
    assert store.endswith("3 commits of 3 versions")
    assert json.loads(ergo("entities", "--json")[1])[0]["kinds"][0]["stored"] == 3
    record = json.loads(ergo("entities", "show", "Account", "ada")[1])
    assert (record["state"]["amount"], [*record["done"]]) == (5, ["monday"])
    assert ergo("entities", "demo", "keys", "Account", "--prefix", "ad")[1] == "ada\nadam\n"
    assert "and more after 'ada'" in ergo("entities", "keys", "Account", "--limit", "1")[1]
    assert json.loads(ergo("entities", "keys", "Account", "--json")[1])["is_more"] is False
    assert ergo("entities", "keys", "Account", "--prefix", "x")[1].startswith("no Account is")


NAMES = ("broken", "jobs")
NO_BROKER = "Broken: OSError: no broker"


class Idle(Source):
    def take(self, most: int) -> list[Item]:
        return []

    def ack(self, items: list[Item]) -> None:
        raise AssertionError("there are none")


class Sink(pipelines.Sink):
    def handle_batch(self, items: list[Item]) -> None:
        raise AssertionError("there are none")


class Broken(Idle):
    def open(self) -> None:
        raise OSError("no broker")


def test_pipelines_are_listed_with_the_cause_of_a_lost_source(node: OwnedNode, ergo: Ergo) -> None:
    assert ergo("pipelines") == (Status.DONE, "demo@localhost has no pipelines\n", "")

    async def start(node: Any) -> None:
        reopen = Backoff(1000.0, 1000.0)
        bound: Any = {"reopen": reopen, "most_unacknowledged": 7, "poison": "dead"}
        await node.supervise(
            [
                ChildSpec("jobs", Pipeline.spec(Idle(), Sink(), most_unacknowledged=5)),
                ChildSpec("broken", Pipeline.spec(Broken(), ToActor("x"), **bound)),
            ]
        )
        pipelines: Any = [process_of(node, node.whereis(name)).behaviour for name in NAMES]
        # The readers have opened the sources, or have tried to.
        await eventually(
            lambda: [each.pipeline_facts()["lost"] for each in pipelines] == [NO_BROKER, ""]
        )

    node.run(start)

    heads, *rows, cause = ergo("pipelines", "demo")[1].splitlines()
    figures = ["RATE", "OPEN", "WAITING", "DELAY", "TAKEN", "RETRIED", "FAILED", "REDELIVERED"]
    assert heads.split() == ["PIPELINE", *figures, "INSIDE"]
    assert sorted(row.split() for row in rows) == [
        ["broken", "0.0", "0/7", "-", "0µs", "0", "-", "-", "-", "ToActor=0", "poison=0"],
        ["jobs", "0.0", "0/5", "-", "0µs", "0", "-", "-", "-", "Sink=0"],
    ]
    assert cause == f"the source of broken is lost: {NO_BROKER}"
    assert {each["name"] for each in json.loads(ergo("pipelines", "--json")[1])} == {*NAMES}


class Shut(Stage):
    async def handle(self, item: Item) -> object:
        await trio.sleep_forever()


class Visitor(Actor):
    def init(self) -> None:
        for _ in range(3):
            self.request("desk", "hello", timeout=None)


def test_pipelines_are_listed_with_the_calls_that_wait(node: OwnedNode, ergo: Ergo) -> None:
    async def start(node: Any) -> None:
        plan = Pipeline.spec(Shut(), most_unacknowledged=2, on_stop=Drain(0.0))
        await node.supervise([ChildSpec("desk", plan), ChildSpec("visitor", Visitor)])
        pipeline: Any = process_of(node, node.whereis("desk")).behaviour
        await eventually(lambda: pipeline.figures().waiting == 1)

    node.run(start)

    [row] = ergo("pipelines", "demo")[1].splitlines()[1:]
    assert row.split()[:4] == ["desk", "0.0", "2/2", "1"]


def test_parked_messages_of_entities_are_listed_and_retried(node: OwnedNode, ergo: Ergo) -> None:
    node.run(keep_accounts)
    assert ergo("entities", "parked")[1] == "no message is parked\n"
    assert ergo("entities", "retry", "Account", "ada", "--yes")[1].endswith("no parked messages\n")

    async def park(node: Any) -> None:
        await node.entity(Account, "ada").post("crash")
        while not (await EntityInspector(node).parked()):  # noqa: ASYNC110 - real backoff
            await trio.sleep(0.01)

    node.run(park)
    heads, row, advice = ergo("entities", "parked")[1].splitlines()
    assert heads.split() == ["KIND", "KEY", "TO", "MESSAGE", "ATTEMPTS"]
    assert row.split() == ["Account", "ada", "Account/ada", "str", "1"]
    assert "ergo entities retry KIND KEY" in advice
    assert len(json.loads(ergo("entities", "parked", "--json")[1])) == 1
    assert ergo("entities", "retry", "Account", "ada")[0] == Status.NOT_CONFIRMED
    retried = ergo("entities", "retry", "Account", "ada", "--yes")
    assert retried[1] == "1 parked messages are tried again\n"
    assert json.loads(ergo("entities", "retry", "Account", "bob", "-y", "--json")[1]) == {
        "retried": 0
    }


@pytest.mark.parametrize(
    "words, status, text",
    [
        (["show", "Acount", "ada"], Status.FAILED, "did you mean 'Account'?"),
        (["show", "Account", "eve"], Status.NO_PROCESS, "nothing is stored for Account 'eve'"),
        (["show", "Account"], Status.USAGE, "[show KIND KEY | keys KIND | parked"),
        (["demo", "dance"], Status.USAGE, "[show KIND KEY | keys KIND | parked"),
        (["nowhere", "parked"], Status.NO_NODE, "nowhere"),
    ],
)
def test_a_wrong_question_about_entities_is_explained(
    node: OwnedNode, ergo: Ergo, words: list[str], status: Status, text: str
) -> None:
    node.run(keep_accounts)
    got, _, err = ergo("entities", *words)
    assert got == status
    assert text in err


def test_a_node_without_a_network_tells_the_option_that_opens_it(
    node: OwnedNode, ergo: Ergo
) -> None:
    status, _, err = ergo("network")

    assert status == Status.FAILED
    assert "open_node(…, network=Local(types=[…]))" in err


def test_reload_lets_processes_read_their_settings_and_tells_failures(
    node: OwnedNode, ergo: Ergo
) -> None:
    assert ergo("reload") == (Status.DONE, "demo@localhost has read its settings again\n", "")

    node.spawn(Misconfigured)
    status, out, err = ergo("reload", "demo")
    assert status == Status.FAILED
    assert out.endswith(": ValueError: no number\n")
    assert "demo@localhost goes on with settings that are not new" in err
    assert json.loads(ergo("reload", "--json")[1])["failed"] == out.splitlines()


def test_drain_takes_a_node_out_of_service_and_tells_unfinished_work(
    node: OwnedNode, ergo: Ergo
) -> None:
    status, _, err = ergo("drain")
    assert status == Status.NOT_CONFIRMED
    assert "drain demo@localhost? there is no terminal to ask at: say --yes" in err

    assert ergo("drain", "demo", "--yes", "--timeout", 1) == (
        Status.DONE,
        "demo@localhost is drained: stop it, or deploy the next version\n",
        "",
    )

    node.spawn(Unfinished)
    status, out, err = ergo("drain", "--yes", "--timeout", 1)
    assert status == Status.FAILED
    assert out.endswith(": 2 cut off\n")
    assert "demo@localhost is out of service, with work that is not finished" in err
    assert json.loads(ergo("drain", "--yes", "--json")[1])["unfinished"] == out.splitlines()


def test_a_mailbox_is_shown_with_types_and_with_contents(node: OwnedNode, ergo: Ergo) -> None:
    node.suspend("counter")
    node.send("counter", "secret")

    assert "handle_message  0     str" in ergo("peek", "demo", "counter")[1]
    assert "'secret'" in ergo("peek", "demo", "counter", "--contents")[1]
    assert "suspended" in ergo("ps")[1]


def test_top_without_a_terminal_writes_frames(node: OwnedNode, ergo: Ergo) -> None:
    status, out, _ = ergo("top", "--interval", "0.01", "--count", "2")

    assert status == Status.DONE
    assert out.count("demo@localhost (program") == 2
    assert "MSG/S  LOAD  WORST" in out
    assert "\x1b" not in out


def test_long_lists_show_the_number_of_omitted_rows(node: OwnedNode, ergo: Ergo) -> None:
    _, out, _ = ergo("ps", "--limit", "1")

    assert "… and 3 more; --limit shows them" in out


# -- acting ----------------------------------------------------------------------------------------


def test_without_a_terminal_act_commands_need_yes(node: OwnedNode, ergo: Ergo) -> None:
    status, _, err = ergo("kill", "demo", "counter")

    assert status == Status.NOT_CONFIRMED
    assert "kill counter Counter" in err
    assert "say --yes" in err
    assert node.whereis("counter") is not None


def test_messages_are_json_or_text_and_processes_can_be_suspended_and_ended(
    node: OwnedNode, ergo: Ergo
) -> None:
    before = node.whereis("puppet")

    assert ergo("suspend", "demo", "puppet", "-y")[1] == "suspended\n"
    assert ergo("suspend", "demo", "puppet", "-y")[1] == "it was suspended already\n"
    for message in ('{"a": 1}', "hello", "5", '"5"'):
        assert ergo("send", "demo", "puppet", message, "-y")[:2] == (Status.DONE, "sent\n")
    assert ergo("resume", "demo", "puppet", "--yes", "--json")[1] == '{\n  "resumed": true\n}\n'
    heard = node.call("puppet", "all")
    assert ergo("exit", "demo", "puppet", "--reason", "tired", "-y")[1] == "asked\n"
    assert ergo("kill", "demo", "counter", "-y")[1] == "killed\n"

    assert heard == [{"a": 1}, "hello", 5, "5"]
    assert before is not None


def test_a_state_has_the_same_word_in_each_command_and_in_the_documentation(
    node: OwnedNode, ergo: Ergo
) -> None:
    async def settle(inner: Any) -> None:
        await eventually(lambda: inner.process_info("counter").state is State.SLEEP)

    node.run(settle)

    (line,) = [line for line in ergo("ps")[1].splitlines() if " counter " in line]
    (row,) = [
        row for row in json.loads(ergo("ps", "--json")[1])["rows"] if row["name"] == "counter"
    ]
    root = json.loads(ergo("tree", "--json")[1])["children"][0]
    (child,) = [child for child in root["children"] if child["name"] == "counter"]
    info = json.loads(ergo("info", "demo", "counter", "--json")[1])
    fact = re.findall(r"^ +state +(\w+)$", ergo("info", "demo", "counter")[1], re.MULTILINE)

    words = [line.split()[3], row["state"], child["state"], info["state"], *fact]
    assert words == [State.SLEEP.value] * 5
    page = (Path(__file__).parents[2] / "docs" / "processes.md").read_text(encoding="utf-8")
    assert {state.value.upper() for state in State} <= {*re.findall(r"\b[A-Z_]+\b", page)}


# -- errors ----------------------------------------------------------------------------------------


def test_without_a_node_the_error_shows_how_to_run_a_node(ergo: Ergo) -> None:
    status, _, err = ergo("ps")

    assert status == Status.NO_NODE
    assert "ergo run --control look" in err
    assert ergo("nodes")[:2] == (Status.DONE, "no node offers a control socket\n")


@pytest.mark.parametrize(
    "who, hint", [("countr", "did you mean 'counter'?"), ("xyz", "`ergo ps` lists all")]
)
def test_the_error_about_an_unknown_process_helps_to_find_it(
    node: OwnedNode, ergo: Ergo, who: str, hint: str
) -> None:
    status, _, err = ergo("info", "demo", who)

    assert status == Status.NO_PROCESS
    assert f"has the number or the name {who!r}; {hint}" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this platform has no /dev/full")
def test_a_full_disk_under_the_output_is_reported_in_a_single_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ergo_py", "completion", "bash"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == Status.FAILED
    why = os.strerror(errno.ENOSPC)
    assert done.stderr == f"ergo: the output cannot be written: {why}\n"


def test_a_reader_that_closes_the_output_ends_the_command_without_an_error(
    node: OwnedNode,
) -> None:
    read, write = os.pipe()
    os.close(read)

    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "ergo_py", "top", "demo", "--count", "1", "--interval", "0.01"],
            stdin=subprocess.DEVNULL,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (done.returncode, done.stderr) == (Status.DONE, "")


def test_the_error_about_an_unknown_node_lists_the_known_nodes(node: OwnedNode, ergo: Ergo) -> None:
    status, _, err = ergo("tree", "dmo")

    assert status == Status.NO_NODE
    assert "no node with the name 'dmo'; did you mean 'demo'?\n  demo@localhost" in err
    assert "no node with the name 'shop'; there are:\n  demo@localhost" in ergo("ps", "shop")[2]
    assert ergo("tree", "--pid", "1")[0] == Status.NO_NODE


def test_a_pattern_shows_all_nodes_that_fit(node: OwnedNode, ergo: Ergo) -> None:
    with open_node("demo-2@elsewhere", control="look", log_output="none", watchdog=None):
        for command in ("ps", "tree", "info", "crashes", "dead-letters"):
            status, out, _ = ergo(command, "demo*")
            assert status == Status.DONE
            assert "demo@localhost:\n" in out
            assert "demo-2@elsewhere:\n" in out
        status, out, _ = ergo("top", "*", "--interval", "0.01")
        assert status == Status.DONE
        assert out.count(" alive, ") == 2
        assert "demo@localhost:" not in ergo("ps", "*@elsewhere")[1]

    assert ergo("ps", "other-*")[0] == Status.NO_NODE
    assert ergo("ps", "*", "--json")[0] == Status.USAGE
    status, _, err = ergo("kill", "demo*", "puppet", "-y")
    assert status == Status.USAGE
    assert "`ergo kill` takes a single node; 'demo*' is a pattern" in err


def test_a_node_that_refuses_does_not_hide_the_others(node: OwnedNode, ergo: Ergo) -> None:
    with open_node("demo-2@here", control="attach", log_output="none", watchdog=None):
        status, out, err = ergo("ps", "demo*")

    assert status == Status.NOT_PERMITTED
    assert "demo@localhost:\n" in out
    assert "not all nodes have answered" in err


def test_an_ambiguous_name_of_a_node_is_refused(node: OwnedNode, ergo: Ergo) -> None:
    with open_node("demo@elsewhere", control="look", log_output="none", watchdog=None):
        status, _, err = ergo("ps", "demo")

        assert status == Status.NO_NODE
        assert "several nodes match; choose one by its name:\n  demo@" in err
        assert ergo("ps", "demo@elsewhere")[0] == Status.DONE


@pytest.mark.parametrize(
    "arguments, status, text",
    [
        (["inspect", "demo", "nobody"], Status.NO_PROCESS, "'nobody'"),
        (["inspect", "demo", "99999"], Status.NO_PROCESS, "99999"),
        (["state", "demo", "alias"], Status.NO_PROCESS, "alias"),
        (["attach", "demo"], Status.NOT_PERMITTED, "--control look,attach"),
        (["inspect", "demo"], Status.USAGE, "WHO"),
        (["ps", "--sort", "mailbxo"], Status.USAGE, "did you mean mailbox?"),
        (["pss"], Status.USAGE, "invalid choice: 'pss'; did you mean ps?"),
        (
            ["ps", "--sotr", "load"],
            Status.USAGE,
            "ergo ps: unrecognized arguments: --sotr; did you mean --sort?",
        ),
        (["run", "--control", "look,atach", "x"], Status.USAGE, "did you mean attach?"),
        (["run", "examples/counter/mian.py"], Status.USAGE, "did you mean main.py?"),
        (
            ["run", "examples/looking/shop.py:mian"],
            Status.USAGE,
            "has no 'mian'; did you mean 'main'?",
        ),
        (["entities", "shw", "Account", "3"], Status.USAGE, "did you mean 'show'?"),
        (
            ["simulate", "examples/testing/test_orders.py::hasty_orders"],
            Status.USAGE,
            "has no test hasty_orders with @simulated; did you mean 'hasty_orders_survive'?",
        ),
        (
            ["simulate", "examples/testing/test_orders.py::place_orders"],
            Status.USAGE,
            "is no test of a world: `@simulated(…)` above a function that takes the world makes it "
            "one; the file has test_confirmed_orders_survive, hasty_orders_survive",
        ),
        (["ps", "--limit", "0"], Status.USAGE, "no number from 1"),
        (["top", "--interval", "-1"], Status.USAGE, "no positive number"),
        (["top", "--interval", "soon"], Status.USAGE, "no positive number"),
        (["trace", "demo", "counter", "--only", "hndle"], Status.USAGE, "'handle_call', 'send'"),
        (["run"], Status.USAGE, "PROGRAM"),
        (["run", "--control", "all", "x"], Status.USAGE, "write look, act, attach"),
        (["run", "no_such_module"], Status.USAGE, "there is no module 'no_such_module'"),
        (["shell", "no/such/file.py"], Status.USAGE, "there is no file no/such/file.py"),
        (["send", "demo", "counter", "x", "--priority", "huge"], Status.USAGE, "normal"),
    ],
)
def test_the_error_about_bad_input_shows_valid_input(
    node: OwnedNode, ergo: Ergo, arguments: list[str], status: int, text: str
) -> None:
    got, _, err = ergo(*arguments)

    assert got == status, err
    assert text in err
    assert "Traceback" not in err


def test_only_missing_required_arguments_are_called_required(ergo: Ergo) -> None:
    assert ergo("inspect", "demo")[2].endswith(
        "ergo inspect: the following arguments are required: WHO\n"
    )


def test_a_tree_of_many_similar_processes_is_folded_by_default(node: OwnedNode, ergo: Ergo) -> None:
    async def crowd(inner: Any) -> None:
        for _ in range(15):
            await inner.call("puppet", lambda me: me.spawn(Counter))

    node.run(crowd)

    folded, whole, shallow = (ergo("tree", *how)[1] for how in ([], ["--all"], ["--depth", "1"]))

    assert folded.count("Counter <PID") == 1 + 10
    assert "      └─ … and 5 more Counter\n" in folded
    assert whole.count("Counter <PID") == 1 + 15
    assert "more" not in whole
    assert "   └─ … 18 below\n" in shallow
    assert (
        len(json.loads(ergo("tree", "--json")[1])["children"][0]["children"][1]["children"]) == 16
    )


def test_without_a_command_the_help_is_shown(ergo: Ergo) -> None:
    status, out, _ = ergo()

    assert status == Status.USAGE
    assert "dead-letters" in out
    assert "statuses: 0 done" in out
    assert ergo("--help")[0] == Status.DONE
    assert ergo("--version")[1].startswith("ergo_py 0.")
    assert "the number or the registered name of a process" in ergo("inspect", "--help")[1]


@pytest.mark.parametrize("is_fast, build", [(True, "with the C extension"), (False, "pure Python")])
def test_the_version_says_which_build_it_is_and_the_first_page_says_so(
    is_fast: bool, build: str, ergo: Ergo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip does not show that it found no compiler."""
    monkeypatch.setattr("ergo_py._core.speed.installation.is_fast", is_fast)

    assert ergo("--version")[1].partition("\n")[0].endswith(f" ({build})")
    assert f"*{build}*" in (ROOT / "docs" / "first-steps.md").read_text(encoding="utf-8")


def test_a_blocked_loop_has_its_own_exit_status(ergo: Ergo) -> None:
    enough = threading.Event()
    with open_node("stuck@localhost", control="look,act", log_output="none", watchdog=None) as node:
        node.spawn(Blocker, enough, name="blocker")
        try:
            ergo("send", "stuck", "blocker", "now", "-y")
            status, _, err = ergo("info", "stuck")
            rows, out, noticed = ergo("ps", "stuck")
        finally:
            enough.set()

    assert status == Status.NO_ANSWER
    assert "blocked by Blocker.handle_message" in err
    assert "self.enough.wait(20)" in err
    assert "unrolled_run" not in err
    assert rows == Status.DONE
    assert "handle_message(str)" in out
    assert noticed.startswith("THE LOOP IS BLOCKED by Blocker.handle_message")


# -- running ---------------------------------------------------------------------------------------

PROGRAM = """
import sys
import tempfile
from ergo_py import Actor

async def main(node):
    print(node.name, sys.argv[1:], node.control_path is not None)

async def fails(node):
    raise ValueError("main failed")

class Ends(Actor):
    def init(self):
        self.send(self.pid, "stop")
    def handle_message(self, message, sender):
        self.stop()

class Crashes(Ends):
    def handle_message(self, message, sender):
        raise ValueError("crashed")
"""


@pytest.mark.parametrize(
    "app, status, text",
    [
        ("", Status.DONE, "program@localhost ['a', '--b'] False"),
        (":main", Status.DONE, "program@localhost ['a', '--b'] False"),
        (":fails", Status.FAILED, "ValueError: main failed"),
        (":Ends", Status.DONE, ""),
        (":Crashes", Status.FAILED, "Crashes ended: crashed: ValueError: crashed"),
    ],
)
def test_a_program_is_run_and_its_result_is_the_exit_status(
    ergo: Ergo, tmp_path: Path, app: str, status: int, text: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    got, out, err = ergo("run", "--log-output", "none", f"{tmp_path}/program.py{app}", "a", "--b")

    assert got == status, err
    assert text in out + err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_option_behind_the_program_is_told_at_a_terminal(
    ergo: Ergo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys\nasync def main(node):\n    print(sys.argv[1:])\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)

    status, out, err = ergo("run", program, "--other", "--reload")

    assert (status, out) == (Status.DONE, "['--other', '--reload']\n")
    told = (
        "ergo: --reload stands behind the program, which gets it; for ergo itself, write "
        f"`ergo run --reload {program}`\n"
    )
    assert err == (told if is_terminal else "")


def test_options_choose_the_log_level_and_the_log_output(ergo: Ergo, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "async def main(node):\n    node.log.info('hello', number=5)\n"
    )
    program = f"{tmp_path}/program.py"

    silent = ergo("run", program)[1:]
    status, out, err = ergo("run", "--log-level", "info", "--log-output", "json", program)
    told = [json.loads(line) for line in (out + err).splitlines()]

    assert silent == ("", "")
    assert status == Status.DONE
    assert ("hello", 5) in [(one["event"], one.get("number")) for one in told]
    assert ergo("run", "--log-level", "loud", program)[0] == Status.USAGE


NETWORKED = """
from dataclasses import dataclass
from ergo_py import Actor, Name, open_node
from ergo_py.entities import Entities, EntityInspector, MemoryStore
from ergo_py.network import Local

@dataclass(frozen=True)
class Question:
    text: str

TYPES = [Question]

class Answerer(Actor):
    def handle_call(self, request, caller):
        return request.text.upper()

async def main(node):
    async with open_node("other@here", network=Local(types=TYPES)) as other:
        await other.spawn(Answerer, name="answerer")
        print(await node.call(Name("answerer", "other@here"), Question("hello")), node.nodes())
"""


@pytest.fixture
def short_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for sockets of the test alone."""
    with tempfile.TemporaryDirectory(prefix="ergo-", dir="/tmp") as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield Path(directory)


def test_a_program_joins_the_network_of_the_machine(
    ergo: Ergo, tmp_path: Path, short_directory: Path
) -> None:
    (tmp_path / "networked.py").write_text(NETWORKED)
    program = f"{tmp_path}/networked.py"

    status, out, err = ergo("run", "--network", "local", "--name", "first@here", program)
    listed = ergo("run", "--network", "local", "--types", "networked", "--name", "a@here", program)

    assert status == Status.DONE, err
    assert (out, without_blockages(err)) == ("HELLO ['other@here']\n", "")
    assert listed[:2] == (Status.DONE, "HELLO ['other@here']\n")


@pytest.mark.counted
@pytest.mark.parametrize(
    "options, text",
    [
        (["--types", "networked"], "--types needs --network local or --network nats://host"),
        (["--cluster", "shop"], "--cluster needs --network local or --network nats://host"),
        (["--network", "nats"], "'nats' is neither local nor a URL such as nats://host:4222"),
        (["--network", "http://host"], "the URL of a NATS server, such as"),
        (["--network", "local", "--name", "alone"], "such as 'shop@berlin'"),
        (["--network", "local", "--types", "no_such_module"], "no module 'no_such_module'"),
    ],
)
def test_a_wrong_network_on_the_command_line_is_refused(
    ergo: Ergo, tmp_path: Path, short_directory: Path, options: list[str], text: str
) -> None:
    (tmp_path / "networked.py").write_text(NETWORKED)

    status, out, err = ergo("run", *options, f"{tmp_path}/networked.py")

    assert status == Status.USAGE
    assert text in out + err


@pytest.mark.parametrize("command", ["run", "shell"])
@pytest.mark.parametrize("way", ["option", "environment"])
@pytest.mark.parametrize(
    "url", ["nats://svc:hunt/er2@host", "svc:hunt,er2@host", "svc:hunter2", "nats://a:hunt,er2@b"]
)
def test_a_refused_network_shows_no_password(
    ergo: Ergo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    way: str,
    command: str,
) -> None:
    (tmp_path / "networked.py").write_text(NETWORKED)
    if way == "environment":
        monkeypatch.setenv("ERGO_NETWORK", url)
    options = ["--network", url] if way == "option" else []

    status, out, err = ergo(command, *options, f"{tmp_path}/networked.py")

    assert status == Status.USAGE
    assert "hunt" not in out + err
    assert "er2" not in out + err


def test_a_network_that_cannot_be_joined_is_a_short_error(
    ergo: Ergo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "networked.py").write_text(NETWORKED)
    monkeypatch.setenv("ERGO_NETWORK", "nats://127.0.0.1:1")

    status, out, err = ergo("run", "--name", "a@b", f"{tmp_path}/networked.py")

    assert (status, out) == (Status.FAILED, "")
    assert "no NATS server accepts this node: nats://127.0.0.1:1" in err
    assert "Traceback" not in err


def test_the_command_is_installed_under_its_name() -> None:
    (script,) = metadata.entry_points(group="console_scripts", name="ergo")

    assert script.load() is main


def test_a_program_gets_its_node_name_and_control_socket_from_options(
    ergo: Ergo, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    _, out, _ = ergo("run", "--name", "other@here", "--control", "look", f"{tmp_path}/program.py")

    assert out == "other@here [] True\n"


def test_an_invalid_node_name_is_refused(ergo: Ergo, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    for command in ("run", "shell"):
        status, _, err = ergo(command, "--name", "", f"{tmp_path}/program.py:main")

        assert status == Status.USAGE
        assert "name: got ''" in err


def test_an_unavailable_control_socket_is_reported_in_a_single_line(
    ergo: Ergo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")

    for command in ("run", "shell"):
        status, _, err = ergo(command, "--control", "look", f"{tmp_path}/program.py")

        assert status == Status.FAILED
        assert err.startswith("ergo: no directory for control sockets at /nowhere/ergo")
