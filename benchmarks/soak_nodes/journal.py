"""`Journal`: the books of a program, in a file that survives the end of the program.

Each line is written by a single call of the operating system, so that a killed program leaves whole
lines. `Books` adds the journals of all programs up.
"""

import os
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

__all__ = ["Books", "Journal", "Pair"]


class Journal:
    """The journal of a start of a node."""

    def __init__(self, folder: Path, node: str, creation: int) -> None:
        self._file = os.open(
            folder / f"{node}+{creation}.journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
        )

    def write(self, *words: object) -> None:
        """Write a line."""
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


@dataclass
class Pair:
    """The messages of a start of a node to another node."""

    sent: int = 0
    received: list[int] = field(default_factory=list)
    unsent: int = 0
    """Dead letters that never left."""
    unconfirmed: int = 0
    """Dead letters that were on the way when a session ended."""
    downs: int = 0
    """How often the sender has heard that the receiver is lost."""

    def faults(self, was_sender_killed: bool, was_receiver_killed: bool) -> list[str]:
        """What does not add up."""
        found = []
        if any(later <= earlier for earlier, later in pairwise(self.received)):
            found.append("a message arrived twice, or out of order")
        if self.received and self.received[-1] > self.sent:
            found.append("a message arrived that was never sent")
        gaps = sum(later != earlier + 1 for earlier, later in pairwise([0, *self.received]))
        if gaps > self.downs + self.unsent:
            found.append(f"{gaps} holes, and the receiver was lost {self.downs} times")
        missing = self.sent - len(self.received)
        if missing < self.unsent:
            found.append(f"{self.unsent} dead letters never left, and {missing} are missing")
        is_lost = missing > self.unsent + self.unconfirmed
        if is_lost and not was_sender_killed and not was_receiver_killed:
            found.append(
                f"{missing} are missing; the dead letters are {self.unsent} that never left "
                f"and {self.unconfirmed} that were not confirmed"
            )
        return found


class Books:
    """The journals of all programs."""

    def __init__(self, folder: Path) -> None:
        self.pairs: dict[tuple[str, str], Pair] = defaultdict(Pair)
        """By the start of the sender, ``name+creation``, and the name of the receiver."""
        self.leases: list[tuple[str, int]] = []
        self.answered = 0
        self.failed = 0
        starts = sorted(folder.glob("*.journal"), key=lambda path: path.stem.split("+"))
        for path in starts:
            self._read(path)

    def _read(self, path: Path) -> None:
        start = path.stem
        node = start.partition("+")[0]
        for line in path.read_text().splitlines():
            match line.split():
                case "sent", to, number:
                    self.pairs[start, to].sent = int(number)
                case "got", sender, number:
                    self.pairs[sender, node].received.append(int(number))
                case "dead", to, why:
                    pair = self.pairs[start, to]
                    pair.unsent += why == "NO_NODE"
                    pair.unconfirmed += why == "UNCONFIRMED"
                case "down", to:
                    self.pairs[start, to].downs += 1
                case "answered", number:
                    self.answered = self.answered + int(number)
                case "failed", number:
                    self.failed += int(number)
