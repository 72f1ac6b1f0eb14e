"""Rows about everything alive, read without the help of the loop."""

from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py.control.rows import list_rows, remember
from tests.control.rig import in_thread
from tests.support import Puppet, Recorder, running_node


async def test_rows_read_in_another_thread_are_the_same() -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder, name="recorder")
        node.send(pid, 1)
        await wait_all_tasks_blocked()

        (here,) = list_rows(node)
        (there,) = await in_thread(lambda: list_rows(node))

        assert {**here, "uptime": 0} == {**there, "uptime": 0}
        assert (here["name"], here["behaviour"], here["state"], here["messages"]) == (
            "recorder",
            "Recorder",
            "sleep",
            1,
        )


async def test_a_process_in_a_long_callback_is_shown_at_work(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        rows = []
        await node.call(pid, lambda me: rows.extend(list_rows(node)))

        assert [(row["callback"], row["message_type"], row["state"]) for row in rows] == [
            ("handle_call", "function", "running")
        ]
        assert rows[0]["time"] > 0


async def test_rate_and_load_of_a_process_compare_two_snapshots(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        before = remember(list_rows(node))
        node.send(pid, 1)
        await wait_all_tasks_blocked()

        (row,) = list_rows(node, before=before)

        assert row["rate"] > 0
        assert 0 <= row["load"] <= 1
