"""The pictures of the observer page in README and documentation.

`python -m benchmarks screenshots` runs this module: Chromium shows a made-up node, which looks the
same each time, in light and in dark, and the pictures go to ``docs/pictures``.
"""

import sys
from dataclasses import dataclass

import trio

from tests.observe.browser import ROOT, Tab, open_tab, start_chromium
from tests.observe.page.scene import Scene
from tests.observe.page.stage import staged

__all__ = ["PICTURES", "Shot"]

FOLDER = ROOT / "docs" / "pictures"


@dataclass(frozen=True)
class Shot:
    """A view of the page at a moment."""

    view: str
    scene: Scene
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


async def main() -> None:
    with start_chromium() as devtools:
        for name, shot in PICTURES.items():
            async with staged(shot.scene) as stage, open_tab(devtools, name=name) as tab:
                await tab.prefer(name.rpartition("-")[2])
                await tab.open(f"{stage.url}#token={stage.token}")
                await tab.until("page.store.sample && page.store.columns.at.length")
                path = FOLDER / f"observe-{name}.webp"
                path.write_bytes(await take(tab, shot))
                sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    trio.run(main)
