"""`Source`: the first part of a pipeline, which takes items from a broker."""

from collections.abc import Callable
from time import sleep
from typing import Final

from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.text import text_of
from .item import Item

__all__ = ["ALIVE", "Source", "name_of", "why"]

ALIVE: Final = 0.25
"""Seconds between two calls of ``keep_alive``: a small part of all heartbeats of brokers."""


def name_of(part: object) -> str:
    """The class of a source or step, and where its broker is."""
    where = getattr(part, "where", "")
    return f"{type(part).__qualname__} at {where}" if where else type(part).__qualname__


def why(error: BaseException) -> str:
    """The text of an error in a line, with its type. Some libraries have a cause and no text."""
    text = " ".join(text_of(error).split()) or repr(error.__cause__ or error.args)
    return f"{type(error).__qualname__}: {text}"


class Source:
    """Takes items from a broker, and acknowledges them. Subclass it for a broker of your own.

    The pipeline calls all methods in the same thread, on a copy of the object that it was given: a
    start of the pipeline begins with the attributes that the constructor has set. An exception of
    any method but ``close`` means that the broker is lost: the pipeline calls ``close``, waits as
    its ``reopen`` says, and calls ``open``. It acknowledges items of the opening before by the same
    ``ack``.
    """

    most_unacknowledged: int = 1000
    """The bound of the pipeline. A broker that sends items without being asked sends no more."""
    where: str = ""
    """Where the broker is, for logs and commands: a host and a port, or a path. No password."""
    _pause: Callable[[float], bool] | None = None

    def open(self) -> None:
        """Connect to the broker."""

    def take(self, most: int) -> list[Item]:
        """Return the items that there are now, at most ``most``, without waiting for others."""
        raise NotImplementedError(f"{type(self).__qualname__} has no take(self, most)")

    def wait(self, seconds: float) -> None:
        """Return when there may be more items, after ``seconds`` at the latest. By default, after
        that time or when there are items to acknowledge.
        """
        self.pause(seconds)

    def keep_alive(self) -> None:
        """Called four times a second while no item may be taken, as the bound is reached or the
        pipeline stops: for a library that must answer its broker even then. As a sink, while there
        are no items.
        """

    def ack(self, items: list[Item]) -> None:
        """Acknowledge items, in the order in which the pipeline has finished them. If it raises,
        the pipeline acknowledges all of them again after the next ``open``.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no ack(self, items)")

    def fail(self, items: list[Item], error: Exception) -> None:
        """Called with items that the pipeline has given up. By default nothing is done, and the
        broker delivers them again by its own rules.
        """

    def close(self) -> None:
        """Disconnect, also after an ``open`` that has failed."""

    def pause(self, seconds: float) -> bool:
        """Block for a time, for a ``wait`` that looks again and again. Returns False at once when
        ``wait`` is to return: there are items to acknowledge, or the pipeline stops.
        """
        if self._pause is not None:
            return self._pause(seconds)
        sleep(seconds)  # outside of a pipeline
        return True

    def check_use(self, *, is_source: bool) -> None:
        """Called when a pipeline is made, also for a source that is its sink or ``poison``: raise
        `BadInputError` if it cannot be that. By default it can.
        """

    def work_with(self, pause: Callable[[float], bool], most_unacknowledged: int) -> None:
        """Called by the pipeline: pause by this function, and have this bound."""
        self._pause, self.most_unacknowledged = pause, most_unacknowledged


show_public_names(__name__)
