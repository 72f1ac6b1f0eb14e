"""`main`: the entry point of ``ergo``. Runs a command and returns a status for scripts."""

import argparse
import os
import sys
import traceback
from typing import Any

from .._core.verbs.behaviour import Behaviour
from .._core.vocabulary.errors import BadInputError, ControlSocketError, ErgoError
from .._core.vocabulary.reasons import is_failure
from ..blocking.loop_thread import open_node
from ..program import run as run_program
from .arguments import make_parser
from .commands import COMMANDS
from .exit_codes import Leave, Status
from .output import complain, prepare
from .program_loader import load
from .prompt import Local, Prompt

__all__ = ["main"]


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "log_level": options.log_level,
        "log_output": options.log_output,
        "control": options.control,
    }


def _run(options: argparse.Namespace) -> Status:
    program = load(options.target, options.arguments, needs_app=True)
    try:
        result = run_program(
            program.app,
            name=program.name if options.name is None else options.name,
            **_settings(options),
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
        complain(f"{program.app.__qualname__} ended: {result}")
        return Status.FAILED
    return Status.DONE


def _shell(options: argparse.Namespace) -> Status:
    program = (
        None if options.target is None else load(options.target, options.arguments, needs_app=False)
    )
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
        Prompt(
            local, f"{name} is up; `node` is the node, `ps()` and `tree()` show it, Ctrl-D stops it"
        ).run()
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
    """Run the command; return the exit status."""
    parser = make_parser()
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help()
        return Status.USAGE
    options = parser.parse_args(arguments)
    try:
        if options.command == "run":
            return _run(options)
        # Not for `ergo run`: the output of the program is its own affair.
        prepare()
        if options.command == "shell":
            return _shell(options)
        COMMANDS[options.command](options)
        sys.stdout.flush()
    except Leave as leave:
        complain(f"ergo: {leave.text}")
        return leave.status
    except ErgoError as error:
        complain(f"ergo: {error}")
        return Status.FAILED
    except BrokenPipeError:
        # The reader of the output has closed the pipe, such as `head`. Prevent an error message
        # when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return Status.INTERRUPTED
    return Status.DONE
