"""Nodes that do not answer, pages that do not read, and arguments that no page of ours sends."""

import base64
import gzip
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py.control.protocol import VERSION, encode
from ergo_py.control.socket_paths import bind_socket
from ergo_py.observe.history import History
from ergo_py.observe.node_list import Plan
from ergo_py.observe.recorder import read_history
from ergo_py.observe.strangers import Strangers
from ergo_py.observe.viewer import Viewer
from ergo_py.web import WS
from tests.observe.rig import TOKEN, Page, in_thread, observed, page_of, serving
from tests.observe.test_viewer import Slow
from tests.support import running_node

# -- a node that does not answer -------------------------------------------------------------------


@asynccontextmanager
async def frozen(name: str, greets: bool) -> AsyncIterator[None]:
    """The control socket of a program that is stopped, before or after its greeting."""
    listener, path = bind_socket(name)
    taken: list[trio.SocketStream] = []

    async def accept(waiting: trio.socket.SocketType) -> None:
        while True:
            stream = trio.SocketStream((await waiting.accept())[0])
            taken.append(stream)
            if greets:
                greeting = {"ergo": VERSION, "node": name, "os_pid": os.getpid(), "may": ["look"]}
                try:
                    await stream.send_all(encode(greeting))
                except trio.BrokenResourceError:  # a client that has only knocked
                    pass

    with trio.socket.from_stdlib_socket(listener) as waiting:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept, waiting)
            yield
            nursery.cancel_scope.cancel()
    path.unlink()
    for stream in taken:
        stream.socket.close()


@pytest.mark.parametrize("greets", [True, False], ids=["greets", "silent"])
async def test_a_node_that_does_not_answer_keeps_no_other_page_waiting(
    greets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ergo_py.observe.node_link.GREETING", 1000.0)
    async with frozen("frozen@localhost", greets), observed() as (_, url):

        def look(page: Page) -> tuple[Any, ...]:
            page.watch("frozen@localhost", sample={"kind": "sample"})
            past = page.ask("history", "frozen@localhost")
            nothing = page.ask("at", "frozen@localhost", at=1.0)
            with Page(url) as other:
                other.watch("shop@localhost", sample={"kind": "sample"})
                other.until(lambda: other.views)
            page.watch("shop@localhost", sample={"kind": "sample"})
            page.until(lambda: page.views)
            return past["from"], nothing["views"]

        assert await in_thread(lambda: page_of(url, look)) == (None, {})


# -- a page that does not read ---------------------------------------------------------------------


async def test_a_page_that_asks_and_does_not_read_is_refused_and_then_closed() -> None:
    async with running_node("observe@localhost") as node:
        slow: Any = await node.spawn(Slow)
        viewer = await node.spawn(Viewer, slow, Strangers(), Plan(TOKEN), "0")
        ask = {"id": 1, "do": "history", "node": "shop@localhost"}
        for message in (
            WS.Connected(slow, None),
            WS.Text(slow, json.dumps({"hello": 1, "token": TOKEN})),
            *(WS.Text(slow, json.dumps({"id": number, "do": "watch"})) for number in range(20)),
            WS.Text(slow, json.dumps(ask)),
        ):
            node.send(viewer, message)
        for _ in range(25):
            await trio.testing.wait_all_tasks_blocked()
            await node.call(slow, "read")
        sent = await node.call(slow, "sent")
        assert sent[-1]["error"]["code"] == "busy"

        for number in range(2100):
            node.send(viewer, WS.Text(slow, json.dumps({"id": number, "do": "watch"})))
        await node.wait_ended(viewer)


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("do, name", [("recording", "from"), ("history", "to"), ("at", "at")])
@pytest.mark.parametrize("value", ["1e999", "-1e999", "NaN", "1" * 400, "true", '"1"', "[]"])
async def test_a_number_that_is_none_is_refused_and_the_page_lives(
    do: str, name: str, value: str
) -> None:
    history = History("shop@localhost")
    plan = Plan(TOKEN, replay="x", recorded=([], {"shop@localhost": history}))
    async with serving(plan) as url:

        def look(page: Page) -> tuple[Any, Any]:
            asked = json.dumps({"id": 99, "do": do, "node": "shop@localhost", "with": {name: "?"}})
            page.socket.send(asked.replace('"?"', value))
            while (said := page.hear()).get("id") != 99:
                pass
            return said, page.ask("history")

        said, after = await in_thread(lambda: page_of(url, look))

        assert said["error"]["code"] == "bad_argument"
        assert after["columns"]["at"] == []


# -- the parts of a recording ----------------------------------------------------------------------


def test_a_recording_that_is_fetched_while_time_passes_is_whole() -> None:
    history, chance, second = History("shop@localhost"), random.Random(1), 0
    data, begin = b"", 0.0

    def pass_time(seconds: int) -> None:
        nonlocal second
        for _ in range(seconds):
            history.add("log", {}, {"lines": [chance.randbytes(500).hex()]}, 1000.0 + second)
            second += 1

    pass_time(400)
    while begin is not None:
        answer = read_history(history, "shop@localhost", "recording", {"from": begin})["result"]
        data += base64.b64decode(answer["data"])
        begin = answer["next"]
        pass_time(25)

    first, *lines = map(json.loads, gzip.decompress(data).splitlines())
    assert first["ergo-recording"] == 1
    times = [line["at"] for line in lines]
    assert times == sorted(set(times))
    assert times[0] == 1000.0
    assert len(times) > 400
