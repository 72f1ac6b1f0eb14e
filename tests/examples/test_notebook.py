"""The notebook of the examples runs, cell by cell, on a loop of asyncio, as in Jupyter."""

import ast
import asyncio
import inspect
import json
from operator import methodcaller
from typing import Any

from tests.examples.programs import EXAMPLES

as_jupyter_does = methodcaller("_repr_html_")


async def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line if that is an expression."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        tree.body[-1] = ast.copy_location(
            ast.Assign([ast.Name("_", ast.Store(), lineno=1, col_offset=0)], last.value), last
        )
    code = compile(tree, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names["_"] = None
    found = eval(code, names)
    if inspect.isawaitable(found):
        await found
    return names["_"]


async def run_notebook(name: str) -> list[Any]:
    notebook = json.loads((EXAMPLES / "notebook" / name).read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    return [
        await run_cell("".join(cell["source"]), names)
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def test_the_notebook_runs_and_shows_the_tree_a_process_and_an_entity() -> None:
    _, _, total, tree, info, balance, entity, _ = asyncio.run(run_notebook("first_steps.ipynb"))

    assert (total, balance) == (0 + 1 + 2 + 3 + 4, 30)
    shown = as_jupyter_does(tree)
    assert shown.startswith("<pre>notebook@localhost\n")
    assert "counter Counter &lt;PID 2 notebook@localhost&gt;" in shown
    facts = as_jupyter_does(info)
    assert facts.startswith("<table><tr><th>")
    assert "<td>&lt;PID 2 notebook@localhost&gt;</td>" in facts
    assert "ada" in as_jupyter_does(entity)
