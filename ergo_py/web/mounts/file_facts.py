"""`FileFacts`: a version of a file, and the fields of its responses."""

from functools import lru_cache
from mimetypes import guess_type
from typing import Final

from ..messages.responses import Response, http_date

__all__ = ["FileFacts", "file_facts"]

_PACKED: Final = {
    "gzip": "application/gzip",
    "bzip2": "application/x-bzip2",
    "xz": "application/x-xz",
    "compress": "application/x-compress",
    "br": "application/x-brotli",
}
"""The types of files that are compressed, by their encoding. A client that asks for such a file by
its name gets it as it is.
"""


class FileFacts:
    """A version of a file: its size and times, and the fields that tell them."""

    __slots__ = ("fields", "modified", "not_modified", "seconds", "size", "tag", "without_body")

    def __init__(self, size: int, nanoseconds: int, name: str, encoding: str, max_age: int) -> None:
        """``nanoseconds`` is when the file was modified; ``name`` tells the type; ``encoding`` is
        not empty if the file is a compressed form of the file that was asked for.
        """
        self.size: int = size
        self.seconds: int = nanoseconds // 1_000_000_000
        """When the file was modified."""
        self.modified: str = http_date(self.seconds)
        self.tag: str = f'"{nanoseconds:x}-{size:x}{"-gz" if encoding else ""}"'
        shared = [
            ("etag", self.tag),
            ("last-modified", self.modified),
            ("vary", "accept-encoding"),
            ("x-content-type-options", "nosniff"),
            ("cache-control", f"max-age={max_age}" if max_age else "no-cache"),
            ("accept-ranges", "bytes"),
        ]
        self.not_modified: Response = Response(304, b"", shared)
        self.fields: list[tuple[str, str]] = [("content-type", _type_of(name)), *shared]
        if encoding:
            self.fields.append(("content-encoding", encoding))
        self.without_body: Response = Response(200, b"", self.fields)
        """The response with the whole file, before the file is read."""


file_facts: Final = lru_cache(maxsize=1024)(FileFacts)
"""The facts of a version of a file. They follow from the arguments, and cost more than to read a
small file: so those of many files are kept.
"""


def _type_of(name: str) -> str:
    kind, encoding = guess_type(name)
    if encoding is not None:
        return _PACKED.get(encoding, "application/octet-stream")
    if kind is None:
        return "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
