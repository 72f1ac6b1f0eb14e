"""``ergo top``: what a node is doing, again and again, in a terminal of any size."""

import os
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

from .._core.vocabulary.text import printable
from ..control.rendering import process_table
from .client import Link
from .screens import Screen, choose_screen

__all__ = ["top"]

_KEYS: Final = {"m": "mailbox", "r": "rate", "l": "load", "t": "time", "i": "id"}
_HELP: Final = "q quit · sorted by: m mailbox, r messages/s, l load, t time, i id"


def top(link: Link, sort: str, interval: float, count: int | None) -> None:
    """Show frames until somebody presses q, or ``count`` times. Without a terminal the frames
    follow one another.
    """
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not on_terminal:
        _plain(link, sort, interval, count if count is not None else 1)
        return
    with _whole_screen() as keys:
        shown = 0
        while count is None or shown < count:
            # Not by way of COLUMNS and LINES, which say what the size was when somebody set them.
            size = os.get_terminal_size(sys.stdout.fileno())
            text = frame(link, sort, choose_screen(size.columns), size.lines)
            sys.stdout.write(
                "\x1b[H"
                + "".join(f"{line}\x1b[K\n" for line in text[:-1])
                + f"{text[-1]}\x1b[K\x1b[J"
            )
            sys.stdout.flush()
            shown += 1
            pressed = keys.wait(interval)
            if pressed in ("q", "\x04"):
                return
            sort = _KEYS.get(pressed, sort)


def _plain(link: Link, sort: str, interval: float, count: int) -> None:
    # The first look only says what the second is compared with.
    link.ask("ps", limit=1)
    for _ in range(count):
        select.select([], [], [], interval)
        sys.stdout.write("\n".join(frame(link, sort, Screen(), 0)) + "\n")
        sys.stdout.flush()


def frame(link: Link, sort: str, screen: Screen, lines: int) -> list[str]:
    """One frame, as lines that fit; as many as it likes if there is no number of them."""
    room = max(1, lines - 3) if lines else 1000
    said = link.ask("ps", sort=sort, limit=room)
    told = [
        screen.title(
            printable(
                f"{link.node} (program {link.os_pid}): {said['alive']} alive, {said['mailbox']} "
                "messages waiting, "
                f"{said['rate']:.0f} handled a second"
            )
        )
    ]
    blocked = said["blocked"]
    if blocked is not None:
        told.append(screen.alarm(blocked_text(blocked)))
    rows = process_table(said["rows"][: room - (blocked is not None)], rates=True, sort=sort)
    told += screen.live_table(rows).splitlines()
    if lines:
        told.append(screen.aside(f"{_HELP}; now {sort}"))
    return told


def blocked_text(report: dict[str, Any]) -> str:
    """Who blocks the loop, in a line."""
    if report["process"] is None:
        who = "something that is no process"
    elif report["callback"] is None:
        who = f"the work for {report['behaviour']} before or after a callback"
    else:
        who = f"{report['behaviour']}.{report['callback']}"
    where = report["stack"].strip().splitlines()[-2:]
    # A node of an earlier version does not say.
    fault = "GETS NO TIME TO RUN; it stands in" if report.get("starved") else "IS BLOCKED by"
    text = f"THE LOOP {fault} {who} for {report['seconds']:.1f} s: {' '.join(line.strip() for line in where)}"
    return printable(text)


class _Keys:
    """Waits for a key, for a change of the terminal's size, or for a time."""

    def __init__(self, signals: socket.socket) -> None:
        self._signals = signals

    def wait(self, seconds: float) -> str:
        end = monotonic() + seconds
        ready, _, _ = select.select([sys.stdin, self._signals], [], [], max(0.0, end - monotonic()))
        if self._signals in ready:
            self._signals.recv(4096)
        return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if sys.stdin in ready else ""


@contextmanager
def _whole_screen() -> Iterator[_Keys]:
    """Take the screen, the keys and the news of a new size; and give all of them back, whatever
    happens.
    """
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    before = termios.tcgetattr(sys.stdin)
    handler = signal.signal(signal.SIGWINCH, lambda *_: None)
    wakeup = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    try:
        tty.setcbreak(sys.stdin)
        sys.stdout.write("\x1b[?1049h\x1b[?25l")
        yield _Keys(woken)
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGWINCH, handler)
        woken.close()
        waker.close()
