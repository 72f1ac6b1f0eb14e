"""The pictures of terminals in the documentation: recorded from the programs, and drawn as SVG.

`python -m benchmarks pictures` runs this module. It records `ergo top` on the gateway of
the examples, the demonstration, and `ergo upgrade` of a program with open connections, into
asciicast files (version 2) in ``docs/pictures``, and draws a picture of each recording. A picture
depends on its recording only. ``--only upgrade`` selects a picture; ``--draw`` draws the
pictures again without recording.
"""

import argparse
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import pyte

from tests.shell.terminal import ROOT, Terminal, at_terminal, background
from tests.support import loopback_of_this_program, short_directory

__all__ = ["PICTURES", "Recording", "draw", "read", "record_upgrade"]

FOLDER = ROOT / "docs" / "pictures"
CELL, LINE = 8.4, 18.0
"""Width and height of a character, for a font of 14 pixels."""
EDGE, TOP = 16.0, 38.0
"""The space around the screen, and above it."""
STEP = 4.0
"""Seconds for which each screen of a series is shown."""
STILL = 2.0
"""Longest pause of a scrolling picture in seconds."""
HOLD = 6.0
"""Seconds for which the end of a scrolling picture is shown."""


@dataclass(frozen=True)
class Recording:
    """The output of a program at a terminal, with the time of each part; markers name the screens
    to show.
    """

    title: str
    columns: int
    lines: int
    events: tuple[tuple[float, str, str], ...]

    def write(self, path: Path) -> None:
        head = {"version": 2, "width": self.columns, "height": self.lines, "title": self.title}
        rows = [head, *([round(at, 2), kind, text] for at, kind, text in self.events)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        path.write_text(text, encoding="utf-8")


def read(path: Path) -> Recording:
    head, *events = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return Recording(
        head["title"], head["width"], head["height"], tuple((a, b, c) for a, b, c in events)
    )


# -- recording -------------------------------------------------------------------------------------


class Recorder:
    """Uses a program at a terminal as a person would, and notes its output."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.began = time.monotonic()
        self.events: list[tuple[float, str, str]] = []

    def watch(self, seconds: float) -> None:
        """Note the output for a while, or until the program ends."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            before = len(self.terminal.raw)
            if not select.select([self.terminal.fd], [], [], left)[0]:
                return
            if not self.terminal.receive():
                return
            self.events.append((time.monotonic() - self.began, "o", self.terminal.raw[before:]))

    def wait_for(self, text: str) -> None:
        """Note the output until a text appears."""
        end = time.monotonic() + 120
        while text not in self.terminal.text:
            if time.monotonic() > end:
                raise TimeoutError(f"{text!r} did not appear:\n{self.terminal.text}")
            self.watch(0.2)

    def press(self, keys: str, seconds: float) -> None:
        self.terminal.type(keys)
        self.watch(seconds)

    def mark(self, name: str) -> None:
        """The screen as it is now is to be shown."""
        self.events.append((time.monotonic() - self.began, "m", name))


LOAD = """
from functools import partial
import trio
from examples.gateway.load import Device, fire

async def tcp():
    return "127.0.0.1", 7780

async def udp():
    return "127.0.0.1", 7781

async def main():
    async with trio.open_nursery() as nursery:
        for source in range(4):
            nursery.start_soon(partial(fire, udp, 1000 + source, 10**6, pause=0.3))
            nursery.start_soon(Device(tcp, source, 10**6, pause=0.004 * (source + 1)).deliver)

trio.run(main)
"""
"""Devices that send a few hundred readings a second."""


@contextmanager
def gateway() -> Iterator[None]:
    """The gateway of the examples, with devices that send."""
    with tempfile.TemporaryDirectory() as folder:
        serve = ["-m", "examples.gateway", "serve", f"{folder}/telemetry.db", "7780", "7781"]
        with background(command=serve) as server:
            assert server.stdout is not None
            for intake in ("tcp", "udp"):
                assert server.stdout.readline().startswith(intake)
            with background(command=["-c", LOAD]) as load:
                yield
                assert load.poll() is None


def record_top() -> Recording:
    columns, lines = 112, 28
    with gateway(), at_terminal("top", "gateway", lines=lines, columns=columns) as terminal:
        recorder = Recorder(terminal)
        recorder.wait_for("handled a second")
        recorder.press("r", 22.0)
        recorder.press("\x1b[B", 1.5)
        recorder.mark("the busiest processes")
        recorder.press("/", 0.5)
        recorder.press("decoder", 2.0)
        recorder.press("\r", 0.5)
        recorder.press("\r", 2.0)
        recorder.mark("a process")
        recorder.press("5", 2.0)
        recorder.mark("its messages")
        recorder.press("\x1b", 1.0)
        recorder.press("v", 2.0)
        recorder.mark("the supervision tree")
    return Recording("ergo top gateway", columns, lines, tuple(recorder.events))


def record_demo() -> Recording:
    columns, lines = 96, 26
    command = ["-m", "examples.demo"]
    with at_terminal(
        command=command, lines=lines, columns=columns, DEMO_SECONDS="2", PYTHONWARNINGS="ignore"
    ) as terminal:
        recorder = Recorder(terminal)
        recorder.wait_for("node down in")
    events = []
    for at, kind, text in recorder.events:
        # Another folder on each machine.
        events.append((at, kind, text.replace(f"{ROOT}/", "")))
    return Recording("make demo", columns, lines, tuple(events))


SHOP = """
import sys
import trio
from examples.guide.moved_session import Visitor
from examples.guide.moved_state import Visits
from ergo_py import Actor, ChildSpec, run
from ergo_py.meta import Delimiter, TCPServer

class Door(Actor):
    async def init(self):
        framing = Delimiter(b"\\n", max_frame=4096)
        options = {"sock": "echo", "reader": "task", "receiver": Visitor, "framing": framing}
        await self.spawn_meta(TCPServer(sys.argv[1], 7777, **options))

async def main(node, task_status):
    await node.supervise([ChildSpec("door", Door), ChildSpec("visits", Visits)])
    task_status.started()
    print("up", flush=True)
    await trio.sleep_forever()

run(main, handover="shop", log_output="none")
"""
"""A program of the guides whose connections and state move to its next version."""
GUESTS = """
import itertools, socket, sys, time

def receive(peer, expected):
    while expected:
        got = peer.recv(len(expected))
        assert got and expected.startswith(got), (got, expected)
        expected = expected.removeprefix(got)

peers = [socket.create_connection((sys.argv[1], 7777)) for _ in range(int(sys.argv[2]))]
for peer in peers:
    receive(peer, b"welcome\\n")
print("in", flush=True)
for line in itertools.count(1):
    for peer in peers:
        peer.sendall(b"hello\\n")
        receive(peer, b"%d hello\\n" % line)
        time.sleep(0.01)
"""
"""Guests who say a line in turn, and end at a line that is answered wrong, or is not answered."""


@contextmanager
def shop(guests: int) -> Iterator[str]:
    """A running program with open connections, and the directory in which `ergo upgrade` finds the
    program.
    """
    host = loopback_of_this_program()
    with (
        short_directory() as folder,
        subprocess.Popen(
            [sys.executable, "-c", SHOP, host],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
            process_group=0,
        ) as first,
    ):
        assert first.stdout is not None
        try:
            assert first.stdout.readline() == b"up\n"
            with background(command=["-c", GUESTS, host, str(guests)]) as talk:
                assert talk.stdout is not None
                # A connection that comes later than the upgrade has nothing to move.
                assert talk.stdout.readline() == "in\n"
                yield str(folder)
                assert talk.poll() is None, talk.stdout.read()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGKILL)  # each version
            first.stdout.read()


