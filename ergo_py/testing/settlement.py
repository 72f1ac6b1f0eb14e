"""`settle`: waits until nodes are idle, with no message in flight and no process at work."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import Final

import trio
from trio.abc import Instrument
from trio.testing import wait_all_tasks_blocked

from .._core.metas.meta import Meta
from .._core.metas.termination import Phase
from .._core.processes.process import Process, processes_of
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
    """The node was not idle within the timeout."""

    def __init__(self, timeout: float, busy: Collection[str]) -> None:
        self.timeout = timeout
        self.busy: tuple[str, ...] = tuple(busy)
        """A line for each busy process or thread."""
        super().__init__(
            f"not settled within {timeout:g} s:" + "".join(f"\n  {line}" for line in busy)
        )


async def settle(
    node: Node,
    *others: Node,
    timeout: float = 5.0,
    except_for: Collection[Target] = (),
    ignore: Collection[str] = (),
) -> None:
    """Wait until every mailbox is empty, every process sleeps, nothing waits in the bridge, and all
    threads are quiet; with several nodes, on all of them at the same time.

    Timers that have not fired are no work, nor are messages for a suspended process. Virtual time
    does not jump during the wait. Input from outside cannot be known: bytes that are still inside
    the operating system or the network, or data that a reader is about to receive. Between nodes of
    a ``Memory``, no frame is on its way then, except those that a cut, a loss or a freeze keeps
    back.

    Args:
        node: the node that is to settle.
        others: further nodes of this test that are to settle with it.
        timeout: real seconds, also with a virtual clock.
        except_for: processes and meta-processes that may be busy, such as a process that waits for
            an answer of the test.
        ignore: names of unrelated threads, which may be busy.

    Raises:
        UnsettledError: the time ran out; it names the busy processes.
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
            left = [line for each in (node, *others) for line in busy(each, except_for=except_for)]
            if scope.cancelled_caught and not left:
                left.append("tasks that are no process of this node never rest")
            left += [f"{name} is at work" for name in stirred]
            if not left:
                return
            if perf_counter() >= deadline:
                raise UnsettledError(timeout, left)


def busy(node: Node, *, except_for: Collection[Target] = ()) -> list[str]:
    """The processes of a node that have work at this moment, a line each; threads are not
    examined.
    """
    router = node._router
    excepted = [router.resolve(target) for target in except_for]
    lines: list[str] = []
    for process in processes_of(router).values():
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
        lines.append(
            f"{len(router.bridge.pending)} that threads have handed over wait for the loop"
        )
    return lines


def _is_suspended(process: Process) -> bool:
    """Return whether the process is suspended: its messages stay queued, however long the test
    waits.
    """
    watch = process.kernel.watches.get(process.id)
    return watch is not None and watch.suspended


def _busy_meta(meta: Meta) -> Iterator[str]:
    if meta.ending.phase is not Phase.OPEN:
        phase = "starting" if meta.reason is None else "ending"
        yield f"{meta!r} is {phase}, in {meta.current_callback()}"
    elif meta.state is MetaState.RUNNING:
        yield f"{meta!r} is running, in {meta.current_callback()}"
    elif len(meta.mailbox):
        yield f"{meta!r} has {len(meta.mailbox)} in its mailbox"
    if len(meta.outbox):
        yield f"{meta!r} has sent {len(meta.outbox)} that are not delivered"


class _Alarm(Instrument):
    """Cancels a scope at a real time, also with a virtual clock. trio calls it once per pass of its
    loop.

    A loop that is about to start its idle pause may finish it: only after the pause is it known
    whether a task was busy.
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
