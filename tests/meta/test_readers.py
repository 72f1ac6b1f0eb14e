"""Meta-processes that let each object choose its reader: a thread or a task."""

import threading
from collections.abc import Awaitable
from typing import Any

import pytest
import trio

from ergo_py import MetaProcess
from ergo_py.meta import TCPServer, UDPServer
from tests.meta.owner import owning


class Where(MetaProcess):
    """Reports the thread of its reader."""

    def __init__(self, in_task: bool | None) -> None:
        self._reads_in_task = in_task

    def start(self) -> Awaitable[None] | None:
        self.send(self.parent, threading.get_ident())
        return self._checkpoint() if self._reads_in_task else None

    async def _checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("kind", ["thread", "task"])
@pytest.mark.parametrize("server", [TCPServer, UDPServer])
def test_an_object_that_chooses_its_reader_keeps_its_class(server: Any, kind: Any) -> None:
    made = server(reader=kind)

    assert type(made) is server
    assert made.reader == kind


@pytest.mark.parametrize("in_task, reader", [(True, "task"), (False, "thread"), (None, "thread")])
async def test_a_declared_marker_decides_where_start_runs(
    in_task: bool | None, reader: str
) -> None:
    async with owning() as owned:
        await owned.spawn(Where(in_task))

        assert (await owned.until(int) == threading.get_ident()) == (reader == "task")
