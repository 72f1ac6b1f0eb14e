"""`Plan`: a seed, and the faults of a world in the order of their times. A plan is a line of text,
so that a command can repeat it.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import nan
from random import Random
from typing import Final

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.hints import did_you_mean
from ..._core.vocabulary.options import check_number

__all__ = ["KINDS", "FaultRates", "Plan", "PlanError", "PlannedFault"]

_ANY: Final = "*"
_PLAIN: Final = "plain"
_HEAD: Final = re.compile(rf"seed=(-?\d+)( order={_PLAIN})?", re.ASCII)


class PlanError(BadInputError):
    """A text is no plan, or a plan does not fit the test that runs it: its faults would not happen,
    and the test would go well.
    """


AMOUNTS: Final = {
    "SHARE": (0.0, 1.0),
    "LATE": (0.0, 1e6),
    "WHICH": (0.0, 1.0),
    "FASTER": (-0.99, 100.0),
}
"""What amounts mean, each with the smallest and the largest that a world can have."""
_LONGEST: Final = 1e9
_MOST: Final = 1000.0
"""Faults of a kind per second: a seed draws them all before they begin."""
_WORDS: Final = (
    "AT counts seconds from the call of world.faults(…) on; A and B are names of nodes; SHARE and "
    "WHICH go from 0 to 1, LATE is in seconds, and FASTER is 0.1 for a clock that is 10 % too fast"
)


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
    means: str = ""
    """What the amount means, a key of `AMOUNTS`; empty for a kind without an amount."""

    def form(self, kind: str) -> str:
        """How a fault of this kind is written."""
        nodes = (_ANY, "A", "A,B")[self.nodes]
        return f"AT {kind} {nodes} SECONDS {self.means}".rstrip()


KINDS: Final = {
    "cut": _Kind(2, (0.5, 10.0), (0.0, 0.0), "no frame passes between {0} and {1} for {s} s"),
    "one_way": _Kind(2, (0.5, 10.0), (0.0, 0.0), "no frame passes from {0} to {1} for {s} s"),
    "lose": _Kind(0, (0.5, 10.0), (0.05, 0.5), "{p} % of all frames are lost for {s} s", "SHARE"),
    "double": _Kind(
        0, (0.5, 10.0), (0.05, 0.5), "{p} % of all frames arrive twice for {s} s", "SHARE"
    ),
    "delay": _Kind(
        2, (0.5, 10.0), (0.01, 2.0), "frames from {0} to {1} take up to {a} s, for {s} s", "LATE"
    ),
    "cut_store": _Kind(1, (0.5, 15.0), (0.0, 0.0), "{0} cannot reach the store for {s} s"),
    "slow_store": _Kind(
        1, (0.5, 15.0), (0.1, 3.0), "the store answers {0} late, by up to {a} s, for {s} s", "LATE"
    ),
    "stall_sockets": _Kind(
        1, (0.5, 10.0), (0.0, 0.0), "no byte passes to or from the sockets of {0} for {s} s"
    ),
    "slow_sockets": _Kind(
        1,
        (0.5, 10.0),
        (0.01, 1.0),
        "bytes of the sockets of {0} take up to {a} s, for {s} s",
        "LATE",
    ),
    "tear_sockets": _Kind(
        1, (0.5, 10.0), (0.0, 0.0), "bytes of the sockets of {0} arrive in pieces for {s} s"
    ),
    "reset_sockets": _Kind(1, (0.1, 0.1), (0.0, 0.0), "all connections of {0} are reset"),
    "lose_datagrams": _Kind(
        1, (0.5, 10.0), (0.05, 0.5), "{p} % of the datagrams of {0} are lost for {s} s", "SHARE"
    ),
    "double_datagrams": _Kind(
        1, (0.5, 10.0), (0.05, 0.5), "{p} % of the datagrams of {0} arrive twice for {s} s", "SHARE"
    ),
    "pause": _Kind(1, (0.5, 15.0), (0.0, 0.0), "the program of {0} is stopped for {s} s"),
    "crash": _Kind(1, (0.1, 10.0), (0.0, 0.0), "{0} crashes, and starts again after {s} s"),
    "kill": _Kind(1, (0.1, 0.1), (0.0, 1.0), "a process of {0} is killed", "WHICH"),
    "fail_disk": _Kind(
        1,
        (0.1, 10.0),
        (0.05, 1.0),
        "{p} % of the writes to the disk of {0} fail for {s} s",
        "SHARE",
    ),
    "slow_disk": _Kind(
        1, (0.5, 10.0), (0.01, 2.0), "the disk of {0} is late, by up to {a} s, for {s} s", "LATE"
    ),
    "skew": _Kind(
        1, (5.0, 30.0), (-0.1, 0.1), "the clock of {0} is {p} % too fast for {s} s", "FASTER"
    ),
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
        parts = [_text(self.at), self.kind, ",".join(self.nodes) or _ANY, _text(self.seconds)]
        return " ".join(parts + [_text(self.amount)] * bool(KINDS[self.kind].means))

    @property
    def story(self) -> str:
        """The fault in words."""
        return KINDS[self.kind].story.format(
            *self.nodes, s=f"{self.seconds:g}", a=f"{self.amount:g}", p=f"{100 * self.amount:g}"
        )

    @classmethod
    def read(cls, text: str) -> "PlannedFault":
        """Read a fault as `str` writes it.

        Raises:
            PlanError: it is no fault.
        """
        words = text.split()
        kind = words[1] if len(words) > 1 else ""
        meaning = KINDS.get(kind)
        if meaning is None:
            hint = did_you_mean(kind, KINDS)
            raise _refused(text, f"a fault of a kind in the list below, not {kind!r}{hint}")
        form = meaning.form(kind)
        if len(words) != len(form.split()):
            raise _refused(text, f"{form!r}, not {len(words)} words")
        names = () if words[2] == _ANY else tuple(words[2].split(","))
        if len(names) != meaning.nodes or len({*names, ""}) != 1 + meaning.nodes:
            raise _refused(text, f"{form!r}, not the nodes {words[2]!r}")
        ranges = {"AT": (0.0, _LONGEST), "SECONDS": (0.0, _LONGEST)} | AMOUNTS
        at, seconds, *amount = (
            _number(text, form, word, name, *ranges[name])
            for name, word in zip(form.split(), words, strict=True)
            if name in ranges
        )
        return cls(at, kind, names, seconds, *amount)


def _check_kind(what: str, kind: str, kinds: Collection[str]) -> None:
    if kind not in kinds:
        raise BadInputError(what, kind, f"a kind of {sorted(kinds)}{did_you_mean(kind, kinds)}")


def _number(text: str, form: str, word: str, name: str, least: float, most: float) -> float:
    try:
        number = float(word)
    except ValueError:
        number = nan
    if not least <= number <= most:
        wanted = f"{form!r} with a number from {least:g} to {most:g} for {name}, not {word!r}"
        raise _refused(text, wanted)
    return number


def _refused(text: str, wanted: str) -> PlanError:
    forms = "".join(f"\n  {meaning.form(kind)}" for kind, meaning in KINDS.items())
    return PlanError(
        "plan",
        text,
        f"{wanted}{'' if wanted.endswith('?') else '.'} Write a fault as in "
        f"'4 kill a@world 0.5 0.1', in one of these forms:{forms}\n"
        f"{_WORDS}",
    )


def _text(number: float) -> str:
    """The shortest text that is read as the same number."""
    return repr(number).removesuffix(".0")


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
            PlanError: it is no plan.
        """
        head, *faults = (part.strip() for part in text.split(";"))
        found = _HEAD.fullmatch(head)
        if found is None:
            example = "'seed=7 order=plain; 4 kill a@world 0.5 0.1'"
            raise PlanError(
                "plan",
                text,
                f"'seed=NUMBER', or 'seed=NUMBER order=plain', before the faults, as "
                f"in {example}: copy it from the failure of the test",
            )
        return cls(
            int(found[1]),
            tuple(PlannedFault.read(fault) for fault in faults if fault),
            found[2] is None,
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

    def check(self) -> None:
        """Raise `BadInputError` for a wrong kind, rate or limit."""
        for kind, rate in self.rates.items():
            _check_kind("faults", kind, KINDS)
            check_number(kind, rate, least=0.0, most=_MOST)
        check_number("seconds", self.seconds, least=0.0, most=_LONGEST)
        for kind, limits in self.limits.items():
            _check_kind("limits", kind, [each for each in KINDS if KINDS[each].means])
            try:
                low, high = limits
            except (TypeError, ValueError):
                wish = "the smallest and the largest amount, such as (0.0, 0.5)"
                raise BadInputError(f"limits of {kind}", limits, wish) from None
            least, most = AMOUNTS[KINDS[kind].means]
            check_number(f"limits of {kind}", low, least=least, most=most)
            check_number(f"limits of {kind}", high, least=low, most=most)

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
