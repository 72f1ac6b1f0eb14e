"""Resources and meta-processes that several test modules of meta-processes use."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from ergo_py import (
    MetaProcess,
)
from tests._core.metas.metas import (
    InThread,
    Owned,
)
from tests.actors import Failed, Puppet

__all__ = [
    "Closed",
    "InitialisedOnLoop",
    "assert_nothing_is_left",
    "fail",
    "spawn_and_fail",
]


def fail(text: str, _me: Any) -> None:
    raise Failed(text)


class InitialisedOnLoop(InThread):
    """Runs a function as its ``init``, on the loop."""

    def __init__(self, function: Callable[[Any], Any], notes: list[Any] | None = None) -> None:
        super().__init__(notes)
        self.function = function

    async def init(self) -> None:
        result = self.function(self)
        if inspect.isawaitable(result):
            await result


async def spawn_and_fail(
    owned: Owned, meta: MetaProcess, error: type[BaseException], **options: Any
) -> Any:
    """Have the owner spawn something that fails, and give back the error."""

    async def spawn(owner: Puppet) -> BaseException:
        with pytest.raises(error) as caught:
            await owner.spawn_meta(meta, **options)
        return caught.value

    return await owned.ask_owner(spawn)


def assert_nothing_is_left(owned: Owned) -> None:
    info = owned.node.info()
    assert owned.node.metas() == []
    assert (info.metas, info.aliases, info.reader_threads) == (0, 0, 0)
    assert owned.node.process_info(owned.owner).children == ()
    assert owned.readers() == []


class Closed:
    """Notes when it is closed."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True
