"""Jobs in a table of PostgreSQL, shared by any number of programs. Needs ``ergo_py[postgres]``.

python postgres_jobs.py "host=localhost dbname=shop"
"""

import json
import sys

import trio

from ergo_py import Backoff, ChildSpec, Node, run
from ergo_py.pipelines import Item, Pipeline, PostgresQueue, Retry, Stage


class Work(Stage):
    """Handles a job. Its result goes to the next queue."""

    def handle(self, item: Item) -> object:
        job = json.loads(item.body)
        return json.dumps({"order": job["order"], "total": job["price"] * job["count"]})


def jobs(conninfo: str) -> ChildSpec:
    pipeline = Pipeline.spec(
        PostgresQueue(conninfo, "jobs"),
        Work().times(4),
        PostgresQueue(conninfo, "results", batch=100, within=0.05),
        retry=Retry(3, Backoff(0.1, 5.0)),
        poison=PostgresQueue(conninfo, "dead-jobs"),
    )
    return ChildSpec("jobs", pipeline)


async def main(node: Node) -> None:
    await node.supervise([jobs(sys.argv[1])])
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="jobs@localhost")
