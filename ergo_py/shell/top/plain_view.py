"""`top`: the plain view of ``ergo top``, in a terminal of any size."""

import os
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Final

from ..._core.vocabulary.text import printable
from ...control.client import Link
from ...control.rendering import blocked_text, process_table
from ..screens import Screen, choose_screen

__all__ = ["top", "top_of_all"]

_KEYS: Final = {"m": "mailbox", "r": "rate", "l": "load", "w": "worst", "t": "time", "i": "id"}
_HELP: Final = "q quit · sorted by: m mailbox, r messages/s, l load, w worst, t time, i id"


def top(link: Link, sort: str, interval: float, count: int | None) -> None:
    """Show frames until the user presses q, or ``count`` times. Without a terminal, print the
    frames in a row.
    """
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not on_terminal:
        _plain(link, sort, interval, count if count is not None else 1)
        return
    with _whole_screen() as keys:
        shown = 0
        while count is None or shown < count:
            # Ask the terminal: COLUMNS and LINES hold the size at the time they were set.
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
    # The first answer is only the baseline for the rates of the second.
    link.ask("ps", limit=1)
    for _ in range(count):
        select.select([], [], [], interval)
        sys.stdout.write("\n".join(frame(link, sort, Screen(), 0)) + "\n")
        sys.stdout.flush()


def top_of_all(links: Sequence[Link], sort: str, interval: float, count: int | None) -> None:
    """Print a frame of each node in a row, until the user interrupts, or ``count`` times."""
    if count is None and not sys.stdout.isatty():
        count = 1
    # The first answer is only the baseline for the rates of the second.
    for link in links:
        link.ask("ps", limit=1)
    shown = 0
    while count is None or shown < count:
        select.select([], [], [], interval)
        frames = ["\n".join(frame(link, sort, Screen(), 0)) for link in links]
        sys.stdout.write("\n\n".join(frames) + "\n")
        sys.stdout.flush()
        shown += 1


def frame(link: Link, sort: str, screen: Screen, lines: int) -> list[str]:
    """A frame, as lines that fit; 0 ``lines`` means no limit."""
    room = max(1, lines - 3) if lines else 1000
    answer = link.ask("ps", sort=sort, limit=room)
    output = [
        screen.title(
            printable(
                f"{link.node} (program {link.os_pid}): {answer['alive']} alive, "
                f"{answer['mailbox']} messages waiting, {answer['rate']:.0f} handled a second"
            )
        )
    ]
    blocked = answer["blocked"]
    if blocked is not None:
        output.append(screen.alarm(blocked_text(blocked)))
    rows = process_table(answer["rows"][: room - (blocked is not None)], rates=True, sort=sort)
    output += screen.live_table(rows).splitlines()
    if lines:
        output.append(screen.aside(f"{_HELP}; now {sort}"))
    return output


class _Keys:
    """Waits for a key, for a resize of the terminal, or for a timeout."""

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
    """Take over the screen, the keyboard and the resize signal; restore all of them on exit."""
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
