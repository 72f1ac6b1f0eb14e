"""`NodeList`: admits pages, knows the nodes, and owns a sampler of each."""

import hmac
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from .._core.vocabulary.ids import PID
from .._core.vocabulary.messages import Down
from .._core.vocabulary.options import Rereadable
from .._core.vocabulary.reasons import Reason, Shutdown
from ..actor import Actor
from ..control.socket_paths import clean, sockets
from .history import History
from .messages import (
    AskHistory,
    Enter,
    Entered,
    FindNode,
    Neighbours,
    NodesChanged,
    NodeState,
    Reopen,
    Tick,
    WatchViews,
)
from .recorder import RECORDED, Recorder, read_history
from .sampler import Sampler

__all__ = ["NodeList", "Plan"]

_PAGES: Final = 8
_WRONG: Final = 5
"""Wrong tokens in a minute that are answered at once."""
_MINUTE: Final = 60.0
_PERIOD: Final = 1.0
_CLEANING: Final = 10.0
"""Seconds between two searches for sockets of dead programs, which knock at every socket."""
_ENDED: Final = 600.0
"""Seconds for which a node that has ended is shown."""
_MOST_ENDED: Final = 20
_MOST_NEIGHBOURS: Final = 200
"""Nodes of a network that are shown through a node."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The nodes that the page shows, and its permissions."""

    token: str
    permit: Rereadable[frozenset[str]] = frozenset({"look"})
    only: Callable[[str, Path], bool] = lambda _name, _path: True
    """Whether a node, by its name and the path of its socket, is shown."""
    record: Path | None = None
    replay: str | None = None
    """The name of the recording that is shown instead of nodes."""
    recorded: tuple[list[dict[str, Any]], dict[str, History]] | None = None


class _Entry:
    """A node in the list."""

    def __init__(
        self, key: str, name: str, os_pid: int, path: Path, other: str | None = None
    ) -> None:
        self.key = key
        self.path = path
        self.other = other
        """The name of the node, if another node passes requests on to it."""
        self.sampler: PID | None = None
        self.facts: dict[str, Any] = {
            "key": key,
            "name": name,
            "os_pid": os_pid,
            "state": "up",
            "since": round(time.time(), 3),
            "may": [],
        }
        if other is not None:
            self.facts["via"] = str(path.name).partition("+")[0]

    @property
    def has_ended(self) -> bool:
        return bool(self.facts["state"] == "ended")

    def change(self, **facts: object) -> bool:
        """Note facts. True if something is new."""
        is_new = any(self.facts.get(name) != value for name, value in facts.items())
        if facts.get("state", self.facts["state"]) != self.facts["state"]:
            facts["since"] = round(time.time(), 3)
        self.facts |= facts
        return is_new

    def move(self, os_pid: int, path: Path) -> None:
        """The node has started again."""
        self.path = path
        self.change(state="up", os_pid=os_pid, problem=None, since=round(time.time(), 3))

    def adopt(self, sampler: PID) -> None:
        """Note its sampler."""
        self.sampler = sampler


