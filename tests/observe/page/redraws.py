"""What a second costs an open page: processor time of the browser's main thread.

`python -m benchmarks redraws` runs this module on a made-up node of 10,000 processes with ten
minutes of history. Chromium's own tracing measures the processor time, so a busy machine changes
the figures little.
"""

import sys
from collections import Counter

import trio

from tests.observe.browser import Tab, open_tab, start_chromium
from tests.observe.page.scene import Scene
from tests.observe.page.stage import Stage, staged

VIEWS = ("overview", "processes", "tree", "waits", "log")
SECONDS = 20
SHOWN = {
    "ThreadControllerImpl::RunTask": "all",
    "FunctionCall": "scripts",
    "Layout": "layout",
    "Paint": "paint",
}
"""The names of Chromium, and ours."""


async def measure(tab: Tab, stage: Stage, view: str) -> Counter[str]:
    """Milliseconds of the main thread by kind of work, for a second of the view."""
    await tab.read(f"page.go({view!r})")
    await tab.until(f"location.hash === '#/{view}' && !page.drawing")
    tab.traced, tab.has_traced = [], trio.Event()
    categories = "toplevel,devtools.timeline"
    await tab.do("Tracing.start", categories=categories, transferMode="ReportEvents")
    for _ in range(SECONDS):
        stage.tick()
        now = next(iter(stage.scenes.values())).now
        await tab.until(f"page.store.to === {now} && !page.drawing")
        await trio.sleep(0.1)
    await tab.do("Tracing.end")
    await tab.has_traced.wait()
    calls = Counter(
        (event["pid"], event["tid"]) for event in tab.traced if event["name"] == "FunctionCall"
    )
    [(main, _)] = calls.most_common(1)
    spent: Counter[str] = Counter()
    for event in tab.traced:
        if (event["pid"], event["tid"]) == main and event["name"] in SHOWN:
            spent[SHOWN[event["name"]]] += event.get("tdur", 0) / SECONDS
    return Counter({kind: round(time / 1000, 1) for kind, time in spent.items()})


async def main() -> None:
    with start_chromium() as devtools:
        async with staged(Scene(10_000)) as stage, open_tab(devtools, name="redraws") as tab:
            await tab.open(f"{stage.url}#token={stage.token}")
            await tab.until("page.store.sample && page.store.columns.at.length")
            for view in VIEWS:
                spent = await measure(tab, stage, view)
                parts = ", ".join(f"{kind} {spent[kind]}" for kind in list(SHOWN.values())[1:])
                sys.stdout.write(f"{view:10} {spent['all']:5.1f} ms a second: {parts}\n")


if __name__ == "__main__":
    trio.run(main)
