"""`Client`, `Arguments`, `Beat`: the context of a command: who asks, what for, and how the loop
is.
"""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from .._core.metas.meta import Meta
from .._core.processes.process import Process
from .._core.verbs.node import Node
from .._core.verbs.node_access import kernel_of
from .._core.vocabulary.hints import did_you_mean
from .._core.vocabulary.ids import PID, Alias
from .._core.vocabulary.info import BlockedReport
from .evaluator import Evaluator
from .protocol import ControlError
from .rows import RowFormat
from .views.log_lines import LogLines
from .views.survey import Survey
from .views.waits import Waits

__all__ = ["Arguments", "Beat", "Client"]


class Beat(NamedTuple):
    """The state of the loop at a request."""

    blocked: BlockedReport | None = None
    """The code that blocks the loop; None if the loop is not blocked."""
    delay: float = 0.0
    """Seconds that the loop took, or has taken so far, to answer the last heartbeat."""


class Client:
    """The state of a connection that lasts from request to request."""

    def __init__(self, node: Any, write: Callable[[str], object]) -> None:
        self.node = node
        self.write = write
        """Sends output before the answer."""
        self.survey: Survey = Survey(kernel_of(node))
        self.row_format: RowFormat = RowFormat()
        self.waits: Waits = Waits(node)
        self.log_lines: LogLines = LogLines(node)
        self._evaluator: Evaluator | None = None

    @property
    def evaluator(self) -> Evaluator:
        """The evaluator of the client's prompt, created at its first input."""
        if self._evaluator is None:
            self._evaluator = Evaluator(self.node, self.write)
        return self._evaluator

    def close(self) -> None:
        """Forget the variables of the prompt, and keep no log lines for this client."""
        self.log_lines.close()
        if self._evaluator is not None:
            self._evaluator.close()


_PRINTED: Final = re.compile(r"<(PID|Alias) (?P<number>\d+) (?P<node>[^>]+)>")


class Arguments:
    """The arguments of a request. The command takes each of them; an argument that is left over is
    a mistake of the client.
    """

    def __init__(self, command: str, given: dict[str, Any]) -> None:
        self._command = command
        self._given = dict(given)

    def has(self, name: str) -> bool:
        """Return whether the argument was given."""
        return name in self._given

    def target(self, node: Node) -> PID | Alias:
        """Resolve ``to``: a number, a registered name, or the printed form of an identifier (``<PID
        12 demo@localhost>``).
        """
        to = self._given.pop("to", None)
        if isinstance(to, bool) or not isinstance(to, int | str) or to == "":
            raise ControlError(
                "bad_argument",
                f"{self._command} needs to: the number or the registered name of a process",
            )
        router = kernel_of(node).router
        if (
            isinstance(to, str)
            and (printed := _PRINTED.fullmatch(to))
            and printed["node"] == node.name
        ):
            to = printed["number"]
        # No process has a number of more digits, and Python refuses to parse thousands of digits.
        if isinstance(to, int) or (to.isdecimal() and len(to) <= 20):
            for kind in (PID, Alias):
                candidate = kind(node.name, node.pid.creation, int(to))
                if router.resolve(candidate) is not None:
                    return candidate
        found = router.resolve(str(to))
        if found is None:
            hint = did_you_mean(to, router.names_beside(str(to))) or "; `ergo ps` lists all"
            raise ControlError(
                "no_such_process",
                f"no process on {node.name} has the number or the name {to!r}{hint}",
            )
        return found.id

    def process(self, node: Node) -> Process | Meta:
        """Resolve ``to``, as :meth:`target` does, to a process or meta-process of the node."""
        found = kernel_of(node).router.resolve(target := self.target(node))
        if not isinstance(found, Process | Meta):
            raise ControlError("no_such_process", f"{target} has ended")
        return found

    def numbers(self, name: str, most: int) -> list[int]:
        """A list of numbers."""
        value = self._given.pop(name, None)
        if (
            not isinstance(value, list)
            or len(value) > most
            or not all(isinstance(each, int) and not isinstance(each, bool) for each in value)
        ):
            raise ControlError(
                "bad_argument",
                f"{name} is a list of at most {most} numbers, and not {value!r:.100}",
            )
        return value

    def objects(self, name: str, most: int) -> "list[Arguments]":
        """A list of objects, each as the arguments of a part of the command."""
        value = self._given.pop(name, [])
        if (
            not isinstance(value, list)
            or len(value) > most
            or not all(isinstance(each, dict) for each in value)
        ):
            raise ControlError(
                "bad_argument",
                f"{name} is a list of at most {most} objects, and not {value!r:.100}",
            )
        return [Arguments(f"{self._command} {name}", each) for each in value]

    def number(self, name: str, otherwise: float, least: float, most: float) -> float:
        """A number within limits."""
        value = self._given.pop(name, otherwise)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not least <= value <= most
        ):
            raise ControlError(
                "bad_argument", f"{name} is a number from {least:g} to {most:g}, and not {value!r}"
            )
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._given.pop(name, False)
        if not isinstance(value, bool):
            raise ControlError("bad_argument", f"{name} is true or false, and not {value!r}")
        return value

    def text(self, name: str, otherwise: str | None = None, choices: tuple[str, ...] = ()) -> str:
        """A text; with ``choices``, one of them."""
        value = self._given.pop(name, otherwise)
        if not isinstance(value, str) or (choices and value not in choices):
            allowed = f"one of {', '.join(choices)}" if choices else "text"
            raise ControlError("bad_argument", f"{name} is {allowed}, and not {value!r}")
        return value

    def words(self, name: str) -> list[str]:
        """A list of texts."""
        value = self._given.pop(name, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise ControlError("bad_argument", f"{name} is a list of texts, and not {value!r}")
        return value

    def anything(self, name: str) -> object:
        """Any JSON value."""
        if name not in self._given:
            raise ControlError("bad_argument", f"{self._command} needs {name}")
        return self._given.pop(name)

    def done(self) -> None:
        """Refuse arguments that the command does not know."""
        if self._given:
            unknown = ", ".join(map(repr, sorted(self._given)))
            raise ControlError("bad_argument", f"{self._command} does not know {unknown}")
