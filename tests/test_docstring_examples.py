"""The examples in the docstrings run and print the output that their comments promise."""

import inspect
import re
import sys
import textwrap
import types
from typing import Any

import pytest

from ergo_py import Actor, MetaProcess, Node, StateMachine, Supervisor, open_node


def example_in(documented: Any) -> str:
    """The literal block, introduced by ``::``, in the docstring of a class or function."""
    found = re.search(r"::\n\n((?: {4}.*\n|\n)+)", inspect.getdoc(documented) or "")
    assert found is not None, f"{documented.__name__} has no example"
    return textwrap.dedent(found[1])


@pytest.mark.parametrize(
    "documented, printed",
    [
        (Actor, ["5"]),
        (Supervisor, ["2", "0"]),
        (StateMachine, ["insert a coin", "welcome", "go"]),
        (MetaProcess, ["first line", "second line"]),
        (open_node, ["hello, world", "1 process stopped"]),
        (Node.spawn, ["hello, world"]),
    ],
)
def test_example_in_the_docstring_runs(
    documented: Any,
    printed: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = types.ModuleType("docstring_example")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    exec(
        compile(example_in(documented), f"<docstring of {documented.__name__}>", "exec"),
        vars(module),
    )

    assert capsys.readouterr().out.splitlines() == printed
