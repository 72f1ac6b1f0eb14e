"""How many functions of the package a reader has to follow for one event: the counts only fall."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import trio
import trio.testing

import ergo_py
from ergo_py import Actor, ChildSpec, open_node
from ergo_py.web import Response
from tests.web.rig import Peer, get, serving

PACKAGE = str(Path(ergo_py.__file__).parent)

FIRST_REQUEST = 100, 30
"""Functions and files from the accepted socket to the response, in pure Python. A response in
another second than the last takes one function more: it writes the date.
"""
RESTART = 70
"""Functions from the end of a child to the first callback of its successor."""


@contextmanager
def followed() -> Iterator[set[CodeType]]:
    """The functions of the package that run on this thread meanwhile. A comprehension is a part of
    the function in which it is written: Python 3.11 calls it, later versions do not.
    """
    found: set[CodeType] = set()

    def note(frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        if (
            event == "call"
            and code.co_filename.startswith(PACKAGE)
            and not code.co_name.endswith("comp>")
        ):
            found.add(code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


async def test_the_first_request_of_a_connection_is_a_walk_of_bounded_length() -> None:
    with trio.fail_after(60):
        async with serving(lambda _request: Response(200, b"")) as served:
            await served.ask(get("/"))
            await trio.testing.wait_all_tasks_blocked()
            local = served.server.local
            walks: list[set[CodeType]] = []
            # As below: a timer may wake a task of the node meanwhile.
            for _ in range(3):
                with followed() as found:
                    peer = Peer(await trio.open_tcp_stream(*local))
                    assert (await peer.ask(get("/"))).status == 200
                await peer.aclose()
                await trio.testing.wait_all_tasks_blocked()
                walks.append(found)
            walk, (functions, files) = set.intersection(*walks), FIRST_REQUEST
            assert len(walk) <= functions
            assert len({code.co_filename for code in walk}) <= files


class Child(Actor):
    """Tells when it has started."""

    def __init__(self, started: list[trio.Event]) -> None:
        self.started = started

    def init(self) -> None:
        self.started[-1].set()


async def test_the_restart_of_a_child_is_a_walk_of_bounded_length() -> None:
    started = [trio.Event()]
    walks: list[set[CodeType]] = []
    with trio.fail_after(60):
        async with open_node() as node:
            await node.supervise([ChildSpec("child", Child.spec(started))])
            # Functions that only some of the restarts call fill a cache, or belong to a task of the
            # node that a timer has woken meanwhile.
            for _ in range(3):
                await trio.testing.wait_all_tasks_blocked()
                started.append(trio.Event())
                with followed() as found:
                    node.kill("child")
                    await started[-1].wait()
                walks.append(found)
    assert len(set.intersection(*walks)) <= RESTART
