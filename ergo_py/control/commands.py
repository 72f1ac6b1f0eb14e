"""What can be asked through a control socket: each command, what it needs to be allowed, and where
it is answered.
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
from .protocol import ControlError, as_json
from .rows import SORTS, describe_threads, list_rows, remember, stamp

__all__ = ["COMMANDS", "Arguments", "Client", "Command", "explain"]

LIMIT: Final = 1000
"""Rows of an answer, unless another number is asked for."""


class Client:
    """What is remembered about one connection."""

    def __init__(self, node: Any, write: Callable[[str], object]) -> None:
        self.node = node
        self.write = write
        """Says something before the answer."""
        self.before: dict[int, tuple[float, int, float]] = {}
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The prompt at the other end, from its first input on."""
        if self._session is None:
            self._session = Session(self.node, self.write)
        return self._session

    def close(self) -> None:
        """Forget everything."""
        if self._session is not None:
            self._session.close()


_PRINTED: Final = re.compile(r"<(PID|Alias) (?P<number>\d+) (?P<node>[^>]+)>")


class Arguments:
    """The arguments of one request: each is asked for once, and what nobody asks for is a mistake
    of the client's.
    """

    def __init__(self, command: str, given: dict[str, Any]) -> None:
        self._command = command
        self._given = dict(given)

    def has(self, name: str) -> bool:
        """Whether it was given."""
        return name in self._given

    def target(self, node: Any) -> PID | Alias:
        """Whom ``to`` means: a number, a registered name, or what was printed for somebody (``<PID
        12 demo@localhost>``).
        """
        to = self._given.pop("to", None)
        if isinstance(to, bool) or not isinstance(to, int | str) or to == "":
            raise ControlError(
                "bad_argument",
                f"{self._command} needs to: the number or the registered name of a process",
            )
        router = node._router
        if (
            isinstance(to, str)
            and (printed := _PRINTED.fullmatch(to))
            and printed["node"] == node.name
        ):
            to = printed["number"]
        # Nobody has a number of more digits, and Python refuses to read one of thousands.
        if isinstance(to, int) or (to.isdecimal() and len(to) <= 20):
            for kind in (PID, Alias):
                one = kind(node.name, node.pid.creation, int(to))
                if router.resolve(one) is not None:
                    return one
        found = router.resolve(str(to))
        if found is None:
            raise ControlError(
                "no_such_process",
                f"nobody on {node.name} has the number or the name {to!r}; `ergo ps` shows who is "
                "there",
            )
        return found.id  # type: ignore[no-any-return]

    def number(self, name: str, otherwise: float, least: float, most: float) -> float:
        """A number, within limits."""
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
        """Some text, perhaps one of a few."""
        value = self._given.pop(name, otherwise)
        if not isinstance(value, str) or (choices and value not in choices):
            allowed = f"one of {', '.join(choices)}" if choices else "text"
            raise ControlError("bad_argument", f"{name} is {allowed}, and not {value!r}")
        return value

    def words(self, name: str) -> list[str]:
        """A list of texts."""
        value = self._given.pop(name, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ControlError("bad_argument", f"{name} is a list of texts, and not {value!r}")
        return value

    def anything(self, name: str) -> object:
        """Whatever JSON can say."""
        if name not in self._given:
            raise ControlError("bad_argument", f"{self._command} needs {name}")
        return self._given.pop(name)

    def done(self) -> None:
        """Refuse what was not asked for."""
        if self._given:
            unknown = ", ".join(map(repr, sorted(self._given)))
            raise ControlError("bad_argument", f"{self._command} does not know {unknown}")


def explain(error: BaseException) -> ControlError:
    """An error of the node's, as a client is told of it."""
    match error:
        case ControlError():
            return error
        case ProcessUnknownError() | NameUnknownError() | TargetDownError():
            return ControlError("no_such_process", str(error))
        case CallTimeoutError():
            return ControlError("timeout", f"{error}; `info` says what it is doing")
        case NodeStoppedError():
            return ControlError("stopping", str(error))
        case BadInputError():
            return ControlError("bad_argument", str(error))
        case ErgoError():
            return ControlError("failed", str(error))
    return ControlError("failed", f"{type(error).__name__}: {error}")


# -- looking ---------------------------------------------------------------------------------------


def ps(client: Client, arguments: Arguments, blocked: object) -> object:
    """Rows about everything alive. Answered by the thread of the control socket: a blocked loop is
    no obstacle.
    """
    sort, find = arguments.text("sort", "id", SORTS), arguments.text("find", "")
    threads, limit = arguments.flag("threads"), int(arguments.number("limit", LIMIT, 1, 100_000))
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
    # Those that have most to tell first; by number the oldest.
    rows.sort(key=lambda row: row["id"] if sort == "id" else (-row[sort], row["id"]))
    return {
        "rows": rows[:limit],
        "found": len(rows),
        "alive": everything,
        "mailbox": sum(row["mailbox"] for row in rows),
        "rate": sum(row["rate"] for row in rows),
        "at": stamp(),
        "blocked": blocked,
    }


async def info(client: Client, arguments: Arguments) -> object:
    """The node; or one process or meta-process, if it is named."""
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
    found = client.node._router.resolve(to)
    if isinstance(found, Meta):
        told = as_json(client.node.meta_info(to))
        if found.worker:
            told["handler_stack"] = stack_of(found.worker)
        return {"kind": "meta", **told}
    return {"kind": "process", **as_json(client.node.process_info(to))}


async def tree(client: Client, arguments: Arguments) -> object:
    """Who belongs to whom."""
    depth, alike = (int(arguments.number(name, 0, 0, 1_000_000)) for name in ("depth", "alike"))
    arguments.done()
    taken = client.node.tree()
    return {"text": taken.text(depth=depth or None, alike=alike or None), "tree": taken}


async def inspect(client: Client, arguments: Arguments) -> object:
    """What a process or meta-process tells about itself."""
    to, items = arguments.target(client.node), arguments.words("items")
    timeout = arguments.number("timeout", 5.0, 0.0, 60.0)
    arguments.done()
    is_meta = isinstance(client.node._router.resolve(to), Meta)
    verb = client.node.inspect_meta if is_meta else client.node.inspect
    return await verb(to, *items, timeout=timeout)


async def peek(client: Client, arguments: Arguments) -> object:
    """What waits in a mailbox."""
    to, limit = arguments.target(client.node), int(arguments.number("limit", 100, 1, 10_000))
    contents = arguments.flag("contents")
    arguments.done()
    return client.node.peek(to, limit=limit, contents=contents)


async def state(client: Client, arguments: Arguments) -> object:
    """The attributes of a behaviour as text, after the node's ``redact``."""
    to = arguments.target(client.node)
    arguments.done()
    found = await client.node.get_state(to)
    return {name: show(client.node._kernel, name, value) for name, value in found.items()}


async def statistics(client: Client, arguments: Arguments) -> object:
    """What a process or meta-process does during the next seconds."""
    to, seconds = arguments.target(client.node), arguments.number("seconds", 1.0, 0.0, 60.0)
    arguments.done()
    return await client.node.statistics(to, seconds=seconds)


async def trace(client: Client, arguments: Arguments) -> object:
    """The callbacks and messages of a process as they happen: one line of ``out`` each, for people
    or as JSON.
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
    """The last messages that had nowhere to go."""
    count = int(arguments.number("count", 20, 0, 10_000))
    arguments.done()
    return {
        "counts": client.node.info().dead_letters,
        "last": [
            {**as_json(one), "target": str(one.target)} for one in client.node.dead_letters(count)
        ],
    }


async def crashes(client: Client, arguments: Arguments) -> object:
    """Why the last processes ended; those that failed, or all."""
    count, everything = int(arguments.number("count", 20, 0, 10_000)), arguments.flag("all")
    arguments.done()
    found = client.node.ended(count) if everything else client.node.crashes(count)
    return [{**as_json(one), "traceback": one.traceback, "failed": one.failed} for one in found]


# -- acting ----------------------------------------------------------------------------------------


async def send(client: Client, arguments: Arguments) -> object:
    """Send a message that JSON can say."""
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
    """End a process."""
    to = arguments.target(client.node)
    arguments.done()
    return {"killed": client.node.kill(to)}


async def suspend(client: Client, arguments: Arguments) -> object:
    """Hold a process."""
    to = arguments.target(client.node)
    arguments.done()
    return {"suspended": await client.node.suspend(to)}


async def resume(client: Client, arguments: Arguments) -> object:
    """Let a process go on."""
    to = arguments.target(client.node)
    arguments.done()
    return {"resumed": await client.node.resume(to)}


# -- attaching -------------------------------------------------------------------------------------


async def evaluate(client: Client, arguments: Arguments) -> object:
    """Run some input of a prompt."""
    source = arguments.text("source")
    arguments.done()
    await client.session.run(source)
    return {}


async def complete(client: Client, arguments: Arguments) -> object:
    """Names that begin like this."""
    text = arguments.text("text")
    arguments.done()
    return client.session.complete(text)


@dataclass(frozen=True, slots=True)
class Command:
    """A command that a client may give."""

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
