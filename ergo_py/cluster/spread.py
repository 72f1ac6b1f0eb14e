"""`Spread`: an address that stands for the members of a group on all nodes."""

from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from .._core.tables.pending_calls import Caller
from .._core.vocabulary.errors import BadInputError, MailboxFullError, Reject, TargetDownError
from .._core.vocabulary.ids import PID, Alias, Ref
from .._core.vocabulary.messages import NO_REPLY, GroupJoined, GroupLeft, Response
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_members, show_public_names
from ..actor import Actor
from ..network.messages.listed_class import RefusedValueError
from ..supervision.pool_mailbox import Routing
from .errors import NoMembersError
from .group_keeper import ClusterGroup
from .names import Cluster
from .node_network import network_of

__all__ = ["Spread"]

_KEYS: Final = 10_000
"""How many keys are remembered with their members."""


class Spread(Actor):
    """Forwards each message and each call to a member of a group of the cluster, as if its sender
    had sent it there. A member answers the caller directly.

    For example::

        await node.spawn(Spread, "workers", name="workers")
        total = await node.call("workers", Sum(…))

        by_user = Spread.spec("sessions", Routing.BY_KEY, key=lambda message: message.user)
        await node.spawn(by_user, name="sessions")

    With BY_KEY all nodes that know the same members choose the same member for a key, and when a
    member joins or leaves, only the keys of that member move.
    """

    NoMembersError: TypeAlias = NoMembersError

    def __init__(
        self,
        group: Hashable,
        routing: Routing = Routing.ROUND_ROBIN,
        *,
        key: Callable[[Any], Hashable] | None = None,
        retries: int = 0,
        timeout: float | None = 5.0,
    ) -> None:
        """Describe the spread.

        Args:
            group: the name of the group.
            routing: ROUND_ROBIN or BY_KEY.
            key: for BY_KEY, maps a message or request to its key, a value that can travel.
            retries: how often a call is made again, to another member, if its member ends before it
                answers. The call may be carried out several times then.
            timeout: with ``retries``, seconds that a member has to answer.

        Raises:
            BadInputError: a value is invalid.
        """
        if routing not in (Routing.ROUND_ROBIN, Routing.BY_KEY):
            raise BadInputError(
                "Spread(routing)",
                routing,
                "ROUND_ROBIN or BY_KEY; no node knows the load of another",
            )
        if (routing is Routing.BY_KEY) != (key is not None) or not (key is None or callable(key)):
            raise BadInputError(
                "Spread(key)", key, "a function from a message to its key with BY_KEY, only there"
            )
        check_number("Spread(retries)", retries, least=0, whole=True)
        if timeout is not None:
            check_number("Spread(timeout)", timeout, least=0.0)
        self._name = group
        self._key = key
        self._retries = retries
        self._timeout = timeout

    async def init(self) -> None:
        """Start."""
        group = await Cluster(self.node).group(self._name)
        self._types = network_of(self._process.kernel).types
        self._members = group.monitor(self.pid)
        self._next = 0
        self._known: dict[Hashable, PID] = {}
        """The members of keys that were used lately."""
        self._calls: dict[Ref, tuple[Caller, PID, int]] = {}
        """Calls that are made again if their member ends, with the number of tries left."""
        self.unsent: int = 0
        """Messages that found no member, or a member without room."""

    # -- messages ----------------------------------------------------------------------------------

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        """Take a message."""
        match message:
            case GroupJoined(ClusterGroup(self._name), pid):
                self._members.append(pid)
                self._known.clear()
            case GroupLeft(ClusterGroup(self._name), pid):
                self._members.remove(pid)
                self._known.clear()
            case _:
                self._spread(message, sender)

    def _spread(self, message: object, sender: PID | Alias) -> None:
        member = self._choose(message, None)
        try:
            if member is None or not self.forward(member, message, sender):
                self._note_unsent("no member takes messages")
        except MailboxFullError as error:
            self._note_unsent(str(error))

    def _note_unsent(self, why: str) -> None:
        self.unsent += 1
        if self.unsent == 1:
            self.log.warning(
                "a message of a spread is lost", group=str(self._name), reason=why, note="first"
            )

    def handle_call(self, request: object, caller: Caller) -> object:
        """Take a call."""
        member = self._choose(request, None)
        if member is None:
            raise Reject(
                NoMembersError(
                    f"the group {self._name!r} has no members; a process joins it with "
                    f"(await Cluster(self.node).group({self._name!r})).join(self.pid)"
                )
            )
        if not self._retries:
            return self.forward(member, request, caller)
        self._call(member, request, caller, self._retries)
        return NO_REPLY

    def _call(self, member: PID, request: object, caller: Caller, tries: int) -> None:
        ref = self.request(member, request, timeout=self._timeout)
        self._calls[ref] = caller, member, tries

    def handle_response(self, response: Response) -> None:
        """Take an answer."""
        caller, member, tries = self._calls.pop(response.ref)
        if response.error is None:
            self.reply(caller, response.value)
            return
        another = self._choose(response.request, member)
        if isinstance(response.error, TargetDownError) and tries and another is not None:
            self._call(another, response.request, caller, tries - 1)
        else:
            self.reply_error(caller, response.error)

    # -- routing -----------------------------------------------------------------------------------

    def _choose(self, message: object, lost: PID | None) -> PID | None:
        """The member for a message, other than a member that is lost."""
        members = self._members
        if lost is not None:
            members = [member for member in members if member != lost]
        if not members:
            return None
        if self._key is None:
            self._next += 1
            return members[self._next % len(members)]
        key = self._key(message)
        found = self._known.get(key)
        if found is None or found == lost:
            found = self._owner(key, members)
            if len(self._known) >= _KEYS:
                self._known.clear()
            self._known[key] = found
        return found

    def _owner(self, key: object, members: list[PID]) -> PID:
        """The member with the highest hash of key and member (rendezvous hashing)."""
        try:
            start = blake2b(self._types.encode(key), digest_size=8)
        except RefusedValueError as error:
            raise BadInputError(
                "Spread(key)", key, f"a key that can travel: a str, a number, a tuple ({error})"
            ) from None

        def weight(member: PID) -> tuple[bytes, PID]:
            each = start.copy()
            each.update(f"{member.node} {member.creation} {member.number}".encode())
            return each.digest(), member

        return max(map(weight, members))[1]

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """Diagnostics for a human reader."""
        return {
            "group": str(self._name),
            "members": str(len(self._members)),
            "lost messages": str(self.unsent),
        }


show_public_names(__name__)
show_members(Spread)
