"""Nodes beside other loops: uvicorn, IPython, notebooks, trio-asyncio, guest mode and a window."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import trio

from ergo_py import Actor, Caller, MetaProcess, Shutdown, open_node
from examples.guide.guest import trio_in_asyncio
from tests.examples.programs import ROOT

takes_seconds = pytest.mark.skipif(
    "ERGO_TEST_LOOPS" not in os.environ,
    reason="takes seconds: python -m benchmarks test-loops runs it",
)

# -- FastAPI under uvicorn -------------------------------------------------------------------------


async def post(port: int, path: str) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"POST {path} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)
    finally:
        writer.close()
        await writer.wait_closed()


def test_fastapi_under_uvicorn_serves_many_requests_at_once() -> None:
    uvicorn: Any = pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    from examples.loops.fastapi_app import app

    async def main() -> list[tuple[int, Any]]:
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="on"))
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        answers = await asyncio.gather(*(post(port, "/orders/apple/3") for _ in range(300)))
        answers.append(await post(port, "/orders/apple/1000"))
        server.should_exit = True
        await serving
        return answers

    *orders, refused = asyncio.run(main())
    assert {status for status, _ in orders} == {200}
    # One actor owns the number, so no two requests have seen the same.
    assert sorted(body["left"] for _, body in orders) == list(range(100, 1000, 3))
    assert refused == (409, {"detail": "not enough of apple"})


# -- prompts ---------------------------------------------------------------------------------------

CELLS = [
    """
    from ergo_py import Actor
    from ergo_py.aio import open_node
    class Counter(Actor):
        total = 0
        def handle_message(self, message, sender):
            self.total += message
        def handle_call(self, request, caller):
            return self.total
    opened = open_node(log_output="none")
    node = await opened.__aenter__()
    counter = await node.spawn(Counter)
    """,
    "node.send(counter, 3)",
    "total = await node.call(counter, 'total')\nprint('total', total)",
    "await opened.__aexit__(None, None, None)",
]


def test_ipython_awaits_the_verbs_of_a_node() -> None:
    pytest.importorskip("IPython")
    program = f"""
        import textwrap
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        for cell in {CELLS!r}:
            shell.run_cell(textwrap.dedent(cell)).raise_error()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "IPYTHONDIR": os.devnull, "HOME": os.devnull},
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["total 3"]), done.stderr


def test_the_notebook_of_the_examples_runs_in_jupyter() -> None:
    pytest.importorskip("ipykernel")
    pytest.importorskip("nbclient")
    program = "import sys, json, nbclient, nbformat; n = nbformat.read(sys.argv[1], 4); "
    program += "nbclient.NotebookClient(n, timeout=60, kernel_name='python3').execute(); "
    program += "print(json.dumps([each for cell in n.cells for each in cell.get('outputs', ())]))"

    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT / "examples/notebook/first_steps.ipynb")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    # A warning on a busy machine is an output without data.
    outputs = json.loads(done.stdout.splitlines()[-1])
    shown = [each["data"] for each in outputs if "data" in each]
    kinds = [data.get("text/html", data["text/plain"])[:5] for data in shown]
    assert kinds == ["10", "<pre>", "<tabl", "30", "<tabl"]


@takes_seconds
def test_trio_asyncio_runs_coroutines_of_asyncio_in_a_callback() -> None:
    # In a program of its own: the import replaces the event loop policy of asyncio.
    done = subprocess.run(
        [sys.executable, "examples/loops/with_trio_asyncio.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


# -- guest mode ------------------------------------------------------------------------------------


class Reader(MetaProcess):
    def start(self) -> None:
        for number in range(20):
            self.send(self.parent, number)
        trio.from_thread.run(trio.sleep_forever)


class Collector(Actor):
    def __init__(self) -> None:
        self.heard: list[int] = []

    async def init(self) -> None:
        await self.spawn_meta(Reader())

    def handle_message(self, message: int, sender: Any) -> None:
        self.heard.append(message)

    async def handle_call(self, request: str, caller: Caller) -> int:
        if request == "crash":
            raise LookupError("as asked")
        await trio.sleep(0.001)
        return len(self.heard)


def test_a_node_runs_as_a_guest_of_asyncio() -> None:
    async def guest() -> tuple[int, Any]:
        heard, reason = 0, None
        async with open_node(log_output="none") as node:
            pid = await node.spawn(Collector)
            while (heard := await node.call(pid, "count")) < 20:  # noqa: ASYNC110
                await trio.sleep(0.001)
            node.send_exit(pid)
            reason = await node.wait_ended(pid)
        return heard, reason

    async def host() -> tuple[Any, int]:
        running, ticks = asyncio.create_task(trio_in_asyncio(guest)), 0
        while not running.done():
            await asyncio.sleep(0)
            ticks += 1
        return await running, ticks

    result, ticks = asyncio.run(host())
    assert result == (20, Shutdown())
    assert ticks > 5


def test_an_exception_and_a_cancellation_leave_a_guest_through_its_host() -> None:
    async def fail() -> None:
        async with open_node(log_output="none") as node:
            await node.call(await node.spawn(Collector), "crash")

    async def stop() -> str:
        with trio.CancelScope() as scope:
            async with open_node(log_output="none") as node:
                await node.spawn(Collector)
                asyncio.get_running_loop().call_later(0.01, scope.cancel)
                await trio.sleep_forever()
        return "stopped"

    with pytest.raises(Exception, match="as asked"):
        asyncio.run(trio_in_asyncio(fail))
    assert asyncio.run(trio_in_asyncio(stop)) == "stopped"


@takes_seconds
@pytest.mark.skipif(shutil.which("Xvfb") is None, reason="needs a virtual display: Xvfb")
def test_a_window_and_a_node_share_the_main_thread() -> None:
    pytest.importorskip("tkinter")
    reading, writing = os.pipe()
    # Xvfb chooses a free display, and writes its number.
    with subprocess.Popen(
        ["Xvfb", "-displayfd", str(writing), "-screen", "0", "200x200x8", "-nolisten", "tcp"],
        pass_fds=[writing],
        stderr=subprocess.DEVNULL,
    ) as display:
        os.close(writing)
        with open(reading, encoding="ascii") as numbers:
            number = numbers.readline().strip()
        try:
            done = subprocess.run(
                [sys.executable, "examples/loops/window.py", "3"],
                cwd=ROOT,
                env={**os.environ, "DISPLAY": f":{number}"},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            display.terminate()
    assert (done.returncode, done.stdout) == (0, "counted: 3\n"), done.stderr
