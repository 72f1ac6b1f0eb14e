"""`Stage`, `Batch` and `Sink`: the parts of a pipeline that handle items. `ToActor`: an actor as a
part.
"""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from copy import copy
from math import inf
from typing import Any, ClassVar, Self

from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.ids import PID, Alias, Key, Name, Target
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from ..actor import Actor
from .item import Item
from .keys import text_of_key

__all__ = ["Batch", "Batched", "Sink", "Stage", "Step", "ToActor"]


def _key_of(item: Item) -> Hashable:
    return item.key


class Step:
    """The common part of stages and sinks. The pipeline works with copies: one for each thread."""

    reopens: ClassVar[bool] = False
    """Whether the pipeline calls ``close`` and ``open`` after an error of this step."""
    stuck_after: float = inf
    """Seconds that a call of the step may take, if it has a thread. After them the pipeline ends,
    and its supervisor starts it again, with new threads: the stuck thread is abandoned and
    reported.
    """
    threads: int = 1
    key: Callable[[Item], Hashable] = staticmethod(_key_of)

    def open(self) -> Awaitable[None] | None:
        """Connect to whatever the step needs. If it raises, the pipeline tries again, as its
        ``reopen`` says; meanwhile items wait, and their tries are not counted.
        """
        return None

    def close(self) -> Awaitable[None] | None:
        """Disconnect, also after an ``open`` that has failed."""
        return None

    def wake(self) -> None:
        """Make a call of the step return that is in progress while the pipeline ends, such as by
        ``sqlite3.Connection.interrupt``. Called on the loop, perhaps several times, also during
        ``open`` and ``close``: it must be quick. By default nothing is done.
        """

    def times(self, count: int, key: Callable[[Item], Hashable] | None = None) -> Self:
        """Return the step for ``count`` items at once, each in a thread of its own; an ``async
        def`` has as many tasks. Items of equal keys keep their order; items of the key None have
        none.

        Args:
            count: the number of threads.
            key: the key of an item; by default ``item.key``.

        Raises:
            BadInputError: the number is not a positive integer.
        """
        check_number("times(count)", count, least=1, whole=True)
        several = copy(self)
        several._repeat(count, self.key if key is None else key)
        return several

    def _repeat(self, count: int, key: Callable[[Item], Hashable]) -> None:
        self.threads, self.key = count, key


class Stage(Step):
    """Handles one item at a time, and passes its result on. Subclass it.

    A plain ``handle`` runs in a thread and may block; an ``async def`` runs on the loop. ``open``
    and ``close`` run where ``handle`` does.
    """

    def handle(self, item: Item) -> object:
        """Return the body of the item for the next stage. An exception fails this item only: the
        pipeline tries it again, and then gives it up.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no handle(self, item)")


class Batched(Step):
    """The common part of steps that handle items in batches."""

    batch: int = 100
    within: float = 0.0

    def __init__(self, *, batch: int = 100, within: float = 0.0) -> None:
        check_number("batch", batch, least=1, whole=True)
        check_number("within", within, least=0.0)
        self.batch = batch
        self.within = within

    def keep_alive(self) -> None:
        """Called four times a second while there are no items: for a library that must answer its
        broker even then. If it raises, the pipeline calls ``close`` and ``open``.
        """

    def handle_batch(self, items: list[Item]) -> object:
        """Handle the items."""
        raise NotImplementedError(f"{type(self).__qualname__} has no handle_batch(self, items)")


class Batch(Batched):
    """Handles items in batches, and passes their results on, such as a service that answers many
    questions at once. Subclass it.

    A plain ``handle_batch`` runs in a thread and may block; an ``async def`` runs on the loop.

    An actor handles its messages in batches without a pipeline: it has ``batch = Batch(100, 0.01)``
    and ``handle_batch(self, messages)``, see `Actor.handle_batch`.

    Args:
        size: the most items, or messages, of a batch.
        within: seconds to wait for a full batch; 0 takes those that are there.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    def __init__(self, size: int = 100, within: float = 0.0) -> None:
        check_number("size", size, least=1, whole=True)
        super().__init__(batch=size, within=within)

    def handle_batch(self, items: list[Item]) -> Awaitable[Sequence[object]] | Sequence[object]:
        """Return the body of each item for the next stage, in the order of the items. If it raises,
        the pipeline tries the same batch again, and then its halves, down to single items.
        """
        super().handle_batch(items)
        return ()


class Sink(Batched):
    """Handles items in batches, at the end of the pipeline. Subclass it.

    A plain ``handle_batch`` runs in a thread and may block; an ``async def`` runs on the loop.

    Args:
        batch: the most items of a batch.
        within: seconds to wait for a full batch; 0 takes the items that are there.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    reopens: ClassVar[bool] = True

    def handle_batch(self, items: list[Item]) -> Awaitable[None] | None:
        """Handle the items. When it returns, the pipeline acknowledges all of them. If it raises,
        the pipeline tries the same batch again, and then its halves, down to single items: so it
        should undo the part of the batch that it has done.
        """
        super().handle_batch(items)
        return None


class ToActor(Stage):
    """Calls an actor with the body of each item. The answer is the body for the next stage; at the
    end of a pipeline it acknowledges the item.

    Args:
        address: the actor; or a class of entities, whose entity with the item's key is called; or a
            list of actors, such as those of worker nodes, which share the items: the actors of
            equal keys are the same. Each is called for one item at a time, unless ``times`` says
            otherwise. The key of an entity is a text: bytes, such as the keys of Redis and Kafka,
            are read as UTF-8.
        timeout: seconds for the answer.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    def __init__(
        self, address: Target | type[Actor] | list[Name[Any]], timeout: float = 5.0
    ) -> None:
        self._addresses: Sequence[Target | type[Actor]] = (
            list(address) if isinstance(address, list) else (address,)
        )
        if not self._addresses:
            raise BadInputError("address", address, "a list with the address of an actor")
        for each in self._addresses:
            is_kind = isinstance(each, type) and issubclass(each, Actor) and each is address
            if not is_kind and not isinstance(each, PID | Alias | Name | Key | str):
                raise BadInputError(
                    "address", each, "the address of an actor, a list of addresses, or a class"
                )
        check_number("timeout", timeout, least=0.0)
        self.threads: int = len(self._addresses)
        self._address = self._addresses[0]
        self._timeout = timeout
        self._caller: Actor | None = None

    def call_by(self, caller: Actor, number: int) -> None:
        """Called by the pipeline, with the number of the copy: call one of the actors on behalf of
        this process.
        """
        self._caller = caller
        self._address = self._addresses[number % len(self._addresses)]

    async def handle(self, item: Item) -> object:
        """Call the actor."""
        caller, address = self._caller, self._address
        assert caller is not None
        request = item if item.error is not None else item.body
        if isinstance(address, type):
            if item.key is None:
                wish = f"a key, which names the entity of {address.__name__} that is called"
                raise BadInputError("Item(key)", None, wish)
            entity = caller.entity(address, text_of_key(item.key))
            return await entity.call(request, timeout=self._timeout)
        answer: object = await caller.call(address, request, timeout=self._timeout)
        return answer


show_public_names(__name__)
