"""`Sampler`: looks at a node once a second for all pages together, and at no other time."""

import time
from pathlib import Path
from typing import Any, Final

import trio

from .._core.processes.background_task import BackgroundTask
from .._core.vocabulary.ids import PID
from ..actor import Actor
from ..control.protocol import ControlError
from .history import History
from .messages import AskHistory, Neighbours, NodeState, Reopen, Tick, Update, View, WatchViews
from .node_link import NodeLink
from .recorder import read_history

__all__ = ["Sampler"]

_PERIOD: Final = 1.0
_WINDOWS: Final = 12
"""Windows of rows in a single sample."""
_COMMANDS: Final = {
    "children": "children",
    "process": "process",
    "near": "near",
    "calls": "calls",
    "threads": "threads",
    "crashes": "crashes",
    "dead-letters": "dead-letters",
    "events": "events",
    "log": "log",
    "applications": "applications",
    "entities": "entities",
    "pipelines": "pipelines",
}
"""The command of each kind of view, besides samples and rows."""
_KEPT: Final = frozenset({"sample", "rows", *_COMMANDS})


class Sampler(Actor):
    """The sampler of a node. Without a page that watches the node, it has no connection and no
    timer.
    """

    def __init__(
        self, key: str, path: Path, other: str | None, node_list: PID, history: History
    ) -> None:
        self._key = key
        self._other = other
        self._neighbours: list[str] | None = None
        self._node_list = node_list
        self._history = history
        self._link = NodeLink(path, other)
        self._path = path
        self._views: dict[PID, dict[str, View]] = {}
        self._has_timer = False
        self._is_up = True
        self._now = 0.0
        """When the present look began."""
        self._due: set[PID] = set()
        """The pages whose views are looked at next."""
        self._looking: BackgroundTask | None = None

    def handle_message(self, message: object, sender: object) -> None:
        """Look at the node when a page changes its views, and every second. A task does so: a node
        that does not answer keeps no page waiting for the past.
        """
        match message:
            case WatchViews(viewer, _, views):
                if views:
                    if self._views.get(viewer) != views:
                        self._due.add(viewer)
                    self._views[viewer] = views
                else:
                    self._views.pop(viewer, None)
                self._keep_looking()
            case Tick():
                self._has_timer = False
                self._due |= set(self._views)
                self._keep_looking()
            case Reopen(path):
                self._path = path
                if self._looking is not None:
                    self._looking.cancel()
                    self._looking = None
                self._link.close()
                self._is_up = True
                self._keep_looking()

    def handle_call(self, request: object, caller: object) -> object:
        """Answer about the last ten minutes."""
        match request:
            case AskHistory(_, do, arguments):
                return read_history(self._history, self._key, do, arguments)
        return None

    def terminate(self, reason: object) -> None:
        """Disconnect, and finish the recording."""
        self._link.close()
        self._history.finish()

    def _keep_looking(self) -> None:
        """Look now, or in a second, or never again, unless a look is in progress."""
        if self._looking is not None:
            return
        if self._due:
            self._looking = self.start_task(self._look_at_due)
        elif not self._views:
            self._link.close()
        elif self._is_up and not self._has_timer:
            self._has_timer = True
            self.send_after(_PERIOD, self.pid, Tick())

    async def _look_at_due(self) -> None:
        while self._due:
            due, self._due = self._due, set()
            await self._look(due)
        self._looking = None
        self._keep_looking()

    async def _look(self, viewers: set[PID]) -> None:
        """Ask the node for the views of these pages, and pass them on."""
        if not await self._connected():
            return
        self._now = round(time.time(), 3)
        wanted: dict[str, tuple[View, list[tuple[PID, str]]]] = {}
        for viewer in viewers:
            for name, view in self._views.get(viewer, {}).items():
                key = f"{view.kind} {sorted(view.arguments.items())!r}"
                wanted.setdefault(key, (view, []))[1].append((viewer, name))
        try:
            await self._sample([each for each in wanted.values() if each[0].kind in _SURVEYED])
            for view, readers in wanted.values():
                if view.kind not in _SURVEYED:
                    await self._ask(view, readers)
        except (OSError, trio.ClosedResourceError) as error:
            self._lost(str(error))

    async def _sample(self, wanted: list[tuple[View, list[tuple[PID, str]]]]) -> None:
        """The sample and all windows of rows, in a single look at the processes of the node."""
        rows = [each for each in wanted if each[0].kind == "rows"]
        for begin in range(0, max(1, len(rows)), _WINDOWS):
            some = rows[begin : begin + _WINDOWS]
            try:
                answer = await self._link.ask(
                    "sample", {"windows": [view.arguments for view, _ in some]}
                )
            except ControlError as error:
                for view, readers in wanted:
                    self._tell(view, readers, None, error)
                return
            if begin == 0:
                self._note("sample", {}, answer["sample"])
                self._note_neighbours(answer["sample"].get("nodes"))
                for view, readers in wanted:
                    if view.kind == "sample":
                        self._tell(view, readers, answer["sample"])
            for (view, readers), window in zip(some, answer["windows"], strict=True):
                self._note("rows", view.arguments, window)
                self._tell(view, readers, window)

    async def _ask(self, view: View, readers: list[tuple[PID, str]]) -> None:
        try:
            answer = await self._link.ask(_COMMANDS[view.kind], view.arguments)
        except ControlError as error:
            self._tell(view, readers, None, error)
            return
        if view.kind == "crashes":
            for crash in answer:
                crash["key"] = f"{crash['pid']}-{crash['at']}"
            answer = {"crashes": answer}
        elif view.kind == "entities":
            answer = {"stores": answer}
        elif view.kind == "pipelines":
            answer = {"pipelines": answer}
        self._note(view.kind, view.arguments, answer)
        self._tell(view, readers, answer)

    def _note(self, kind: str, arguments: dict[str, Any], value: dict[str, Any]) -> None:
        # All views of a look have the same time: a page that shows a moment shows all of them.
        self._history.add(kind, arguments, value, self._now)

    def _note_neighbours(self, nodes: list[str] | None) -> None:
        """Tell the list of nodes about the nodes that this node is connected to."""
        if self._other is None and nodes != self._neighbours:
            self._neighbours = nodes
            self.send(self._node_list, Neighbours(self._key, self._path, nodes or []))

    def _tell(
        self,
        view: View,
        readers: list[tuple[PID, str]],
        value: dict[str, Any] | None,
        error: ControlError | None = None,
    ) -> None:
        said = None if error is None else {"code": error.code, "text": error.text}
        for viewer, name in readers:
            # The page may watch something else by now.
            if self._views.get(viewer, {}).get(name) == view:
                self.send(viewer, Update(self._key, name, round(time.time(), 3), value, said))

    async def _connected(self) -> bool:
        if self._link.is_open:
            return True
        link = NodeLink(self._path, self._other)
        try:
            await link.open()
            facts = await link.ask("info", {}, timeout=5.0)
        except ControlError as error:
            if error.code != "blocked" or not link.is_open:
                self._lost(error.text)
                return False
            facts = {}
        except (OSError, trio.ClosedResourceError) as error:
            self._lost(str(error))
            return False
        self._link = link
        self._is_up = True
        told: dict[str, Any] = {"state": "up", "may": link.may}
        if self._other is None:
            told |= {"os_pid": link.os_pid, "name": link.node}
        else:
            told |= {"os_pid": facts.get("os_pid", 0), "may": ["look"]}
        told |= {name: facts[name] for name in ("creation", "program", "python") if name in facts}
        self.send(self._node_list, NodeState(self._key, told))
        return True

    def _lost(self, why: str) -> None:
        self._link.close()
        self._is_up = False
        self.send(self._node_list, NodeState(self._key, {"state": "lost", "problem": why}))


_SURVEYED: Final = ("sample", "rows")