def record_upgrade(guests: int = 10_000) -> Recording:
    columns, lines = 76, 8
    with (
        shop(guests) as folder,
        at_terminal(
            "upgrade", "shop", lines=lines, columns=columns, XDG_RUNTIME_DIR=folder
        ) as terminal,
    ):
        recorder = Recorder(terminal)
        recorder.watch(100.0)
        assert terminal.status() == 0, terminal.text
    return Recording("ergo upgrade shop", columns, lines, tuple(recorder.events))


# -- drawing ---------------------------------------------------------------------------------------

LIGHT = {
    "default": "#24292f",
    "page": "#ffffff",
    "frame": "#d0d7de",
    "bar": "#f6f8fa",
    "black": "#24292f",
    "red": "#cf222e",
    "green": "#1a7f37",
    "brown": "#9a6700",
    "blue": "#0969da",
    "magenta": "#8250df",
    "cyan": "#0b7285",
    "white": "#ffffff",
}
DARK = {
    "default": "#e6edf3",
    "page": "#0d1117",
    "frame": "#30363d",
    "bar": "#161b22",
    "black": "#484f58",
    "red": "#ff7b72",
    "green": "#56d364",
    "brown": "#e3b341",
    "blue": "#1f6feb",
    "magenta": "#bc8cff",
    "cyan": "#56d4dd",
    "white": "#ffffff",
}


class Screen(pyte.Screen):
    """A terminal that knows faint text, which pyte does not: it is noted as blinking, which the
    recorded programs do not use.
    """

    def select_graphic_rendition(self, *attrs: int, **how: bool) -> None:
        if 38 not in attrs and 48 not in attrs:
            attrs = tuple(
                changed
                for attr in attrs
                for changed in ((5,) if attr == 2 else (22, 25) if attr == 22 else (attr,))
            )
        super().select_graphic_rendition(*attrs, **how)


