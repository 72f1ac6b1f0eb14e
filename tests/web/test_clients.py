"""Clients of others: curl, wrk, node's `ws` and a browser. A test is skipped if its client is not
installed; those that take seconds run in ``python -m benchmarks clients`` and ``test-deep`` only.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import PID, Actor, Alias
from ergo_py.web import WS, HTTPRequest, Response, Route
from tests.observe.browser import CHROMIUM, open_tab, start_chromium
from tests.support import THOROUGH
from tests.web.rig import Served, serving

takes_seconds = pytest.mark.skipif(not THOROUGH, reason="python -m benchmarks clients runs it")


class Echo(Actor):
    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case WS.Text(connection, content) | WS.Binary(connection, content):
                self.send(connection, WS.Send(content))


def answer(request: HTTPRequest) -> object:
    match request:
        case HTTPRequest("GET", ("page",)):
            return Response.html(PAGE)
        case HTTPRequest("POST", ("echo",)):
            return Response(200, request.body, {"x-length": str(len(request.body))})
    return Response(200, "hello")


# `open_tab` finds no fault of accessibility in it.
PAGE = """<!doctype html><html lang="en"><title>waiting</title><main><h1>waiting</h1></main><script>
const socket = new WebSocket(`ws://${location.host}/socket`);
socket.onopen = () => socket.send("from the browser");
socket.onmessage = async event => {
  const reply = await fetch("/echo", {method: "POST", body: event.data});
  document.title = `${reply.status} ${await reply.text()}`;
  document.querySelector("h1").textContent = document.title;
};
</script>"""


def found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


def served() -> Any:
    return serving(answer, routes=[Route("/"), Route("/socket", websocket=Echo)])


async def output(served: Served, *command: str, path: str = "") -> str:
    """The output of a program, whose last argument is the URL of the server."""
    url = f"http://127.0.0.1:{served.server.local.port}{path}"
    with trio.fail_after(60):
        done = await trio.run_process(
            [*command, url], capture_stdout=True, stderr=subprocess.DEVNULL
        )
    return done.stdout.decode()


@pytest.mark.no_cover
async def test_curl_sends_a_body_and_keeps_its_connection(tmp_path: Path) -> None:
    curl = found("curl")
    body = tmp_path / "body"
    body.write_bytes(b"x" * 300_000)
    async with served() as server:
        # A body of this length makes curl expect `100 Continue`.
        text = await output(
            server,
            *(curl, "-s", "-D", "-", "-o", str(tmp_path / "back")),
            *("-H", "Expect: 100-continue", "--data-binary", f"@{body}"),
            path="/echo",
        )

    assert "HTTP/1.1 100 Continue" in text
    assert "x-length: 300000" in text
    assert (tmp_path / "back").read_bytes() == body.read_bytes()


@takes_seconds
@pytest.mark.no_cover
async def test_wrk_gets_no_error_over_connections_that_stay_open() -> None:
    wrk = found("wrk")
    async with served() as server:
        text = await output(server, wrk, "-t1", "-c20", "-d1s")
        facts = await server.facts("2xx", "4xx", "5xx")

    assert "Non-2xx" not in text
    assert "Socket errors" not in text
    assert int(facts["2xx"]) > 20
    assert (facts["4xx"], facts["5xx"]) == ("0", "0")


NODE = """
const WebSocket = require("ws");
const socket = new WebSocket(process.argv[1].replace("http", "ws"));
const got = [];
socket.on("open", () => { socket.send("text"); socket.send(Buffer.alloc(70000, 7)); });
socket.on("message", (data, isBinary) => {
  got.push(isBinary ? data.length : data.toString());
  if (got.length == 2) socket.close(3000, "done");
});
socket.on("close", code => { console.log(JSON.stringify([...got, code])); });
"""


@pytest.mark.no_cover
async def test_ws_of_node_talks_to_the_server() -> None:
    node = found("node")
    known = await trio.run_process([node, "-e", 'require("ws")'], capture_stderr=True, check=False)
    if known.returncode:
        pytest.skip("the package ws of node is not installed")
    async with served() as server:
        text = await output(server, node, "-e", NODE, path="/socket")

    assert json.loads(text) == ["text", 70_000, 3000]


@pytest.fixture
def devtools() -> Iterator[str]:
    """The address of a browser."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with start_chromium() as address:
        yield address


@takes_seconds
@pytest.mark.no_cover
async def test_a_browser_uses_websocket_and_fetch(devtools: str) -> None:
    async with served() as server, open_tab(devtools, name="client") as tab:
        await tab.open(f"http://127.0.0.1:{server.server.local.port}/page")
        await tab.until("document.title !== 'waiting'")

        assert await tab.text("h1") == "200 from the browser"
