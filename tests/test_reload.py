"""A node that reads its settings again while it goes on."""

import shutil
import ssl
from collections.abc import Awaitable
from pathlib import Path

import pytest
import trio

from ergo_py import Actor, BadInputError, Caller, MetaProcess
from ergo_py.meta import TCPServer, TLSFiles
from tests.support import running_node

CERTIFICATES = Path(__file__).parent / "meta" / "certificates"


class Setting(Actor):
    """Keeps what happens to it, in order."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.seen: list[object] = []

    def handle_message(self, message: object, sender: object) -> None:
        self.seen.append(message)

    def handle_call(self, request: object, caller: Caller) -> object:
        return list(self.seen)

    def handle_reload(self) -> Awaitable[None] | None:
        self.seen.append("reload")
        if self.error is not None:
            raise self.error
        return None


class Unconcerned(Actor):
    """Has no settings, and neither has its meta-process."""

    async def init(self) -> None:
        await self.spawn_meta(Silent())


class Silent(MetaProcess):
    async def start(self) -> None:
        await trio.sleep_forever()


class Slow(Setting):
    async def handle_reload(self) -> None:
        await trio.lowlevel.checkpoint()
        self.seen.append("reload")
        await trio.sleep_forever()


@pytest.mark.counted
async def test_handle_reload_is_called_behind_the_messages_that_wait() -> None:
    async with running_node() as node:
        setting = await node.spawn(Setting)
        await node.spawn(Unconcerned)
        node.send(setting, "before")

        assert await node.reload() == []

        node.send(setting, "after")
        assert await node.call(setting, "seen") == ["before", "reload", "after"]


async def test_an_error_of_a_reload_is_reported_and_its_process_goes_on() -> None:
    async with running_node() as node:
        setting = await node.spawn(Setting, ValueError("line 3: no number"), name="setting")

        for _ in range(2):
            assert await node.reload() == [f"setting {setting}: ValueError: line 3: no number"]

        assert await node.call(setting, "seen") == ["reload", "reload"]


async def test_a_process_that_ends_or_takes_too_long_delays_a_reload_for_a_bounded_time() -> None:
    async with running_node() as node:
        slow = await node.spawn(Slow, name="slow")
        assert await node.reload(timeout=0.01) == [f"slow {slow}: no answer within 0.01 s"]
        ending = await node.spawn(Slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.reload)
            await trio.testing.wait_all_tasks_blocked()
            node.kill(slow)
            node.kill(ending)
        with pytest.raises(BadInputError):
            await node.reload(timeout=-1)


async def test_a_reload_brings_a_new_certificate_unless_it_is_bad(
    tmp_path: Path,
) -> None:
    class Owner(Actor):
        async def init(self) -> None:
            await self.spawn_meta(server)
            await self.spawn_meta(TCPServer(reader="task"))  # without certificates

    def install(name: str) -> None:
        for kind in ("pem", "key"):
            shutil.copy(CERTIFICATES / f"{name}.{kind}", tmp_path / f"current.{kind}")

    async def shown() -> object:
        """The certificate that a new connection gets."""
        context = ssl.create_default_context(cafile=str(CERTIFICATES / "authority.pem"))
        context.check_hostname = False
        stream = trio.SSLStream(
            await trio.open_tcp_stream(*server.local), context, https_compatible=True
        )
        await stream.do_handshake()
        serial = stream.getpeercert()["serialNumber"]
        await stream.aclose()
        return serial

    install("server")
    tls = TLSFiles(tmp_path / "current.pem", tmp_path / "current.key")
    server = TCPServer(tls=tls, reader="task")
    async with running_node() as node:
        await node.spawn(Owner)
        first = await shown()

        (tmp_path / "current.key").write_text("no key", encoding="ascii")
        [text] = await node.reload()
        assert "TCPServer" in text
        assert "the old certificates stay in use: there is no certificate in" in text
        assert await shown() == first

        install("renewed")
        assert await node.reload() == []
        assert await shown() != first
