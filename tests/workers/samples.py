"""Functions and messages of worker nodes in tests: their programs import this module."""

import fcntl
import os
import re
import stat
import sys
import time
from dataclasses import dataclass

from ergo_py import Actor, Caller, Node, Request


@dataclass(frozen=True)
class Ask(Request[object]):
    """A request."""

    about: str


class Answerer(Actor):
    """Answers, says which program it is in, or ends the program."""

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Ask("program"):
                return os.getpid()
            case Ask("cpus"):
                return sorted(os.sched_getaffinity(0))
            case Ask("die"):
                die(7)
            case Ask("stick"):
                while True:
                    time.sleep(60)
            case Ask("crash"):
                raise ArithmeticError("on purpose")
            case Ask(about):
                return f"{about}!"
        raise TypeError(request)


async def start(node: Node) -> None:
    """Start a worker node."""
    await node.spawn(Answerer, name="answerer")


async def fail_to_start(node: Node) -> None:
    """Fail to start a worker node."""
    sys.stdout.write("a line of the program\n")
    raise LookupError("no such thing")


@dataclass(frozen=True)
class Pair:
    """An argument and a result."""

    left: int
    right: list[int]


class OddError(Exception):
    """An exception that is listed with this module."""


def swap(pair: Pair, *, times: int = 1) -> Pair:
    """Compute something from a listed class."""
    return Pair(sum(pair.right) * times, [pair.left])


def program() -> int:
    """The number of the program that runs this."""
    return os.getpid()


def fail(error: str) -> None:
    """Raise an exception of each kind."""
    match error:
        case "odd":
            raise OddError("very")
        case "exit":
            raise SystemExit(3)
        case "not UTF-8":
            raise LookupError(os.fsdecode(b"x\xff"))
        case "unknown":
            raise type("HiddenError", (Exception,), {})("secret")
    raise LookupError(error)


def unsendable() -> object:
    """Return a value that cannot travel."""
    return object()


def say(text: str) -> str:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    return text


def die(status: int) -> None:
    """End the program."""
    sys.stderr.write("about to die\n")
    sys.stderr.flush()
    os._exit(status)


def hang(path: str) -> None:
    """Never return, once the file exists."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(str(os.getpid()))
    while True:
        time.sleep(60)


def hold_lock(path: str) -> None:
    """Never return, and hold the lock of the interpreter, once the file exists."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(str(os.getpid()))
    re.match("(a+)+$", "a" * 100 + "b")


def turned(numbers: dict[int, int]) -> dict[int, int]:
    """The dict with keys and values exchanged."""
    return {value: key for key, value in numbers.items()}


def fork_and_return() -> str:
    """Return in a second process, too, which ends before this one returns."""
    child = os.fork()
    if child == 0:
        return "child"
    os.waitpid(child, 0)
    return "parent"


def write_answer(frame: bytes) -> None:
    """Write to the pipe of the answers, as a library does that has a wrong descriptor."""
    for number in range(3, 20):
        try:
            is_pipe = stat.S_ISFIFO(os.fstat(number).st_mode)
            mode = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        except OSError:  # not open
            continue
        if is_pipe and mode == os.O_WRONLY:
            os.write(number, len(frame).to_bytes(4, "big") + frame)
