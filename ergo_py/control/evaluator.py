"""`Evaluator`: evaluates the input of a prompt, Python with top-level ``await``, on the node's loop
and in a lasting namespace.
"""

import ast
import inspect
import io
import linecache
import pprint
import pydoc
import rlcompleter
import sys
import traceback
from collections.abc import Callable
from dataclasses import is_dataclass
from time import perf_counter
from types import CodeType, FunctionType
from typing import Any, Final, NoReturn

import trio

from .._core.inspection.census import list_living, read_row
from .._core.verbs.node_access import kernel_of
from .._core.vocabulary.errors import NotAllowedError
from .._core.vocabulary.ids import PID, Alias
from .rendering import crash, process_table, table_text
from .rows import ps_row

__all__ = ["Evaluator"]

_FLAGS: Final = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_WIDTH: Final = 100


class Evaluator:
    """Evaluates the input of a prompt: its variables, and its output."""

    def __init__(
        self, node: Any, write: Callable[[str], object], more: dict[str, Any] | None = None
    ) -> None:
        self._node = node
        self._write = write
        self._count = 0
        self._files: list[str] = []
        # The public names of the package, looked up at run time: no module imports from the root of
        # the package.
        package = sys.modules[__name__.partition(".")[0]]
        public = {name: getattr(package, name) for name in getattr(package, "__all__", ())}
        commands: dict[str, Callable[[], None]] = {
            "help": self._help,
            "ps": self._ps,
            "tree": self._tree,
            "crashes": self._crashes,
        }
        self._commands = tuple(commands.values())
        """The name alone calls the function: ``help`` means ``help()``."""
        self.names: dict[str, Any] = {
            "__name__": "__prompt__",
            "__builtins__": __builtins__,
            **public,
            "trio": trio,
            "node": node,
            "print": self._print,
            "input": _no_input,
            "breakpoint": _no_input,
            "pid": self._pid,
            "alias": self._alias,
            **commands,
            **(more or {}),
        }

    # -- preloaded functions -----------------------------------------------------------------------

    def _print(
        self,
        *values: object,
        sep: str | None = " ",
        end: str | None = "\n",
        file: Any = None,
        **how: Any,
    ) -> None:
        """Print on the client's screen, which need not be the node's terminal."""
        out = io.StringIO() if file is None else file
        print(*values, sep=sep, end=end, file=out, **how)
        if file is None:
            self._write(out.getvalue())

    def _help(self, thing: object = None) -> None:
        """Show documentation. Without a pager, which would open at the node's terminal."""
        if thing is None:
            self._print(
                "help(x) shows the documentation of x; `node` is the node; ps(), tree() and "
                "crashes() show its state"
            )
        else:
            self._print(pydoc.plain(pydoc.render_doc(thing, "%s")))

    def _pid(self, number: int) -> PID:
        """The PID with this number."""
        return PID(self._node.name, self._node.pid.creation, number)

    def _alias(self, number: int) -> Alias:
        """The alias with this number."""
        return Alias(self._node.name, self._node.pid.creation, number)

    def _ps(self, *, threads: bool = False) -> None:
        """Show all processes and meta-processes."""
        self._print(
            table_text(
                process_table(
                    [
                        ps_row(process, read_row(process, perf_counter()), threads=threads)
                        for process in list_living(kernel_of(self._node)).all()
                    ],
                    threads=threads,
                ),
                _WIDTH,
            )
        )

    def _tree(self) -> None:
        """Show the supervision tree."""
        self._print(self._node.tree())

    def _crashes(self, count: int = 10) -> None:
        """Show the last crashes with their reasons."""
        for obituary in self._node.crashes(count):
            self._print(crash(obituary))

    # -- evaluation --------------------------------------------------------------------------------

    async def run(self, source: str) -> None:
        """Evaluate an input, and write its output, the value of its last expression, or its
        error.
        """
        self._count += 1
        name = f"<input {self._count}>"
        # Register the source, so that tracebacks show its lines.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        self._files.append(name)
        try:
            value = await self._evaluate(source, name)
            if inspect.ismethod(value) and value in self._commands:
                value = value()
            if value is not None:
                self.names["_"] = value
                self._print(_display(value))
                if inspect.iscoroutine(value):
                    self._print(
                        "this is a coroutine that has not run: `await _` runs it; next time, write "
                        "`await` before it"
                    )
        except (trio.Cancelled, GeneratorExit):
            raise
        except BaseException as error:
            # Also SystemExit and KeyboardInterrupt: an input at the prompt must not end the node.
            self._print(_explain(error), end="")
            self._keep_error(error)

    async def _evaluate(self, source: str, name: str) -> object:
        tree = ast.parse(source, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        value: object = None
        if tree.body:
            await self._execute(compile(tree, name, "exec", _FLAGS))
        if isinstance(last, ast.Expr):
            value = await self._execute(compile(ast.Expression(last.value), name, "eval", _FLAGS))
        return value

    async def _execute(self, code: CodeType) -> object:
        result = FunctionType(code, self.names)()
        return await result if code.co_flags & inspect.CO_COROUTINE else result

    def _keep_error(self, error: BaseException) -> None:
        # Without its traceback: the frames would keep the failed call's variables alive.
        self.names["_error"] = error.with_traceback(None)

    def complete(self, text: str) -> list[str]:
        """Complete a name, also with dots."""
        completer = rlcompleter.Completer(self.names)
        found: list[str] = []
        try:
            while len(found) < 200 and (name := completer.complete(text, len(found))) is not None:
                found.append(name)
        except Exception:  # a property of a user's object raised
            return found
        return found

    def close(self) -> None:
        """Forget all variables and sources."""
        self.names.clear()
        for name in self._files:
            linecache.cache.pop(name, None)


def _no_input(*_: object, **__: object) -> NoReturn:
    raise NotAllowedError(
        "input() and breakpoint() are not allowed here: waiting for the keyboard would block the "
        "event loop of the node"
    )


def _display(value: object) -> str:
    show: Callable[[object], str] = repr
    text = show(value)
    is_container = isinstance(value, dict | list | tuple | set | frozenset) and not hasattr(
        value, "_fields"
    )
    if len(text) > _WIDTH and (is_container or is_dataclass(value)):
        text = pprint.pformat(value, width=_WIDTH, sort_dicts=False)
    return text


def _explain(error: BaseException) -> str:
    """Format an error as Python does, without the frames of this module."""
    if isinstance(error, SyntaxError):
        return "".join(traceback.format_exception_only(error))
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))
