"""``ergo``: reads the command line, does what it says, and ends with a status that scripts can use."""

import argparse
import difflib
import os
import sys
import traceback
from importlib import metadata
from typing import Any, NoReturn

from .._core.behaviour import Behaviour
from .._core.errors import BadInputError, ControlSocketError, ErgoError
from .._core.opening import read_permissions
from .._core.options import LEVELS
from .._core.reasons import is_failure
from ..blocking import open_node
from ..control.snapshots import SORTS
from ..run import run as run_program
from .commands import COMMANDS
from .leaving import Leave, Status
from .loading import load
from .prompt import Local, Prompt

__all__ = ["main"]

_OUTPUTS = ("auto", "console", "json", "stdlib", "structlog", "none")

_EPILOG = """\
NODE is the name of a running node, or the part of it before the @; it may be left out if only one is running.
WHO is the number or the registered name of a process, or the number of a meta-process; `ergo ps` shows them.

statuses: 0 done, 1 failed, 2 wrong usage, 3 no such node, 4 no such process, 5 no answer (the loop is blocked),
          6 not permitted, 7 not confirmed, 8 the process was busy for too long, 130 interrupted
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and the nearest that would be right."""
        if "invalid choice: " in message:
            given, _, choices = message.partition("invalid choice: ")[2].partition(" (choose from ")
            near = difflib.get_close_matches(given.strip("'"), choices.rstrip(")").replace("'", "").split(", "), 1)
            if near:
                message += f"; did you mean {near[0]}?"
        self.print_usage(sys.stderr)
        self.exit(Status.USAGE, f"{self.prog}: {message}\n")


def _permissions(text: str) -> frozenset[str]:
    try:
        return read_permissions(text)
    except BadInputError:
        raise argparse.ArgumentTypeError(f"{text!r}; write look, act, attach, or several with commas") from None


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


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ergo",
        description="Run programs of actors, and look into running ones.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ergo_py {metadata.version('ergo_py')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, help: str, **more: Any) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=help,
            description=help[0].upper() + help[1:] + ".",
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **more,
        )

    for name, help in (
        ("run", "run a program: a behaviour class, or an async function that takes the node"),
        ("shell", "open a prompt with a node of its own, and perhaps a program on it"),
    ):
        command = add(name, help)
        command.add_argument(
            "target",
            metavar="PROGRAM",
            nargs=None if name == "run" else "?",
            help="module:app, file.py or file.py:app; without an app it is `main` or `app`",
        )
        command.add_argument(
            "arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="for the program's sys.argv"
        )
        command.add_argument("--name", help="the name of the node")
        command.add_argument("--log-level", choices=[*LEVELS], default="warning")
        command.add_argument("--log-output", choices=_OUTPUTS, default="auto")
        command.add_argument(
            "--control",
            type=_permissions,
            default=frozenset(),
            metavar="PERMISSIONS",
            help="offer a control socket that permits look, act, attach, or several of them with commas",
        )

    def looking(name: str, help: str, *, who: str | None = None, json: bool = True) -> argparse.ArgumentParser:
        command = add(name, help)
        command.add_argument("node", metavar="NODE", nargs=None if who == "needed" else "?")
        if who is not None:
            command.add_argument("who", metavar="WHO", nargs=None if who == "needed" else "?")
        command.add_argument(
            "--pid", type=int, metavar="PROGRAM", help="the number of the program, if names are not enough"
        )
        if json:
            command.add_argument("--json", action="store_true", help="for programs")
        return command

    add("nodes", "list the nodes that offer a control socket").add_argument(
        "--json", action="store_true", help="for programs"
    )
    command = looking("ps", "list processes and meta-processes")
    command.add_argument("--sort", choices=SORTS, default="id")
    command.add_argument("--find", default="", metavar="TEXT", help="only those with this in their name or behaviour")
    command.add_argument("--limit", type=_count, default=1000)
    command.add_argument("--threads", action="store_true", help="only reader threads, with what each is doing")
    looking("tree", "show who belongs to whom")
    looking("info", "show what is known of a node, or of one process", who="optional")
    command = looking("inspect", "have a process or meta-process tell about itself", who="needed")
    command.add_argument("items", metavar="ITEM", nargs="*", help="for its handle_inspect")
    command.add_argument("--timeout", type=_positive, default=5.0)
    looking("state", "show the attributes of a process", who="needed")
    command = looking("peek", "show what waits in a mailbox", who="needed")
    command.add_argument("--contents", action="store_true", help="the messages, not only their types")
    command.add_argument("--limit", type=_count, default=20)
    command = looking("statistics", "watch a process for a while, and add up what it does", who="needed")
    command.add_argument("--seconds", type=_positive, default=1.0)
    command = looking("trace", "show what a process gets and sends, as it happens", who="needed")
    command.add_argument("--contents", action="store_true", help="the messages, not only their types")
    command.add_argument("--type", action="append", default=[], metavar="NAME", help="only messages of this type")
    command.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="CALLBACK",
        help="only this callback or verb, as handle_call or send",
    )
    command.add_argument("--limit", type=_count, default=1000, help="end after so many lines")
    command.add_argument("--seconds", type=_positive, default=10.0, help="end after so long")
    command = looking("top", "show what the node is doing, again and again", json=False)
    command.add_argument("--sort", choices=SORTS, default="mailbox")
    command.add_argument("--interval", type=_positive, default=1.0, metavar="SECONDS")
    command.add_argument("--count", type=_count, metavar="N", help="end after so many frames")
    command = looking("dead-letters", "list the last messages that had nowhere to go")
    command.add_argument("--count", type=_count, default=20)
    command = looking("crashes", "say why the last processes died")
    command.add_argument("--count", type=_count, default=10)
    command.add_argument("--all", action="store_true", help="also those that ended well")
    looking("attach", "open a prompt in a running program", json=False)
    command = looking("send", "send a message", who="needed")
    command.add_argument("message", metavar="MESSAGE", help="as JSON; what is no JSON is sent as text")
    command.add_argument("--priority", choices=("normal", "high", "max"), default="normal")
    _ask_first(command)
    command = looking("exit", "ask a process to end", who="needed")
    command.add_argument("--reason", default="", help="the reason it is given, instead of shutdown")
    _ask_first(command)
    for name, help in (
        ("kill", "end a process without asking it"),
        ("suspend", "have a process take no more messages"),
        ("resume", "let a suspended process go on"),
    ):
        _ask_first(looking(name, help, who="needed"))
    return parser


