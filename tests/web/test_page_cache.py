"""Files that the operating system has in memory: which are opened and read without blocking."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

import pytest

from ergo_py.web.mounts import page_cache
from ergo_py.web.mounts.page_cache import open_cached, read_cached

TEXT = b"text" * 3_000


def opened(root: Path, path: str) -> int:
    """Open a file. The operating system may refuse at any moment, such as while another program
    renames a directory: then it is asked again.
    """
    for _ in range(10_000):
        try:
            return open_cached(str(root), path)
        except BlockingIOError:
            continue
        except OSError as error:
            pytest.skip(f"this operating system opens no file without blocking: {error}")
    pytest.skip("the operating system never has the path in memory")


def test_a_file_in_memory_is_opened_and_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(TEXT)
    fd = opened(tmp_path, "sub/a")
    try:
        assert not os.get_inheritable(fd)
        for begin, end in ((0, len(TEXT)), (5, 10), (len(TEXT) - 3, len(TEXT) + 9)):
            # A page may leave the memory at any moment, and some file systems never read so.
            assert read_cached(fd, begin, end) in (TEXT[begin:end], b"")
        assert read_cached(fd, len(TEXT), len(TEXT) + 1) == b""
        assert read_cached(fd, 7, 7) == b""
    finally:
        os.close(fd)


@pytest.mark.parametrize("path", ["link", "linked/a", "up/a", "../outside", "sub/../a", "missing"])
def test_no_link_is_followed_and_no_path_leaves_the_directory(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a").write_bytes(TEXT)
    (tmp_path / "outside").write_bytes(TEXT)
    (root / "link").symlink_to("sub/a")
    (root / "linked").symlink_to("sub")
    (root / "up").symlink_to(tmp_path)
    (tmp_path / "a").write_bytes(TEXT)

    # From the second look on, the operating system has links in memory, too.
    for _ in range(3):
        with suppress(FileNotFoundError):
            (root / path).read_bytes()
        with pytest.raises(OSError, match=r"\[Errno"):
            os.close(open_cached(str(root), path))


def test_a_part_that_is_not_in_memory_is_left_to_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    asked: list[int] = []

    def preadv(_fd: int, buffers: list[memoryview], begin: int, flags: int) -> int:
        asked.append(flags)
        if begin:
            raise BlockingIOError
        buffers[0][:3] = b"tex"
        return 3

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)

    assert read_cached(0, 0, 100) == b"tex"
    assert read_cached(0, 1, 100) == b""
    assert asked == [8, 8]


@pytest.mark.parametrize("lacking", ["such reads", "a C library with system calls"])
def test_an_operating_system_without_a_part_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    page_cache._calls.cache_clear()
    if lacking == "such reads":
        monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    else:
        monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)
        monkeypatch.setattr(ctypes, "PyDLL", lambda *_, **_options: object())
    try:
        with pytest.raises(PermissionError):
            open_cached(str(tmp_path), "a")
    finally:
        page_cache._calls.cache_clear()
