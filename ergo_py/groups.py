"""`Registry`: processes by keys of any kind. `Group`: processes that can be addressed together."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from ._core.kernel import Kernel
from ._core.processes.process import Process
from ._core.tables.directory import RegistryTable
from ._core.verbs.behaviour import Behaviour
from ._core.verbs.common import check_priority
from ._core.vocabulary.envelopes import Priority
from ._core.vocabulary.errors import (
    BadInputError,
    MailboxFullError,
    NameUnknownError,
    NodeStoppedError,
    ProcessUnknownError,
    RelationExistsError,
    RelationUnknownError,
)
from ._core.vocabulary.ids import PID, B_co, Key, Target
from ._core.vocabulary.messages import GroupJoined, GroupLeft, Sent
from ._core.vocabulary.options import check_name
from ._core.vocabulary.public_names import show_public_names
from ._core.vocabulary.reasons import Unregistered

__all__ = ["Group", "Registry"]

B = TypeVar("B")
M = TypeVar("M")
T = TypeVar("T")


class Entry(NamedTuple, Generic[B_co]):
    """An entry of a :class:`Registry`."""

    key: Any
    pid: PID[B_co]
    value: Any


class _Handle:
    """A view of a table of the node. Its methods work from any thread."""

    __slots__ = ("_directory", "_kernel")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._directory = kernel.router.directory

    def _run(self, function: Callable[..., T], *args: object) -> T:
        router = self._kernel.router
        if router.stopped:
            raise NodeStoppedError(router.node)
        return router.bridge.run(function, *args)

    def _find(self, to: Target) -> Process:
        found = self._kernel.router.resolve(to)
        if not isinstance(found, Process):
            raise ProcessUnknownError(to)
        return found

    def _find_owner(self, to: Target) -> PID:
        """The PID of a process that gets an entry, which its end removes."""
        found = self._find(to)
        found.become_owner()
        return found.id

    def _broadcast(
        self, pids: tuple[PID, ...], message: object, sender: PID | None, priority: Priority
    ) -> int:
        router = self._kernel.router
        source = self._kernel.pid if sender is None else sender
        taken = 0
        for pid in pids:
            try:
                taken += router.send(source, pid, message, priority)
            except MailboxFullError:
                # Counted on the receiver; a full member must not keep the message from others.
                continue
        return taken


class Registry(_Handle, Generic[B_co]):
    """A registry of processes by keys: ``users = node.registry("users")``. ``users:
    Registry[User]`` says which class of processes it has.

    A key is any hashable value. A process may have any number of keys, each with a value. When a
    process ends, its keys are free, after its ``terminate`` and before its watchers are notified.
    With ``unique=True``, the default, a key has a single process, and ``users.address(key)`` is an
    address for ``send``, ``call``, ``monitor`` and every other verb that takes one.
    """

    __slots__ = ("_table",)

    def __init__(self, kernel: Kernel, table: RegistryTable) -> None:
        super().__init__(kernel)
        self._table = table

    def __repr__(self) -> str:
        kind = "unique" if self._table.unique else "duplicate"
        return f"<Registry {self._table.name!r} {len(self._table.entries)} {kind} keys>"

    @property
    def name(self) -> str:
        """Its name on the node."""
        return self._table.name

    @property
    def unique(self) -> bool:
        """Whether a key has at most a single process."""
        return self._table.unique

    def __len__(self) -> int:
        return len(self._table.entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._table.entries

    def register(self: "Registry[B]", key: Hashable, to: Target[B], value: object = None) -> None:
        """Register a process under a key, with a value. A process that has the key gets the new
        value.

        Raises:
            KeyTakenError: another process has the unique key; nothing is changed.
            ProcessUnknownError: there is no such process.
            BadInputError: the key cannot be hashed.
        """
        full = self._key(key)
        self._run(lambda: self._directory.register(self._table, full, self._find_owner(to), value))

    def unregister(self, key: Hashable, to: Target | None = None) -> None:
        """Remove a key from its process; with duplicate keys, from the process ``to``, or from all.
        Processes that watch the address are notified.

        Raises:
            NameUnknownError: no process, or not that process, has the key.
        """
        full = self._key(key)
        self._run(self._unregister, full, to)

    def _unregister(self, key: Key, to: Target | None) -> None:
        holders = tuple(self._table.entries.get(key.key, ()))
        if to is not None:
            pid = self._find(to).id
            holders = tuple(each for each in holders if each == pid)
        if not holders:
            raise NameUnknownError(key)
        for pid in holders:
            self._directory.unregister(self._table, key, pid)
        if self._table.unique:
            self._kernel.links.tell_all(key, Unregistered())

    def whereis(self, key: Hashable) -> PID[B_co] | None:
        """The process with a key; None if there is none. With duplicate keys, the first."""
        self._key(key)
        return self._run(lambda: next(iter(self._table.entries.get(key, ())), None))

    def lookup(self, key: Hashable) -> list[Entry[B_co]]:
        """The entries of a key, the oldest first."""
        self._key(key)
        return self._run(
            lambda: [
                Entry(key, pid, value) for pid, value in self._table.entries.get(key, {}).items()
            ]
        )

    def entries(self) -> list[Entry[B_co]]:
        """All entries, the oldest key first."""
        return self._run(
            lambda: [
                Entry(key, pid, value) for key, pid, value in self._directory.entries(self._table)
            ]
        )

    def keys(self, to: Target | None = None) -> list[Any]:
        """All keys, or the keys of a process.

        Raises:
            ProcessUnknownError: there is no such process.
        """
        if to is None:
            return self._run(lambda: list(self._table.entries))
        return self._run(
            lambda: [
                key.key
                for key in self._directory.keys_of(self._find(to).id)
                if key.registry == self.name
            ]
        )

    def address(self, key: Hashable) -> Key[B_co]:
        """The address of the process that has the key, now or later.

        Raises:
            BadInputError: several processes may have the key; use ``broadcast`` or ``lookup``.
        """
        if not self._table.unique:
            raise BadInputError(
                f"registry({self.name!r}).address(key)",
                key,
                "a key of a registry with unique keys; here, use broadcast(key, message), or the "
                "PIDs of lookup(key)",
            )
        return self._key(key)

    def broadcast(
        self: "Registry[Behaviour[M]]",
        key: Hashable,
        message: Sent[M],
        *,
        sender: PID | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> int:
        """Send a message to every process with a key. Returns how many have taken it."""
        self._key(key)
        check_priority(priority)
        return self._run(
            lambda: self._broadcast(
                tuple(self._table.entries.get(key, ())), message, sender, priority
            )
        )

    def _key(self, key: Hashable) -> Key[B_co]:
        return Key(self.name, _checked("key", key), self._kernel.pid.node)


class Group(_Handle, Generic[B_co]):
    """A process group: ``workers = node.group("workers")``. ``workers: Group[Worker]`` says which
    class of processes it has.

    Its name is any hashable value. Processes join and leave; a process that ends leaves all its
    groups. A group without members takes no memory.
    """

    __slots__ = ("_name",)

    def __init__(self, kernel: Kernel, name: Hashable) -> None:
        super().__init__(kernel)
        self._name = _checked("group(name)", name)

    def __repr__(self) -> str:
        return f"<Group {self._name!r} {len(self)} members>"

    @property
    def name(self) -> Any:
        """Its name on the node."""
        return self._name

    def __len__(self) -> int:
        return len(self._directory.groups.get(self._name, ()))

    def __contains__(self, pid: PID) -> bool:
        return pid in self._directory.groups.get(self._name, ())

    def join(self: "Group[B]", to: Target[B]) -> bool:
        """Add a process. False if it is a member already.

        Raises:
            ProcessUnknownError: there is no such process.
        """
        return self._run(self._join, to)

    def _join(self, to: Target) -> bool:
        pid = self._find_owner(to)
        if not self._directory.join(self._name, pid):
            return False
        self._kernel.links.tell_group(self._name, GroupJoined(self._name, pid))
        return True

    def leave(self, to: Target) -> bool:
        """Remove a process. False if it is no member.

        Raises:
            ProcessUnknownError: there is no such process.
        """
        return self._run(self._leave, to)

    def _leave(self, to: Target) -> bool:
        pid = self._find(to).id
        if not self._directory.leave(self._name, pid):
            return False
        self._kernel.links.tell_group(self._name, GroupLeft(self._name, pid, Unregistered()))
        return True

    def members(self) -> list[PID[B_co]]:
        """The members, in the order in which they joined."""
        return self._run(lambda: list(self._directory.groups.get(self._name, ())))

    def broadcast(
        self: "Group[Behaviour[M]]",
        message: Sent[M],
        *,
        sender: PID | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> int:
        """Send a message to every member, in a single turn of the loop. Returns how many have taken
        it. A member without room refuses or drops it, as its overflow rule says.

        Args:
            message: the message.
            sender: the process that ``handle_message`` gets as the sender; by default the node.
            priority: its priority.
        """
        check_priority(priority)
        return self._run(
            lambda: self._broadcast(
                tuple(self._directory.groups.get(self._name, ())), message, sender, priority
            )
        )

    def monitor(self, to: Target) -> list[PID[B_co]]:
        """Let a process get ``GroupJoined`` and ``GroupLeft`` from now on, as messages. Returns the
        present members: no change is missed, and none is told twice.

        Raises:
            ProcessUnknownError: there is no such process.
            RelationError: of kind ``"exists"``; it monitors the group already.
        """
        return self._run(self._monitor, to)

    def _monitor(self, to: Target) -> list[PID[B_co]]:
        if not self._directory.watch(self._name, self._find_owner(to)):
            raise RelationExistsError("monitor", self._name)
        return list(self._directory.groups.get(self._name, ()))

    def demonitor(self, to: Target) -> None:
        """Stop telling a process.

        Raises:
            ProcessUnknownError: there is no such process.
            RelationError: of kind ``"unknown"``; it does not monitor the group.
        """
        self._run(self._demonitor, to)

    def _demonitor(self, to: Target) -> None:
        if not self._directory.unwatch(self._name, self._find(to).id):
            raise RelationUnknownError("monitor", self._name)


def open_registry(kernel: Kernel, name: str, unique: bool | None) -> Registry:
    """The registry of that name."""
    return Registry(kernel, kernel.router.directory.open(check_name(name), unique))


def _checked(what: str, key: Hashable) -> Hashable:
    try:
        hash(key)
    except TypeError:
        raise BadInputError(
            what, key, "a value that can be hashed: a str, a number, a tuple, a frozen dataclass"
        ) from None
    return key


show_public_names(__name__)
