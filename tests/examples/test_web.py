"""The chat of `examples/web`: REST, WebSockets and events reach each other, and a crash of the room
closes no connection.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest
import trio

from ergo_py import Node, open_node
from ergo_py.handover.channel import socket_path
from ergo_py.shell.cli import main as ergo
from examples.web.chat import Chat, Say
from tests.web.rig import Peer, get, post, until
from tests.web.test_websocket import Client, upgrade


@asynccontextmanager
async def chatting() -> AsyncIterator[tuple[Node, int]]:
    async with open_node("chat@localhost", log_output="none") as node:
        await node.spawn(Chat, 0, name="chat")
        yield node, await node.call("door", "port")


async def dial(port: int) -> Peer:
    return Peer(await trio.open_tcp_stream("127.0.0.1", port))


def line(name: str, text: str) -> bytes:
    return json.dumps({"name": name, "text": text}).encode()


async def test_a_line_reaches_rest_websockets_and_events() -> None:
    async with chatting() as (_, port):
        rest, talk, events = [await dial(port) for _ in range(3)]
        assert (await talk.ask(upgrade("/talk?name=ann"))).status == 101
        client = Client(talk)
        await events.send(get("/messages/events"))
        assert (await events.head()).headers["content-type"] == "text/event-stream"
        assert (await rest.ask(post("/messages", line("bob", "hi")))).status == 201
        assert json.loads((await client.next())[1]) == {"name": "bob", "text": "hi"}
        await client.send(1, b"hello")
        assert json.loads((await client.next())[1]) == {"name": "ann", "text": "hello"}
        first = await events.until(b"\n\n")
        assert b'"text": "hi"' in first
        assert b'"text": "hello"' in await events.until(b"\n\n")
        lines = json.loads((await rest.ask(get("/messages"))).body)
        assert [each["text"] for each in lines] == ["hi", "hello"]
        assert b"<!doctype html>" in (await rest.ask(get())).body
        assert (await rest.ask(get("/nowhere"))).status == 404
        for peer in (rest, talk, events):
            await peer.aclose()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"name": 1, "text": "x"}', line("a", "x" * 1_001)])
async def test_a_wrong_line_is_refused(body: bytes) -> None:
    async with chatting() as (_, port):
        peer = await dial(port)
        assert (await peer.ask(post("/messages", body))).status == 400
        await peer.aclose()


async def test_a_crash_of_the_room_closes_no_connection() -> None:
    async with chatting() as (node, port):
        talk = await dial(port)
        assert (await talk.ask(upgrade("/talk?name=ann"))).status == 101
        before = node.whereis("room")
        assert before is not None
        node.kill(before)
        await until(lambda: node.whereis("room") not in (None, before))
        client = Client(talk)
        with trio.fail_after(30):
            while True:
                # The visitor joins the new room in a moment.
                node.send("room", Say("x", "again"))
                with trio.move_on_after(0.1):
                    assert json.loads((await client.next())[1])["text"] == "again"
                    break
        await talk.aclose()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_is_a_client() -> None:
    async with chatting() as (_, port):
        command = [
            "curl",
            "-s",
            "-d",
            line("c", "url").decode(),
            f"http://127.0.0.1:{port}/messages",
        ]
        await trio.run_process(command)
        done = await trio.run_process(
            ["curl", "-s", f"http://127.0.0.1:{port}/messages"], capture_stdout=True
        )

    assert isinstance(done, subprocess.CompletedProcess)
    assert json.loads(done.stdout) == [{"name": "c", "text": "url"}]


VERSIONS = """
import sys
from pathlib import Path

import trio

from ergo_py import ChildSpec, run
from ergo_py.web import HTTPRequest, Response
from examples.web.chat import Door, Room

class NextRoom(Room):
    def handle_call(self, request, caller):
        if isinstance(request, HTTPRequest) and request.method == "GET":
            return Response.json({"version": 2, "texts": [line.text for line in self.lines]})
        return super().handle_call(request, caller)

room = {"1": Room, "2": NextRoom}[Path(sys.argv[1]).read_text(encoding="utf-8")]

async def main(node, task_status):
    await node.supervise([ChildSpec("room", room), ChildSpec("door", Door, 0)])
    print(await node.call("door", "port"), flush=True)
    task_status.started()
    await trio.sleep_forever()

run(main, handover="chat", log_output="none")
"""


def test_two_versions_of_the_chat_replace_each_other_without_a_failed_request(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    version = short_path / "version"
    version.write_text("1", encoding="utf-8")
    answers, stop = list[object](), threading.Event()
    command = [sys.executable, "-c", VERSIONS, str(version)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        port = int(first.stdout.readline())
        # The program is ready for a successor a moment after its main function has started.
        while not socket_path("chat").exists():
            assert first.poll() is None
            time.sleep(0.01)

        def ask(method: str, body: bytes | None = None) -> tuple[int, bytes]:
            while True:
                with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as peer:
                    peer.connect()
                    try:
                        peer.request(method, "/messages", body)
                        answer = peer.getresponse()
                    except (BrokenPipeError, ConnectionResetError):
                        # The old program has closed a connection on which it had no request yet,
                        # so that the request was not served: clients of HTTP repeat it.
                        continue
                    return answer.status, answer.read()

        def say() -> None:
            while not stop.is_set():
                try:
                    answers.append(ask("POST", line("ann", str(len(answers)))))
                except OSError as error:
                    answers.append(error)

        saying, said = threading.Thread(target=say), ""
        saying.start()
        try:
            version.write_text("2", encoding="utf-8")
            status, said = ergo(["upgrade", "chat"]), capsys.readouterr().out
            stop.set()
            saying.join()

            kept = [str(number) for number in range(len(answers))][-100:]
            assert (status, json.loads(ask("GET")[1])) == (0, {"version": 2, "texts": kept})
            assert set(answers) == {(201, b"")}
            assert first.wait(60) == 0
        finally:
            stop.set()
            if first.poll() is None:
                first.kill()
            if second := said.partition("process ")[2].split()[:1]:
                with suppress(ProcessLookupError):
                    os.kill(int(second[0]), signal.SIGTERM)
            saying.join()
        first.stdout.read()  # the end of the second closes the pipe, too
