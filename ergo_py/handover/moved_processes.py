"""`Leaving`: the processes of a program whose state moves to its successor. `Arriving`: the
processes of the successor that take the state over.

A process that leaves is suspended from its ``hand_over`` on, so that messages wait. When the
successor has taken over, the process forwards them: it keeps its PID and its name for the processes
of the old program, which go on until their work is done. If the successor fails, the process is
resumed, and has lost nothing.
"""

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, cast

import trio

from .._core.inspection.state import ask
from .._core.inspection.suspension import resume, suspend
from .._core.kernel import Kernel
from .._core.metas.meta import Meta
from .._core.processes.envelope_handlers import callback
from .._core.processes.message_loop import AGAIN
from .._core.processes.process import Process, processes_of
from .._core.tables.pending_calls import Caller
from .._core.vocabulary.envelopes import FENCE, LOOK, Lane
from .._core.vocabulary.errors import NotAllowedError, TargetDownError
from .._core.vocabulary.ids import PID
from .._core.vocabulary.reasons import Reason, Shutdown
from .._core.vocabulary.text import text_of
from ..meta.readers import has_served
from ..meta.sockets.listener import Listener
from ..meta.sockets.streams.sessions import end_session
from ..meta.sockets.udp import udp_servers_of
from ..supervision.upgrade import Upgrade
from .arriving_connections import ArrivingConnections
from .channel import LARGEST, Channel, Line, Part
from .forwarder import Link, serve_forwarded
from .leaving_connections import LeavingConnections

if TYPE_CHECKING:
    from ..network.messages.message_types import MessageTypes
    from ..network.network import Network

__all__ = ["Arriving", "Leaving"]

_READY: Final = 10.0
"""Seconds within which all processes have to be between two messages at once."""
_ROUND: Final = 0.05
"""Seconds of the first try. A suspended process may be the callee of one that is still busy, so
that both would wait for each other: then all are resumed, and the next try takes twice as long.
"""
_LAST: Final = 5.0
"""Seconds without a forwarded message after which the program ends, and the others are lost. Not
for all together: on a busy machine a thousand messages took longer, and half of them were lost.
"""


class _Codecs:
    """The codecs of processes: plain values, the types of the module that defines the class of the
    process, and those that the network of the node lists. Each module has its own, since classes of
    several modules may have the same name.
    """

    def __init__(self, kernel: Kernel) -> None:
        network = cast("Network | None", kernel.router.remote)
        self._listed = () if network is None else network.types.listed
        self._made: dict[str, MessageTypes] = {}
        """By the name of the module: thousands of processes have the same."""

    def of(self, process: Process) -> "MessageTypes":
        """The codec of a process."""
        from ..network.messages.message_types import MessageTypes  # noqa: PLC0415 - see Succession

        name = type(process.behaviour_itself).__module__
        if name not in self._made:
            module = sys.modules.get(name)
            listed = [*([] if module is None else [module]), *self._listed]
            self._made[name] = MessageTypes(listed, is_limited=False)
        return self._made[name]


def _with_callback(kernel: Kernel, name: str) -> dict[str, Process]:
    """The registered processes whose class defines a callback, by name."""
    return {
        process.name: process
        for process in processes_of(kernel.router).values()
        if process.name is not None and name in process.callbacks.defined
    }


class _Busy(Exception):
    """The process waits for answers, or owes some: these would be lost with its old instance."""


