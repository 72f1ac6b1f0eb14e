"""`COMMANDS`: the commands of a control socket, each with the permission it needs and the thread
that answers it.
"""

import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from .._core.inspection.census import list_living, read_row
from .._core.inspection.state import show
from .._core.metas.meta import Meta
from .._core.processes.process import processes_of
from .._core.runtime.bridge import stack_of
from .._core.verbs.node_access import kernel_of
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
from .._core.vocabulary.reasons import Custom, Shutdown
from .._core.vocabulary.text import text_of
from ..entity_handles import Retry, entities_of, inspection_of, inspections, list_keys
from .protocol import ControlError, as_json
from .rendering import SORTS
from .request import Arguments, Beat, Client
from .rows import ps_row
from .view_commands import VIEWS, flow, profile
from .views.node_facts import crashes_of, dead_letters_of
from .views.slices import in_slices
from .views.survey import Window

__all__ = ["COMMANDS", "Command", "explain"]

LIMIT: Final = 1000
"""Default limit on the rows of an answer."""


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
    return ControlError("failed", f"{type(error).__name__}: {text_of(error)}")


# -- look ------------------------------------------------------------------------------------------


def ps(client: Client, arguments: Arguments, beat: Beat) -> object:
    """Rows about processes and meta-processes. Answered by the control thread, so also while the
    loop is blocked; in slices, so that the loop is not held up.
    """
    sort, find = arguments.text("sort", "id", SORTS), arguments.text("find", "")
    threads, limit = arguments.flag("threads"), int(arguments.number("limit", LIMIT, 1, 100_000))
    skip = int(arguments.number("skip", 0, 0, 10_000_000))
    arguments.done()
    if threads:
        return _ps_threads(client, find, skip, limit, beat)
    # Highest value first; by number, oldest first.
    totals, (chosen,) = client.survey.look([Window(sort, sort != "id", find, skip, limit)])
    return {
        "rows": [ps_row(process, row) for process, row in client.survey.rows(chosen, 200)],
        "found": chosen.found,
        "alive": totals["processes"] + totals["metas"],
        "mailbox": chosen.mailbox,
        "rate": chosen.rate,
        "at": time.time(),
        "blocked": beat.blocked,
    }


