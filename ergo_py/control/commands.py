"""`COMMANDS`: the commands of a control socket, each with the permission it needs and the thread
that answers it.
"""

import json
import os
import platform
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from .._core.inspection.state import show
from .._core.metas.meta import Meta
from .._core.runtime.bridge import stack_of
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import (
    BadInputError,
    CallTimeoutError,
    ErgoError,
    NameUnknownError,
    NodeStoppedError,
    ProcessUnknownError,
    TargetDownError,
)
from .._core.vocabulary.ids import PID, Alias
from .._core.vocabulary.reasons import Custom, Shutdown
from .evaluator import Session
from .node_access import kernel_of
from .protocol import ControlError, as_json
from .rendering import SORTS
from .rows import describe_threads, list_rows, remember, stamp

__all__ = ["COMMANDS", "Arguments", "Client", "Command", "explain"]

LIMIT: Final = 1000
"""Default limit on the rows of an answer."""


class Client:
    """The state of a connection that lasts from request to request."""

    def __init__(self, node: Any, write: Callable[[str], object]) -> None:
        self.node = node
        self.write = write
        """Sends output before the answer."""
        self.before: dict[int, tuple[float, int, float]] = {}
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The session of the client's prompt, created at its first input."""
        if self._session is None:
            self._session = Session(self.node, self.write)
        return self._session

    def close(self) -> None:
        """Forget the session."""
        if self._session is not None:
            self._session.close()


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

    def target(self, node: Any) -> PID | Alias:
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
            raise ControlError(
                "no_such_process",
                f"no process on {node.name} has the number or the name {to!r}; `ergo ps` lists all",
            )
        return found.id

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


def explain(error: BaseException) -> ControlError:
    """Translate an error of the node for the client."""
    match error:
        case ControlError():
            return error
        case ProcessUnknownError() | NameUnknownError() | TargetDownError():
            return ControlError("no_such_process", str(error))
        case CallTimeoutError():
            return ControlError("timeout", f"{error}; `info` shows its current callback")
        case NodeStoppedError():
            return ControlError("stopping", str(error))
        case BadInputError():
            return ControlError("bad_argument", str(error))
        case ErgoError():
            return ControlError("failed", str(error))
    return ControlError("failed", f"{type(error).__name__}: {error}")


# -- look ------------------------------------------------------------------------------------------


def ps(client: Client, arguments: Arguments, blocked: object) -> object:
    """Rows about every process and meta-process. Answered by the control thread, so also while the
    loop is blocked.
    """
    sort, find = arguments.text("sort", "id", SORTS), arguments.text("find", "")
    threads, limit = arguments.flag("threads"), int(arguments.number("limit", LIMIT, 1, 100_000))
    skip = int(arguments.number("skip", 0, 0, 10_000_000))
    arguments.done()
    rows = list_rows(client.node, threads=threads, before=client.before)
    client.before = remember(rows)
    everything = len(rows)
    if threads:
        rows = describe_threads(rows)
    if find:
        rows = [
            row
            for row in rows
            if find in (row["name"] or "") or find in row["behaviour"] or find == str(row["id"])
        ]
    # Highest value first; by number, oldest first.
    rows.sort(key=lambda row: row["id"] if sort == "id" else (-row[sort], row["id"]))
    return {
        "rows": rows[skip : skip + limit],
        "found": len(rows),
        "alive": everything,
        "mailbox": sum(row["mailbox"] for row in rows),
        "rate": sum(row["rate"] for row in rows),
        "at": stamp(),
        "blocked": blocked,
    }


async def info(client: Client, arguments: Arguments) -> object:
    """The node; or a process or meta-process, if ``to`` is given."""
    if not arguments.has("to"):
        arguments.done()
        return {
            **as_json(client.node.info()),
            "os_pid": os.getpid(),
            "program": sys.argv[0] if sys.argv else "",
            "python": platform.python_version(),
            "stopping": client.node.stopping,
        }
    to = arguments.target(client.node)
    arguments.done()
    found = kernel_of(client.node).router.resolve(to)
    if isinstance(found, Meta):
        facts = as_json(client.node.meta_info(to))
        if found.handler.worker:
            facts["handler_stack"] = stack_of(found.handler.worker)
        return {"kind": "meta", **facts}
    return {"kind": "process", **as_json(client.node.process_info(to))}


async def tree(client: Client, arguments: Arguments) -> object:
    """The supervision tree."""
    depth, alike = (int(arguments.number(name, 0, 0, 1_000_000)) for name in ("depth", "alike"))
    arguments.done()
    taken = client.node.tree()
    return {"text": taken.text(depth=depth or None, alike=alike or None), "tree": taken}


async def inspect(client: Client, arguments: Arguments) -> object:
    """The diagnostics of a process or meta-process (``handle_inspect``)."""
    to, items = arguments.target(client.node), arguments.words("items")
    timeout = arguments.number("timeout", 5.0, 0.0, 60.0)
    arguments.done()
    is_meta = isinstance(kernel_of(client.node).router.resolve(to), Meta)
    verb = client.node.inspect_meta if is_meta else client.node.inspect
    return await verb(to, *items, timeout=timeout)


