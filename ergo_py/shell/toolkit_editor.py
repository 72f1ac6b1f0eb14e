"""`ToolkitEditor`: the line editor of a prompt with the library ``prompt_toolkit``: colours, inputs
of several lines, and a search through earlier inputs. Imported only if the library is installed.

The colours are those of the terminal, so they suit light and dark terminals.
"""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.styles import Style, merge_styles, style_from_pygments_dict
from pygments.lexers.python import PythonLexer
from pygments.token import Token

__all__ = ["Names", "ToolkitEditor", "make_history"]

_INDENT: Final = "    "
_NAME: Final = re.compile(r"[\w.]+$")
_MOST: Final = 1000
"""Inputs that the history keeps."""
_COLOURS: Final = merge_styles(
    [
        style_from_pygments_dict(
            {
                Token.Keyword: "bold ansimagenta",
                Token.Operator.Word: "bold ansimagenta",
                Token.Name.Builtin: "ansicyan",
                Token.Name.Decorator: "ansicyan",
                Token.Name.Function: "bold",
                Token.Name.Class: "bold",
                Token.Literal.String: "ansigreen",
                Token.Literal.Number: "ansicyan",
                Token.Comment: "italic",
                Token.Error: "",
            }
        ),
        Style([("prompt", "bold"), ("completion-menu", "noreverse"), ("bottom-toolbar", "")]),
    ]
)


class ToolkitEditor:
    """Reads inputs at a terminal. Output of the program, while the user types, appears above the
    input.
    """

    def __init__(
        self,
        complete: Callable[[str], list[str]],
        is_complete: Callable[[str], bool],
        history: Path,
    ) -> None:
        self._session: PromptSession[str] = PromptSession(
            [("class:prompt", ">>> ")],
            multiline=True,
            prompt_continuation=[("class:prompt", "... ")],
            lexer=PygmentsLexer(PythonLexer),
            style=_COLOURS,
            include_default_pygments_style=False,
            completer=Names(complete),
            complete_while_typing=False,
            enable_history_search=True,
            history=make_history(history),
            key_bindings=_bindings(is_complete),
        )

    def read(self) -> str | None:
        """Read a complete input; None at the end.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        try:
            with patch_stdout(raw=True):
                return self._session.prompt()
        except EOFError:  # Ctrl-D
            return None


def _bindings(is_complete: Callable[[str], bool]) -> KeyBindings:
    bindings = KeyBindings()

    @Condition
    def is_at_indent() -> bool:
        return not get_app().current_buffer.document.current_line_before_cursor.strip()

    @bindings.add("enter", filter=has_focus(DEFAULT_BUFFER))
    def _(event: KeyPressEvent) -> None:
        """End the input if it is complete; else begin a line, indented as the last."""
        buffer = event.current_buffer
        document = buffer.document
        if document.is_cursor_at_the_end or document.on_last_line:
            lines = document.text.split("\n")
            # An empty line ends a block, and the editor has indented that line.
            text = "\n".join([*lines[:-1], lines[-1].rstrip()])
            if is_complete(text):
                # The history keeps it without the empty line.
                buffer.set_document(Document(text.rstrip()))
                buffer.validate_and_handle()
                return
        line = document.current_line_before_cursor
        indent = line[: len(line) - len(line.lstrip())]
        buffer.insert_text("\n" + indent + (_INDENT if line.rstrip().endswith(":") else ""))

    @bindings.add("tab", filter=has_focus(DEFAULT_BUFFER) & is_at_indent)
    def _(event: KeyPressEvent) -> None:
        """Indent."""
        event.current_buffer.insert_text(_INDENT)

    return bindings


class Names(Completer):
    """Completes the name before the cursor, also with dots."""

    def __init__(self, complete: Callable[[str], list[str]]) -> None:
        self._complete = complete

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """The names that begin so."""
        found = _NAME.search(document.text_before_cursor)
        if found is None:
            return
        try:
            names = self._complete(found[0])
        except Exception:  # no completion, but the prompt still works
            return
        for name in names:
            if name.isprintable():
                yield Completion(name, -len(found[0]), display=name.rpartition(".")[2] or name)


def make_history(plain: Path) -> History:
    """The history of inputs, beside the history of lines that the plain prompt has."""
    path = plain.with_name("inputs")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The input may contain secrets.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        history = _Inputs(path, plain)
        history.shorten()
    except OSError:  # no history, but the prompt still works
        return InMemoryHistory()
    return history


class _Inputs(FileHistory):
    """A file of inputs, of several lines each. Before the first input there, the lines of the
    plain prompt.
    """

    def __init__(self, path: Path, plain: Path) -> None:
        super().__init__(path)
        self._path = path
        self._plain = plain

    def load_history_strings(self) -> Iterable[str]:
        """The inputs, the last first."""
        yield from super().load_history_strings()
        try:
            lines = self._plain.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        yield from reversed(lines)

    def store_string(self, string: str) -> None:
        """Add an input."""
        try:
            super().store_string(string)
        except OSError:  # a full disk: no history, but the prompt still works
            return

    def shorten(self) -> None:
        """Keep the last inputs only."""
        inputs = list(super().load_history_strings())
        if len(inputs) <= 2 * _MOST:
            return
        self._path.write_bytes(b"")
        for string in reversed(inputs[:_MOST]):
            super().store_string(string)
