"""`Plan`: a seed, and the faults of a world in the order of their times. A plan is a line of text,
so that a command can repeat it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from ..._core.vocabulary.errors import BadInputError

__all__ = ["KINDS", "FaultRates", "Plan", "PlannedFault"]

_ANY: Final = "*"
_PLAIN: Final = "plain"


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of fault."""

    nodes: int
    """How many nodes it concerns."""
    seconds: tuple[float, float]
    """The shortest and the longest time that it lasts."""
    amount: tuple[float, float]
    """The smallest and the largest amount; both 0.0 for a kind without an amount."""
    story: str
    """The fault in a story."""


KINDS: Final = {
    "cut": _Kind(2, (0.5, 10.0), (0.0, 0.0), "no frame passes between {0} and {1} for {s} s"),
    "one_way": _Kind(2, (0.5, 10.0), (0.0, 0.0), "no frame passes from {0} to {1} for {s} s"),
    "lose": _Kind(0, (0.5, 10.0), (0.05, 0.5), "{p} % of all frames are lost for {s} s"),
    "double": _Kind(0, (0.5, 10.0), (0.05, 0.5), "{p} % of all frames arrive twice for {s} s"),
    "delay": _Kind(
        2, (0.5, 10.0), (0.01, 2.0), "frames from {0} to {1} take up to {a} s, for {s} s"
    ),
    "cut_store": _Kind(1, (0.5, 15.0), (0.0, 0.0), "{0} cannot reach the store for {s} s"),
    "slow_store": _Kind(
        1, (0.5, 15.0), (0.1, 3.0), "the store answers {0} late, by up to {a} s, for {s} s"
    ),
    "stall_sockets": _Kind(
        1, (0.5, 10.0), (0.0, 0.0), "no byte passes to or from the sockets of {0} for {s} s"
    ),
    "slow_sockets": _Kind(
        1, (0.5, 10.0), (0.01, 1.0), "bytes of the sockets of {0} take up to {a} s, for {s} s"
    ),
    "tear_sockets": _Kind(
        1, (0.5, 10.0), (0.0, 0.0), "bytes of the sockets of {0} arrive in pieces for {s} s"
    ),
    "reset_sockets": _Kind(1, (0.1, 0.1), (0.0, 0.0), "all connections of {0} are reset"),
    "lose_datagrams": _Kind(
        1, (0.5, 10.0), (0.05, 0.5), "{p} % of the datagrams of {0} are lost for {s} s"
    ),
    "double_datagrams": _Kind(
        1, (0.5, 10.0), (0.05, 0.5), "{p} % of the datagrams of {0} arrive twice for {s} s"
    ),
    "pause": _Kind(1, (0.5, 15.0), (0.0, 0.0), "the program of {0} is stopped for {s} s"),
    "crash": _Kind(1, (0.1, 10.0), (0.0, 0.0), "{0} crashes, and starts again after {s} s"),
    "kill": _Kind(1, (0.1, 0.1), (0.0, 1.0), "a process of {0} is killed"),
    "fail_disk": _Kind(
        1, (0.1, 10.0), (0.05, 1.0), "{p} % of the writes to the disk of {0} fail for {s} s"
    ),
    "slow_disk": _Kind(
        1, (0.5, 10.0), (0.01, 2.0), "the disk of {0} is late, by up to {a} s, for {s} s"
    ),
    "skew": _Kind(1, (5.0, 30.0), (-0.1, 0.1), "the clock of {0} is {p} % too fast for {s} s"),
}
"""The alphabet of plans. Each fault ends by itself, so that a plan without it is a plan, too."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault of a plan."""

    at: float
    """Seconds after the call of ``world.faults``."""
    kind: str
    nodes: tuple[str, ...]
    seconds: float
    """How long it lasts."""
    amount: float = 0.0
    """Its strength: a share of frames, seconds of delay, or the rate of a clock."""

    def __str__(self) -> str:
        parts = [f"{self.at:g}", self.kind, ",".join(self.nodes) or _ANY, f"{self.seconds:g}"]
        return " ".join(parts + [f"{self.amount:g}"] * bool(self.amount))

    @property
    def story(self) -> str:
        """The fault in words."""
        return KINDS[self.kind].story.format(
            *self.nodes, s=f"{self.seconds:g}", a=f"{self.amount:g}", p=f"{100 * self.amount:g}"
        )

    @classmethod
    def read(cls, text: str) -> "PlannedFault":
        """Read a fault as `str` writes it."""
        try:
            at, kind, nodes, seconds, *rest = text.split()
            names = () if nodes == _ANY else tuple(nodes.split(","))
            if len(names) != KINDS[kind].nodes or len(rest) > 1:
                raise ValueError(text)
            amount = float(rest[0]) if rest else 0.0
            return cls(float(at), kind, names, float(seconds), amount)
        except (ValueError, KeyError):
            raise BadInputError(
                "plan", text, f"'AT KIND NODES SECONDS AMOUNT' with a kind of {sorted(KINDS)}"
            ) from None


