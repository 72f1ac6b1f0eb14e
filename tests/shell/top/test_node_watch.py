"""Following a node: a node that is silent, speaks nonsense, ends, or cancels."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ergo_py.blocking.loop_thread import open_node
from ergo_py.control.protocol import ControlError
from ergo_py.shell.node_choice import choose
from ergo_py.shell.top import node_watch
from ergo_py.shell.top.node_watch import Connection, NodeWatch, Request
from tests.actors import Recorder

GREETING = {"ergo": 1, "node": "view@here", "os_pid": 1, "may": ["look"]}
NOTHING = {
    "rows": [],
    "found": 0,
    "alive": 0,
    "mailbox": 0,
    "rate": 0.0,
    "at": 0.0,
    "blocked": None,
}
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def said(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


@asynccontextmanager
async def listening(path: Path, serve: Serve) -> AsyncIterator[None]:
    """A control socket of the test's own."""
    server = await asyncio.start_unix_server(serve, str(path))
    try:
        yield
    finally:
        server.close()


class Listener:
    """Notes the rows and the troubles."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.heard: list[str] = []
        self.answers: list[dict[str, Any]] = []
        self.watch = NodeWatch(
            path,
            "view@here",
            1,
            interval=0.05,
            request=Request(),
            on_rows=lambda _, answer: self.answers.append(answer),
            on_trouble=self.heard.append,
            **options,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self.watch.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def hears(self, text: str) -> None:
        async with asyncio.timeout(60):
            while not any(text in line for line in self.heard):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)

    async def gets(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.answers) < count:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)


def test_a_node_that_does_not_answer_is_reported_and_waited_for(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_watch, "_SILENCE", 0.05)
    path = runtime_directory / "node"

    async def story() -> None:
        speaks = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said(GREETING))
            while line := await reader.readline():
                await speaks.wait()
                writer.write(said({"id": json.loads(line)["id"], "ok": True, "result": NOTHING}))
            writer.close()

        async with listening(path, serve):
            listener = Listener(path)
            async with listener.running():
                await listener.hears("view@here has not answered for 0 s: its program is stopped")
                assert listener.answers == []
                speaks.set()
                await listener.gets(2)

    asyncio.run(story())


def test_a_program_that_does_not_even_greet_is_tried_again(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_watch, "GREETING", 0.1)
    path = runtime_directory / "node"

    async def story() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with listening(path, serve):
            listener = Listener(path)
            async with listener.running():
                await listener.hears("view@here does not answer: its program is stopped")
        # The socket of a killed program: nothing listens there.
        listener = Listener(path)
        async with listener.running():
            await listener.hears("view@here has ended; the view waits for it to start again")

    asyncio.run(story())


@pytest.mark.parametrize(
    "answer", [b"no JSON\n", b"[1]\n", b'{"id": 1, "ok": false, "error": 5}\n', b"x" * 100]
)
def test_nonsense_counts_as_the_end_of_the_connection(
    runtime_directory: Path, answer: bytes
) -> None:
    path = runtime_directory / "node"

    async def story() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said(GREETING))
            await reader.readline()
            writer.write(answer)
            writer.close()

        async with listening(path, serve):
            listener = Listener(path)
            async with listener.running():
                await listener.hears("view@here has ended")

    asyncio.run(story())


def test_too_long_a_line_ends_the_connection(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ergo_py.control.conversation.MAX_ANSWER", 1000)
    path = runtime_directory / "node"

    async def story() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said(GREETING))
            await reader.readline()
            writer.write(b"x" * 5000)
            await writer.drain()
            writer.close()

        async with listening(path, serve):
            connection = await Connection.open(path)
            with pytest.raises(ConnectionError, match="more than the protocol allows"):
                await connection.ask("ps")
            connection.close()

    asyncio.run(story())


def test_a_refusal_for_lack_of_permission_ends_the_view() -> None:
    async def story() -> None:
        link = choose("view", None)
        link.close()
        listener = Listener(link.path)
        with pytest.raises(ControlError, match="ps needs the permission 'look'"):
            await listener.watch.run()

    with open_node("view@here", control="act", log_output="none", watchdog=None):
        asyncio.run(story())


def test_a_cancelled_request_is_cancelled_at_the_node_and_the_next_is_answered() -> None:
    async def story() -> None:
        link = choose("view", None)
        link.close()
        connection = await Connection.open(link.path)
        try:
            lines: list[str] = []
            traced = asyncio.ensure_future(
                connection.ask("trace", lines.append, to="recorder", seconds=600)
            )
            while not lines:
                node.send("recorder", 1)
                await asyncio.sleep(0.02)
            traced.cancel()
            # The next request comes before the cancelled task has run. The node serves a connection
            # in sequence: it answers once the trace has ended.
            async with asyncio.timeout(60):
                found = await connection.ask("info", to="recorder")
            # A cancellation that comes when the request is done does no harm.
            asked = asyncio.ensure_future(connection.ask("ps"))
            await asyncio.sleep(0.2)
            asked.cancel()
            await asyncio.wait([asked])
            again = await connection.ask("info", to="recorder")
        finally:
            connection.close()

        assert (found["behaviour"], again["behaviour"]) == ("Recorder", "Recorder")

    with open_node("view@here", control="look", log_output="none", watchdog=None) as node:
        node.spawn(Recorder, name="recorder")
        asyncio.run(story())


def test_a_node_that_refuses_for_now_says_why_and_is_asked_again(runtime_directory: Path) -> None:
    path = runtime_directory / "node"

    async def story() -> None:
        refusals = iter([{"error": {"code": "busy", "text": "32 clients are too many"}}])

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said(next(refusals, GREETING)))
            while line := await reader.readline():
                writer.write(said({"id": json.loads(line)["id"], "ok": True, "result": NOTHING}))
            writer.close()

        async with listening(path, serve):
            listener = Listener(path)
            async with listener.running():
                await listener.gets(1)
                assert listener.heard == ["32 clients are too many"]

    asyncio.run(story())
