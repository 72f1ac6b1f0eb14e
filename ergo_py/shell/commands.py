"""`COMMANDS`: the commands that talk to a running node, and the display of their answers."""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any, Final

from .._core.vocabulary.text import printable, printable_lines
from ..control.client import Link, find_nodes
from ..control.protocol import ControlError
from ..control.rendering import (
    Table,
    blocked_text,
    clock,
    duration,
    facts,
    group_crashes,
    process_table,
    stack_text,
    table,
)
from .entities.commands import entities, read_words
from .exit_codes import Leave, Status
from .node_choice import choose, choose_all
from .output import ask_terminal, complain, escape_json, say, say_json, show
from .screens import choose_screen, is_full_terminal
from .top.plain_view import top, top_of_all

__all__ = ["COMMANDS", "nodes"]

Options = argparse.Namespace
_ALIKE: Final = 10
"""How many unnamed children of each behaviour `tree` shows without ``--all``."""
_REMEMBERED: Final = 1000
"""The crashes to ask for, so that their groups are counted; a node remembers a hundred, unless
``obituaries=`` says otherwise.
"""


def say_table(table: Table) -> None:
    """Print a table in the best way that the output allows."""
    show(choose_screen().table(table))


def nodes(options: Options) -> None:
    """List every node that offers a control socket."""
    found = find_nodes()
    if options.json:
        say_json(
            [
                {
                    "name": node.name,
                    "pid": node.os_pid,
                    "path": str(node.path),
                    "may": [*node.may],
                    "problem": node.problem,
                }
                for node in found
            ]
        )
        return
    if not found:
        say("no node offers a control socket")
        return
    rows = [(node.name, node.os_pid, node.problem or ", ".join(node.may)) for node in found]
    say_table(table("NODE PROGRAM PERMITS", rows, right="PROGRAM"))


def ps(link: Link, options: Options) -> None:
    """List all processes and meta-processes."""
    asked = {
        "sort": options.sort,
        "limit": options.limit,
        "threads": options.threads,
        "find": options.find,
    }
    answer = link.ask("ps", **asked)
    if options.json:
        say_json(answer)
        return
    if answer["blocked"] is not None:
        complain(blocked_text(answer["blocked"]))
    say_table(process_table(answer["rows"], threads=options.threads, sort=options.sort))
    if len(answer["rows"]) < answer["found"]:
        say(f"… and {answer['found'] - len(answer['rows'])} more; --limit shows them")


def tree(link: Link, options: Options) -> None:
    """Show the supervision tree."""
    answer = link.ask("tree", depth=options.depth or 0, alike=0 if options.all else _ALIKE)
    if options.json:
        say_json(answer["tree"])
    else:
        show(choose_screen().tree(printable_lines(answer["text"])))


def info(link: Link, options: Options) -> None:
    """Show the node, or a process."""
    answer = link.ask("info", **({} if options.who is None else {"to": options.who}))
    if options.json:
        say_json(answer)
        return
    shown, stack = facts(answer)
    show(choose_screen().pairs(shown))
    if stack:
        say(stack.rstrip())


def inspect(link: Link, options: Options) -> None:
    """Show the diagnostics of a process."""
    answer = link.ask(
        "inspect",
        patience=options.timeout + 5,
        to=options.who,
        items=options.items,
        timeout=options.timeout,
    )
    _say_pairs(answer, options, "no diagnostics: it has no handle_inspect")


def state(link: Link, options: Options) -> None:
    """Show the attributes of a behaviour."""
    _say_pairs(link.ask("state", to=options.who), options, "it has no attributes")


def _say_pairs(answer: dict[str, Any], options: Options, nothing: str) -> None:
    if options.json:
        say_json(answer)
    else:
        show(choose_screen().pairs(answer) if answer else nothing)


def peek(link: Link, options: Options) -> None:
    """Show the messages queued in a mailbox."""
    answer = link.ask("peek", to=options.who, limit=options.limit, contents=options.contents)
    if options.json:
        say_json(answer)
    elif not answer:
        say("the mailbox is empty")
    else:
        rows = [
            (
                message["lane"],
                message["callback"],
                message["sender"],
                message["message" if options.contents else "message_type"] or "-",
            )
            for message in answer
        ]
        say_table(table("LANE CALLBACK FROM MESSAGE", rows))


