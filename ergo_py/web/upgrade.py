"""`Upgrade`: from a request to a WebSocket: checks, the decision of the program, an actor."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from .._core.processes.process import Process
from .._core.tables.pending_calls import Caller
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import InitError, MailboxFullError, SpawnError
from .._core.vocabulary.ids import Alias
from ..meta.receivers import make_actor
from .http.exchange import unavailable
from .http.session import HTTPSession
from .messages.requests import HTTPRequest
from .messages.responses import HTTPError, Response, bare_response, upgrade_response
from .messages.websockets import Accept, WSUpgrade
from .parsing.deflate import Deflate, accepted_deflate
from .parsing.handshake import HandshakeError, check_upgrade, is_allowed_origin, offered_names
from .routes import Route
from .site import Site

__all__ = ["Agreement", "Upgrade"]


class Agreement:
    """What both sides have agreed on."""

    __slots__ = ("actor", "answer", "deflate", "place", "request", "subprotocol")

    def __init__(self, request: HTTPRequest, place: Route) -> None:
        self.request = request
        self.place = place
        self.answer = b""
        """The response that begins the WebSocket."""
        self.subprotocol: str | None = None
        self.deflate: Deflate | None = None
        self.actor: Process | None = None


class Host(Protocol):
    """The connection that is upgraded."""

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
        self, host: Host, session: HTTPSession, request: HTTPRequest, place: Route, site: Site
    ) -> None:
        self._host = host
        self._session = session
        self._site = site
        self._agreement = Agreement(request, place)
        self._key_answer = ""

    def begin(self) -> None:
        """Check the request, and ask the program."""
        request, place = self._agreement.request, self._agreement.place
        try:
            self._key_answer = check_upgrade(request.head)
        except HandshakeError as error:
            if error.status == 426:
                self._session.refuse_upgrade(upgrade_response(error.detail))
            else:
                self._refuse(error.status, error.detail)
            return
        origin = request.headers.get("origin")
        if not is_allowed_origin(origin, request.scheme, request.host, place.origins):
            self._refuse(403, "pages of this origin may not connect")
            return
        accept = place.accept
        if accept is None:
            self._decided(Accept())
        elif callable(accept):
            try:
                decision = accept(request)
            except Exception as error:
                self._site.report(f"accept of {place!r} failed", error)
                self._session.refuse_upgrade(bare_response(500))
                return
            self._decided(Accept() if decision is None else decision)
        else:
            self._ask(accept)

    def _refuse(self, status: int, detail: str) -> None:
        self._session.refuse_upgrade(HTTPError(status, detail).response)

    def _ask(self, to: Any) -> None:
        """Ask a process. Its answer, or the error of the call, comes to :meth:`_answered`."""
        site = self._site
        caller = _Question(
            self._host.id, site.next_reference(), to, WSUpgrade(self._agreement.request)
        )
        caller.tell(self._answered)
        try:
            site.calls.begin(caller, Priority.NORMAL)
        except MailboxFullError:
            self._session.refuse_upgrade(unavailable())
            return
        if not caller.settled:
            site.clock.arm_call(caller, self._agreement.place.request_timeout)

    def _answered(self, caller: Caller) -> None:
        error = caller.error
        if error is None:
            self._decided(caller.value)
        elif isinstance(error, HTTPError):
            self._session.refuse_upgrade(error.response)
        else:
            self._site.log.error("no decision about a WebSocket", error=str(error))
            self._session.refuse_upgrade(unavailable())

    def _decided(self, decision: object) -> None:
        agreement = self._agreement
        if isinstance(decision, HTTPError):
            self._session.refuse_upgrade(decision.response)
            return
        offered = offered_names(agreement.request.head)
        if not isinstance(decision, Accept) or (
            decision.subprotocol is not None and decision.subprotocol not in offered
        ):
            self._site.log.error(
                "the decision about a WebSocket is neither Accept with an offered subprotocol "
                "nor HTTPError",
                decision=repr(decision),
            )
            self._session.refuse_upgrade(bare_response(500))
            return
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
        self._host.begin_beside(self._make_actor)

    async def _make_actor(self) -> None:
        agreement = self._agreement
        try:
            plan = agreement.place.receivers.plan_actor()
            assert plan is not None
            agreement.actor = await make_actor(self._site.meta, plan)
        except SpawnError as error:
            self._site.log.warning("no actor could be made for a WebSocket", error=str(error))
            is_fault = isinstance(error, InitError)
            self._session.refuse_upgrade(bare_response(500) if is_fault else unavailable())
            return
        self._host.begin_websocket(agreement)


class _Question(Caller):
    __slots__ = ("_then",)

    def tell(self, then: Callable[[Caller], None]) -> None:
        self._then = then

    def awaken(self) -> None:
        self._then(self)
