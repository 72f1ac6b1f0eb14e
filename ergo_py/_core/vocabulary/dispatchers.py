"""`Dispatcher`: the option that says where the plain callbacks of a process run, on the event loop
or in a thread.
"""

from dataclasses import dataclass
from typing import Final

from .errors import BadInputError
from .public_names import show_public_names

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
    """Plain callbacks run on the event loop. They must not block it."""

    def __str__(self) -> str:
        return "loop"


@dataclass(frozen=True, slots=True)
class Pinned:
    """Plain callbacks run in a thread that belongs to the process, always the same thread."""

    cpu: int | None = None
    """The CPU that the thread is pinned to; None for any. If that is impossible, the node logs a
    warning and uses any CPU.
    """

    def __post_init__(self) -> None:
        _check_cpu("Pinned(cpu)", self.cpu)

    def __str__(self) -> str:
        return "pinned" if self.cpu is None else f"pinned to CPU {self.cpu}"


@dataclass(frozen=True, slots=True)
class Pod:
    """Plain callbacks run in a thread that all processes of the pod share. At most a single process
    of the pod runs a plain callback at a time.
    """

    name: str
    """The name of the pod. Processes that give the same name share its thread."""
    cpu: int | None = None
    """As in :class:`Pinned`."""

    def __post_init__(self) -> None:
        _check_name("Pod(name)", self.name)
        _check_cpu("Pod(cpu)", self.cpu)

    def __str__(self) -> str:
        return f"pod {self.name}" if self.cpu is None else f"pod {self.name} on CPU {self.cpu}"


@dataclass(frozen=True, slots=True)
class ThreadPool:
    """Plain callbacks run in a thread pool that several processes share. Each callback may run in a
    different thread.
    """

    name: str
    """The name of the pool. Processes that give the same name share its threads."""
    size: int
    """The number of threads."""

    def __post_init__(self) -> None:
        _check_name("POOL(name, size)", self.name)
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1:
            raise BadInputError(
                "POOL(name, size)", self.size, "a whole number of threads from 1 up"
            )

    def __str__(self) -> str:
        return f"pool {self.name} of {self.size}"


def check_dispatcher(given: object) -> None:
    """Raise BadInputError unless ``given`` is a dispatcher."""
    if not isinstance(given, Loop | Pinned | Pod | ThreadPool):
        raise BadInputError(
            "dispatcher", given, "LOOP, PINNED, Pinned(cpu=…), POOL(name, size) or Pod(name)"
        )


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise BadInputError(
            what, name, "a name: the processes that give the same name share its threads"
        )


def _check_cpu(what: str, cpu: object) -> None:
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

Dispatcher = Loop | Pinned | Pod | ThreadPool

LOOP: Final = Loop()
PINNED: Final = Pinned()
POOL = ThreadPool


show_public_names(__name__)
