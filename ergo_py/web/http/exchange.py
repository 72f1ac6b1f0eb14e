"""`Exchange`: a request under way and its response. `ask` lets the place of the request answer it:
an actor, an actor of its own, or an application.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol

from ..._core.messaging.receiver import Receiver
from ..._core.processes.process import Process
from ..._core.tables.pending_calls import Callee, Caller
from ..._core.vocabulary.envelopes import Priority
from ..._core.vocabulary.errors import (
    CallTimeoutError,
    InitError,
    MailboxFullError,
    SpawnError,
    TargetDownError,
)
from ..._core.vocabulary.ids import PID, Alias, Target
from ..._core.vocabulary.reasons import NoProcess, Normal, Shutdown
from ..._core.vocabulary.text import text_of
from ...meta.receivers import Plan, Receivers, make_actor
from ...meta.sockets.streams.sessions import end_session
from ..messages.requests import HTTPRequest
from ..messages.responses import HTTPError, Response, bare_response
from ..routes import Place
from ..site import Site

__all__ = ["Exchange", "ask", "unavailable"]

_NORMAL: Final = Priority.NORMAL


class Exchange(Caller):
    """A request under way: a call whose answer becomes the response. The connection calls, and does
    not wait.
    """

    __slots__ = ("_watch", "actor", "asker", "is_over")

    request: Any
    """The request; None after the end."""

    def __init__(
        self,
        connection: Alias,
        number: int,
        to: Any,
        request: HTTPRequest,
        asker: "Asker",
    ) -> None:
        # Caller.__init__ inlined: each request pays for this.
        self.settled: bool = False
        self._deferred = False
        self.pid: PID | Alias = connection
        self.number = number
        self.to: object = to
        self.request = request
        self.callee: Callee | None = None
        self.value: object = None
        self.error: BaseException | None = None
        self.asker: Asker = asker
        """The protocol of the connection."""
        self.actor: Process | None = None
        """The actor that was spawned for this exchange."""
        self.is_over: bool = False
        """The exchange has ended, with or without a response."""
        self._watch: tuple[Callable[[], None], ...] = ()

    def awaken(self) -> None:
        """Write the response, unless the exchange has ended."""
        if not self.is_over:
            value = self.value
            self.asker.respond(value if type(value) is Response else _answer_of(self))

    def belong_to(self, actor: Process) -> None:
        """Note the actor that was spawned for this exchange."""
        self.actor = actor
        self.to = actor.id

    def watch(self, ended: Callable[[], None]) -> None:
        """Call ``ended`` when the exchange has ended."""
        self._watch = (*self._watch, ended)

    def finish(self) -> None:
        """Note that the exchange has ended. An answer that comes now is late."""
        self.is_over = True
        if not self.settled:
            self.abandon()
        # Without the request, there is no cycle for the garbage collector, and a deadline that is
        # still queued does not keep a body.
        self.value = self.error = self.callee = self.request = None
        for ended in self._watch:
            ended()


class Asker(Protocol):
    """The protocol of a connection, which writes the responses."""

    site: Site

    def begin_beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run an async function beside the reader."""
        ...

    def limit(self, exchange: Exchange, timeout: float) -> None:
        """Let the exchange expire ``timeout`` seconds after its request is complete."""
        ...

    def respond(self, response: Response) -> None:
        """Write the response of the present exchange."""
        ...

    def answer(self, exchange: Exchange, response: Response) -> None:
        """Write a response, unless the exchange has ended."""
        ...

    def fail(self, exchange: Exchange, detail: str) -> None:
        """Tell the peer that there is no response, or no whole one, unless the exchange has
        ended.
        """
        ...


def ask(exchange: Exchange, place: Place) -> None:
    """Let the place answer."""
    asker, timeout = exchange.asker, place.request_timeout
    site = asker.site
    if place.kind != "actor":
        work = place.answer(asker, exchange.request)
        if work is not None:
            asker.limit(exchange, timeout)
            site.applications.tasks.run(_run(exchange, work))
        return
    route: Any = place
    receivers: Receivers = route.receivers
    if receivers.makes_actors:
        try:
            plan = receivers.plan_actor()
        except SpawnError as error:
            _could_not_spawn(exchange, error)
            return
        asker.begin_beside(partial(_call_new_actor, exchange, plan, timeout))
        return
    to, owner = receivers.next(), site.meta.process
    if to is None:
        _call(exchange, owner, owner.id, timeout)
    else:
        _call(exchange, site.router.resolve(to), to, timeout)


def _call(exchange: Exchange, receiver: Receiver | None, to: Target, timeout: float) -> None:
    asker = exchange.asker
    if receiver is None or not receiver.accepting:
        asker.answer(exchange, unavailable())
        return
    exchange.to = to
    try:
        asker.site.calls.post(receiver, exchange, _NORMAL)
    except MailboxFullError:
        asker.answer(exchange, unavailable())
        return
    if not exchange.settled:
        asker.limit(exchange, timeout)


async def _call_new_actor(exchange: Exchange, plan: Plan, timeout: float) -> None:
    meta = exchange.asker.site.meta
    try:
        actor = await make_actor(meta, plan)
    except SpawnError as error:
        _could_not_spawn(exchange, error)
        return
    exchange.belong_to(actor)
    if exchange.is_over:
        end_session(actor, meta.id)
    else:
        _call(exchange, actor, actor.id, timeout)


def _could_not_spawn(exchange: Exchange, error: SpawnError) -> None:
    asker = exchange.asker
    asker.site.log.warning("no actor could be made for a request", error=str(error))
    is_fault = isinstance(error, InitError)
    asker.answer(exchange, bare_response(500) if is_fault else unavailable())


async def _run(exchange: Exchange, work: Awaitable[None]) -> None:
    """Run an application, or read a file."""
    asker, request = exchange.asker, exchange.request
    detail = "an application has ended inside its response"
    try:
        await work
    except Exception as error:
        asker.site.report(f"the application failed at {request!r}", error)
        detail = "an application failed inside its response"
    finally:
        asker.fail(exchange, detail)


def _answer_of(exchange: Exchange) -> Response:
    """The response for the outcome of a call. Nothing of a failure is in the response; the log has
    it.
    """
    error, value = exchange.error, exchange.value
    request, callee = exchange.request, exchange.callee
    if error is None:
        if isinstance(value, Response):
            return value
        told = f"the answer to a request is a {type(value).__qualname__}"
    elif isinstance(error, HTTPError):
        return error.response
    # The call itself failed; the same error in a Reject is an answer of the actor, unless the actor
    # says that it is itself not there for requests now, as a pipeline that has drained.
    elif isinstance(error, CallTimeoutError) and error.request is request:
        return bare_response(504)
    elif (isinstance(error, MailboxFullError) and error.message is request) or (
        isinstance(error, TargetDownError)
        and isinstance(error.reason, NoProcess | Normal | Shutdown)
        and (error.request is request or (callee is not None and error.target == callee.id))
    ):
        return unavailable()
    else:
        told = f"a request failed: {type(error).__qualname__}: {text_of(error)}"
    exchange.asker.site.log.error(told, request=repr(request))
    return bare_response(500)


def unavailable() -> Response:
    """The response while there is no process to answer."""
    return bare_response(503, [("retry-after", "1")])
