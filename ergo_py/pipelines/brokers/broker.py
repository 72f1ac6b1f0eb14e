"""`Broker`: the common part of the brokers, each of which is a source and a sink."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from copy import copy
from itertools import count
from time import monotonic
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypedDict, TypeVar

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.text import shown
from ...meta.checks import check_hosts, check_name, check_url, host_of
from ..item import Item
from ..keys import header_of, text_of_key
from ..source import Source
from ..steps import Sink

__all__ = [
    "BatchKeywords",
    "Broker",
    "Message",
    "Opened",
    "decoded",
    "number_of",
]

L = TypeVar("L")
P = TypeVar("P")

Opened: TypeAlias = tuple[L, Callable[[], object]]
"""A connection, and the function that closes it."""

Message: TypeAlias = tuple[object, Hashable, P, int, Hashable | None]
"""The body, the key, the place, ``redelivered``, and the receipt. A broker whose places last gives
the receipt, which stays the same for a message; another gives None.
"""

_DIGITS: Final = 20
"""Digits of the largest number that a broker counts to."""

_AGAIN: Final = 30.0
"""Seconds between two connections that get the items again that were given up."""


class BatchKeywords(TypedDict, total=False):
    """The options of a broker as a sink: the most items of a batch, by default 500, and the seconds
    to wait for a full batch.
    """

    batch: int
    within: float


def number_of(note: str | None) -> int:
    """The number that a bridge has noted at the broker; 0 for the note of another tool, or none."""
    return int(note) if note and note.isdecimal() and len(note) <= _DIGITS else 0


def decoded(read: Callable[[], str]) -> str | None:
    """A text that a library decodes when it is read; None if its bytes are no text. A broker should
    refuse such a message, and the message must not hold up those behind it.
    """
    try:
        return read()
    except UnicodeDecodeError:
        return None


class Broker(Source, Sink, Generic[L, P]):
    """A source and a sink with a connection of its library, the ``link``.

    A bridge has ``connect``, ``receive``, ``confirm`` and ``handle_batch``, and where its broker
    needs them ``prepare``, ``begin_to_take``, ``give_back`` and ``keep_alive``. The base has the
    items that the library has delivered and ``take`` has not returned, and the *place* of each item
    until its acknowledgement: whatever the library needs to acknowledge the item.
    """

    names: ClassVar[tuple[bytes, str]] = (rb"[^\0]+", "a name of one or more signs, without NUL")
    """The names that the broker takes: a pattern of their bytes, and in words."""

    source_option: tuple[str, str] | None = None
    """The option that a source needs and a sink must not have, and its value."""

    sink_option: tuple[str, str, str] | None = None
    """The option that has wildcards for a source only, its value, and the signs of wildcards."""

    places_last: ClassVar[bool] = False
    """Whether a place is good after a reconnection. The base does not take its item again then.
    Otherwise the broker delivers the item again.
    """

    sends_again_when_opened: ClassVar[bool] = False
    """Whether the broker delivers items that were given up to a new connection only, and counts
    them as unacknowledged until then. The base opens a new one when no other item is left.
    """

    _link: Opened[L] | None = None
    _is_taking = False
    _due = 0.0
    _given_up = 0
    _sent_again = 0

    def __init__(self, *, batch: int = 500, within: float = 0.0) -> None:
        super().__init__(batch=batch, within=within)
        self.found: deque[Item] = deque()
        """Items that the library has delivered and ``take`` has not returned."""
        self.held: dict[Any, P] = {}
        """The places of the items that are not acknowledged, by the receipts of the items."""
        self._numbers = count(1)

    # -- a bridge has these ------------------------------------------------------------------------

    def connect(self) -> Opened[L]:
        """Connect to the broker."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Called after ``connect``: make the queue at the broker, if it is missing."""

    def begin_to_take(self) -> None:
        """Called before the first ``receive`` after ``connect``, and never for a sink."""

    def receive(self, most: int, seconds: float = 0.0) -> None:
        """Call ``find`` with the messages that there are now, at most ``most``; if there are none,
        wait for a message, at most so long.
        """
        raise NotImplementedError

    def confirm(self, places: list[P]) -> None:
        """Acknowledge the items of these places, and return when the broker has read that."""
        raise NotImplementedError

    def give_back(self, places: list[P]) -> None:
        """The pipeline has given up the items of these places. By default they stay as they are."""

    # -- the base has these ------------------------------------------------------------------------

    def put(self, *items: object) -> None:
        """Put items from outside of any pipeline, in any thread, as one batch: connect, put them,
        and disconnect. An `Item` is put as it is; anything else is the body of an item.

        Raises:
            BadInputError: it has the options of a source, and cannot be a sink.
            Exception: the error of the library.
        """
        self.check_use(is_source=False)
        each = copy(self)  # other threads may put items at the same time
        try:
            each.open()
            each.handle_batch([one if isinstance(one, Item) else Item(one) for one in items])
        finally:
            each.close()

    @property
    def prefetch(self) -> int:
        """How many unacknowledged items a broker may send without being asked: the bound of the
        pipeline, as far as the protocols can say it. Items that were given up come on top of that:
        they come first, and leave no room for others otherwise.
        """
        return min(self.most_unacknowledged + self._sent_again, 65_535)

    @property
    def link(self) -> L:
        """The connection.

        Raises:
            ConnectionError: the broker is not open.
        """
        if self._link is None:
            raise ConnectionError(f"{type(self).__name__} is not open")
        return self._link[0]

    def open(self) -> None:
        """Connect."""
        waiting = {item.receipt for item in self.found}
        # New tables: a copy of the object has its own.
        self.held = {
            receipt: place
            for receipt, place in self.held.items()
            if self.places_last and receipt not in waiting
        }
        self.found = deque()
        self._is_taking = False
        self._sent_again = max(self._sent_again, self._given_up)
        self._given_up = 0
        self._link = self.connect()
        self.prepare()
        if self.held:
            self._begin()

    def _begin(self) -> None:
        if not self._is_taking:
            self.check_use(is_source=True)
            self.begin_to_take()
            self._is_taking = True

    def close(self) -> None:
        """Disconnect."""
        link, self._link = self._link, None
        if link is not None:
            link[1]()

    def find(self, messages: Iterable[Message[P]]) -> None:
        """Messages have come: items for ``take``, but for those that the pipeline has already."""
        # All at once: some libraries deliver a message in less time than a call takes. The class of
        # items would call a function for each.
        held, find, make, numbers = self.held, self.found.append, tuple.__new__, self._numbers
        for body, key, place, redelivered, lasting in messages:
            receipt = next(numbers) if lasting is None else lasting
            if receipt not in held:
                find(make(Item, (body, key, receipt, redelivered, None)))
            held[receipt] = place

    def take(self, most: int) -> list[Item]:
        """Return items that the broker has."""
        self._begin()
        if not self.found:
            self.receive(most)
        found = self.found
        if len(found) > most:  # a broker may deliver far more than the pipeline takes at once
            return [found.popleft() for _ in range(most)]
        items = [*found]
        found.clear()
        return items

    def wait(self, seconds: float) -> None:
        """Wait for an item.

        Raises:
            ConnectionError: none comes, and a new connection gets those that were given up.
        """
        if not self.found:
            self.receive(1, seconds)
        if self._given_up and not self.held and self.is_due(_AGAIN):
            raise ConnectionError(f"{self._given_up} items were given up: the broker has them")

    def ack(self, items: list[Item]) -> None:
        """Acknowledge items. The broker delivers those again whose places did not last."""
        if places := self._places_of(items):
            self.confirm([*places.values()])
            self._forget(places)

    def fail(self, items: list[Item], error: Exception) -> None:
        """Leave the items to the broker, and hold them no longer."""
        if places := self._places_of(items):
            self.give_back([*places.values()])
            self._forget(places)
            if self.sends_again_when_opened:
                self._given_up += len(places)

    def _places_of(self, items: list[Item]) -> dict[Any, P]:
        """The places of the items that are held, by their receipts."""
        held, receipts = self.held, [item.receipt for item in items]
        return {receipt: held[receipt] for receipt in receipts if receipt in held}

    def _forget(self, receipts: Iterable[Any]) -> None:
        """Hold these items no longer."""
        for receipt in receipts:
            self.held.pop(receipt, None)

    def drop(self, is_gone: Callable[[P], bool]) -> None:
        """Another consumer gets the items of these places, also those that ``take`` has not
        returned.
        """
        self.held = {receipt: place for receipt, place in self.held.items() if not is_gone(place)}
        self.found = deque(item for item in self.found if item.receipt in self.held)

    def is_due(self, seconds: float) -> bool:
        """Whether it has not said so for these seconds: for a message that a broker expects."""
        if monotonic() < self._due:
            return False
        self._due = monotonic() + seconds
        return True

    def at(self, url: str, *schemes: str) -> str:
        """Check the address of the broker, and note where it is. Without schemes, these are hosts
        with their ports. Returns the address.

        Raises:
            BadInputError: it is no such address.
        """
        kind = type(self).__name__
        if not schemes:
            self.where: str = check_hosts(f"{kind}(servers)", url)
        else:
            self.where = host_of(check_url(f"{kind}(url)", url, *schemes))
        return url

    def named(self, **given: str) -> list[str]:
        """Check names, given by their options. Returns the names.

        Raises:
            BadInputError: the broker would refuse a name.
        """
        kind = type(self).__name__
        found = given.items()
        return [check_name(f"{kind}({option})", name, *self.names) for option, name in found]

    def check_use(self, *, is_source: bool) -> None:
        """Check that it has the options of a source, or of a sink.

        Raises:
            BadInputError: an option is missing, or is for the other of the two.
        """
        kind = type(self).__name__
        if self.source_option is not None:
            option, value = self.source_option
            if bool(value) != is_source:
                wish = f"the name of a {option}, for a source" if is_source else "none, for a sink"
                raise BadInputError(f"{kind}({option}=…)", value, wish)
        if self.sink_option is not None and not is_source:
            option, value, wildcards = self.sink_option
            if {*wildcards} & {*value}:
                wish = f"a {option} without wildcards, for a sink"
                raise BadInputError(f"{kind}({option})", value, wish)

    def error_of(self, item: Item) -> str | None:
        """The text of the error for which the item was given up."""
        return None if item.error is None else shown(item.error)

    def row_of(self, item: Item) -> tuple[str | None, Any, str | None]:
        """The key, the body and the error for the row of a database."""
        key = None if item.key is None else text_of_key(item.key)
        return key, item.body, self.error_of(item)

    def labels_of(self, item: Item) -> dict[str, str | bytes]:
        """The key of the item and its error, if it has them, for the headers of a message."""
        given = {"key": item.key, "error": self.error_of(item)}
        return {
            name: value if isinstance(value, bytes) else str(value)
            for name, value in given.items()
            if value is not None
        }

    def lines_of(self, item: Item) -> dict[str, str]:
        """The same for a protocol whose headers are lines of text."""
        return {
            name: header_of(text) if name == "key" else " ".join(str(text).split())
            for name, text in self.labels_of(item).items()
        }
