"""A real browser in a test: Chromium, driven by its DevTools protocol over `WebSocketClient`."""

import base64
import json
import os
import re
import shutil
import struct
import subprocess
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio

from ergo_py import PID, Actor, open_node
from ergo_py.web import WS, WebSocketClient
from tests.support import short_directory

__all__ = ["AXE", "CHROMIUM", "FOUND", "Tab", "open_tab", "start_chromium"]

ROOT = Path(__file__).parent.parent.parent
AXE = ROOT / ".axe" / "package" / "axe.min.js"
"""The accessibility checker, which `make browser` fetches."""
FAILED = ROOT / ".browser-failures"
"""Pictures of failed stories."""
FOUND = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
CHROMIUM = next(filter(None, FOUND), None)
KEYS = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32, "PageDown": 34, "PageUp": 33, "End": 35}
KEYS |= {"Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


@contextmanager
def start_chromium() -> Iterator[str]:
    """Start Chromium with an empty profile; the value is the address of its DevTools."""
    assert CHROMIUM is not None
    with short_directory() as profile:
        command = [
            *(CHROMIUM, "--headless=new", "--disable-dev-shm-usage", "--disable-gpu"),
            *("--remote-debugging-port=0", f"--user-data-dir={profile}", "--hide-scrollbars"),
            *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
            *("--force-color-profile=srgb", "--font-render-hinting=none", "--mute-audio"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            "about:blank",
        ]
        with subprocess.Popen(
            command,
            env={**os.environ, "TMPDIR": str(profile)},
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        ) as program:
            try:
                assert program.stderr is not None
                said = ""
                for line in program.stderr:
                    said += line
                    if found := re.search(r"DevTools listening on (ws://\S+)", line):
                        yield found[1]
                        return
                raise RuntimeError(f"Chromium ended:\n{said}")
            finally:
                program.kill()


class Line(Actor):
    """Owns the connection to Chromium, and passes its messages on."""

    def __init__(self, url: str, inbox: trio.MemorySendChannel[dict[str, Any]]) -> None:
        self.url = url
        self.inbox = inbox

    async def init(self) -> None:
        client = WebSocketClient(self.url, max_message=256 << 20, ping_interval=3600)
        self.client = await self.spawn_meta(client)

    def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case WS.Text(_, text):
                self.inbox.send_nowait(json.loads(text))
            case WS.Disconnected():
                self.inbox.close()
            case WS.Connected():
                pass
            case dict():
                self.send(self.client, WS.Send(json.dumps(message)))


class Tab:
    """A page of the browser, in a context of its own: no other page shares its storage."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._news = trio.Condition()
        self.session = ""
        self.traced: list[dict[str, Any]] = []
        """What the browser's own tracing has noted, after Tracing.start and Tracing.end."""
        self.has_traced = trio.Event()
        self.problems: list[str] = []
        """Everything that the console and the browser's log said."""

    async def listen(self, inbox: trio.MemoryReceiveChannel[dict[str, Any]]) -> None:
        """Take the messages of Chromium."""
        async for message in inbox:
            async with self._news:
                if "id" in message:
                    self._answers[message["id"]] = message
                else:
                    self._notice(message["method"], message["params"])
                self._news.notify_all()

    def _notice(self, method: str, facts: dict[str, Any]) -> None:
        match method:
            case "Runtime.consoleAPICalled":
                words = [part.get("value", part.get("description")) for part in facts["args"]]
                self.problems.append(f"console.{facts['type']}: {words}")
            case "Runtime.exceptionThrown":
                details = facts["exceptionDetails"]
                self.problems.append(str(details.get("exception", details).get("description")))
            case "Tracing.dataCollected":
                self.traced += facts["value"]
            case "Tracing.tracingComplete":
                self.has_traced.set()
            case "Log.entryAdded":
                entry = facts["entry"]
                self.problems.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")

    async def do(self, method: str, **arguments: object) -> dict[str, Any]:
        """Give a command of the DevTools protocol."""
        self._number += 1
        number = self._number
        session = {"sessionId": self.session} if self.session else {}
        self._send({"id": number, "method": method, "params": arguments, **session})
        with trio.fail_after(120):
            async with self._news:
                while number not in self._answers:
                    await self._news.wait()
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    async def read(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        found = await self.do(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, (expression, found["exceptionDetails"])
        return found["result"].get("value")

    async def open(self, url: str) -> None:
        """Go to an address, and wait until the page has loaded."""
        await self.do("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def until(self, condition: str) -> Any:
        """Wait until an expression is true, which is asked again and again in the page."""
        look = (
            f"new Promise(done => {{ const look = () => {{ let value; try {{ value = ({condition});"
            " } catch { value = null } if (value) done(value); else setTimeout(look, 30) };"
            " look() })"
        )
        try:
            with trio.fail_after(90):
                return await self.read(look)
        except trio.TooSlowError:
            text = await self.read("document.body.innerText.slice(0, 3000)")
            raise AssertionError(f"never true: {condition}\n{self.problems}\n{text}") from None

    async def text(self, selector: str = "body") -> str:
        """The text of an element, as it is shown."""
        return str(await self.until(f"document.querySelector({selector!r}).innerText || ' '"))

    async def has(self, text: str, selector: str = "body") -> None:
        """Wait until an element shows a text."""
        wanted, place = json.dumps(text), json.dumps(selector)
        await self.until(f"document.querySelector({place}).innerText.includes({wanted})")

    async def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element."""
        middle = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'nearest'}); const r = e.getBoundingClientRect();"
            " return r.width && [r.x + r.width / 2, r.y + r.height / 2] })()"
        )
        x, y = await self.until(middle)
        for kind in ("mousePressed", "mouseReleased"):
            await self.do(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )

    async def key(self, name: str, times: int = 1) -> None:
        """Press a key."""
        facts: dict[str, object] = {"key": name, "code": name}
        if name in KEYS:
            facts["windowsVirtualKeyCode"] = KEYS[name]
        if name in ("Enter", " "):
            facts["text"] = "\r" if name == "Enter" else " "
        for _ in range(times):
            await self.do("Input.dispatchKeyEvent", type="keyDown", **facts)
            await self.do("Input.dispatchKeyEvent", type="keyUp", **facts)

    async def type(self, text: str) -> None:
        """Type a text into the element that has the focus."""
        await self.do("Input.insertText", text=text)

    async def size(self, width: int, height: int, zoom: float = 1.0) -> None:
        """The size of the window; a zoom of 2 shows everything twice as large."""
        await self.do(
            "Emulation.setDeviceMetricsOverride",
            width=round(width / zoom),
            height=round(height / zoom),
            deviceScaleFactor=zoom,
            mobile=width < 600,
        )

    async def prefer(self, colours: str = "light", motion: str = "no-preference") -> None:
        """The settings of the user: light or dark, reduced motion or not."""
        features = {"prefers-color-scheme": colours, "prefers-reduced-motion": motion}
        listed = [{"name": name, "value": value} for name, value in features.items()]
        await self.do("Emulation.setEmulatedMedia", features=listed)

    async def picture(
        self, selector: str | None = None, scale: float = 1.0, kind: str = "png"
    ) -> bytes:
        """A picture of the window, or of the visible part of an element."""
        clip = {}
        if selector is not None:
            box = await self.read(
                f"(() => {{ const r = document.querySelector({json.dumps(selector)})"
                ".getBoundingClientRect(); const x = Math.max(0, r.x), y = Math.max(0, r.y);"
                " return {x, y, width: Math.min(innerWidth, r.right) - x,"
                " height: Math.min(innerHeight, r.bottom) - y} })()"
            )
            clip = {"clip": {**box, "scale": scale}}
        taken = await self.do("Page.captureScreenshot", format=kind, **clip)
        return base64.b64decode(taken["data"])

    async def painted(self, selector: str, share: float = 0.01) -> None:
        """Wait until a share of an element's pixels differs from its commonest colour."""
        for _ in range(100):
            pixels = read_pixels(await self.picture(selector, 0.12))
            [(_, common)] = Counter(pixels).most_common(1)
            if 1 - common / len(pixels) >= share:
                return
        raise AssertionError(f"{selector} stays empty")

    async def axe(self) -> list[str]:
        """The faults that axe-core finds; none if it was not fetched."""
        if not AXE.exists():
            return []
        await self.do("Runtime.evaluate", expression=AXE.read_text(encoding="utf-8"))
        run = "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.map("
        pick = "v => v.id + ': ' + v.help + ' ' + v.nodes.map(n => n.html).slice(0, 3).join(' | ')"
        faults: list[str] = await self.read(f"{run}{pick}))")
        return faults


def read_pixels(png: bytes) -> list[bytes]:
    """The pixels of a PNG of 8 bits for each colour."""
    width, height, _, kind = struct.unpack(">IIBB", png[16:26])
    step = {2: 3, 6: 4}[kind]
    data, at = b"", 8
    while at < len(png):
        size, name = struct.unpack(">I4s", png[at : at + 8])
        data += png[at + 8 : at + 8 + size] if name == b"IDAT" else b""
        at += size + 12
    raw, above, pixels = zlib.decompress(data), bytearray(width * step), list[bytes]()
    for row in range(height):
        begin = row * (width * step + 1)
        rule, line = raw[begin], bytearray(raw[begin + 1 : begin + 1 + width * step])
        for i in range(len(line)):
            left = line[i - step] if i >= step else 0
            corner = above[i - step] if i >= step else 0
            line[i] = line[i] + _guess(rule, left, above[i], corner) & 255
        pixels += [bytes(line[i : i + step]) for i in range(0, len(line), step)]
        above = line
    return pixels


def _guess(rule: int, left: int, up: int, corner: int) -> int:
    if rule == 4:
        near = left + up - corner
        return min((left, up, corner), key=lambda value: abs(near - value))
    return (0, left, up, (left + up) // 2)[rule]


@asynccontextmanager
async def open_tab(
    devtools: str, *, width: int = 1440, height: int = 900, name: str = "page"
) -> AsyncIterator[Tab]:
    """A tab of the browser. When the story has ended, its console must be empty, without a report
    of the content security policy, and axe-core must find no fault. A picture of a story that
    failed is kept in ``.browser-failures``.
    """
    outbox, inbox = trio.open_memory_channel[dict[str, Any]](10_000)
    async with (
        open_node("browser@localhost", watchdog=None) as node,
        trio.open_nursery() as nursery,
    ):
        line = await node.spawn(Line, devtools, outbox)
        tab = Tab(lambda message: node.send(line, message))
        nursery.start_soon(tab.listen, inbox)
        context = (await tab.do("Target.createBrowserContext"))["browserContextId"]
        made = await tab.do("Target.createTarget", url="about:blank", browserContextId=context)
        joined = await tab.do("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        tab.session = joined["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await tab.do(f"{domain}.enable")
        await tab.do("Emulation.setTimezoneOverride", timezoneId="UTC")
        await tab.size(width, height)
        try:
            yield tab
            assert tab.problems == []
            assert await tab.axe() == []
        except BaseException:
            with trio.CancelScope(shield=True), trio.move_on_after(20):
                FAILED.mkdir(exist_ok=True)
                (FAILED / f"{name}.png").write_bytes(await tab.picture())
            raise
        finally:
            tab.session = ""
            with trio.CancelScope(shield=True), trio.move_on_after(20):
                await tab.do("Target.disposeBrowserContext", browserContextId=context)
            nursery.cancel_scope.cancel()
