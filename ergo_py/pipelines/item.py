"""`Item`: a message of a broker on its way through a pipeline."""

from collections.abc import Hashable
from typing import Any, NamedTuple

from .._core.vocabulary.public_names import show_public_names

__all__ = ["Item"]


# Each step of a pipeline makes items: a frozen dataclass takes twice as long to make.
class Item(NamedTuple):
    """A message that a source has taken. Each stage makes an item with another body of it."""

    body: Any
    """The content: as the source has taken it, or as the last stage has returned it."""
    key: Hashable = None
    """Items with the same key keep their order. None for an item without an order."""
    receipt: Any = None
    """The value by which the source acknowledges the item. Only the source reads it."""
    redelivered: int = 0
    """How often the broker says that it has delivered the item before; 1 from a broker that does
    not count. A killed broker may say so of items that it had not delivered yet. The tries of an
    item do not depend on it.
    """
    error: Exception | None = None
    """The last error, if the item goes to ``poison``."""

    def with_body(self, body: object) -> "Item":
        """The item with another body."""
        return Item(body, self.key, self.receipt, self.redelivered)

    def with_error(self, error: Exception) -> "Item":
        """The item with the error for which the pipeline has given it up."""
        return self._replace(error=error)


show_public_names(__name__)
