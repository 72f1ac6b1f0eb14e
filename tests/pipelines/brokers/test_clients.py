"""The brokers of client libraries, without a server."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from ergo_py import BadInputError, pipelines
from ergo_py.pipelines import Item
from ergo_py.pipelines.brokers.broker import Broker, missing
from tests.pipelines.brokers.rigs import ODD_KEYS

CLIENTS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "AMQP": ("pika", lambda port: pipelines.AMQP(f"amqp://127.0.0.1:{port}", "jobs")),
    "JetStream": ("nats", lambda port: pipelines.JetStream(f"nats://127.0.0.1:{port}", "jobs")),
    "MQTT": ("paho", lambda port: pipelines.MQTT(f"mqtt://127.0.0.1:{port}", "jobs")),
    "RedisStream": (
        "redis",
        lambda port: pipelines.RedisStream(f"redis://127.0.0.1:{port}", "jobs"),
    ),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_an_absent_broker_raises_at_its_opening_and_the_client_closes(name: str) -> None:
    package, make = CLIENTS[name]
    pytest.importorskip(package, reason=f"needs the package {package}")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))  # without listen(): connections are refused
        client = make(holder.getsockname()[1])

        with pytest.raises(Exception) as found:  # noqa: PT011 - each library has its own
            client.open()
        client.close()

    assert type(found.value).__name__.startswith(("AMQPConnection", "Connection", "NoServers"))


@pytest.mark.parametrize("name", ["AMQP", "MQTT"])
def test_a_prefetch_that_the_protocol_does_not_have_is_refused(name: str) -> None:
    pytest.importorskip(CLIENTS[name][0], reason=f"needs the package {CLIENTS[name][0]}")
    for wrong in (0, 65_536):
        with pytest.raises(BadInputError, match="prefetch"):
            getattr(pipelines, name)("mqtt://localhost", "jobs", prefetch=wrong)


@pytest.mark.parametrize("url", ["broker.example:2883", "broker.example", "http://a:secret@b", ""])
def test_an_address_that_is_no_mqtt_broker_is_refused_without_its_password(url: str) -> None:
    pytest.importorskip("paho", reason="needs the package paho")

    with pytest.raises(BadInputError, match="mqtt://host:1883") as found:
        pipelines.MQTT(url, "jobs")
    assert "secret" not in str(found.value)


@pytest.mark.parametrize("name, option", [("MQTT", "session"), ("Kafka", "group")])
def test_a_source_without_its_name_at_the_broker_says_so(name: str, option: str) -> None:
    package = {"MQTT": "paho", "Kafka": "confluent_kafka"}[name]
    pytest.importorskip(package, reason=f"needs the package {package}")

    with pytest.raises(BadInputError, match=rf"{name}\({option}=…\)"):
        getattr(pipelines, name)("mqtt://localhost", "jobs").take(1)


async def do_nothing(*_: object) -> None:
    """Stand in for a verb of a client that has no server."""


def test_an_item_of_jetstream_with_a_header_status_is_an_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("nats", reason="needs the package nats")
    from nats.aio.msg import Msg

    link = pipelines.JetStream("nats://127.0.0.1", "jobs").connect()
    for verb in ("publish", "close"):
        monkeypatch.setattr(link.client, verb, do_nothing)
    paid, lost, end = (
        Msg(link.client, "jobs", reply, headers={"Status": status})
        for reply, status in [("$JS.ACK.1", "paid"), ("$JS.ACK.2", "404"), ("", "404")]
    )
    for message in (paid, lost, end):
        link.run(link.note(message))

    assert link.run(link.pull("jobs.ergo", "inbox", 3, no_wait=True)) == [paid, lost]
    link.run(link.note(Msg(link.client, "jobs", headers={"Status": "409"})))
    with pytest.raises(ConnectionError, match="409"):
        link.run(link.pull("jobs.ergo", "inbox", 3, no_wait=True))
    link.close()


def test_a_header_of_jetstream_holds_any_key() -> None:
    pytest.importorskip("nats", reason="needs the package nats")
    from ergo_py.pipelines.brokers.jet_stream import header_of, key_of

    headers = [header_of(key) for key in ODD_KEYS]

    assert [key_of(header) for header in headers] == ODD_KEYS
    assert all(sign.isascii() and sign.isprintable() for sign in "".join(headers))
    assert " " not in "".join(headers)
    assert header_of(b"orders/k1:2") == "orders/k1:2"
    assert key_of(header_of(b"\xff")) != key_of(header_of(b"\xfe"))


def test_a_missing_library_is_told_with_its_extra() -> None:
    assert "pip install 'ergo_py[amqp]'" in str(missing("AMQP", "pika", "amqp"))


class Fake:
    def close(self) -> None:
        pass


class FakeBroker(Broker[Fake]):
    def connect(self) -> Fake:
        return Fake()


def test_a_receipt_ends_with_its_opening() -> None:
    broker = FakeBroker()
    broker.open()
    old = Item(b"", receipt=broker.receipt(1))
    broker.close()
    with pytest.raises(ConnectionError, match="FakeBroker is not open"):
        broker.link.close()
    broker.open()
    new = Item(b"", receipt=broker.receipt(1))

    assert broker.of_this_opening([old, new]) == [(1,)]


def test_an_item_that_was_found_and_not_taken_is_not_held_after_a_reconnection() -> None:
    broker = FakeBroker()
    broker.open()
    taken, found = Item(b"", receipt=1), Item(b"", receipt=2)
    broker.held = {1: "", 2: ""}
    broker.found.append(found)
    broker.close()
    broker.open()

    assert broker.held == {1: ""}
    broker.fail([taken], ValueError())
    assert broker.held == {}


def test_labels_have_the_key_and_the_error_as_text_or_bytes() -> None:
    broker = FakeBroker()

    assert broker.labels_of(Item(b"")) == {}
    assert broker.labels_of(Item(b"", b"k", error=ValueError("no"))) == {
        "key": b"k",
        "error": "ValueError('no')",
    }
    assert broker.labels_of(Item(b"", 7)) == {"key": "7"}
