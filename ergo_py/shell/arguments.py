"""The command-line parser of ``ergo``."""

import argparse
import sys
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from .._core.vocabulary.choices import LEVELS, OUTPUTS, PERMISSIONS
from .._core.vocabulary.hints import did_you_mean, near
from ..control.rendering import SORTS
from .exit_codes import Status
from .output import complain

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["SHELLS", "make_parser", "parse"]

SHELLS = ("bash", "zsh", "fish")
"""The shells that complete the command line."""

_EPILOG = """\
NODE is the name of a running node, or the part of it before the @; it may be left out if only one
is running. ps, tree, info, crashes, dead-letters and top also take a pattern, such as 'core-*', for
several nodes. With --via OTHER, NODE is the whole name of a node that OTHER reaches over its
network. WHO is the number or the registered name of a process, or the number of a meta-process;
`ergo ps` shows them.

statuses: 0 done, 1 failed, 2 wrong usage, 3 no such node, 4 no such process,
          5 no answer (the loop is blocked), 6 not permitted, 7 not confirmed,
          8 the process was busy for too long, 130 interrupted
"""


class _MisuseError(Exception):
    """The command line is wrong: the parser that says so, and its text."""

    def __init__(self, parser: argparse.ArgumentParser, text: str) -> None:
        super().__init__(text)
        self.parser = parser
        self.text = text


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Leave the error to `parse`, which knows the whole command line."""
        raise _MisuseError(self, message)

    def print_help(self, file: "SupportsWrite[str] | None" = None) -> None:
        """Print the help. An output that is lost raises, which some versions of argparse hide."""
        (sys.stdout if file is None else file).write(self.format_help())
        sys.stdout.flush()

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Leave after the help or the version. An output that is lost raises here: at its end,
        Python would show a traceback.
        """
        sys.stdout.flush()
        super().exit(status, message)


def _options_of(command: argparse.ArgumentParser) -> list[str]:
    return [option for action in command._actions for option in action.option_strings]


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = parser._actions
    (commands,) = (each for each in actions if isinstance(each, argparse._SubParsersAction))
    return dict(commands.choices)


def _permissions(text: str) -> frozenset[str]:
    named = frozenset(word.strip() for word in text.split(",") if word.strip())
    if not named <= frozenset(PERMISSIONS):
        hints = filter(None, (did_you_mean(word, PERMISSIONS, "{}") for word in sorted(named)))
        raise argparse.ArgumentTypeError(
            f"{text!r}; write look, act, attach, or several with commas{next(hints, '')}"
        )
    return named


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 10000")
    return int(text)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 up")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port from 0 to 65535")
    return int(text)


def _for_programs(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="for programs")


def _for_simple_terminals(command: argparse.ArgumentParser, view: str) -> None:
    command.add_argument(
        "--plain",
        action="store_true",
        help=f"{view}; the other comes with pip install 'ergo_py[terminal]'",
    )


class _Version(argparse.Action):
    """Prints the version, and which fast paths are off. Reads both only then, since the search
    through installed packages and the import of the kernel are slow.
    """

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib import metadata  # noqa: PLC0415 - slow to import, and seldom needed

        from .._core.speed.installation import is_fast  # noqa: PLC0415 - as above
        from ..control.fast_paths import fast_paths_off  # noqa: PLC0415 - as above

        build = "with the C extension" if is_fast else "pure Python"
        sys.stdout.write(f"ergo_py {metadata.version('ergo_py')} ({build})\n")
        sys.stdout.writelines(f"off: {path}\n" for path in fast_paths_off())
        parser.exit()


