"""Peeking into a mailbox, which its process does not notice."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import BadInputError, MetaProcess, Priority
from ergo_py._core.verbs.node_inspection import Queued
from ergo_py.errors import ProcessUnknownError
from tests.actors import Puppet
from tests.support import running_node


class Slow(MetaProcess):
    async def start(self) -> None:
        await trio.sleep_forever()

    async def handle_message(self, message: Any, sender: Any) -> None:
        await trio.sleep_forever()


async def test_peek_shows_types_in_the_order_of_service_and_contents_if_asked(
    autojump_clock: MockClock,
) -> None:
    async with running_node(
        redact=lambda what, value: "***" if value == "secret" else value
    ) as node:
        pid = await node.spawn(Puppet)
        await node.suspend(pid)
        node.send(pid, 1)
        node.send(pid, "secret")
        node.send(pid, 2.5, priority=Priority.HIGH)

        types, contents = node.peek(pid), node.peek(pid, contents=True, limit=3)

        assert types == [
            Queued("system", "handle_message", node.pid, "float", None),
            Queued("main", "handle_message", node.pid, "int", None),
            Queued("main", "handle_message", node.pid, "str", None),
        ]
        assert [one.message for one in contents] == ["2.5", "1", "'***'"]
        assert node.peek(pid, limit=1) == types[:1]
        await node.resume(pid)
        assert await node.call(pid, "all") == [2.5, 1, "secret"]


async def test_peek_also_shows_the_mailboxes_of_meta_processes(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        alias = await node.call(pid, lambda me: me.spawn_meta(Slow(), stop_timeout=0.1))
        for message in (1, 2, 3):
            node.send(alias, message)
        await wait_all_tasks_blocked()

        assert [one.message_type for one in node.peek(alias)] == ["int", "int"]


async def test_peeking_at_an_unknown_name_is_refused(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        with pytest.raises(ProcessUnknownError):
            node.peek("nobody")
        with pytest.raises(BadInputError):
            node.peek("nobody", limit=-1)
    with pytest.raises(BadInputError, match="redact"):
        async with running_node(redact="no function"):
            pass
