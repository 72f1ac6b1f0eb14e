"""The observer page in Firefox, if it is installed."""

import pytest

from tests.observe.firefox import FIREFOX, open_firefox
from tests.observe.page.scene import Scene
from tests.observe.page.stage import staged


@pytest.mark.browser
@pytest.mark.skipif(FIREFOX is None, reason="Firefox is not installed")
async def test_the_page_works_in_firefox() -> None:
    async with staged(Scene(300, blocked=True, rings=True)) as stage, open_firefox() as tab:
        await tab.open(f"{stage.url}#token={stage.token}")
        await tab.has("The loop has been blocked for 3.2 s by store", ".alarm-box")
        await tab.until("document.querySelectorAll('.chart-line[d]').length >= 4")
        await tab.read("page.go('processes')")
        await tab.until("document.querySelectorAll('.tr.row:not(.pending)').length > 10")
        await tab.read("page.go('process/3/near')")
        await tab.until("document.querySelectorAll('.board-lines .edge').length >= 5")
        await tab.read("page.go('waits')")
        await tab.has("A ring of 3", ".ring")
        await tab.read("page.store.travel(page.store.from + 60)")
        await tab.has("At 10:21:00", ".top")
        assert await tab.read("getComputedStyle(document.body).display") == "grid"
