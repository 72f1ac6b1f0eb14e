"""``ergo nats check`` against a real server, and against servers with odd answers."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ergo_py.shell.cli import main
from ergo_py.shell.exit_codes import Status
from ergo_py.shell.nats_check import findings
from tests.network.nats.server import NatsServer

SAFE = """
http: "127.0.0.1:-1"
ping_interval: "10s"
jetstream {{ store_dir: "{place}", sync_interval: always }}
"""


def test_a_server_that_keeps_confirmed_writes_is_fine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with NatsServer(SAFE.format(place=tmp_path)) as server:
        assert main(["nats", "check", "--monitor", server.monitor]) == Status.DONE

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok   version 2.")
    assert "ok   sync_interval always: JetStream keeps the writes that it confirms" in lines
    assert "ok   ping_interval 10 s" in lines
    assert any(line.startswith("hint no login is needed") for line in lines)
    assert any(line.startswith("hint fewer than three servers") for line in lines)
    assert not any(line.startswith("bad") for line in lines)


def test_a_server_with_default_settings_is_taught(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = f'http: "127.0.0.1:-1"\njetstream {{ store_dir: "{tmp_path}" }}\n'
    with NatsServer(config) as server:
        assert main(["nats", "check", "--monitor", server.monitor]) == Status.FAILED

    told = capsys.readouterr()
    assert "bad  JetStream flushes to the disk every 120 s" in told.out
    assert "jetstream { sync_interval: always }" in told.out
    assert "bad  ping_interval 120 s: the name of a node on a lost machine" in told.out
    assert "2 settings of the server should be changed" in told.err


GOOD: dict[str, Any] = {
    "version": "2.11.0",
    "ping_interval": 5_000_000_000,
    "max_payload": 1 << 20,
    "auth_required": True,
    "tls_required": True,
}
STREAMS: dict[str, Any] = {
    "config": {"sync_always": True},
    "meta_cluster": {"cluster_size": 3},
    "account_details": [
        {
            "stream_detail": [
                {"name": "KV_ergo-c", "config": {"num_replicas": 3, "max_bytes": 1}},
                {"name": "other"},
            ]
        }
    ],
}


def grades(server: dict[str, Any], jetstream: dict[str, Any]) -> list[str]:
    return [f"{finding.grade} {finding.text}" for finding in findings(server, jetstream)]


def test_three_servers_with_logins_and_limits_are_fine() -> None:
    found = grades(GOOD, STREAMS)

    assert {line.partition(" ")[0] for line in found} == {"ok"}
    assert "ok 3 servers: names survive the loss of a server" in found
    assert "ok the bucket KV_ergo-c has 3 replicas" in found


@pytest.mark.parametrize(
    "server, jetstream, text",
    [
        ({"version": "2.10.29"}, {}, "bad version 2.10.29: install 2.11 or later"),
        ({"version": "3.0.0-beta"}, {}, "ok version 3.0.0-beta"),
        ({"version": 7}, {}, "bad the server does not tell its version; 2.11 is needed"),
        ({"ping_interval": 10_000_000_001}, {}, "bad ping_interval 10 s"),
        ({"ping_interval": "2m"}, {}, "bad ping_interval unknown"),
        ({"max_payload": 59_999}, {}, "bad max_payload 59999: nodes need at least 60000 bytes"),
        ({"auth_required": False}, {}, "hint no login is needed"),
        ({"tls_required": None}, {}, "hint no TLS"),
        ({}, {"disabled": True}, "hint JetStream is off"),
        ({}, {"config": None}, "bad JetStream flushes to the disk seldom"),
        ({}, {"config": {"sync_interval": 10**9}}, "bad JetStream flushes to the disk every 1 s"),
        ({}, {"meta_cluster": {"cluster_size": 2}}, "hint fewer than three servers"),
        ({}, {"account_details": "none"}, "ok version 2.11.0"),
        ({}, {"account_details": [5, {"stream_detail": [5]}]}, "ok version 2.11.0"),
    ],
)
def test_each_setting_is_judged(
    server: dict[str, Any], jetstream: dict[str, Any], text: str
) -> None:
    found = grades(GOOD | server, STREAMS | jetstream)

    assert any(line.startswith(text) for line in found), found


def test_a_bucket_of_an_earlier_version_is_named() -> None:
    old = {"name": "KV_ergo-c", "config": {"allow_rollup_hdrs": True, "max_bytes": -1}}
    found = grades(GOOD, {**STREAMS, "account_details": [{"stream_detail": [old]}]})

    assert any("the bucket KV_ergo-c has no limits" in line for line in found)


@contextmanager
def answering(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    """A server at loopback that is no NATS server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, data = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "answer, text",
    [
        ((404, b"nothing"), "answers with the status 404; is this the monitoring port"),
        ((200, b"<html>"), "is not that of a NATS server"),
        ((200, b"[1]"), "is not that of a NATS server"),
        ((200, b"[" * 100_000), "is not that of a NATS server"),
    ],
)
def test_a_server_that_is_no_nats_server_is_an_error(
    answer: tuple[int, bytes], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(lambda _: answer) as url:
        assert main(["nats", "check", "--monitor", url]) == Status.NO_ANSWER
    assert text in capsys.readouterr().err


def test_a_port_without_a_server_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://user:secret@127.0.0.1:{unused.getsockname()[1]}"
        assert main(["nats", "check", "--monitor", url]) == Status.NO_ANSWER
    told = capsys.readouterr().err
    assert "write http: 127.0.0.1:8222 into the configuration" in told
    assert "secret" not in told


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["check", "--monitor", "nats://127.0.0.1:4222"], "as in http://127.0.0.1:8222"),
        (["check", "--monitor", "http://127.0.0.1:port"], "as in http://127.0.0.1:8222"),
        (["check", "shop@berlin"], "takes no names of nodes"),
        (["permissions"], "as in ergo nats permissions shop@berlin"),
    ],
)
def test_mistakes_on_the_command_line_are_explained(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nats", *arguments]) == Status.USAGE
    assert text in capsys.readouterr().err
