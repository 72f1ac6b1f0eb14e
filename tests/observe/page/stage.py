"""A server that shows a made-up node to the page, in the language of `ergo observe`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ergo_py import PID, Actor, Alias, Caller, Reject, open_node
from ergo_py.web import WS, HTTPError, HTTPRequest, Response, Route, WebServer
from tests.observe.browser import ROOT
from tests.observe.page.scene import Scene

__all__ = ["Stage", "staged"]

PAGE = ROOT / "ergo_py" / "observe" / "page"
TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)


@dataclass
class Stage:
    """The state of the server, shared by all pages."""

    scenes: dict[str, Scene]
    replay: str | None = None
    permit: list[str] = field(default_factory=lambda: ["look", "act"])
    token: str = "right"
    url: str = ""
    talks: list["Talk"] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Every request of the pages."""

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass, and push the new state to all pages."""
        for scene in self.scenes.values():
            scene.tick(seconds)
        for talk in self.talks:
            talk.push()


class Pages(Actor):
    """Serves the files of the page."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    async def init(self) -> None:
        talk = Route("/ws", websocket=partial(Talk, self.stage), max_message=1 << 26)
        self.web = await self.spawn_meta(
            WebServer("127.0.0.1", 0, routes=[talk, Route("/", to=self.pid)])
        )

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case HTTPRequest("GET", parts):
                path = PAGE / (parts[0] if parts else "index.html")
                if len(parts) < 2 and path.is_file():
                    kind = TYPES[path.suffix[1:]]
                    headers = {
                        "content-type": f"{kind}; charset=utf-8",
                        "cache-control": "no-cache",
                    }
                    headers |= {"content-security-policy": POLICY}
                    return Response(200, path.read_bytes(), headers=list(headers.items()))
            case "port":
                return self.web
        raise Reject(HTTPError(404))


