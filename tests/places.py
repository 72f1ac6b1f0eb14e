"""Where the target of a test is: on the node of the test, or on another node.

The other node is in the same program. Values that cannot travel, such as the functions of a test,
go there by reference, so that the same test runs in both places.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest

from ergo_py import LOOP, Node, Service, Threads
from ergo_py.network import Memory
from ergo_py.network.messages.listed_class import RefusedValueError
from tests.actors import Failed
from tests.dispatched import EVERYWHERE
from tests.support import running_node

__all__ = ["Place", "anywhere", "here_and_abroad"]

_MARK: Final = "by reference:"


class ByReference:
    """The message types of a node that also lets other values pass, to nodes of this program."""

    def __init__(self, types: Any, kept: list[Any]) -> None:
        self._types = types
        self._kept = kept
        self.encoders: dict[type, Any] = {}
        """No type has a short cut past `encode`."""

    def encode(self, value: object) -> bytes:
        try:
            data: bytes = self._types.encode(value)
        except RefusedValueError:
            self._kept.append(value)
            data = self._types.encode((_MARK, len(self._kept) - 1))
        return data

    def encode_reason(self, reason: object) -> bytes:
        return self.encode(reason)

    def decode(self, data: bytes) -> Any:
        value = self._types.decode(data)
        if type(value) is tuple and value[:1] == (_MARK,):
            return self._kept[value[1]]
        return value

    def decode_reason(self, data: bytes) -> Any:
        return self.decode(data)

    def type_of(self, data: bytes) -> type:
        return type(self.decode(data))


class Shared(Memory):
    """A network whose nodes share their values."""

    def __init__(self) -> None:
        super().__init__(types=[Failed], allow={"*": "default,kill"})
        self._kept: list[Any] = []

    def join_network(self, kernel: Any) -> Any:
        network: Any = super().join_network(kernel)
        network.context.types = ByReference(network.types, self._kept)
        return network


@dataclass(frozen=True)
class Place:
    """The place of a target, seen from the node of the test."""

    is_abroad: bool

    @asynccontextmanager
    async def nodes(self, **options: Any) -> AsyncIterator[tuple[Node, Node]]:
        """The node of the test, and the node of the target. They may be the same."""
        if not self.is_abroad:
            async with running_node(**options) as node:
                yield node, node
            return
        network = Shared()
        async with (
            running_node("here@test", network=network, **options) as node,
            running_node("there@test", network=network, **options) as there,
        ):
            yield node, there

    def service(self, node: Node, there: Node, name: str) -> Service:
        """The service of a child of the other node."""
        return node.at(there.name).service(name) if self.is_abroad else node.service(name)

    async def arrived(self, node: Node, there: Node) -> None:
        """Wait until everything that both nodes have sent has arrived."""
        if self.is_abroad:
            await node.at(there.name).ping()
            await there.at(node.name).ping()

    def __str__(self) -> str:
        return "abroad" if self.is_abroad else "here"


_HERE, _ABROAD = Place(False), Place(True)
anywhere = pytest.mark.parametrize("place", [_HERE, _ABROAD], ids=str)
here_and_abroad = pytest.mark.parametrize(
    "where, place",
    [
        *((dispatcher, _HERE) for dispatcher in EVERYWHERE),
        *((dispatcher, _ABROAD) for dispatcher in (LOOP, Threads())),
    ],
    ids=str,
)
