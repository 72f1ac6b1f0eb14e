"""The activity of a made-up node, and its records: waits, threads, crashes, events, the log."""

from typing import Any

__all__ = ["BEGIN", "CODE", "Activity"]

BEGIN = 1_794_825_000.0
"""The moment at which every scene begins."""
CODE = "shop/store.py:41 in save"
LOST = "OSError: <b>refused</b>"
TRACEBACK = """Traceback (most recent call last):
  File "shop/billing.py", line 88, in handle_call
    return self.charge(order)
  File "shop/billing.py", line 131, in charge
    total = order.amount / order.parts
ZeroDivisionError: division by zero
"""


class Activity:
    """The part of a scene that changes with its trouble."""

    size: int
    now: float
    blocked: bool
    rings: bool
    calm: bool
    parked: int

    def row(self, number: int) -> dict[str, Any]:
        """The row of a process."""
        raise NotImplementedError

    def calls(self, _given: object) -> dict[str, Any]:
        """Callers that wait, and their callees."""
        if self.calm:
            return {"waits": [], "rings": [], "deadlocks": [], "left_out": 0}
        pairs = [
            (9, 3, "Buy", 4.2),
            (11, 3, "Buy", 2.9),
            (12, 3, "Look", 0.8),
            (3, 5, "Query", 4.1),
        ]
        rings: list[list[int]] = []
        if self.rings:
            pairs += [(4, 7, "Charge", 61.0), (7, 8, "Report", 60.5), (8, 4, "Send", 60.2)]
            rings = [[4, 7, 8, 4]]
        waits = []
        for source, target, request, seconds in pairs:
            a, b = self.row(source), self.row(target)
            waits.append(
                {
                    "from": source,
                    "from_name": a["name"],
                    "from_behaviour": a["behaviour"],
                    "to": target,
                    "to_name": b["name"],
                    "to_behaviour": b["behaviour"],
                    "request": request,
                    "since": self.now - seconds,
                    "deferred": False,
                }
            )
        past = {
            "at": BEGIN - 900,
            "ring": [3, 4, 3],
            "names": ["store", "billing", "store"],
            "request": "Save",
        }
        return {"waits": waits, "rings": rings, "deadlocks": [past], "left_out": 0}

    def threads(self, _given: object) -> dict[str, Any]:
        """The threads of the program."""
        recv = "socket.py:706 in readinto: return self._sock.recv_into(b)"
        select = "_io_epoll.py:210 in get_events: return self._epoll.poll(timeout, max_events)"
        loop = [f"{CODE}: time.sleep(10)"] if self.blocked else [select]
        threads: list[dict[str, Any]] = [
            {"id": 1, "native": 4711, "name": "MainThread", "kind": "loop", "frames": loop}
        ]
        stack = ["bridge.py:120 in run: self.target()", "tcp.py:88 in read: data = recv()", recv]
        threads += [
            {
                "id": number,
                "native": 4711 + number,
                "name": f"ergo-tcp-{number}",
                "kind": "reader",
                "process": number,
                "behaviour": "TCPConnection",
                "frames": stack,
            }
            for number in range(10, min(self.size, 60) + 1, 5)
        ]
        accept = "server.py:77 in run: connection, _ = listener.accept()"
        threads.append(
            {
                "id": 99,
                "native": 4999,
                "name": "ergo-control",
                "kind": "control",
                "frames": [accept],
            }
        )
        for thread in threads:
            thread["where"] = thread["frames"][-1]
        return {"threads": threads}

    def crashes(self, _given: object) -> dict[str, Any]:
        """The last crashes."""
        if self.calm:
            return {"crashes": []}
        found = []
        failed = [("cache", "Cache"), ("billing", "Billing"), ("billing", "Billing")]
        for index, (name, behaviour) in enumerate(failed):
            found.append(
                {
                    "key": f"{20 + index}-1",
                    "pid": 20 + index,
                    "name": name,
                    "behaviour": behaviour,
                    "reason": "ZeroDivisionError: division by zero",
                    "at": BEGIN - 200 + 90 * index,
                    "uptime": 412.0,
                    "handled": 1840,
                    "callback": "handle_call",
                    "left": 2,
                    "failed": True,
                    "message_type": "Charge",
                    "waiting": ["Charge", "Refund"],
                    "recent": [],
                    "restarts": 3,
                    "traceback": TRACEBACK,
                    "group": behaviour,
                }
            )
        return {"crashes": found}

    def letters(self, _given: object) -> dict[str, Any]:
        """The last dead letters."""
        if self.calm:
            return {"counts": {}, "last": []}
        last = [
            {
                "at": BEGIN - 80 + 7 * i,
                "sender": 9 + i,
                "target": "cache",
                "message_type": "Put",
                "why": "no process",
            }
            for i in range(3)
        ]
        last.append(
            {
                "at": BEGIN - 9,
                "sender": 3,
                "target": "metrics",
                "message_type": "Count",
                "why": "full mailbox",
            }
        )
        return {"counts": {"no process": 3, "full mailbox": 1}, "last": last}

    def events(self, _given: object) -> dict[str, Any]:
        """The events."""
        if self.calm:
            return {"events": []}
        names = [("orders", 2, 18_204, 41), ("prices", 3, 990, 12), ("sessions", 6, 55_310, 3)]
        return {
            "events": [
                {
                    "name": n,
                    "producer": p,
                    "published": c,
                    "kept": 0,
                    "open": False,
                    "subscribers": s,
                    "lost": 0,
                }
                for n, p, c, s in names
            ]
        }

    def log(self, given: dict[str, Any]) -> dict[str, Any]:
        """The log."""
        kinds = [
            ("info", "order accepted", {"order": "81723", "total": "41.90"}, 3, "store", "Store"),
            ("warning", "slow query", {"seconds": "0.31"}, 5, "db", "Database"),
            ("error", "payment refused <b>by</b> the bank", {}, 4, "billing", "Billing"),
            ("info", "session opened", {"peer": "10.0.0.17:50112"}, 9, None, "Session"),
        ]
        lines: list[dict[str, Any]] = []
        for i in range(24):
            level, text, fields, source, name, behaviour = kinds[i * 7 % 4]
            lines.append(
                {
                    "n": i,
                    "at": BEGIN - 60 + 2.4 * i,
                    "level": level,
                    "text": text,
                    "fields": fields,
                    "source": source,
                    "name": name,
                    "behaviour": behaviour,
                }
            )
        ranks = ["debug", "info", "warning", "error"]
        least, find = ranks.index(given.get("level", "debug")), given.get("find", "")
        lines = [e for e in lines if ranks.index(e["level"]) >= least and find in e["text"]]
        return {"lines": lines, "missed": 0}

    def applications(self, _given: object) -> dict[str, Any]:
        """The applications."""
        if self.calm:
            return {"applications": []}
        return {
            "applications": [
                {
                    "name": "shop",
                    "phase": "running",
                    "mode": "permanent",
                    "depends_on": ["storage"],
                    "pid": 1,
                    "uptime": 7200.0,
                },
                {
                    "name": "storage",
                    "phase": "running",
                    "mode": "permanent",
                    "depends_on": [],
                    "pid": 2,
                    "uptime": 7201.0,
                },
                {
                    "name": "reports",
                    "phase": "failed",
                    "mode": "temporary",
                    "depends_on": ["shop"],
                    "reason": "crashed: ConnectionRefusedError",
                },
            ]
        }

    def pipelines(self, _given: object) -> dict[str, Any]:
        """A pipeline in order, and a pipeline in trouble."""
        if self.calm:
            return {"pipelines": []}
        names = [
            *("pid", "name", "open", "most", "taken", "acknowledged", "failed", "redelivered"),
            *("retried", "delay", "rate", "lost", "waiting"),
        ]
        rows = [
            (14, "orders", 412, 2000, 981_204, 980_792, 0, 12, 3, 0.031, 1204.5, "", 0),
            (15, "invoices", 500, 500, 7_310, 6_810, 4, 0, 61, 4.2, 0.3, LOST, 73),
        ]
        steps = [("Parse", 4, 12, 3), ("Insert", 1, 388, 58), ("poison", 1, 0, 0)]
        listed = [
            dict(zip(("name", "threads", "inside", "retried"), each, strict=True)) for each in steps
        ]
        return {
            "pipelines": [{**dict(zip(names, row, strict=True)), "steps": listed} for row in rows]
        }

    # -- entities ----------------------------------------------------------------------------------

    def entities(self, _given: object) -> dict[str, Any]:
        """The stores of entities."""
        if self.calm:
            return {"stores": []}
        kinds = [("Account", 61_204, 388, 3, 12, self.parked), ("Invoice", 912, 0, 0, 2, 0)]
        names = ("kind", "stored", "awake", "owed", "due", "parked")
        listed = [dict(zip(names, each, strict=True)) for each in kinds]
        return {
            "stores": [
                {
                    "store": "SQLite('shop.db')",
                    "commits": 81_340,
                    "versions": 1_204_551,
                    "failures": 2,
                    "last_error": {"at": BEGIN - 900, "text": "database or disk is full"},
                    "recent": {"seconds": 10.0, "commits": 412, "versions": 6015, "time": 1.61},
                    "kinds": [{**each, "is_more": False} for each in listed],
                }
            ]
        }

    def keys(self, given: dict[str, Any]) -> dict[str, Any]:
        """A page of keys."""
        names = [f"{first}-{number:03}" for first in ("ada", "bob", "eve") for number in range(60)]
        prefix, after = given["prefix"], given["after"]
        found = [name for name in names if name.startswith(prefix) and name > after]
        return {"keys": found[: given["limit"]], "is_more": len(found) > given["limit"]}

    def entity(self, given: dict[str, Any]) -> dict[str, Any]:
        """The record of an entity."""
        parked = [{"to": "Account/eve-004", "message_type": "Credit", "attempts": 20}]
        return {
            "kind": given["kind"],
            "key": given["key"],
            "is_awake": True,
            "version": 41,
            "state": {"amount": 1840, "owner": "<b>Ada</b>", "card": "***"},
            "owed": [],
            "timers": [
                {
                    "to": f"{given['kind']}/{given['key']}",
                    "message_type": "Statement",
                    "timer": "statement",
                    "due": "2026-12-01T00:00:00+00:00",
                }
            ],
            "parked": parked * self.parked,
            "done": {"invoice-17": "2026-11-17T09:12:44+00:00"},
        }
