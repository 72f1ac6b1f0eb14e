"""The server of a control socket: a thread of its own, which answers also while the loop is
blocked.

Clients are taken for hostile. Each may ask one thing at a time, a bounded number of times a second,
in lines of bounded length that come within bounded time; and whoever does not read its answers is
dropped. None of that costs the loop more than what was asked.
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

from .._core.runtime.bridge import Parker, ReaderThread
from .._core.vocabulary.errors import NodeStoppedError
from .._core.vocabulary.text import shown
from .commands import COMMANDS, Arguments, Command, explain
from .connection import Connection
from .heartbeat import Heartbeat
from .limits import Limits
from .protocol import (
    MAX_REQUEST,
    VERSION,
    ControlError,
    Question,
    answer,
    encode,
    read_question,
    refusal,
)
from .socket_paths import bind_socket, clean, peer_user

__all__ = ["Server", "open_control"]

_MOST_STEPS: Final = 10_000
"""Things that wait to be said; what a prompt prints beyond that is lost."""


class _Pending:
    """A request that is being answered."""

    def __init__(
        self, connection: Connection, question: Question, command: Command, now: float
    ) -> None:
        self.connection = connection
        self.question = question
        self.command = command
        self.asked = now
        self.scope = trio.CancelScope()


class Server:
    """Serves one control socket until it is closed."""

    def __init__(
        self, node: Any, permissions: frozenset[str], limits: type[Limits] = Limits
    ) -> None:
        self._node = node
        self._may = permissions
        self._limits = limits
        self._bridge = node._router.bridge
        self._connections: set[Connection] = set()
        self._answers: deque[Callable[[], None]] = deque()
        """What the loop wants said, in order."""
        self._heartbeat = Heartbeat(node)
        self._accepted = 0
        self._deaf_until = 0.0
        self._not_before = 0.0
        self._closing = False
        self._over: Parker[None] = Parker()
        self._listener, self.path = bind_socket(node.name)
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = ReaderThread("ergo-control-0", self._run)
        _servers.add(self)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def close(self) -> None:
        """Drop everybody and remove the socket. Waits for the thread, which never takes long."""
        self._closing = True
        self._wake()
        self._over.wait(1.0)

    def forked(self) -> None:
        """In a copy of the program: let the socket go, so that nobody takes the copy for the node."""
        self._listener.close()

    def _wake(self) -> None:
        try:
            self._waker.send(b".")
        except OSError:  # full, so it wakes up anyway; or closed
            return

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                try:
                    self._turn()
                except Exception as error:
                    # A mistake of this server's. It costs those who are connected their connection,
                    # and the node nothing.
                    self._node.log.error("control socket: a turn failed", error=shown(error))
                    for connection in tuple(self._connections):
                        self._drop(connection)
        finally:
            # First the file: who sees it gone does not even try.
            self.path.unlink(missing_ok=True)
            for connection in tuple(self._connections):
                self._drop(connection)
            for sock in (self._listener, self._woken, self._waker):
                sock.close()
            self._selector.close()
            self._over.settle(None)

    def _turn(self) -> None:
        for key, events in self._selector.select(self._pause()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._woken:
                self._woken.recv(4096)
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
        if self._deaf_until and now >= self._deaf_until:
            self._deaf_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._look_after_loop()
        # Who has waited longest comes first, so that those in a hurry cannot use up what all may
        # ask together.
        for connection in sorted(self._connections, key=lambda one: one.active):
            self._look_after(connection, now)

    def _pause(self) -> float:
        """Seconds until something may have to be done although nobody says anything."""
        if any(one.pending is not None for one in self._connections):
            return self._limits.glance / 3
        if any(one.has_line for one in self._connections):
            return self._limits.pace
        soon = self._deaf_until - perf_counter() if self._deaf_until else 0.5
        return max(0.0, min(soon, 0.5, self._limits.line / 5, self._limits.writing / 5))

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (
            OSError
        ):  # gone again; or no descriptor is free, and it is tried again a little later
            self._be_deaf(0.1)
            return
        self._accepted += 1
        if self._accepted % self._limits.accepts == 0:
            self._be_deaf(1.0)
        connection = Connection(sock, self._selector, self._node, self._wrote)
        self._connections.add(connection)
        try:
            self._admit(connection)
        except ControlError as error:
            self._refuse(connection, error)
        except OSError:  # gone again, or the system does not say who it is
            self._drop(connection)
        else:
            greeting = {
                "ergo": VERSION,
                "node": self._node.name,
                "os_pid": os.getpid(),
                "may": sorted(self._may),
            }
            self._say(connection, encode(greeting))

    def _be_deaf(self, seconds: float) -> None:
        """Accept nobody for a while. Connecting again and again must not keep this thread, and so
        the interpreter, busy.
        """
        if not self._deaf_until:
            self._deaf_until = perf_counter() + seconds
            self._selector.unregister(self._listener)

    def _admit(self, connection: Connection) -> None:
        user = peer_user(connection.sock)
        if user not in (os.geteuid(), 0):
            raise ControlError(
                "not_permitted",
                f"this node belongs to user {os.geteuid()}, and you are user {user}",
            )
        if len(self._connections) > self._limits.clients:
            # Whoever has been silent longest goes, so that silent ones cannot keep others out.
            idle = min(
                (one for one in self._connections if one.pending is None),
                key=lambda one: one.active,
            )
            if idle is connection or perf_counter() - idle.active < self._limits.line:
                raise ControlError("busy", f"{self._limits.clients} clients are connected already")
            self._drop(idle)

    def _read(self, connection: Connection) -> None:
        if not connection.receive():
            self._drop(connection)
        elif connection.pending is not None:
            self._heed_cancel(connection)

    def _say(self, connection: Connection, line: bytes) -> None:
        if not connection.gone and not connection.say(line):
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if connection.gone:
            return
        connection.close()
        self._connections.discard(connection)
        if connection.pending is not None:
            self._cancel(connection.pending)
            connection.pending = None
        try:
            # On the loop, where its variables may be in use until the cancellation has arrived.
            self._bridge.post(connection.client.close)
        except NodeStoppedError:
            connection.client.close()

    # -- requests ----------------------------------------------------------------------------------

    def _look_after(self, connection: Connection, now: float) -> None:
        limits = self._limits
        if connection.gone:
            return
        if connection.write_began is not None and now - connection.write_began > limits.writing:
            self._drop(connection)
        elif connection.pending is not None:
            if (
                connection.pending.command.in_thread is not None
                and now - connection.pending.asked > limits.glance
            ):
                self._finish(connection.pending, outcome.Value(None))
        elif connection.leaving or not connection.is_listening:
            return
        elif connection.has_line:
            if now >= max(connection.not_before, self._not_before):
                self._take_line(connection, now)
        elif connection.says_too_much:
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
        """Say why, and close: somebody who does not speak the language is not listened to."""
        connection.leaving = True
        self._say(connection, refusal(id, error))

    def _take_line(self, connection: Connection, now: float) -> None:
        line = connection.take_line()
        connection.active = now
        connection.not_before = now + self._limits.pace
        self._not_before = now + self._limits.pace_of_all
        if len(line) >= MAX_REQUEST:
            self._refuse(
                connection, ControlError("too_large", f"a request has at most {MAX_REQUEST} bytes")
            )
            return
        try:
            question = read_question(line)
        except ControlError as error:
            self._refuse(connection, error, error.more.pop("id", None))
            return
        try:
            self._begin(connection, question, now)
        except ControlError as error:
            self._say(connection, refusal(question.id, error))

    def _begin(self, connection: Connection, question: Question, now: float) -> None:
        command = COMMANDS.get(question.do)
        if question.do == "cancel":
            raise ControlError("bad_argument", "there is nothing to cancel")
        if command is None:
            raise ControlError(
                "unknown", f"there is no {question.do!r}; there are {', '.join(COMMANDS)}, cancel"
            )
        if command.permission not in self._may:
            have = " and ".join(sorted(self._may))
            raise ControlError(
                "not_permitted",
                f"{question.do} needs the permission {command.permission!r}, and this node gives "
                f"{have}: "
                f"open it with control={','.join(sorted({*self._may, command.permission}))!r}",
            )
        pending = _Pending(connection, question, command, now)
        try:
            self._bridge.post(self._start, pending)
        except NodeStoppedError as error:
            raise explain(error) from None
        connection.pending = pending
        self._heartbeat.ask()

    def _start(self, pending: _Pending) -> None:
        """On the loop."""
        if pending.command.on_loop is None:
            self._done(pending, outcome.Value(None))
            return
        try:
            # In nobody's context: what is asked from outside has nothing to do with whoever opened
            # the node.
            kernel = self._node._kernel
            contextvars.Context().run(
                lambda: kernel.start(self._answer, pending, name="for the control socket")
            )
        except RuntimeError:  # the nursery is closed
            self._done(
                pending, outcome.Error(ControlError("stopping", f"{self._node.name} is down"))
            )

    async def _answer(self, pending: _Pending) -> None:
        assert pending.command.on_loop is not None
        arguments = Arguments(pending.question.do, pending.question.arguments)
        result: outcome.Outcome[object] = outcome.Error(
            ControlError("cancelled", "it was cancelled")
        )
        try:
            with pending.scope:
                result = outcome.Value(
                    await pending.command.on_loop(pending.connection.client, arguments)
                )
        except Exception as error:
            result = outcome.Error(error)
        finally:
            self._done(pending, result)

    def _done(self, pending: _Pending, result: "outcome.Outcome[object]") -> None:
        self._answers.append(lambda: self._finish(pending, result))
        self._wake()

    def _wrote(self, connection: Connection, text: str) -> None:
        """On the loop: a prompt is to show something before its input is done."""
        # Nobody reads as fast as a loop can print: beyond this, what is printed is lost.
        if not connection.gone and not connection.is_full and len(self._answers) < _MOST_STEPS:
            self._answers.append(lambda: self._show(connection, text))
            self._wake()

    def _show(self, connection: Connection, text: str) -> None:
        if connection.pending is not None:
            self._say(connection, encode({"id": connection.pending.question.id, "out": text}))

    def _finish(self, pending: _Pending, result: "outcome.Outcome[object]") -> None:
        connection = pending.connection
        if connection.pending is not pending:
            return
        connection.pending = None
        try:
            value = result.unwrap()
            if pending.command.in_thread is not None:
                arguments = Arguments(pending.question.do, pending.question.arguments)
                value = pending.command.in_thread(
                    connection.client,
                    arguments,
                    self._heartbeat.who_blocks(0.9 * self._limits.glance),
                )
            line = answer(pending.question.id, value)
        except Exception as error:
            line = refusal(pending.question.id, explain(error))
        self._say(connection, line)

    def _heed_cancel(self, connection: Connection) -> None:
        """While something is being done, only the wish to stop it is read."""
        if not connection.has_line or b"cancel" not in (line := connection.first_line()):
            return
        try:
            question = read_question(line)
        except ControlError:  # it is told so when its turn comes
            return
        if question.do == "cancel":
            connection.take_line()
            self._cancel(connection.pending)

    def _cancel(self, pending: _Pending) -> None:
        try:
            self._bridge.post(pending.scope.cancel)
        except NodeStoppedError:  # all that was being done has ended with it
            return

    def _look_after_loop(self) -> None:
        """Answer those who wait for a loop that does not move."""
        waiting = [one.pending for one in self._connections if one.pending is not None]
        if not waiting:
            return
        report = self._heartbeat.who_blocks(self._limits.patience)
        self._heartbeat.ask()
        if report is None:
            return
        who = (
            f"{report.behaviour}.{report.callback}"
            if report.process is not None
            else "something that is no process, such as `main` or a prompt"
        )
        for pending in waiting:
            if pending.command.on_loop is not None:
                self._cancel(pending)
                text = f"the loop of {self._node.name} has been blocked by {who} for {report.seconds:.1f} s"
                self._finish(pending, outcome.Error(ControlError("blocked", text, report=report)))


_servers: Final[WeakSet[Server]] = WeakSet()


def _let_go_in_copy() -> None:
    for server in tuple(_servers):
        server.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_copy)


def open_control(node: Any, permissions: frozenset[str]) -> Callable[[], None]:
    """Offer a control socket for a node; returns what closes it.

    Raises:
        ControlSocketError: there is no place for it, or the system does not let us.
    """
    clean()
    server = Server(node, permissions)
    server.start()
    node.log.info("control socket", path=str(server.path), may=sorted(permissions))
    node.control_path = server.path
    return server.close
