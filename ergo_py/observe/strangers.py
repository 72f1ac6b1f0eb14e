"""`Strangers`: the pages that have not shown the token."""

from typing import Final

from .._core.vocabulary.ids import PID

__all__ = ["Strangers"]

_MOST: Final = 16


class Strangers:
    """The pages that have not shown the token, in the order of their arrival. There are so few that
    they leave places for probes and for pages that have shown it.
    """

    def __init__(self) -> None:
        self._pages: dict[PID, None] = {}

    def add(self, page: PID) -> PID | None:
        """Add a page. Returns the page that has to go for it: the oldest, since a page shows the
        token at once.
        """
        self._pages[page] = None
        if len(self._pages) <= _MOST:
            return None
        oldest = next(iter(self._pages))
        self.forget(oldest)
        return oldest

    def forget(self, page: PID) -> None:
        """Forget a page that has shown the token, or has gone."""
        self._pages.pop(page, None)
