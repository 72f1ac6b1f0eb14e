"""How peers join the workloads, and how figures become pages and drawings. No peer needs to be
installed.
"""

import json
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("pykka", reason="needs the package pykka")
pytest.importorskip("janus", reason="needs the package janus")

from benchmarks import compare, harness, peers
from benchmarks import growing as growing_package
from benchmarks.harness import Case, Goal, Line, discover, evaluate, measure
from benchmarks.joining import guarded, join
from benchmarks.pages import GROUPS, goals, growth, publish
from benchmarks.pages import peers as peers_page
from benchmarks.plot import Dot, dots
from benchmarks.reasons import GOALS, GROWTH, LOSSES, Reason, why
from benchmarks.report import save
from benchmarks.workloads import nodes, redis, web
from tests.support import THOROUGH

DOCUMENTED = Path(__file__).parents[1] / "docs" / "performance"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def garbage_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "gc", SimpleNamespace(collect=int, freeze=int, unfreeze=int))


def package_of_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> ModuleType:
    """A package with modules of these texts."""
    name = f"peers_of_{tmp_path.name}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    for module, text in modules.items():
        (tmp_path / name / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return __import__(name)


def made_up(name: str = "tell, 1 to 1", line: str = "plain handler") -> Case:
    return Case(
        name=name,
        about="nothing",
        unit="µs",
        size=10,
        least=1,
        variants={
            "ergo": lambda _: {"cpu": 2.0},
            "trio": lambda _: {"cpu": 8.0},
            "floor": lambda _: {"cpu": 1.0},
        },
        lines=[
            Line(
                line,
                "ergo",
                goals=(Goal("G2", 0.5, "trio"), Goal("reach", 1.5, "floor", is_dream=True)),
            )
        ],
    )


def kept(cases: list[Case], tmp_path: Path) -> dict[str, Any]:
    """The kept figures of a run with these cases."""
    measured = measure(cases, 2, lambda case: case.size, lambda _: None)
    content: dict[str, Any] = json.loads(
        save(cases, measured, tmp_path / "results").read_text(encoding="utf-8")
    )
    return content


def test_a_peer_joins_only_the_cases_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = package_of_peers(
        tmp_path, monkeypatch, other="ADDS = {'tell, 1 to 1': {'other': lambda size: {'cpu': 3.0}}}"
    )

    joined = join([made_up(), made_up("another")], package=package)

    (case,) = joined.cases
    assert case.name == "tell, 1 to 1"
    assert list(case.variants) == ["ergo", "trio", "floor", "other"]
    assert case.variants["other"](1) == {"cpu": 3.0}


def test_a_peer_that_is_not_installed_is_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = package_of_peers(tmp_path, monkeypatch, other="import no_such_framework")

    joined = join([made_up()], package=package)

    assert joined.cases == []
    assert joined.absent == {"other": "No module named 'no_such_framework'"}


def test_a_peer_that_fails_gives_no_ratio_and_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "def fail(size):\n    raise OSError('out of luck')\n"
        "ADDS = {'tell, 1 to 1': {'other': fail}}"
    )
    joined = join([made_up()], package=package_of_peers(tmp_path, monkeypatch, other=text))

    measured = measure(joined.cases, 2, lambda case: case.size, lambda _: None)
    (row,) = evaluate(joined.cases[0], measured["tell, 1 to 1"])

    assert joined.failed == {"tell, 1 to 1: other": "OSError: out of luck"}
    assert row.ratios["other"] != row.ratios["other"]
    assert row.ratios["trio"] == 0.25


def test_a_peer_that_hangs_is_given_up() -> None:
    failed: dict[str, str] = {}

    def hang(_size: int) -> dict[str, float]:
        time.sleep(60)
        return {"cpu": 1.0}

    figures = guarded(hang, "case: other", failed, 0.05)(1)

    assert figures == {}
    assert failed == {"case: other": "TimeoutError: longer than 0.05 s"}


def test_the_peers_name_cases_that_exist() -> None:
    names = {case.name for case in discover()}

    joined = join(discover())

    assert {case.name for case in joined.cases} <= names
    assert {"tell, 1 to 1", "TCP echo, 64 bytes", "restart"} <= {case.name for case in joined.cases}


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in join(discover()).cases
        # The command `python -m benchmarks test-deep tests/test_benchmarks_pages.py` runs all.
        if case.name == "tell, 1 to 1" or (THOROUGH and case.name != "crowd of 100,000")
    ],
    ids=lambda case: case.name,
)
@pytest.mark.no_cover
def test_the_variants_of_installed_peers_run(case: Case) -> None:
    joined = join([case], limit=30.0)

    for name, variant in joined.cases[0].variants.items():
        if name not in case_of(case.name).variants:
            variant(case.least)

    assert joined.failed == {}


def case_of(name: str) -> Case:
    return next(case for case in discover() if case.name == name)


def test_the_page_shows_lines_that_exist() -> None:
    lines = {
        (case.name, line.name)
        for case in (*discover(), *nodes.KNOWN, *web.KNOWN)
        for line in case.lines
    }

    shown = {(row.case, row.line) for group in GROUPS for row in group.rows}

    assert shown <= lines


def test_reasons_are_given_for_cases_and_lines_that_exist() -> None:
    # The cases of Redis, NATS and the web are left out of CASES where a program is missing.
    lines = [
        (case.name, line.name)
        for case in (*discover(), *nodes.KNOWN, *redis.KNOWN, *web.KNOWN, *GROWING)
        for line in case.lines
    ]

    idle = [
        reason
        for reason in (*GOALS, *LOSSES, *GROWTH)
        if not any(reason.case in case and reason.line in line for case, line in lines)
    ]

    assert idle == []