def statistics(link: Link, options: Options) -> None:
    """Observe a process for a while and show its activity."""
    answer = link.ask(
        "statistics", patience=options.seconds + 15, to=options.who, seconds=options.seconds
    )
    if options.json:
        say_json(answer)
        return
    say(
        f"in {duration(answer['seconds'])}: {answer['messages_in']} handled, "
        f"{answer['messages_out']} sent"
        + (f", busy {answer['busy']:.0%}" if answer["busy"] is not None else "")
        + (", and then it ended" if answer["ended"] else "")
    )
    rows = [
        (
            row["callback"],
            row["message_type"] or "-",
            row["count"],
            duration(row["seconds"]),
            duration(row["longest"]),
            row["errors"] or "-",
        )
        for row in answer["callbacks"]
    ]
    if rows:
        say_table(
            table(
                "CALLBACK MESSAGE COUNT TIME LONGEST ERRORS",
                rows,
                right="COUNT TIME LONGEST ERRORS",
            )
        )


def trace(link: Link, options: Options) -> None:
    """Show the callbacks and messages of a process as they happen."""
    asked = {
        "to": options.who,
        "contents": options.contents,
        "types": options.type,
        "callbacks": options.only,
        "limit": options.limit,
        "seconds": options.seconds,
        "json": options.json,
    }

    def out(text: str) -> None:
        show(escape_json(text.rstrip()) if options.json else printable(text.rstrip()))
        sys.stdout.flush()

    answer = link.ask("trace", patience=options.seconds + 15, out=out, **asked)
    if not options.json:
        missed = f", {answer['missed']} missed" if answer["missed"] else ""
        say(f"{answer['entries']} entries{missed}")


def dead_letters(link: Link, options: Options) -> None:
    """Show the undeliverable messages."""
    answer = link.ask("dead-letters", count=options.count)
    if options.json:
        say_json(answer)
        return
    if not answer["counts"]:
        say("no dead letters")
        return
    rows = [
        (
            clock(letter["at"]),
            letter["sender"],
            letter["target"],
            letter["message_type"],
            letter["why"],
        )
        for letter in answer["last"]
    ]
    say_table(table("AT FROM TO MESSAGE WHY", rows))
    say(
        f"{sum(answer['counts'].values())} in all: "
        + ", ".join(f"{n} {why}" for why, n in answer["counts"].items())
    )


def crashes(link: Link, options: Options) -> None:
    """Show the crashes with their reasons."""
    wanted = options.count if options.json else max(options.count, _REMEMBERED)
    answer = link.ask("crashes", count=wanted, all=options.all)
    if options.json:
        say_json(answer)
    elif not answer:
        say("nothing has ended" if options.all else "nothing has failed")
    else:
        screen = choose_screen()
        groups = group_crashes(answer)[-options.count :]
        show("\n\n".join(screen.crash(each) for each in groups))


def live(link: Link, options: Options) -> None:
    """Show the live view."""
    is_simple = options.plain or options.count is not None or options.via is not None
    if is_simple or not is_full_terminal():
        top(link, options.sort, options.interval, options.count)
    elif find_spec("textual") is None:
        top(link, options.sort, options.interval, None)
        say("`pip install 'ergo_py[terminal]'` adds a view that scrolls and filters")
    else:
        from .top.app import TopApp  # noqa: PLC0415 - an extra, and slow to import

        link.close()
        app = TopApp(
            link.path, link.node, link.os_pid, sort=options.sort, interval=options.interval
        )
        app.run()
        if app.is_interrupted:
            raise KeyboardInterrupt
        if app.error is not None:
            raise app.error
        if app.return_code:
            raise Leave(Status.FAILED, "the live view failed; `ergo top --plain` needs less")


def attach(link: Link, options: Options) -> None:
    """Open a prompt in another program."""
    if "attach" not in link.may:
        # Refuse before the first input, not after it.
        raise ControlError(
            "not_permitted",
            f"{link.node} does not permit code to be run: open it with control='look,attach', "
            "or run it with `ergo run --control look,attach`",
        )
    from .prompt import Attached, Prompt  # noqa: PLC0415 - readline writes to some terminals

    banner = (
        f"attached to {link.node}, program {link.os_pid}; `node` is the node, `ps()` and `tree()` "
        "show it, Ctrl-D leaves it as it is"
    )
    Prompt(Attached(link), banner, is_plain=options.plain).run()


