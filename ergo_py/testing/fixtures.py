"""A node for one test, with everything checked when it is down. What the pytest plugin's fixture
gives.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from .._core.metas.meta import Meta
from .._core.vocabulary.errors import BadInputError, NotAllowedError
from .._core.vocabulary.options import check_number
from ..node import Node, open_node
from .crashes import CrashLog, ExpectedCrash
from .leaks import LeakError, take_inventory

__all__ = ["checked_node"]

_DEFAULTS: Final[dict[str, Any]] = {"watchdog": None, "stop_timeout": 5.0}
"""A test that stops at a breakpoint is no blocked loop, and the watchdog does not see virtual time.
"""


@asynccontextmanager
async def checked_node(
    name: str = "test@localhost",
    *,
    grace: float = 2.0,
    expect_crash: type[BaseException] | Sequence[type[BaseException]] = (),
    **options: Any,
) -> AsyncIterator[Node]:
    """A node for a test. When the block has ended well and the node is down, nothing may be left
    and nothing may have crashed.

    Args:
        name: the node's name.
        grace: how many real seconds threads, descriptors and programs may take to go, once the node
            is down.
        expect_crash: exceptions with which processes are going to crash, each at least once. For
            one crash at one place use the context manager of that name.
        options: those of ``open_node``.

    Raises:
        LeakError: processes or meta-processes had to be killed or left behind, threads, descriptors
            or child programs are left, or a process crashed and nobody had expected it.
        NotAllowedError: this is not trio.
    """
    __tracebackhide__ = True
    if not trio.lowlevel.in_trio_task():
        raise NotAllowedError(
            "a node lives in trio, and this is another event loop; with anyio's plugin, let the "
            "`anyio_backend` fixture be 'trio'"
        )
    check_number("grace", grace, least=0.0)
    expected = [ExpectedCrash(error, None, None) for error in _errors(expect_crash)]
    before = take_inventory()
    log = CrashLog()
    log.expected += expected
    async with open_node(name, **{**_DEFAULTS, **options}) as node:
        node._kernel.on_crash = log
        yield node
    lines = [f"{one} crashed: {one.reason}" for one in log.unexpected]
    lines += [f"expected {one}, but there was none" for one in expected if not one.fulfilled]
    lines += _left_on(node)
    lines += await before.left_after(grace)
    if lines:
        raise LeakError(lines)


def _errors(
    given: type[BaseException] | Sequence[type[BaseException]],
) -> Sequence[type[BaseException]]:
    errors = (given,) if isinstance(given, type) else tuple(given)
    for error in errors:
        if not (isinstance(error, type) and issubclass(error, BaseException)):
            raise BadInputError("expect_crash", error, "the class of an exception, or several")
    return errors


def _left_on(node: Node) -> list[str]:
    report, router = node.exit_report, node._router
    lines = [f"process {one} had to be killed" for one in (report.killed if report else ())]
    lines += [
        f"{one} did not even end when it was killed" for one in (report.abandoned if report else ())
    ]
    lines += [f"process {one!r} is left" for one in router.processes.values()]
    lines += [
        f"meta-process {one!r} is left"
        for one in router.registry.aliases.values()
        if isinstance(one, Meta)
    ]
    return lines
