"""`checked_node` and `checked_nodes`: nodes for a single test, checked for leaks and crashes after
shutdown. The pytest plugin's fixture uses the first.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Unpack

import trio

from .._core.metas.meta import Meta
from .._core.node_lifecycle import NodeKeywords
from .._core.vocabulary.errors import BadInputError, NotAllowedError
from .._core.vocabulary.options import check_number
from ..node import Node, open_node
from .crashes import CrashLog, ExpectedCrash
from .leaks import LeakError, take_inventory

__all__ = ["checked_node", "checked_nodes"]

_DEFAULTS: Final[NodeKeywords] = {"watchdog": None, "stop_timeout": 5.0}
"""No watchdog: a test at a breakpoint is no blocked loop, and the watchdog does not see virtual
time.
"""


@asynccontextmanager
async def checked_node(
    name: str = "test@localhost",
    *,
    grace: float = 2.0,
    expect_crash: type[BaseException] | Sequence[type[BaseException]] = (),
    **options: Unpack[NodeKeywords],
) -> AsyncIterator[Node]:
    """Open a node for a test. When the block has succeeded and the node is down, nothing may be
    left and no process may have crashed.

    Args:
        name: the node's name.
        grace: real seconds that threads, descriptors and child programs may take to end after
            shutdown.
        expect_crash: exceptions with which processes will crash, each at least once. For a single
            crash at a certain place use the context manager of that name.
        options: those of ``open_node``.

    Raises:
        LeakError: processes or meta-processes had to be killed or abandoned, threads, descriptors
            or child programs are left, or a process crashed unexpectedly.
        NotAllowedError: the event loop is not trio.
    """
    __tracebackhide__ = True
    async with checked_nodes(name, grace=grace, expect_crash=expect_crash, **options) as (node,):
        yield node


@asynccontextmanager
async def checked_nodes(
    *names: str,
    grace: float = 2.0,
    expect_crash: type[BaseException] | Sequence[type[BaseException]] = (),
    **options: Unpack[NodeKeywords],
) -> AsyncIterator[tuple[Node, ...]]:
    """Open several nodes for a test, in this order, and check all of them as :func:`checked_node`
    does when they are down. The last node is closed first.

    With ``network=Memory(types=[…])`` they can talk to each other, and the network can be cut.
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
    log = CrashLog(expected=expected)
    given: NodeKeywords = {**_DEFAULTS, **options}
    nodes: list[Node] = []
    async with AsyncExitStack() as stack:
        for name in names:
            node = await stack.enter_async_context(open_node(name, **given))
            node._kernel.lifetimes.watch_crashes(log)
            nodes.append(node)
        yield tuple(nodes)
    lines = [f"{ended} crashed: {ended.reason}" for ended in log.unexpected]
    lines += [f"expected {each}, but there was none" for each in expected if not each.fulfilled]
    for node in nodes:
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
    lines = [f"process {killed} had to be killed" for killed in (report.killed if report else ())]
    lines += [
        f"{abandoned} did not even end when it was killed"
        for abandoned in (report.abandoned if report else ())
    ]
    lines += [f"process {process!r} is left" for process in router.processes.values()]
    lines += [
        f"meta-process {meta!r} is left"
        for meta in router.registry.aliases.values()
        if isinstance(meta, Meta)
    ]
    return lines
