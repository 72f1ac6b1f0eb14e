"""`Account`: the doubles of a sink beside the redeliveries that the broker counts."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Account", "account_of"]


class Account(NamedTuple):
    """What a sink has got, and what its broker says of it."""

    doubles: int
    """How often the sink got an item that it had got before."""
    redeliveries: int
    """How often the broker has delivered an item again, as it says with the last delivery that the
    sink got. It may be more than the doubles: a kill also ends items on their way to the sink.
    """
    unexplained: int
    """Doubles for which the broker has no redelivery."""


def account_of(handled: Mapping[bytes, Sequence[int]], *, counts: bool) -> Account:
    """Compare.

    Args:
        handled: for each item, the ``redelivered`` with which the sink got it, in sequence.
        counts: whether the broker counts the deliveries of an item, or only marks the later ones.
    """
    known = 10**9 if counts else 1
    return Account(
        sum(len(times) - 1 for times in handled.values()),
        sum(max(times) for times in handled.values()),
        sum(
            again < min(before, known)
            for times in handled.values()
            for before, again in enumerate(times)
        ),
    )
