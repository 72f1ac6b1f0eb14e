"""`Carrier` and `Sink`: the interface between a network and the engine that carries its frames."""

from typing import Protocol

import trio
from trio.lowlevel import Task

from .stores.store import Store

__all__ = ["Carrier", "Sink"]


class Sink(Protocol):
    """The receiver of all frames to a node. Its methods run on the loop and never wait."""

    def frame(self, sender: str, data: bytes | memoryview, /) -> None:
        """Take a frame. The carrier vouches for the name of the sending node."""

    def begin_pass(self, reader: Task, /) -> None:
        """Note that the task of a reader hands over frames, and waits for nothing until
        :meth:`end_pass`.
        """

    def end_pass(self, reader: Task, /) -> bool:
        """Run the processes and callers that were woken, and send all operations that came of the
        frames together. True if no other task is ready to run.
        """
        ...

    def connected(self, node: str, /) -> None:
        """Note that frames to a node reach it, perhaps again."""

    def unreachable(self, node: str, why: str, /) -> None:
        """Note that no node of this name listens."""

    def left(self, why: str, /) -> None:
        """Note that this node is no member of the network any more. The carrier tries to join it
        again.
        """

    def joined(self) -> None:
        """Note that this node has joined the network again."""

    def is_up(self, node: str, /) -> bool:
        """Whether there is a session with a node."""
        ...

    def log_once(self, what: str, error: str, /) -> None:
        """Log a fault, but no other fault of the same text."""


class Carrier(Protocol):
    """Carries frames between nodes. It may lose, double and reorder them."""

    max_operation: int
    """Bytes of the longest operation that it takes in a frame. Longer ones travel in parts."""

    async def run(self, sink: Sink, *, task_status: trio.TaskStatus[None]) -> None:
        """Carry frames until cancelled. ``started`` is called when the node can be reached.

        Raises:
            NetworkError: the node cannot join the network.
        """

    def send(self, to: str, frame: bytes) -> None:
        """Carry a frame to a node, or drop it. Never waits."""

    async def discover(self, seconds: float, /) -> list[str]:
        """The names of all nodes that listen now, without this node. A carrier that asks them waits
        this long for their answers.
        """
        ...

    async def flush(self) -> None:
        """Wait until the frames that were sent have left this program."""

    def store(self) -> Store:
        """The store that all nodes of the network share."""
        ...
