"""Modules that a program does not need are not loaded when it starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ergo_py.node import LOADED_WITH_A_NODE

ROOT = Path(__file__).parent.parent


def modules_after(program: str) -> set[str]:
    """The modules that a new interpreter has loaded at the end of the program, beyond those of an
    empty program.
    """
    return _modules(program) - _modules("")


def _modules(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{program}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("COV")},
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


HEAVY = {
    "asyncio",
    "dataclasses",
    "inspect",
    "logging",
    "prompt_toolkit",
    "pygments",
    "pytest",
    "rich",
    "socket",
    "ssl",
    "structlog",
    "subprocess",
    "textual",
    "trio",
}


def test_import_of_the_package_loads_only_the_table_of_its_names() -> None:
    loaded = modules_after("import ergo_py")

    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.split(".")[0] == "ergo_py"} == {
        "ergo_py",
        "ergo_py._core",
        "ergo_py._core.vocabulary",
        "ergo_py._core.vocabulary.public_names",
    }


def test_import_of_the_bridges_loads_no_bridge() -> None:
    loaded = modules_after("import ergo_py.meta")

    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("ergo_py.meta.")} == set()


def test_import_of_messages_and_errors_loads_no_event_loop() -> None:
    loaded = modules_after("from ergo_py import PID, CallTimeoutError, Down, Exit, Reject")

    assert loaded & {"trio", "structlog", "asyncio", "ssl", "subprocess", "pytest"} == set()


ROOMS = {
    *("aio", "applications", "blocking", "cluster", "control", "devices", "drain", "entities"),
    *("entity_handles", "facades", "groups", "handover", "info", "meta", "moved_names", "network"),
    *("observe", "pipelines", "program", "reload", "schedules", "service_manager", "shell"),
    *("state_machine", "streams.events", "streams.parts", "supervision.handle"),
    *("supervision.pool", "supervision.supervisor", "supervision.tree", "supervision.upgrade"),
    *("tasks.handle", "tasks.process", "tasks.stream", "telemetry", "testing", "web", "workers"),
}
"""Modules and packages that the names of most programs do not need. Those of verbs are loaded when
a node opens, and the others by their names.
"""


def test_import_of_the_names_of_most_programs_loads_no_room_beyond_them() -> None:
    loaded = modules_after("from ergo_py import Actor, ChildSpec, open_node")

    rooms = {name.removeprefix("ergo_py.") for name in loaded}
    assert rooms & ROOMS == set()
    assert loaded & {"asyncio", "concurrent.futures", "json", "sqlite3", "structlog"} == set()


WRITES = """\
import dataclasses, trio
written, dataclass = [], dataclasses.dataclass

def noting(**options):
    def decorate(cls):
        written.append(cls.__qualname__)
        return dataclass(**options)(cls)
    return decorate

dataclasses.dataclass = noting
from ergo_py import Actor, ChildSpec, open_node
assert written == [], written
"""


def test_import_of_the_names_of_most_programs_writes_no_methods_of_dataclasses() -> None:
    modules_after(WRITES)


def test_each_room_beyond_these_names_exists() -> None:
    modules_after("\n".join(f"import ergo_py.{room}" for room in sorted(ROOMS)))


def test_import_of_behaviours_loads_no_logging_library() -> None:
    loaded = modules_after("from ergo_py import Actor, ChildSpec, StateMachine, open_node, run")

    assert loaded & {"structlog", "rich", "asyncio", "pytest", "trio.testing"} == set()
    assert "ergo_py.control.server" not in loaded


def test_commands_about_a_running_node_load_no_event_loop_and_no_terminal_library() -> None:
    loaded = modules_after("from ergo_py.shell.cli import main\nimport ergo_py.shell.prompt")

    assert loaded & {"asyncio", "prompt_toolkit", "pygments", "rich", "textual", "trio"} == set()


REFUSES = """\
import sys
import trio
from ergo_py import Actor, ChildSpec, open_node

class Replaced:
    def find_spec(self, name, path=None, target=None):
        raise ImportError(f"{name} would be of the next version, or no descriptor is left")

