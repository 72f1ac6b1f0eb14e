"""A node that reads its settings again while it goes on."""

import json
import shutil
import ssl
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import PID, Actor, BadInputError, Caller, MetaProcess
from ergo_py.meta import TCPServer, TLSFiles
from ergo_py.network import NotPermittedError
from ergo_py.observe import Observe
from tests.actors import Puppet
from tests.control.rig import Wire, in_thread, runtime_directory
from tests.network.pairs import Total, make_network, two_nodes
from tests.network.test_nodes import Counter
from tests.network.test_permits import Forwarding
from tests.observe.rig import TOKEN, page_of
from tests.support import running_node

__all__ = ["runtime_directory"]

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


class Reloader(Setting):
    """Reloads its node in a callback, lets another process do so, or a task."""

    async def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case "here":
                return await self.node.reload(timeout=60)
            case "below":
                found: list[list[str]] = []

                async def reload() -> None:
                    found.append(await self.node.reload(timeout=60))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(reload)
                return found[0]
            case "task":
                _ = self.run_task(self.node.reload)
                return None
            case "seen":
                return list(self.seen)
            case PID() as other:
                return await self.call(other, "here", timeout=None)
        raise AssertionError(request)


async def test_a_reload_does_not_wait_for_the_processes_that_wait_for_it() -> None:
    async with running_node() as node:
        one, two = [await node.spawn(Reloader, name=name) for name in ("one", "two")]
        other = await node.spawn(Setting)

        async def names(request: object) -> list[str]:
            with trio.fail_after(30):
                failed = await node.call(one, request, timeout=None)
            assert all("self.run_task(self.node.reload)" in text for text in failed)
            return sorted(text.split()[0] for text in failed)

        assert await names("here") == ["one"]
        assert await names("below") == ["one"]
        assert await names(two) == ["one", "two"]  # the first waits for the second
        assert await node.call(two, "seen") == ["reload"] * 2
        await node.call(one, "task")
        with trio.fail_after(30):
            while await node.call(one, "seen") != ["reload"]:
                await trio.lowlevel.checkpoint()
            while await node.call(other, "seen") != ["reload"] * 4:
                await trio.lowlevel.checkpoint()


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


class Settings:
    """The settings of a program, which a test changes: a reload calls the object."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __call__(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.mark.counted
async def test_a_reload_changes_the_log_level_also_of_loggers_that_were_made_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    level = Settings("warning")

    def speak(me: Puppet) -> None:
        for method in ("debug", "info", "critical"):
            getattr(me.log, method)(method)

    def rebind(me: Puppet) -> None:
        me.log = me.log.bind(order=5)

    async with running_node(log_output="json", log_level=level) as node:
        bound, own = await node.spawn(Puppet), await node.spawn(Puppet, log_level="critical")
        await node.call(bound, rebind)

        async def said(new: object) -> tuple[list[str], list[str]]:
            """The failures of a reload, and the lines of both processes after it."""
            level.value = new
            failed = await node.reload()
            capsys.readouterr()
            for pid in (bound, own):
                await node.call(pid, speak)
            node.send("nobody", "a dead letter")
            lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
            return failed, [line["event"].split()[0] for line in lines]

        assert await said("debug") == ([], ["debug", "info", "critical", "critical", "dead"])
        assert await said("off") == ([], ["critical"])
        assert await said("info") == ([], ["info", "critical", "critical"])
        refused, lines = await said("loud")
        assert lines == ["info", "critical", "critical"]
        assert len(refused) == 1
        assert refused[0].startswith("log_level: BadInputError: ")
        assert (await said(OSError("no file")))[0] == ["log_level: OSError: no file"]

    level.value = "loud"
    with pytest.raises(BadInputError):
        async with running_node(log_level=level):
            pass


@pytest.mark.counted
async def test_a_reload_changes_the_permissions_of_the_control_socket() -> None:
    permissions = Settings("")
    async with running_node(control=permissions) as node:
        assert node.control_path is None

        permissions.value = "look,act"
        assert await node.reload() == []

        path = node.control_path
        assert path is not None
        with Wire(path) as wire:
            assert (await in_thread(wire.hear))["may"] == ["act", "look"]
            permissions.value = ""
            assert await in_thread(wire.ask, "reload") == {"failed": []}
            refused = await in_thread(wire.ask, "reload")
            assert refused["code"] == "not_permitted"
            assert "and this node gives none" in refused["text"]
        permissions.value = "everything"
        [text] = await node.reload()
        assert text.startswith("control: BadInputError: ")


async def test_a_reload_changes_the_permissions_of_the_observer_page() -> None:
    permit = Settings("look")
    observe = Observe(0, permit=permit, token=TOKEN)
    async with running_node("shop@localhost", beside=[observe]) as node:
        pid = await node.spawn(Puppet)

        async def kill() -> Any:
            return await in_thread(
                lambda: page_of(observe.url, lambda page: page.ask("kill", to=pid.number))
            )

        assert (await kill())["code"] == "not_permitted"

        permit.value = "attach"
        [text] = await node.reload()
        assert text.startswith("Observe(permit): BadInputError: ")
        assert (await kill())["code"] == "not_permitted"

        permit.value = "look,act"
        assert await node.reload() == []
        assert await kill() == {"killed": True}


@pytest.mark.counted
async def test_a_reload_changes_the_permits_of_connected_nodes() -> None:
    allow = Settings("default")
    async with two_nodes(make_network("memory", allow=allow)) as (a, b):
        counter = await b.spawn(Counter)
        assert await a.call(counter, Total()) == 0
        with pytest.raises(NotPermittedError, match="to look into it"):
            await a.at("b@test").info()

        allow.value = "look,send"
        assert await b.reload() == []

        with pytest.raises(NotPermittedError, match="to call its processes"):
            await a.call(counter, Total())
        assert (await a.at("b@test").info()).name == "b@test"
        allow.value = "everything"
        [text] = await b.reload()
        assert text.startswith("allow: BadInputError: ")
        assert (await a.at("b@test").info()).name == "b@test"


@pytest.mark.counted
async def test_a_reload_withdraws_the_permit_to_forward_also_for_senders_that_were_seen() -> None:
    allow = Settings("default")
    network = make_network("memory", allow=allow)
    async with two_nodes(network) as (a, b), running_node("c@test", network=network) as c:
        counter = await c.spawn(Counter)
        relay = await b.spawn(Forwarding, counter)
        assert await a.call(relay, Total()) == 0

        allow.value = "send,call"
        assert await c.reload() == []

        with pytest.raises(NotPermittedError, match="to send messages of a third node"):
            await a.call(relay, Total())