class Leaving:
    """The processes of this program whose state moves to its successor, all of them or none.

    Args:
        kernel: the kernel of this program.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._moving: dict[str | int, Process] = {}
        """The processes that are suspended, by name, and the sessions that have moved, by the
        number of their connection.
        """
        self._codecs = _Codecs(kernel)
        self._types: dict[str | int, MessageTypes] = {}
        """The codec of each."""
        self._held: set[PID] = set()
        """The processes that this hand-over has suspended; a person resumes the others."""
        self._link: Link | None = None
        """The way to the successor, once it has taken over."""
        self._servers: list[object] = []
        """The servers whose connections the successor takes."""
        self.connections: LeavingConnections = LeavingConnections(
            kernel,
            self._give_session,
            self._resume_one,
            self._leave_session,
            self._forward_waiting,
        )
        self.fresh: list[str] = []
        """The names of processes with a state that the successor does not take."""
        self.are_given: bool = False
        """The successor has its turn: this program ends the hand-over, also if it is stopped."""

    @property
    def moved(self) -> list[str]:
        """The names of the processes that are suspended, or have moved."""
        return sorted(name for name in self._moving if isinstance(name, str))

    def what_is_lost(self) -> str:
        """The connections and states that have ended with the successor; empty for none."""
        connections, lost = self.connections, list[str]()
        if connections.candidates:
            lost.append(f"{connections.moved:,} of {connections.candidates:,} connections")
        if self.moved:
            lost.append(f"the states of {', '.join(self.moved)}")
        return " and ".join(lost)

    async def suspend(self, wanted: Iterable[object], servers: Iterable[object] = ()) -> list[Part]:
        """Suspend the wanted processes, each between two messages and all at once, and return their
        states. The connections of the servers move later.

        Raises:
            NotAllowedError: a process is busy for too long, ``hand_over`` has raised, or its state
                cannot be encoded. All processes go on.
        """
        self._servers = list(servers)
        states = await self._suspend_all(wanted)
        return [Part({"state": name}, state) for name, state in states.items()]

    async def _suspend_all(self, wanted: Iterable[object]) -> dict[str, bytes]:
        found, names = _with_callback(self._kernel, "hand_over"), set(map(str, wanted))
        self.fresh = sorted(found.keys() - names)
        moving = {name: process for name, process in found.items() if name in names}
        if not moving:
            return {}
        limit = _ROUND
        states: dict[str, bytes] = {}
        busy: dict[str, str] = {}
        try:
            with trio.move_on_after(_READY):
                while True:
                    with trio.move_on_after(limit):
                        async with trio.open_nursery() as nursery:
                            for name, process in moving.items():
                                nursery.start_soon(self._collect, name, process, states, busy)
                    if not busy:
                        return states
                    await self.resume()
                    states.clear()
                    await trio.sleep(limit)
                    limit *= 2
        except* NotAllowedError as group:
            await self.resume()
            raise _first(group) from None
        await self.resume()
        name, why = next(iter(busy.items()))
        raise NotAllowedError(
            f"the state of {name!r} cannot be handed over: it {why} for more than {_READY:g} s"
        )

    async def _collect(
        self, name: str, process: Process, states: dict[str, bytes], busy: dict[str, str]
    ) -> None:
        """Suspend a process, and put its state to the others; or put the cause to the busy ones."""
        if self._is_suspended(process):  # by a person, who resumes it
            busy[name] = "is suspended"
            return
        busy[name] = "is busy"
        # Before the answer, which may come too late for this task: then the process is suspended,
        # and has to be resumed.
        self._moving[name] = process
        try:
            state = await self._ask(process, partial(_give, self._held))
            types = self._types[name] = self._codecs.of(process)
            states[name] = encoded = types.encode(state)
            if len(encoded) > LARGEST:
                raise ValueError(f"it has {len(encoded)} bytes; allowed are {LARGEST}")
            del busy[name]
        except TargetDownError:  # it has ended, and its state with it
            del busy[name], self._moving[name]
        except _Busy as error:
            busy[name] = str(error)
        except Exception as error:  # hand_over has raised, or the codec refuses: any error
            raise NotAllowedError(
                f"the state of {name!r} cannot be handed over: {text_of(error)}"
            ) from error

    async def _give_session(self, number: int, session: Process) -> bytes:
        """Suspend a session, and return its encoded state."""
        if self._is_suspended(session):
            raise _Busy("is suspended")  # by a person, who resumes it
        state = await self._ask(session, partial(_give_session, self._held))
        types = self._types[number] = self._codecs.of(session)
        return types.encode(state)

    async def _leave_session(self, number: int, session: Process) -> None:
        """Let a session forward its messages: its connection has moved. A session whose connection
        has ended with the successor ends, too.
        """
        if self.connections.are_lost:
            await self._resume_one(session)
            end_session(session, self._kernel.pid)
            return
        self._moving[number] = session
        await self._start_to_forward(number, session)

    async def _start_to_forward(self, name: str | int, process: Process) -> None:
        assert self._link is not None
        self._link.names[process.id] = name
        await self._ask_suspended(process, partial(_leave, self._link.upgrade))

    async def resume(self) -> None:
        """Let the suspended processes go on: the successor has not taken over. All of them, also if
        the time of the hand-over ends meanwhile.
        """
        self.are_given = False
        moving, self._moving = self._moving, {}
        with trio.CancelScope(shield=True):
            for process in moving.values():
                await self._resume_one(process)

    async def _resume_one(self, process: Process) -> None:
        if process.id in self._held:
            self._held.remove(process.id)
            await self._ask_suspended(process, resume)

    async def forward(self, channel: Channel) -> None:
        """Forward the messages that wait, and all later ones: the successor has taken over. The
        connections of the processes end, since their receivers have moved.
        """
        self._link = Link(channel, self._types)
        for name, process in self._moving.items():
            await self._start_to_forward(name, process)

    async def move_connections(self, channel: Channel, hangs: str) -> None:
        """Move the connections that have sessions: the successor has taken over."""
        await self.connections.move(channel, self._servers, hangs)

    def accept_again(self) -> None:
        """Accept connections as before the move, with the options of this program."""
        self.are_given = False
        self.connections.accept_again()
        for server in udp_servers_of(self._kernel):
            server.look_again()

    async def forward_sessions(self, channel: Channel) -> None:
        """Forward the messages to the sessions that have moved."""
        await self.connections.leave(channel)

    async def pass_answers(self, is_done: trio.Event) -> None:
        """Pass the answers of the successor to the callers in this program, until the program is
        done and its moved processes have ended: other processes may send while they stop.
        """

        async def pass_on() -> None:
            assert self._link is not None
            await self._link.pass_answers(self._kernel, self.connections.hear)
            self.connections.end()

        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pass_on)
                await is_done.wait()
                for process in self._moving.values():
                    await process.wait_gone()
                nursery.cancel_scope.cancel()

    async def flush(self) -> None:
        """Wait until the messages that have come so far are forwarded."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_without_progress, nursery.cancel_scope)
            for process in self._moving.values():
                await self._wait_for(process)
            nursery.cancel_scope.cancel()

    async def _end_without_progress(self, flushing: trio.CancelScope) -> None:
        assert self._link is not None
        seen = -1
        while self._link.sent > seen:
            seen = self._link.sent
            await self._pause()
        self._kernel.logger.error("messages to moved processes are lost: the next program stalls")
        flushing.cancel()

    async def _pause(self) -> None:
        await trio.sleep(_LAST)

    async def _forward_waiting(self) -> None:
        """The same for the processes with names, most of which have nothing to forward."""
        for name, process in self._moving.items():
            if isinstance(name, str) and not has_served(process):
                await self._wait_for(process)

    async def _wait_for(self, process: Process) -> None:
        """Wait until a process has forwarded the messages that have come so far."""
        if process.accepting:
            with suppress(TargetDownError):  # it has ended, behind its last message
                await self._kernel.calls.ask(
                    self._kernel.pid, process, process.id, Lane.MAIN, FENCE, "fence", None, None
                )

    def _is_suspended(self, process: Process) -> bool:
        watch = self._kernel.watches.get(process.id)
        return watch is not None and watch.suspended

    async def _ask(self, process: Process, request: object) -> object:
        """Ask behind the messages that wait."""
        kernel = self._kernel
        return await kernel.calls.ask(
            kernel.pid, process, process.id, Lane.MAIN, LOOK, "hand_over", request, None
        )

    async def _ask_suspended(self, process: Process, request: object) -> None:
        if process.accepting:  # else it ends or has ended, and answers no more
            with suppress(TargetDownError):
                await ask(
                    self._kernel, self._kernel.pid, process, process.id, "hand_over", request, None
                )