def _ask_first(command: argparse.ArgumentParser) -> None:
    command.add_argument("-y", "--yes", action="store_true", help="do not ask whether it is meant")


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    return {"log_level": options.log_level, "log_output": options.log_output, "control": options.control}


def _run(options: argparse.Namespace) -> Status:
    program = load(options.target, options.arguments, needs_app=True)
    try:
        result = run_program(
            program.app, name=program.name if options.name is None else options.name, **_settings(options)
        )
    except ControlSocketError:
        raise
    except Exception as error:
        if isinstance(error, BadInputError) and error.what == "name":
            raise Leave(Status.USAGE, str(error)) from None
        traceback.print_exception(error)
        return Status.FAILED
    if (
        isinstance(program.app, type)
        and issubclass(program.app, Behaviour)
        and result is not None
        and is_failure(result)
    ):
        sys.stderr.write(f"{program.app.__qualname__} ended: {result}\n")
        return Status.FAILED
    return Status.DONE


def _shell(options: argparse.Namespace) -> Status:
    program = None if options.target is None else load(options.target, options.arguments, needs_app=False)
    name = options.name
    if name is None:
        name = "shell@localhost" if program is None else program.name
    try:
        node = open_node(name, **_settings(options))
    except BadInputError as error:
        raise Leave(Status.USAGE, str(error)) from None
    local = None
    try:
        local = Local(node, program)
        Prompt(local, f"{name} is up; `node` is the node, `ps()` and `tree()` show it, Ctrl-D stops it").run()
    except ErgoError as error:
        traceback.print_exception(error)
        return Status.FAILED
    finally:
        if local is not None:
            local.close()
        else:
            node.close()
    return Status.DONE


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; returns the status."""
    parser = _parser()
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help()
        return Status.USAGE
    options = parser.parse_args(arguments)
    try:
        if options.command == "run":
            return _run(options)
        if options.command == "shell":
            return _shell(options)
        COMMANDS[options.command](options)
        sys.stdout.flush()
    except Leave as leave:
        sys.stderr.write(f"ergo: {leave.text}\n")
        return leave.status
    except ErgoError as error:
        sys.stderr.write(f"ergo: {error}\n")
        return Status.FAILED
    except BrokenPipeError:
        # Whoever read the output has seen enough, such as `head`. Python must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return Status.INTERRUPTED
    return Status.DONE
