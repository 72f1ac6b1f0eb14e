"""The screen of a terminal as its user sees it, after all movements of the cursor."""

import select
import time
from collections.abc import Callable

import pyte

from tests.shell.terminal import Terminal

__all__ = ["Display"]


class Display:
    """A screen that is fed with the output of a terminal."""

    def __init__(self, terminal: Terminal, lines: int = 30, columns: int = 120) -> None:
        self.terminal = terminal
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.Stream(self.screen)
        self._fed = 0

    @property
    def lines(self) -> list[str]:
        """The lines, without spaces at their end."""
        self._stream.feed(self.terminal.raw[self._fed :])
        self._fed = len(self.terminal.raw)
        return [line.rstrip() for line in self.screen.display]

    def wait(self, condition: Callable[[list[str]], bool], seconds: float = 60.0) -> list[str]:
        """Wait until the lines are as expected."""
        end = time.monotonic() + seconds
        while not condition(lines := self.lines):
            left = end - time.monotonic()
            if (
                left <= 0
                or not select.select([self.terminal.fd], [], [], left)[0]
                or not self.terminal.receive()
            ):
                raise AssertionError("the screen is\n" + "\n".join(lines).rstrip())
        return lines

    def wait_line(self, text: str) -> list[str]:
        """Wait until a whole line is this text."""
        return self.wait(lambda lines: text in lines)