def _first(group: BaseExceptionGroup[NotAllowedError]) -> NotAllowedError:
    """The first error of a group of groups."""
    found: NotAllowedError | BaseExceptionGroup[NotAllowedError] = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


async def _give_session(held: set[PID], process: Process, caller: Caller) -> Reason | None:
    """The same for a session, whose messages from its connection cannot travel."""
    if process.postponed:
        caller.settle(None, _Busy("has postponed messages"))
        return None
    return await _give(held, process, caller)


async def _give(held: set[PID], process: Process, caller: Caller) -> Reason | None:
    """Answer with the state of a process, and suspend it."""
    if process.requests or process.deferred:
        caller.settle(None, _Busy("waits for answers" if process.requests else "owes answers"))
        return None
    try:
        state = await callback(process, "hand_over")
    except Exception as error:
        caller.settle(None, error)
        return None
    if caller.settled:
        return None  # the try is over
    held.add(process.id)
    caller.settle(state, None)
    return await suspend(process, caller)


async def _leave(upgrade: Upgrade, process: Process, caller: Caller) -> Reason:
    """Go on as a process that forwards its messages."""
    upgrade.perform(process)
    process.requeue_postponed()
    for timer in tuple(process.timers or ()):
        timer.cancel()
    for owned in tuple((process.owned or {}).values()):
        # A server goes on until its sessions have ended.
        if isinstance(owned, Meta) and not isinstance(owned.behaviour, Listener):
            owned.finish_without_blame(Shutdown())
    await resume(process, caller)
    return AGAIN


