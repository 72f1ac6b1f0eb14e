"""Links and pictures of the pages lead somewhere on a forge, which shows the files as they are,
makes the names of headings in its own way, and removes raw HTML. No table begins with an empty row.
"""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / ".github").glob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
]
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


class Rendered(HTMLParser):
    """A page as a forge shows it: the anchors of its headings, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: dict[str, None] = {}
        self.references: list[str] = []
        self.raw: list[str] = []
        """Raw HTML, which a forge removes or changes. Readers see no comment."""
        self._heading: str | None = None
        tokens = MARKDOWN.parse(text)
        self.feed(MARKDOWN.renderer.render(tokens, MARKDOWN.options, {}))
        for token in tokens:
            for part in (token, *(token.children or ())):
                if part.type.startswith("html_") and COMMENT.sub("", part.content).strip():
                    self.raw.append(part.content.strip())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if re.fullmatch("h[1-6]", tag):
            self._heading = ""
        self.references += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        if self._heading is not None:
            self._heading += data

    def handle_endtag(self, tag: str) -> None:
        if self._heading is not None and re.fullmatch("h[1-6]", tag):
            name = re.sub(r"[^\w\- ]", "", self._heading.strip().lower()).replace(" ", "-")
            copies = (f"{name}-{number}" if number else name for number in range(1000))
            self.anchors[next(each for each in copies if each not in self.anchors)] = None
            self._heading = None


@cache
def rendered(page: Path) -> Rendered:
    return Rendered(page.read_text(encoding="utf-8"))


def broken(page: Path, shown: Rendered) -> list[str]:
    """The links and pictures of a page that lead nowhere."""
    return [each for each in shown.references if not leads_somewhere(page, shown, each)]


def leads_somewhere(page: Path, shown: Rendered, reference: str) -> bool:
    parts = urlsplit(reference)
    if parts.scheme or parts.netloc:
        return parts.scheme in ("http", "https", "mailto")
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return False
    there = shown if target == page else rendered(target) if target.suffix == ".md" else None
    return not parts.fragment or (there is not None and unquote(parts.fragment) in there.anchors)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_on_a_forge_has_no_broken_link_and_no_raw_html(page: Path) -> None:
    shown = rendered(page)

    assert broken(page, shown) == []
    assert shown.raw == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_table_has_an_empty_head(page: Path) -> None:
    heads = re.findall(r"(?m)^(\|.*\|) *\n\|[ :|-]+\| *$", page.read_text(encoding="utf-8"))

    assert [head for head in heads if not head.strip("| ")] == []


def test_pages_of_the_site_link_no_page_outside_of_it() -> None:
    """Sphinx refuses such a link; it copies a file of another kind into the site."""
    site = ROOT / "docs"
    outside = [
        f"{page.relative_to(ROOT)}: {each}"
        for page in PAGES
        if page.is_relative_to(site) and page.stem != "changelog"  # docs/conf.py replaces its text
        for each in rendered(page).references
        if urlsplit(each).path.endswith(".md")
        and not (page.parent / urlsplit(each).path).resolve().is_relative_to(site)
        and not urlsplit(each).scheme
    ]

    assert outside == []


def test_a_link_or_a_picture_that_leads_nowhere_is_noticed() -> None:
    bad = [
        "docs/nowhere.md",
        "docs/index.md#nowhere",
        "../outside.md",
        "#twice-2",
        "ftp://example.org/x",
        "Makefile#help",
        "docs/nowhere.png",
    ]
    good = [
        "docs/index.md#where-to-go",
        "#trios-from_thread--run",
        "#twice-1",
        "#underlined",
        "https://example.org",
        "Makefile",
        "docs/first-picture.svg",
    ]
    text = (
        "# [trio's](docs) `from_thread` & *run*\n\n## Twice\n\n## Twice\n\nUnderlined\n===\n\n"
        "```\n# No heading\n[no link](no)\n```\n`[no link](no)` <!-- [no link](no) -->\n\n"
        "| a | table |\n|---|---|\n| [here][] | ~~[there](<docs/nowhere.md>)~~ |\n\n"
        + "".join(f"![]({each})" if "g" in each[-3:] else f"[x]({each})" for each in good)
        + "".join(f"[x]({each})" for each in bad)
        + "\n\n[here]: docs/index.md\n"
    )

    shown = Rendered(text)

    assert broken(ROOT / "README.md", shown) == ["docs/nowhere.md", *bad]
    assert shown.references[:3] == ["docs", "docs/index.md", "docs/nowhere.md"]


def test_raw_html_is_noticed_and_a_comment_is_not() -> None:
    shown = Rendered("<!-- a\ncomment -->\n\n<div align=center>\n\na <b>word</b> <!-- b -->\n")

    assert shown.raw == ["<div align=center>", "<b>", "</b>"]
