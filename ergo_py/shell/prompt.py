"""`Prompt`: a Python prompt with top-level ``await``, on a local node or on a node in another
program.
"""

import ast
import atexit
import codeop
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from .._core.vocabulary.text import printable_lines
from ..control.client import Link
from ..control.protocol import ControlError
from ..control.rendering import stack_text
from .screens import is_full_terminal

try:
    import readline
except ImportError:  # some builds of Python lack it: then without history and completion
    readline = None  # type: ignore[assignment]


__all__ = ["Attached", "Prompt", "write"]


def write(text: str) -> None:
    """Print a text at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


class Evaluator(Protocol):
    """Runs the input of a prompt."""

    def run(self, source: str) -> None:
        """Run an input and show its result. Ctrl-C cancels only the input."""

    def complete(self, text: str) -> list[str]:
        """Completions of a name."""
        ...


class Attached:
    """A node in another program."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def run(self, source: str) -> None:
        """Run an input there."""
        try:
            self._link.ask("eval", patience=None, out=write, source=source)
        except ControlError as error:
            if error.code != "cancelled":
                write(f"{printable_lines(error.text)}\n{stack_text(error)}")
        except KeyboardInterrupt:
            self._link.cancel()
            self._link.wait_answer(write)
            raise

    def complete(self, text: str) -> list[str]:
        """Completions of a name."""
        found: list[str] = self._link.ask("complete", patience=2.0, text=text)
        return found


class Editor(Protocol):
    """Reads the inputs of a prompt."""

    def read(self) -> str | None:
        """Read a complete input; None at the end.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """


class Prompt:
    """Reads an input and runs it, until the end of the input, ``exit`` or ``quit``."""

    def __init__(self, evaluator: Evaluator, banner: str, *, is_plain: bool = False) -> None:
        self._evaluator = evaluator
        self._banner = banner
        self._is_terminal = sys.stdin.isatty()
        self._is_plain = is_plain

    def run(self) -> None:
        """Run until the user leaves."""
        editor = self._make_editor()
        if self._is_terminal:
            write(f"{self._banner}\n")
        while True:
            try:
                source = editor.read()
                if source is None:
                    break
                if source.strip() in ("exit", "quit", "exit()", "quit()"):
                    return
                if source.strip():
                    self._evaluator.run(source)
            except KeyboardInterrupt:
                write("\nKeyboardInterrupt\n")
        if self._is_terminal:
            write("\n")

    def _make_editor(self) -> Editor:
        if not self._is_terminal:
            return _Lines(sys.stdin.readline)
        if not self._is_plain and is_full_terminal() and find_spec("prompt_toolkit") is not None:
            from .toolkit_editor import ToolkitEditor  # noqa: PLC0415 - an extra, slow to import

            return ToolkitEditor(self._evaluator.complete, is_complete, _history_file())
        _prepare_readline(self._evaluator)
        return _Lines(None)


_compiler = codeop.CommandCompiler()
_compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def is_complete(source: str) -> bool:
    """Whether an input needs no further line. A mistake is complete: the evaluator reports it."""
    try:
        return _compiler(source, "<input>", "single") is not None
    except (SyntaxError, ValueError, OverflowError):
        return True


class _Lines:
    """Reads inputs line by line: from a pipe, or from a terminal with ``readline``."""

    def __init__(self, read_line: Callable[[], str] | None) -> None:
        self._read_line = read_line

    def read(self) -> str | None:
        """Read a complete input; None at the end."""
        lines: list[str] = []
        while True:
            line = self._line("... " if lines else ">>> ")
            if line is None:
                return "\n".join(lines) if lines else None
            lines.append(line)
            source = "\n".join(lines)
            if is_complete(source):
                return source

    def _line(self, prompt: str) -> str | None:
        if self._read_line is not None:
            line = self._read_line()
            return line.rstrip("\n") if line else None
        try:
            return input(prompt)
        except EOFError:  # Ctrl-D
            return None


def _prepare_readline(evaluator: Evaluator) -> None:
    if readline is None:
        return
    readline.set_completer(_completer(evaluator))
    is_editline = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_editline else "tab: complete")
    history = _history_file()
    try:
        history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if history.exists():
            readline.read_history_file(history)
    except OSError:  # no history, but the prompt still works
        return
    readline.set_history_length(1000)
    atexit.register(_save_history, history)


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "ergo" / "history"


def _save_history(history: Path) -> None:
    if readline is None:
        return
    try:
        # The input may contain secrets.
        history.touch(mode=0o600)
        readline.write_history_file(history)
    except OSError:  # no history, but the prompt still works
        return


def _completer(evaluator: Evaluator) -> Callable[[str, int], str | None]:
    found: list[str] = []

    def complete(text: str, state: int) -> str | None:
        nonlocal found
        if not text.strip():
            return "    " if state == 0 else None
        if state == 0:
            try:
                found = evaluator.complete(text)
            except Exception:  # readline would swallow it anyway
                found = []
        return found[state] if state < len(found) else None

    return complete
