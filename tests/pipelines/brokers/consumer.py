"""`Consumer`: a program with a pipeline, for tests that kill it."""

import signal
import subprocess
import sys
from collections import defaultdict
from queue import SimpleQueue
from threading import Thread

__all__ = ["BOUND", "Consumer"]

BOUND = 50
"""The most items that its pipeline has open."""

PROGRAM = """
import sys
import trio
from ergo_py import Backoff, ChildSpec, run
from ergo_py import pipelines
from ergo_py.pipelines import Pipeline, Sink
from ergo_py.supervision import Budget

class Write(Sink):
    def handle_batch(self, items):
        lines = [f"{item.body.decode()} {item.redelivered:d}\\n" for item in items]
        sys.stdout.write("".join(lines))
        sys.stdout.flush()

async def main(node):
    plan = Pipeline.spec(
        eval(sys.argv[1], {name: getattr(pipelines, name) for name in sys.argv[1].split("(")[:1]}),
        Write(batch=10), most_unacknowledged=int(sys.argv[2]), reopen=Backoff(0.02, 0.2)
    )
    await node.supervise([ChildSpec("jobs", plan, budget=Budget(1000, 1.0))])
    while await trio.to_thread.run_sync(sys.stdin.readline):
        node.kill("jobs")

run(main, log_level="critical")
"""


class Consumer:
    """A program with a pipeline, which prints each item that its sink has got."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self.handled: defaultdict[bytes, list[int]] = defaultdict(list)
        """The ``redelivered`` of each item, as often as the sink got it."""

    def start(self) -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, self._source, str(BOUND)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            self._lines.put(line)

    def note(self) -> None:
        """Count the items that it has printed."""
        while not self._lines.empty():
            line = self._lines.get()
            if line.endswith(b"\n"):
                body, again = line.split()
                self.handled[body].append(int(again))

    def kill_pipeline(self) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(b"kill\n")
        self._program.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._program.send_signal(number)

    def kill(self) -> None:
        self._program.kill()
        self._program.wait()
        self._reader.join()
        for pipe in (self._program.stdin, self._program.stdout):
            assert pipe is not None
            pipe.close()
        self.note()
