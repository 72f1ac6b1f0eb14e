"""Waiting until nothing is going on any more: no message under way, nobody at work."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import Final

import trio
from trio.abc import Instrument
from trio.testing import wait_all_tasks_blocked

from .._core.metas.meta import Meta
from .._core.processes.process import Process
from .._core.verbs.node import Node
from .._core.vocabulary.errors import ErgoError
from .._core.vocabulary.ids import Target
from .._core.vocabulary.options import check_number
from .._core.vocabulary.states import SLEEP, MetaState
from .clock import VirtualClock
from .threads import look, stirring

__all__ = ["UnsettledError", "busy", "settle"]

_PAUSE: Final = 0.002
"""Real seconds between two looks at the threads."""


class UnsettledError(ErgoError, AssertionError):
    """Something was still going on when the time was over."""

    def __init__(self, timeout: float, busy: Collection[str]) -> None:
        self.timeout = timeout
        self.busy = tuple(busy)
        """One line for each that was busy."""
        super().__init__(
            f"not settled within {timeout:g} s:" + "".join(f"\n  {line}" for line in busy)
        )


async def settle(
    node: Node,
    *,
    timeout: float = 5.0,
    except_for: Collection[Target] = (),
    ignore: Collection[str] = (),
) -> None:
    """Wait until every mailbox is empty and every process asleep, nothing waits in the bridge, and
    all threads are quiet.

    Timers that have not fired are no work, nor is what waits for a process that was suspended.
    Virtual time does not jump while this waits. What comes from outside cannot be known: bytes that
    are still inside the operating system or the network, or what a reader is about to be sent.

    Args:
        node: the node that is to settle.
        timeout: real seconds, whatever clock the test has.
        except_for: processes and meta-processes that may be busy, such as one that waits for an
            answer the test is going to give.
        ignore: names of threads that may be busy, since they have nothing to do with it.

    Raises:
        UnsettledError: the time was over; it names who was busy.
    """
    __tracebackhide__ = True
    check_number("timeout", timeout, least=0.0)
    deadline = perf_counter() + timeout
    clock = trio.lowlevel.current_clock()
    with clock.held() if isinstance(clock, VirtualClock) else nullcontext():
        while True:
            before = look(ignore)
            with _at_latest(deadline) as scope:
                await wait_all_tasks_blocked(_PAUSE)
            after = look(ignore)
            stirred = [
                *stirring(before, after),
                *(f"worker thread {name}" for name in after.working.values()),
            ]
            left = busy(node, except_for=except_for)
            if scope.cancelled_caught and not left:
                left.append("tasks that are no process of this node never rest")
            left += [f"{who} is at work" for who in stirred]
            if not left:
                return
            if perf_counter() >= deadline:
                raise UnsettledError(timeout, left)


def busy(node: Node, *, except_for: Collection[Target] = ()) -> list[str]:
    """Who has something to do on a node at this moment, one line for each; what threads do is not
    seen.
    """
    router = node._router
    excepted = [router.resolve(target) for target in except_for]
    lines: list[str] = []
    for process in router.processes.values():
        if process in excepted or _is_suspended(process):
            continue
        if process.state is not SLEEP:
            lines.append(f"{process!r} is {process.state.value}, in {process.current_callback()}")
        elif len(process.mailbox):
            lines.append(f"{process!r} has {len(process.mailbox)} in its mailbox")
    for meta in router.registry.aliases.values():
        if isinstance(meta, Meta) and meta not in excepted:
            lines += _busy_meta(meta)
    if router.bridge.pending:
        lines.append(f"{router.bridge.pending} that threads have handed over wait for the loop")
    return lines


def _is_suspended(process: Process) -> bool:
    """Whether somebody has told it to take no message: it will not, however long one waits."""
    watch = process.kernel.watches.get(process.id)
    return watch is not None and watch.suspended


def _busy_meta(meta: Meta) -> Iterator[str]:
    if meta.reason is not None or not meta.initialised:
        yield f"{meta!r} is {'starting' if meta.reason is None else 'ending'}, in {meta.current_callback()}"
    elif meta.state is MetaState.RUNNING:
        yield f"{meta!r} is running, in {meta.current_callback()}"
    elif len(meta.mailbox):
        yield f"{meta!r} has {len(meta.mailbox)} in its mailbox"
    if len(meta.outbox):
        yield f"{meta!r} has sent {len(meta.outbox)} that are not delivered"


class _Alarm(Instrument):
    """Cancels a scope when a real time has come, whatever clock the run has. trio asks it once for
    each pass of its loop.

    A loop that is just about to have its pause is given the time for it: only then is it known
    whether anybody was busy.
    """

    def __init__(self, scope: trio.CancelScope, deadline: float) -> None:
        self._scope = scope
        self._deadline = deadline

    def before_io_wait(self, timeout: float) -> None:
        late = perf_counter() - self._deadline
        if late >= 0 and (timeout == 0 or late > 10 * _PAUSE):
            self._scope.cancel()


@contextmanager
def _at_latest(deadline: float) -> Iterator[trio.CancelScope]:
    with trio.CancelScope() as scope:
        alarm = _Alarm(scope, deadline)
        trio.lowlevel.add_instrument(alarm)
        try:
            yield scope
        finally:
            trio.lowlevel.remove_instrument(alarm)
