"""`Viewer`: an actor for each open page. It reads messages and sends differences."""

import json
import time
from collections import deque
from typing import Any, Final

import trio

from .._core.vocabulary.ids import PID, Alias
from .._core.vocabulary.messages import Response
from .._core.vocabulary.options import read_now
from .._core.vocabulary.reasons import Reason
from ..actor import Actor
from ..control.protocol import ControlError, check_depth
from ..web import WS
from .messages import (
    KINDS,
    Answer,
    AskHistory,
    Enter,
    Entered,
    FindNode,
    NodesChanged,
    Update,
    View,
    WatchViews,
)
from .node_link import NodeLink
from .node_list import Plan
from .patches import find_patch
from .strangers import Strangers

__all__ = ["Viewer"]

VERSION: Final = 1
_HELLO: Final = 10.0
"""Seconds for the first message."""
_VIEWS: Final = 12
_ASKS: Final = 16
"""Requests of a page at a time."""
_QUEUED: Final = 2000
"""Answers that may wait for a slow page; then the output of streams is dropped, and a page that
goes on asking is closed.
"""
_LOOK: Final = frozenset(
    {"inspect", "peek", "state", "statistics", "info", "tree", "entity", "keys"}
)
_STREAMS: Final = frozenset({"trace", "flow", "profile"})
_ACTS: Final = frozenset({"send", "exit", "kill", "suspend", "resume", "retry"})
_PAST: Final = frozenset({"history", "at", "recording"})


class _Late:
    """The first message did not come in time."""


