"""A bridge to a broker or a device is short: the common part is in its base class."""

import ast
import io
import tokenize
from pathlib import Path

import ergo_py

PACKAGE = Path(ergo_py.__file__).parent
MOST = 80
COMMON = ("__init__.py", "broker.py", "nats_client.py", "bridge.py", "messages.py", "opening.py")
"""The bases of the bridges, and the part of a client that nats-py lacks: a loop in a thread, and a
pull that drops no message.
"""
SKIPPED = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)


def lines_of_code(source: str) -> int:
    """The lines that are neither blank, nor comments, nor docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), end_lineno=int(end)):
                lines.difference_update(range(node.lineno, end + 1))
    return len(lines)


def test_lines_of_code_are_counted_without_docstrings_and_comments() -> None:
    assert lines_of_code('"""a\n\nb"""\n\n# c\nx = """d\n e"""  # f\ndef g():\n    """h"""\n') == 3


def test_each_bridge_is_short() -> None:
    files = [*PACKAGE.glob("pipelines/brokers/*.py"), *PACKAGE.glob("devices/*.py")]
    counts = {
        file.name: lines_of_code(file.read_text(encoding="utf-8"))
        for file in files
        if file.name not in COMMON
    }

    assert len(counts) == 15
    assert {name: count for name, count in counts.items() if count > MOST} == {}
