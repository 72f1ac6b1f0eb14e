"""The pictures agree with the code, can be read, and are shown."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ergo_py._core.vocabulary.states import TRANSITIONS
from ergo_py.info import State

DOCS = Path(__file__).parent.parent / "docs"
PICTURES = sorted(DOCS.glob("*.svg"))
DRAWINGS = sorted((DOCS / "performance").glob("*.svg"))


def test_the_picture_of_a_process_has_every_state_and_an_arrow_for_every_change() -> None:
    picture = (DOCS / "process-states.svg").read_text(encoding="utf-8")

    assert all(f">{state.name}<" in picture for state in State)
    assert picture.count('marker-end="url(#tip)"') == sum(map(len, TRANSITIONS.values()))


def test_the_picture_of_a_message_has_every_lane() -> None:
    picture = (DOCS / "message-flow.svg").read_text(encoding="utf-8")
    [promised] = re.findall(
        r"The lanes are (.*?)\.", (DOCS / "semantics.md").read_text(encoding="utf-8")
    )

    assert re.findall(r">([A-Z]+)<", picture) == re.findall(r"[A-Z]+", promised)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_a_picture_is_shown_on_a_page_and_has_a_label_and_a_background(picture: Path) -> None:
    pages = "".join(
        page.read_text(encoding="utf-8")
        for page in DOCS.rglob("*.md")
        if "_build" not in page.parts
    )
    root = ElementTree.parse(picture).getroot()
    background = root.find("{http://www.w3.org/2000/svg}rect")

    assert re.search(rf"!\[\S[^\]]+\]\((?:\.\./)?{picture.name}\)", pages)
    assert root.get("aria-label")
    assert background is not None
    assert background.get("width") == root.get("width")


@pytest.mark.parametrize("picture", [*PICTURES, *DRAWINGS], ids=lambda picture: picture.stem)
def test_a_picture_has_colours_for_light_and_dark_pages(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    dark = text.partition("@media (prefers-color-scheme: dark)")[2].partition("</style>")[0]

    assert dark.count("fill: #") >= 3
    assert "stroke: #" in dark


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.stem)
def test_all_texts_of_a_drawing_are_inside_of_it(drawing: Path) -> None:
    root = ElementTree.parse(drawing).getroot()
    width = float(root.get("width", "0"))
    texts = root.iter("{http://www.w3.org/2000/svg}text")

    ends = {
        str(text.text): float(text.get("x", "0")) + 6.6 * len(str(text.text))
        for text in texts
        if text.get("text-anchor") == "start"
    }

    assert {text: end for text, end in ends.items() if end > width} == {}
