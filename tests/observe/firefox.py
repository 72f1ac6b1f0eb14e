"""Firefox in a test, driven by WebDriver BiDi over `WebSocketClient`."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import trio

from ergo_py import open_node
from tests.observe.browser import Line, Tab
from tests.support import short_directory

__all__ = ["FIREFOX", "open_firefox"]

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")


@contextmanager
def start_firefox() -> Iterator[str]:
    """Start Firefox with an empty profile; the value is the address of its sessions."""
    assert FIREFOX is not None
    with short_directory() as profile:
        command = [FIREFOX, "--headless", "--remote-debugging-port=0", "--profile", str(profile)]
        environment = {**os.environ, "TZ": "UTC", "TMPDIR": str(profile)}
        with subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
        ) as program:
            try:
                assert program.stderr is not None
                for line in program.stderr:
                    if found := re.search(r"BiDi listening on (ws://\S+)", line):
                        yield f"{found[1]}/session"
                        return
                raise RuntimeError("Firefox ended")
            finally:
                program.kill()


class FirefoxTab(Tab):
    """A page of Firefox."""

    context = ""

    def _notice(self, method: str, facts: dict[str, Any]) -> None:
        if method == "log.entryAdded":
            self.problems.append(f"{facts['level']}: {facts['text']}")

    async def read(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        found = await self.do(
            "script.evaluate",
            expression=f"(async () => JSON.stringify(await ({expression})))()",
            target={"context": self.context},
            awaitPromise=True,
        )
        assert found["type"] == "success", (expression, found)
        return json.loads(found["result"].get("value", "null"))

    async def open(self, url: str) -> None:
        """Go to an address, and wait until the page has loaded."""
        await self.do("browsingContext.navigate", context=self.context, url=url, wait="complete")


@asynccontextmanager
async def open_firefox() -> AsyncIterator[Tab]:
    """A tab of Firefox. When the story has ended, its console must be empty."""
    outbox, inbox = trio.open_memory_channel[dict[str, Any]](10_000)
    with start_firefox() as address:
        async with (
            open_node("firefox@localhost", watchdog=None) as node,
            trio.open_nursery() as nursery,
        ):
            line = await node.spawn(Line, address, outbox)
            tab = FirefoxTab(lambda message: node.send(line, message))
            nursery.start_soon(tab.listen, inbox)
            await tab.do("session.new", capabilities={})
            await tab.do("session.subscribe", events=["log.entryAdded"])
            tab.context = (await tab.do("browsingContext.create", type="tab"))["context"]
            yield tab
            assert tab.problems == []
            nursery.cancel_scope.cancel()
