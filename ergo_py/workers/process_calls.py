"""`ProcessCalls`: functions that run in programs of their own, on the other cores of the machine.

Arguments and results travel as messages between nodes do: plain values and listed classes. Nothing
is pickled.
"""

import json
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from signal import SIGKILL
from types import ModuleType
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from .._core.tables.pending_calls import Caller
from .._core.tables.timers import Timer
from .._core.vocabulary.errors import BadInputError, ErgoError, InitError, MailboxFullError, Reject
from .._core.vocabulary.hints import add_note
from .._core.vocabulary.ids import PID, Alias
from .._core.vocabulary.messages import NO_REPLY, Request
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_members, show_public_names
from .._core.vocabulary.reasons import Crashed
from ..actor import Actor
from ..meta.parsing.framing import LengthHeader
from ..meta.programs.messages import PortData, PortErrorLine, PortExited, PortSignal, PortWrite
from ..meta.programs.options import StopTimes
from ..network.errors import MessageTypeError
from ..network.messages.listed_class import RefusedValueError, UnreadableValueError
from ..network.messages.message_types import MessageTypes
from ..supervision.specs import Backoff
from .references import reference_of
from .worker_node import core_count
from .worker_port import WorkerPort, module_path

__all__ = ["Compute", "ProcessCalls"]

P = ParamSpec("P")
R = TypeVar("R")

FRAMING: Final = LengthHeader(max_frame=1 << 30)
"""How requests and answers are framed, between this program and the others."""
NUMBER: Final = struct.Struct(">Q")
"""The number of a request, before the request and before its answer."""
_BACKOFF: Final = Backoff(0.05, 5.0)
"""The delays before a program is started again in place of programs that were never ready."""
_TRIES: Final = 5
"""The process gives up after so many failed starts for each program, in a row: the programs cannot
start at all then, and another try does not help.
"""
_LINES: Final = 20
"""How many of the last lines of a program an error shows."""


