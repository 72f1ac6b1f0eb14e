"""`Server`: serves a control socket in its own thread, so it answers also while the loop is
blocked.

Clients are treated as hostile. Each has a single request in progress, a bounded rate, a bounded
line length and a bounded time per line; a client that does not read its answers is disconnected.
None of that costs the loop more than the work of the request.
"""

import contextvars
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final
from weakref import WeakSet

import outcome
import trio

from .._core.open_nodes import open_nodes
from .._core.runtime.bridge import Parker, ReaderThread
from .._core.verbs.node_access import kernel_of
from .._core.vocabulary.errors import NodeStoppedError
from .._core.vocabulary.text import shown
from .commands import COMMANDS, Command, explain
from .connection import Connection, Limits
from .heartbeat import Heartbeat
from .protocol import (
    MAX_REQUEST,
    VERSION,
    ControlError,
    ParsedRequest,
    Plain,
    answer,
    encode,
    read_request,
    refusal,
)
from .request import Arguments, Beat, Client
from .socket_paths import bind_socket, clean, peer_user
from .views.slices import encode_in_slices

__all__ = ["Server", "open_control"]

_MOST_STEPS: Final = 10_000
"""Maximum of queued outputs; further output of a prompt is dropped."""


class _Pending:
    """A request in progress."""

    def __init__(
        self, connection: Connection, request: ParsedRequest, command: Command, now: float
    ) -> None:
        self.connection = connection
        self.request = request
        self.command = command
        self.asked = now
        self.scope = trio.CancelScope()
        self.is_cancelled = False

    def stop(self) -> None:
        """Let a request with a thread of its own end early."""
        self.is_cancelled = True


class _Bell:
    """Wakes the thread of the server out of its selector. From any thread."""

    __slots__ = ("waker", "woken")

    def __init__(self) -> None:
        self.woken, self.waker = socket.socketpair()
        for end in (self.woken, self.waker):
            end.setblocking(False)

    def ring(self) -> None:
        try:
            self.waker.send(b".")
        except OSError:  # full, so the thread wakes up anyway; or closed
            return


