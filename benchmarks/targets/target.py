"""`Target`: a decoder of bytes from outside, and the bytes that it is tried with."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from benchmarks.budgets import Budget, Spent

__all__ = ["Target", "in_pieces", "spliced"]


@dataclass(frozen=True)
class Target:
    """A decoder. Every attempt is within its budget."""

    read: Callable[[bytes], str]
    """Decodes bytes, and returns the outcome in a word or two."""
    nearly_valid: st.SearchStrategy[bytes] | None = None
    """Bytes that come further than any bytes would."""
    grow: Callable[[bytes], bytes] | None = None
    """Makes a long input of a seed, if the inputs are seeds."""
    budget: Budget = field(default_factory=Budget)

    def attempt(self, data: bytes) -> Spent:
        """Decode an input, or the input that a seed stands for.

        Raises:
            OverBudgetError: it took more time or memory than its size allows.
        """
        return self.budget.spend(self.read, data if self.grow is None else self.grow(data))


def in_pieces(data: bytes) -> tuple[bytes, list[bytes]]:
    """A stream, and its pieces: the first byte says how long they are."""
    step, stream = (data[0] % 7 + 1 if data else 1), data[1:]
    return stream, [stream[begin : begin + step] for begin in range(0, len(stream), step)]


def spliced(whole: bytes, at: int, instead_of: int, new: bytes) -> bytes:
    """An input in which some bytes are replaced by others."""
    at = min(at, len(whole))
    return whole[:at] + new + whole[at + instead_of :]
