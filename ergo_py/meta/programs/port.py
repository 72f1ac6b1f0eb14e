"""`Port`: a program of the operating system, as a meta-process.

Output of the program becomes messages, messages are written to its input, and a last message tells
how it ended. No thread is used.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from errno import EPIPE
from functools import partial
from math import inf
from typing import Final, TypeAlias

import trio

from ..._core.tables.pending_calls import Caller
from ..._core.verbs.meta_process import MetaProcess
from ..._core.vocabulary.envelopes import Lane
from ..._core.vocabulary.errors import BadInputError, MailboxFullError, Reject
from ..._core.vocabulary.ids import Target
from ..._core.vocabulary.options import check_flag
from ..._core.vocabulary.public_names import show_members, show_public_names
from ..._core.vocabulary.reasons import Killed, Reason
from ..._core.vocabulary.text import shown
from ..parsing.cutter import MessageCutter, check_mode
from ..parsing.decoder import FramingError
from ..parsing.framing import Framing, Raw
from ..parsing.lines import Text
from ..receivers import check_receiver
from .messages import (
    PortCloseInput,
    PortData,
    PortErrorData,
    PortErrorLine,
    PortExited,
    PortInputLost,
    PortLine,
    PortResize,
    PortSignal,
    PortStarted,
    PortWrite,
)
from .options import ProgramOptions, StopTimes, Terminal
from .output import ProgramOutput
from .program import Program, ProgramFailedError

__all__ = ["Port"]

_TEXT: Final = Text()
_RAW: Final = Raw()
_TIMES: Final = StopTimes()
_PATIENCE: Final = 0.5
"""Seconds that a slow receiver has, when the port is being stopped, to make room for the last
output of the program.
"""


class Port(MetaProcess):
    """Runs a program, and ends with it. A port that is stopped first stops the program and all
    processes that it has started.

    If the program cannot be started, ``spawn_meta`` raises the error. The port reads both outputs
    only as fast as the receiver handles them (backpressure). It reads both to their end before it
    sends :class:`Port.Exited`. Processes that the program started and left behind are ended, too,
    and do not delay that message.

    Args:
        argv: the program and its arguments. There is no shell; to use a shell, write
            ``["sh", "-c", command]``.
        stdout: how its output is read: :class:`Text` for lines, or a :class:`Framing`.
        stderr: the same for its error output.
        stdin: how bytes for its input are framed. A ``str`` is encoded as ``stdout`` is, or as
            UTF-8.
        env: its environment variables: these and no others.
        inherit_env: names of variables that it inherits from this program, or True for all.
        cwd: its working directory.
        user: the user it runs as, with that user's groups.
        group: the group it runs with.
        limits: resource limits: ``{"nofile": 64, "cpu": (10, 12)}``, as the ``RLIMIT_`` names of
            :mod:`resource`.
        new_session: False keeps it in this program's session, with its terminal. It has a process
            group of its own in any case.
        terminal: give it a pseudo-terminal of this size. Its error output is part of its output
            then.
        stop: how long each step of stopping it may take.
        check: end with :class:`Port.FailedError` unless the program ends with status 0.
        receiver: the address that gets the messages; None for the owner.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    CloseInput: TypeAlias = PortCloseInput
    Data: TypeAlias = PortData
    ErrorData: TypeAlias = PortErrorData
    ErrorLine: TypeAlias = PortErrorLine
    Exited: TypeAlias = PortExited
    FailedError: TypeAlias = ProgramFailedError
    InputLost: TypeAlias = PortInputLost
    Line: TypeAlias = PortLine
    Resize: TypeAlias = PortResize
    Signal: TypeAlias = PortSignal
    Started: TypeAlias = PortStarted
    StopTimes: TypeAlias = StopTimes
    Terminal: TypeAlias = Terminal
    Write: TypeAlias = PortWrite

    kind = "port"

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdout: Text | Framing = _TEXT,
        stderr: Text | Framing = _TEXT,
        stdin: Framing = _RAW,
        env: Mapping[str, str] | None = None,
        inherit_env: bool | Collection[str] = False,
        cwd: str | os.PathLike[str] | None = None,
        user: str | int | None = None,
        group: str | int | None = None,
        limits: Mapping[str, int | tuple[int, int]] | None = None,
        new_session: bool = True,
        terminal: Terminal | None = None,
        stop: StopTimes = _TIMES,
        check: bool = False,
        receiver: Target | None = None,
    ) -> None:
        self._options = ProgramOptions(
            argv, env or {}, inherit_env, cwd, user, group, limits or {}, new_session, terminal
        )
        check_mode("stdout", stdout)
        check_mode("stderr", stderr)
        if not isinstance(stdin, Framing):
            raise BadInputError("stdin", stdin, "a framing such as Raw()")
        if not isinstance(stop, StopTimes):
            raise BadInputError("stop", stop, "StopTimes(close=..., terminate=..., kill=...)")
        check_flag("check", check)
        self._stdout, self._stderr, self._framing = stdout, stderr, stdin
        self._times = stop
        self._check = check
        self._receiver = check_receiver(receiver)
        self._asked = trio.Event()
        self._give_up_at = inf
        self._failure: Exception | None = None
        self._waiting: set[trio.CancelScope] = set()
        self._program: Program | None = None
        self._outputs: tuple[ProgramOutput, ...] = ()
        self._input_closed = False
        self._input_lost = False
        self._bytes_in = 0
        self._dropped = 0

    @property
    def _to(self) -> Target:
        return self.parent if self._receiver is None else self._receiver

    # -- the reader --------------------------------------------------------------------------------

    async def init(self) -> None:
        """Start the program."""
        stop_timeout = self._meta.options.stop_timeout
        if self._times.total + _PATIENCE > stop_timeout:
            raise BadInputError(
                "stop",
                self._times,
                f"at most {stop_timeout - _PATIENCE:g} seconds in all, or a longer stop_timeout: "
                "spawn_meta(..., stop_timeout=...)",
            )
        # Cleanup is certain: the node closes the program with the meta-process, even if that ends
        # before its start.
        self._program = program = self.opened(await Program.start(self._options))
        port = self.id
        out = MessageCutter(self._stdout, partial(PortLine, port), partial(PortData, port))
        err = MessageCutter(
            self._stderr, partial(PortErrorLine, port), partial(PortErrorData, port)
        )
        self._outputs = (ProgramOutput(program.stdout, out), ProgramOutput(program.stderr, err))

    async def start(self) -> None:
        """Read both outputs until the program has ended, or must end."""
        program = self._program
        assert program is not None
        # Shield the steps from cancellation: a program is not ended by cancelling. unblock()
        # requests the end, and the steps below take their time.
        with trio.CancelScope(shield=True):
            await self._pass_on(PortStarted(self.id, program.pid))
            async with trio.open_nursery() as nursery:
                for output in self._outputs:
                    nursery.start_soon(self._read, output)
                await self._wait_for_end(program)
                # Also if the program has ended by itself: it may have left processes behind.
                if not await program.end(
                    self._times, at_once=isinstance(self._meta.reason, Killed)
                ):
                    self.log.error(
                        "a program did not end, even after SIGKILL",
                        program=self._options.argv[0],
                        os_pid=program.pid,
                    )
                for output in self._outputs:
                    output.drain()
            exited = self._exited(program)
            await self._pass_on(exited)
            if self._failure is not None:
                raise self._failure
            if self._check and exited.status != 0 and not self._asked.is_set():
                raise ProgramFailedError(self._options.argv[0], exited.status, exited.signal)

    async def _wait_for_end(self, program: Program) -> None:
        async with trio.open_nursery() as nursery:

            async def until_asked() -> None:
                await self._asked.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_asked)
            await program.wait()
            nursery.cancel_scope.cancel()

    async def _read(self, output: ProgramOutput) -> None:
        try:
            while data := await output.receive():
                for message in output.cutter.feed(data):
                    await self._pass_on(message)
            for message in output.cutter.end():
                await self._pass_on(message)
        except (FramingError, UnicodeDecodeError) as error:
            # The port ends with this error, and ends the program: it would fill a pipe that has no
            # reader.
            self._failure = error
            self._asked.set()

    async def _pass_on(self, message: object) -> None:
        """Send as fast as the receiver makes room (backpressure). While the port is being stopped,
        wait only for a limited time.
        """
        meta, to = self._meta, self._to
        receiver = meta.router.resolve(to)
        # Mostly there is room, and a cancel scope for each line would cost more than all the rest.
        if (
            receiver is not None
            and meta.outbox.is_behind(receiver, Lane.MAIN)
            and trio.current_time() < self._give_up_at
        ):
            with trio.CancelScope(deadline=self._give_up_at) as scope:
                self._waiting.add(scope)
                await meta.wait_for_room(to)
            self._waiting.discard(scope)
        try:
            self.send(to, message)
        except MailboxFullError:  # the message is a dead letter now
            self._dropped += 1
        await meta.router.pause()

    def unblock(self) -> None:
        """Request the end of the program."""
        self._asked.set()
        if self._give_up_at < inf:
            return
        killed = isinstance(self._meta.reason, Killed)
        self._give_up_at = trio.current_time() + (
            0.0 if killed else self._times.total + _PATIENCE / 2
        )
        for scope in self._waiting:
            scope.deadline = self._give_up_at

    async def terminate(self, reason: Reason) -> None:
        """Leave no process behind, even if the steps of the shutdown were cut short."""
        if self._program is not None:
            self._program.close()

    def _exited(self, program: Program) -> PortExited:
        code = program.returncode
        status, by_signal = (
            (None, None) if code is None else (code, None) if code >= 0 else (None, -code)
        )
        out, err = (output.count for output in self._outputs)
        return PortExited(self.id, status, by_signal, program.seconds, self._bytes_in, out, err)

    # -- the handler -------------------------------------------------------------------------------

    async def handle_message(self, message: object, sender: object) -> None:
        """Carry out a message; an error is logged."""
        try:
            if await self._serve(message) is NotImplemented:
                super().handle_message(message, sender)
        except (OSError, FramingError, UnicodeError) as error:
            self.log.warning(
                "a message could not be carried out",
                message_type=type(message).__qualname__,
                error=shown(error),
            )

    async def handle_call(self, request: object, caller: Caller) -> object:
        """Carry out a request, and answer when it is done; an error is the answer."""
        try:
            answer = await self._serve(request)
        except (OSError, FramingError, UnicodeError) as error:
            raise Reject(error) from None
        return super().handle_call(request, caller) if answer is NotImplemented else answer

    async def _serve(self, order: object) -> object:
        program = self._program
        assert program is not None
        match order:
            case PortWrite(data):
                return await self._write(program, data)
            case PortCloseInput():
                self._input_closed = True
                program.close_stdin()
                return None
            case PortSignal(number):
                return program.signal(number)
            case PortResize(rows, columns):
                program.resize(Terminal(rows, columns))
                return None
        return NotImplemented

    async def _write(self, program: Program, data: bytes | str) -> int:
        if isinstance(data, str):
            data = data.encode(self._stdout.encoding if isinstance(self._stdout, Text) else "utf-8")
        framed = self._framing.encode(data)
        try:
            await self._push(program, framed)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            why = "it was closed" if self._input_closed else str(error.__cause__ or error)
            if not self._input_closed and not self._input_lost and not self._asked.is_set():
                self._input_lost = True
                await self._pass_on(PortInputLost(self.id, why))
            raise BrokenPipeError(EPIPE, f"the program does not read its input: {why}") from None
        self._bytes_in += len(framed)
        return len(framed)

    async def _push(self, program: Program, data: bytes) -> None:
        """Write all of the data. The program may be slow to read it, or never read it: meanwhile
        the port still answers inspection.
        """
        sent = program.write_some(data)
        if sent == len(data) and sent:
            await self._meta.router.pause()
            return
        done, errors = trio.Event(), list[Exception]()

        async def push() -> None:
            try:
                await program.stdin.send_all(memoryview(data)[sent:])
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                errors.append(error)
            done.set()
            self._meta.wake()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(push)
            await self._meta.handler.wait_in_callback(lambda: not done.is_set())
        for error in errors:
            raise error

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """All facts but the values of the environment, which may be secret."""
        program, options = self._program, self._options
        if program is None:
            return {}
        out, err = (output.count for output in self._outputs)
        code = program.returncode
        return {
            "program": " ".join(options.argv),
            "os_pid": str(program.pid),
            "running": str(code is None),
            "seconds": f"{program.seconds:.3f}",
            "bytes_in": str(self._bytes_in),
            "bytes_out": str(out),
            "bytes_err": str(err),
            "env": " ".join(sorted(options.environment())),
            "cwd": str(options.cwd or os.getcwd()),
            "dropped": str(self._dropped),
        }


show_public_names(__name__)
show_members(Port)
