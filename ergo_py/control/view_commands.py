"""The commands that show views of a node. All are bounded, and answered in the thread of the
control socket, so also while the loop is blocked.
"""

import json
from collections.abc import Callable
from typing import Any, Final

from .._core.processes.process import Process
from .._core.verbs.node_access import info_of
from .._core.vocabulary.options import LEVELS
from .protocol import ControlError, Plain, as_json
from .request import Arguments, Beat, Client
from .views.flow import measure_flow
from .views.neighbourhood import neighbourhood
from .views.node_facts import events_of, list_applications, node_sample
from .views.profile import Profile
from .views.slices import read_again
from .views.survey import SORTS, Window
from .views.thread_list import thread_list
from .views.tree_levels import find, tree_levels

__all__ = ["VIEWS", "flow", "profile"]

_SHOWN: Final = 200
"""Entries of each list in the facts of a process."""


def sample(client: Client, arguments: Arguments, beat: Beat) -> object:
    """The figures of the node, sums by behaviour, and windows of rows, in a single look at all
    processes.
    """
    windows = [_window(each) for each in arguments.objects("windows", 12)]
    arguments.done()
    totals, chosen = client.survey.look(windows)
    return Plain(
        sample=node_sample(client.node, beat.delay, beat.blocked, totals),
        windows=[client.survey.window_json(each, client.row_format) for each in chosen],
    )


def _window(arguments: Arguments) -> Window:
    window = Window(
        arguments.text("sort", "id", SORTS),
        arguments.flag("down"),
        arguments.text("find", ""),
        int(arguments.number("from", 0, 0, 10_000_000)),
        int(arguments.number("limit", 60, 1, 500)),
    )
    arguments.done()
    return window


def children(client: Client, arguments: Arguments, _beat: Beat) -> object:
    """The children of some processes; 0 is the node."""
    parents = arguments.numbers("of", 100)
    limit = int(arguments.number("limit", 200, 1, 500))
    arguments.done()
    return Plain(tree_levels(client.node, client.row_format, parents, limit))


def near(client: Client, arguments: Arguments, _beat: Beat) -> object:
    """The neighbourhood of a process."""
    center = arguments.process(client.node)
    limit = int(arguments.number("limit", 60, 1, 60))
    arguments.done()
    return Plain(neighbourhood(center, client.row_format, limit))


def process(client: Client, arguments: Arguments, _beat: Beat) -> object:
    """The facts of a process or meta-process; long lists are cut."""
    found = arguments.process(client.node)
    arguments.done()
    info = read_again(lambda: info_of(client.node, found, _SHOWN))
    kind = "process" if isinstance(found, Process) else "meta"
    facts: dict[str, Any] = {"kind": kind}
    for name in info.__dataclass_fields__:
        value = getattr(info, name)
        if isinstance(value, tuple) and len(value) > _SHOWN:
            facts[f"{name}_count"] = len(value)
            value = value[:_SHOWN]
        facts[name] = as_json(value)
    facts["history"] = [[state, client.row_format.wall(at, 6)] for state, at in facts["history"]]
    return Plain(facts)


def calls(client: Client, arguments: Arguments, _beat: Beat) -> object:
    """The processes that wait for the answers of others."""
    limit = int(arguments.number("limit", 500, 1, 1000))
    arguments.done()
    return Plain(client.waits.look(limit))


def threads(client: Client, arguments: Arguments, _beat: Beat) -> object:
    """The threads of the program."""
    limit = int(arguments.number("limit", 200, 1, 500))
    arguments.done()
    return Plain(thread_list(client.node, limit))


def log(client: Client, arguments: Arguments, _beat: Beat) -> object:
    """The last lines of the log."""
    level = arguments.text("level", "debug", tuple(LEVELS))
    find_text, count = arguments.text("find", ""), int(arguments.number("count", 200, 1, 500))
    arguments.done()
    return Plain(client.log_lines.look(level, find_text, count))


def events(client: Client, arguments: Arguments, _beat: Beat) -> object:
    """The events of the node."""
    limit = int(arguments.number("limit", 200, 1, 500))
    arguments.done()
    return Plain(events_of(client.node, limit))


def applications(client: Client, arguments: Arguments, _beat: Beat) -> object:
    """The loaded applications."""
    arguments.done()
    return Plain(list_applications(client.node))


VIEWS: Final = (sample, children, near, process, calls, threads, log, events, applications)


async def flow(client: Client, arguments: Arguments) -> object:
    """The messages between some processes, summed four times a second: a line of JSON each."""
    numbers = arguments.numbers("ids", 64)
    seconds = arguments.number("seconds", 10.0, 0.0, 60.0)
    arguments.done()
    processes = [
        found for number in numbers if isinstance(found := find(client.node, number), Process)
    ]
    if not processes:
        raise ControlError("no_such_process", "none of the numbers is that of a process")
    return await measure_flow(client.node, processes, seconds, _teller(client))


def profile(client: Client, arguments: Arguments, is_cancelled: Callable[[], bool]) -> object:
    """The stacks of the loop and of the reader threads, or those of a process."""
    target = arguments.process(client.node) if arguments.has("to") else None
    seconds = arguments.number("seconds", 10.0, 0.1, 60.0)
    rate = arguments.number("rate", 100.0, 1.0, 100.0)
    arguments.done()
    return Profile(client.node, target).take(seconds, rate, _teller(client), is_cancelled)


def _teller(client: Client) -> Callable[[dict[str, Any]], object]:
    return lambda report: client.write(f"{json.dumps(report, ensure_ascii=False)}\n")
