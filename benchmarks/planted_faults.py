"""The faults that `python -m benchmarks planted` plants: changes of rules of protocols."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ergo_py.testing import World

from .worlds.clusters import groups, leases, names
from .worlds.entities import bank, parking
from .worlds.networks import messages, watches
from .worlds.shards import fleet, moves
from .worlds.versions import versions

__all__ = ["FAULTS", "Planted"]

SESSION = "ergo_py.network.protocol.session"
RECORDS = "ergo_py.network.protocol.records"
TOTALS = "ergo_py.network.traffic.totals"
COMPRESSION = "ergo_py.network.protocol.compression"
LONG_OPERATIONS = "ergo_py.network.protocol.long_operations"
WATCHES = "ergo_py.network.incoming.watches"
WATCHED = "ergo_py.network.incoming.watched"
ROUTES = "ergo_py.network.incoming.routes"
NETWORK = "ergo_py.network.network"
PERMITS = "ergo_py.network.access.permits"
SERVICE = "ergo_py.network.services.service_receiver"
OPEN_CALLS = "ergo_py.network.outgoing.open_calls"
LEASE = "ergo_py.cluster.lease"
SINGLETON = "ergo_py.cluster.singleton"
NAMES = "ergo_py.cluster.names"
GROUPS = "ergo_py.cluster.group_keeper"
SPREAD = "ergo_py.cluster.spread"
STORE = "ergo_py.network.stores.memory_store"
ACTIVATION = "ergo_py.entities.activations.activation"
COMMANDS = "ergo_py.entities.activations.commands"
OUTBOX = "ergo_py.entities.activations.outbox"
HELD = "ergo_py.entities.activations.held_output"
ACTIVE = "ergo_py.entities.active_entities"
COMMITS = "ergo_py.entities.group_commit"
SCHEDULE = "ergo_py.entities.schedule"
STATE_TYPES = "ergo_py.entities.states.state_type"
RECORD = "ergo_py.entities.record"
ROWS = "ergo_py.entities.stores.memory"
MAP_KEEPER = "ergo_py.entities.shards.map_keeper"
HOST = "ergo_py.entities.shards.host"
SHARD_MAP = "ergo_py.entities.shards.shard_map"
EXECUTOR = "ergo_py.network.incoming.executor"


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault: a part of a module, and the text in its place."""

    name: str
    world: Callable[[World], Awaitable[None]]
    module: str
    text: str
    instead: str


