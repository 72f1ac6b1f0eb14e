"""The observer page in a real browser: by mouse, by keyboard, on a phone, in the dark."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from tests.observe.browser import Tab, open_tab
from tests.observe.page.scene import Scene
from tests.observe.page.stage import Stage, staged

VIEWS = [
    *("overview", "processes", "tree", "applications", "waits", "flow", "threads", "profile"),
    *("crashes", "letters", "events", "log", "process/3", "process/3/near", "process/3/mailbox"),
    *("process/3/inspect", "process/3/trace", "process/3/profile"),
    *("entities", "entities/Account", "entities/Account/ada-003", "pipelines"),
]
FITS = "['html', '.main'].every(s => document.querySelector(s).scrollWidth <= innerWidth)"
ROWS = "document.querySelectorAll('.tr.row:not([hidden]):not(.pending)').length"


@asynccontextmanager
async def opened(
    devtools: str, stage: Stage, view: str = "overview", *, width: int = 1440, height: int = 900
) -> AsyncIterator[Tab]:
    """The page at a view, with its first figures."""
    name = view.replace("/", "-")
    async with open_tab(devtools, width=width, height=height, name=name) as tab:
        await tab.open(f"{stage.url}#token={stage.token}")
        await tab.until("page.store.sample")
        await show(tab, view)
        yield tab


async def show(tab: Tab, view: str) -> None:
    """Go to a view, and wait until it has been drawn."""
    await tab.read(f"page.go({view!r})")
    await tab.until(f"location.hash === '#/{view}' && page.view && !page.drawing")
    await tab.until("document.querySelector('.view h1').innerText")


async def test_ten_thousand_processes_scroll_sort_and_filter_by_keyboard(devtools: str) -> None:
    async with staged(Scene(10_000)) as stage, opened(devtools, stage, "processes") as tab:
        await tab.until(f"{ROWS} > 15")
        await tab.painted(".scroller", 0.02)
        assert (await tab.read("document.querySelectorAll('.tr.row').length")) < 80

        await tab.read("document.querySelector('.scroller').focus()")
        await tab.key("End")
        await tab.until(
            f"document.querySelector('.tr.row.active')?.ariaRowIndex == 10001 && {ROWS} > 15"
        )
        await tab.painted(".scroller", 0.02)
        await tab.key("ArrowLeft")
        await tab.until(
            "document.querySelector('[aria-sort=descending], [aria-sort=ascending]')"
            ".innerText.includes('State')"
        )

        await tab.key("/")
        await tab.type("Database")
        await tab.until(f"{ROWS} === 1")
        await tab.painted(".scroller", 0.005)
        await tab.has("1 of 10,000", ".about")
        await tab.key("ArrowDown")
        await tab.key("ArrowDown")
        await tab.key("Enter")
        await tab.until("location.hash === '#/process/5'")
        await tab.has("Bound of the mailbox")


async def test_a_blocked_loop_is_named_with_its_line_in_every_view(devtools: str) -> None:
    async with staged(Scene(30)) as stage, opened(devtools, stage) as tab:
        assert await tab.read("document.querySelector('.alarm-box').hidden")
        stage.scenes["shop@localhost"].blocked = True
        stage.tick()

        await tab.has("The loop has been blocked for 4.2 s by store", ".alarm-box")
        await tab.has("shop/store.py:41 in save", ".alarm-box")
        await tab.until("document.title.startsWith('BLOCKED')")
        await show(tab, "log")
        await tab.has("payment refused <b>by</b> the bank")
        assert await tab.read("document.querySelector('main b')") is None
        assert not await tab.read("document.querySelector('.alarm-box').hidden")

        stage.scenes["shop@localhost"].blocked = False
        stage.tick()
        await tab.until("document.querySelector('.alarm-box').hidden")


@pytest.mark.browser
@pytest.mark.parametrize(
    "size, width, colours",
    [
        (3, 1440, "dark"),
        (3, 360, "light"),
        (300, 1440, "light"),
        (300, 1440, "dark"),
        (300, 360, "light"),
        (300, 360, "dark"),
        (10_000, 1440, "light"),
        (10_000, 360, "dark"),
    ],
)
async def test_every_view_is_painted_fits_and_has_no_fault_of_accessibility(
    devtools: str, size: int, width: int, colours: str
) -> None:
    scene = Scene(size, rings=size > 9, blocked=size == 300, calm=size < 9)
    async with staged(scene) as stage, opened(devtools, stage, width=width) as tab:
        await tab.prefer(colours)
        for view in VIEWS:
            await show(tab, view)
            await tab.painted(".view", 0.002)
            is_checked = (size, width, colours) in [(300, 1440, "light"), (300, 360, "dark")]
            faults = await tab.axe() if is_checked else []
            assert (view, faults, await tab.read(FITS)) == (view, [], True)


@pytest.mark.browser
async def test_every_view_fits_at_a_zoom_of_200_percent(devtools: str) -> None:
    async with staged(Scene(300)) as stage, opened(devtools, stage) as tab:
        await tab.size(1280, 800, zoom=2)
        for view in VIEWS:
            await show(tab, view)
            assert (view, await tab.read(FITS)) == (view, True)


@pytest.mark.browser
async def test_the_tree_opens_and_closes_by_arrow_keys(devtools: str) -> None:
    async with staged(Scene(300)) as stage, opened(devtools, stage, "tree") as tab:
        await tab.has("backing off", ".tree")
        await tab.read("document.querySelector('.tree').focus()")
        active = "document.querySelector('.tree-line.active')"
        for _ in range(10):
            await tab.key("ArrowDown")
            if (await tab.read(f"{active}.innerText")).startswith("sessions"):
                break
        assert await tab.read(f"{active}.ariaExpanded") == "false"
        await tab.key("ArrowRight")
        await tab.until("document.querySelectorAll('.tree-line').length > 200")
        await tab.has("more", ".tree")
        await tab.key("ArrowRight")
        assert "Session" in await tab.read(f"{active}.innerText")
        await tab.key("ArrowLeft")
        await tab.key("ArrowLeft")
        await tab.until("document.querySelectorAll('.tree-line').length < 20")
        await tab.key("Enter")
        await tab.until("location.hash === '#/process/6'")


@pytest.mark.browser
async def test_the_tree_asks_for_levels_of_living_processes_only(devtools: str) -> None:
    async with staged(Scene(30)) as stage, opened(devtools, stage, "tree") as tab:
        await tab.has("store", ".tree")
        asked, living = await tab.read(
            "(() => { let order; for (let round = 0; round < 15; round += 1) {"
            " order = [...Array(20).keys()].map(i => 1000 + 20 * round + i);"
            " const rows = Object.fromEntries(order.map(id =>"
            " [id, {id, kind: 'process', behaviour: 'Session', state: 'sleep', children: 1}]));"
            " const patch = {levels: {0: {count: 20, order, rows}}};"
            " page.store.hear({push: 'view', node: page.store.key, view: 'children', whole: true,"
            " at: page.store.now, patch}); page.draw() }"
            " return [page.view.tree.levelsWanted, order] })()"
        )
        assert set(asked) <= {0, *living}
        assert len(asked) > 10


@pytest.mark.browser
async def test_the_keyboard_reaches_content_and_controls_with_a_visible_focus(
    devtools: str,
) -> None:
    async with staged(Scene(30)) as stage, opened(devtools, stage, "processes") as tab:
        await tab.key("Tab")
        assert await tab.read("document.activeElement.className") == "skip"
        await tab.key("Enter")
        assert await tab.read("document.activeElement.id") == "main"
        seen = []
        for _ in range(40):
            await tab.key("Tab")
            seen.append(
                await tab.read(
                    "(() => { const e = document.activeElement; const s = getComputedStyle(e);"
                    " return [e.tagName + '.' + e.className, s.outlineStyle !== 'none'] })()"
                )
            )
        assert all(visible for name, visible in seen if name != "BODY.")
        names = {name for name, _ in seen}
        assert {"INPUT.find", "DIV.scroller", "SELECT.nodes", "INPUT."} <= names


@pytest.mark.browser
async def test_the_focus_stays_when_figures_change_and_moves_with_the_view(devtools: str) -> None:
    async with staged(Scene(30)) as stage, opened(devtools, stage) as tab:
        await tab.until("document.querySelectorAll('.row-link').length > 5")
        await tab.read("document.querySelectorAll('.row-link')[2].focus()")
        stage.tick()
        await tab.until("page.store.now === page.store.to && !page.drawing")
        assert await tab.read("document.activeElement.className") == "row-link"
        await tab.key("Enter")
        await tab.until("location.hash.startsWith('#/process/')")
        await tab.until("document.activeElement.id === 'main'")


@pytest.mark.browser
async def test_a_process_shows_its_parts_and_is_killed_only_after_a_question(devtools: str) -> None:
    async with staged(Scene(300)) as stage, opened(devtools, stage, "process/3") as tab:
        await tab.has("store", "h1")
        await tab.click("#tab-near")
        await tab.has("Waits for", ".board")
        await tab.until("document.querySelectorAll('.board-lines .edge').length >= 5")
        await tab.click("#tab-mailbox")
        await tab.until("document.querySelectorAll('.answer tbody tr').length === 4")
        await tab.click("#tab-inspect")
        await tab.has("hits 0.92", ".answer")
        await tab.click("#tab-trace")
        await tab.click(".tool-line button")
        await tab.has("12 entries", ".tool-line")
        await tab.has("Save 4bf92f3577b34da6a3ce929d0e0e4736 00f067aa0ba902b7", ".trace")
        await tab.click("#tab-profile")
        await tab.click(".tool-line button")
        await tab.until("document.querySelectorAll('.frame').length > 10")

        await tab.click(".tools .danger")
        await tab.has("Kill: store?", "dialog")
        await tab.has("It has no children", "dialog")
        assert [asked for asked in stage.asked if asked["do"] == "kill"] == []
        await tab.click("dialog .danger")
        await tab.until("!document.querySelector('dialog').open")
        assert [asked["with"] for asked in stage.asked if asked["do"] == "kill"] == [{"to": 3}]


@pytest.mark.browser
async def test_entities_are_found_by_prefix_and_retried_only_after_a_question(
    devtools: str,
) -> None:
    scene = Scene(30)
    async with staged(scene) as stage, opened(devtools, stage, "entities") as tab:
        await tab.has("388", ".tiles")
        await tab.has("41", ".tiles")
        await tab.has("2 failures of the store", ".stack .alarm-box")
        await tab.click(".plain td a")
        await tab.until("document.querySelectorAll('.keys a').length === 50")
        await tab.read("page.view.more.click()")
        await tab.until("document.querySelectorAll('.keys a').length === 100")
        await tab.key("/")
        await tab.type("eve-05")
        await tab.until("document.querySelectorAll('.keys a').length === 10")
        assert await tab.read("page.view.more.hidden")
        await tab.click(".keys a")
        await tab.has('"amount": 1840', "pre")
        assert await tab.read("document.querySelector('main b')") is None

        await tab.click(".tool-line .danger")
        await tab.has("Retry Account eve-050?", "dialog")
        assert [asked for asked in stage.asked if asked["do"] == "retry"] == []
        await tab.click("dialog .danger")
        await tab.until("!document.querySelector('.tool-line .danger')")
        assert [asked["with"] for asked in stage.asked if asked["do"] == "retry"] == [
            {"kind": "Account", "key": "eve-050"}
        ]

        await tab.do("Page.reload")
        await tab.until("document.querySelectorAll('.keys a').length === 50")
        await tab.has('"key": "eve-050"', "pre")


@pytest.mark.browser
async def test_pipelines_show_their_rates_their_steps_and_a_source_that_is_lost(
    devtools: str,
) -> None:
    async with staged(Scene(30)) as stage, opened(devtools, stage, "pipelines") as tab:
        await tab.has("1,205", ".tiles")
        await tab.has("at most 2,500", ".tiles")
        await tab.has("500 of 500", ".plain")
        await tab.has("Waiting", ".plain")
        await tab.has("73", ".plain")
        await tab.has("the source of invoices. OSError: <b>refused</b>", ".stack .alarm-box")
        steps = (
            "[...document.querySelectorAll('[aria-label=Steps] tbody tr')].map(r => r.innerText)"
        )
        assert (await tab.read(steps))[1].split() == ["orders", "Insert", "1", "388", "58"]
        assert await tab.read("document.querySelector('.plain td a').hash") == "#/process/14"


@pytest.mark.browser
async def test_without_the_permission_nothing_offers_to_act(devtools: str) -> None:
    async with staged(Scene(30)) as stage:
        stage.permit = ["look"]
        async with opened(devtools, stage, "process/3") as tab:
            await tab.has("Facts")
            assert await tab.read("document.querySelectorAll('.danger').length") == 0
            await show(tab, "entities/Account/ada-003")
            await tab.has('"parked": [', "pre")
            assert await tab.read("document.querySelectorAll('.danger').length") == 0


@pytest.mark.browser
async def test_the_slider_shows_a_moment_of_the_past_and_goes_back_to_now(devtools: str) -> None:
    async with staged(Scene(300)) as stage, opened(devtools, stage) as tab:
        await tab.until("!document.querySelector('#time').hidden")
        await tab.read("document.querySelector('#time input').focus()")
        await tab.key("Home")
        await tab.has("At 10:20:00", ".top")
        await tab.key("PageUp")
        await tab.until("page.store.past.at > page.store.from + 20")
        await show(tab, "processes")
        await tab.has("recorded: 60 rows", ".about")
        stage.tick()
        await tab.click(".live-button")
        await tab.has("Live", ".top")
        await tab.has("messages a second", ".about")


PAST = "page.store.columns.at.length > 600"
PIECES = "[...document.querySelectorAll('.chart-line')].map(l => l.outerHTML.match(/M/g).length)"
UNKNOWN = "\N{EN DASH}"
AREAS = PIECES.replace("-line", "-area").replace("/M/", "/Z/")


@pytest.mark.browser
async def test_lines_have_a_gap_where_no_page_was_open(devtools: str) -> None:
    async with staged(Scene(30)) as stage, opened(devtools, stage) as tab:
        await tab.until(PAST)
        for seconds, pieces in ((3, 1), (3.5, 2), (1, 2), (60, 3)):
            stage.tick(seconds)
            now = next(iter(stage.scenes.values())).now
            await tab.until(f"page.store.to === {now} && !page.drawing")
            assert await tab.read(PIECES) == await tab.read(AREAS) == [pieces] * 5


@pytest.mark.browser
async def test_the_first_sample_of_a_page_has_no_rates(devtools: str) -> None:
    scene = Scene(30)
    async with staged(scene) as stage, opened(devtools, stage) as tab:
        shown = "[...document.querySelectorAll('.tile-value, .chart-value')].map(e => e.innerText)"
        await tab.until(PAST)
        scene.first = True
        stage.tick()
        await tab.until(f"page.store.to === {scene.now} && !page.drawing")
        values = await tab.read(shown)
        assert [number for number, text in enumerate(values) if text == UNKNOWN] == [1, 4, 6, 9]
        scene.first = False
        stage.tick()
        await tab.until(f"page.store.to === {scene.now} && !page.drawing")
        assert UNKNOWN not in await tab.read(shown)
        # Rates and the processor's load have a gap; the timeline shows rates.
        assert await tab.read(PIECES) == [2, 1, 1, 2, 2]


@pytest.mark.browser
@pytest.mark.parametrize("calm", [False, True])
async def test_no_caption_is_cut_at_1440_pixels(devtools: str, *, calm: bool) -> None:
    async with staged(Scene(10_000, calm=calm)) as stage, opened(devtools, stage) as tab:
        await tab.has("991.2k handled", ".tiles")
        cut = "document.querySelectorAll('.tile-note, .tile-label, figcaption span')"
        assert (
            await tab.read(
                f"[...{cut}].filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"
            )
            == []
        )


@pytest.mark.browser
async def test_a_recording_is_shown_without_a_node(devtools: str) -> None:
    async with staged(Scene(300), replay="shop.ergo") as stage, opened(devtools, stage) as tab:
        await tab.has("Recording at", ".top")
        assert await tab.read("document.querySelector('.live-button').hidden")
        await show(tab, "waits")
        await tab.has("Chains")
        await show(tab, "process/3/inspect")
        await tab.has("Only in the present")


@pytest.mark.browser
async def test_a_ring_of_waits_is_drawn_in_red_with_its_members(devtools: str) -> None:
    async with staged(Scene(300, rings=True)) as stage, opened(devtools, stage, "waits") as tab:
        await tab.has("A ring of 3: none of them can go on", ".ring")
        await tab.has("billing waits for metrics (Charge)", ".ring")
        colour = await tab.read("getComputedStyle(document.querySelector('.ring-line')).stroke")
        assert colour == await tab.read(
            "getComputedStyle(document.querySelector('.ring h2')).color"
        )


@pytest.mark.browser
async def test_flow_moves_as_dots_or_is_written_as_numbers_only(devtools: str) -> None:
    async with staged(Scene(12)) as stage, opened(devtools, stage, "flow") as tab:
        await tab.click(".tools button")
        await tab.until("document.querySelectorAll('.flow-dot').length > 5")
        await tab.has("store", ".board")
        await tab.prefer("light", "reduce")
        await tab.click(".tools button")
        await tab.until("document.querySelectorAll('.flow-dot').length === 0")
        await tab.until(
            "[...document.querySelectorAll('.edge-label')].some(l => l.textContent === '152/s')"
        )


@pytest.mark.browser
async def test_a_wrong_token_is_asked_for_and_the_address_hides_it(devtools: str) -> None:
    async with staged(Scene(30)) as stage, open_tab(devtools, name="token") as tab:
        await tab.open(f"{stage.url}#token=wrong")
        await tab.has("This page needs its token")
        assert "wrong" not in await tab.read("location.href")
        await tab.read("document.querySelector('#token').focus()")
        await tab.type(f"{stage.url}#token=right")
        await tab.key("Enter")
        await tab.has("Busiest processes")
        assert await tab.read("document.cookie") == ""


@pytest.mark.browser
async def test_several_nodes_can_be_chosen_and_a_lost_connection_comes_back(devtools: str) -> None:
    relay = Scene(12, name="relay@localhost")
    async with staged(Scene(30), relay) as stage, opened(devtools, stage) as tab:
        await tab.has("25", ".tile-value")
        await tab.read(
            "(() => { const s = document.querySelector('.nodes'); s.value = 'relay@localhost';"
            " s.dispatchEvent(new Event('change')) })()"
        )
        await tab.until("document.title.startsWith('relay@localhost')")
        await tab.until("page.store.sample?.processes === 11")
        await tab.read("page.store.link.socket.close()")
        await tab.until("page.store.status !== 'open'")
        await tab.until("page.store.status === 'open' && page.store.sample?.processes === 11")
        assert len(stage.talks) == 1


@pytest.mark.browser
async def test_a_hidden_page_watches_nothing(devtools: str) -> None:
    async with staged(Scene(30)) as stage, opened(devtools, stage) as tab:
        await tab.read(
            "(() => { Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
            " document.dispatchEvent(new Event('visibilitychange')) })()"
        )
        await tab.until("page.store.sent.endsWith('{}]')")
        with trio.fail_after(30):
            while stage.asked[-1].get("with") != {"views": {}}:  # noqa: ASYNC110 - on its way
                await trio.sleep(0.01)
        await tab.read(
            "(() => { delete document.hidden;"
            " document.dispatchEvent(new Event('visibilitychange')) })()"
        )
        await tab.until("page.store.sent.includes('sample')")
