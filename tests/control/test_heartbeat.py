"""Whether the loop moves, as seen from another thread."""

import threading
import time

from ergo_py._core.runtime.bridge import stack_of
from ergo_py.control.heartbeat import Heartbeat
from tests.control.rig import in_thread
from tests.support import router_of, running_node


async def test_a_loop_that_moves_is_not_reported_as_blocked() -> None:
    async with running_node() as node:
        heart = Heartbeat(node)

        def look() -> object:
            heart.ask()
            # All jobs that were handed over before have been done when this returns.
            router_of(node).bridge.run(lambda: None)
            time.sleep(0.02)
            return heart.blocked_report(0.01)

        assert await in_thread(look) is None


async def test_the_report_of_a_blocked_loop_shows_its_stack() -> None:
    async with running_node() as node:
        heart, reports = Heartbeat(node), []
        seen, loop = threading.Event(), threading.get_ident()

        def look() -> None:
            while "seen.wait(20)" not in stack_of(loop):
                time.sleep(0.001)
            heart.ask()
            reports.append(heart.blocked_report(10))
            time.sleep(0.05)
            reports.append(heart.blocked_report(0.01))
            seen.set()

        thread = threading.Thread(target=look)
        thread.start()
        # Here the loop is blocked, by this very test.
        seen.wait(20)
        thread.join()

        too_early, report = reports
        assert too_early is None
        assert report is not None
        assert report.process is None
        assert report.seconds >= 0.05
        assert "seen.wait(20)" in report.stack


async def test_a_stopped_node_is_not_reported_as_blocked() -> None:
    async with running_node() as node:
        heart = Heartbeat(node)

    heart.ask()

    assert heart.blocked_report(0.0) is None
