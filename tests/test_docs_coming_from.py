"""The pages for users of other frameworks name things that exist here, and show the output of a
prompt.
"""

import importlib
import inspect
import re
from keyword import kwlist
from pathlib import Path

import pytest

import ergo_py
from ergo_py._core.vocabulary.options import SpawnKeywords
from ergo_py.shell.arguments import parse
from tests.control.rig import runtime_directory
from tests.shell.terminal import ROOT, at_terminal
from tests.shell.transcripts import assert_typed, transcripts
from tests.test_docs_api import MODULES, listed_names

__all__ = ["runtime_directory"]

PAGES = sorted((ROOT / "docs" / "coming-from").glob("*.md"))
COMMANDS = {"ps", "top", "tree", "crashes", "attach"}
NOT_OURS = {
    *kwlist,
    *COMMANDS,
    "run_sync",
    "fail_after",
    "to_thread",
    "trio",
    "self",
    "main",
    "ask",
    "tell",
}
"""Names of Python, trio and the framework that the page is for."""
EXAMPLES = (
    {"Add", "Reset", "int"}
    | {"asker", "Class", "Session", "Worker", "args", "options", "cores", "Queue"}
    | {
        "fetch",
        "part",
        "task",
        "url",
        "urls",
    }
)
"""Placeholders for names of the reader."""


def known() -> set[str]:
    """Every name of the reference, every public attribute of its classes, and every parameter."""
    found = {"ergo_py", *(module.__name__.rpartition(".")[2] for module in MODULES)}
    for path in {*listed_names()}:
        module, _, name = path.rpartition(".")
        thing = getattr(importlib.import_module(module), name)
        found.update((name, *(inner for inner in dir(thing) if not inner.startswith("_"))))
        if isinstance(thing, type) and (init := vars(thing).get("__init__")) is not None:
            found.update(inspect.signature(init).parameters)
    for verb in (
        ergo_py.Actor.run_task,
        ergo_py.Actor.map_stream,
        ergo_py.Service.call,
        ergo_py.open_node,
    ):
        found.update(inspect.signature(verb).parameters)
    return found | {
        *SpawnKeywords.__annotations__,
        *inspect.signature(ergo_py.ChildSpec).parameters,
    }


def names_here(page: Path) -> set[str]:
    """The code in the columns about this framework."""
    found = set[str]()
    for row in re.findall(r"^\|(?!---).*\|$", page.read_text(encoding="utf-8"), re.MULTILINE):
        here = re.split(r"(?<!\\)\|", row)[2]
        for code in re.findall(r"`([^`]+)`", here):
            if not code.startswith("ergo "):
                found.update(
                    re.findall(r"(?:^|[\s.(*\[=])(?!\.)([a-zA-Z_]{2,})\b(?=[(=:,)\]]|$| )", code)
                )
    return {name for name in found if not name.startswith("__")}


def test_there_is_a_page_for_each_origin() -> None:
    assert [page.stem for page in PAGES] == ["asyncio", "ergo", "erlang", "pykka", "ray"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_names_on_a_page_exist(page: Path) -> None:
    missing = names_here(page) - known() - NOT_OURS - EXAMPLES

    assert missing == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_stream_of_results_is_written_with_its_owner(page: Path) -> None:
    """Readers of a line ``map_stream(…)`` try to import it."""
    assert re.findall(r"(?<![.\w])map_stream\(", page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_that_a_page_names_exist(page: Path) -> None:
    commands = set(re.findall(r"`ergo (\w[\w-]*)", page.read_text(encoding="utf-8")))

    for command in commands:
        with pytest.raises(SystemExit, match=r"^0$"):
            parse([command, "--help"])


def test_a_plain_prompt_prints_the_transcript_of_the_page_for_pykka() -> None:
    (transcript,) = transcripts(
        (ROOT / "docs" / "coming-from" / "pykka.md").read_text(encoding="utf-8"),
        "python, from pykka",
    )
    with at_terminal(command=["-q"], PYTHON_BASIC_REPL="1") as terminal:
        terminal.wait_for(">>> ")

        assert_typed(terminal, transcript)
