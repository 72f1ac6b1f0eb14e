"""`ReceiverCalls`: lets the place of a request answer it: an actor, an actor of its own, or an
application.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol

from ..._core.vocabulary.envelopes import Priority
from ..._core.vocabulary.errors import InitError, MailboxFullError, SpawnError
from ...meta.receivers import Receivers, make_actor
from ...meta.sockets.streams.sessions import end_session
from ..messages.responses import Response, bare_response
from ..routes import Place
from ..site import Site
from .exchange import Exchange, unavailable

__all__ = ["ReceiverCalls"]

_NORMAL: Final = Priority.NORMAL


class Asker(Protocol):
    """The protocol, which gets the answers."""

    def limit(self, exchange: Exchange, timeout: float) -> None:
        """Let the exchange expire ``timeout`` seconds after its request is complete."""
        ...

    def answer(self, exchange: Exchange, response: Response) -> None:
        """Write a response, unless the exchange has ended."""
        ...

    def fail(self, exchange: Exchange, detail: str) -> None:
        """Tell the peer that there is no response, or no whole one, unless the exchange has
        ended.
        """
        ...


class ReceiverCalls:
    """The calls of a protocol. Their answers come to the protocol when they are settled."""

    __slots__ = ("_asker", "_begin_beside", "_site")

    def __init__(
        self,
        asker: Asker,
        site: Site,
        begin_beside: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        """``begin_beside`` runs an async function beside the reader."""
        self._asker = asker
        self._site = site
        self._begin_beside = begin_beside

    def ask(self, exchange: Exchange, place: Place) -> None:
        """Let the place answer."""
        if place.kind != "actor":
            work = place.answer(self._asker, exchange.request)
            if work is not None:
                self._asker.limit(exchange, place.request_timeout)
                self._site.tasks.run(self._run(exchange, work))
            return
        route: Any = place
        receivers: Receivers = route.receivers
        if not receivers.makes_actors:
            self._call(exchange, receivers.next() or self._site.owner, place.request_timeout)
            return
        try:
            plan = receivers.plan_actor()
        except SpawnError as error:
            self._could_not_spawn(exchange, error)
            return
        self._begin_beside(partial(self._call_new_actor, exchange, plan, place.request_timeout))

    def _call(self, exchange: Exchange, to: Any, timeout: float) -> None:
        site = self._site
        receiver = site.router.resolve(to)
        if receiver is None or not receiver.accepting:
            self._asker.answer(exchange, unavailable())
            return
        exchange.go_to(to)
        try:
            site.calls.begin(exchange, _NORMAL)
        except MailboxFullError:
            self._asker.answer(exchange, unavailable())
            return
        if not exchange.settled:
            self._asker.limit(exchange, timeout)

    async def _call_new_actor(self, exchange: Exchange, plan: Any, timeout: float) -> None:
        try:
            actor = await make_actor(self._site.meta, plan)
        except SpawnError as error:
            self._could_not_spawn(exchange, error)
            return
        exchange.belong_to(actor)
        if exchange.is_over:
            end_session(actor, self._site.meta.id)
        else:
            self._call(exchange, actor.id, timeout)

    def _could_not_spawn(self, exchange: Exchange, error: SpawnError) -> None:
        self._site.log.warning("no actor could be made for a request", error=str(error))
        is_fault = isinstance(error, InitError)
        self._asker.answer(exchange, bare_response(500) if is_fault else unavailable())

    async def _run(self, exchange: Exchange, work: Awaitable[None]) -> None:
        """Run an application, or read a file."""
        request, detail = exchange.request, "an application has ended inside its response"
        try:
            await work
        except Exception as error:
            self._site.report(f"the application failed at {request!r}", error)
            detail = "an application failed inside its response"
        finally:
            self._asker.fail(exchange, detail)
