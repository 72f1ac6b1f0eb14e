"""`reload`: let a node and its processes read their settings again, and its servers their
certificates, while the node goes on.
"""

from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import current_task

from ._core.kernel import Kernel
from ._core.metas.meta import Meta
from ._core.processes.envelope_handlers import callback
from ._core.processes.process import Process, processes_of
from ._core.tables.pending_calls import Caller
from ._core.vocabulary.envelopes import LOOK, Lane
from ._core.vocabulary.errors import CallTimeoutError, TargetDownError
from ._core.vocabulary.options import check_number
from ._core.vocabulary.reasons import Crashed
from ._core.vocabulary.text import text_of

if TYPE_CHECKING:
    from ._core.vocabulary.ids import PID

__all__ = ["reload"]

_CALLBACK: Final = "handle_reload"
_WAITS: Final = (
    f"its {_CALLBACK} was not called: it waits for this reload, and could not answer before; a "
    "callback writes `self.run_task(self.node.reload)`, which does not wait"
)


async def reload(kernel: Kernel, timeout: float) -> list[str]:
    """Read the settings of the node again, let servers read their certificates again, and call
    ``handle_reload`` of all processes that define it. Returns the settings that could not be read,
    as text. A process that reloads its node in a callback is not asked, nor is one that waits for
    it: neither can answer before the callback has returned.
    """
    check_number("timeout", timeout, least=0.0)
    failed = []
    for name, read in kernel.settings.items():
        try:
            read()
        except Exception as error:  # the value is invalid, or the function of the user raised
            kernel.logger.error(
                "a setting cannot be read; the old one stays in use",
                setting=name,
                exception=Crashed(error).traceback,
            )
            failed.append(f"{name}: {type(error).__qualname__}: {text_of(error)}")
    metas = [meta for meta in kernel.router.registry.aliases.values() if isinstance(meta, Meta)]
    failed += [
        f"{meta.callbacks.behaviour} {meta.id}: {text}"
        for meta in metas
        if (text := meta.behaviour._reload())
    ]

    async def ask(process: Process) -> None:
        name = _named(process)
        sender: PID = kernel.pid
        try:
            # Behind the messages that wait: between two messages, and in the order of sending.
            await kernel.calls.ask(
                sender, process, process.id, Lane.MAIN, LOOK, "reload", _reload, timeout
            )
        except CallTimeoutError:
            failed.append(f"{name}: no answer within {timeout:g} s")
        except TargetDownError:
            pass  # it has ended, and so has its work
        except Exception as error:  # handle_reload raised, any error
            failed.append(f"{name}: {type(error).__qualname__}: {text_of(error)}")

    task, processes = current_task(), list(processes_of(kernel.router).values())
    waiting = [each for each in processes if each.works_in(task) or each.waits_for_task(task)]
    async with trio.open_nursery() as nursery:
        for process in processes:
            if _CALLBACK not in process.callbacks.defined:
                continue
            if any(each is process or kernel.router.ring_closed(each, process) for each in waiting):
                failed.append(f"{_named(process)}: {_WAITS}")
            else:
                nursery.start_soon(ask, process)
    return failed


def _named(process: Process) -> str:
    return f"{process.name or process.callbacks.behaviour} {process.id}"


async def _reload(process: Process, caller: Caller) -> None:
    """Run ``handle_reload`` in the turn of the process. Settings that cannot be read do not end the
    process: it goes on with those that it has.
    """
    try:
        await callback(process, _CALLBACK)
    except Exception as error:
        process.log.error(f"{_CALLBACK} raised", exception=Crashed(error).traceback)
        process.kernel.calls.reply(caller, None, error)
    else:
        process.kernel.calls.reply(caller, None, None)
