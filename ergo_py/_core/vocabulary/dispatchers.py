"""Where the plain callbacks of a process run: on the loop, or in a thread. Values that check
themselves, and nothing else.
"""

from dataclasses import dataclass
from typing import Final

from .errors import BadInputError

__all__ = [
    "LOOP",
    "LOOP_VERBS",
    "PINNED",
    "POOL",
    "SENDING_VERBS",
    "Dispatcher",
    "Loop",
    "Pinned",
    "Pod",
    "ThreadPool",
    "check_dispatcher",
]


@dataclass(frozen=True, slots=True)
class Loop:
    """On the event loop, with everything else. They must not block."""

    def __str__(self) -> str:
        return "loop"


@dataclass(frozen=True, slots=True)
class Pinned:
    """In a thread of the process's own, always the same one."""

    cpu: int | None = None
    """The CPU the thread is to stay on; None for any. Where that cannot be had, it is said in the
    log, and any will do.
    """

    def __post_init__(self) -> None:
        _check_cpu("Pinned(cpu)", self.cpu)

    def __str__(self) -> str:
        return "pinned" if self.cpu is None else f"pinned to CPU {self.cpu}"


@dataclass(frozen=True, slots=True)
class Pod:
    """In one thread that several processes share: those that name the same pod. One of them runs at
    a time.
    """

    name: str
    cpu: int | None = None
    """As in :class:`Pinned`."""

    def __post_init__(self) -> None:
        _check_name("Pod(name)", self.name)
        _check_cpu("Pod(cpu)", self.cpu)

    def __str__(self) -> str:
        return f"pod {self.name}" if self.cpu is None else f"pod {self.name} on CPU {self.cpu}"


@dataclass(frozen=True, slots=True)
class ThreadPool:
    """In one of ``size`` threads that several processes share: those that name the same pool. Each
    time another one, perhaps.
    """

    name: str
    size: int

    def __post_init__(self) -> None:
        _check_name("POOL(name, size)", self.name)
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1:
            raise BadInputError(
                "POOL(name, size)", self.size, "a whole number of threads from 1 up"
            )

    def __str__(self) -> str:
        return f"pool {self.name} of {self.size}"


def check_dispatcher(given: object) -> None:
    """Refuse what is no dispatcher."""
    if not isinstance(given, Loop | Pinned | Pod | ThreadPool):
        raise BadInputError(
            "dispatcher", given, "LOOP, PINNED, Pinned(cpu=…), POOL(name, size) or Pod(name)"
        )


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise BadInputError(
            what, name, "a name: the processes that give the same one share its threads"
        )


def _check_cpu(what: str, cpu: object) -> None:
    if cpu is not None and (not isinstance(cpu, int) or isinstance(cpu, bool) or cpu < 0):
        raise BadInputError(what, cpu, "the number of a CPU from 0 up, or None")


LOOP_VERBS: Final = (
    *("send_after", "send_every", "stop", "send_exit", "kill", "start_task"),
    *("register", "unregister", "create_alias", "delete_alias", "_relate", "_unrelate"),
    *("register_event", "unregister_event", "subscribe", "unsubscribe"),
)
"""The verbs that change what the loop owns. A behaviour with a thread has its own: done on the loop
while the thread waits.
"""
SENDING_VERBS: Final = ("send", "forward", "publish")
"""The verbs that are taken away from a callback that was left behind in its thread."""

Dispatcher = Loop | Pinned | Pod | ThreadPool

LOOP: Final = Loop()
PINNED: Final = Pinned()
POOL = ThreadPool