class Server:
    """Serves a control socket until it is closed."""

    def __init__(
        self, node: Any, permissions: frozenset[str], limits: type[Limits] = Limits
    ) -> None:
        self._node = node
        self._may = permissions
        self._limits = limits
        self._kernel = kernel_of(node)
        self._bridge = self._kernel.router.bridge
        self._connections: set[Connection] = set()
        self._answers: deque[Callable[[], None]] = deque()
        """Answers and output from the loop, in order, as functions for the server thread."""
        self._heartbeat = Heartbeat(node)
        self._accepted = 0
        self._accepts_again_at = 0.0
        """When accepting resumes; 0 while the server accepts."""
        self._not_before = 0.0
        self._has_worker = False
        """A request is answered in a thread of its own."""
        self._closing = False
        self._over: Parker[None] = Parker()
        self._listener, path = bind_socket(node.name)
        self.path: Final = path
        self._selector = selectors.DefaultSelector()
        self._bell = _Bell()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._bell.woken, selectors.EVENT_READ)
        self._thread = ReaderThread("ergo-control-0", self._run)
        _servers.add(self)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def close(self) -> None:
        """Disconnect all clients and remove the socket. Waits for the thread, which ends
        quickly.
        """
        self._closing = True
        self._bell.ring()
        self._over.wait(1.0)

    def serves(self, name: str) -> bool:
        """Whether the server is open, for a node of this name."""
        return not self._closing and self._node.name == name

    def permit(self, permissions: frozenset[str]) -> None:
        """Give these permissions to all clients, for each later request."""
        self._may = permissions

    def forked(self) -> None:
        """In a forked child: close the socket, so that no client takes the child for the node."""
        self._listener.close()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                try:
                    self._turn()
                except Exception as error:
                    # A bug in this server. It costs the connected clients their connection, and the
                    # node nothing.
                    self._node.log.error("control socket: a turn failed", error=shown(error))
                    for connection in tuple(self._connections):
                        self._drop(connection)
        finally:
            # Remove the file first: a client that does not see it does not try to connect.
            self.path.unlink(missing_ok=True)
            for connection in tuple(self._connections):
                self._drop(connection)
            for sock in (self._listener, self._bell.woken, self._bell.waker):
                sock.close()
            self._selector.close()
            self._over.settle(None)

    def _turn(self) -> None:
        for key, events in self._selector.select(self._pause()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._bell.woken:
                self._bell.woken.recv(4096)
            else:
                connection: Connection = key.data
                if events & selectors.EVENT_READ:
                    self._read(connection)
                if (
                    events & selectors.EVENT_WRITE
                    and not connection.gone
                    and not connection.flush()
                ):
                    self._drop(connection)
        while self._answers:
            step = self._answers.popleft()
            step()
        now = perf_counter()
        if self._accepts_again_at and now >= self._accepts_again_at:
            self._accepts_again_at = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._answer_if_blocked()
        # Longest wait first, so that busy clients cannot use up the rate limit of all.
        for connection in sorted(self._connections, key=lambda each: each.active):
            self._serve(connection, now)

    def _pause(self) -> float:
        """Seconds until the next deadline check, without any I/O."""
        if any(each.has_line and each.pending is None for each in self._connections):
            return self._limits.pace
        if any(each.pending is not None for each in self._connections):
            # While the loop is blocked, the next requests are answered without another wait.
            is_known = self._heartbeat.overdue > self._limits.glance
            return self._limits.pace if is_known else self._limits.glance / 3
        soon = self._accepts_again_at - perf_counter() if self._accepts_again_at else 0.5
        return max(0.0, min(soon, 0.5, self._limits.line / 5, self._limits.writing / 5))

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            # The client is gone again, or no descriptor is free: try again a little later.
            self._pause_accepting(0.1)
            return
        self._accepted += 1
        if self._accepted % self._limits.accepts == 0:
            self._pause_accepting(1.0)
        connection = Connection(sock, self._selector, self._node, self._wrote)
        self._connections.add(connection)
        try:
            self._admit(connection)
        except ControlError as error:
            self._refuse(connection, error)
        except OSError:  # the client is gone again, or the system does not tell its user
            self._drop(connection)
        else:
            greeting = {
                "ergo": VERSION,
                "node": self._node.name,
                "os_pid": os.getpid(),
                "may": sorted(self._may),
            }
            self._say(connection, encode(greeting))

    def _pause_accepting(self, seconds: float) -> None:
        """Accept no client for a while. Endless reconnects must not keep this thread, and so the
        interpreter, busy.
        """
        if not self._accepts_again_at:
            self._accepts_again_at = perf_counter() + seconds
            self._selector.unregister(self._listener)

    def _admit(self, connection: Connection) -> None:
        user = peer_user(connection.sock)
        if user not in (os.geteuid(), 0):
            raise ControlError(
                "not_permitted",
                f"this node belongs to user {os.geteuid()}, and you are user {user}",
            )
        if len(self._connections) > self._limits.clients:
            # Disconnect the client that has been idle longest, so that idle clients cannot keep
            # others out.
            idle = min(
                (each for each in self._connections if each.pending is None),
                key=lambda each: each.active,
            )
            if idle is connection or perf_counter() - idle.active < self._limits.line:
                raise ControlError("busy", f"{self._limits.clients} clients are connected already")
            self._drop(idle)

    def _read(self, connection: Connection) -> None:
        if not connection.receive():
            self._drop(connection)
        elif connection.pending is not None:
            self._read_cancel(connection)

    def _say(self, connection: Connection, line: bytes) -> None:
        if not connection.gone and not connection.say(line):
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if connection.gone:
            return
        connection.close()
        self._connections.discard(connection)
        pending = connection.end_request()
        if pending is not None:
            self._cancel(pending)
        try:
            # Close it on the loop: its variables may be in use there until the cancellation has
            # arrived.
            self._bridge.post(connection.client.close)
        except NodeStoppedError:
            connection.client.close()

    # -- requests ----------------------------------------------------------------------------------

    def _serve(self, connection: Connection, now: float) -> None:
        limits = self._limits
        if connection.gone:
            return
        if connection.write_began is not None and now - connection.write_began > limits.writing:
            self._drop(connection)
        elif connection.pending is not None:
            # After a first wait for a blocked loop, later requests need not wait again.
            waited = max(now - connection.pending.asked, self._heartbeat.overdue)
            if connection.pending.command.in_thread is not None and waited > limits.glance:
                self._finish(connection.pending, outcome.Value(None))
        elif connection.leaving or not connection.has_sent_all:
            return
        elif connection.has_line:
            if now >= max(connection.not_before, self._not_before):
                self._take_line(connection, now)
        elif connection.is_oversized:
            self._refuse(
                connection, ControlError("too_large", f"a request has at most {MAX_REQUEST} bytes")
            )
        elif connection.line_began is not None and now - connection.line_began > limits.line:
            self._refuse(
                connection,
                ControlError("bad_request", f"a line must be complete within {limits.line:g} s"),
            )
        elif now - connection.active > limits.idle:
            self._drop(connection)

    def _refuse(self, connection: Connection, error: ControlError, id: Any = None) -> None:
        """Send the error and close: after a protocol error, the rest of the input cannot be
        trusted.
        """
        connection.leave()
        self._say(connection, refusal(id, error))

    def _take_line(self, connection: Connection, now: float) -> None:
        line = connection.take_request(now, not_before=now + self._limits.pace)
        self._not_before = now + self._limits.pace_of_all
        if len(line) >= MAX_REQUEST:
            self._refuse(
                connection, ControlError("too_large", f"a request has at most {MAX_REQUEST} bytes")
            )
            return
        try:
            request = read_request(line)
        except ControlError as error:
            self._refuse(connection, error, error.more.pop("id", None))
            return
        try:
            self._begin(connection, request, now)
        except ControlError as error:
            self._say(connection, refusal(request.id, error))

    def _begin(self, connection: Connection, request: ParsedRequest, now: float) -> None:
        command = COMMANDS.get(request.do)
        if request.do == "cancel":
            raise ControlError("bad_argument", "there is nothing to cancel")
        if command is None:
            raise ControlError(
                "unknown", f"there is no {request.do!r}; there are {', '.join(COMMANDS)}, cancel"
            )
        if command.permission not in self._may:
            have = " and ".join(sorted(self._may)) or "none"
            raise ControlError(
                "not_permitted",
                f"{request.do} needs the permission {command.permission!r}, and this node gives "
                f"{have}: open it with "
                f"control={','.join(sorted({*self._may, command.permission}))!r}",
            )
        pending = _Pending(connection, request, command, now)
        if command.in_own_thread is not None:
            self._start_thread(pending, command.in_own_thread)
            return
        try:
            self._bridge.post(self._start, pending)
        except NodeStoppedError as error:
            raise explain(error) from None
        connection.begin(pending)
        self._heartbeat.ask()

    def _start_thread(
        self, pending: _Pending, work: Callable[[Client, Arguments, Callable[[], bool]], object]
    ) -> None:
        """Answer a request in a thread of its own. Only one at a time, since it may take long."""
        if self._has_worker:
            raise ControlError("busy", f"another {pending.request.do} is under way; try again")
        arguments = Arguments(pending.request.do, pending.request.arguments)
        client = pending.connection.client

        def answer_in_thread() -> None:
            result = outcome.capture(work, client, arguments, lambda: pending.is_cancelled)
            self._answers.append(self._worker_ended)
            self._done(pending, result)

        self._has_worker = True
        pending.connection.begin(pending)
        ReaderThread("ergo-profile-0", answer_in_thread).start()

    def _worker_ended(self) -> None:
        self._has_worker = False

    def _start(self, pending: _Pending) -> None:
        """Runs on the loop."""
        if pending.command.on_loop is None:
            self._done(pending, outcome.Value(None))
            return
        try:
            # In an empty contextvars context: a request from outside must not see the variables of
            # the code that opened the node.
            contextvars.Context().run(
                lambda: self._kernel.start(self._answer, pending, name="for the control socket")
            )
        except RuntimeError:  # the nursery is closed
            self._done(
                pending, outcome.Error(ControlError("stopping", f"{self._node.name} is down"))
            )

    async def _answer(self, pending: _Pending) -> None:
        assert pending.command.on_loop is not None
        arguments = Arguments(pending.request.do, pending.request.arguments)
        result: outcome.Outcome[object] = outcome.Error(
            ControlError("cancelled", "the request was cancelled")
        )
        try:
            with pending.scope:
                # Nothing begins for a client that has left meanwhile.
                await self._kernel.request_turns.take()
                result = outcome.Value(
                    await pending.command.on_loop(pending.connection.client, arguments)
                )
        except Exception as error:
            result = outcome.Error(error)
        finally:
            self._done(pending, result)

    def _done(self, pending: _Pending, result: "outcome.Outcome[object]") -> None:
        self._answers.append(lambda: self._finish(pending, result))
        self._bell.ring()

    def _wrote(self, connection: Connection, text: str) -> None:
        """Runs on the loop: sends output of a prompt before its input is done."""
        # A loop can print faster than a client reads: drop the output beyond the limit.
        if not connection.gone and not connection.is_full and len(self._answers) < _MOST_STEPS:
            self._answers.append(lambda: self._show(connection, text))
            self._bell.ring()

    def _show(self, connection: Connection, text: str) -> None:
        if connection.pending is not None:
            self._say(connection, encode({"id": connection.pending.request.id, "out": text}))

    def _finish(self, pending: _Pending, result: "outcome.Outcome[object]") -> None:
        connection = pending.connection
        if connection.pending is not pending:
            return
        connection.end_request()
        try:
            value = result.unwrap()
            if pending.command.in_thread is not None:
                arguments = Arguments(pending.request.do, pending.request.arguments)
                value = pending.command.in_thread(
                    connection.client,
                    arguments,
                    Beat(
                        self._heartbeat.blocked_report(0.9 * self._limits.glance),
                        self._heartbeat.delay,
                    ),
                )
                if isinstance(value, Plain):
                    value = encode_in_slices(value)
            line = answer(pending.request.id, value)
        except Exception as error:
            line = refusal(pending.request.id, explain(error))
        self._say(connection, line)

    def _read_cancel(self, connection: Connection) -> None:
        """While a request is in progress, read only a ``cancel``."""
        if not connection.has_line or b"cancel" not in (line := connection.first_line()):
            return
        try:
            request = read_request(line)
        except ControlError:  # answered when the line's turn comes
            return
        if request.do == "cancel":
            connection.take_line()
            self._cancel(connection.pending)

    def _cancel(self, pending: _Pending) -> None:
        if pending.command.in_own_thread is not None:
            pending.stop()
            return
        try:
            self._bridge.post(pending.scope.cancel)
        except NodeStoppedError:  # the request ended with the node
            return

    def _answer_if_blocked(self) -> None:
        """Answer the clients that wait for a blocked loop."""
        waiting = [each.pending for each in self._connections if each.pending is not None]
        if not waiting:
            return
        report = self._heartbeat.blocked_report(self._limits.patience)
        self._heartbeat.ask()
        if report is None:
            return
        culprit = (
            f"{report.behaviour}.{report.callback}"
            if report.process is not None
            else "code outside processes, such as `main` or a prompt"
        )
        for pending in waiting:
            if pending.command.on_loop is not None:
                self._cancel(pending)
                text = (
                    f"the loop of {self._node.name} has been blocked by {culprit} for "
                    f"{report.seconds:.1f} s"
                )
                self._finish(pending, outcome.Error(ControlError("blocked", text, report=report)))


_servers: Final[WeakSet[Server]] = WeakSet()


def _close_in_forked_child() -> None:
    for server in tuple(_servers):
        server.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_forked_child)


def open_control(node: Any, permissions: frozenset[str]) -> Server:
    """Open the control socket of a node.

    Raises:
        ControlSocketError: there is no directory for it, or the system refuses.
    """
    clean()
    if any(other.serves(node.name) for other in tuple(_servers)):
        node.log.warning(
            f"another node of this program is named {node.name!r}, and `ergo` cannot tell them "
            "apart: give each node a name of its own, as in open_node('shop-2@localhost'); they "
            f"were opened at {open_nodes.places(node.name)}"
        )
    server = Server(node, permissions)
    server.start()
    node.log.info("control socket", path=str(server.path), may=sorted(permissions))
    node._note_control_socket(server.path)
    return server
