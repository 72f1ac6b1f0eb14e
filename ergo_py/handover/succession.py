"""`Succession`: a program takes the listening sockets and the state of its predecessor over, and
hands them over to its successor.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import trio

from .._core.verbs.node_access import kernel_of
from .._core.vocabulary.errors import NodeStoppedError, NotAllowedError
from .._core.vocabulary.text import text_of
from ..control.socket_paths import peer_user
from ..meta.inherited_sockets import InheritedSockets
from ..meta.sockets.listener import listeners_of
from ..meta.sockets.udp import udp_servers_of
from ..node import Node
from .channel import (
    PATIENCE,
    REQUEST,
    Channel,
    Line,
    Outcome,
    connect,
    hand_over,
    items_of,
    read_sizes,
    socket_path,
    take_turn,
)
from .moved_processes import Arriving, Leaving
from .next_version import NextVersion

__all__ = ["Succession"]

_DRAIN: Final = 30.0
"""Seconds that a program serves on after its successor has taken over."""
_SILENCE: Final = 150.0
"""Seconds that a program waits for a line of its predecessor, which perhaps hands over to another
program first.
"""
_PAUSE: Final = 1.0
"""Seconds until a program that had no descriptor for a successor tries again."""
_REPORT: Final = 1.0
"""Seconds between two reports of how many connections have moved."""
_STOP: Final = 10.0
"""Seconds that a program which is stopped has for its connections to a successor."""
_ENDED: Final = "the next version has ended after it has taken over"
_TRIES: Final = 10
"""How often a program looks for its predecessor, while that hands over to another program."""


class Succession:
    """The place of a program among the programs of its name, one after the other.

    Args:
        name: the name that all of them have.
        sockets: the named sockets of this program.

    Raises:
        BadInputError: it is no name.
        ControlSocketError: there is no safe directory for its socket, or its path is too long.
    """

    def __init__(self, name: str, sockets: InheritedSockets) -> None:
        self._name = name
        self._path = socket_path(name)
        """The file at which the running program waits for its successor."""
        self._sockets = sockets
        self._predecessor: Channel | None = None
        self._arriving: Arriving | None = None
        """The processes and connections of the predecessor that this program has taken over."""
        self._is_up = trio.Event()
        self._predecessor_has_ended = trio.Event()
        self._scope = trio.CancelScope()
        """Around the wait for a successor, which ends with the program."""
        self._hands_over = trio.Lock()
        """Held while this program hands over."""
        self._leaving: Leaving | None = None
        """What the last successor gets."""
        self._gives = trio.CancelScope()
        """Around the steps behind the turn of a successor, which a stop of this program lets end.
        """
        self._is_ending = False
        self._is_succeeded = False
        """A successor has taken over."""
        self._say: Callable[[], object] = bool
        """Says that this program serves."""
        self._next = NextVersion()
        self._failure: NotAllowedError | None = None
        self._listener: socket.socket | None = None
        self._hidden: Path | None = None
        """The file of the listener before the turn of this program."""
        self._file: tuple[int, int] | None = None
        """Device and inode of the file at which this program waits for a successor."""
        sockets.begin_to_keep()
        # Before the files of the next version are there. A program without moving processes needs
        # no msgspec.
        with suppress(ModuleNotFoundError):
            import_module("..network.messages.message_types", __package__)

    @property
    def serves(self) -> bool:
        """Whether this program has taken over, and no successor has."""
        return self._file is not None and not self._is_succeeded

    async def begin(self) -> None:
        """Find the predecessor, and get its sockets.

        Raises:
            ControlSocketError: there is no safe directory for the socket.
            NotAllowedError: the predecessor does not answer, or refuses the hand-over, or this
                program has no descriptors for its sockets.
        """
        for _ in range(_TRIES):
            channel, answer = await connect(self._name), Line()
            if channel is None:
                return
            try:
                with suppress(OSError):
                    await channel.say(REQUEST)
                    answer = await self._hear(channel)
            except BaseException:
                channel.close()
                raise
            names, descriptors = answer.get("sockets"), channel.take_descriptors()
            if isinstance(names, list) and len(names) == len(descriptors):
                taken = dict(zip(map(str, names), descriptors, strict=True))
                self._sockets.take_over(taken, read_sizes(answer.get("former_sizes"), taken))
                self._predecessor = channel
                return
            for number in descriptors:
                os.close(number)
            channel.close()
            if isinstance(names, list):
                raise NotAllowedError(f"{self._goes_on}: this one has no descriptor left")
            if "failed" in answer:
                raise NotAllowedError(f"{self._goes_on}: {answer['failed']}")
            # It has ended, or handed over to another program: look for that one.
        raise NotAllowedError(
            f"{self._goes_on}: it did not answer {_TRIES} requests; stop it, and start this one"
        )

    def watch(self, node: Node, say: Callable[[], object]) -> Callable[[], None]:
        """Take over when the program is up, which it says by calling the returned function; then
        call ``say``, and wait for a successor.
        """
        self._say = say

        async def serve() -> None:
            with self._scope:
                await self._is_up.wait()
                # `end` does not cancel a wait that has just ended.
                if not self._is_ending and await self._take_over(node):
                    say()
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._serve_predecessor, node)
                        await self._serve_successors(node)

        kernel_of(node).start(serve, name=f"succession of {self._name}")
        return self._is_up.set

    async def end(self) -> None:
        """Close the socket for successors, and remove its file unless it is a successor's. This
        program is stopped: a successor that has its turn gets the rest first, and a next version
        without a turn that this program has started is stopped, too.

        Raises:
            NotAllowedError: the program was not up in time, and its predecessor goes on.
        """
        self._is_ending = True
        self._next.stop(has_turn=self._leaving is not None and self._leaving.are_given)
        if self._listener is not None:
            self._listener.close()
        if self._hidden is not None:
            self._hidden.unlink(missing_ok=True)
        if self._file is not None and _identity(self._path) == self._file:
            self._path.unlink()
        self._scope.cancel()
        with trio.move_on_after(_STOP, shield=True):
            await self._hands_over.acquire()
        self._gives.cancel()
        if self._predecessor is not None:
            self._sockets.leave()  # the predecessor goes on with its options
            # Last: a predecessor that goes on puts its own file back.
            self._predecessor.close()
        if self._failure is not None:
            raise self._failure

    async def _take_over(self, node: Node) -> bool:
        """Accept connections instead of the predecessor. False if the predecessor goes on."""
        predecessor, arriving = self._predecessor, Arriving(kernel_of(node))
        try:
            # What can fail comes before the turn, or before this program touches a connection.
            self._listen()
            if predecessor is not None:
                await self._take_states(node, predecessor, arriving)
                self._arriving = arriving
            self._replace_file()
        except (NotAllowedError, OSError) as error:
            if predecessor is None:
                raise
            if self._is_ending and isinstance(error, OSError):
                return False  # `end` has removed the hidden file: this program is stopped
            self._failure = (
                NotAllowedError(f"{self._goes_on}: this one cannot wait for successors: {error}")
                if isinstance(error, OSError)
                else error
            )
            node.stop()
            return False
        self._sockets.release()
        for listener in listeners_of(kernel_of(node)):
            listener.look_again()
        for server in udp_servers_of(kernel_of(node)):
            server.look_again()
        if predecessor is not None:
            with suppress(OSError):
                await predecessor.say({"mine": True})
        return True

    async def _take_states(self, node: Node, predecessor: Channel, arriving: Arriving) -> None:
        """Say that this program is up, take the states of the predecessor over, and wait until the
        predecessor has agreed, or has ended.

        Raises:
            NotAllowedError: the predecessor goes on.
        """
        states = dict[str, bytes]()
        answer, goes_on = dict[str, Any](), self._goes_on
        with suppress(OSError):
            servers = arriving.connections.servers()
            await predecessor.say({"up": True, "takes": arriving.names(), "connections": servers})
            while "yours" not in answer:
                answer = await self._hear(predecessor)
                if "state" in answer:
                    states[str(answer["state"])] = answer.get("body", b"")
                elif "states" in answer:
                    await self._give_states(arriving, states, predecessor)
                    for name in map(str, items_of(answer.get("fresh"))):
                        node.log.warning(arriving.why_fresh(name), process=name)
                elif "late" in answer:
                    raise NotAllowedError(
                        f"{goes_on}: this one was not up within {answer['late']} s; call "
                        "task_status.started() earlier"
                    )
                elif "failed" in answer:
                    raise NotAllowedError(f"{goes_on}: {answer['failed']}")
                elif "yours" not in answer:
                    break
        if "yours" in answer:
            turns = predecessor.take_descriptors()
            if not turns:
                raise NotAllowedError(f"{goes_on}: this one has no descriptor left for its turn")
            if not _takes_turn(turns):
                raise NotAllowedError(f"{goes_on}: this one did not take its turn in time")
            return
        # The predecessor has ended, or has given up on this program in the middle of a line.
        if (again := await connect(self._name)) is not None:
            again.close()
            raise NotAllowedError(f"{goes_on}: this one did not take over in time")
        if arriving.names():
            node.log.warning("the running program has ended before it has agreed to the hand-over")

    async def _give_states(
        self, arriving: Arriving, states: dict[str, bytes], predecessor: Channel
    ) -> None:
        """Give the processes their states.

        Raises:
            NotAllowedError: a process cannot take its state over, or the predecessor has given up
                meanwhile.
        """
        refusal, late = "", Line()
        async with trio.open_nursery() as nursery:

            async def listen() -> None:
                nonlocal late
                late = await predecessor.hear()
                if late:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(listen)
            try:
                with trio.fail_after(_SILENCE):
                    await arriving.take_over(states)
            except NotAllowedError as error:
                refusal = str(error)
            except trio.TooSlowError:  # of a predecessor that has ended, and says nothing
                refusal = f"a take_over did not end within {_SILENCE:g} s"
            nursery.cancel_scope.cancel()
        if late:
            limit = late.get("late")
            raise NotAllowedError(
                f"{self._goes_on}: this one did not take the states over within {limit} s"
            )
        if refusal:
            with suppress(OSError):
                await predecessor.say({"refused": refusal})
            raise NotAllowedError(f"{self._goes_on}: {refusal}")
        await predecessor.say({"taken": True})

    @property
    def _goes_on(self) -> str:
        return f"the running program {self._name!r} goes on"

    async def _hear(self, predecessor: Channel) -> Line:
        """Wait for the next line of the predecessor.

        Raises:
            NotAllowedError: the predecessor hangs.
        """
        with trio.move_on_after(_SILENCE):
            return await predecessor.hear()
        raise NotAllowedError(f"{self._goes_on}: it did not answer within {_SILENCE:g} s")

    async def _serve_predecessor(self, node: Node) -> None:
        """Serve the messages that the predecessor forwards to moved processes, until it ends."""
        predecessor = self._predecessor
        if predecessor is not None and self._arriving is not None:
            await self._arriving.serve(predecessor)
            predecessor.close()
            self._predecessor = None
        self._predecessor_has_ended.set()

    def _listen(self) -> None:
        """Listen for successors, at a file that none knows yet."""
        self._listener = listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._hidden = hidden = self._path.with_name(f".{os.getpid()}+{id(listener):x}")
        listener.bind(str(hidden))
        os.chmod(hidden, 0o600)
        listener.listen(16)
        listener.setblocking(False)

    def _replace_file(self) -> None:
        """Replace the file of the predecessor, in a single step."""
        assert self._hidden is not None
        file = _identity(self._hidden)
        os.rename(self._hidden, self._path)
        self._file = file

    async def _serve_successors(self, node: Node) -> None:
        assert self._listener is not None
        if self._is_ending:
            return  # `end` has closed the socket
        listener = trio.socket.from_stdlib_socket(self._listener)
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    sock, _ = await listener.accept()
                except OSError as error:  # such as for want of descriptors
                    node.log.warning("a successor cannot be accepted", error=str(error))
                    await trio.sleep(_PAUSE)
                    continue
                # The directory keeps other users out, too; root is no exception here.
                if peer_user(cast(socket.socket, sock)) == os.geteuid():
                    nursery.start_soon(self._meet, node, Channel(sock))
                else:
                    sock.close()

    async def _meet(self, node: Node, channel: Channel) -> None:
        """Serve ``ergo upgrade`` or a successor; of several successors one after the other."""
        with closing(channel), self._second_name(channel) as second:
            first: Line = {}
            with trio.move_on_after(PATIENCE):
                first = await channel.hear()
            if not first:
                return  # it only asked whether this program goes on
            if "upgrade" in first:
                # Not cancelled: `end` stops the next version, and its client hears so.
                with suppress(OSError), trio.CancelScope(shield=True):  # the client has left
                    await self._next.upgrade(channel)
                return
            leaving, is_done = Leaving(kernel_of(node)), trio.Event()
            async with trio.open_nursery() as nursery:
                try:
                    async with self._hands_over:
                        if not self.serves:
                            return  # it finds the program that has taken over
                        await self._await_connections()
                        self._leaving = leaving
                        self._next.report({"begun": True})
                        goes_on, why = await self._hand_over(channel, first, leaving, second)
                        if goes_on:
                            node.log.warning("the next version has not taken over", reason=why)
                            self._next.report({"failed": why})
                            return
                        with trio.CancelScope(shield=True) as self._gives:
                            nursery.start_soon(leaving.pass_answers, is_done)
                            goes_on = await self._give(node, leaving, channel, second, why)
                    if not goes_on:
                        await self._finish(node, leaving)
                finally:
                    is_done.set()

    async def _await_connections(self) -> None:
        """Wait for the connections of the predecessor, which are to move on, too."""
        if self._arriving is not None:
            with trio.move_on_after(_DRAIN):
                await self._arriving.connections_have_arrived.wait()

    @contextmanager
    def _second_name(self, channel: Channel) -> Iterator[Path]:
        """A second name for the file of this program during a hand-over. A successor replaces the
        file just before it says that it serves; if the successor ends later, the second name lets
        this program put its own file back.
        """
        second = self._path.with_name(f".{os.getpid()}+{id(channel):x}")
        try:
            yield second
        finally:
            second.unlink(missing_ok=True)

    async def _hand_over(
        self, channel: Channel, first: Line, leaving: Leaving, second: Path
    ) -> Outcome:
        """Hand over to a successor."""
        with suppress(OSError):  # not all file systems have second names
            os.link(self._path, second)
        sockets = self._sockets
        outcome = await hand_over(
            channel, first, sockets.to_hand_over(), leaving, former_sizes=sockets.former_sizes
        )
        if outcome.goes_on and not self._is_ending:  # `end` has removed the file for good
            with suppress(OSError):
                os.rename(second, self._path)
        return outcome

    async def _give(
        self, node: Node, leaving: Leaving, channel: Channel, second: Path, hangs: str
    ) -> bool:
        """Give messages and connections to a successor that has taken over. Whether this program
        goes on, since the successor has ended meanwhile.
        """
        if hangs:
            node.log.error("the next version hangs", reason=hangs)
        self._is_succeeded = True
        self._sockets.leave()
        self._next.report(
            {
                "sockets": sorted(self._sockets.to_hand_over()),
                "states": leaving.moved,
                "fresh": leaving.fresh,
            }
        )
        connections = leaving.connections
        await leaving.forward(channel)
        try:
            await self._move(leaving, channel, hangs)
        finally:
            if not connections.are_lost:
                self._report(node, leaving)
            await leaving.forward_sessions(channel)
        if not connections.are_lost:
            return False
        goes_on = await self._goes_on_after(leaving, second)
        self._report_loss(node, leaving, goes_on=goes_on)
        return goes_on

    async def _goes_on_after(self, leaving: Leaving, second: Path) -> bool:
        """Go on, since the successor has ended in the middle: accept connections again. False if
        that is not possible: states have moved, and ended with the successor; a server has closed
        its socket; a further program serves already; or this program is stopped.
        """
        if self._is_ending or leaving.moved or not leaving.connections.may_accept_again():
            return False
        with suppress(OSError):
            if _identity(self._path) != self._file:
                if (other := await connect(self._name)) is not None:
                    other.close()
                    return False
                os.rename(second, self._path)
        leaving.accept_again()
        self._is_succeeded = False
        self._sockets.take_back()
        self._say()
        return True

    def _report_loss(self, node: Node, leaving: Leaving, *, goes_on: bool) -> None:
        """Report the loss of connections and states, and whether this program goes on."""
        why, staying = _ENDED, dict(leaving.connections.staying)
        if lost := leaving.what_is_lost():
            why = f"{why}, and with it {lost}"
        node.log.error("the hand-over has failed", reason=why, staying=staying, goes_on=goes_on)
        if goes_on:
            self._next.report({"failed": why})
        else:
            self._next.report({"done": True, "connections": 0, "staying": staying, "hangs": why})

    def _report(self, node: Node, leaving: Leaving) -> None:
        """Say what has moved, and whether the successor hangs."""
        moved, staying = leaving.connections.moved, dict(leaving.connections.staying)
        node.log.info(
            "a successor has taken over", name=self._name, connections=moved, staying=staying
        )
        self._next.report(
            {
                "done": True,
                "connections": moved,
                "staying": staying,
                "hangs": leaving.connections.hangs,
            }
        )

    async def _move(self, leaving: Leaving, channel: Channel, hangs: str) -> None:
        """Move the connections, and report how many have moved each second."""

        async def report() -> None:
            while True:
                await trio.sleep(_REPORT)
                connections = leaving.connections
                self._next.report({"moving": connections.moved, "of": connections.candidates})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(report)
            await leaving.move_connections(channel, hangs)
            nursery.cancel_scope.cancel()

    async def _finish(self, node: Node, leaving: Leaving) -> None:
        """Finish the work of this program, and end."""

        async def await_predecessor() -> None:
            # Its sessions reach moved processes through this program.
            with trio.move_on_after(_DRAIN):
                await self._predecessor_has_ended.wait()

        async with trio.open_nursery() as work:
            work.start_soon(await_predecessor)
            try:
                await node.drain(_DRAIN)
            except Exception as error:  # the successor serves: this program has to end
                node.log.error("the drain has failed", error=text_of(error))
        await leaving.flush()
        with suppress(NodeStoppedError):  # by a signal, while it drained
            node.stop()


def _takes_turn(turns: list[int]) -> bool:
    """Whether this program serves from now on: the predecessor has not taken the turn back."""
    try:
        return take_turn(turns[-1])
    finally:
        for turn in turns:
            os.close(turn)


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
