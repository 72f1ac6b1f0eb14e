"""The messages between the nodes of the example."""

from dataclasses import dataclass

from ergo_py import Request


@dataclass(frozen=True)
class HowBusy(Request[int]):
    """Ask a desk how many jobs it has done."""


@dataclass(frozen=True)
class Job:
    """Work for a desk."""

    number: int