Cell = tuple[str, str, str, bool, bool, bool]
"""A character, its colour, its background, and whether it is bold, faint and underlined."""


def cells(screen: Screen, line: int) -> list[Cell]:
    row = screen.buffer[line]
    found = []
    for column in range(screen.columns):
        char = row[column]
        fg = char.fg.removeprefix("bright")
        bg = "page" if char.bg == "default" else char.bg.removeprefix("bright")
        if char.reverse:
            fg, bg = bg, fg
        found.append((char.data, fg, bg, char.bold, char.blink, char.underscore))
    return found


def stretches(row: list[Cell]) -> Iterator[tuple[int, int]]:
    """The first and the last column of each part of a line that looks alike."""
    begin = 0
    for column in range(1, len(row) + 1):
        if column == len(row) or row[column][1:] != row[begin][1:]:
            yield begin, column
            begin = column


BLOCKS = {
    **{char: (1.0, (number + 1) / 8) for number, char in enumerate("▁▂▃▄▅▆▇█")},
    **{char: ((number + 1) / 8, 1.0) for number, char in enumerate("▏▎▍▌▋▊▉")},
}
"""Characters that are rectangles: the width and the height of each. Fonts leave gaps between
them.
"""


def rectangle(x: float, y: float, width: float, height: float, name: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{name}"/>'
    )


def draw_line(row: list[Cell], y: float) -> str:
    parts = []
    backgrounds = [("", "", cell[2], False, False, False) for cell in row]
    for begin, end in stretches(backgrounds):
        if backgrounds[begin][2] != "page":
            width = (end - begin) * CELL
            parts.append(rectangle(EDGE + begin * CELL, y, width, LINE, backgrounds[begin][2]))
    for begin, end in stretches(row):
        _, fg, _, is_bold, is_faint, is_underlined = row[begin]
        text = "".join(cell[0] for cell in row[begin:end])
        for found in re.finditer("([▁▂▃▄▅▆▇█])\\1*|[▏▎▍▌▋▊▉]", text):
            width, height = BLOCKS[found[0][0]]
            x = EDGE + (begin + found.start()) * CELL
            wide = CELL * width * len(found[0])
            parts.append(rectangle(x, y + LINE * (1 - height), wide, LINE * height, fg))
        text = "".join(" " if char in BLOCKS else char for char in text)
        shown = text.strip()
        if not shown:
            continue
        x = EDGE + (begin + len(text) - len(text.lstrip())) * CELL
        names = [fg, *(["b"] * is_bold), *(["f"] * is_faint), *(["u"] * is_underlined)]
        parts.append(
            f'<text x="{x:.1f}" y="{y + 13.5:.1f}" textLength="{len(shown) * CELL:.1f}" '
            f'class="{" ".join(names)}">{escape(shown)}</text>'
        )
    return "".join(parts)


def frame_of(screen: Screen) -> str:
    lines = [draw_line(cells(screen, line), TOP + line * LINE) for line in range(screen.lines)]
    return "\n".join(line for line in lines if line)


def series(recording: Recording) -> tuple[str, str]:
    """The marked screens, one after the other; only the first without animation."""
    screen = Screen(recording.columns, recording.lines)
    stream = pyte.Stream(screen)
    frames = []
    for _, kind, text in recording.events:
        if kind == "o":
            stream.feed(text)
        else:
            frames.append(f"<title>{escape(text)}</title>\n{frame_of(screen)}")
    share = 100 / len(frames)
    style = (
        f"@keyframes turn {{ 0%, {share:.3f}% {{ visibility: visible }} "
        f"{share + 0.001:.3f}%, 100% {{ visibility: hidden }} }}\n"
        f".frame {{ animation: turn {STEP * len(frames):g}s step-end infinite; "
        "visibility: hidden }\n"
        ".frame:first-of-type { visibility: visible }\n"
        "@media (prefers-reduced-motion: reduce) { .frame { animation: none } }"
    )
    body = "\n".join(
        f'<g class="frame" style="animation-delay: {number * STEP:g}s">\n{frame}\n</g>'
        for number, frame in enumerate(frames)
    )
    return style, body


