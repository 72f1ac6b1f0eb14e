"""Peers join the workloads; a peer that fails or hangs spoils only its own figures."""

import importlib
import pkgutil
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType, ModuleType

from . import peers
from .harness import Case, Figures, Variant

__all__ = ["LIMIT", "Joined", "guarded", "join", "time_limit"]

LIMIT = 180.0
"""How many seconds a piece of work of a peer may take."""


@dataclass
class Joined:
    """Cases with peers in them, and the reasons for absent peers."""

    cases: list[Case]
    absent: dict[str, str] = field(default_factory=dict[str, str])
    """Modules of peers that could not be imported, and why."""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """Pieces of work that gave no figures, and why."""


def join(
    cases: Iterable[Case],
    also: Collection[str] = (),
    package: ModuleType = peers,
    limit: float = LIMIT,
) -> Joined:
    """The cases that a peer adds something to, with all that the peers add; and the cases of these
    names, whose peers are in the workload itself.
    """
    joined = Joined([])
    added: dict[str, dict[str, Variant]] = {}
    for module in pkgutil.iter_modules(package.__path__):
        try:
            adds: Mapping[str, Mapping[str, Variant]] = getattr(
                importlib.import_module(f"{package.__name__}.{module.name}"), "ADDS", {}
            )
        except ImportError as error:
            joined.absent[module.name] = str(error)
            continue
        for case, variants in adds.items():
            for name, variant in variants.items():
                title = f"{case}: {name}"
                added.setdefault(case, {})[name] = guarded(variant, title, joined.failed, limit)
    joined.cases = [
        replace(case, variants={**case.variants, **added.get(case.name, {})})
        for case in cases
        if case.name in added or case.name in also
    ]
    return joined


def guarded(variant: Variant, title: str, failed: dict[str, str], limit: float) -> Variant:
    """The same work; if it fails or takes too long it gives no figures, says why once, and is not
    tried again.
    """

    def work(size: int) -> Figures:
        if title in failed:
            return {}
        try:
            with time_limit(limit):
                return variant(size)
        except Exception as error:
            failed[title] = f"{type(error).__name__}: {error}"
            return {}

    return work


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread after so many seconds, even if it waits."""

    def expire(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