def network(link: Link, options: Options) -> None:
    """Show the traffic with each other node."""
    answer = link.ask("network")
    if options.json:
        say_json(answer)
        return
    rows = [
        (
            peer["node"],
            peer["state"],
            duration(peer["round_trip"]) if peer["round_trip"] is not None else "-",
            peer["sent"],
            peer["received"],
            peer["waiting"],
            peer["calls"] + peer["calls_in"],
            sum(peer["refused"].values()) or "-",
            peer["unconfirmed"] + peer["unsent"] + peer["dropped"] or "-",
        )
        for peer in answer["peers"].values()
    ]
    if rows:
        figures = "TRIP SENT RECEIVED WAITING CALLS REFUSED LOST"
        say_table(table(f"NODE STATE {figures}", rows, right=figures))
    else:
        say(f"{answer['node']} knows no other node yet; it connects when they talk")


def groups(link: Link, options: Options) -> None:
    """Show the groups, and how many members each node has in them."""
    answer = link.ask("groups")
    if options.json:
        say_json(answer)
        return
    rows = [
        (sum(group["nodes"].values()), group["group"], _counted(group["nodes"])) for group in answer
    ]
    if rows:
        say_table(table("MEMBERS GROUP NODES", rows, right="MEMBERS"))
    else:
        say("no group has members")


def names(link: Link, options: Options) -> None:
    """Show the holders of names and singletons."""
    answer = link.ask("names")
    if options.json:
        say_json(answer)
        return
    rows = [
        (
            lease["kind"],
            lease["name"],
            lease["holder"] or "-",
            lease["token"] or "-",
            duration(lease["left"]) if lease["holder"] else "-",
        )
        for lease in answer
    ]
    if rows:
        say_table(table("KIND NAME HOLDER TOKEN LEFT", rows, right="TOKEN LEFT"))
    else:
        say(f"{link.node} holds no name of the cluster, and competes for none")


def pipelines(link: Link, options: Options) -> None:
    """Show the pipelines."""
    answer = link.ask("pipelines")
    if options.json:
        say_json(answer)
        return
    rows = [
        (
            each["name"] or each["pid"],
            f"{each['rate']:.1f}",
            f"{each['open']}/{each['most']}",
            each["waiting"] or "-",
            duration(each["delay"]),
            each["taken"],
            each["retried"] or "-",
            each["failed"] or "-",
            each["redelivered"] or "-",
            " ".join(f"{step['name']}={step['inside']}" for step in each["steps"]),
        )
        for each in answer
    ]
    if rows:
        figures = "RATE OPEN WAITING DELAY TAKEN RETRIED FAILED REDELIVERED"
        say_table(table(f"PIPELINE {figures} INSIDE", rows, right=figures))
    else:
        say(f"{link.node} has no pipelines")
    for each in answer:
        if each["lost"]:
            say(f"the source of {each['name'] or each['pid']} is lost: {each['lost']}")


def _counted(nodes: dict[str, int]) -> str:
    return ", ".join(f"{node} {count}" for node, count in sorted(nodes.items()))


def drain(link: Link, options: Options) -> None:
    """Take a node out of service."""
    ask_terminal(f"drain {link.node}", yes=options.yes)
    answer = link.ask("drain", patience=options.timeout + 10, timeout=options.timeout)
    if options.json:
        say_json(answer)
    elif not answer["unfinished"]:
        say(f"{link.node} is drained: stop it, or deploy the next version")
    else:
        for text in answer["unfinished"]:
            say(text)
    if answer["unfinished"]:
        raise Leave(Status.FAILED, f"{link.node} is out of service, with work that is not finished")


def reload(link: Link, options: Options) -> None:
    """Let the processes of a node read their settings again."""
    answer = link.ask("reload", patience=options.timeout + 10, timeout=options.timeout)
    if options.json:
        say_json(answer)
    elif not answer["failed"]:
        say(f"{link.node} has read its settings again")
    else:
        for text in answer["failed"]:
            say(text)
    if answer["failed"]:
        raise Leave(Status.FAILED, f"{link.node} goes on with settings that are not new")


# -- act -------------------------------------------------------------------------------------------


def _confirm(link: Link, options: Options, action: str) -> None:
    if options.yes:
        return
    who = str(options.who)
    if "look" in link.may:
        found = link.ask("info", to=options.who)
        number = found["pid"] if found["kind"] == "process" else found["alias"]
        who = " ".join(
            str(word)
            for word in (found.get("name"), found["behaviour"], number)
            if word is not None
        )
    ask_terminal(f"{action} {who} on {link.node}", yes=options.yes)


