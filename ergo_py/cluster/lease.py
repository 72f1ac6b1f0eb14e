"""`LeaseKeeper`: competes for the lease of a name, renews it, and tells when it must be given up.

No moment is ever compared between two machines. The holder counts from the moment *before* it has
sent its last confirmed renewal, on its own clock. Another node counts from the moment *after* it
has first seen that renewal, on its own clock, and takes the lease only if no renewal has followed.
So the holder's time ends first, however long messages take, as long as the clocks of the two run
at the same speed, within the margin.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

import trio

from .._core import sources
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.ids import PID, Name
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from ..network.errors import StoreError
from ..network.stores.store import ConflictError, Entry, Store
from .errors import LeaseLostError

__all__ = ["Holder", "Lease", "LeaseKeeper", "LeaseTerms"]

MARGIN: Final = 0.2
"""The part of a lease that the holder does not use, for clocks that run at different speeds."""
_RENEWALS: Final = 10
"""How many times the holder renews a lease in its time."""
_POLL: Final = 1.0
"""The longest pause between two looks at the lease of another node, in seconds."""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The times of a lease, in seconds."""

    seconds: float
    """Another node may take the lease this long after it has last seen it renewed."""
    ending: float
    """The holder needs this long to end its work."""

    def __post_init__(self) -> None:
        check_number("ending", self.ending, least=0.0, most=3600.0)
        check_number("lease", self.seconds, least=0.05)
        least = self.ending / (1 - MARGIN - 1 / 3)
        if self.seconds < least:
            raise BadInputError(
                "lease",
                self.seconds,
                f"at least {least:.3g} s: the process has {self.ending:g} s to end (its shutdown "
                f"and its terminate_timeout), {MARGIN:.0%} of the lease are for clocks that run at "
                "different speeds, and a third is for renewals; make the lease longer, or write "
                "ChildSpec(…, shutdown=1.0, terminate_timeout=1.0)",
            )

    @property
    def valid(self) -> float:
        """How long the holder may use the lease after it has sent a renewal."""
        return self.seconds * (1 - MARGIN)

    @property
    def usable(self) -> float:
        """How long after a renewal the holder begins to end its work."""
        return self.valid - self.ending

    @property
    def renewal(self) -> float:
        """The time between two renewals."""
        return self.seconds / _RENEWALS

    @property
    def poll(self) -> float:
        """The time between two looks at the lease of another node."""
        return min(_POLL, self.seconds / _RENEWALS)


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lease, as the store keeps it."""

    node: str
    creation: int
    number: int
    """The number of the process; 0 while it starts, and for a process with a name of its own."""
    registered: str
    """The name of the process on its node, which its restarts keep; empty without one."""
    lease: float
    """The length of the lease."""
    token: int
    """A random number of the keeper."""
    began: int = 0
    """The number of the lease; 0 before its first renewal, and of an earlier version."""

    @property
    def address(self) -> PID | Name | None:
        """The address of the process; None while it starts."""
        if self.registered:
            return Name(self.registered, self.node)
        return PID(self.node, self.creation, self.number) if self.number else None

    def encode(self) -> bytes:
        """The holder as bytes for a store."""
        fields = ("node", "creation", "number", "registered", "lease", "token", "began")
        return json.dumps({name: getattr(self, name) for name in fields}).encode()

    @classmethod
    def decode(cls, data: bytes, lease: float) -> "Holder":
        """The holder with these bytes. Unreadable bytes are those of an unknown holder, perhaps of
        a later version, with a lease of the usual length.
        """
        try:
            values: Any = json.loads(data)
            holder = cls(
                str(values["node"]),
                int(values["creation"]),
                int(values["number"]),
                str(values["registered"]),
                float(values["lease"]),
                int(values["token"]),
                int(values.get("began", 0)),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            return cls("unknown", 0, 0, "", lease, 0)
        return holder if 0.0 <= holder.lease < inf else replace(holder, lease=lease)


class Lease:
    """The lease of a running singleton: :meth:`Singleton.lease_of` returns it."""

    def __init__(self, name: str, token: int, left: Callable[[], float]) -> None:
        self.name: Final = name
        """The name of the singleton."""
        self.token: Final = token
        """A number that is larger than the numbers of all earlier leases of the name. Give it to a
        database or a device together with each write, and let that refuse smaller numbers: then it
        also refuses a program that was stopped and continues after its lease.
        """
        self._left = left

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} {self.token}>"

    @property
    def seconds_left(self) -> float:
        """For how long no other node can take the lease; 0.0 if it has expired."""
        return max(0.0, self._left())

    @property
    def is_held(self) -> bool:
        """Whether no other node can have taken the lease by now."""
        return self._left() > 0.0

    def check(self) -> None:
        """Check the lease, immediately before an action that only a single process may carry out.

        Raises:
            Singleton.LeaseLostError: it has expired.
        """
        if not self.is_held:
            raise LeaseLostError(
                f"the lease of {self.name!r} has expired, so another node may run it by now; this "
                "process is about to end"
            )


class LeaseKeeper:
    """Keeps a lease for a single holder."""

    def __init__(
        self,
        store: Store,
        name: str,
        terms: LeaseTerms,
        pid: PID,
        now: Callable[[], float],
        warn: Callable[..., object],
    ) -> None:
        self.name = name
        self.terms = terms
        self._store = store
        self._now = now
        self._warn = warn
        self._source = pid.node, f"lease of {name}"
        token = sources.chance(*self._source).bits(62) | 1
        self._holder = Holder(pid.node, pid.creation, 0, "", terms.seconds, token)
        self._own: Entry | None = None
        """Our own entry, while we hold the lease."""
        self._may_own = False
        """Whether an entry of ours may be in the store without our knowledge: its confirmation is
        awaited, or was lost.
        """
        self._began = 0
        """The number of the entry with which the present lease began."""
        self._renewed_at = -inf
        self._seen: int | None = None
        """The number of the entry, or 0 for a missing entry; None before the first look."""
        self._seen_at = inf
        self._other: Holder | None = None
        """The holder that was there at the last look."""
        self._changed = trio.Event()
        self._complaint = ""
        self.fault: StoreError | None = None
        """Why the store could not be used at the last attempt."""

    # -- competing ---------------------------------------------------------------------------------

    async def acquire(self, check: Callable[[], None] = lambda: None) -> Lease:
        """Wait until the lease is ours. ``check`` is called after each failed attempt, and may
        raise.
        """
        while not await self.try_once():
            fraction = sources.chance(*self._source).fraction()
            await trio.sleep(self.terms.poll * (0.75 + fraction / 2))
            check()
        token = self._began
        # An earlier lease of this keeper stays expired when the keeper has a lease again.
        return Lease(
            self.name,
            token,
            lambda: self.expires_at - self._now() if self._began == token else 0.0,
        )

    async def try_once(self) -> bool:
        """Take the lease if it is free, or if its holder has not renewed it for its time."""
        asked_at, self.fault = self._now(), None
        try:
            entry = await self._store.get(self.name)
            revision = 0 if entry is None else entry.revision
            if not await self._may_take(entry):
                return False
            sent_at = self._now()
            if sent_at >= asked_at + self.terms.seconds:
                # The program was stopped meanwhile. If the store was replaced by an older copy, a
                # later entry may have got the revision that this node has read.
                return False
            self._may_own = True
            self._own = await self._store.put(self.name, self._holder.encode(), revision)
            self._may_own = False
            if not await self._is_trusted(entry):
                # The store was lost while this request was under way. The next attempt waits.
                return False
        except ConflictError:  # another node was faster
            return False
        except StoreError as error:
            self.fault = error
            self._complain(str(error))
            return False
        self._renewed_at = sent_at
        self._complaint = ""
        # A lease whose confirmation came late is not begun. It is ours in the store, and the next
        # attempt renews it.
        if self._now() >= self.stop_at:
            return False
        self._began = self._own.number
        self._holder = replace(self._holder, began=self._began)
        return True

    async def _may_take(self, entry: Entry | None) -> bool:
        now = self._now()
        number = 0 if entry is None else entry.number
        if number != self._seen:
            self._seen, self._seen_at = number, now
        holder = None
        if entry is not None and entry.value:
            holder = Holder.decode(entry.value, self.terms.seconds)
        self._other = holder
        lease = self.terms.seconds if holder is None else max(holder.lease, self.terms.seconds)
        if now >= self._seen_at + lease:
            return True
        if holder is not None and not self.is_ours(holder):
            if not self._store.is_gone(holder.node, holder.creation):
                return False
        elif holder is not None:  # a write of ours whose confirmation was lost
            entry = None
        if await self._is_trusted(entry):
            return True
        self._complain(
            "it is new, or has lost writes, and leases of the earlier store may last: the name "
            f"waits {self.terms.seconds:g} s"
        )
        return False

    async def _is_trusted(self, entry: Entry | None) -> bool:
        """Whether no lease can last of which the store knows nothing. An entry that is missing from
        a new store may have been lost with the old store; and any entry of a store that has lost
        writes may have been replaced.
        """
        age = await self._store.age()
        return (age.whole if entry is not None else min(age.made, age.whole)) >= self.terms.seconds

    def is_ours(self, holder: Holder) -> bool:
        """Whether this keeper has written the entry of a holder."""
        return holder.token == self._holder.token

    async def holder(self) -> Holder | None:
        """The present holder, as far as the store knows.

        Raises:
            StoreError: the store cannot be reached.
        """
        entry = await self._store.get(self.name)
        if entry is None or not entry.value:
            return None
        return Holder.decode(entry.value, self.terms.seconds)

    def facts(self) -> dict[str, Any]:
        """The holder of the lease for ``ergo names``, without asking the store: at the last look,
        if it is another node. Its time left is the longest time until the name is free.
        """
        now = self._now()
        if self.expires_at > now:
            return self._facts(self._holder, self.expires_at - now)
        if self._other is None or self.is_ours(self._other):
            return self._facts(None, 0.0)
        lease = max(self._other.lease, self.terms.seconds)
        return self._facts(self._other, self._seen_at + lease - now)

    def _facts(self, holder: Holder | None, left: float) -> dict[str, Any]:
        return {
            "name": self.name,
            "holder": None if holder is None else holder.node,
            "token": None if holder is None or not holder.began else holder.began,
            "left": max(0.0, left),
        }

    # -- holding -----------------------------------------------------------------------------------

    @property
    def expires_at(self) -> float:
        """From then on another node may have the lease, on our clock."""
        return self._renewed_at + self.terms.valid

    @property
    def stop_at(self) -> float:
        """At that moment the holder has to begin to end its work."""
        return self._renewed_at + self.terms.usable

    def describe(self, process: PID | str) -> None:
        """Tell other nodes the process that has the lease: its PID, or its name on this node."""
        if isinstance(process, PID):
            self._holder = replace(self._holder, number=process.number)
        else:
            self._holder = replace(self._holder, registered=process)
        self._changed.set()

    async def hold(self) -> str:
        """Renew the lease until it must be given up. Returns why, at ``stop_at`` at the latest."""
        why = "its lease was not renewed in time"
        wake_at = self._renewed_at + self.terms.renewal
        while True:
            await self._pause(min(wake_at, self.stop_at))
            if self._now() >= self.stop_at:
                return why
            wake_at = self._now() + self.terms.renewal
            try:
                # The store may take longer than there is time left.
                with trio.move_on_after(self.stop_at - self._now()):
                    lost = await self._renew()
                    if lost:
                        return lost
            except StoreError as error:
                why = f"its lease was not renewed in time: {error}"
                self._complain(str(error))
                wake_at = self._now() + self.terms.renewal / 2

    async def _pause(self, until: float) -> None:
        while (delay := until - self._now()) > 0.0:
            with trio.move_on_after(max(delay, 0.001)):
                await self._changed.wait()
                break
        self._changed = trio.Event()

    async def _renew(self) -> str:
        """Renew the lease, or tell why it is lost. Looks first: a store that was replaced by an
        older copy may have given the revision of our entry to the entry of another node.
        """
        own = await self._own_entry()
        if own is None or self._own is None:
            self._own = None
            return "another node has its lease"
        if own.number < self._own.number:
            # An older copy of the store: leases that were given out later are not in it.
            self._own = None
            return "the store of names has lost confirmed renewals of its lease"
        self._own = own  # a renewal whose confirmation was lost has another revision
        sent_at = self._now()
        try:
            self._own = await self._store.put(self.name, self._holder.encode(), own.revision)
        except ConflictError:
            self._changed.set()  # look again at once
            return ""
        self._renewed_at = sent_at
        self._complaint = ""
        return ""

    async def release(self) -> None:
        """Give the lease up, so that another node can take it at once; if the store cannot be used,
        which ``fault`` tells, only after its time. If this is cut short, it can be repeated.
        """
        self._renewed_at, self.fault = -inf, None
        try:
            if self._own is None and self._may_own:
                self._own = await self._own_entry()
            while self._own is not None:
                try:
                    await self._store.delete(self.name, self._own.revision)
                    break
                except ConflictError:
                    # A renewal that was cut short may have been written.
                    self._own = await self._own_entry()
        except StoreError as error:
            self.fault = error
            self._complain(str(error))
        self._own, self._may_own = None, False

    async def _own_entry(self) -> Entry | None:
        """The entry if it is ours."""
        entry = await self._store.get(self.name)
        if entry is None or not self.is_ours(Holder.decode(entry.value, 0.0)):
            return None
        return entry

    def _complain(self, text: str) -> None:
        """Log a fault of the store once until the store works again."""
        if text != self._complaint:
            self._complaint = text
            self._warn("the store of names is not usable", name=self.name, reason=text)


show_public_names(__name__)
