"""`expect_crash` and `CrashLog`: the crashes that a test expects, and the unexpected."""

import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import trio

from .._core.verbs.node import Node
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.info import Ended
from .._core.vocabulary.options import check_number
from .._core.vocabulary.reasons import Crashed

__all__ = ["CrashLog", "ExpectedCrash", "expect_crash", "watch_crashes"]


class ExpectedCrash:
    """The result of ``expect_crash``: the expected crashes that have happened."""

    def __init__(self, error: type[BaseException], match: str | None, count: int | None) -> None:
        self._error = error
        self._match = match
        self._count = count
        self._change = trio.Event()
        self.crashes: list[Ended] = []
        """The crashed processes, oldest first; ``reason`` of each is its ``Crashed``."""

    @property
    def errors(self) -> list[BaseException]:
        """The exceptions, oldest first."""
        return [ended.reason.error for ended in self.crashes if isinstance(ended.reason, Crashed)]

    @property
    def fulfilled(self) -> bool:
        """Whether all expected crashes have happened; with ``count=None``, whether at least a
        single crash has.
        """
        return len(self.crashes) >= (1 if self._count is None else self._count)

    def __str__(self) -> str:
        number = (
            "any number of crashes"
            if self._count is None
            else f"{self._count} crash" + "es" * (self._count > 1)
        )
        return f"{number} with {self._error.__qualname__}" + (
            f" matching {self._match!r}" if self._match else ""
        )

    def claims(self, crashed: Ended) -> bool:
        """Accept a crash as expected, if it matches and the count is not exceeded."""
        error = crashed.reason.error if isinstance(crashed.reason, Crashed) else None
        if not isinstance(error, self._error) or (self._count is not None and self.fulfilled):
            return False
        if self._match is not None and re.search(self._match, str(error)) is None:
            return False
        self.crashes.append(crashed)
        self._change.set()
        self._change = trio.Event()
        return True

    async def wait(self) -> None:
        """Wait until it is fulfilled."""
        while not self.fulfilled:
            await self._change.wait()


class CrashLog:
    """Every crash on a node, expected or not."""

    def __init__(
        self,
        forward: Callable[[Ended], None] | None = None,
        expected: Iterable[ExpectedCrash] = (),
    ) -> None:
        self._forward = forward
        self.expected: list[ExpectedCrash] = list(expected)
        self.unexpected: list[Ended] = []

    def __call__(self, crashed: Ended) -> None:
        """Note a crash."""
        if not any(expectation.claims(crashed) for expectation in self.expected):
            self.unexpected.append(crashed)
        if self._forward is not None:
            self._forward(crashed)


def watch_crashes(node: Node) -> CrashLog:
    """Return the log of a node's crashes, which starts at the first call."""
    kernel = node._kernel
    log = kernel.lifetimes.on_crash
    if not isinstance(log, CrashLog):
        log = CrashLog(log)
        kernel.lifetimes.watch_crashes(log)
    return log


@asynccontextmanager
async def expect_crash(
    node: Node,
    error: type[BaseException] = Exception,
    *,
    match: str | None = None,
    count: int | None = 1,
    timeout: float = 1.0,
) -> AsyncIterator[ExpectedCrash]:
    """Expect a process or meta-process to crash inside the block, and wait for the crash at the end
    of the block.

    Args:
        node: the node.
        error: the exception it crashes with, or a base class.
        match: a regular expression for the text of the exception.
        count: the number of crashes; None for at least a single crash.
        timeout: seconds to wait at the end of the block.

    Raises:
        AssertionError: no process crashed, or it crashed with another exception.
    """
    __tracebackhide__ = True
    if not (isinstance(error, type) and issubclass(error, BaseException)):
        raise BadInputError("expect_crash(error)", error, "the class of an exception")
    if count is not None:
        check_number("count", count, least=1, whole=True)
    check_number("timeout", timeout, least=0.0)
    log = watch_crashes(node)
    before = len(log.unexpected)
    expected = ExpectedCrash(error, match, count)
    log.expected.append(expected)
    try:
        yield expected
        with trio.move_on_after(timeout):
            await expected.wait()
    finally:
        log.expected.remove(expected)
    if not expected.fulfilled:
        others = [f"{ended}: {ended.reason}" for ended in log.unexpected[before:]]
        raise AssertionError(
            f"expected {expected} within {timeout:g} s; there were {len(expected.crashes)}"
            + ("".join(f"\n  another crash: {line}" for line in others) or ", and no others")
        )
