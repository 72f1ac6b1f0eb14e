"""The examples in the docstrings of the behaviours run and print what their comments promise."""

import inspect
import re
import sys
import textwrap
import types

import pytest

from ergo_py import Actor, StateMachine, Supervisor


def example_in(behaviour: type) -> str:
    """The literal block, introduced by ``::``, in the docstring of a class."""
    found = re.search(r"::\n\n((?: {4}.*\n|\n)+)", inspect.getdoc(behaviour) or "")
    assert found is not None, f"{behaviour.__name__} has no example"
    return textwrap.dedent(found[1])


@pytest.mark.parametrize(
    "behaviour, printed",
    [(Actor, ["5"]), (Supervisor, ["2", "0"]), (StateMachine, ["insert a coin", "welcome", "go"])],
)
def test_example_in_the_docstring_runs(
    behaviour: type,
    printed: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = types.ModuleType("docstring_example")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    exec(
        compile(example_in(behaviour), f"<docstring of {behaviour.__name__}>", "exec"), vars(module)
    )

    assert capsys.readouterr().out.splitlines() == printed
