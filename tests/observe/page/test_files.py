"""The files of the observer page: small, shipped, and without a way to parse text as HTML."""

import re
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from ergo_py._core.vocabulary.info import Phase
from ergo_py._core.vocabulary.states import State
from tests.observe.page.pictures import PICTURES, STORY

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = ROOT / "ergo_py" / "observe" / "page"
FILES = sorted(PAGE.iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
LARGEST = 152_400
"""Bytes of the page: 150,000, and 2,400 for the view of pipelines."""
PARSES_HTML = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function"
    r"|setHTML|srcdoc|createContextualFragment|https?://(?!www\.w3\.org/2000/svg)"
)
SHOTS = ROOT / "docs" / "pictures"


def test_the_whole_page_is_small() -> None:
    assert sum(path.stat().st_size for path in FILES) <= LARGEST


@pytest.mark.parametrize("builder", [WheelBuilder, SdistBuilder])
def test_wheel_and_sdist_have_every_file(builder: type[WheelBuilder] | type[SdistBuilder]) -> None:
    shipped = {file.relative_path for file in builder(str(ROOT)).recurse_included_files()}

    assert {str(path.relative_to(ROOT)) for path in FILES} <= shipped


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_neither_parses_text_as_html_nor_uses_the_network(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert PARSES_HTML.findall(text.replace("http://www.w3.org/2000/svg", "")) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_imports_files_of_the_page_only(path: Path) -> None:
    imported = re.findall(r'from "([^"]+)"', path.read_text(encoding="utf-8"))

    assert {name for name in imported if not (PAGE / name).is_file()} == set()


def test_the_page_has_the_words_of_the_kernel_for_the_states_of_processes() -> None:
    known = {"suspended", *(each.value for each in (*State, *Phase))}
    styles = (PAGE / "page.css").read_text(encoding="utf-8")
    text = "".join(path.read_text(encoding="utf-8") for path in SCRIPTS)
    compared = re.findall(r'\brow\.state === "([^"]+)"', text)
    for listed in re.findall(r"\[([^\]]+)\]\.includes\(row\.(?:state|phase)\)", text):
        compared += re.findall(r'"([^"]+)"', listed)

    assert {"sleep", "suspended", "failed"} <= {*compared} <= known
    assert {*re.findall(r"\.s-(\w+)", styles)} <= {word.replace(" ", "") for word in known}


def test_each_picture_of_the_page_is_taken_by_make_screenshots_and_shown() -> None:
    taken = {f"observe-{name}.webp" for name in PICTURES}
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)

    assert {path.name for path in SHOTS.glob("observe-*")} == taken
    assert set(re.findall(r"pictures/(observe-[\w-]+\.webp)", text)) == taken


def test_the_picture_of_a_world_is_taken_of_the_story_on_its_page() -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")

    assert f"--plan '{STORY}'" in page