class _Grammar:
    """The commands, and the arguments that several commands share."""

    def __init__(self) -> None:
        self.parser = _Parser(
            prog="ergo",
            description="Run programs of actors, and look into running ones.",
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.parser.add_argument(
            "--version", action=_Version, nargs=0, help="show program's version number and exit"
        )
        self._commands = self.parser.add_subparsers(
            dest="command", metavar="COMMAND", required=True
        )

    def command(self, name: str, help: str) -> argparse.ArgumentParser:
        command = self._commands.add_parser(
            name,
            help=help,
            description=help[0].upper() + help[1:] + ".",
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(parser=command)
        return command

    def program(self, name: str, help: str, *, is_needed: bool) -> argparse.ArgumentParser:
        """Add a command that runs a program."""
        command = self.command(name, help)
        command.add_argument(
            "target",
            metavar="PROGRAM",
            nargs=None if is_needed else "?",
            help="module:app, file.py or file.py:app; without an app it is `main` or `app`",
        )
        command.add_argument(
            "arguments",
            metavar="ARGUMENT",
            nargs=argparse.REMAINDER,
            help="for the program's sys.argv",
        )
        command.add_argument("--name", help="the name of the node")
        command.add_argument("--log-level", choices=[*LEVELS], default="warning")
        command.add_argument("--log-output", choices=OUTPUTS, default="auto")
        command.add_argument(
            "--control",
            type=_permissions,
            default=frozenset(),
            metavar="PERMISSIONS",
            help="offer a control socket that permits look, act, attach, or several with commas",
        )
        command.add_argument(
            "--network",
            metavar="NETWORK",
            help="join the network of your nodes on this machine (local), or the network of a NATS "
            "server (nats://host:4222); the name is name@place then; else ERGO_NETWORK",
        )
        command.add_argument(
            "--cluster",
            help="the cluster of nodes on the NATS server; else ERGO_CLUSTER, else ergo",
        )
        command.add_argument(
            "--types",
            type=lambda text: text.split(","),
            metavar="MODULES",
            help="modules of messages that travel; without it, the program's TYPES",
        )
        return command

    def note_own_options(self, command: argparse.ArgumentParser) -> None:
        """Note the options of a command that runs a program: behind the program they are not its
        own any more.
        """
        command.set_defaults(own=frozenset(_options_of(command)) - {"-h", "--help"})

    def at_node(
        self,
        name: str,
        help: str,
        *,
        who: str | None = None,
        json: bool = True,
        via: bool = False,
    ) -> argparse.ArgumentParser:
        """Add a command about a running node or a process on it; with ``via``, also about a node
        that another node reaches.
        """
        command = self.command(name, help)
        command.add_argument("node", metavar="NODE", nargs=None if who == "needed" else "?")
        if who is not None:
            command.add_argument("who", metavar="WHO", nargs=None if who == "needed" else "?")
        self.place(command, via=via, json=json)
        return command

    def place(
        self, command: argparse.ArgumentParser, *, via: bool = False, json: bool = True
    ) -> None:
        """Add the options of commands about a running node."""
        command.add_argument(
            "--pid",
            type=int,
            metavar="PROGRAM",
            help="the number of the program, if names are not enough",
        )
        if via:
            command.add_argument(
                "--via",
                metavar="OTHER",
                help="ask a node of this machine, OTHER, which asks NODE over its network",
            )
        if json:
            _for_programs(command)

    def act(self, name: str, help: str, *, who: str | None = "needed") -> argparse.ArgumentParser:
        """Add a command that changes a process or the node, and so asks for confirmation."""
        command = self.at_node(name, help, who=who)
        self.confirm(command)
        return command

    def confirm(self, command: argparse.ArgumentParser) -> None:
        """Add the option of commands that ask for confirmation."""
        command.add_argument(
            "-y", "--yes", action="store_true", help="do not ask whether it is meant"
        )


@cache  # a parser keeps nothing of a command line; tests and fuzzing parse thousands of them
def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    grammar = _Grammar()
    command = grammar.program(
        "run",
        "run a program: a behaviour class, or an async function that takes the node",
        is_needed=True,
    )
    command.add_argument(
        "--reload",
        action="store_true",
        help="for development: start the program again when one of its files changes",
    )
    grammar.note_own_options(command)
    command = grammar.program(
        "shell",
        "open a prompt with a node of its own, and perhaps a program on it",
        is_needed=False,
    )
    _for_simple_terminals(command, "the prompt that needs no package")
    grammar.note_own_options(command)
    grammar.command(
        "new", "create a project: a supervised TCP service, with tests and types"
    ).add_argument("project", metavar="NAME", help="the name of its folder and package")
    _add_demo(grammar)
    _for_programs(grammar.command("nodes", "list the nodes that offer a control socket"))
    _add_looks_at_all(grammar)
    _add_entities(grammar)
    _add_looks_at_one(grammar)
    _add_watches(grammar)
    _add_observe(grammar)
    command = grammar.at_node("attach", "open a prompt in a running program", json=False)
    _for_simple_terminals(command, "the prompt that needs no package")
    _add_acts(grammar)
    grammar.command(
        "upgrade", "start the next version of a running program, which takes over without a gap"
    ).add_argument("program", metavar="NAME", help="its name in run(main, handover=NAME)")
    command = grammar.command(
        "nats", "print the permissions of nodes for a NATS server, or check its settings"
    )
    command.add_argument("what", choices=["permissions", "check"])
    command.add_argument("names", metavar="NAME", nargs="*", help="a node, as in shop@berlin")
    command.add_argument(
        "--monitor",
        default="http://127.0.0.1:8222",
        metavar="URL",
        help="check: the monitoring address of the server; http://127.0.0.1:8222 by default",
    )
    command.add_argument("--cluster", default="ergo", help="the cluster of these nodes")
    _add_simulate(grammar)
    grammar.command("completion", "print the completion script of a shell").add_argument(
        "shell", choices=SHELLS
    )
    return grammar.parser


def parse(words: list[str]) -> argparse.Namespace:
    """Parse a command line. A wrong one ends the program with the nearest valid word, which
    argparse does not tell.
    """
    try:
        options, unknown = make_parser().parse_known_args(words)
        if not unknown:
            return options
        parser: argparse.ArgumentParser = options.parser
        text = ""
    except _MisuseError as misuse:
        parser, text = misuse.parser, _nearest_choice(misuse.text)
        # A missing argument hides a misspelt option, and may be missing because of it.
        is_missing = text.startswith("the following arguments are required")
        unknown = _unknown_options(parser, words) if is_missing else []
    if unknown:
        hints = (_option_hint(parser, each.partition("=")[0]) for each in unknown)
        text = f"unrecognized arguments: {' '.join(unknown)}{next(filter(None, hints), '')}"
    complain(f"{parser.format_usage()}{parser.prog}: {text}")
    raise SystemExit(Status.USAGE)


def _nearest_choice(text: str) -> str:
    """The text of argparse, with the nearest valid choice in place of all choices."""
    shown, _, choices = text.partition(" (choose from ")
    given = shown.partition("invalid choice: ")[2].strip("'")
    known = choices.rstrip(")").replace("'", "").split(", ")
    hint = did_you_mean(given, known, "{}") if given else ""
    return shown + hint if hint else text


def _unknown_options(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    known = [*_options_of(parser), *_options_of(make_parser())]
    return [
        word
        for word in words
        if word.startswith("--")
        and not any(each.startswith(word.partition("=")[0]) for each in known)
    ]


def _option_hint(parser: argparse.ArgumentParser, word: str) -> str:
    """The end of a text about an unknown option: the nearest option of the command, or the
    commands that have it.
    """
    if not word.startswith("-"):
        return ""
    own = _options_of(parser)
    if word in own:
        return f"; write it behind the command: {parser.prog} {word}"
    if hint := did_you_mean(word, own, "{}"):
        return hint
    having: dict[str, list[str]] = {}
    for name, command in _commands_of(make_parser()).items():
        for option in _options_of(command):
            having.setdefault(option, []).append(name)
    found = word if word in having else near(word, having)
    if found is None:
        return ""
    *names, last = having[found]
    listed = f"{', '.join(names)} and {last}" if names else last
    return f"; {found} is an option of {listed}"


def _add_demo(grammar: _Grammar) -> None:
    command = grammar.command(
        "demo", "run simulated devices under supervision, and show them on the observer page"
    )
    command.add_argument(
        "--no-browser", dest="browser", action="store_false", help="print the address only"
    )
    command.add_argument("--port", type=_port, default=0, help="of the page; any free one else")


def _add_simulate(grammar: _Grammar) -> None:
    command = grammar.command("simulate", "run a test of a world: a seed, or a plan of faults")
    command.add_argument(
        "test", metavar="FILE::TEST", help="a test with @simulated: tests/test_shop.py::test_orders"
    )
    chosen = command.add_mutually_exclusive_group()
    chosen.add_argument("--seed", type=_whole, metavar="N", help="run this seed only")
    chosen.add_argument("--seeds", type=_whole, metavar="N", help="run the seeds below N")
    chosen.add_argument(
        "--plan", metavar="PLAN", help="run a plan, as the failure of a test prints it"
    )
    command.add_argument(
        "--observe", action="store_true", help="show the last world on the observer page"
    )


def _add_looks_at_all(grammar: _Grammar) -> None:
    command = grammar.at_node("ps", "list processes and meta-processes", via=True)
    command.add_argument("--sort", choices=SORTS, default="id")
    command.add_argument(
        "--find", default="", metavar="TEXT", help="only those with this in their name or behaviour"
    )
    command.add_argument("--limit", type=_count, default=1000)
    command.add_argument(
        "--threads", action="store_true", help="only reader threads, with their stacks"
    )
    command = grammar.at_node("tree", "show the supervision tree", via=True)
    command.add_argument("--depth", type=_count, metavar="N", help="show so many levels")
    command.add_argument(
        "--all", action="store_true", help="also unnamed children beyond ten of a behaviour"
    )
    command = grammar.at_node("dead-letters", "list the last undeliverable messages", via=True)
    command.add_argument("--count", type=_count, default=20)
    command = grammar.at_node("crashes", "show why the last processes failed", via=True)
    command.add_argument(
        "--count", type=_count, default=10, help="so many; those that failed alike count as one"
    )
    command.add_argument("--all", action="store_true", help="also processes that ended normally")
    grammar.at_node("network", "show the traffic with each other node", via=True)
    grammar.at_node(
        "names",
        "list the holders of names and singletons of the cluster, with their leases",
        via=True,
    )
    grammar.at_node("groups", "list the groups, and their members on each node", via=True)
    grammar.at_node("pipelines", "list the pipelines, with their rates and open items", via=True)


def _add_entities(grammar: _Grammar) -> None:
    command = grammar.command(
        "entities", "list the kinds of entities; show a record, keys or parked messages"
    )
    command.add_argument(
        "words",
        metavar="WORD",
        nargs="*",
        help="[NODE] for the kinds, [NODE] show KIND KEY for a record, [NODE] keys KIND, [NODE] "
        "parked, or [NODE] retry KIND KEY to give parked messages new attempts",
    )
    grammar.place(command, via=True)
    command.add_argument("--prefix", default="", metavar="TEXT", help="keys that begin so")
    command.add_argument("--limit", type=_count, default=1000, help="so many keys or messages")
    command.add_argument(
        "--contents", action="store_true", help="the messages of a record, not only their types"
    )
    grammar.confirm(command)


def _add_looks_at_one(grammar: _Grammar) -> None:
    grammar.at_node("info", "show the facts about a node or a process", who="optional", via=True)
    command = grammar.at_node(
        "inspect", "show the diagnostics of a process or meta-process", who="needed", via=True
    )
    # With a default: otherwise Python reports this optional argument as required.
    command.add_argument(
        "items", metavar="ITEM", nargs="*", default=[], help="for its handle_inspect"
    )
    command.add_argument("--timeout", type=_positive, default=5.0)
    grammar.at_node("state", "show the attributes of a process", who="needed", via=True)
    command = grammar.at_node(
        "peek", "show the messages queued in a mailbox", who="needed", via=True
    )
    command.add_argument(
        "--contents", action="store_true", help="the messages, not only their types"
    )
    command.add_argument("--limit", type=_count, default=20)


def _add_watches(grammar: _Grammar) -> None:
    command = grammar.at_node(
        "statistics",
        "observe a process for a while, and sum up its activity",
        who="needed",
        via=True,
    )
    command.add_argument("--seconds", type=_positive, default=1.0)
    command = grammar.at_node(
        "trace", "show the messages of a process as it receives and sends them", who="needed"
    )
    command.add_argument(
        "--contents", action="store_true", help="the messages, not only their types"
    )
    command.add_argument(
        "--type", action="append", default=[], metavar="NAME", help="only messages of this type"
    )
    command.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="CALLBACK",
        help="only this callback or verb, as handle_call or send",
    )
    command.add_argument("--limit", type=_count, default=1000, help="end after so many lines")
    command.add_argument("--seconds", type=_positive, default=10.0, help="end after this time")
    command = grammar.at_node("top", "show a live view of the node", json=False, via=True)
    command.add_argument("--sort", choices=SORTS, default="mailbox")
    command.add_argument("--interval", type=_positive, default=1.0, metavar="SECONDS")
    command.add_argument(
        "--count", type=_count, metavar="N", help="end after so many frames; implies --plain"
    )
    _for_simple_terminals(command, "the view that needs no package")


def _add_observe(grammar: _Grammar) -> None:
    command = grammar.command(
        "observe", "serve a page that shows running nodes in the browser, and print its address"
    )
    command.add_argument("node", metavar="NODE", nargs="?", help="only this node")
    command.add_argument("--open", action="store_true", help="open the browser")
    command.add_argument(
        "--permit",
        type=_permissions,
        default=frozenset({"look"}),
        metavar="PERMISSIONS",
        help="what pages may do: look, or look,act; never more than the node permits",
    )
    command.add_argument("--record", metavar="FILE", help="write what happens to a recording")
    command.add_argument("--replay", metavar="FILE", help="show a recording; needs no node")
    command.add_argument("--port", type=_port, default=9911, help="9911 by default; 0 for any")
    command.add_argument("--host", default="127.0.0.1", help="the address to listen at")
    command.add_argument(
        "--insecure",
        action="store_true",
        help="listen at an address that other machines reach, without TLS",
    )


def _add_acts(grammar: _Grammar) -> None:
    command = grammar.act("send", "send a message")
    command.add_argument(
        "message", metavar="MESSAGE", help="as JSON; anything else is sent as text"
    )
    command.add_argument("--priority", choices=("normal", "high", "max"), default="normal")
    command = grammar.act("exit", "ask a process to end")
    command.add_argument("--reason", default="", help="the reason it is given, instead of shutdown")
    grammar.act("kill", "end a process without asking it")
    grammar.act("suspend", "make a process take no more messages")
    grammar.act("resume", "resume a suspended process")
    command = grammar.act(
        "drain",
        "take a node out of service: it gives up singletons and names, leaves groups, takes no new "
        "calls, and finishes its work",
        who=None,
    )
    command.add_argument(
        "--timeout", type=_positive, default=30.0, help="seconds that the work under way has"
    )
    command = grammar.act(
        "reload", "let a node read settings and certificates again, without a stop", who=None
    )
    command.add_argument(
        "--timeout", type=_positive, default=30.0, help="seconds that each process has"
    )
