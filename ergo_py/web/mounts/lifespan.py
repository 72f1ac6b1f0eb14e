"""`Lifespan`: the startup and the shutdown of an ASGI application."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

__all__ = ["ApplicationError", "Lifespan"]

_PATIENCE: Final = 5.0
"""Seconds that an application has for its shutdown."""

Message = dict[str, Any]


class ApplicationError(Exception):
    """A mounted application could not start."""


class Lifespan:
    """Runs the ``lifespan`` of an application in a task of its own. On the loop."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        version: dict[str, str],
        report: Callable[[str, Exception], None],
    ) -> None:
        """``report`` logs an exception of the application."""
        self.state: dict[str, Any] = {}
        """What the application keeps for its requests."""
        self._app = app
        self._version = version
        self._report = report
        self._scope = trio.CancelScope()
        self._asked = 0
        self._started = False
        self._failure: str | None = None
        self._settled = trio.Event()
        """The application has started, has failed, or knows no lifespan."""
        self._stops = trio.Event()
        self._over = trio.Event()

    async def start(self, begin: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        """Start the application; ``begin`` runs an async function in a task.

        Raises:
            ApplicationError: the application says that it could not start.
        """
        begin(self._run)
        await self._settled.wait()
        if self._failure is not None:
            raise ApplicationError(f"the application could not start: {self._failure}")

    async def stop(self) -> None:
        """Let the application shut down, within its time."""
        self._stops.set()
        if self._started:
            with trio.move_on_after(_PATIENCE):
                await self._over.wait()
        self._scope.cancel()
        with trio.move_on_after(_PATIENCE):
            await self._over.wait()

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": self._version, "state": self.state}
        try:
            with self._scope:
                await self._app(scope, self._receive, self._send)
        except Exception as error:
            if self._started:
                self._report("the lifespan of an application failed", error)
            # Otherwise it knows no lifespan, or has said that it could not start.
        finally:
            self._over.set()
            self._settled.set()

    async def _receive(self) -> Message:
        self._asked += 1
        if self._asked == 1:
            return {"type": "lifespan.startup"}
        await self._stops.wait()
        if self._asked == 2:
            return {"type": "lifespan.shutdown"}
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    async def _send(self, message: Message) -> None:
        match message["type"]:
            case "lifespan.startup.complete":
                self._started = True
                self._settled.set()
            case "lifespan.startup.failed":
                self._failure = str(message.get("message", ""))
                self._settled.set()
            case "lifespan.shutdown.failed":
                told = ApplicationError(str(message.get("message", "")))
                self._report("an application could not shut down in order", told)
                self._over.set()
            case "lifespan.shutdown.complete":
                self._over.set()
            case other:
                raise ValueError(f"{other!r} is no message of a lifespan")
