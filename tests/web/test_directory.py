"""Which file systems are local: a look at a file there does not wait for another machine."""

import os
from pathlib import Path

import pytest

from ergo_py.web import HTTPError
from ergo_py.web.mounts import directory
from ergo_py.web.mounts.directory import Directory

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
28 27 0:25 / /srv/shared rw,nosuid - nfs4 server:/export rw
29 27 0:26 / /srv/odd rw - fuse.sshfs host: rw
30 27 0:27 / /run rw - tmpfs tmpfs rw
odd
"""


@pytest.mark.parametrize(
    "device,is_local",
    [("254:0", True), ("0:27", True), ("0:25", False), ("0:26", False), ("9:9", False)],
)
def test_only_known_file_systems_of_this_machine_are_local(device: str, is_local: bool) -> None:
    assert directory.has_local_mount(MOUNTS.splitlines(), device) is is_local


def test_without_a_list_of_mounts_no_file_system_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", refuse)
    assert directory.is_local(0) is False


def test_files_leave_no_descriptor_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_cached(root: str, path: str) -> int:
        return os.open(f"{root}/{path}", os.O_RDONLY | os.O_NONBLOCK)

    monkeypatch.setattr(directory, "is_local", lambda device: True)
    monkeypatch.setattr(directory, "open_cached", open_cached)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text("x")
    (tmp_path / "sub" / "index.html.gz").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    files = Directory(str(tmp_path))
    spare = os.dup(0)
    os.close(spare)

    assert files.open(("sub",), takes_gzip=False, is_folder=False) is None
    for parts in [("missing",), ("pipe",), ("sub", "missing"), ("a" * 300,)]:
        with pytest.raises(HTTPError):
            files.open(parts, takes_gzip=True, is_folder=False)
    opened = files.open(("sub",), takes_gzip=True, is_folder=True)
    assert opened is not None
    opened.close()
    (tmp_path / "plain.gz").mkdir()
    (tmp_path / "plain").write_text("x")
    for parts in [
        ("sub",),
        ("pipe",),
        ("missing",),
        (".hidden",),
        ("plain",),
        ("",),
        ("a\0b",),
        (),
    ]:
        assert files.open_cached(parts, takes_gzip=True, is_folder=False) is None
    opened = files.open_cached(("sub",), takes_gzip=True, is_folder=True)
    assert opened is not None
    opened.close()

    # The lowest free descriptor is the same as before.
    again = os.dup(0)
    os.close(again)
    assert again == spare
