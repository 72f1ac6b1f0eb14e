"""Links between pages lead somewhere, also on a forge, which shows the files as they are and makes
the names of headings in its own way.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / ".github").glob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
]


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    text = re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path, text: str) -> list[str]:
    """The links of a text that lead nowhere."""
    found = []
    for link in re.findall(
        r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    ):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not link.startswith("http") and (
            not target.exists() or (anchor and anchor not in anchors(target))
        ):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_a_link_that_leads_nowhere_is_noticed() -> None:
    text = (
        "[a](docs/nowhere.md) [b](docs/index.md#nowhere) [c](docs/index.md#where-to-go) "
        "[d](#ergo_py)"
    )

    assert broken(ROOT / "README.md", text) == ["docs/nowhere.md", "docs/index.md#nowhere"]