class Talk(Actor):
    """A page that is open."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.views: dict[str, dict[str, Any]] = {}
        self.key = ""
        self.scene = next(iter(stage.scenes.values()))
        self.line: Alias | None = None

    def say(self, message: dict[str, Any]) -> None:
        """Send a message to the page."""
        if self.line is not None:
            self.send(self.line, WS.Send(json.dumps(message)))

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case WS.Connected(connection):
                self.line = connection
            case WS.Text(connection, text):
                self.take(connection, json.loads(text))

    def terminate(self, reason: object) -> None:
        if self in self.stage.talks:
            self.stage.talks.remove(self)

    def take(self, connection: Alias, asked: dict[str, Any]) -> None:
        """Answer the page."""
        stage = self.stage
        if "hello" in asked:
            if asked["token"] != stage.token:
                self.send(connection, WS.Close(4401, "wrong token"))
                return
            stage.talks.append(self)
            hello = {"push": "hello", "version": 1, "ergo_py": "0.1.0", "permit": stage.permit}
            self.say({**hello, "replay": stage.replay, "now": self.scene.now})
            state = {"state": "recorded"} if stage.replay else {}
            nodes = [{**scene.node(), **state} for scene in stage.scenes.values()]
            self.say({"push": "nodes", "nodes": nodes})
            return
        stage.asked.append(asked)
        given = asked.get("with", {})
        if "node" in asked:
            if asked["node"] != self.key:
                self.views = {}
            self.key = asked["node"]
            self.scene = stage.scenes[self.key]
        if asked["do"] == "watch":
            self.say({"id": asked["id"], "ok": True, "result": {}})
            before, self.views = self.views, given["views"]
            if not stage.replay:
                self.push(before)
            return
        for out in self.outs(asked["do"], given):
            self.say({"id": asked["id"], "out": out})
        self.say({"id": asked["id"], "ok": True, "result": self.answer(asked["do"], given)})

    def push(self, before: dict[str, Any] | None = None) -> None:
        """Push the views that are new, or all."""
        pushes: list[dict[str, Any]] = []
        for name, given in self.views.items():
            if before is None or before.get(name) != given:
                push = {"push": "view", "node": self.key, "view": name, "at": self.scene.now}
                if given["kind"] in ("process", "near") and given["to"] > self.scene.size:
                    text = f"no process on {self.key} has the number {given['to']}"
                    pushes.append({**push, "error": {"code": "no_such_process", "text": text}})
                else:
                    pushes.append({**push, "whole": True, "patch": self.scene.view(given)})
        # As from the real server, they come one after another.
        for push in pushes:
            self.say(push)

    def answer(self, what: str, given: dict[str, Any]) -> object:
        """The answer to a question."""
        scene = self.scene
        match what:
            case "history":
                return scene.history()
            case "at":
                then = Scene(scene.size, given["at"], blocked=scene.blocked, rings=scene.rings)
                kinds = ("sample", "calls", "threads", "crashes", "events")
                views = {kind: then.view({"kind": kind}) for kind in kinds}
                views["rows"] = then.rows({"sort": "load", "down": True, "limit": 60})
                return {"at": given["at"], "views": views, "with": {"rows": {"sort": "load"}}}
            case "window":
                return scene.rows(given)
            case "inspect":
                return {"orders": "1840", "cache": "hits 0.92, size 4096", "last order": "81723"}
            case "peek":
                return [
                    {
                        "lane": "main",
                        "callback": "handle_call",
                        "sender": 9 + i,
                        "message_type": kind,
                    }
                    for i, kind in enumerate(["Save", "Save", "Look", "Save"])
                ]
            case "keys":
                return scene.keys(given)
            case "entity":
                return scene.entity(given)
            case "retry":
                scene.repair()
                return {"retried": 1}
            case "trace":
                return {"entries": 12, "missed": 0}
            case "flow":
                return {"messages": 4000}
            case "profile":
                return {
                    "samples": 500,
                    "seconds": 5.0,
                    "idle": 320,
                    "threads": ["loop"],
                    "stacks": STACKS,
                }
        return {}

    def outs(self, what: str, given: dict[str, Any]) -> list[dict[str, Any]]:
        """The parts that come before the answer."""
        now = self.scene.now
        if what == "trace":
            into = {
                "callback": "handle_call",
                "message_type": "Save",
                "sender": 9,
                "seconds": 0.0011,
                "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
                "span_id": "00f067aa0ba902b7",
            }
            out = {"callback": "call", "message_type": "Query", "to": 5}
            return [{"at": now + i * 0.13, **(out if i % 3 == 1 else into)} for i in range(12)]
        if what == "flow":
            edges = [
                [9, 3, 10],
                [11, 3, 24],
                [12, 3, 6],
                [3, 5, 38],
                [3, 4, 9],
                [4, 7, 9],
                [0, 6, 2],
                [6, 9, 3],
            ]
            ids = {0, *given["ids"]}
            edges = [edge for edge in edges if edge[0] in ids or edge[1] in ids]
            return [{"at": now + i / 4, "seconds": 0.25, "edges": edges} for i in range(8)]
        return []


STACKS: list[tuple[list[str], int]] = [
    (
        [
            "Store 3 store",
            "handle_call (store.py:30)",
            "save (store.py:41)",
            "dumps (json/__init__.py:231)",
        ],
        61,
    ),
    (["Store 3 store", "handle_call (store.py:30)", "save (store.py:44)"], 22),
    (
        ["Store 3 store", "handle_call (store.py:30)", "check (store.py:58)", "match (re.py:166)"],
        18,
    ),
    (["Database 5 db", "handle_call (db.py:77)", "query (db.py:102)", "parse (db.py:140)"], 34),
    (["Database 5 db", "handle_call (db.py:77)", "query (db.py:108)"], 12),
    (["Collector 7 metrics", "handle_message (metrics.py:12)", "count (metrics.py:31)"], 15),
    (["loop", "run (trio/_core/_run.py:2790)", "get_events (_io_epoll.py:210)"], 18),
]


@asynccontextmanager
async def staged(*scenes: Scene, replay: str | None = None) -> AsyncIterator[Stage]:
    """Serve the page with these scenes, at a port of its own."""
    stage = Stage({scene.name: scene for scene in scenes}, replay)
    async with open_node("stage@localhost", watchdog=None) as node:
        pages = await node.spawn(Pages, stage)
        web = await node.call(pages, "port")
        facts = await node.inspect_meta(web)
        stage.url = f"http://{facts['local']}/"
        yield stage
