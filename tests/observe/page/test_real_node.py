"""The observer page with the real server, on a program that runs, blocks and crashes."""

import base64
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.observe.browser import ROOT, open_tab

PROGRAM = """
import time
import trio
from ergo_py import Actor, ChildSpec, open_node
from ergo_py.observe import Observe

class Worker(Actor):
    async def init(self):
        self.send_every(0.2, self.pid, "work")

    async def handle_message(self, message, sender):
        pass

class Flaky(Worker):
    async def handle_message(self, message, sender):
        raise ValueError("no such order <b>81723</b>")

class Blocker(Actor):
    async def init(self):
        self.send_every(6.0, self.pid, "block")

    async def handle_message(self, message, sender):
        time.sleep(4)

async def main():
    observe = Observe(port=0, permit="look,act")
    async with open_node("real@localhost", beside=[observe]) as node:
        children = [ChildSpec("blocker", Blocker), ChildSpec("flaky", Flaky)]
        await node.supervise(children, name="root", intensity=10_000)
        for number in range(300):
            await node.spawn(Worker, name=f"worker-{number}")
        print(observe.url, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@contextmanager
def served(*command: str) -> Iterator[str]:
    """The address of the page that a program serves."""
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    ) as program:
        try:
            assert program.stdout is not None
            said = ""
            for line in program.stdout:
                said += line
                if found := re.search(r"http://\S+#token=\S+", line):
                    yield found[0]
                    return
            raise AssertionError(f"the program printed no address: {said}")
        finally:
            program.kill()


@pytest.mark.browser
async def test_a_running_node_is_shown_while_it_blocks_and_later_without_it(
    devtools: str, tmp_path: Path
) -> None:
    program, recording = tmp_path / "program.py", tmp_path / "real.ergo"
    program.write_text(PROGRAM, encoding="utf-8")
    with served(str(program)) as address:
        async with open_tab(devtools, name="real") as tab:
            await tab.open(address)
            assert "token" not in await tab.read("location.href")
            await tab.has("The loop has been blocked for", ".alarm-box")
            await tab.has("blocker (Blocker) in handle_message", ".alarm-box")
            await tab.has("time.sleep(4)", ".alarm-box")
            await tab.until("document.querySelector('.alarm-box').hidden")

            await tab.read("page.go('processes')")
            await tab.until("document.querySelectorAll('.tr.row:not(.pending)').length > 15")
            await tab.has("303 processes", ".about")
            await tab.read("page.go('tree')")
            await tab.has("restarts", ".tree")
            await tab.read("page.go('crashes')")
            await tab.has("ValueError: no such order <b>81723</b>", ".traceback")
            await tab.read("page.go('threads')")
            await tab.has("ergo-watchdog")
            await tab.read("page.go('waits')")
            await tab.has("Nobody waits")
            parts = await tab.read(
                "(async () => { const parts = []; let next = 0; while (next !== null) {"
                " const part = await page.store.ask('recording', {from: next});"
                " parts.push(part.data); next = part.next ?? null } return parts })()"
            )
            recording.write_bytes(b"".join(map(base64.b64decode, parts)))

    with served("-m", "ergo_py", "observe", "--port", "0", "--replay", str(recording)) as address:
        async with open_tab(devtools, name="replay") as tab:
            await tab.open(address)
            await tab.has("Recording at", ".top")
            await tab.has("real@localhost", ".nodes")
            await tab.read("document.querySelector('#time input').focus()")
            await tab.key("Home")
            await tab.has("Processes", ".tiles")
            await tab.read(
                "page.store.travel(page.store.columns.at[page.store.columns.blocked.indexOf(1)])"
            )
            await tab.has("blocker", ".alarm-box")
