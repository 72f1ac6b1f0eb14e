"""`Upgrade`: from a request to a WebSocket: checks, the decision of the program, an actor."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from .._core.processes.process import Process
from .._core.tables.pending_calls import Caller
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import InitError, MailboxFullError, SpawnError
from .._core.vocabulary.ids import Alias
from .._core.vocabulary.text import text_of
from ..meta.receivers import Plan, make_actor
from .http.exchange import unavailable
from .http.protocol import HTTPProtocol
from .messages.requests import HTTPRequest
from .messages.responses import HTTPError, Response, bare_response, upgrade_response
from .messages.websockets import Accept, WSUpgrade
from .parsing.deflate import Deflate, accepted_deflate
from .parsing.handshake import HandshakeError, check_upgrade, is_allowed_origin, offered_names
from .routes import Route
from .site import Site

__all__ = ["Agreement", "Upgrade"]

_WRONG_ORIGIN: Final = (
    "pages of this origin may not connect: its scheme, host or port is not that of the server, and "
    "origins= does not name it. Behind a proxy that ends TLS, trusted= makes the proxy tell the "
    "scheme"
)
_ROOM: Final = 64 * 1024
"""Bytes that may wait for the peer before an application waits."""


class Agreement:
    """What both sides have agreed on."""

    __slots__ = ("actor", "answer", "deflate", "has_begun", "place", "request", "subprotocol")

    def __init__(self, request: HTTPRequest, place: Route) -> None:
        self.request: HTTPRequest = request
        self.place: Route = place
        self.answer: bytes = b""
        """The response that begins the WebSocket."""
        self.subprotocol: str | None = None
        self.deflate: Deflate | None = None
        self.actor: Process | None = None
        self.has_begun: bool = False
        """The connection is a WebSocket now."""

    def begin(self) -> None:
        """Note that the connection is a WebSocket now."""
        self.has_begun = True


class Host(Protocol):
    """The connection that is upgraded."""

    @property
    def pending(self) -> int:
        """Bytes that wait for the peer."""
        ...

    @property
    def id(self) -> Alias:
        """Its alias."""
        ...

    def begin_beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run an async function beside the reader."""
        ...

    def begin_websocket(self, agreement: Agreement) -> None:
        """Go on as a WebSocket."""
        ...


class Upgrade:
    """Answers a request for a WebSocket. Everything here happens on the loop."""

    def __init__(
        self, host: Host, http: HTTPProtocol, request: HTTPRequest, place: Route, site: Site
    ) -> None:
        self._host = host
        self._http = http
        self.site = site
        self._agreement = Agreement(request, place)
        self._key_answer = ""

    def begin(self) -> None:
        """Check the request, and ask the program."""
        request, place = self._agreement.request, self._agreement.place
        try:
            self._key_answer = check_upgrade(request.head)
        except HandshakeError as error:
            if error.status == 426:
                self.refuse(upgrade_response(error.detail))
            else:
                self.refuse(HTTPError(error.status, error.detail).response)
            return
        origin = request.headers.get("origin")
        if not is_allowed_origin(origin, request.scheme, request.host, place.origins):
            self.refuse(HTTPError(403, _WRONG_ORIGIN).response)
            return
        work = place.talk(self, request)
        if work is not None:
            self.site.clock.arm_call(request.exchange, place.request_timeout)
            self._host.begin_beside(partial(_finish, work))
            return
        accept = place.accept
        if accept is None:
            self._decided(Accept())
        elif callable(accept):
            try:
                decision = accept(request)
            except Exception as error:
                self.site.report(f"accept of {place!r} failed", error)
                self.refuse(bare_response(500))
                return
            self._decided(Accept() if decision is None else decision)
        else:
            self._ask(accept)

    @property
    def has_begun(self) -> bool:
        """Whether the connection is a WebSocket now."""
        return self._agreement.has_begun

    @property
    def has_room(self) -> bool:
        """Whether the peer is not slow: few bytes wait for it."""
        return self._host.pending <= _ROOM

    def refuse(self, response: Response) -> None:
        """Answer with a response, unless the exchange has ended."""
        self._http.refuse_upgrade(self._agreement.request, response)

    def _ask(self, to: object) -> None:
        """Ask a process. Its answer, or the error of the call, comes to :meth:`_answered`."""
        site = self.site
        caller = _Question(
            self._host.id, site.next_reference(), to, WSUpgrade(self._agreement.request)
        )
        caller.tell(self._answered)
        try:
            site.calls.begin(caller, Priority.NORMAL)
        except MailboxFullError:
            self.refuse(unavailable())
            return
        if not caller.settled:
            site.clock.arm_call(caller, self._agreement.place.request_timeout)

    def _answered(self, caller: Caller) -> None:
        error = caller.error
        if error is None:
            self._decided(caller.value)
        elif isinstance(error, HTTPError):
            self.refuse(error.response)
        else:
            self.site.log.error("no decision about a WebSocket", error=text_of(error))
            self.refuse(unavailable())

    def _decided(self, decision: object) -> None:
        if isinstance(decision, HTTPError):
            self.refuse(decision.response)
        elif self._agree(decision):
            self._host.begin_beside(self._make_actor)

    async def accept(self, decision: Accept, plan: Plan) -> None:
        """Accept for an application; ``plan`` says how to make the actor of the WebSocket."""
        if self._agree(decision):
            await self._make_actor(plan)

    def _agree(self, decision: object) -> bool:
        agreement = self._agreement
        offered = offered_names(agreement.request.head)
        if not isinstance(decision, Accept) or (
            decision.subprotocol is not None and decision.subprotocol not in offered
        ):
            self.site.log.error(
                "the decision about a WebSocket is neither Accept with an offered subprotocol "
                "nor HTTPError",
                decision=repr(decision),
            )
            self.refuse(bare_response(500))
            return False
        agreement.subprotocol = decision.subprotocol or next(
            (name for name in agreement.place.subprotocols if name in offered), None
        )
        lines = [f"sec-websocket-accept: {self._key_answer}"]
        if agreement.subprotocol is not None:
            lines.append(f"sec-websocket-protocol: {agreement.subprotocol}")
        if agreement.place.compress:
            agreed = accepted_deflate(agreement.request.headers.get("sec-websocket-extensions", ""))
            if agreed is not None:
                agreement.deflate, words = agreed
                lines.append(f"sec-websocket-extensions: {words}")
        for name, value in Response(200, headers=decision.headers).headers:
            lines.append(f"{name}: {value}")
        agreement.answer = (
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            + "".join(f"{line}\r\n" for line in lines)
            + "\r\n"
        ).encode("latin-1")
        return True

    async def _make_actor(self, plan: Plan | None = None) -> None:
        agreement = self._agreement
        try:
            plan = plan or agreement.place.receivers.plan_actor()
            agreement.actor = await make_actor(self.site.meta, plan)
        except SpawnError as error:
            self.site.log.warning("no actor could be made for a WebSocket", error=str(error))
            is_fault = isinstance(error, InitError)
            self.refuse(bare_response(500) if is_fault else unavailable())
            return
        self._host.begin_websocket(agreement)


async def _finish(work: Awaitable[None]) -> None:
    await work


class _Question(Caller):
    __slots__ = ("_then",)

    def tell(self, then: Callable[[Caller], None]) -> None:
        self._then = then

    def awaken(self) -> None:
        self._then(self)
