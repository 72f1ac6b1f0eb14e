"""``ergo observe``: the page of the nodes of this user, of a single node, or of a recording."""

import sys
import webbrowser
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from .._core.vocabulary.errors import BadInputError
from ..node import open_node
from .history import read_recording
from .node_list import Plan
from .recorder import Recorder
from .server import Listening, Server, Url, check_address, new_token

__all__ = ["ObserveOptions", "observe"]


@dataclass(frozen=True, slots=True)
class ObserveOptions:
    """The options of the command."""

    node: str | None = None
    """The name of a node, or the part of it before the @; None for all nodes."""
    host: str = "127.0.0.1"
    port: int = 9911
    permit: frozenset[str] = frozenset({"look"})
    opens: bool = False
    """Open the browser."""
    record: str | None = None
    replay: str | None = None
    insecure: bool = False


def observe(options: ObserveOptions) -> None:
    """Serve the page until Ctrl-C.

    Raises:
        BadInputError: the recording is none, a permission is not offered, or the port is taken.
    """
    if not options.permit or "attach" in options.permit:
        raise BadInputError("--permit", ",".join(sorted(options.permit)), "look, or look,act")
    if options.record is not None and options.replay is not None:
        raise BadInputError("--record", options.record, "either --record or --replay")
    check_address(options.host, None, options.insecure)
    if options.record is not None:
        Recorder(options.record).close()  # refuse before anything starts
    recorded = None if options.replay is None else read_recording(options.replay)
    plan = Plan(
        new_token(),
        frozenset({"look"}) | options.permit,
        lambda name, _path: options.node in (None, name, name.partition("@")[0]),
        None if options.record is None else Path(options.record),
        None if options.replay is None else Path(options.replay).name,
        recorded,
    )
    trio.run(_serve, plan, options)


async def _serve(plan: Plan, options: ObserveOptions) -> None:
    async with open_node("observe@localhost", watchdog=None) as node:
        try:
            server = await node.spawn(Server, plan, Listening(options.host, options.port))
        except Exception as error:
            cause = error.__cause__ or error
            if isinstance(cause, OSError):
                raise BadInputError(
                    "--port", options.port, f"a free port of {options.host}, or 0: {cause}"
                ) from error
            raise
        url = await node.call(server, Url())
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        with suppress(OSError):  # the page is served all the same
            sys.stderr.write("keep this address secret: it opens the page; Ctrl-C ends it\n")
        if options.opens:
            await trio.to_thread.run_sync(webbrowser.open, url)
        await trio.sleep_forever()
