"""The messages and the worker processes of the example."""

from dataclasses import dataclass

from ergo_py import Actor, Caller, Node, Request


@dataclass(frozen=True)
class Count(Request[int]):
    """How many primes are there from ``first`` up to, and without, ``last``?"""

    first: int
    last: int


class Primes(Actor):
    """Counts primes. This takes the processor: all other processes of its node wait meanwhile."""

    def handle_call(self, request: object, caller: Caller) -> int:
        match request:
            case Count(first, last):
                return count(first, last)
        raise TypeError(request)


def count(first: int, last: int) -> int:
    """How many primes there are from ``first`` up to, and without, ``last``."""
    return sum(is_prime(number) for number in range(first, last))


def is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))


async def start(node: Node) -> None:
    """Start the processes of a worker node."""
    await node.spawn(Primes, name="primes")
