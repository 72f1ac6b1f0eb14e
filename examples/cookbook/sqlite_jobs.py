"""Jobs in a file: a queue without a server, which survives the end of the program.

python sqlite_jobs.py [FILE]
"""

import sys
from tempfile import TemporaryDirectory

import trio

from ergo_py import Actor, Backoff, ChildSpec, Node, run
from ergo_py.pipelines import Item, Pipeline, Retry, Sink, SQLiteQueue, Stage


class Measure(Stage):
    """Handles a job. It has a thread, so it may block."""

    def handle(self, item: Item) -> object:
        width, height = item.body.split("x")  # an exception fails this job only
        return int(width) * int(height)


class Keep(Sink):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__(batch=50, within=0.05)
        self.sizes = sizes

    def handle_batch(self, items: list[Item]) -> None:
        self.sizes += [item.body for item in items]


class Complaints(Actor):
    """Is called with each job that was given up."""

    def __init__(self, told: trio.Event) -> None:
        self.told = told

    def handle_call(self, request: Item, caller: object) -> None:
        print("given up:", request.body)
        self.told.set()


def add_jobs(path: str, *jobs: str) -> None:
    """Any program may add jobs, in a transaction, while another handles them."""
    SQLiteQueue(path, "jobs").put(*jobs)


def jobs(path: str, sizes: list[int]) -> ChildSpec:
    pipeline = Pipeline.spec(
        SQLiteQueue(path, "jobs"),
        Measure(),
        Keep(sizes),
        retry=Retry(1, Backoff(0.01, 1.0)),
        poison="complaints",
    )
    return ChildSpec("jobs", pipeline)


async def main(node: Node) -> None:
    told, sizes = trio.Event(), list[int]()
    with TemporaryDirectory() as folder:
        path = sys.argv[1] if len(sys.argv) > 1 else f"{folder}/jobs.db"
        add_jobs(path, "640x480", "1920x1080", "large")
        await node.supervise([ChildSpec("complaints", Complaints, told), jobs(path, sizes)])
        await told.wait()
        await node.drain()  # as an orderly stop: it finishes the open jobs, and takes no more
    print("pixels:", sorted(sizes))


if __name__ == "__main__":
    run(main, name="jobs@localhost", log_level="error")