class Arriving:
    """The processes of this program that take the states of its predecessor over."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._codecs = _Codecs(kernel)
        self.connections: ArrivingConnections = ArrivingConnections(kernel, self._request)
        self.connections_have_arrived: trio.Event = trio.Event()
        """All that the predecessor could move."""

    def names(self) -> list[str]:
        """The names of the processes that take a state over."""
        return sorted(_with_callback(self._kernel, "take_over"))

    def why_fresh(self, name: str) -> str:
        """Why no process takes the state of this name over."""
        if name in self._kernel.router.registry.names:
            return "a process starts fresh: its class has no take_over"
        return "a state is lost: the next version has no process of this name"

    async def take_over(self, states: Mapping[str, bytes]) -> None:
        """Give each process its state, before the messages that wait.

        Raises:
            NotAllowedError: a state cannot be decoded, or ``take_over`` has raised.
        """
        kernel, found = self._kernel, _with_callback(self._kernel, "take_over")
        for name, state in states.items():
            try:
                process = found[name]
                request = self._request(process, state)
                await ask(kernel, kernel.pid, process, process.id, "take_over", request, None)
            except Exception as error:  # the process has ended, or take_over has raised: any error
                raise NotAllowedError(
                    f"{name!r} cannot take its state over: {type(error).__qualname__}: "
                    f"{text_of(error)}"
                ) from error

    def _request(self, process: Process, state: bytes) -> object:
        """Make a request that gives a process its state, before the messages that wait."""
        return partial(_take, self._codecs.of(process).decode(state))

    async def serve(self, channel: Channel) -> None:
        """Serve the messages that the predecessor forwards, until it has ended."""
        named, connections = _with_callback(self._kernel, "take_over"), self.connections
        put, batches = trio.open_memory_channel[Line](inf)

        def find(name: str | int) -> "tuple[str | PID, MessageTypes]":
            if isinstance(name, str):
                return name, self._codecs.of(named[name])
            session = connections.session(name)
            return session.id, self._codecs.of(session)

        def take(line: Line) -> None:
            if "batch" in line:
                connections.keep(channel.take_descriptors())
                put.send_nowait(line)
            elif "late" in line:
                connections.write_late(line)
            elif "moved" in line:
                put.send_nowait(line)

        async def take_batches() -> None:
            async for line in batches:
                if "batch" in line:
                    await connections.take(line, channel)
                else:
                    self.connections_have_arrived.set()
                    with suppress(OSError):  # the predecessor has ended
                        await channel.say({"arrived": True})

        if not named and not connections.servers():
            self.connections_have_arrived.set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_batches)
                await serve_forwarded(self._kernel, channel, find, take)
                put.close()  # the last batch may be ours
        finally:
            self.connections_have_arrived.set()
            connections.forget()


async def _take(state: object, process: Process, caller: Caller) -> None:
    try:
        await callback(process, "take_over", state)
    except Exception as error:
        caller.settle(None, error)
    else:
        caller.settle(None, None)