class _Turned:
    """The time of a page that was refused, or has not shown the token, is over."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        self.reason = reason


class Viewer(Actor):
    """The server's side of a page."""

    def __init__(self, node_list: PID, strangers: Strangers, plan: Plan, version: str) -> None:
        self._node_list = node_list
        self._strangers = strangers
        self._plan = plan
        self._version = version
        self._connection: Alias | None = None
        self._peer = ""
        self._is_in = False
        self._is_asked = False
        self._watched: tuple[str, dict[str, View]] = ("", {})
        self._states: dict[str, dict[str, Any]] = {}
        """The state of each view that the page has."""
        self._newest: dict[str, Update] = {}
        """Updates that are not sent yet, the newest of each view."""
        self._nodes: NodesChanged | None = None
        self._answers: deque[dict[str, Any]] = deque()
        self._is_sending = False
        self._asks: dict[object, NodeLink] = {}

    async def handle_message(self, message: object, sender: object) -> None:
        """Serve the page, and pass on the updates of the samplers."""
        match message:
            case Update():
                self._take_update(message)
            case Answer(content):
                self._answer(content)
            case WS.Text(_, text):
                await self._read(text)
            case NodesChanged():
                self._nodes = message
                self._flush()
            case WS.Connected(connection, request):
                self._connection = connection
                self._peer = request.client if request is not None else ""
                self.send_after(_HELLO, self.pid, _Late())
                if (oldest := self._strangers.add(self.pid)) is not None:
                    self.send(oldest, _Turned(4429, "others wait, and this page shows no token"))
            case WS.Binary():
                self._close(1003, "text messages only")
            case WS.Disconnected():
                self.stop()
            case _Late():
                if not self._is_in and not self._is_asked:
                    self._close(4408, "the first message did not come in time")
            case _Turned():
                if not self._is_in:
                    self._close(message.code, message.reason)

    def terminate(self, reason: Reason) -> None:
        """Leave the place to others."""
        self._strangers.forget(self.pid)

    def handle_response(self, response: Response) -> None:
        """The operating system has taken the last message: send the next."""
        self._is_sending = False
        if response.error is None:
            self._flush()

    def _close(self, code: int, reason: str) -> None:
        if self._connection is not None:
            self.send(self._connection, WS.Close(code, reason))

    # -- messages of the page ----------------------------------------------------------------------

    async def _read(self, text: str) -> None:
        try:
            check_depth(text)
        except ValueError:
            self._close(1008, "the message is nested too deeply")
            return
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            self._close(1007, "the message is no JSON")
            return
        if not self._is_in:
            await self._enter(said)
            return
        id = said.get("id") if isinstance(said, dict) else None
        if not isinstance(id, int | None) or isinstance(id, bool):
            id = None
        try:
            if not isinstance(said, dict):
                raise ControlError("bad_request", "a message is a JSON object")
            await self._serve(id, said)
        except ControlError as error:
            self._refuse(id, error)

    async def _enter(self, said: object) -> None:
        if self._is_asked:
            return
        token = None
        if isinstance(said, dict) and said.get("hello") == VERSION:
            token = said.get("token")
        if not isinstance(token, str):
            token = ""
        self._is_asked = True
        entered: Entered = await self.call(self._node_list, Enter(token), timeout=None)
        if not entered.is_admitted:
            self.send_after(entered.wait, self.pid, _Turned(entered.code, entered.reason))
            return
        self._is_in = True
        self._strangers.forget(self.pid)
        hello = {
            "push": "hello",
            "version": VERSION,
            "ergo_py": self._version,
            "permit": sorted(read_now(self._plan.permit)),
            "replay": self._plan.replay,
            "now": round(time.time(), 3),
        }
        self._answer(hello)
        self._answer({"push": "nodes", "nodes": entered.nodes})

    async def _serve(self, id: int | None, said: dict[str, Any]) -> None:
        do, arguments, key = said.get("do"), said.get("with", {}), said.get("node", "")
        if not isinstance(do, str) or not isinstance(arguments, dict) or not isinstance(key, str):
            raise ControlError(
                "bad_request",
                'a message is {"id": 1, "do": "inspect", "node": "…", "with": {…}}',
            )
        if do == "watch":
            self._watch(key, arguments)
            self._answer({"id": id, "ok": True, "result": {}})
        elif do == "cancel":
            await self._cancel(arguments)
            self._answer({"id": id, "ok": True, "result": {}})
        elif len(self._answers) > _ASKS:
            raise ControlError(
                "busy", f"{len(self._answers)} answers wait until the page reads them"
            )
        elif do in _PAST:
            answer = await self.call(self._node_list, AskHistory(key, do, arguments), timeout=30.0)
            self._answer({"id": id, **answer})
        elif self._plan.recorded is not None:
            raise ControlError("replay", f"{do:.40} needs a running node, and this is a recording")
        else:
            await self._begin(id, do, key, arguments)

    def _watch(self, key: str, arguments: dict[str, Any]) -> None:
        given = arguments.get("views")
        if not isinstance(given, dict) or len(given) > _VIEWS or set(arguments) != {"views"}:
            raise ControlError("bad_argument", f"watch needs views: at most {_VIEWS}, by name")
        views: dict[str, View] = {}
        for name, view in given.items():
            if len(name) > 40 or not isinstance(view, dict) or view.get("kind") not in KINDS:
                kinds = ", ".join(sorted(KINDS))
                raise ControlError(
                    "bad_argument", f"the view {name!r:.60} needs a kind: one of {kinds}"
                )
            views[name] = View(view["kind"], {k: v for k, v in view.items() if k != "kind"})
        before_key, before = self._watched
        if key != before_key:
            self._states = {}
        for name in list(self._states):
            if name not in views or before.get(name) != views[name]:
                self._states.pop(name)
        self._newest = {}
        self._watched = (key, views)
        if self._plan.recorded is None:
            self.send(self._node_list, WatchViews(self.pid, key, views))

    async def _cancel(self, arguments: dict[str, Any]) -> None:
        id = arguments.get("id")
        link = self._asks.get(id) if isinstance(id, int) else None
        if link is not None and link.is_open:
            try:
                await link.cancel()
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                return

    # -- questions to the node ---------------------------------------------------------------------

    async def _begin(self, id: int | None, do: str, key: str, arguments: dict[str, Any]) -> None:
        if do == "window":
            do, arguments = "sample", {"windows": [arguments]}
        elif do not in _LOOK | _STREAMS | _ACTS:
            known = ", ".join(sorted({*_LOOK, *_STREAMS, *_ACTS, *_PAST, "watch", "window"}))
            raise ControlError("unknown", f"there is no {do!r:.60}; there are {known}, cancel")
        if do in _ACTS and "act" not in read_now(self._plan.permit):
            raise ControlError(
                "not_permitted",
                f"{do} needs the permission 'act': start the page with `--permit look,act`",
            )
        if id is None or id in self._asks or len(self._asks) >= _ASKS:
            raise ControlError(
                "busy" if id is not None else "bad_request",
                f"id is a new number for each request, and at most {_ASKS} are under way",
            )
        found = await self.call(self._node_list, FindNode(key), timeout=None)
        if found is None:
            raise ControlError("no_such_node", f"there is no node {key!r:.100}")
        path, other, has_ended = found
        if has_ended:
            raise ControlError("node_ended", f"{key} has ended")
        self._asks[id] = link = NodeLink(path, other)
        if do in _ACTS:
            self.log.warning(
                "act through the observer page",
                act=do,
                on=key,
                peer=self._peer,
                **_target(arguments),
            )
        self.start_task(self._ask, id, link, do, arguments)

    async def _ask(self, id: int, link: NodeLink, do: str, arguments: dict[str, Any]) -> None:
        try:
            await link.open()
            if do == "trace":
                arguments = {**arguments, "json": True}
            patience = 90.0 if do != "trace" else 3700.0
            result = await link.ask(
                do, arguments, timeout=patience, out=lambda text: self._tell_output(id, text)
            )
            if do == "sample":
                result = result["windows"][0]
            self._answer({"id": id, "ok": True, "result": result})
        except ControlError as error:
            self._refuse(id, error)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._refuse(id, ControlError("node_ended", str(error) or "the node has ended"))
        finally:
            link.close()
            self._asks.pop(id, None)

    def _tell_output(self, id: int, text: str) -> None:
        for line in text.splitlines():
            if len(self._answers) < _QUEUED:
                self._answer({"id": id, "out": json.loads(line)})

    # -- messages to the page ----------------------------------------------------------------------

    def _refuse(self, id: object, error: ControlError) -> None:
        said = {"code": error.code, "text": error.text, **error.more}
        self._answer({"id": id, "ok": False, "error": said})

    def _answer(self, content: dict[str, Any]) -> None:
        if len(self._answers) > _QUEUED:
            self._close(1008, "the page does not read its answers")
            self.stop()
            return
        self._answers.append(content)
        self._flush()

    def _take_update(self, update: Update) -> None:
        key, views = self._watched
        if update.key == key and update.view in views:
            self._newest[update.view] = update
            self._flush()

    def _flush(self) -> None:
        """Send the next message, if the operating system has taken the last message. A page that
        does not read gets only the newest state of each view.
        """
        while not self._is_sending and self._connection is not None:
            content = self._next()
            if content is None:
                return
            self._is_sending = True
            text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
            data = text.encode(errors="replace").decode()
            self.request(self._connection, WS.Send(data), timeout=None)

    def _next(self) -> dict[str, Any] | None:
        if self._answers:
            return self._answers.popleft()
        if self._nodes is not None:
            nodes, self._nodes = self._nodes, None
            return {"push": "nodes", "nodes": nodes.nodes}
        while self._newest:
            name, update = next(iter(self._newest.items()))
            del self._newest[name]
            head = {"push": "view", "node": update.key, "view": name, "at": update.at}
            if update.value is None:
                self._states.pop(name, None)
                return {**head, "error": update.error}
            before = self._states.get(name)
            patch = find_patch(before or {}, update.value)
            self._states[name] = update.value
            if before is None:
                return {**head, "whole": True, "patch": patch}
            if patch:
                return {**head, "patch": patch}
        return None


def _target(arguments: dict[str, Any]) -> dict[str, str]:
    if "kind" in arguments:
        return {"to": f"{arguments['kind']}/{arguments.get('key', '')}"[:100]}
    return {"to": str(arguments.get("to", ""))[:100]}
