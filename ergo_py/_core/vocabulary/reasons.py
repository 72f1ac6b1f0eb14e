"""`Reason`: why a process ended, as a value: comparable, printable, and without the stack frames of
the code that failed.
"""

import linecache
import os
from dataclasses import field
from types import CodeType, TracebackType
from typing import Final, TypeGuard, TypeVar, cast

from .late_methods import dataclass, of_defaults
from .public_names import show_public_names
from .text import shown, text_of

__all__ = [
    "SHUTDOWN",
    "Crashed",
    "Custom",
    "Killed",
    "NoNode",
    "NoProcess",
    "Normal",
    "Reason",
    "RestartLimit",
    "Shutdown",
    "Unregistered",
    "as_reason",
    "error_of",
    "is_a",
    "is_failure",
    "is_for_program",
]

E = TypeVar("E", bound=BaseException)


@dataclass(frozen=True, slots=True)
class Normal:
    """The process finished its work and stopped by itself."""

    def __str__(self) -> str:
        return "normal"


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The parent, the supervisor or the node asked the process to stop."""

    detail: str = ""

    def __str__(self) -> str:
        return f"shutdown: {self.detail}" if self.detail else "shutdown"


SHUTDOWN: Final = of_defaults(Shutdown)
"""Without a detail, as most of them."""


@dataclass(frozen=True, slots=True)
class Killed:
    """The process was ended by force: by ``kill``, or because it did not stop in time."""

    def __str__(self) -> str:
        return "killed"


@dataclass(frozen=True, slots=True)
class NoProcess:
    """No process has that address."""

    def __str__(self) -> str:
        return "no such process"


@dataclass(frozen=True, slots=True)
class NoNode:
    """The address belongs to another node, and no connection to that node exists."""

    node: str
    detail: str = field(default="", compare=False)
    """Why there is no connection."""

    def __str__(self) -> str:
        return f"no connection to node {self.node}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True)
class Unregistered:
    """The name or alias was unregistered, while its process continues."""

    def __str__(self) -> str:
        return "unregistered"


@dataclass(frozen=True, slots=True)
class Custom:
    """A reason chosen by the user, as the argument of ``stop`` or ``send_exit``."""

    detail: object
    """The value that was given."""

    def __str__(self) -> str:
        return text_of(self.detail)

    def __repr__(self) -> str:
        return f"Custom(detail={shown(self.detail)})"


@dataclass(frozen=True, slots=True)
class RestartLimit:
    """A supervisor gave up: its children ended more often than its restart limit allows."""

    child: str
    """The name of the child that ended last."""
    restarts: int
    """The number of restarts allowed in ``period`` seconds."""
    period: float
    reason: "Reason"
    """The reason the last child ended with."""

    def __str__(self) -> str:
        return (
            f"more than {self.restarts} restarts in {self.period:g} s; "
            f"the last child was {self.child!r}: {self.reason}"
        )


_Frames = tuple[tuple[str, int, str, str], ...]
"""Of each frame: file, line, function and module."""

_FRAMEWORK: Final = frozenset({"ergo_py", "trio", "outcome"})
"""The packages whose frames a traceback leaves out."""
_DEMO: Final = "ergo_py.shell.demo."
"""The program that ``ergo demo`` runs: to its reader, no part of the framework."""
_PACKAGE: Final = "ergo_py."
_PREFIX: Final = len(_PACKAGE)
_lines: Final[dict[tuple[str, int, int], int]] = {}
"""The lines of this package at which callbacks were called, by file, first line of the function and
instruction.
"""
_FULL: Final = "ERGO_FULL_TRACEBACKS"
"""The environment variable that shows them."""


class Crashed:
    """A callback of the process raised an exception.

    ``error`` is the exception without its stack frames, so that a stored reason never keeps the
    variables of an ended process alive. ``traceback`` is the text that Python would have printed,
    without the frames of ergo_py and trio. It is formatted on reading, because most reasons are
    only compared.
    """

    __slots__ = ("_chain", "_told", "error")
    __match_args__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error: Final = error
        self._chain: Final = _cut_frames(error)
        self._told = ""

    @classmethod
    def told(cls, error: BaseException, traceback: str) -> "Crashed":
        """The reason of a process of another node, with the traceback that its node has told."""
        reason = cls(error)
        reason._told = traceback
        return reason

    @property
    def traceback(self) -> str:
        """The formatted traceback, causes first, without the frames of ergo_py and trio. It has all
        frames if the program has none, or if the environment variable ``ERGO_FULL_TRACEBACKS`` is
        set.
        """
        return self._told or "".join(_format_chain(_of_program(self._chain)))

    @property
    def full_traceback(self) -> str:
        """The formatted traceback with all frames, causes first."""
        return self._told or "".join(_format_chain(self._chain))

    def where(self) -> str:
        """The text of :attr:`traceback` without its last lines, which name the error. Empty if the
        program has no frame in it.

        It begins at the last error that tells of another process: that error has the frames of its
        own causes as a note. With all causes, each process of a chain of calls would repeat the
        notes of those before it, and the text would double with each.
        """
        named = "".join(_name_error(self.error))
        if self._told:
            return self._told.removesuffix(named)
        chain = _of_program(self._chain)
        tells = [_tells(error) for error, _, _ in chain]
        start = len(chain) - 1 - tells[::-1].index(True) if True in tells else 0
        text = "".join(_format_chain(chain[start:])).removesuffix(named)
        notes = "".join(_notes(chain[start][0])) if any(tells) else ""
        return text.replace(notes, "", 1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Crashed):
            return NotImplemented
        mine, theirs = self.error, other.error
        return mine is theirs or (
            type(mine) is type(theirs) and _describe(mine) == _describe(theirs)
        )

    def __hash__(self) -> int:
        return hash((type(self.error), _describe(self.error)))

    def __str__(self) -> str:
        return f"crashed: {_describe(self.error)}"

    def __repr__(self) -> str:
        return f"Crashed({shown(self.error)})"


Reason = (
    Normal | Shutdown | Killed | Crashed | RestartLimit | NoProcess | NoNode | Unregistered | Custom
)
"""The reason a process, a meta-process or a relation ended with."""

_REASONS: Final = (
    Normal,
    Shutdown,
    Killed,
    Crashed,
    RestartLimit,
    NoProcess,
    NoNode,
    Unregistered,
    Custom,
)


_NO_FAILURE: Final = (Normal, Shutdown)  # a tuple: `Normal | Shutdown` makes a union at each call


def as_reason(given: object) -> Reason:
    """Convert a user's value to a reason: a reason stays as it is, an exception becomes
    ``Crashed``, any other value ``Custom``.
    """
    if issubclass(type(given), _REASONS):
        return cast(Reason, given)
    if is_a(given, BaseException):
        return Crashed(given)
    return Custom(given)


def is_failure(reason: Reason) -> bool:
    """Say whether the reason is a failure: a transient child restarts after it."""
    return not isinstance(reason, _NO_FAILURE)


def error_of(reason: Reason) -> BaseException | None:
    """The exception that caused a reason, through any number of restart limits; None without an
    exception.
    """
    while isinstance(reason, RestartLimit):
        reason = reason.reason
    return reason.error if isinstance(reason, Crashed) else None


_FOR_PROGRAM: Final = (KeyboardInterrupt, SystemExit)


def is_a(error: object, kinds: type[E] | tuple[type[E], ...]) -> TypeGuard[E]:
    """Whether an exception is of a class, or of one of several. ``isinstance`` also asks the
    exception for its ``__class__``, and a property of the user may raise there.
    """
    return issubclass(type(error), kinds)


def is_for_program(error: BaseException) -> bool:
    """Whether an exception is meant for the whole program, and not for the process that it left."""
    parts = [error]
    # The list grows while it is traversed.
    for part in parts:
        if is_a(part, _FOR_PROGRAM):
            return True
        if is_a(part, BaseExceptionGroup):
            parts += part.exceptions
    return False


def _describe(error: BaseException) -> str:
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _frames_of(traceback: TracebackType | None) -> _Frames:
    frames = []
    while traceback is not None:
        frame = traceback.tb_frame
        code, module = frame.f_code, frame.f_globals.get("__name__", "")
        if type(module) is not str:
            module = str(module)
        line = _line_of(traceback, code) if module[:_PREFIX] == _PACKAGE else traceback.tb_lineno
        frames.append((code.co_filename, line, code.co_name, module))
        traceback = traceback.tb_next
    return tuple(frames)


def _line_of(traceback: TracebackType, code: CodeType) -> int:
    """The line of a frame of this package. Python searches the table of lines from its beginning,
    which takes long for the message loop, a long function in the traceback of every crash.
    """
    place = code.co_filename, code.co_firstlineno, traceback.tb_lasti
    line = _lines.get(place)
    if line is None:
        line = _lines[place] = traceback.tb_lineno
    return line


_CAUSE: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"

_Link = tuple[BaseException, _Frames, str]


def _cut_frames(error: BaseException) -> tuple[_Link, ...]:
    """Remove the stack frames from an exception and from all exceptions it refers to. Keep file,
    line and function of the frames that a traceback shows.
    """
    if (
        error.__context__ is None
        and error.__cause__ is None
        and not is_a(error, BaseExceptionGroup)
    ):
        # The common case: the exception refers to no other, so no search is needed.
        frames = _frames_of(error.__traceback__)
        _drop_references(error)
        return ((error, frames, ""),)
    chain: list[_Link] = []
    seen: set[int] = set()
    hidden: list[BaseException | None] = []
    waiting: list[tuple[BaseException | None, str]] = [(error, "")]
    while waiting:
        current, joint = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        chain.append((current, _frames_of(current.__traceback__), joint))
        _drop_references(current)
        if is_a(current, BaseExceptionGroup):
            waiting.extend(
                (part, f"\nAn exception in the {type(current).__name__}:\n\n")
                for part in current.exceptions
            )
        if current.__cause__ is not None:
            waiting.append((current.__cause__, _CAUSE))
        elif not current.__suppress_context__:
            waiting.append((current.__context__, _CONTEXT))
        hidden.append(current.__context__)
    # The context that `raise ... from ...` hides is not printed, but it holds frames as well.
    while hidden:
        unseen = hidden.pop()
        if unseen is None or id(unseen) in seen:
            continue
        seen.add(id(unseen))
        _drop_references(unseen)
        hidden += (unseen.__cause__, unseen.__context__)
        if is_a(unseen, BaseExceptionGroup):
            hidden += unseen.exceptions
    chain.reverse()
    return tuple(chain)


def _drop_references(error: BaseException) -> None:
    # Not by assignment: the class of the exception may refuse it, as a frozen dataclass does.
    BaseException.with_traceback(error, None)
    if is_a(error, AttributeError):
        # `obj` is the object that lacks the attribute, in a callback mostly the behaviour itself.
        _set_obj(error, None)


_set_obj: Final = vars(AttributeError)["obj"].__set__


def _tells(error: BaseException) -> bool:
    """Whether an error tells of the crash of another process."""
    try:
        return type(getattr(error, "reason", None)) is Crashed
    except BaseException:  # its own code has raised
        return False


def _notes(error: BaseException) -> list[str]:
    try:
        notes = getattr(error, "__notes__", ())
        return (
            [f"{note}\n" for note in notes] if isinstance(notes, list | tuple) else [f"{notes!r}\n"]
        )
    except BaseException:
        return ["<its __notes__ cannot be shown>\n"]


def _of_program(chain: tuple[_Link, ...]) -> tuple[_Link, ...]:
    """A chain without the frames of the framework; unchanged if no frame would remain, unless the
    framework raised the error itself, which then says all there is to say.
    """
    if os.environ.get(_FULL):
        return chain
    kept = tuple(
        (error, tuple(frame for frame in frames if not _is_framework(frame[3])), joint)
        for error, frames, joint in chain
    )
    explained = type(chain[-1][0]).__module__.partition(".")[0] == "ergo_py"
    return kept if explained or any(frames for _, frames, _ in kept) else chain


def _is_framework(module: str) -> bool:
    return module.partition(".")[0] in _FRAMEWORK and not module.startswith(_DEMO)


def _format_chain(chain: tuple[_Link, ...]) -> list[str]:
    lines: list[str] = []
    for error, frames, joint in chain:
        if frames:
            lines.append("Traceback (most recent call last):\n")
        for filename, number, function, _ in frames:
            lines.append(f'  File "{filename}", line {number}, in {function}\n')
            source = linecache.getline(filename, number).strip()
            if source:
                lines.append(f"    {source}\n")
        lines.extend(_name_error(error))
        if joint:
            lines.append(joint)
    return lines


def _name_error(error: BaseException) -> list[str]:
    """The lines that name an error, as Python prints them: its class with the module, its text and
    its notes.
    """
    module = type(error).__module__
    prefix = "" if module in ("builtins", "__main__") else f"{module}."
    kind, text = f"{prefix}{type(error).__qualname__}", text_of(error)
    return [f"{kind}: {text}\n" if text else f"{kind}\n", *_notes(error)]


show_public_names(__name__)
