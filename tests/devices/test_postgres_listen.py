"""`PostgresListen`: the rules of devices on a PostgreSQL server, whose login is the plug."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs psycopg")

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ergo_py import Backoff, BadInputError
from ergo_py.devices import Device, PostgresListen
from ergo_py.testing.bridges import DeviceRig
from ergo_py.testing.bridges.devices import DeviceRule
from tests.meta.owner import owning
from tests.postgres import needs_postgres, running_postgres


class Login(DeviceRig):
    """A role that may log in while the device is plugged, beside a session of the test."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo.replace("user=ergo", "user=device")
        self._session = psycopg.connect(conninfo, autocommit=True)
        self._session.execute("drop role if exists device")
        self._session.execute("create role device nologin")
        self._session.execute("listen orders")
        self._got: list[int] = []

    def bridge(self, *, reopen: Backoff, stuck_after: float) -> PostgresListen:
        return PostgresListen(self._conninfo, "frames", reopen=reopen, stuck_after=stuck_after)

    def plug(self) -> None:
        self._session.execute("alter role device login")

    def unplug(self) -> None:
        self._session.execute("alter role device nologin")
        # With a time: it returns when the sessions have ended.
        ended = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = %s"
        self._session.execute(ended, ("device",))

    def emit(self, number: int) -> None:
        self._session.execute("select pg_notify('frames', %s)", (str(number),))

    def number_in(self, data: object) -> int:
        assert isinstance(data, psycopg.Notify)
        return int(data.payload)

    def order(self, number: int) -> object:
        return ("orders", str(number))

    def taken(self) -> list[int]:
        self._got += [int(notice.payload) for notice in self._session.notifies(timeout=0)]
        return self._got

    def close(self) -> None:
        self._session.close()


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    with running_postgres() as server:
        yield server.conninfo


@pytest.mark.skipif(
    "ERGO_BROKERS" not in os.environ, reason="`python -m benchmarks brokers` starts the servers"
)
@needs_postgres
@pytest.mark.parametrize("rule", DeviceRig.RULES, ids=lambda rule: rule.__name__)
async def test_notifications_keep_the_rules_of_devices(conninfo: str, rule: DeviceRule) -> None:
    with ExitStack() as stack:
        login = Login(conninfo)
        stack.callback(login.close)
        await rule(login)


async def test_an_absent_database_is_a_lost_device(short_path: Path) -> None:
    async with owning() as owned:
        await owned.spawn(PostgresListen(f"host={short_path} user=ergo", "frames"))

        assert "OperationalError" in (await owned.until(Device.Lost)).why


def test_the_system_notices_a_server_that_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent to a server that only notifies, so its silence tells nothing."""
    asked: list[str] = []

    def connect(conninfo: str, **_: object) -> None:
        asked.append(conninfo)
        raise psycopg.OperationalError("no server")

    monkeypatch.setattr(psycopg, "connect", connect)
    with pytest.raises(psycopg.OperationalError):
        PostgresListen("host=db keepalives_idle=900", "frames").open()

    parameters = conninfo_to_dict(asked[0])
    assert parameters["host"] == "db"
    assert (parameters["keepalives_idle"], parameters["tcp_user_timeout"]) == ("5", "20000")


@pytest.mark.parametrize("data", ["text", ("channel", 1), ("channel",)])
def test_a_notification_needs_a_channel_and_a_text(data: object) -> None:
    with pytest.raises(BadInputError, match="a channel and a text"):
        PostgresListen("", "frames").write(data)


@pytest.mark.parametrize("channel", ["", "a\0b", "x" * 64, "\u00e9" * 32, 5, "\ud800"])
def test_a_channel_without_a_name_that_postgres_keeps_is_refused(channel: Any) -> None:
    PostgresListen("", "x" * 63, "a b.c")
    with pytest.raises(BadInputError, match=r"PostgresListen\(channels\).*1 to 63 bytes"):
        PostgresListen("", "prices", channel)
