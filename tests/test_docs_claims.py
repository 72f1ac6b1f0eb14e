"""No page says that a thing is missing which exists by now."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts),
]
DENIALS = [
    ("ergo_py.observe.Observe", r"\bno web page\b|\bfrom a terminal only\b"),
    ("ergo_py.cluster.Cluster.group", r"`pg`.*\| on a single node \|"),
    ("ergo_py.network.NATS", r"\bon (?:a single|one) machine only\b|\bnot between machines\b"),
    ("ergo_py.entities.Entity", r"\bno persistence\b|\bstate is lost with a process;"),
    ("ergo_py.pipelines.Pipeline", r"\bno (?:bridge to|client for) (?:a )?brokers?\b"),
    ("ergo_py.devices.Serial", r"\bno bridge to serial\b"),
    (
        "ergo_py.Supervisor.upgrade_child",
        r"\bno code upgrades?\b|\bhot code loading.*\| none",
    ),
    ("ergo_py.testing.World", r"\bno simulation\b"),
    ("ergo_py.web.WebServer", r"\bno (?:HTTP|web) server\b"),
]
"""A public name, and the sentences which are wrong as long as the name exists."""


def exists(name: str) -> bool:
    """Whether a public name can be reached."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part, None)
        return found is not None
    return False


@pytest.mark.parametrize("name, denial", DENIALS, ids=[name for name, _ in DENIALS])
def test_no_page_denies_a_public_name(name: str, denial: str) -> None:
    assert exists(name), f"{name} is gone: then its sentences may come back"
    wrong = [
        f"{page.relative_to(ROOT)}: {match[0]}"
        for page in PAGES
        for match in re.finditer(denial, page.read_text(encoding="utf-8"))
    ]
    assert wrong == []
