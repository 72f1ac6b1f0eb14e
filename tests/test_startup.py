"""Modules that a program does not need are not loaded when it starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    *("aio", "blocking", "cluster", "control", "devices", "drain", "entities", "entity_handles"),
    *("facades", "groups", "handover", "info", "meta", "moved_names", "network", "observe"),
    *("pipelines", "program", "reload", "schedules", "service_manager", "shell", "state_machine"),
    *("streams.events", "streams.parts", "supervision.pool", "supervision.tree"),
    *("supervision.upgrade", "tasks.handle", "tasks.process", "tasks.stream", "telemetry"),
    *("testing", "web", "workers"),
}
"""Modules and packages that the names of most programs do not need: their first verb loads them."""


def test_import_of_the_names_of_most_programs_loads_no_room_beyond_them() -> None:
    loaded = modules_after("from ergo_py import Actor, ChildSpec, open_node")

    rooms = {name.removeprefix("ergo_py.") for name in loaded}
    assert rooms & ROOMS == set()
    assert loaded & {"asyncio", "concurrent.futures", "json", "sqlite3", "structlog"} == set()


def test_each_room_that_a_verb_loads_exists() -> None:
    modules_after("\n".join(f"import ergo_py.{room}" for room in sorted(ROOMS)))


def test_import_of_behaviours_loads_no_logging_library() -> None:
    loaded = modules_after("from ergo_py import Actor, ChildSpec, StateMachine, open_node, run")

    assert loaded & {"structlog", "rich", "asyncio", "pytest", "trio.testing"} == set()
    assert "ergo_py.control.server" not in loaded


def test_commands_about_a_running_node_load_no_event_loop_and_no_terminal_library() -> None:
    loaded = modules_after("from ergo_py.shell.cli import main\nimport ergo_py.shell.prompt")

    assert loaded & {"asyncio", "prompt_toolkit", "pygments", "rich", "textual", "trio"} == set()


OPENS = """\
import trio
from ergo_py import Actor, open_node

async def main():
    async with open_node(log_output="none") as node:
        await node.spawn(Actor)
        node.tree()
        before = set(sys.modules)
        await node.spawn(Actor)
        node.log.error("a line")
        node.tree(), node.info(), node.processes()
        try:
            await node.call("nobody", 1)
        except Exception:
            pass
        assert set(sys.modules) == before, set(sys.modules) - before

import sys
trio.run(main)
"""


def test_a_running_node_has_loaded_the_modules_that_it_needs() -> None:
    loaded = modules_after(OPENS)

    assert "structlog" in loaded
    assert loaded & {"pytest", "trio.testing", "ergo_py.control.server"} == set()


@pytest.mark.parametrize("name", ["ergo_py.CallTimeoutError", "ergo_py.meta.TCPServer"])
def test_a_pickled_name_is_loaded_where_it_is_unpickled(name: str) -> None:
    package, _, attribute = name.rpartition(".")
    pickled = f"c{package}\n{attribute}\n.".encode()

    loaded = modules_after(
        f"import pickle\nassert pickle.loads({pickled!r}).__module__ == {package!r}"
    )

    assert package in loaded


def test_a_node_alone_imports_no_network() -> None:
    loaded = modules_after(
        "import trio\nfrom ergo_py import open_node\n"
        "async def main():\n    async with open_node('alone'):\n        pass\n"
        "trio.run(main)"
    )

    assert "trio" in loaded
    assert not any(name.startswith(("msgspec", "ergo_py.network")) for name in loaded)
