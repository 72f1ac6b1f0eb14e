"""Reading the pages of the documentation."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Block", "blocks"]


@dataclass(frozen=True)
class Block:
    """A fenced block: the text behind its opening fence, its content, and the comment just above
    it, if any.
    """

    info: str
    text: str
    mark: str


def blocks(page: str) -> Iterator[Block]:
    """All fenced blocks of a page, indented blocks too."""
    fenced = re.compile(
        r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)\n"
        r"(?P<text>.*?)^(?P=indent)(?P=fence)$",
        re.MULTILINE | re.DOTALL,
    )
    for found in fenced.finditer(page):
        yield Block(found["info"].strip(), found["text"], found["mark"] or "")