def test_every_goal_has_a_reason_for_the_case_that_it_is_missed() -> None:
    wanted = [
        (case.name, line.name, goal.of)
        for case in discover()
        for line in case.lines
        for goal in line.goals
    ]

    unexplained = [goal for goal in wanted if not why(GOALS, *goal)]

    assert unexplained == []


@pytest.mark.parametrize("kind", ["peers", "growth", "goals", "profiles"])
def test_the_published_pages_are_made_from_the_figures_beside_them(
    kind: str, tmp_path: Path
) -> None:
    content = json.loads((DOCUMENTED / f"{kind}.json").read_text(encoding="utf-8"))

    made = publish(kind, content, tmp_path)

    assert {path.name: path.read_text(encoding="utf-8") for path in made} == {
        path.name: (DOCUMENTED / path.name).read_text(encoding="utf-8") for path in made
    }, "python -m benchmarks performance-page writes it anew"


def test_the_first_reason_that_fits_is_given() -> None:
    reasons = (
        Reason("tell", "of asyncio", of=("asyncio",)),
        Reason("tell", "of all"),
        Reason("call", "of calls"),
    )

    texts = [why(reasons, "tell, 1 to 1", "plain", of) for of in ("asyncio", "trio")]

    assert texts == ["of asyncio", "of all"]
    assert why(reasons, "spawn", "plain", "trio") == ""


def test_the_page_has_a_table_a_drawing_and_the_lost_comparisons(tmp_path: Path) -> None:
    content = kept([made_up()], tmp_path)

    made = peers_page(content)

    assert "| tell, 1 to 1 | 2 µs | **0.5×** | 4× |" in made["peers.part"]
    assert "| *tell, 1 to 1* 2× floor |" in made["peers.part"]
    assert "4.00×" in made["peers-messages.svg"]


@pytest.mark.parametrize("load,warns", [(0.4, False), (9.0, True)])
def test_the_page_mentions_a_busy_machine(tmp_path: Path, load: float, warns: bool) -> None:
    content = kept([made_up()], tmp_path) | {"load": [load], "processors": 2}

    page = goals(content)["goals.part"]

    assert ("The machine was busy" in page) is warns


def test_the_page_of_goals_shows_whether_each_goal_is_met(tmp_path: Path) -> None:
    content = kept([made_up()], tmp_path)

    page = goals(content)["goals.part"]

    to_be_reached, dreams = page.split("### Ambitions")
    assert "1 of 1 are met" in to_be_reached
    assert "0 of 1 are met" in dreams
    assert "| G2 | tell, 1 to 1: plain handler | 0.5 × trio | 0.25 | met |" in to_be_reached
    assert "| reach | tell, 1 to 1: plain handler | 1.5 × floor | 2 | **not met** |" in dreams


def test_a_published_page_can_be_made_again_from_the_figures_beside_it(tmp_path: Path) -> None:
    content = kept([made_up()], tmp_path)
    publish("peers", content, tmp_path / "page")
    page = (tmp_path / "page" / "peers.part").read_text(encoding="utf-8")

    status = compare.main(
        ["--from", str(tmp_path / "page" / "peers.json"), "--page", str(tmp_path / "again")]
    )

    assert status == 0
    assert (tmp_path / "again" / "peers.part").read_text(encoding="utf-8") == page


GROWING = discover(package=growing_package)


@pytest.mark.parametrize("case", GROWING, ids=lambda case: case.name)
@pytest.mark.no_cover
def test_a_growth_case_returns_all_figures_of_its_lines(case: Case) -> None:
    # The hundredfold work takes too long for a test: ten times as much stands for all.
    figures = case.variants["10×"](case.least)

    rows = evaluate(case, [dict.fromkeys(case.variants, figures)])

    assert [row.line for row in rows] == list(case.lines)
    assert all(row.ratios.keys() == {"1×", "10×"} for row in rows)


def test_the_page_about_growth_names_the_growing_costs(tmp_path: Path) -> None:
    case = Case(
        name="least loaded",
        about="",
        unit="µs",
        size=1,
        least=1,
        variants={
            "1×": lambda _: {"each": 2.0},
            "10×": lambda _: {"each": 4.0},
            "ergo 100×": lambda _: {"each": 20.0},
        },
        lines=[Line("message", "ergo 100×", figure="each", goals=(Goal("linear", 4.0, "1×"),))],
        reference="1×",
    )

    made = growth(kept([case], tmp_path))

    assert (
        "| least loaded: message | 2 µs | 2.00× | 10.00× | **grows.** The load"
        in made["growth.part"]
    )
    assert ElementTree.fromstring(made["growth.svg"]).findtext(f"{SVG}title")


def test_a_drawing_is_well_formed_and_has_a_dot_for_each_figure() -> None:
    rows = [("a < b", [Dot("trio", 2.0, 0.1), Dot("floor", 0.02)]), ("nothing", [])]

    drawing = ElementTree.fromstring(dots("Drawing & more", rows, ["trio", "floor"]))

    places = [float(circle.get("cx", "")) for circle in drawing.findall(f"{SVG}circle")]
    assert len(places) == 2 + 2
    assert places[2] > places[3]
    assert drawing.findtext(f"{SVG}title") == "Drawing & more"


def test_the_package_of_peers_has_the_expected_modules() -> None:
    found = {path.stem for path in Path(peers.__path__[0]).glob("*.py")} - {"__init__"}

    assert {
        "by_hand",
        "on_asyncio",
        "on_anyio",
        "with_pykka",
        "with_thespian",
        "with_xoscar",
    } <= found
