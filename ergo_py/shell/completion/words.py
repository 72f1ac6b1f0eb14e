"""`complete`: the words that may stand at the end of an unfinished command line, from the parser of
``ergo`` and from the running nodes.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..._core.vocabulary.choices import PERMISSIONS
from ..._core.vocabulary.text import printable
from ...control.client import find_nodes
from ...control.protocol import ControlError
from ..exit_codes import Leave
from ..node_choice import choose

__all__ = ["FILES", "complete"]

FILES = ":files"
"""Stands for the names of files, which the shell itself completes."""

_MOST = 200
"""Processes that are offered at most."""

_PATIENCE = 2.0
"""Seconds that a node has to answer."""

Word = tuple[str, str]
"""A word, and a few words that explain it."""


def complete(parser: argparse.ArgumentParser, typed: list[str]) -> list[Word]:
    """The words that may take the place of the last typed word, which may be empty."""
    *before, current = typed or [""]
    # bash takes `--sort=load` for three words, and the other shells for a single word.
    if current == "=":
        before, current = [*before, "="], ""
    glued = ""
    if current.startswith("--") and "=" in current:
        option, _, current = current.partition("=")
        before, glued = [*before, option], f"{option}="
    line = _Line(parser)
    for word in before:
        if word != "=":
            line.read(word)
    return [
        (f"{glued}{word}", help)
        for word, help in line.candidates(current)
        if word == FILES or word.startswith(current)
    ]


@dataclass
class _Line:
    """The command line as far as it was read."""

    parser: argparse.ArgumentParser
    values: dict[str, str] = field(default_factory=dict)
    """The arguments so far, by their names."""
    used: set[str] = field(default_factory=set)
    pending: argparse.Action | None = None
    """The option that takes the next word."""

    # argparse has no public list of its actions; shtab and argcomplete read these as well.
    @property
    def _options(self) -> dict[str, argparse.Action]:
        return {
            option: action
            for action in self.parser._actions
            for option in action.option_strings
            if action.help != argparse.SUPPRESS
        }

    @property
    def _position(self) -> argparse.Action | None:
        """The next argument that is no option."""
        return next(
            (
                action
                for action in self.parser._actions
                if not action.option_strings
                and (action.dest not in self.values or action.nargs in ("*", argparse.REMAINDER))
            ),
            None,
        )

    def read(self, word: str) -> None:
        """Take a complete word."""
        if self.pending is not None:
            self.values[self.pending.dest] = word
            self.pending = None
            return
        option, _, value = word.partition("=")
        if (action := self._options.get(option)) is not None:
            self.used.update(action.option_strings)
            takes_value = action.nargs != 0
            self.pending = action if takes_value and not value else None
        elif (position := self._position) is not None and not word.startswith("-"):
            self.values[position.dest] = word
            if isinstance(position, argparse._SubParsersAction) and word in position.choices:
                self.parser = position.choices[word]
                self.used.clear()

    def candidates(self, current: str) -> Iterator[Word]:
        """The words that may come next; not yet those that begin with ``current``."""
        if self.pending is not None:
            yield from self._values_of(self.pending, current)
        elif current.startswith("-"):
            for option, action in self._options.items():
                if option not in self.used or isinstance(action, argparse._AppendAction):
                    yield option, action.help or ""
        elif (position := self._position) is not None:
            yield from self._values_of(position, current)

    def _values_of(self, action: argparse.Action, current: str) -> Iterator[Word]:
        match action:
            case argparse._SubParsersAction():
                for choice in action._choices_actions:
                    yield choice.dest, choice.help or ""
            case argparse.Action(choices=[*choices] | (*choices,)):
                yield from ((str(choice), "") for choice in choices)
            case argparse.Action(dest="control"):
                yield from _permissions(current)
            case argparse.Action(dest="target" | "arguments"):
                yield FILES, ""
            case argparse.Action(dest="node" | "via"):
                yield from _nodes()
            case argparse.Action(dest="who"):
                yield from _processes(self.values.get("node"))


def _permissions(current: str) -> Iterator[Word]:
    """Permissions, separated by commas."""
    named = current.split(",")[:-1]
    for permission in PERMISSIONS:
        if permission not in named:
            yield ",".join([*named, permission]), ""


def _nodes() -> Iterator[Word]:
    """Names of running nodes, as short as they are unique."""
    names = [node.name for node in find_nodes()]
    short = [name.partition("@")[0] for name in names]
    for name, part in zip(names, short, strict=True):
        yield printable(part if short.count(part) == 1 else name), "a running node"


def _processes(node: str | None) -> Iterator[Word]:
    """Processes of a running node: the name, or the number if there is none."""
    try:
        with choose(node, None) as link:
            rows = link.ask("ps", patience=_PATIENCE, limit=_MOST)["rows"]
    except (ControlError, Leave, OSError):
        return
    for row in rows:
        yield printable(str(row["name"] or row["id"])), printable(str(row["behaviour"]))