def _act(
    do: str, action: str, done: str, arguments: Callable[[Options], dict[str, Any]]
) -> Callable[[Link, Options], None]:
    def command(link: Link, options: Options) -> None:
        asked = {"to": options.who, **arguments(options)}
        _confirm(link, options, action)
        answer = link.ask(do, **asked)
        if options.json:
            say_json(answer)
        elif all(answer.values()):
            say(done)
        else:
            say(
                f"not {done}: see `ergo dead-letters`" if do == "send" else f"it was {done} already"
            )

    return command


def _message(options: Options) -> dict[str, Any]:
    try:
        message = json.loads(options.message)
    except ValueError:
        message = options.message
    return {"message": message, "priority": options.priority}


def _nothing(_: Options) -> dict[str, Any]:
    return {}


def _reason(options: Options) -> dict[str, Any]:
    return {"reason": options.reason}


_TALKING: Final[dict[str, Callable[[Link, Options], None]]] = {
    "ps": ps,
    "tree": tree,
    "info": info,
    "inspect": inspect,
    "state": state,
    "peek": peek,
    "statistics": statistics,
    "trace": trace,
    "dead-letters": dead_letters,
    "crashes": crashes,
    "network": network,
    "groups": groups,
    "names": names,
    "pipelines": pipelines,
    "drain": drain,
    "reload": reload,
    "top": live,
    "attach": attach,
    "send": _act("send", "send a message to", "sent", _message),
    "exit": _act("exit", "ask to end:", "asked", _reason),
    "kill": _act("kill", "kill", "killed", _nothing),
    "suspend": _act("suspend", "suspend", "suspended", _nothing),
    "resume": _act("resume", "resume", "resumed", _nothing),
}


_OF_ALL: Final = frozenset(
    {
        "ps",
        "tree",
        "info",
        "dead-letters",
        "crashes",
        "network",
        "groups",
        "names",
        "pipelines",
        "entities",
        "top",
    }
)
"""Commands that a pattern of node names may be given to."""


def _via(command: Callable[[Link, Options], None], options: Options) -> None:
    """Run a command at a node that another node reaches."""
    if not all((options.node or "").partition("@")) or "*" in options.node:
        raise Leave(
            Status.USAGE,
            "--via needs the whole name of the other node, as in `ergo ps stock@here --via shop`",
        )
    with choose(options.via, options.pid) as link:
        if link.node != options.node:
            link.conversation.pass_on(options.node)
        _talk(command, link, options)


def _with_link(name: str, command: Callable[[Link, Options], None]) -> Callable[[Options], None]:
    def run(options: Options) -> None:
        if getattr(options, "via", None) is not None:
            _via(command, options)
        elif "*" not in (options.node or ""):
            with choose(options.node, options.pid) as link:
                _talk(command, link, options)
        elif name not in _OF_ALL:
            raise Leave(
                Status.USAGE, f"`ergo {name}` takes a single node; {options.node!r} is a pattern"
            )
        else:
            _run_at_all(name, command, options)

    return run


def _run_at_all(name: str, command: Callable[[Link, Options], None], options: Options) -> None:
    """Run a command at each node that fits the pattern. A node that fails does not keep the others
    from being shown.
    """
    if getattr(options, "json", False):
        raise Leave(Status.USAGE, "--json shows a single node; `ergo nodes --json` lists the names")
    failure: Leave | None = None
    with ExitStack() as stack:
        links = []
        for connect in choose_all(options.node):
            try:
                links.append(stack.enter_context(connect()))
            except Leave as leave:
                failure = leave
                complain(str(leave))
        if name == "top":
            top_of_all(links, options.sort, options.interval, options.count)
        else:
            for link in links:
                say(f"{link.node}:")
                try:
                    _talk(command, link, options)
                except Leave as leave:
                    failure = leave
                    complain(str(leave))
    if failure is not None:
        raise Leave(failure.status, "not all nodes have answered")


def _talk(command: Callable[[Link, Options], None], link: Link, options: Options) -> None:
    try:
        command(link, options)
    except ControlError as error:
        raise Leave(Status.of(error.code), f"{error.text}\n{stack_text(error)}".rstrip()) from None
    except TimeoutError:
        raise Leave(Status.NO_ANSWER, f"{link.node} does not answer") from None
    except BrokenPipeError:
        raise  # the reader of the output has closed it, such as `head`: the node has answered
    except ConnectionError as error:
        raise Leave(Status.NO_ANSWER, str(error)) from None


def _entities(options: Options) -> None:
    _with_link("entities", entities)(read_words(options))


COMMANDS: Final[dict[str, Callable[[Options], None]]] = {
    "nodes": nodes,
    **{name: _with_link(name, command) for name, command in _TALKING.items()},
    "entities": _entities,
}
