"""The pictures of the observer page in README and documentation.

`python -m benchmarks screenshots` runs this module: Chromium shows a made-up node, or the recording
of a world, which look the same each time, in light and in dark. The pictures go to
``docs/pictures``.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import trio

from ergo_py.observe.history import read_recording
from ergo_py.observe.node_list import Plan as ServerPlan
from ergo_py.observe.world_recorder import WorldRecorder
from ergo_py.testing.world.plan import Plan
from examples.testing.test_orders import hasty_orders_survive
from tests.observe.browser import ROOT, Tab, open_tab, start_chromium
from tests.observe.page.scene import Scene
from tests.observe.page.stage import staged
from tests.observe.rig import TOKEN, serving

__all__ = ["PICTURES", "STORY", "Shot"]

FOLDER = ROOT / "docs" / "pictures"
STORY: Final = "seed=2 order=plain; 4 crash shop@world 1.5"
"""The plan of the world on the page about testing."""


@dataclass(frozen=True)
class Shot:
    """A view of the page at a moment."""

    view: str
    scene: Scene | None
    """The made-up node; None for the recording of a world."""
    ready: str
    """The condition under which the picture is complete."""
    press: str = ""
    """The button to press before."""
    width: int = 1280
    height: int = 800


ROWS = "document.querySelectorAll('.tr.row:not([hidden]):not(.pending)').length > 15"
PICTURES = {
    "overview-light": Shot("overview", Scene(300), "document.querySelector('.plain tbody tr')"),
    "overview-dark": Shot("overview", Scene(300), "document.querySelector('.plain tbody tr')"),
    "processes-light": Shot("processes", Scene(10_000), ROWS),
    "tree-dark": Shot("tree", Scene(300), "document.querySelectorAll('.tree-line').length > 8"),
    "blocked-light": Shot(
        "waits", Scene(300, blocked=True, rings=True), "document.querySelector('.ring')"
    ),
    "near-dark": Shot("process/3/near", Scene(300), "document.querySelector('.board-lines .edge')"),
    "flow-light": Shot("flow", Scene(12), "document.querySelector('.edge-label')", ".tools button"),
    "profile-dark": Shot(
        "profile", Scene(300), "document.querySelector('.frame')", ".tool-line button"
    ),
    "world-light": Shot("log", None, "document.querySelectorAll('.log li').length > 10"),
    "phone-dark": Shot("overview", Scene(300), "page.store.sample", width=360, height=720),
}
"""The pictures by their names, which end with the colours."""


async def take(tab: Tab, shot: Shot) -> bytes:
    """Show the view, and take its picture when nothing moves any more."""
    await tab.size(shot.width, shot.height)
    await tab.read(f"page.go({shot.view!r})")
    await tab.until(f"location.hash === '#/{shot.view}' && page.store.sample && !page.drawing")
    if shot.press:
        await tab.until("page.store.get('rows') || !document.querySelector('.v-flow')")
        await tab.click(shot.press)
    await tab.until(shot.ready)
    await tab.painted(".view")
    await tab.until("document.getAnimations().every(a => a.playState === 'finished')")
    return await tab.picture(kind="webp")


@asynccontextmanager
async def shown(scene: Scene | None, story: Path) -> AsyncIterator[str]:
    """The address of the page with a scene, or with the story of a world."""
    if scene is None:
        plan = ServerPlan(TOKEN, replay=story.name, recorded=read_recording(story))
        async with serving(plan) as url:
            yield url
    else:
        async with staged(scene) as stage:
            yield f"{stage.url}#token={stage.token}"


def record_world(story: Path) -> None:
    """Record the world of the page about testing."""
    recording = WorldRecorder()
    simulation = vars(hasty_orders_survive)["simulation"]
    simulation.watch(Plan.read(STORY), recording.look, is_drawn=False)
    recording.write(story)


async def main(story: Path) -> None:
    with start_chromium() as devtools:
        for name, shot in PICTURES.items():
            async with shown(shot.scene, story) as url, open_tab(devtools, name=name) as tab:
                await tab.prefer(name.rpartition("-")[2])
                await tab.open(url)
                await tab.until("page.store.sample && page.store.columns.at.length")
                path = FOLDER / f"observe-{name}.webp"
                path.write_bytes(await take(tab, shot))
                sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    with TemporaryDirectory() as directory:
        recorded = Path(directory) / "orders.ergo"
        record_world(recorded)  # not on the loop: a world has its own
        trio.run(main, recorded)
