from datetime import UTC, datetime

import trio
from trio.testing import MockClock

from ergo_py import Actor, Cron, Job, Scheduler, ask, open_node


async def backup(kind: str) -> None:
    print("backup:", kind)
    await trio.sleep(90)  # longer than a minute


class Collector(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        print("collector:", message)


JOBS = [
    Job("backup", Cron("30 * * * * *"), backup, ("full",), overlap=Job.Overlap.SKIP, timeout=600),
    Job(
        "tick",
        Cron("0 9 * * mon-fri", timezone="UTC"),
        to="collector",
        message="good morning",
        missed=Job.MissedRuns.SKIP,
    ),
]


async def main() -> None:
    async with open_node(log_level="off", watchdog=None) as node:
        await node.spawn(Collector, name="collector")
        monday = datetime(2026, 3, 2, 8, 57, tzinfo=UTC)
        await node.spawn(Scheduler.spec(JOBS, start=monday), name="schedule")
        await trio.sleep(200)  # virtual time: the program takes no time at all
        for job in await node.call("schedule", ask(Scheduler.jobs)):
            print(f"{job.name}: {job.runs} runs, {job.skipped} skipped, next {job.next_run}")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0.02))
