"""`choose`: connects the command line to the node that its user means."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from typing import Final

from .._core.vocabulary.hints import did_you_mean
from ..control.client import Found, Link, find_nodes
from ..control.protocol import ControlError
from .exit_codes import Leave, Status
from .output import complain

__all__ = ["choose", "choose_all", "tell_if_missing"]

_NONE: Final = (
    "no node offers a control socket; start one with `ergo run --control look module:app`, "
    'or open_node(..., control="look")'
)


def choose(name: str | None, os_pid: int | None) -> Link:
    """Connect to the selected node: by its name, by the part before the @, or because it is the
    only node.

    Raises:
        Leave: no node matches, or several do.
    """
    found = find_nodes()
    matching = [
        node
        for node in found
        if (name is None or name in (node.name, node.name.partition("@")[0]))
        and (os_pid is None or node.os_pid == os_pid)
    ]
    if len(matching) == 1:
        return _connect(matching[0])
    if matching:
        is_named = len({node.name for node in matching}) == len(matching)
        how = "by its name" if is_named else "with --pid"
        choices = "\n".join(
            f"  {node.name}" if is_named else f"  {node.name}  --pid {node.os_pid}"
            for node in matching
        )
        raise Leave(Status.NO_NODE, f"several nodes match; choose one {how}:\n{choices}")
    if found:
        asked = " and ".join(
            word
            for word in (
                f"the name {name!r}" if name else "",
                f"the program {os_pid}" if os_pid else "",
            )
            if word
        )
        others = "\n".join(f"  {node.name}  (program {node.os_pid})" for node in found)
        hint = did_you_mean(name, _all_names(found))
        raise Leave(Status.NO_NODE, f"no node with {asked}{hint or '; there are:'}\n{others}")
    raise Leave(Status.NO_NODE, _NONE)


def choose_all(pattern: str) -> list[Callable[[], Link]]:
    """Functions that connect to each node whose name, or the part before the @, fits a pattern such
    as ``core-*``.

    Raises:
        Leave: no node fits.
    """
    found = find_nodes()
    fitting: list[Callable[[], Link]] = [
        partial(_connect, node)
        for node in found
        if fnmatchcase(node.name, pattern) or fnmatchcase(node.name.partition("@")[0], pattern)
    ]
    if not fitting:
        if not found:
            raise Leave(Status.NO_NODE, _NONE)
        others = "".join(f"\n  {node.name}" for node in found)
        raise Leave(Status.NO_NODE, f"no node fits {pattern!r}; there are:{others}")
    return fitting


def tell_if_missing(name: str) -> None:
    """Complain that no node has this name now, for a command that waits until the node starts."""
    found = find_nodes()
    names = _all_names(found)
    if not found:
        complain(f"ergo: {_NONE}; the page shows {name!r} as soon as it runs")
    elif name not in names:
        hint = did_you_mean(name, names) or "; there are: " + ", ".join(node.name for node in found)
        complain(f"ergo: no node with the name {name!r} is running{hint}")


def _all_names(found: list[Found]) -> list[str]:
    """The names that a user may write: whole, and the parts before the @."""
    return [each for node in found for each in (node.name, node.name.partition("@")[0])]


def _connect(node: Found) -> Link:
    link = Link(node.path)
    try:
        link.open()
    except ControlError as error:
        link.close()
        raise Leave(Status.of(error.code), f"{node.name}: {error.text}") from None
    except OSError as error:
        link.close()
        raise Leave(Status.NO_ANSWER, f"{node.name} does not answer: {error}") from None
    return link
