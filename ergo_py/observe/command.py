"""``ergo observe``: the page of the nodes of this user, of a single node, or of a recording."""

import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from .._core.vocabulary.errors import BadInputError
from ..node import open_node
from .hall import Plan
from .history import read_recording
from .recorder import Recorder
from .server import Listening, Server, Url, check_address, new_token

__all__ = ["Wish", "observe"]


@dataclass(frozen=True, slots=True)
class Wish:
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


def observe(wish: Wish) -> None:
    """Serve the page until Ctrl-C.

    Raises:
        BadInputError: the recording is none, a permission is not offered, or the port is taken.
    """
    if not wish.permit or "attach" in wish.permit:
        raise BadInputError("--permit", ",".join(sorted(wish.permit)), "look, or look,act")
    if wish.record is not None and wish.replay is not None:
        raise BadInputError("--record", wish.record, "either --record or --replay")
    check_address(wish.host, None, wish.insecure)
    if wish.record is not None:
        Recorder(wish.record).close()  # refuse before anything starts
    recorded = None if wish.replay is None else read_recording(wish.replay)
    plan = Plan(
        new_token(),
        frozenset({"look"}) | wish.permit,
        lambda name, _path: wish.node in (None, name, name.partition("@")[0]),
        None if wish.record is None else Path(wish.record),
        None if wish.replay is None else Path(wish.replay).name,
        recorded,
    )
    trio.run(_serve, plan, wish)


async def _serve(plan: Plan, wish: Wish) -> None:
    async with open_node("observe@localhost", watchdog=None) as node:
        try:
            server = await node.spawn(Server, plan, Listening(wish.host, wish.port))
        except Exception as error:
            cause: Any = error.__cause__ or error
            if isinstance(cause, OSError):
                raise BadInputError(
                    "--port", wish.port, f"a free port of {wish.host}, or 0: {cause}"
                ) from error
            raise
        url = await node.call(server, Url())
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        sys.stderr.write("keep this address secret: it opens the page; Ctrl-C ends it\n")
        if wish.opens:
            await trio.to_thread.run_sync(webbrowser.open, url)
        await trio.sleep_forever()