class ProcessLostError(ErgoError):
    """The program that ran a function has ended or was killed. The function may have done a part of
    its work. ``lines`` are the last lines that the program printed.
    """

    def __init__(self, text: str, lines: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.lines: tuple[str, ...] = tuple(lines)
        if self.lines:
            self.add_note("Its last lines:\n" + "\n".join(self.lines))


@dataclass(frozen=True, slots=True, init=False)
class Compute(Request[R]):
    """Call a function in another program: ``Compute(primes.count, 1, last=1000)``. Its result or
    its exception is the answer. The function is at the top of a module.
    """

    function: Callable[..., R]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __init__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> None:
        for name, value in (("function", function), ("args", args), ("kwargs", kwargs)):
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class _Late:
    """A function has taken too long."""

    port: Alias
    number: int


@dataclass(frozen=True, slots=True)
class _StartProgram:
    """The delay after a failed start is over."""


class _Job:
    """A call that waits or runs."""

    __slots__ = ("caller", "frame", "name", "number", "timer")

    def __init__(self, number: int, name: str, frame: bytes, caller: Caller) -> None:
        self.number = number
        self.name = name
        self.frame = frame
        self.caller = caller
        self.timer: Timer | None = None


class _Worker:
    """A program, and the call that it runs."""

    __slots__ = ("is_late", "is_ready", "is_refused", "job", "lines")

    def __init__(self) -> None:
        self.is_ready = False
        self.is_late = False
        self.is_refused = False
        """Whether it has written an answer to no request: it is about to be killed."""
        self.job: _Job | None = None
        self.lines: deque[str] = deque(maxlen=_LINES)


class ProcessCalls(Actor):
    """Answers `Compute` requests in programs of its own, each with an interpreter of its own, so
    that functions run on several cores at the same time.

    For example::

        cores = await node.spawn(ProcessCalls, name="cores")
        total = await node.call("cores", Compute(primes.count, 1, 1_000_000), timeout=60)

    Requests beyond the number of programs wait, in order. A request whose caller has given up
    before it begins is dropped. A program that ends, or that takes longer than ``timeout``, is
    replaced, and its call fails with `ProcessCalls.LostError`. Programs that end before they are
    ready are started again, with growing delays; this process crashes with `ProcessCalls.LostError`
    after five failed starts for each program in a row. The programs end with this process, and if
    this program is killed. The lines that they print appear in the log of this node.
    """

    LostError: TypeAlias = ProcessLostError

    def __init__(
        self,
        *,
        types: Iterable[type | ModuleType] = (),
        count: int | None = None,
        timeout: float | None = None,
        max_waiting: int = 1000,
    ) -> None:
        """Describe the programs.

        Args:
            types: the classes of arguments and results, or modules that define them. Plain values
                need no class.
            count: how many programs; None for the number of cores that this program may use.
            timeout: seconds after which a function is taken as hanging, and its program is killed;
                None for no limit.
            max_waiting: how many requests may wait; further requests fail with `MailboxFullError`.

        Raises:
            BadInputError: a value is invalid.
        """
        self._count = core_count() if count is None else count
        check_number("count", self._count, least=1, whole=True)
        check_number("max_waiting", max_waiting, least=1, whole=True)
        if timeout is not None:
            check_number("timeout", timeout, least=0.001)
        self._listed = tuple(types)
        self._types = MessageTypes(self._listed, is_limited=False)
        self._settings = json.dumps(
            {
                "types": [reference_of(entry, "types") for entry in self._listed],
                "path": module_path(),
            }
        )
        self._timeout = timeout
        self._most = max_waiting
        self._references: dict[Callable[..., Any], str] = {}
        self._workers: dict[Alias, _Worker] = {}
        self._free: list[Alias] = []
        self._waiting: deque[_Job] = deque()
        self._numbers = 0
        self._done = self._lost = 0
        self._failed_starts = 0

    async def init(self) -> None:
        """Start the programs. Requests wait until they are ready."""
        for _ in range(self._count):
            await self._start_program()

    async def _start_program(self) -> None:
        port = WorkerPort(
            "ergo_py.workers.call_program",
            self._settings,
            stdin=FRAMING,
            stdout=FRAMING,
            stop=StopTimes(close=1.0, terminate=1.0),
        )
        self._workers[await self.spawn_meta(port, stop_timeout=5.0)] = _Worker()

    async def _replace_program(self) -> None:
        try:
            await self._start_program()
        except InitError as error:  # too many processes, or too many open files
            lost = ProcessLostError(f"a program for Compute requests cannot start: {error}")
            self._start_failed(lost)

    def _start_failed(self, error: ProcessLostError) -> None:
        """Start a program again after a delay, unless no program has started for a long time."""
        self._failed_starts += 1
        if self._failed_starts >= _TRIES * self._count:
            raise error
        delay = _BACKOFF.delay(self._failed_starts // self._count, 0.0)
        self.log.warning(
            "a program could not start; another try follows", error=str(error), delay=delay
        )
        self.send_after(delay, self.pid, _StartProgram())

    def handle_call(self, request: object, caller: Caller) -> object:
        """Queue a request."""
        if not isinstance(request, Compute):
            return super().handle_call(request, caller)
        if len(self._waiting) >= self._most:
            raise Reject(MailboxFullError(self.pid, request, self._most, "max_waiting"))
        try:
            name = self._reference(request.function)
            frame = self._types.encode((name, list(request.args), dict(request.kwargs)))
        except BadInputError as error:
            raise Reject(error) from None
        except RefusedValueError as error:
            text = f"an argument of {request.function.__qualname__} cannot travel: {error}"
            raise Reject(MessageTypeError(text, self.pid, request)) from None
        self._numbers += 1
        self._waiting.append(_Job(self._numbers, name, frame, caller))
        self._begin_next()
        return NO_REPLY

    def _reference(self, function: Callable[..., Any]) -> str:
        reference = self._references.get(function)
        if reference is None:
            reference = self._references[function] = reference_of(function, "Compute(function)")
        return reference

    def _begin_next(self) -> None:
        while self._free and self._waiting:
            job = self._waiting.popleft()
            if job.caller.settled:
                continue
            port = self._free.pop()
            self._workers[port].job = job
            self.send(port, PortWrite(NUMBER.pack(job.number) + job.frame))
            if self._timeout is not None:
                job.timer = self.send_after(self._timeout, self.pid, _Late(port, job.number))

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        """Take the answer, the lines or the end of a program."""
        match message:
            case PortData(port, data):
                self._answer(port, data)
            case PortErrorLine(port=port, line=line):
                self._workers[port].lines.append(line)
                self.log.info(line, function=_name(self._workers[port].job))
            case _Late(port, number):
                worker = self._workers.get(port)
                if worker is not None and worker.job is not None and worker.job.number == number:
                    worker.is_late = True
                    self.send(port, PortSignal(SIGKILL))
            case PortExited(port=port, status=status, signal=number):
                ending = f"with status {status}" if number is None else f"by signal {number}"
                await self._end(port, ending)
            case _StartProgram():
                await self._replace_program()

    def _answer(self, port: Alias, data: bytes) -> None:
        worker = self._workers[port]
        job = worker.job
        if worker.is_refused:
            return
        if worker.is_ready:
            try:
                result = read_answer(self._types, None if job is None else job.number, data)
            except UnreadableValueError as error:
                text = f"the result of {_name(job)}: {error}"
                result = Crashed(MessageTypeError(text, None, None))
            except ValueError as error:
                self._refuse(port, worker, str(error))
                return
            assert job is not None
            self._finish(job, result)
        worker.job = None
        if not worker.is_ready:
            worker.is_ready = True
            self._failed_starts = 0
        if not worker.is_late:  # else it is about to be killed
            self._free.append(port)
        self._begin_next()

    def _finish(self, job: _Job, result: tuple[Any] | Crashed) -> None:
        self._done += 1
        if job.timer is not None:
            job.timer.cancel()
        if isinstance(result, Crashed):
            add_note(result.error, f"In the program that ran {job.name}:\n{result.traceback}")
            self.reply_error(job.caller, result.error)
        else:
            self.reply(job.caller, result[0])

    def _refuse(self, port: Alias, worker: _Worker, why: str) -> None:
        """Kill a program: its later answers would be those to other requests."""
        worker.is_refused = True
        worker.lines.append(f"ergo_py: its answer was refused: {why}")
        if port in self._free:
            self._free.remove(port)
        self.log.error("a program is killed: its answer is refused", error=why)
        self.send(port, PortSignal(SIGKILL))

    async def _end(self, port: Alias, ending: str) -> None:
        worker = self._workers.pop(port)
        if port in self._free:
            self._free.remove(port)
        if worker.is_ready:
            self._lose(worker, ending)
            await self._replace_program()
        else:
            text = f"a program for Compute requests has ended {ending} before it was ready"
            self._start_failed(ProcessLostError(text, worker.lines))

    def _lose(self, worker: _Worker, ending: str) -> None:
        job = worker.job
        self._lost += 1
        if job is None:
            self.log.warning("a program has ended; another is started", ending=ending)
            return
        if job.timer is not None:
            job.timer.cancel()
        text = (
            f"{job.name} did not return within {self._timeout:g} s, so its program was killed; "
            "give ProcessCalls a longer timeout=, or split the work"
            if worker.is_late
            else f"the program that ran {job.name} has ended {ending}; another takes its place, "
            "and the function may have done a part of its work"
        )
        self.reply_error(job.caller, ProcessLostError(text, worker.lines))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The number of programs and calls."""
        return {
            "programs": str(len(self._workers)),
            "busy": str(sum(worker.job is not None for worker in self._workers.values())),
            "waiting": str(len(self._waiting)),
            "done": str(self._done),
            "lost": str(self._lost),
            "failed_starts": str(self._failed_starts),
        }


def read_answer(types: MessageTypes, number: int | None, data: bytes) -> tuple[Any] | Crashed:
    """The result or the error that the program of a request has written; None for no request.

    Raises:
        ValueError: it is no answer to this request. The function, or a process that it has left
            behind, has written to the pipe.
        UnreadableValueError: the result cannot be decoded. It is a ValueError, too.
    """
    if number is None or data[: NUMBER.size] != NUMBER.pack(number):
        raise ValueError("it is the answer to no request, or to another")
    result = types.decode(data[NUMBER.size :])
    if isinstance(result, Crashed) or (isinstance(result, tuple) and len(result) == 1):
        return result
    raise ValueError("it is neither a result nor an error")


def _name(job: _Job | None) -> str:
    return "" if job is None else job.name


show_public_names(__name__)
show_members(ProcessCalls)
