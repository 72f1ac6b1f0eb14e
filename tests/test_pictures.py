"""The pictures of terminals come from recordings of the programs, and from nothing else."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("pyte", reason="needs the package pyte")

from ergo_py.control.rendering import process_table
from tests.pages import blocks
from tests.pictures import FOLDER, PICTURES, Recording, draw, read, record_upgrade
from tests.shell.terminal import ROOT

SVG = "{http://www.w3.org/2000/svg}"
SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")
LABELS = {name: picture.label for name, picture in PICTURES.items()}


def printed(recording: Recording) -> str:
    """The text of a recording, without colours and the like."""
    return SEQUENCES.sub("", "".join(text for _, kind, text in recording.events if kind == "o"))


def masked(text: str) -> set[str]:
    """The lines of a text, without times, numbers and addresses, which differ from run to run. So
    does the guest who comes back first.
    """
    lines = (re.sub(r"[\d.]+", "#", line.strip()) for line in text.splitlines())
    return {re.sub(r"\b(?:ann|bob)\b", "guest", line) for line in lines} - {""}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_the_drawing_of_its_recording(name: str) -> None:
    drawn = draw(read(FOLDER / f"{name}.cast"), LABELS[name])

    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == drawn, (
        "run python -m benchmarks pictures"
    )


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_a_label_both_colour_schemes_and_no_animation_on_request(name: str) -> None:
    path = FOLDER / f"{name}.svg"
    text = path.read_text(encoding="utf-8")
    root = ElementTree.parse(path).getroot()
    background = root.find(f"{SVG}rect")

    assert root.get("aria-label") == LABELS[name]
    assert background is not None
    assert background.get("width") == root.get("width")
    assert text.partition("@media (prefers-color-scheme: dark)")[2].count("fill: #") >= 10
    assert "@media (prefers-reduced-motion: reduce)" in text


@pytest.mark.parametrize("name", PICTURES)
def test_all_texts_of_a_picture_are_inside_of_its_window(name: str) -> None:
    root = ElementTree.parse(FOLDER / f"{name}.svg").getroot()
    width = float(root.get("width", "0"))
    ends = [
        float(text.get("x", "0")) + float(text.get("textLength", "0"))
        for text in root.iter(f"{SVG}text")
        if text.get("textLength")
    ]

    assert len(ends) > read(FOLDER / f"{name}.cast").lines / 2
    assert max(ends) <= width


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_no_path_of_a_machine_and_fetches_nothing(name: str) -> None:
    for path in (FOLDER / f"{name}.svg", FOLDER / f"{name}.cast"):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")

        assert str(ROOT) not in text
        assert re.findall(r"/(?:home|root|tmp|usr|Users|work|var)/\S*", text) == []
        assert re.findall(r"https?://|@import|@font-face", text) == []


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_shown_on_its_page(name: str) -> None:
    page = (ROOT / PICTURES[name].page).read_text(encoding="utf-8")

    assert f"![{LABELS[name]}](pictures/{name}.svg)" in page


def test_the_recording_of_the_demonstration_has_all_lines_that_it_prints() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.demo"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=200,
        env={"PATH": "", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(ROOT)},
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert masked(done.stdout) - masked(printed(read(FOLDER / "demo.cast"))) == set(), (
        "run python -m benchmarks pictures"
    )


def test_the_recording_of_top_shows_the_gateway_of_the_examples() -> None:
    recording = read(FOLDER / "top.cast")
    shown = (FOLDER / "top.svg").read_text(encoding="utf-8")
    source = (ROOT / "examples" / "gateway" / "gateway.py").read_text(encoding="utf-8")
    behaviours = set(re.findall(r"(?m)^class (\w+)\(", source)) & set(re.findall(r"\w+", shown))

    assert [text for _, kind, text in recording.events if kind == "m"] == re.findall(
        r"<title>(.*?)</title>", shown
    )
    assert {"Gateway", "Datagrams", "Decoder"} <= behaviours
    heads = process_table([], rates=True).heads
    assert all(re.search(rf">{re.escape(head)}\b", shown) or head in shown for head in heads)


def test_the_recording_of_upgrade_has_the_lines_of_the_command_and_of_the_page() -> None:
    page = (ROOT / PICTURES["upgrade"].page).read_text(encoding="utf-8")
    [transcript] = [
        block.text for block in blocks(page) if block.mark == "transcript: ergo upgrade shop"
    ]
    shown = printed(read(FOLDER / "upgrade.cast"))
    recorded, now = masked(shown), masked(printed(record_upgrade(guests=3)))
    [moved] = re.findall("connections handed over: (.*)", shown)

    progress = {"# s  connections under way: # of # handed over"}
    assert recorded == now | progress, "run python -m benchmarks pictures --only upgrade"
    assert masked(transcript) == {"$ ergo upgrade shop"} | recorded - progress
    assert f"Here {int(moved):,} connections are open" in page


def test_a_scrolling_picture_has_every_line_of_the_recording() -> None:
    events = ((0.0, "o", "one\r\n\x1b[1mtwo\x1b[0m\r\n"), (1.0, "o", "three  <&>\r\n"))

    drawn = draw(Recording("a title", 20, 2, events), "a label")

    root = ElementTree.fromstring(drawn)
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert texts == ["a title", "one", "two", "three  <&>"]
    assert root.get("{http://www.w3.org/XML/1998/namespace}space") == "preserve"
    assert 'class="default b">two' in drawn


def test_a_series_has_a_drawing_for_each_marker() -> None:
    events = (
        (0.0, "o", "\x1b[2;7mone\x1b[0m"),
        (1.0, "m", "first"),
        (2.0, "o", "\x1b[H\x1b[2Jtwo"),
        (3.0, "m", "second"),
    )

    drawn = draw(Recording("a title", 20, 2, events), "a label")

    frames = ElementTree.fromstring(drawn).findall(f"{SVG}g")
    assert ["".join(frame.itertext()).split() for frame in frames] == [
        ["first", "one"],
        ["second", "two"],
    ]
    # Reversed and faint.
    assert 'class="default"/>' in drawn
    assert 'class="page f">one' in drawn


def test_the_folder_holds_the_pictures_and_their_recordings() -> None:
    # Screenshots of the observer page have no recordings.
    found = {path.name for path in Path(FOLDER).iterdir() if path.suffix != ".webp"}

    assert found == {f"{name}.{kind}" for name in PICTURES for kind in ("svg", "cast")}
