"""`Dispatcher`: the option that says where the plain callbacks of a process run, on the event loop
or in a thread.
"""

from typing import ClassVar, Final

from .errors import BadInputError
from .late_methods import dataclass, of_defaults
from .public_names import show_public_names

__all__ = [
    "LOOP",
    "LOOP_VERBS",
    "SENDING_VERBS",
    "Dispatcher",
    "Loop",
    "Threads",
    "check_cpu",
    "check_dispatcher",
]


_MAIN: Final = "MainThread"
"""The name of the main thread, which Python gives to it."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Plain callbacks run on the event loop. They must not block it."""

    def __str__(self) -> str:
        return "loop"


@dataclass(frozen=True, slots=True)
class Threads:
    """Plain callbacks run in threads: ``Threads()`` is a thread that belongs to the process, always
    the same thread. Processes that give the same ``name`` share its threads, and each callback may
    run in a different thread of these; with a single thread, at most one of the processes runs a
    plain callback at a time. ``Threads.MAIN`` is the main thread of the program, for libraries that
    work in no other: the node runs in another thread, and the main thread in ``node.run_main()`` of
    ``ergo_py.blocking``.
    """

    MAIN: ClassVar["Threads"]
    name: str | None = None
    """The name under which processes share the threads; None for a thread of its own."""
    size: int = 1
    """The number of threads; more than 1 need a name."""
    cpu: int | None = None
    """The CPU that a single thread is pinned to; None for any. If that is impossible, the node logs
    a warning and uses any CPU.
    """

    def __post_init__(self) -> None:
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise BadInputError(
                "Threads(name)",
                self.name,
                "a name: the processes that give the same name share its threads",
            )
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1:
            raise BadInputError("Threads(size)", self.size, "a whole number of threads from 1 up")
        if self.name == _MAIN and (self.size > 1 or self.cpu is not None):
            raise BadInputError(
                "Threads", self, "Threads.MAIN, the only main thread, whose CPUs the program sets"
            )
        if self.size > 1 and self.name is None:
            raise BadInputError(
                "Threads(size)", self.size, f'1, or a name: Threads("name", {self.size})'
            )
        check_cpu("Threads(cpu)", self.cpu)
        if self.size > 1 and self.cpu is not None:
            raise BadInputError("Threads(cpu)", self.cpu, "None, since there are several threads")

    def __str__(self) -> str:
        if self.size > 1:
            return f"{self.size} threads {self.name}"
        if self.name == _MAIN:
            return "main thread"
        name = "thread" if self.name is None else f"thread {self.name}"
        return name if self.cpu is None else f"{name} on CPU {self.cpu}"


def check_dispatcher(given: object) -> None:
    """Raise BadInputError unless ``given`` is a dispatcher."""
    if not isinstance(given, Loop | Threads):
        raise BadInputError(
            "dispatcher",
            given,
            "LOOP, Threads(), Threads(cpu=…), Threads(name, size) or Threads.MAIN",
        )


def check_cpu(what: str, cpu: object) -> None:
    """Raise BadInputError unless ``cpu`` is the number of a CPU, or None."""
    if cpu is not None and (not isinstance(cpu, int) or isinstance(cpu, bool) or cpu < 0):
        raise BadInputError(what, cpu, "the number of a CPU from 0 up, or None")


LOOP_VERBS: Final = (
    *("send_after", "send_every", "stop", "send_exit", "kill", "start_task", "_run_task"),
    *("register", "unregister", "create_alias", "delete_alias", "_relate", "_unrelate"),
    *("request", "cancel_request"),
    *("register_event", "unregister_event", "subscribe", "unsubscribe"),
)
"""The verbs that change state of the event loop. In a behaviour with a thread, they run on the loop
while the thread waits.
"""
SENDING_VERBS: Final = ("send", "forward", "publish")
"""The verbs that are disabled for a callback that was abandoned in its thread."""

Dispatcher = Loop | Threads

LOOP: Final = Loop()
Threads.MAIN = of_defaults(Threads, name=_MAIN)


show_public_names(__name__)
