"""`main`: the entry point of ``ergo``. Runs a command and returns a status for scripts."""

import argparse
import sys
from collections.abc import Callable

from .._core.vocabulary.errors import ErgoError
from .arguments import make_parser, parse
from .exit_codes import Leave, Status
from .output import (
    complain,
    discard,
    drop_lost_output,
    flush,
    is_lost_output,
    open_closed_streams,
    prepare,
    show,
)

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    open_closed_streams()
    status = Status.DONE
    try:
        status = _run(sys.argv[1:] if arguments is None else arguments)
        flush(sys.stdout)
    except Leave as leave:
        complain(f"ergo: {leave.text}")
        status = leave.status
    except ErgoError as error:
        complain(f"ergo: {error}")
        status = Status.FAILED
    except BrokenPipeError:
        pass  # the reader of the output has closed the pipe, such as `head`
    except OSError as error:
        if not is_lost_output(error):
            raise
        complain(f"ergo: the output cannot be written: {error.strerror}")
        status = status or Status.FAILED
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    finally:
        drop_lost_output()
    return status


def _run(words: list[str]) -> Status:
    parser = make_parser()
    if not words:
        parser.print_help()
        return Status.USAGE
    if words[:2] == ["completion", "--words"]:
        # From a completion script. Not for argparse: the rest is an unfinished command line.
        return _complete(parser, words[2:])
    options = parse(words)
    if options.command == "run":
        from .local_node import run  # noqa: PLC0415 - it imports the kernel

        if sys.__stdout__ is None:
            discard(sys.stdout)  # as Python does with the output of a program
        return run(options)
    # Not for `ergo run`: the output of the program is its own affair.
    prepare()
    if options.command == "observe":
        return _observe(options)
    if options.command == "shell":
        from .local_node import shell  # noqa: PLC0415 - it imports the kernel

        return shell(options)
    _command(options.command)(options)
    return Status.DONE


def _command(name: str) -> Callable[[argparse.Namespace], None]:
    """The function of a command that needs no node of its own."""
    if name == "new":
        from .scaffold.project import new  # noqa: PLC0415 - no other command needs it

        return new
    if name == "demo":
        from .demo.command import demo  # noqa: PLC0415 - it imports the kernel

        return demo
    if name == "simulate":
        from .local_node import simulate  # noqa: PLC0415 - it imports the kernel

        return simulate
    if name == "completion":
        from .completion.scripts import SCRIPTS  # noqa: PLC0415 - no other command needs it

        return lambda options: show(SCRIPTS[options.shell].rstrip())
    if name == "nats":
        return _nats
    try:
        if name == "upgrade":
            from .reload.upgrade import upgrade  # noqa: PLC0415 - some platforms lack its modules

            return upgrade
        from .commands import COMMANDS  # noqa: PLC0415 - some platforms lack its modules
    except ModuleNotFoundError as error:
        from .._core.vocabulary.public_names import platform_text  # noqa: PLC0415 - seldom needed

        text = platform_text(f"ergo {name}", error)
        if text is None:
            raise
        raise Leave(Status.FAILED, text) from error
    return COMMANDS[name]


def _observe(options: argparse.Namespace) -> Status:
    from ..observe.command import ObserveOptions, observe  # noqa: PLC0415 - it imports the kernel
    from .node_choice import tell_if_missing  # noqa: PLC0415 - some platforms lack its modules

    if options.node is not None and options.replay is None:
        tell_if_missing(options.node)
    observe(
        ObserveOptions(
            options.node,
            options.host,
            options.port,
            options.permit,
            options.open,
            options.record,
            options.replay,
            options.insecure,
        )
    )
    return Status.DONE


def _nats(options: argparse.Namespace) -> None:
    if options.what == "check":
        from .nats_check import check_server  # noqa: PLC0415 - no other command needs it

        if options.names:
            raise Leave(
                Status.USAGE, "ergo nats check takes no names of nodes; it asks --monitor URL"
            )
        check_server(options.monitor)
        return
    if not options.names:
        raise Leave(
            Status.USAGE, "name the nodes, as in ergo nats permissions shop@berlin shop@paris"
        )
    try:
        from ..network.carriers.nats.permissions import permissions_text  # noqa: PLC0415 - seldom needed
    except ModuleNotFoundError as error:
        raise Leave(Status.USAGE, str(error)) from None
    show(permissions_text(options.cluster, options.names).rstrip())


def _complete(parser: argparse.ArgumentParser, typed: list[str]) -> Status:
    """Print the words that may follow, each with an explanation behind a tab."""
    from .completion.words import complete  # noqa: PLC0415 - no other command needs it

    prepare()
    for word, help in complete(parser, typed):
        show(f"{word}\t{help}" if help else word)
    return Status.DONE