class NodeList(Actor):
    """The owner of pages and samplers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._token = plan.token.encode()
        self._wrong: deque[float] = deque(maxlen=_WRONG)
        self._pages: set[PID] = set()
        self._entries: dict[str, _Entry] = {}
        self._has_timer = False
        self._clean_at = 0.0
        self._recorder = None if plan.record is None else Recorder(plan.record)

    async def init(self) -> None:
        """A recording begins at once."""
        if self._recorder is not None:
            await self._look()

    # -- pages -------------------------------------------------------------------------------------

    async def handle_call(self, request: object, caller: Any) -> object:
        """Admit pages, and answer their questions about nodes."""
        match request:
            case Enter(token):
                return await self._enter(token, caller.pid)
            case FindNode(key):
                entry = self._entries.get(key)
                return None if entry is None else (entry.path, entry.other, entry.has_ended)
            case AskHistory(key, do, arguments):
                return self._ask_history(key, do, arguments, caller)
        return None

    async def _enter(self, token: str, page: PID) -> Entered:
        if not hmac.compare_digest(token.encode(errors="replace"), self._token):
            now = time.monotonic()
            wait = 0.0
            if len(self._wrong) == _WRONG:
                wait = max(0.0, _MINUTE - (now - self._wrong[0]))
            self._wrong.append(now)
            return Entered(False, 4401, "the token is wrong", wait)
        if len(self._pages) >= _PAGES:
            return Entered(False, 4429, f"{_PAGES} pages are open already; close one of them")
        self._pages.add(page)
        self.monitor(page)
        await self._look()
        return Entered(True, nodes=self._nodes())

    def _ask_history(self, key: str, do: str, arguments: dict[str, Any], caller: Any) -> object:
        if self._plan.recorded is not None:
            history = self._plan.recorded[1].get(key)
            if history is not None:
                return read_history(history, key, do, arguments)
        entry = self._entries.get(key)
        if entry is None or entry.sampler is None:
            return {"ok": False, "error": {"code": "no_such_node", "text": f"no node {key!r:.100}"}}
        return self.forward(entry.sampler, AskHistory(key, do, arguments), caller)

    async def handle_message(self, message: object, sender: object) -> None:
        """Pass on the wishes of pages, and note the reports of samplers and monitors."""
        match message:
            case WatchViews(viewer, key, _):
                for entry in self._entries.values():
                    if entry.sampler is not None:
                        views = message.views if entry.key == key else {}
                        self.send(entry.sampler, WatchViews(viewer, entry.key, views))
            case Neighbours(key, path, nodes):
                await self._note_neighbours(key, path, nodes)
            case NodeState(key, facts):
                self._note_state(key, facts)
            case Tick():
                self._has_timer = False
                await self._look()
            case Down(target):
                if isinstance(target, PID) and target in self._pages:
                    self._pages.discard(target)
                    await self.handle_message(WatchViews(target, "", {}), self.pid)

    def handle_child_exit(self, child: object, reason: Reason) -> None:
        """A sampler has failed: the next look makes another."""
        for entry in self._entries.values():
            if entry.sampler == child:
                self.log.warning("a sampler failed", node=entry.key, reason=str(reason))
                self._entries.pop(entry.key)
                break

    def terminate(self, reason: Reason) -> None:
        """The samplers have ended, and have given their last minute to the recording."""
        if self._recorder is not None:
            self._recorder.close()

    # -- nodes -------------------------------------------------------------------------------------

    def _nodes(self) -> list[dict[str, Any]]:
        if self._plan.recorded is not None:
            return [{**node, "state": "recorded"} for node in self._plan.recorded[0]]
        return [dict(entry.facts) for entry in self._entries.values()]

    async def _look(self) -> None:
        """Look for nodes, if a page is open or a recording runs; and again in a second."""
        if self._plan.recorded is not None or not (self._pages or self._recorder is not None):
            return
        if not self._has_timer:
            self._has_timer = True
            self.send_after(_PERIOD, self.pid, Tick())
        if time.monotonic() >= self._clean_at:
            self._clean_at = time.monotonic() + _CLEANING
            clean()
        found = {
            path: (name, os_pid) for name, os_pid, path in sockets() if self._plan.only(name, path)
        }
        is_new = False
        for entry in list(self._entries.values()):
            if entry.path not in found and not entry.has_ended:
                is_new |= entry.change(state="ended")
        known = {
            entry.path
            for entry in self._entries.values()
            if not entry.has_ended and entry.other is None
        }
        for path, (name, os_pid) in found.items():
            if path not in known:
                await self._add(name, os_pid, path)
                is_new = True
        is_new |= self._forget_ended()
        if is_new:
            self._publish()

    async def _add(self, name: str, os_pid: int, path: Path) -> None:
        entry = self._entries.get(name)
        if entry is not None and entry.other is not None:
            # Its own socket is better than that of another node.
            self._forget(entry)
            entry = None
        if entry is not None and entry.has_ended and entry.sampler is not None:
            entry.move(os_pid, path)
            self.send(entry.sampler, Reopen(path))
            return
        key = name if entry is None else f"{name}#{os_pid}"
        await self._adopt(_Entry(key, name, os_pid, path))

    async def _note_neighbours(self, key: str, path: Path, nodes: list[str]) -> None:
        """Show also the nodes that a node is connected to: it passes requests on to them."""
        is_new = False
        for entry in list(self._entries.values()):
            if entry.path == path and entry.other is not None and not entry.has_ended:
                is_new |= entry.other not in nodes and entry.change(state="ended")
        for name in nodes[:_MOST_NEIGHBOURS]:
            known = self._entries.get(name)
            if known is not None and known.other is not None and known.has_ended:
                self._forget(known)
                known = None
            if known is None and self._plan.only(name, path):
                await self._adopt(_Entry(name, name, 0, path, name))
                is_new = True
        if is_new:
            self._publish()

    def _forget(self, entry: _Entry) -> None:
        self._entries.pop(entry.key, None)
        if entry.sampler is not None:
            self.send_exit(entry.sampler, Shutdown())

    async def _adopt(self, entry: _Entry) -> None:
        key, path = entry.key, entry.path
        self._entries[key] = entry
        history = History(key)
        if self._recorder is not None:
            history.record_to(self._recorder.write)
            self._recorder.write_nodes([dict(entry.facts)])
        sampler = partial(Sampler, key, path, entry.other, self.pid, history)
        entry.adopt(await self.spawn(sampler))
        if self._recorder is not None:
            assert entry.sampler is not None
            self.send(entry.sampler, WatchViews(self.pid, key, RECORDED))

    def _forget_ended(self) -> bool:
        """Forget nodes that ended long ago, and the oldest of very many."""
        ended = [entry for entry in self._entries.values() if entry.has_ended]
        now = time.time()
        old = [
            entry
            for number, entry in enumerate(reversed(ended))
            if number >= _MOST_ENDED or now - entry.facts["since"] > _ENDED
        ]
        for entry in old:
            self._forget(entry)
        return bool(old)

    def _note_state(self, key: str, facts: dict[str, Any]) -> None:
        entry = self._entries.get(key)
        if entry is None or entry.has_ended:
            return
        if facts["state"] == "lost":
            clean()
            is_gone = not entry.path.exists()
            facts = {**facts, "state": "ended" if is_gone else "unreachable"}
            if not is_gone and entry.sampler is not None:
                # It is there, but does not answer: the sampler tries again.
                self.send_after(_PERIOD, entry.sampler, Reopen(entry.path))
        else:
            facts = {**facts, "problem": None}
        if entry.change(**facts):
            self._publish()

    def _publish(self) -> None:
        changed = NodesChanged(self._nodes())
        for page in self._pages:
            self.send(page, changed)