def scroll(recording: Recording) -> tuple[str, str]:
    """All lines of a program that only writes lines, scrolling up as they came."""
    tall = Screen(recording.columns, 500)
    stream = pyte.Stream(tall)
    stops: list[tuple[float, int]] = []
    now, before = 0.0, recording.events[0][0]
    for at, _, text in recording.events:
        now += min(at - before, STILL)
        before = at
        stream.feed(text)
        rows = tall.cursor.y + (tall.cursor.x > 0)
        if stops and now - stops[-1][0] < 0.05:
            stops[-1] = (stops[-1][0], rows)
        else:
            stops.append((now, rows))
    total = now + HOLD
    count = stops[-1][1]

    def moved(rows: int) -> str:
        return f"translateY({-max(0, rows - recording.lines) * LINE:g}px)"

    def uncovered(rows: int) -> str:
        return f"translateY({rows * LINE:g}px)"

    def animation(name: str, place: Callable[[int], str]) -> str:
        steps = "\n".join(
            f"{at / total * 100:.2f}% {{ transform: {place(rows)} }}" for at, rows in stops
        )
        return (
            f"@keyframes {name} {{\n{steps}\n"
            f"100% {{ transform: {place(count)} }}\n}}\n"
            f".{name} {{ animation: {name} {total:.1f}s step-end infinite; "
            f"transform: {place(count)} }}\n"
        )

    style = (
        animation("lines", moved)
        + animation("cover", uncovered)
        + "@media (prefers-reduced-motion: reduce) { .lines, .cover { animation: none } }"
    )
    drawn = [draw_line(cells(tall, line), TOP + line * LINE) for line in range(count)]
    body = "\n".join(line for line in drawn if line)
    # The cover hides the lines that are still to come.
    cover = (
        f'<rect x="{EDGE / 2:g}" y="{TOP:g}" width="{recording.columns * CELL + EDGE:g}" '
        f'height="{(count + 1) * LINE:g}" class="page cover"/>'
    )
    return style, f'<g clip-path="url(#screen)"><g class="lines">\n{body}\n{cover}\n</g></g>'


def draw(recording: Recording, label: str) -> str:
    """The picture of a recording."""
    has_marks = any(kind == "m" for _, kind, _ in recording.events)
    style, body = series(recording) if has_marks else scroll(recording)
    width = 2 * EDGE + recording.columns * CELL
    height = TOP + recording.lines * LINE + EDGE

    def colours(palette: dict[str, str]) -> str:
        return "\n".join(f".{name} {{ fill: {value} }}" for name, value in palette.items())

    dots = "".join(
        f'<circle cx="{EDGE + 6 + 18 * n:g}" cy="19" r="5.5" class="{name}"/>'
        for n, name in enumerate(("red", "brown", "green"))
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" \
viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}" xml:space="preserve">
<style>
text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; \
white-space: pre }}
.b {{ font-weight: 700 }}
.f {{ fill-opacity: 0.65 }}
.u {{ text-decoration: underline }}
.edge {{ fill: none; stroke: {LIGHT["frame"]} }}
{colours(LIGHT)}
{style}
@media (prefers-color-scheme: dark) {{
.edge {{ stroke: {DARK["frame"]} }}
{colours(DARK)}
}}
</style>
<rect width="{width:g}" height="{height:g}" rx="10" class="page"/>
<path d="M0.5 29.5 V10.5 a10 10 0 0 1 10 -10 H{width - 10.5:g} a10 10 0 0 1 10 10 V29.5 Z" \
class="bar"/>
<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="10" class="edge"/>
{dots}
<text x="{width / 2:g}" y="24" text-anchor="middle" class="default b">{escape(recording.title)}\
</text>
<clipPath id="screen"><rect x="0" y="{TOP - 4:g}" width="{width:g}" \
height="{recording.lines * LINE + 4:g}"/></clipPath>
{body}
</svg>
"""


class Picture(NamedTuple):
    record: Callable[[], Recording]
    label: str
    page: str
    """A page that shows it."""


PICTURES = {
    "top": Picture(
        record_top,
        "ergo top: the busiest processes of a node, and a look into one of them",
        "docs/index.md",
    ),
    "demo": Picture(
        record_demo,
        "make demo: a chat and a collector of metrics on a supervised node",
        "docs/index.md",
    ),
    "upgrade": Picture(
        record_upgrade,
        "ergo upgrade shop: open connections move to the next version of a program, batch by batch",
        "docs/deploying.md",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks pictures", description=__doc__)
    parser.add_argument("--only", choices=PICTURES, default=None)
    parser.add_argument("--draw", action="store_true", help="draw without recording")
    options = parser.parse_args()
    # The programs of `shop` have 10,000 connections each, and inherit the limit.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for name in PICTURES if options.only is None else (options.only,):
        picture = PICTURES[name]
        cast = FOLDER / f"{name}.cast"
        if not options.draw:
            picture.record().write(cast)
        (FOLDER / f"{name}.svg").write_text(draw(read(cast), picture.label), encoding="utf-8")
        sys.stdout.write(f"docs/pictures/{name}.svg\n")


if __name__ == "__main__":
    main()
