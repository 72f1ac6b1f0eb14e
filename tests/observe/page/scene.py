"""A made-up node that always looks the same, in the words of the page's server."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.observe.page.activity import BEGIN, CODE, Activity

__all__ = ["NODE", "Scene"]

NODE = "shop@localhost"
NAMED = [
    ("shop", "Supervisor", 0),
    ("orders", "Supervisor", 1),
    ("store", "Store", 2),
    ("billing", "Billing", 2),
    ("db", "Database", 2),
    ("sessions", "Supervisor", 1),
    ("metrics", "Collector", 1),
    ("mailer", "Pool", 1),
]


def wave(seed: float, at: float) -> float:
    """A number from 0 to 1 that changes smoothly with time, and differs with the seed."""
    return (math.sin(at / 7 + seed * 1.7) + math.sin(at / 23 + seed * 0.6) + 2) / 4


@dataclass
class Scene(Activity):
    """A node with ``size`` processes. ``now`` moves on by a call of `tick`."""

    size: int = 300
    now: float = BEGIN
    blocked: bool = False
    rings: bool = False
    calm: bool = False
    """The node has no trouble: no crash, no dead letter, no wait."""
    first: bool = False
    """Samples have no rates, as the first sample of a connection."""
    name: str = NODE
    may: list[str] = field(default_factory=lambda: ["look", "act"])
    made: tuple[float, list[dict[str, Any]]] = field(default=(0.0, []))
    parked: int = 1
    """Parked messages of the entities, unless the node has no trouble."""

    def repair(self) -> None:
        """Let the parked messages arrive."""
        self.parked = 0

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass."""
        self.now += seconds

    def node(self) -> dict[str, Any]:
        """The entry of the list of nodes."""
        return {
            "key": self.name,
            "name": self.name,
            "os_pid": 4711,
            "state": "up",
            "may": self.may,
            "since": BEGIN - 7200,
            "creation": 1,
            "program": "shop.py",
            "python": "3.12.4",
        }

    # -- rows --------------------------------------------------------------------------------------

    def row(self, number: int) -> dict[str, Any]:
        """The row of a process, or of a meta-process: every fifth of the sessions has one."""
        busy = wave(number, self.now)
        named = number <= len(NAMED)
        name, behaviour, parent = NAMED[number - 1] if named else (None, "Session", 6)
        kind = "process"
        if not named and number % 5 == 0:
            behaviour, parent, kind = "TCPConnection", number - 1, "meta"
        weight = {"Store": 0.16, "Database": 0.11, "Collector": 0.07}.get(behaviour, 0.0)
        load = busy * (weight if named else 0.3 / self.size * (1 + number % 7))
        rate = busy * (weight * 4000 if named else 0.6 * (1 + number % 9))
        queued = int(busy * 40) if behaviour == "Database" else int(busy * 1.4) * (number % 11 == 0)
        handles = {"Store": ("handle_call", "Save"), "Database": ("handle_call", "Query")}
        callback, message = handles.get(behaviour, (None, None))
        row: dict[str, Any] = {
            "id": number,
            "kind": kind,
            "name": name,
            "behaviour": behaviour,
            "parent": parent,
            "state": "running" if callback else "sleep",
            "mailbox": queued,
            "load": load,
            "worst": max(load, 0.9 if queued else 0.0),
            "messages": int(number * 37 % 5000 + (self.now - BEGIN + 900) * rate),
            "rate": rate,
            "sent": int(number * 13 % 900),
            "time": load * 7200,
            "callback": callback,
            "born": BEGIN - 7200 + number % 3600,
            "message_type": message,
            "phase": None,
        }
        if kind == "meta":
            row |= {"reader": "thread", "thread": f"ergo-tcp-{number}", "backlog": 0}
        return row

    def all_rows(self) -> list[dict[str, Any]]:
        """The rows of all processes at this moment, made once."""
        if self.made[0] != self.now:
            self.made = self.now, [self.row(number) for number in range(1, self.size + 1)]
        return self.made[1]

    def rows(self, given: dict[str, Any]) -> dict[str, Any]:
        """A window of the table."""
        rows = list(self.all_rows())
        find = given.get("find", "")
        if find:
            rows = [
                r for r in rows if find in f"{r['name']} {r['behaviour']}" or find == str(r["id"])
            ]
        sort = given.get("sort", "id")
        rows.sort(
            key=lambda r: (r[sort] is None, r[sort] or 0 if sort != "name" else r[sort] or "")
        )
        if given.get("down"):
            rows.reverse()
        begin = given.get("from", 0)
        shown = rows[begin : begin + given.get("limit", 60)]
        return {
            "order": [r["id"] for r in shown],
            "rows": {str(r["id"]): r for r in shown},
            "from": begin,
            "found": len(rows),
            "alive": self.size,
            "seen": self.size,
            "mailbox": sum(r["mailbox"] for r in rows),
            "rate": sum(r["rate"] for r in rows),
        }

    def children(self, given: dict[str, Any]) -> dict[str, Any]:
        """Levels of the tree."""
        levels = {}
        below = Counter(row["parent"] for row in self.all_rows())
        for parent in given["of"]:
            found = [row for row in self.all_rows() if row["parent"] == parent]
            rows: dict[str, Any] = {}
            for row in found[:200]:
                number = row["id"]
                extra = {"phase": "running", "restarts": 3 * (number == 4)}
                if number <= len(NAMED):
                    extra |= {"child": row["name"], "supervisor": row["behaviour"] == "Supervisor"}
                application = {"application": "shop"} if number == 1 else {}
                rows[str(number)] = {**row, "children": below[number], **extra, **application}
            order: list[Any] = [row["id"] for row in found[:200]]
            if parent == 2 and not self.calm and self.size > 4:
                order.append("cache")
                rows["cache"] = {
                    "id": None,
                    "child": "cache",
                    "behaviour": "Cache",
                    "phase": "backing off",
                    "restarts": 5,
                    "reason": "crashed: ConnectionRefusedError",
                    "children": 0,
                }
            levels[str(parent)] = {
                "count": len(found) + len(order) - len(found[:200]),
                "order": order,
                "rows": rows,
            }
        return {"levels": levels}

    # -- figures -----------------------------------------------------------------------------------

    def blocks(self) -> dict[str, Any] | None:
        """The report of a blocked loop."""
        if not self.blocked:
            return None
        return {
            "seconds": 3.2 + self.now - BEGIN,
            "process": 3,
            "name": "store",
            "behaviour": "Store",
            "callback": "handle_call",
            "message_type": "Save",
            "stack": '  File "shop/store.py", line 41, in save\n    time.sleep(10)\n',
            "where": CODE,
            "line": "time.sleep(10)  # waits for the printer",
            "starved": False,
        }

    def sample(self, _given: object = None) -> dict[str, Any]:
        """The figures of the node."""
        rows = list(self.all_rows())
        behaviours: dict[str, dict[str, float]] = {}
        for row in rows:
            sums = behaviours.setdefault(
                row["behaviour"], {"count": 0, "mailbox": 0, "rate": 0.0, "load": 0.0}
            )
            for key in ("mailbox", "rate", "load"):
                sums[key] += row[key]
            sums["count"] += 1
        metas = sum(row["kind"] == "meta" for row in rows)
        sample = {
            "at": self.now,
            "uptime": 7200 + self.now - BEGIN,
            "stopping": False,
            "processes": self.size - metas,
            "metas": metas,
            "names": 8,
            "timers": 3,
            "mailbox": sum(row["mailbox"] for row in rows),
            "spawned": self.size + 41,
            "longest": max(row["mailbox"] for row in rows),
            "messages": 991_234,
            "rate": sum(row["rate"] for row in rows),
            "sent_rate": 5401.0,
            "busy": min(1.0, sum(row["load"] for row in rows)),
            "calls_waiting": 0 if self.calm else 4,
            "crashed": 0 if self.calm else 2,
            "late_replies": 0,
            "cpu": 0.1 + 0.4 * wave(3, self.now),
            "dead_letters": {} if self.calm else {"no process": 3, "full mailbox": 1},
            "loop": {
                "delay": 0.0004 + 0.002 * wave(9, self.now) ** 4,
                "times_blocked": 1,
                "blocked": self.blocks(),
            },
            "memory": 70_000_000 + self.size * 3000,
            "threads": 4 + min(metas, 40),
            "reader_threads": min(metas, 40),
            "dispatcher_threads": 0,
            "log_lines_lost": 0,
            "behaviours": behaviours,
        }
        rates = ("rate", "sent_rate", "busy", "cpu") if self.first else ()
        return {name: value for name, value in sample.items() if name not in rates}

    def history(self) -> dict[str, Any]:
        """Ten minutes of figures."""
        columns: dict[str, list[float]] = {}
        now = self.sample()
        delay = now["loop"]["delay"]
        moments = [self.now - 600 + i for i in range(600)]
        for at in moments:
            dip = 370 < at - self.now + 600 < 374 and not self.calm
            share = (0.4 + wave(3, at)) / (0.4 + wave(3, self.now))
            one = {
                "at": at,
                "rate": 0.0 if dip else now["rate"] * share,
                "busy": now["busy"] * share,
                "mailbox": int(now["mailbox"] * share * (6 if dip else 1)),
                "processes": now["processes"],
                "metas": now["metas"],
                "blocked": int(dip),
                "delay": 1.2 if dip else delay * share**3,
                "cpu": now["cpu"] * share,
                "memory": now["memory"],
                "crashed": 0 if self.calm else 1 + (at > self.now - 200),
                "dead_letters": 0,
            }
            for key, value in one.items():
                columns.setdefault(key, []).append(value)
        return {"from": moments[0], "to": moments[-1], "columns": columns}

    # -- a process -------------------------------------------------------------------------------

    def process(self, given: dict[str, Any]) -> dict[str, Any]:
        """The facts of a process."""
        row = self.row(given["to"])
        return {
            "kind": row["kind"],
            "pid": f"<PID {row['id']} {self.name}>",
            "name": row["name"],
            "behaviour": row["behaviour"],
            "state": row["state"],
            "trap_exit": False,
            "history": [
                ["running", self.now - 1],
                ["sleep", self.now - 12],
                ["init", BEGIN - 7200],
            ],
            "lanes": {"main": row["mailbox"], "urgent": 0} if row["mailbox"] else {},
            "messages_in": row["messages"],
            "messages_out": row["sent"],
            "dropped": 0,
            "unhandled": 0,
            "callback": row["callback"],
            "message_type": row["message_type"],
            "running_time": row["time"],
            "uptime": 7100.0,
            "parent": f"<PID 2 {self.name}>",
            "children": [],
            "links": [f"<PID 2 {self.name}>"],
            "monitors": [f"<PID 5 {self.name}>"],
            "monitored_by": [f"<PID 7 {self.name}>"],
            "mailbox_size": 10_000,
            "suspended": False,
            "log_level": "info",
        }

    def near(self, given: dict[str, Any]) -> dict[str, Any]:
        """The neighbourhood of a process."""
        center = given["to"]
        around = [n for n in (2, 3, 4, 5, 7, 9, 10, 11) if n <= self.size or n == center]
        nodes = {str(n): self.row(n) for n in {*around, center}}
        edges = [[2, center, "owner"], [center, 5, "waits"], [7, center, "monitor"]]
        edges += [
            [center, 9, "link"],
            [center, 11, "monitor"],
            [center, 10, "owner"],
            [4, center, "waits"],
        ]
        edges = [edge for edge in edges if str(edge[0]) in nodes and str(edge[1]) in nodes]
        edges = [edge for edge in edges if edge[0] != edge[1]]
        return {"center": center, "nodes": nodes, "edges": edges, "left_out": 0}

    def view(self, given: dict[str, Any]) -> dict[str, Any]:
        """The value of a view."""
        kind = given["kind"]
        look = {"dead-letters": self.letters}.get(kind) or getattr(self, kind)
        value: dict[str, Any] = look(given)
        return value
