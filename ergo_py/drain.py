"""`drain`: take a node out of service while it goes on running, as before a deployment."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, cast

import trio
from trio.lowlevel import Task, current_task

from ._core.kernel import Kernel
from ._core.metas.meta import Meta
from ._core.processes.process import Process, processes_of
from ._core.vocabulary.errors import CallTimeoutError, TargetDownError
from ._core.vocabulary.messages import Drain
from ._core.vocabulary.options import check_number
from ._core.vocabulary.text import text_of

if TYPE_CHECKING:
    from .network.network import Network

__all__ = ["drain"]

_GRACE: Final = 1.0
"""Seconds that a process has for its answer after the time of its drain is over."""
_LOOK: Final = 0.02
"""Seconds between two looks at the calls of other nodes that are under way."""


async def drain(
    kernel: Kernel, call: Callable[..., Awaitable[object]], timeout: float
) -> list[str]:
    """Take a node out of service. Returns the work that was not finished in time, as text.

    New calls of other nodes are refused only after names, singletons and groups are given up:
    until then other nodes do not know that they have to look elsewhere. A process that drains its
    node in a callback is not asked: it cannot answer before the callback has returned.
    """
    check_number("timeout", timeout, least=0.0)
    now = kernel.clock.now
    began = now()
    unfinished: list[str] = []
    kernel.begin_drain()

    async def ask(each: Process | Meta, name: str) -> None:
        try:
            cut = await call(each.id, Drain(timeout), timeout=timeout + _GRACE)
        except CallTimeoutError:
            unfinished.append(f"{name}: no answer within {timeout:g} s")
        except TargetDownError:
            # It was killed, perhaps, and its children still end: a caller is told at once.
            with trio.move_on_after(max(0.0, began + timeout - now())) as scope:
                await each.wait_gone()
            if scope.cancelled_caught:
                unfinished.append(f"{name}: it has not ended within {timeout:g} s")
        except Exception as error:  # it refuses, by any error
            unfinished.append(f"{name}: {type(error).__qualname__}: {text_of(error)}")
        else:
            if cut:
                unfinished.append(f"{name}: {cut} cut off")

    async with trio.open_nursery() as nursery:
        for each, name in _draining(kernel, current_task()):
            nursery.start_soon(ask, each, name)
    network = cast("Network | None", kernel.router.remote)
    if network is not None:
        network.refuse_calls()
        with trio.move_on_after(max(0.0, began + timeout - now())):
            while network.calls_in():  # noqa: ASYNC110 - no event tells the last answer
                await trio.sleep(_LOOK)
        if waiting := network.calls_in():
            unfinished.append(f"{waiting} calls of other nodes are not answered")
    return unfinished


def _draining(kernel: Kernel, task: Task) -> list[tuple[Process | Meta, str]]:
    """The processes and meta-processes that take part in a drain, with their names. A process whose
    callback waits for the task of the drain takes no part.
    """
    metas = [meta for meta in kernel.router.registry.aliases.values() if isinstance(meta, Meta)]
    named: list[tuple[Process | Meta, str | None]] = [
        *((process, process.name) for process in processes_of(kernel.router).values()),
        *((meta, None) for meta in metas),
    ]
    return [
        (each, f"{name or each.callbacks.behaviour} {each.id}")
        for each, name in named
        if getattr(each.behaviour, "drains", False) and not _waits_for(each, task)
    ]


def _waits_for(each: Process | Meta, task: Task) -> bool:
    """Whether a callback runs in the task, or waits at the end of a nursery for it."""
    return isinstance(each, Process) and (each.works_in(task) or each.waits_for_task(task))
