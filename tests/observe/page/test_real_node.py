"""The observer page with the real server, on a program that runs, blocks and crashes."""

import base64
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.observe.browser import ROOT, Tab, open_tab
from tests.support import short_directory

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

class Hostile(Actor):
    async def init(self):
        self.send_every(0.5, self.pid, "work")

    async def handle_message(self, message, sender):
        self.log.warning("<script>alert(1)</script>", **{"__proto__": "<b>", "toString": "<i>"})

    def handle_inspect(self, *items):
        return {"<img src=x onerror=alert(1)>": "<a href='javascript:alert(1)'>"}

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
        for name in ("__proto__", "constructor", "<svg onload=alert(1)>"):
            kind = type(name, (Hostile,), {})
            await node.spawn(kind, name=f"{name} <img src=x onerror=alert(1)>")
        print(observe.url, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@contextmanager
def started(*command: str, says: str, **variables: str) -> Iterator[str]:
    """A program that has printed a text; the value is the text that the pattern found."""
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    ) as program:
        try:
            assert program.stdout is not None
            said = ""
            for line in program.stdout:
                said += line
                if found := re.search(says, line):
                    yield found[0]
                    return
            raise AssertionError(f"the program did not print {says}: {said}")
        finally:
            program.kill()


def served(*command: str, **variables: str) -> AbstractContextManager[str]:
    """The address of the page that a program serves."""
    return started(*command, says=r"http://\S+#token=\S+", **variables)


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
            await tab.has("306 processes", ".about")
            await tab.read("document.querySelector('.find').focus()")
            await tab.type("<img src=x")
            await tab.has("3 of 306", ".about")
            for name in ("__proto__", "constructor", "<svg onload=alert(1)>"):
                await tab.has(f"{name} <img src=x onerror=alert(1)>", ".scroller")
            number = await tab.read("page.store.get('rows').order[0]")
            await tab.read(f"page.go('process/{number}/inspect')")
            await tab.has("<a href='javascript:alert(1)'>", ".facts")
            await tab.read("page.go('log')")
            await tab.has("<script>alert(1)</script>", ".log")
            await tab.has("__proto__='<b>'", ".log")
            assert (
                await tab.read(
                    "document.querySelectorAll('script, .view :is(img, a[href^=j])').length"
                )
                == 1
            )
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


async def see_the_chat(tab: Tab) -> None:
    """The demonstration: a chat whose room has crashed once, and metrics over UDP."""
    await tab.read("page.go('tree')")
    for name in ("chat", "room", "metrics", "TCPServer", "UDPServer", "1 restart"):
        await tab.has(name, ".tree")
    await tab.read("page.go('crashes')")
    await tab.has("RuntimeError: bob asked for it", ".traceback")
    await tab.read("page.go('processes')")
    await tab.has("Session", ".scroller")


async def see_the_gateway(tab: Tab) -> None:
    """The gateway: a pipeline with a database, a decoder with its device, two intakes."""
    await tab.read("page.go('tree')")
    for name in ("readings", "decoder", "BlockingCalls", "Program", "UDPServer", "TCPServer"):
        await tab.has(name, ".tree")
    await tab.read("page.go('threads')")
    await tab.has("Readers: each blocks for a meta-process")
    await tab.has("ergo-tcp-accept")


@pytest.mark.browser
@pytest.mark.parametrize("example", ["demo", "gateway"])
async def test_the_page_is_open_on_an_example(devtools: str, example: str, tmp_path: Path) -> None:
    command, says = {
        "demo": (["-m", "examples.demo"], "ergo "),
        "gateway": (["-m", "examples.gateway", "serve", str(tmp_path / "db"), "0", "0"], "udp at"),
    }[example]
    with short_directory() as place:
        place.chmod(0o700)
        variables = {"XDG_RUNTIME_DIR": str(place), "DEMO_SECONDS": "600", "PYTHONUNBUFFERED": "1"}
        with (
            started(*command, says=says, **variables),
            served("-m", "ergo_py", "observe", example, "--port", "0", **variables) as address,
        ):
            async with open_tab(devtools, name=example) as tab:
                await tab.open(address)
                await tab.has(f"{example}@localhost", ".nodes")
                await tab.until("document.querySelectorAll('.plain tbody tr').length > 5")
                await (see_the_chat if example == "demo" else see_the_gateway)(tab)


async def find_in_the_tree(tab: Tab, name: str) -> tuple[str, str]:
    """Wait until the tree shows a process; the selector of its line, and the name above it."""
    await tab.read("page.go('tree')")
    found = await tab.until(
        "(() => { const named = (line) => line.querySelector('.tree-name').textContent;"
        " const level = (line) => Number(line.getAttribute('aria-level'));"
        " const lines = [...document.querySelectorAll('.tree-line')];"
        f" const place = lines.findIndex((line) => named(line) === {name!r});"
        " const line = lines[place];"
        " const above = lines.slice(0, place).findLast((each) => level(each) < level(line));"
        " return ['#' + line.id, named(above)] })()"
    )
    selector, above = found
    return selector, above


@pytest.mark.browser
async def test_a_device_of_the_demonstration_is_killed_on_the_page_and_comes_back(
    devtools: str,
) -> None:
    with short_directory() as place:
        place.chmod(0o700)
        variables = {"XDG_RUNTIME_DIR": str(place), "PYTHONUNBUFFERED": "1"}
        with served("-m", "ergo_py", "demo", "--no-browser", **variables) as address:
            async with open_tab(devtools, name="demo-kill") as tab:
                await tab.open(address)
                line, supervisor = await find_in_the_tree(tab, "pump")
                await tab.read(f"document.querySelector({line!r}).click()")
                await tab.until("location.hash.startsWith('#/process/')")
                killed = await tab.read("location.hash")

                # By the keyboard: the figures above the buttons come and go, and move them.
                await tab.until("document.querySelector('.tools .danger')")
                await tab.read("document.querySelector('.tools .danger').focus()")
                await tab.key("Enter")
                await tab.has("Kill: pump?", "dialog")
                await tab.read("document.querySelector('dialog .danger').focus()")
                await tab.key("Enter")
                await tab.until("!document.querySelector('dialog').open")

                line, above = await find_in_the_tree(tab, "pump")
                await tab.has("1 restart", line)
                await tab.read(f"document.querySelector({line!r}).click()")
                await tab.until(
                    f"location.hash.startsWith('#/process/') && location.hash !== {killed!r}"
                )
                await tab.has("pump", ".view")
                assert (supervisor, above) == ("devices", "devices")
