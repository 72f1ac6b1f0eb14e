"""`Directory`: the registries and the process groups of a node: processes by keys, and keys and
groups by process, so that either can leave without a search.
"""

from collections.abc import Hashable, Iterator

from ..vocabulary.errors import BadInputError, KeyTakenError
from ..vocabulary.ids import PID, Key

__all__ = ["Directory", "RegistryTable"]


class RegistryTable:
    """A registry: entries with a value for each key and process."""

    __slots__ = ("entries", "name", "unique")

    def __init__(self, name: str, unique: bool) -> None:
        self.name: str = name
        self.unique: bool = unique
        """Whether a key has at most a single process."""
        self.entries: dict[Hashable, dict[PID, object]] = {}


class Directory:
    """All registries and groups of a node."""

    __slots__ = ("_keys_of", "_groups_of", "groups", "registries", "watchers")

    def __init__(self) -> None:
        self.registries: dict[str, RegistryTable] = {}
        self.groups: dict[Hashable, dict[PID, None]] = {}
        """The members of each group, in the order in which they joined. No group is empty."""
        self.watchers: dict[Hashable, dict[PID, None]] = {}
        """The processes that monitor a group, which may be empty."""
        self._keys_of: dict[PID, dict[Key, None]] = {}
        self._groups_of: dict[PID, dict[tuple[str, Hashable], None]] = {}

    # -- registries --------------------------------------------------------------------------------

    def open(self, name: str, unique: bool | None) -> RegistryTable:
        """The registry of that name, made on first use; None takes it as it is.

        Raises:
            BadInputError: it exists, and is of the other kind.
        """
        table = self.registries.get(name)
        if table is None:
            table = self.registries[name] = RegistryTable(name, unique is not False)
        elif unique is not None and table.unique is not unique:
            raise BadInputError(
                f"registry({name!r}, unique={unique})",
                unique,
                f"unique={table.unique}, as the registry was made",
            )
        return table

    def register(self, table: RegistryTable, key: Key, pid: PID, value: object) -> None:
        """Give a process a key, or another value for its key.

        Raises:
            KeyTakenError: another process has the unique key; nothing is changed.
        """
        holders = table.entries.get(key.key)
        if holders and table.unique and pid not in holders:
            raise KeyTakenError(table.name, key.key, next(iter(holders)))
        table.entries.setdefault(key.key, {})[pid] = value
        self._keys_of.setdefault(pid, {})[key] = None

    def unregister(self, table: RegistryTable, key: Key, pid: PID) -> bool:
        """Take a key from a process. False if it has no such key."""
        holders = table.entries.get(key.key)
        if holders is None or pid not in holders:
            return False
        self._drop(table, key, pid)
        mine = self._keys_of[pid]
        del mine[key]
        if not mine:
            del self._keys_of[pid]
        return True

    def find(self, key: Key) -> PID | None:
        """The process that has a unique key."""
        table = self.registries.get(key.registry)
        if table is None or not table.unique:
            return None
        try:
            return next(iter(table.entries.get(key.key, ())), None)
        except TypeError:  # it cannot be hashed, and so no process has it
            return None

    def keys_of(self, pid: PID) -> tuple[Key, ...]:
        """The keys of a process in all registries."""
        return tuple(self._keys_of.get(pid, ()))

    def _drop(self, table: RegistryTable, key: Key, pid: PID) -> None:
        holders = table.entries[key.key]
        del holders[pid]
        if not holders:
            del table.entries[key.key]

    # -- groups ------------------------------------------------------------------------------------

    def join(self, group: Hashable, pid: PID) -> bool:
        """Add a member. False if it is a member already."""
        members = self.groups.setdefault(group, {})
        if pid in members:
            return False
        members[pid] = None
        self._groups_of.setdefault(pid, {})["member", group] = None
        return True

    def leave(self, group: Hashable, pid: PID) -> bool:
        """Remove a member. False if it is no member."""
        return self._quit(self.groups, "member", group, pid)

    def watch(self, group: Hashable, pid: PID) -> bool:
        """Add a process that monitors a group. False if it does already."""
        watchers = self.watchers.setdefault(group, {})
        if pid in watchers:
            return False
        watchers[pid] = None
        self._groups_of.setdefault(pid, {})["watcher", group] = None
        return True

    def unwatch(self, group: Hashable, pid: PID) -> bool:
        """Remove a process that monitors a group. False if it does not."""
        return self._quit(self.watchers, "watcher", group, pid)

    def _quit(
        self, table: dict[Hashable, dict[PID, None]], role: str, group: Hashable, pid: PID
    ) -> bool:
        members = table.get(group)
        if members is None or pid not in members:
            return False
        del members[pid]
        if not members:
            del table[group]
        mine = self._groups_of[pid]
        del mine[role, group]
        if not mine:
            del self._groups_of[pid]
        return True

    # -- ends --------------------------------------------------------------------------------------

    def forget(self, pid: PID) -> tuple[tuple[Key, ...], tuple[Hashable, ...]]:
        """Remove a process that has ended. Returns its keys and the groups that it was in."""
        if pid not in self._keys_of and pid not in self._groups_of:
            return (), ()
        keys = self.keys_of(pid)
        for key in keys:
            self.unregister(self.registries[key.registry], key, pid)
        roles = tuple(self._groups_of.get(pid, ()))
        for role, group in roles:
            (self.leave if role == "member" else self.unwatch)(group, pid)
        return keys, tuple(group for role, group in roles if role == "member")

    def entries(self, table: RegistryTable) -> Iterator[tuple[Hashable, PID, object]]:
        """All entries of a registry, the oldest key first."""
        for key, holders in table.entries.items():
            for pid, value in holders.items():
                yield key, pid, value