@dataclass(frozen=True, slots=True)
class Plan:
    """All choices of a world: the same plan gives the same history."""

    seed: int
    """Decides the random numbers of nodes and clients, the order of tasks and the losses."""
    faults: tuple[PlannedFault, ...] = ()
    is_shuffled: bool = True
    """Whether the seed chooses the order of tasks; otherwise they run in the order in which they
    were made, the last first.
    """

    def __str__(self) -> str:
        head = f"seed={self.seed}" + f" order={_PLAIN}" * (not self.is_shuffled)
        return "; ".join([head, *map(str, self.faults)])

    @classmethod
    def read(cls, text: str) -> "Plan":
        """Read a plan as `str` writes it.

        Raises:
            BadInputError: it is no plan.
        """
        head, *faults = (part.strip() for part in text.split(";"))
        pairs = [word.partition("=") for word in head.split()]
        words = {name: value for name, _, value in pairs}
        if not words.get("seed", "").isdecimal() or not words.keys() <= {"seed", "order"}:
            raise BadInputError("plan", text, "'seed=NUMBER; AT KIND NODES SECONDS; …'")
        return cls(
            int(words["seed"]),
            tuple(PlannedFault.read(fault) for fault in faults if fault),
            words.get("order") != _PLAIN,
        )

    def with_faults(self, faults: Sequence[PlannedFault]) -> "Plan":
        """The same plan with other faults."""
        return replace(self, faults=tuple(faults))


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How a seed draws its faults."""

    rates: dict[str, float]
    """Faults of each kind per simulated second, on average."""
    seconds: float
    """No fault begins later than this."""
    limits: dict[str, tuple[float, float]]
    """Amounts of some kinds, in place of those of `KINDS`."""
    nodes: tuple[str, ...]
    """The nodes that may have faults."""

    def draw(self, seed: int) -> tuple[PlannedFault, ...]:
        """The faults of a seed. Each kind has its own random numbers."""
        drawn = [fault for kind in self.rates for fault in self._draw(kind, seed)]
        return tuple(sorted(drawn, key=lambda fault: (fault.at, str(fault))))

    def _draw(self, kind: str, seed: int) -> list[PlannedFault]:
        random, meaning = Random(repr((seed, "faults", kind))), KINDS[kind]
        found: list[PlannedFault] = []
        rate = self.rates[kind]
        if rate <= 0.0 or meaning.nodes > len(self.nodes):
            return found
        at = random.expovariate(rate)
        while at < self.seconds:
            nodes = tuple(random.sample(self.nodes, meaning.nodes))
            seconds = random.uniform(*meaning.seconds)
            amount = random.uniform(*self.limits.get(kind, meaning.amount))
            found.append(
                PlannedFault(round(at, 2), kind, nodes, round(seconds, 2), round(amount, 3))
            )
            at += random.expovariate(rate)
        return found
