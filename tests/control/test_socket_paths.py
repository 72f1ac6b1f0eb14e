"""The paths of control sockets, and the removal of sockets without a listener."""

import errno
import os
import socket
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from ergo_py.control.socket_paths import bind_socket, clean, directory, peer_user, sockets
from ergo_py.errors import ControlSocketError
from tests.support import replace_private


def test_the_directory_is_in_the_run_time_directory_or_among_the_temporary_files(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_runtime = directory(create=True)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(runtime_directory))
    in_temporary = directory(create=True)

    assert in_runtime == runtime_directory / "ergo"
    assert in_temporary == runtime_directory / f"ergo-{os.geteuid()}"
    for place in (in_runtime, in_temporary):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_directory_that_other_users_may_enter_or_a_symlink_is_refused(
    runtime_directory: Path,
) -> None:
    place = runtime_directory / "ergo"

    place.mkdir()
    place.chmod(0o750)
    with pytest.raises(ControlSocketError, match=r"may be entered by others \(mode 0750\)"):
        directory()
    place.rmdir()
    place.symlink_to(runtime_directory)
    with pytest.raises(ControlSocketError, match="is no directory"):
        directory(create=True)


def test_root_is_told_to_become_the_user_of_a_foreign_directory(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = runtime_directory / "ergo"
    place.mkdir(mode=0o700)
    found = os.lstat(place)
    owner = SimpleNamespace(st_mode=found.st_mode, st_uid=1234)
    # Only here: the directory is removed before all patches are.
    with monkeypatch.context() as patches:
        patches.setattr("os.lstat", lambda _place: owner)
        patches.setattr("os.geteuid", lambda: 0)
        with pytest.raises(
            ControlSocketError, match=r"you are user 0 \(write `sudo -u '#1234' …`\)"
        ):
            directory()


def test_the_error_about_a_foreign_directory_suggests_xdg_runtime_dir(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A directory for all users, and no run-time directory.
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(runtime_directory))
    mine = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: mine + 1)
    (runtime_directory / f"ergo-{mine + 1}").mkdir(mode=0o700)

    with pytest.raises(ControlSocketError) as refused:
        bind_socket("x@y")

    assert f"belongs to user {mine}, and you are user {mine + 1}" in str(refused.value)
    assert "set XDG_RUNTIME_DIR to a directory of your own, for the node and for `ergo`" in str(
        refused.value
    )


def test_a_long_temporary_directory_still_gives_a_short_socket_path(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("t" * 100)
    long.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(long))
    replace_private(monkeypatch, "short directory of control sockets", str(runtime_directory))

    listener, path = bind_socket("demo@localhost")

    assert path.parent == runtime_directory / f"ergo-{os.geteuid()}"
    assert [name for name, _, _ in sockets()] == ["demo@localhost"]
    listener.close()


def test_the_error_about_a_missing_directory_suggests_xdg_runtime_dir(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere/at/all")

    with pytest.raises(ControlSocketError, match="set XDG_RUNTIME_DIR"):
        bind_socket("x@y")


def test_the_umask_does_not_change_the_mode_of_the_directory(
    runtime_directory: Path,
) -> None:
    before = os.umask(0o777)
    try:
        listener, path = bind_socket("x@y")
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    listener.close()
    path.unlink()


def test_a_failed_clean_up_does_not_hide_the_first_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    directory(create=True)
    monkeypatch.setattr(os, "chmod", refuse)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(ControlSocketError, match="Permission denied"):
            bind_socket("x@y")


@pytest.mark.parametrize(
    "name", ["demo@localhost", "a b/c+d", "täst@höst", "x-12-13@y", "..", "+1"]
)
def test_the_socket_of_any_node_name_is_found_again(name: str) -> None:
    first, one = bind_socket(name)
    second, two = bind_socket(name)

    found = list(sockets())

    assert sorted(found) == sorted([(name, os.getpid(), one), (name, os.getpid(), two)])
    assert one.parent == two.parent == directory()
    for listener, path in ((first, one), (second, two)):
        listener.close()
        path.unlink()


def test_a_name_that_is_too_long_for_a_socket_is_refused() -> None:
    with pytest.raises(ControlSocketError, match="shorter name"):
        bind_socket("x" * 200)

    assert list(directory().iterdir()) == []


def test_only_sockets_without_a_listener_are_removed(runtime_directory: Path) -> None:
    alive, kept = bind_socket("alive@here")
    dead, stale = bind_socket("dead@here")
    dead.close()
    forgotten, young = kept.parent / ".77+abc", kept.parent / ".78+abc"
    for path in (forgotten, young):
        with socket.socket(socket.AF_UNIX) as unfinished:
            unfinished.bind(str(path))
    os.utime(forgotten, (1, 1))

    removed = clean()

    assert removed == [stale, forgotten]
    assert sorted(kept.parent.iterdir()) == sorted([kept, young])
    assert clean() == []
    alive.close()


def test_there_are_no_sockets_before_the_first_node(runtime_directory: Path) -> None:
    assert list(sockets()) == []
    assert clean() == []


def test_the_user_of_the_peer_comes_from_the_operating_system() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_user(ours) == os.geteuid()
