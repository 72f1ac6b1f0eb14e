"""`Broker`: the common part of the brokers, each of which is a source and a sink."""

from collections import deque
from typing import Any, Generic, Protocol, TypedDict, TypeVar

from ..item import Item
from ..source import Source
from ..steps import Sink

__all__ = ["BatchKeywords", "Broker", "missing"]


class Link(Protocol):
    """The connection of a library."""

    def close(self) -> object:
        """Disconnect."""


L = TypeVar("L", bound=Link)


class BatchKeywords(TypedDict, total=False):
    """The options of a broker as a sink: the most items of a batch, by default 500, and the seconds
    to wait for a full batch.
    """

    batch: int
    within: float


def missing(broker: str, package: str, extra: str) -> ModuleNotFoundError:
    """The error of a broker whose library cannot be imported."""
    return ModuleNotFoundError(
        f"{broker} needs {package}, which cannot be imported; install it with: pip install "
        f"'ergo_py[{extra}]'",
        name=package,
    )


class Broker(Source, Sink, Generic[L]):
    """A source and a sink with a connection of its library.

    ``link`` is the connection; ``found`` has items that the library has delivered and that
    ``take`` has not returned. A broker whose receipts end with their connection makes items with
    ``receipt``, and acknowledges those of ``of_this_opening``. A broker whose receipts last notes
    them in ``held``, from ``take`` to ``ack``, not to take the items again after a reconnection.
    """

    _link: L | None = None
    _opening = 0

    def __init__(self, *, batch: int = 500, within: float = 0.0) -> None:
        super().__init__(batch=batch, within=within)
        self.found: deque[Item] = deque()
        self.held: dict[Any, str] = {}

    def connect(self) -> L:
        """Connect to the broker."""
        raise NotImplementedError

    @property
    def link(self) -> L:
        """The connection.

        Raises:
            ConnectionError: the broker is not open.
        """
        if self._link is None:
            raise ConnectionError(f"{type(self).__name__} is not open")
        return self._link

    def open(self) -> None:
        """Connect."""
        if not self._opening:
            # A new one for each copy of the object.
            self.held = {}
        self.forget([*self.found])
        self.found = deque()
        self._opening += 1
        self._link = self.connect()

    def close(self) -> None:
        """Disconnect."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def take_found(self, most: int) -> list[Item]:
        """Return items that were found, at most ``most``."""
        return [self.found.popleft() for _ in range(min(most, len(self.found)))]

    def fail(self, items: list[Item], error: Exception) -> None:
        """Leave the items to the broker, and hold them no longer."""
        self.forget(items)

    def forget(self, items: list[Item]) -> None:
        """Hold items no longer."""
        for item in items:
            self.held.pop(item.receipt, None)

    def receipt(self, *parts: object) -> tuple[object, ...]:
        """A receipt that is good for this opening only: the number of the opening and the parts."""
        return (self._opening, *parts)

    def of_this_opening(self, items: list[Item]) -> list[tuple[Any, ...]]:
        """The parts of the receipts of this opening. The broker delivers the other items again."""
        return [item.receipt[1:] for item in items if item.receipt[0] == self._opening]

    def error_of(self, item: Item) -> str | None:
        """The text of the error for which the item was given up."""
        return None if item.error is None else repr(item.error)

    def labels_of(self, item: Item) -> dict[str, str | bytes]:
        """The key of the item and its error, if it has them, for the headers of a message."""
        given = {"key": item.key, "error": self.error_of(item)}
        return {
            name: value if isinstance(value, bytes) else str(value)
            for name, value in given.items()
            if value is not None
        }
