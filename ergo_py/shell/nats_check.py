"""``ergo nats check``: whether the settings of a NATS server suit a network of nodes.

A server tells its settings at its monitoring port only, neither in its greeting nor by JetStream.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from .exit_codes import Leave, Status
from .output import show

__all__ = ["check_server", "findings"]

_OLDEST: Final = (2, 11)
"""The oldest version of the server that keeps the markers of removed names for a while."""
_PING: Final = 10.0
"""The longest time between pings of the server, in seconds. It drops a connection of a lost machine
after two pings without an answer, and only then is the node's name free.
"""
_PAYLOAD: Final = 60_000
"""The fewest bytes of `max_payload`."""
_TIMEOUT: Final = 5.0
_LONGEST: Final = 64 << 20
_SECOND: Final = 1e9

Values = dict[str, object]


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report."""

    grade: str
    """``ok``, ``bad``, which lets the command fail, or ``hint``."""
    text: str


def check_server(monitor: str) -> None:
    """Print a report of the server with this monitoring address.

    Raises:
        Leave: the server does not answer, or a setting is bad.
    """
    server, jetstream = _fetch(monitor, "/varz"), _fetch(monitor, "/jsz?streams=1&config=1")
    found = list(findings(server, jetstream))
    for finding in found:
        show(f"{finding.grade:<5}{finding.text}")
    bad = sum(finding.grade == "bad" for finding in found)
    if bad:
        count = "a setting" if bad == 1 else f"{bad} settings"
        raise Leave(Status.FAILED, f"{count} of the server should be changed, as said above")


def findings(server: Values, jetstream: Values) -> Iterator[Finding]:
    """Judge the answers to ``/varz`` and ``/jsz``."""
    yield _version(server)
    yield from _jetstream(jetstream)
    yield _ping(server)
    yield from _access(server)
    yield from _buckets(jetstream)


def _version(server: Values) -> Finding:
    version = server.get("version")
    parts = re.match(r"(\d+)\.(\d+)", version) if isinstance(version, str) else None
    needed = ".".join(map(str, _OLDEST))
    if parts is None:
        return Finding("bad", f"the server does not tell its version; {needed} is needed")
    if (int(parts[1]), int(parts[2])) < _OLDEST:
        return Finding("bad", f"version {version}: install {needed} or later")
    return Finding("ok", f"version {version}")


def _jetstream(jetstream: Values) -> Iterator[Finding]:
    if jetstream.get("disabled") is True:
        yield Finding(
            "hint",
            "JetStream is off: names and singletons need it; start the server with --jetstream",
        )
        return
    config = _part(jetstream, "config")
    interval = _seconds(config, "sync_interval")
    if config.get("sync_always") is True:
        yield Finding("ok", "sync_interval always: JetStream keeps the writes that it confirms")
    else:
        flushed = "seldom" if interval is None else f"every {interval:g} s"
        yield Finding(
            "bad",
            f"JetStream flushes to the disk {flushed}: a power failure loses names and leases that "
            "it has confirmed; write jetstream { sync_interval: always } into its configuration",
        )
    size = _part(jetstream, "meta_cluster").get("cluster_size")
    if isinstance(size, int) and size >= 3:
        yield Finding("ok", f"{size} servers: names survive the loss of a server")
    else:
        yield Finding(
            "hint",
            "fewer than three servers: while the server is down no name is found, and singletons "
            "end",
        )


def _ping(server: Values) -> Finding:
    seconds = _seconds(server, "ping_interval")
    shown = "unknown" if seconds is None else f"{seconds:g} s"
    if seconds is not None and seconds <= _PING:
        return Finding("ok", f"ping_interval {shown}")
    return Finding(
        "bad",
        f"ping_interval {shown}: the name of a node on a lost machine stays taken for two to three "
        f'of them; write ping_interval: "{_PING:g}s" into the configuration',
    )


def _access(server: Values) -> Iterator[Finding]:
    payload = server.get("max_payload")
    if not isinstance(payload, int) or payload < _PAYLOAD:
        yield Finding("bad", f"max_payload {payload}: nodes need at least {_PAYLOAD} bytes")
    if server.get("auth_required") is not True:
        yield Finding(
            "hint",
            "no login is needed: each client can read all messages, and take names and leases; "
            "`ergo nats permissions NAME…` prints users and permissions",
        )
    if server.get("tls_required") is not True:
        yield Finding("hint", "no TLS: messages are readable on their way to other machines")


def _buckets(jetstream: Values) -> Iterator[Finding]:
    for account in _parts(jetstream, "account_details"):
        for stream in _parts(account, "stream_detail"):
            name, config = stream.get("name"), _part(stream, "config")
            if isinstance(name, str) and name.startswith("KV_ergo-"):
                yield _bucket(name, config)


def _bucket(name: str, config: Values) -> Finding:
    replicas = config.get("num_replicas", 1)
    if config.get("allow_rollup_hdrs") is True or config.get("max_bytes", -1) == -1:
        return Finding(
            "hint",
            f"the bucket {name} has no limits, and any node can empty it: it was made by ergo_py "
            "0.1.0; remove the stream while all nodes are down, and it is made again",
        )
    return Finding("ok", f"the bucket {name} has {replicas} replica{'s'[: replicas != 1]}")


# -- answers ---------------------------------------------------------------------------------------


def _fetch(monitor: str, path: str) -> Values:
    try:
        parts = urlsplit(monitor)
        place = f"{parts.scheme}://{parts.hostname}:{parts.port or 8222}"
    except ValueError:
        parts, place = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Leave(
            Status.USAGE,
            "--monitor takes the monitoring address of the server, as in http://127.0.0.1:8222",
        )
    try:
        with build_opener(ProxyHandler({})).open(f"{place}{path}", timeout=_TIMEOUT) as answer:
            data = answer.read(_LONGEST)
    except HTTPError as error:
        error.close()
        raise Leave(
            Status.NO_ANSWER,
            f"{place}{path} answers with the status {error.code}; is this the monitoring port of a "
            "NATS server?",
        ) from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Leave(
            Status.NO_ANSWER,
            f"no answer at {place}: {reason}; write http: 127.0.0.1:8222 into the configuration of "
            "the server, or name its monitoring port with --monitor http://host:port",
        ) from None
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise Leave(Status.NO_ANSWER, f"the answer of {place}{path} is not that of a NATS server")
    return values


def _part(values: Values, key: str) -> Values:
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def _parts(values: Values, key: str) -> list[Values]:
    found = values.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _seconds(values: Values, key: str) -> float | None:
    """A time, which the server writes in nanoseconds."""
    found = values.get(key)
    return found / _SECOND if isinstance(found, int | float) else None
