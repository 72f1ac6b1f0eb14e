"""The handles that an entity uses in its callbacks: `HeldService` and `HeldEntity`. Their messages
leave when the callback is stored, and their calls wait for earlier callbacks.
"""

from typing import TYPE_CHECKING, Any, NoReturn

from ..._core.vocabulary.envelopes import Priority
from ..._core.vocabulary.errors import NotAllowedError
from ..._core.vocabulary.ids import PID
from ...entity_handles import EntityHandle
from ...service import Service

if TYPE_CHECKING:
    from .activation import Activation

__all__ = ["HeldEntity", "HeldService", "no_request"]


def no_request() -> NoReturn:
    """Refuse a request of an entity.

    Raises:
        NotAllowedError: always.
    """
    raise NotAllowedError(
        "an entity has no request(…): it may sleep before the answer comes. Write `await "
        "self.call(…)` in an async callback, or `self.send(…)` and let the receiver answer with a "
        "message"
    )


class HeldService(Service):
    """A service, as an entity uses it."""

    __slots__ = ("_activation", "_service")

    def __init__(self, service: Service, activation: "Activation") -> None:
        process = activation.process
        super().__init__(process.kernel, service._slot, process)
        self._service = service
        self._activation = activation

    @property
    def pid(self) -> PID | None:
        """The current process; None while the child is down."""
        return self._service.pid

    def send(self, message: object, *, priority: Priority = Priority.NORMAL) -> bool:
        """Send a message when the callback in progress is stored."""
        self._activation.leave(lambda: self._service.send(message, priority=priority))
        return True

    async def send_wait(
        self, message: object, *, priority: Priority = Priority.NORMAL, timeout: float | None = 5.0
    ) -> bool:
        """Send a message when all earlier callbacks are stored, and wait for room."""
        await self._activation.output.wait_stored()
        return await self._service.send_wait(message, priority=priority, timeout=timeout)

    async def call(self, request: Any, **options: Any) -> Any:
        """Call the child when all earlier callbacks are stored."""
        await self._activation.output.wait_stored()
        return await self._service.call(request, **options)

    if not TYPE_CHECKING:

        def request(self, *_args: object, **_options: object) -> NoReturn:
            """Not for entities."""
            no_request()


class HeldEntity(EntityHandle):
    """The handle of an entity, as another entity uses it."""

    __slots__ = ("_activation",)

    def __init__(self, handle: EntityHandle, activation: "Activation") -> None:
        process = activation.process
        super().__init__(process.kernel, handle._table, handle.address, process)
        self._activation = activation

    def send(self, message: object, *, priority: Priority = Priority.NORMAL) -> bool:
        """Send a message with the commit of the callback in progress, as ``self.send`` does."""
        return self._activation.entity.send(self, message, priority=priority or None)

    async def send_wait(
        self, message: object, *, priority: Priority = Priority.NORMAL, timeout: float | None = 5.0
    ) -> bool:
        """The same: a stored message needs no room."""
        return self.send(message, priority=priority)

    async def call(self, request: Any, **options: Any) -> Any:
        """Call the entity when all earlier callbacks are stored."""
        await self._activation.output.wait_stored()
        return await super().call(request, **options)

    if not TYPE_CHECKING:

        def request(self, *_args: object, **_options: object) -> NoReturn:
            """Not for entities."""
            no_request()