FAULTS = (
    Planted(
        "lost operations are not sent again",
        *(messages, SESSION),
        "        if ack.resend:\n            self._send_again(now)\n",
        "        if ack.resend:\n            pass\n",
    ),
    Planted(
        "a doubled frame is delivered twice",
        *(messages, SESSION),
        "            news = news[receiving.received - seq :]\n",
        "            pass\n",
    ),
    Planted(
        "a gap is accepted",
        *(messages, SESSION),
        "                self._miss(now)\n                return\n            news",
        "                receiving.received = seq\n            news",
    ),
    Planted(
        "missing operations are asked for only once",
        *(messages, SESSION),
        "            if now >= self._deadlines.resend_at:\n                self._ask_again(now)\n",
        "            if now >= self._deadlines.resend_at:\n"
        "                self._deadlines.ask_again(1e9)\n",
    ),
    Planted(
        "an acknowledgement forgets all operations",
        *(messages, RECORDS),
        "for _ in range(news))",
        "for _ in range(len(waiting)))",
    ),
    Planted(
        "operations are sent again with the number of the first",
        *(messages, SESSION),
        "            self._send_data(start, ops)\n",
        "            self._send_data(sending.acknowledged, ops)\n",
    ),
    Planted(
        "heartbeats do not tell the last operation",
        *(messages, SESSION),
        "        receiving.note_known(ack.last)\n",
        "        pass\n",
    ),
    Planted(
        "an operation too many counts as received",
        *(messages, RECORDS),
        "        count = size - length_hint(left)\n",
        "        count = size - length_hint(left) + 1\n",
    ),
    Planted(
        "a lease has no margin",
        *(leases, LEASE),
        "        return self.seconds * (1 - MARGIN)\n",
        "        return self.seconds * (1.3 + 0 * MARGIN)\n",
    ),
    Planted(
        "a lease is taken too early",
        *(leases, LEASE),
        "        if now >= self._seen_at + lease:\n",
        "        if now >= self._seen_at + lease / 3:\n",
    ),
    Planted(
        "a lease is given up before its work has ended",
        *(leases, SINGLETON),
        "            await self._end(why)\n            await self._keeper.release()\n",
        "            await self._keeper.release()\n            await self._end(why)\n",
    ),
    Planted(
        "a living node counts as gone",
        *(leases, STORE),
        "        return not self._faults.has(node, creation)\n",
        "        return True\n",
    ),
    Planted(
        "the store takes a write with an old revision",
        *(leases, STORE),
        "            raise ConflictError(key)\n",
        "            pass\n",
    ),
    Planted(
        "a doubled frame loses its next operation",
        *(messages, SESSION),
        "            news = news[receiving.received - seq :]\n",
        "            news = news[receiving.received - seq + 1 :]\n",
    ),
    Planted(
        "frames of an earlier session count",
        *(messages, SESSION),
        "is_ours = self.state is State.UP and mine == self._mine and yours == self._yours\n",
        "is_ours = self.state is State.UP\n",
    ),
    Planted(
        "operations that waited are sent in the next session",
        *(messages, RECORDS),
        "        self.unacknowledged.clear()\n        self.queue.clear()\n",
        "        self.unacknowledged.clear()\n",
    ),
    Planted(
        "an operation without an answer is sent in the next session",
        *(messages, RECORDS),
        "        self.unacknowledged.clear()\n        self.queue.clear()\n",
        # All of them would be more than fit in a frame: the nodes would lose and meet each other
        # in the same moment, again and again.
        "        self.queue.clear()\n        self.queue.extend([*self.unacknowledged][:1])\n"
        "        self.unacknowledged.clear()\n",
    ),
    Planted(
        "heartbeats do not show a gap",
        *(messages, SESSION),
        "        if receiving.known > receiving.received:\n            self._miss(now)\n",
        "        pass\n",
    ),
    Planted(
        "operations are sent again only once",
        *(messages, RECORDS),
        "        if first == self.resent_from and now < self.resent_at + pause:\n",
        "        if first == self.resent_from:\n",
    ),
    Planted(
        "an operation overtakes those that wait",
        *(messages, SESSION),
        "        sending.queue.append(op)\n",
        "        sending.queue.appendleft(op)\n",
    ),
    Planted(
        "a short break is told as a loss",
        *(messages, SESSION),
        "            if now >= self._deadlines.heard_at + self._timing.patience:\n",
        "            if now >= self._deadlines.heard_at + self._timing.patience / 2:\n",
    ),
    Planted(
        "a silent node is not told as lost",
        *(messages, SESSION),
        "            if now >= self._deadlines.ack_at or now >= self._deadlines.beat_at:\n",
        "            self._deadlines.hear(now)\n"
        "            if now >= self._deadlines.ack_at or now >= self._deadlines.beat_at:\n",
    ),
    Planted(
        "more bytes are on the way than the window has",
        *(messages, RECORDS),
        "        room = min(FRAME, self.peer_window - self.unacknowledged_bytes)\n",
        "        room = FRAME\n",
    ),
    Planted(
        "an unreadable message ends its session",
        *(messages, EXECUTOR),
        "            self._reject(sender, to, self._unreadable(error))\n            return\n"
        "        try:\n            if op.headers:\n",
        "            raise ViolationError(str(error)) from error\n"
        "        try:\n            if op.headers:\n",
    ),
    Planted(
        "an unreadable message counts as carried out",
        *(messages, EXECUTOR),
        '        self._refusals.refuse("unreadable")\n        self.router.dead_letters',
        "        self.router.dead_letters",
    ),
    Planted(
        "operations that arrived in an ended session stay unconfirmed",
        *(messages, TOTALS),
        "            late = min(max(count, confirmed), sent) - confirmed\n",
        "            late = 0\n",
    ),
    Planted(
        "operations of an ended session count as confirmed",
        *(messages, TOTALS),
        "        self.unconfirmed += unconfirmed\n",
        "        self.confirmed += unconfirmed\n",
    ),
    Planted(
        "a part of a long message lacks a byte",
        *(messages, LONG_OPERATIONS),
        "first.op[first.begin : end])\n",
        "first.op[first.begin : end - 1])\n",
    ),
    Planted(
        "a compressed frame forgets its number",
        *(messages, COMPRESSION),
        "        return Data(frame.mine, frame.yours, frame.seq, frame.ack, _decode_ops(clear))\n",
        "        return Data(frame.mine, frame.yours, 0, frame.ack, _decode_ops(clear))\n",
    ),
    Planted(
        "a PID of an earlier start stands for a process of this start",
        *(watches, ROUTES),
        "            return read(place, here, self._decode)\n",
        "            found: Any = read(place, here, self._decode)\n"
        "            if type(found) is PID:\n"
        "                found = found._replace(creation=self._peer.network.kernel.pid.creation)\n"
        "            return found\n",
    ),
    Planted(
        "a name is looked up only once",
        *(watches, ROUTES),
        "            to: Any = self._read_place(receiver_of, route.to)\n",
        "            to: Any = self._read_place(receiver_of, route.to)\n"
        '            to = getattr(self._peer.router.resolve(to), "id", to)\n',
    ),
    Planted(
        "a subscriber gets the publications that its event keeps twice",
        *(watches, WATCHES),
        "            self._joining.add((number, watcher.number))\n",
        "",
    ),
    Planted(
        "a subscriber does not get the publications that its event keeps",
        *(watches, WATCHED),
        "            for publication in event.recent:\n",
        "            for publication in list(event.recent)[:0]:\n",
    ),
    Planted(
        "a message that waits for room is confirmed at once",
        *(watches, EXECUTOR),
        "            self._confirmations[waiter] = None\n"
        "            receiver.mailbox.wait_for_room(lane, envelope, waiter)\n",
        "            receiver.mailbox.wait_for_room(lane, envelope, waiter)\n"
        "            self._peer.send_answer(op.number, True, None, sender)\n",
    ),
    Planted(
        "a message that waits for its node is encoded when it is sent",
        *(watches, OPEN_CALLS),
        "lambda: self._push_confirmed(caller, route, packed))\n",
        "lambda: self._push_confirmed(caller, route, self.pack(to, message)))\n",
    ),
    Planted(
        "a node says farewell before its operations are sent",
        *(watches, NETWORK),
        "                await peer.batch.wait_sent()\n",
        "                peer.batch\n",
    ),
    Planted(
        "a node may look into another without its permit",
        *(watches, PERMITS),
        "        return DEFAULT_PERMITS\n",
        '        return DEFAULT_PERMITS | {"look"}\n',
    ),
    Planted(
        "a call that timed out makes no room for others",
        *(watches, OPEN_CALLS),
        "for number, known in calls.items() if known.settled]:\n",
        "for number, known in calls.items() if not known]:\n",
    ),
    Planted(
        "a service refuses calls while its child restarts",
        *(watches, SERVICE),
        "        if slot is None:\n",
        "        if slot is None or slot.pid is None:\n",
    ),
    Planted(
        "the end of a watched process is not told",
        *(watches, WATCHED),
        "            self._peer.send_ended(number, reason)\n",
        "            pass\n",
    ),
    Planted(
        "the loss of a node is not told to watchers",
        *(watches, WATCHES),
        "        for target in targets:\n            self._peer",
        "        for target in targets[:0]:\n            self._peer",
    ),
    Planted(
        "an answer goes to the wrong call",
        *(watches, OPEN_CALLS),
        "        caller = self._calls.pop(op.number, None)\n"
        "        if caller is None:\n"
        "            self.network.kernel.calls.count_late_reply()\n",
        "        caller = self._calls.pop(next(iter(self._calls), 0), None)\n"
        "        if caller is None:\n"
        "            self.network.kernel.calls.count_late_reply()\n",
    ),
    Planted(
        "a lease counts from its confirmation",
        *(leases, LEASE),
        '        self._renewed_at = sent_at\n        self._complaint = ""\n        return ""\n',
        '        self._renewed_at = self._now()\n        self._complaint = ""\n        return ""\n',
    ),
    Planted(
        "the renewals of another node are not seen",
        *(leases, LEASE),
        "        if number != self._seen:\n",
        "        if self._seen is None:\n",
    ),
    Planted(
        "an expired lease counts as held",
        *(leases, LEASE),
        "        return self._left() > 0.0\n",
        "        return True\n",
    ),
    Planted(
        "the numbers of leases do not grow",
        *(leases, LEASE),
        "        self._began = self._own.number\n",
        "        self._began = 1\n",
    ),
    Planted(
        "a holder goes on without renewals",
        *(leases, LEASE),
        "            if self._now() >= self.stop_at:\n                return why\n",
        "            pass\n",
    ),
    Planted(
        "a process keeps the name that its node has lost",
        *(names, NAMES),
        "        if not self._down.is_set():\n            self.kill(self._target)\n",
        "        pass\n",
    ),
    Planted(
        "the members of a lost node stay in its groups",
        *(groups, GROUPS),
        "                self._remove(group, pid, why)\n",
        "                pass\n",
    ),
    Planted(
        "a node does not tell which members leave",
        *(groups, GROUPS),
        "                if pid.node == self.pid.node:\n"
        "                    self._tell_all(_LEFT, name, pid, self._types.encode_reason(reason))\n",
        "                pass\n",
    ),
    Planted(
        "a keeper of groups does not greet a node again",
        *(groups, GROUPS),
        "                    del self._peers[pid.node]\n",
        "                    pass\n",
    ),
    Planted(
        "a drained node competes again when its keeper restarts",
        *(leases, SINGLETON),
        "            if not self._process.kernel.draining:\n",
        "            if self:\n",
    ),
    Planted(
        "the singleton of a drained node runs on",
        *(leases, SINGLETON),
        '        await self._end("the node is draining")\n',
        "        pass\n",
    ),
    Planted(
        "a drained node tells others of its members",
        *(groups, GROUPS),
        "        return [] if self._process.kernel.draining else self._of_this_node(members)\n",
        "        return self._of_this_node(members)\n",
    ),
    Planted(
        "the members of a drained node stay in their groups",
        *(groups, GROUPS),
        "            for pid in self._of_this_node(self._members(group)):\n",
        "            for pid in self._of_this_node(self._members(group))[1:]:\n",
    ),
    Planted(
        "a spread sends a message to two members",
        *(groups, SPREAD),
        "        member = self._choose(message, None)\n        try:\n",
        "        member = self._choose(message, None)\n"
        "        if len(self._members) > 5:\n"
        "            self.forward(self._members[0], message, sender)\n"
        "        try:\n",
    ),
    Planted(
        "each node chooses its own member for a key",
        *(groups, SPREAD),
        '            each.update(f"{member.node} ',
        '            each.update(f"{self.pid.node} {member.node} ',
    ),
    Planted(
        "an answer leaves before the commit",
        *(bank, HELD),
        "        if self.is_stored():\n            return value\n",
        "        if self:\n            return value\n",
    ),
    Planted(
        "a refusal leaves before the commit",
        *(bank, ACTIVATION),
        "        if self._output is None or self._output.is_stored():\n"
        "            raise rejection\n",
        "        if self:\n            raise rejection\n",
    ),
    Planted(
        "a commit releases output of the next version",
        *(bank, HELD),
        "                if made_in > version:\n",
        "                if made_in > version + 1:\n",
    ),
    Planted(
        "output does not wait for the store",
        *(bank, HELD),
        "        if self.is_stored():\n            self._let_go(",
        "        if self:\n            self._let_go(",
    ),
    Planted(
        "the ids of commands are ignored",
        *(bank, COMMANDS),
        "        done = self._activation.record.done.get(id)\n",
        '        done = self._activation.record.done.get("")\n',
    ),
    Planted(
        "the id of a deferred command is not stored",
        *(bank, COMMANDS),
        "            changes.done[id] = None\n",
        "            pass\n",
    ),
    Planted(
        "no kept answer is known",
        *(bank, COMMANDS),
        "        if encoded is None:\n            error =",
        "        if encoded is not self:\n            error =",
    ),
    Planted(
        "a repetition gets no answer of its own",
        *(bank, COMMANDS),
        "            value, error = self._kept(id, encoded)\n",
        "            value = encoded and None\n",
    ),
    Planted(
        "a received message is not noted",
        *(bank, ACTIVATION),
        "            record.see(origin, number)\n",
        "            pass\n",
    ),
    Planted(
        "a message is removed before it is delivered",
        *(bank, OUTBOX),
        "        pause = self._keeping.pause(owed.attempts)\n        self._next_try",
        "        pause = self._keeping.pause(owed.attempts)\n"
        "        del record.owed[owed.number]\n"
        "        return\n"
        "        self._next_try",
    ),
    Planted(
        "a message to itself stays after its effect",
        *(bank, ACTIVATION),
        "        changes.removed.append(owed.number)\n        changes.leave(self.outbox.look)\n",
        "        changes.leave(self.outbox.look)\n",
    ),
    Planted(
        "a delivered message is not removed",
        *(bank, OUTBOX),
        "        changes.removed.append(number)\n        # A parked",
        "        # A parked",
    ),
    Planted(
        "a failed commit counts as stored",
        *(bank, COMMITS),
        "            activation.fail(error, write.due)\n",
        "            activation.release(write)\n",
    ),
    Planted(
        "an entity sleeps with held output",
        *(bank, ACTIVATION),
        " or not (self._output is None or self._output.is_empty()):\n",
        ":\n",
    ),
    Planted(
        "an entity that has an unstored version is loaded",
        *(bank, ACTIVE),
        " and not self.commits.has(address)\n",
        "\n",
    ),
    Planted(
        "two activations of a key",
        *(bank, ACTIVE),
        "        return str(address) not in self.active and",
        "        return",
    ),
    Planted(
        "more entities are awake than allowed",
        *(bank, ACTIVE),
        "        room = self.settings.max_awake - len(self.active)\n",
        "        room = self.settings.max_awake + 1 - len(self.active)\n",
    ),
    Planted(
        "a refused command changes the state",
        *(bank, ACTIVATION),
        "        state = self._state_type.again(self._stored)\n",
        "        state = self.entity.state\n",
    ),
    Planted(
        "messages overtake each other",
        *(bank, ACTIVATION),
        "        if message.after > last:\n            return None",
        "        if message.after > last + 1000:\n            return None",
    ),
    Planted(
        "an entity confirms a message before its commit",
        *(bank, ACTIVATION),
        "        changes.leave(tell)\n",
        "        tell()\n",
    ),
    Planted(
        "a doubled message is confirmed before its commit",
        *(bank, ACTIVATION),
        "            self.output.hold(tell)\n",
        "            tell()\n",
    ),
    Planted(
        "a message leaves before its callback is stored",
        *(bank, OUTBOX),
        "            if each.is_parked or each.number > self._confirmed:\n",
        "            if each.is_parked:\n",
    ),
    Planted(
        "a stored message is not due",
        *(bank, ACTIVATION),
        "version, token, due, encoded",
        "version, token, None, encoded",
    ),
    Planted(
        "a start looks for no work",
        *(bank, SCHEDULE),
        "        return is_due and is_room\n",
        "        return False\n",
    ),
    Planted(
        "a timer is early",
        *(bank, OUTBOX),
        "            if delay > 0.0:\n                earliest",
        "            if delay > 1.0:\n                earliest",
    ),
    Planted(
        "ids are forgotten too early",
        *(bank, RECORD),
        "            if moment >= before and len(self.done) <= most:\n",
        "            if moment >= before and len(self.done) <= 1:\n",
    ),
    Planted(
        "a deleted state comes back",
        *(bank, RECORD),
        "        self.state = None\n        self.done = _NONE\n",
        "        self.done = _NONE\n",
    ),
    Planted(
        "an entity that failed is not woken",
        *(bank, ACTIVE),
        "is_here(address):\n            self._schedule_again(address)\n",
        "is_here(address):\n            pass\n",
    ),
    Planted(
        "messages of a stored record are not tried",
        *(bank, OUTBOX),
        "        if owed:\n            # Behind the messages",
        "        if not self:\n            # Behind the messages",
    ),
    Planted(
        "a refused callback owes its messages",
        *(bank, ACTIVATION),
        "        self.changes = None\n        # Not only",
        "        self.record.owe(self.changes.owed if self.changes else ())\n"
        "        self.changes = None\n"
        "        # Not only",
    ),
    Planted(
        "an unreadable state begins anew",
        *(bank, ACTIVATION),
        "            raise StateUnreadableError(\n"
        "                self.address.kind, self.address.key, state_type.name, str(error)\n"
        "            ) from None\n",
        "            return state_type.new()\n",
    ),
    Planted(
        "an unknown field of a state is dropped",
        *(bank, STATE_TYPES),
        "        if unknown:\n",
        "        if unknown is None:\n",
    ),
    Planted(
        "a start loads entities without work to do",
        *(bank, SCHEDULE),
        "        found = await store.due(self._now() + _HORIZON, self._limit)\n",
        "        found = await store.due(1e9, self._limit)\n"
        "        found = [each._replace(moment=0.0) for each in found]\n",
    ),
    Planted(
        "a row of a newer class is loaded without its further fields",
        *(versions, STATE_TYPES),
        "        if unknown:\n",
        "        if unknown is None:\n",
    ),
    Planted(
        "a default that was taken is not stored",
        *(versions, STATE_TYPES),
        "            self._parts.complete(state)\n            again",
        "            again",
    ),
    Planted(
        "an upgraded state is not the result of upgrade",
        *(versions, STATE_TYPES),
        "            return self._converted(_encode(upgraded))\n",
        "            return self.new()\n",
    ),
    Planted(
        "a refusal after an upgrade puts the bytes of the older class back",
        *(versions, ACTIVATION),
        "        self._stored = self._state_type.encode(self.entity.state, self.record.state)\n",
        "        self._stored = self.record.state or self._state_type.encode(self.entity.state)\n",
    ),
    Planted(
        "an entity that cannot be read begins again without its timers",
        *(versions, ACTIVATION),
        "            raise StateUnreadableError(\n"
        "                self.address.kind, self.address.key, state_type.name, str(error)\n"
        "            ) from None\n",
        "            self.record.delete()\n            return state_type.new()\n",
    ),
    Planted(
        "entities are loaded before their moments",
        *(versions, SCHEDULE),
        "                self.add(moment, address)\n",
        "                self.add(moment - 3.0, address)\n",
    ),
    Planted(
        "a start loads rows with work in a distant future",
        *(versions, SCHEDULE),
        "        found = await store.due(self._now() + _HORIZON, self._limit)\n",
        "        found, soon = await store.due(1e9, self._limit), self._now() + 2.0\n"
        "        found = [each._replace(moment=min(each.moment, soon)) for each in found]\n",
    ),
    Planted(
        "a parked message that has arrived gets a new number",
        *(parking, OUTBOX),
        "            if each.may_have_arrived:\n                # Under",
        "            if not each:\n                # Under",
    ),
    Planted(
        "messages pass a parked message that may have arrived",
        *(parking, RECORD),
        "        return not self.due and (not self.is_parked or self.may_have_arrived)\n",
        "        return not (self.due or self.is_parked)\n",
    ),
    Planted(
        "the store does not compare tokens",
        *(fleet, ROWS),
        "            if write.token < claimed:\n",
        "            if not write:\n",
    ),
    Planted(
        "the shards of a host are taken without its lease",
        *(fleet, MAP_KEEPER),
        "            if await lease.try_once():\n",
        "            if pid in self._hosts and self._hosts[pid].is_silent:\n",
    ),
    Planted(
        "a shard is released while a commit is under way",
        *(moves, HOST),
        "        ended = {shard for shard in quiet if not commits.has_shard(shard)}\n",
        "        ended = quiet\n",
    ),
    Planted(
        "a message that waits for a move is lost",
        *(moves, HOST),
        "        for claim in slot.take_waiters():\n",
        "        for claim in list(slot.take_waiters())[1:]:\n",
    ),
    Planted(
        "a message that an entity has left is lost at a move",
        *(moves, HOST),
        "        for envelope in _kept(slot.inherit(None)):\n",
        "        for envelope in _kept(slot.inherit(None))[1:]:\n",
    ),
    Planted(
        "a message is passed to another host twice",
        *(moves, HOST),
        "            try:\n                router.send(process.id, to, sent, priority)\n",
        "            try:\n                router.send(process.id, to, sent, priority)\n"
        "                router.send(process.id, to, sent, priority)\n",
    ),
    Planted(
        "a drain forgets a shard",
        *(moves, SHARD_MAP),
        "                found[host] = held\n",
        "                found[host] = held[1:]\n",
    ),
    Planted(
        "a released shard moves under a later token, too",
        *(moves, SHARD_MAP),
        "(shard, place.token) not in released:\n",
        "shard not in dict(released):\n",
    ),
    Planted(
        "a node has drained before all hosts know",
        *(moves, HOST),
        "        return self._may_leave or not self._has_others\n",
        "        return not self._map.shards_of(self._process.id) or not self._has_others\n",
    ),
    Planted(
        "a new keeper of the map counts hosts that it has not heard as gone",
        *(moves, MAP_KEEPER),
        "                has_others = self._is_new() or any(\n",
        "                has_others = any(\n",
    ),
    Planted(
        "a drained node refuses calls that were under way",
        *(moves, EXECUTOR),
        '"serves_drained", False):\n            self._call(op)\n            return\n',
        '"serves_drained", False):\n            pass\n',
    ),
)