async def peek(client: Client, arguments: Arguments) -> object:
    """The messages queued in a mailbox."""
    to, limit = arguments.target(client.node), int(arguments.number("limit", 100, 1, 10_000))
    contents = arguments.flag("contents")
    arguments.done()
    return client.node.peek(to, limit=limit, contents=contents)


async def state(client: Client, arguments: Arguments) -> object:
    """The attributes of a behaviour as text, after the node's ``redact``."""
    to = arguments.target(client.node)
    arguments.done()
    found = await client.node.get_state(to)
    return {name: show(kernel_of(client.node), name, value) for name, value in found.items()}


async def statistics(client: Client, arguments: Arguments) -> object:
    """The activity of a process or meta-process during the next seconds."""
    to, seconds = arguments.target(client.node), arguments.number("seconds", 1.0, 0.0, 60.0)
    arguments.done()
    return await client.node.statistics(to, seconds=seconds)


async def trace(client: Client, arguments: Arguments) -> object:
    """The callbacks and messages of a process as they happen: a line of ``out`` each, as text or as
    JSON.
    """
    to, contents, as_lines = (
        arguments.target(client.node),
        arguments.flag("contents"),
        arguments.flag("json"),
    )
    types, callbacks = arguments.words("types"), arguments.words("callbacks")
    limit, seconds = (
        int(arguments.number("limit", 1000, 1, 100_000)),
        arguments.number("seconds", 10.0, 0.0, 3600.0),
    )
    arguments.done()
    how = {
        "types": types,
        "callbacks": callbacks,
        "contents": contents,
        "limit": limit,
        "seconds": seconds,
    }
    count = 0
    async with client.node.trace(to, **how) as entries:
        async for entry in entries:
            count += 1
            client.write(
                f"{json.dumps(as_json(entry), ensure_ascii=False)}\n" if as_lines else f"{entry}\n"
            )
    return {"entries": count, "missed": entries.missed}


async def dead_letters(client: Client, arguments: Arguments) -> object:
    """The last undeliverable messages."""
    count = int(arguments.number("count", 20, 0, 10_000))
    arguments.done()
    return {
        "counts": client.node.info().dead_letters,
        "last": [
            {**as_json(letter), "target": str(letter.target)}
            for letter in client.node.dead_letters(count)
        ],
    }


async def crashes(client: Client, arguments: Arguments) -> object:
    """The last processes that failed, with their reasons; with ``all``, every process that
    ended.
    """
    count, everything = int(arguments.number("count", 20, 0, 10_000)), arguments.flag("all")
    arguments.done()
    found = client.node.ended(count) if everything else client.node.crashes(count)
    return [
        {**as_json(ended), "traceback": ended.traceback, "failed": ended.failed} for ended in found
    ]


# -- act -------------------------------------------------------------------------------------------


async def send(client: Client, arguments: Arguments) -> object:
    """Send a JSON value as a message."""
    to, message = arguments.target(client.node), arguments.anything("message")
    priority = arguments.text("priority", "normal", ("normal", "high", "max"))
    arguments.done()
    return {"sent": client.node.send(to, message, priority=Priority[priority.upper()])}


async def exit(client: Client, arguments: Arguments) -> object:
    """Ask a process to end."""
    to, reason = arguments.target(client.node), arguments.text("reason", "")
    arguments.done()
    return {"asked": client.node.send_exit(to, Custom(reason) if reason else Shutdown())}


async def kill(client: Client, arguments: Arguments) -> object:
    """Kill a process."""
    to = arguments.target(client.node)
    arguments.done()
    return {"killed": client.node.kill(to)}


async def suspend(client: Client, arguments: Arguments) -> object:
    """Suspend a process."""
    to = arguments.target(client.node)
    arguments.done()
    return {"suspended": await client.node.suspend(to)}


async def resume(client: Client, arguments: Arguments) -> object:
    """Resume a suspended process."""
    to = arguments.target(client.node)
    arguments.done()
    return {"resumed": await client.node.resume(to)}


# -- attach ----------------------------------------------------------------------------------------


async def evaluate(client: Client, arguments: Arguments) -> object:
    """Evaluate an input of a prompt."""
    source = arguments.text("source")
    arguments.done()
    await client.session.run(source)
    return {}


async def complete(client: Client, arguments: Arguments) -> object:
    """Completions of a name."""
    text = arguments.text("text")
    arguments.done()
    return client.session.complete(text)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the protocol."""

    permission: str
    on_loop: Callable[[Client, Arguments], Awaitable[object]] | None = None
    in_thread: Callable[[Client, Arguments, object], object] | None = None


COMMANDS: Final[dict[str, Command]] = {
    "ps": Command("look", in_thread=ps),
    **{
        function.__name__.replace("_", "-"): Command("look", function)
        for function in (info, tree, inspect, peek, state, statistics, trace, dead_letters, crashes)
    },
    **{
        function.__name__: Command("act", function)
        for function in (send, exit, kill, suspend, resume)
    },
    "eval": Command("attach", evaluate),
    "complete": Command("attach", complete),
}