def replace_files():
    sys.meta_path[:] = [Replaced()]
    sys.path_importer_cache.clear()
"""
"""A program whose files are replaced while it runs: each module that it still loads is an error."""

OPENS = f"""{REFUSES}
from ergo_py.errors import ProcessUnknownError

class Next(Actor):
    pass

async def main():
    async with open_node(log_output="none") as node:
        supervisor = await node.supervise([ChildSpec("child", Actor)])
        replace_files()
        await node.spawn(Actor)
        node.log.error("a line")
        node.tree(), node.info(), node.processes()
        node.group("group").members(), node.registry("names"), node.open_topic("news")
        async with node.events("news"), node.map_stream(trio.sleep, [0]) as done:
            assert [item async for item in done] == [None]
        await node.run_task(trio.sleep, 0)
        await node.run_task(len, "in a thread")
        node.call_stream("nobody", 1)
        try:
            node.pool("nobody")
        except ProcessUnknownError:
            await supervisor.upgrade_child("child", Next)
        assert await node.reload() == []
        assert await node.drain() == []

trio.run(main)
"""


def test_a_running_node_has_loaded_the_modules_that_it_needs() -> None:
    loaded = modules_after(OPENS)

    assert {f"ergo_py.{name}" for name in LOADED_WITH_A_NODE} < loaded
    assert {"concurrent.futures", "structlog"} < loaded  # a call from a thread needs a future
    assert loaded & {"pytest", "trio.testing", "ergo_py.control.server"} == set()


HANDS_OVER = f"""{REFUSES}
from ergo_py.handover.succession import Succession
from ergo_py.meta.inherited_sockets import InheritedSockets

class Visits(Actor):
    total = 1

    def handle_call(self, request, caller):
        return self.total

    def hand_over(self):
        return self.total + 1

    def take_over(self, state):
        self.total = state

async def run_program(name, has_ended, task_status):
    async with open_node(name, log_output="none") as node:
        succession, serves = Succession("visits", InheritedSockets({{}})), trio.Event()
        await succession.begin()
        await node.supervise([ChildSpec("visits", Visits)])
        succession.watch(node, serves.set)()
        await serves.wait()
        task_status.started(node)
        try:
            await trio.sleep_forever()
        finally:
            await succession.end()
            has_ended.set()

async def main():
    has_ended = trio.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(run_program, "old@localhost", has_ended)
            replace_files()
            node = await nursery.start(run_program, "new@localhost", trio.Event())
            await has_ended.wait()
            assert await node.call("visits", "total") == 2
            nursery.cancel_scope.cancel()

trio.run(main)
"""


def test_a_program_hands_over_with_the_modules_that_it_has_loaded(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))

    loaded = modules_after(HANDS_OVER)

    assert "ergo_py.handover.forwarded_requests" in loaded


@pytest.mark.parametrize("name", ["ergo_py.CallTimeoutError", "ergo_py.meta.TCPServer"])
def test_a_pickled_name_is_loaded_where_it_is_unpickled(name: str) -> None:
    package, _, attribute = name.rpartition(".")
    pickled = f"c{package}\n{attribute}\n.".encode()

    loaded = modules_after(
        f"import pickle\nassert pickle.loads({pickled!r}).__module__ == {package!r}"
    )

    assert package in loaded


NETWORKED = """\
import trio
from ergo_py import open_node
from ergo_py.network import Local

async def main():
    async with open_node("one@localhost", network=Local(), log_output="none"):
        pass

trio.run(main)
"""


def test_a_node_with_a_network_has_loaded_the_handles_of_other_nodes() -> None:
    assert "ergo_py.network.remote_node" in modules_after(NETWORKED)


def test_a_node_alone_imports_no_network() -> None:
    loaded = modules_after(
        "import trio\nfrom ergo_py import open_node\n"
        "async def main():\n    async with open_node('alone'):\n        pass\n"
        "trio.run(main)"
    )

    assert "trio" in loaded
    assert not any(name.startswith(("msgspec", "ergo_py.network")) for name in loaded)