def _ps_threads(client: Client, find: str, skip: int, limit: int, beat: Beat) -> object:
    """Only the meta-processes with a reader thread, with the innermost frames of each."""
    processes, metas = list_living(kernel_of(client.node))
    fitting = [
        meta
        for some in in_slices(metas)
        for meta in some
        if meta.reader.thread is not None
        and (find in meta.callbacks.behaviour or find == str(meta.id.number))
    ]
    rows = []
    for shown in in_slices(fitting[skip : skip + limit], 20):
        rows += [ps_row(meta, read_row(meta, perf_counter()), threads=True) for meta in shown]
    return {
        "rows": rows,
        "found": len(fitting),
        "alive": len(processes) + len(metas),
        "mailbox": sum(len(meta.mailbox) for meta in fitting),
        "rate": 0.0,
        "at": time.time(),
        "blocked": beat.blocked,
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


def dead_letters(client: Client, arguments: Arguments, _beat: Beat) -> object:
    """The last undeliverable messages."""
    count = int(arguments.number("count", 20, 0, 10_000))
    arguments.done()
    return dead_letters_of(client.node, count)


def crashes(client: Client, arguments: Arguments, _beat: Beat) -> object:
    """The last processes that failed, with their reasons; with ``all``, every process that
    ended.
    """
    count, everything = int(arguments.number("count", 100, 0, 10_000)), arguments.flag("all")
    arguments.done()
    return crashes_of(client.node, count, everything)


async def at(client: Client, arguments: Arguments) -> object:
    """A command that looks into another node of the network. This node passes it on."""
    node, do, given = arguments.text("node"), arguments.text("do"), arguments.anything("with")
    arguments.done()
    if not isinstance(given, dict):
        raise ControlError("bad_argument", f"with is an object, and not {given!r}")
    try:
        return await client.node.at(node).ask_control(id(client), do, given)
    except TargetDownError as error:
        raise ControlError("no_such_node", f"{node}: {error.reason}") from None
    except CallTimeoutError as error:
        raise ControlError("silent", str(error)) from None
    except PermissionError as error:
        raise ControlError("not_permitted", str(error)) from None


async def network(client: Client, arguments: Arguments) -> object:
    """The traffic with each other node, as ``node.network()`` has it."""
    arguments.done()
    return client.node.network()


async def groups(client: Client, arguments: Arguments) -> object:
    """The groups of the node and of the cluster, with the number of their members on each node."""
    arguments.done()
    members = kernel_of(client.node).router.directory.groups
    return [
        {"group": str(name), "nodes": Counter(pid.node for pid in pids)}
        for name, pids in sorted(members.items(), key=lambda each: str(each[0]))
    ]


async def names(client: Client, arguments: Arguments) -> object:
    """The names and singletons of the cluster that this node holds, or competes for: their holders,
    with the number and the rest of each lease.
    """
    arguments.done()
    return sorted(_facts_of(client, "lease_facts"), key=lambda lease: str(lease["name"]))


def _facts_of(client: Client, method: str) -> list[dict[str, object]]:
    """The facts of all processes whose behaviour has this method. No class is imported for it:
    control is loaded with every node, and pipelines and clusters with few.
    """
    behaviours = [each.behaviour for each in processes_of(kernel_of(client.node).router).values()]
    readers = [getattr(each, method, None) for each in behaviours]
    return [read() for read in readers if read is not None]


async def entities(client: Client, arguments: Arguments) -> object:
    """The stores of entities with their sums, and their kinds with the number of entities that are
    stored and awake, of messages that are owed, and of parked messages.
    """
    age = arguments.number("age", 0.0, 0.0, 3600.0)
    arguments.done()
    return [await each.facts(age) for each in inspections(entities_of(client.node))]


async def pipelines(client: Client, arguments: Arguments) -> object:
    """The pipelines, with their figures and steps."""
    arguments.done()
    return _facts_of(client, "pipeline_facts")


async def entity(client: Client, arguments: Arguments) -> object:
    """The stored record of an entity."""
    kind, key, contents = (
        arguments.text("kind"),
        arguments.text("key"),
        arguments.flag("contents"),
    )
    arguments.done()
    _, inspection = inspection_of(entities_of(client.node), kind)
    found = await inspection.record(kind, key, contents=contents)
    if found is None:
        raise ControlError(
            "no_such_entity",
            f"nothing is stored for {kind} {key!r}; `ergo entities keys {kind}` lists the keys",
        )
    return found


async def keys(client: Client, arguments: Arguments) -> object:
    """The keys of a kind of entities, in order: those behind the key ``after``."""
    kind, prefix = arguments.text("kind"), arguments.text("prefix", "")
    after = arguments.text("after", "")
    limit = int(arguments.number("limit", LIMIT, 1, 100_000))
    arguments.done()
    tables = entities_of(client.node)
    found: list[str] = []
    cls, _ = inspection_of(tables, kind)
    async with aclosing(list_keys(tables, cls, prefix, after)) as listed:
        async for key in listed:
            if len(found) == limit:
                return {"keys": found, "is_more": True}
            found.append(key)
    return {"keys": found, "is_more": False}


async def parked(client: Client, arguments: Arguments) -> object:
    """The parked messages of all entities. Reads all rows."""
    limit = int(arguments.number("limit", LIMIT, 1, 100_000))
    arguments.done()
    found: list[object] = []
    for each in inspections(entities_of(client.node)):
        found += await each.parked(limit - len(found))
    return found


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


async def drain(client: Client, arguments: Arguments) -> object:
    """Take the node out of service; the answer tells the work that was not finished in time."""
    timeout = arguments.number("timeout", 30.0, 0.0, 3600.0)
    arguments.done()
    return {"unfinished": await client.node.drain(timeout)}


async def reload(client: Client, arguments: Arguments) -> object:
    """Let the processes read their settings again; the answer tells those that could not be
    read.
    """
    timeout = arguments.number("timeout", 30.0, 0.0, 3600.0)
    arguments.done()
    return {"failed": await client.node.reload(timeout)}


async def retry(client: Client, arguments: Arguments) -> object:
    """Give the parked messages of an entity new attempts; the answer tells how many there were."""
    kind, key = arguments.text("kind"), arguments.text("key")
    arguments.done()
    cls, _ = inspection_of(entities_of(client.node), kind)
    return {"retried": await client.node.entity(cls, key).call(Retry())}


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
    await client.evaluator.run(source)
    return {}


async def complete(client: Client, arguments: Arguments) -> object:
    """Completions of a name."""
    text = arguments.text("text")
    arguments.done()
    return client.evaluator.complete(text)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the protocol."""

    permission: str
    on_loop: Callable[[Client, Arguments], Awaitable[object]] | None = None
    in_thread: Callable[[Client, Arguments, Beat], object] | None = None
    """Answers in the thread of the control socket."""
    in_own_thread: Callable[[Client, Arguments, Callable[[], bool]], object] | None = None
    """Answers in a thread of its own, since it takes long; the function says whether the request
    was cancelled.
    """


COMMANDS: Final[dict[str, Command]] = {
    "ps": Command("look", in_thread=ps),
    **{
        function.__name__: Command("look", function)
        for function in (
            info,
            tree,
            inspect,
            peek,
            state,
            statistics,
            trace,
            flow,
            network,
            groups,
            names,
            pipelines,
            entities,
            entity,
            keys,
            parked,
            at,
        )
    },
    **{
        function.__name__.replace("_", "-"): Command("look", in_thread=function)
        for function in (dead_letters, crashes, *VIEWS)
    },
    "profile": Command("look", in_own_thread=profile),
    **{
        function.__name__: Command("act", function)
        for function in (send, exit, kill, suspend, resume, drain, reload, retry)
    },
    "eval": Command("attach", evaluate),
    "complete": Command("attach", complete),
}
