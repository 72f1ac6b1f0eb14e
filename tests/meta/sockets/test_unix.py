"""Features of Unix sockets only: files that are made, left behind by killed programs, and
removed.
"""

import os
import socket
import stat
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, Drain, InitError
from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.messages import TCPConnected, TCPSend
from ergo_py.meta.sockets.unix import UnixConnection, UnixServer, _chmod_held
from tests.actors import Puppet
from tests.meta.wires import Ear, Mail, echo, spawn_meta, until, wired_node
from tests.support import replace_private


@pytest.fixture
def tmp_path(short_path: Path) -> Path:
    """Short, because the path of a socket must be."""
    return short_path


@pytest.fixture(params=["thread", "task"])
def reader(request: pytest.FixtureRequest) -> ReaderKind:
    kind: ReaderKind = request.param
    return kind


async def test_the_file_is_private_to_its_user_and_is_removed_at_the_end(
    reader: ReaderKind, tmp_path: Path
) -> None:
    path = tmp_path / "here.sock"
    async with wired_node() as node:
        owner = await node.spawn(Puppet)
        alias = await spawn_meta(node, owner, UnixServer(path, reader=reader))

        mode = path.stat().st_mode
        node.send_exit(alias)
        await until(lambda: node.metas() == [])

        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        assert not path.exists()


async def test_other_users_are_admitted_on_request(reader: ReaderKind, tmp_path: Path) -> None:
    path = tmp_path / "here.sock"
    async with wired_node() as node:
        owner = await node.spawn(Puppet)

        await spawn_meta(node, owner, UnixServer(path, reader=reader, mode=0o666))

        assert stat.S_IMODE(path.stat().st_mode) == 0o666


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o277])
@pytest.mark.parametrize("mode", [0o600, 0o666, 0o000])
async def test_the_permissions_do_not_depend_on_the_umask(
    reader: ReaderKind, tmp_path: Path, mode: int, umask: int
) -> None:
    path = tmp_path / "here.sock"
    async with wired_node() as node:
        owner = await node.spawn(Puppet)
        before = os.umask(umask)
        try:
            await spawn_meta(node, owner, UnixServer(path, reader=reader, mode=mode))
        finally:
            os.umask(before)

        assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.skipif(
    not hasattr(os, "O_PATH"), reason="this system has another way to change permissions"
)
class TestWithoutProc:
    @pytest.fixture(autouse=True)
    def no_proc(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        replace_private(monkeypatch, "directory of descriptors", str(tmp_path / "missing"))

    @pytest.mark.parametrize("permissions", [0o700, 0o755, 0o1777])
    @pytest.mark.parametrize("is_relative", [False, True], ids=["absolute", "relative"])
    async def test_the_permissions_are_given_where_no_other_user_may_replace_the_socket(
        self,
        reader: ReaderKind,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        permissions: int,
        is_relative: bool,
    ) -> None:
        os.chmod(tmp_path, permissions)
        monkeypatch.chdir(tmp_path)
        path = tmp_path / "here.sock"
        async with wired_node() as node:
            owner = await node.spawn(Puppet)
            before = os.umask(0o077)
            try:
                await spawn_meta(
                    node,
                    owner,
                    UnixServer(path.name if is_relative else path, reader=reader, mode=0o666),
                )
            finally:
                os.umask(before)

            assert stat.S_IMODE(path.stat().st_mode) == 0o666

    @pytest.mark.parametrize("permissions", [0o770, 0o777, 0o707])
    async def test_a_directory_in_which_others_may_replace_the_socket_is_refused(
        self, reader: ReaderKind, tmp_path: Path, permissions: int
    ) -> None:
        os.chmod(tmp_path, permissions)
        path = tmp_path / "here.sock"
        async with wired_node() as node:
            owner = await node.spawn(Puppet)
            before = os.umask(0o077)
            try:
                with pytest.raises(
                    InitError,
                    match=r"mode 0o666: the umask leaves 0o600 of it, /proc is not mounted",
                ):
                    await spawn_meta(node, owner, UnixServer(path, reader=reader, mode=0o666))
                # The umask takes nothing away from this mode.
                await spawn_meta(node, owner, UnixServer(path, reader=reader, mode=0o600))
            finally:
                os.umask(before)

            assert stat.S_IMODE(path.stat().st_mode) == 0o600

    @pytest.fixture
    def directory_of_another_user(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        tmp_path.chmod(0o1777)
        if os.geteuid() != 0:
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
        else:
            try:
                os.chown(tmp_path, 12345, -1)
            except PermissionError:
                pytest.skip("this root may not give a directory to another user")
        return tmp_path

    async def test_a_directory_of_another_user_is_refused(
        self, reader: ReaderKind, directory_of_another_user: Path
    ) -> None:
        path = directory_of_another_user / "here.sock"
        async with wired_node() as node:
            owner = await node.spawn(Puppet)
            before = os.umask(0o077)
            try:
                with pytest.raises(InitError, match="other users may replace files"):
                    await spawn_meta(node, owner, UnixServer(path, reader=reader, mode=0o666))
            finally:
                os.umask(before)

            assert not path.exists()

    def test_a_file_that_has_replaced_the_socket_keeps_its_permissions(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "here.sock"
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
            held = os.open(path, os.O_PATH)
        try:
            path.unlink()
            path.write_text("for my eyes only")
            path.chmod(0o640)

            with pytest.raises(FileExistsError):
                _chmod_held(held, str(path), 0o666)

            assert stat.S_IMODE(path.stat().st_mode) == 0o640
        finally:
            os.close(held)


class Ambushed(socket.socket):
    """A socket with a file that is replaced as soon as it is there."""

    def bind(self, address: Any, /) -> None:
        super().bind(address)
        if self.family == socket.AF_UNIX:
            os.unlink(address)
            (os.link if self.hard else os.symlink)(self.prey, address)

    prey: Path
    hard: bool


@pytest.mark.parametrize("prey", ["file", "socket"])
@pytest.mark.parametrize("hard", [False, True], ids=["symbolic", "hard"])
@pytest.mark.parametrize("mode", [0o600, 0o666])
async def test_a_link_in_place_of_the_socket_does_not_change_other_permissions(
    reader: ReaderKind,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prey: str,
    hard: bool,
    mode: int,
) -> None:
    path, secret = tmp_path / "here.sock", tmp_path / "secret"
    if prey == "file":
        secret.write_text("for my eyes only")
    else:
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(secret))
    secret.chmod(0o640)
    monkeypatch.setattr(Ambushed, "prey", secret, raising=False)
    monkeypatch.setattr(Ambushed, "hard", hard, raising=False)
    async with wired_node() as node:
        owner = await node.spawn(Puppet)
        with monkeypatch.context() as ambush, pytest.raises(InitError, match=r"here\.sock"):
            ambush.setattr(socket, "socket", Ambushed)
            await spawn_meta(node, owner, UnixServer(path, reader=reader, mode=mode))

        assert stat.S_IMODE(secret.lstat().st_mode) == 0o640
        assert node.metas() == []


async def test_the_file_of_a_killed_server_is_replaced(reader: ReaderKind, tmp_path: Path) -> None:
    path = tmp_path / "here.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()
    assert path.exists()
    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail(), echo)

        await spawn_meta(node, owner, UnixServer(path, reader=reader))

        async with await trio.open_unix_socket(path) as stream:
            await stream.send_all(b"x")
            assert await stream.receive_some() == b"x"


async def test_a_file_that_is_no_socket_is_not_touched(reader: ReaderKind, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("dear")
    async with wired_node() as node:
        owner = await node.spawn(Puppet)

        with pytest.raises(InitError):
            await spawn_meta(node, owner, UnixServer(path, reader=reader))

        assert path.read_text(encoding="utf-8") == "dear"


async def test_a_file_that_another_server_made_meanwhile_is_not_removed(
    reader: ReaderKind, tmp_path: Path
) -> None:
    path = tmp_path / "here.sock"
    async with wired_node() as node:
        owner = await node.spawn(Puppet)
        alias = await spawn_meta(node, owner, UnixServer(path, reader=reader))
        # Its number must differ, also on file systems that use numbers again at once.
        path.rename(tmp_path / "moved.sock")
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))

            node.send_exit(alias)
            await until(lambda: node.metas() == [])

            assert path.exists()


async def test_a_draining_server_leaves_its_path_to_the_next(
    reader: ReaderKind, tmp_path: Path
) -> None:
    path = tmp_path / "here.sock"
    async with wired_node() as node:
        mail = Mail()
        owner = await node.spawn(Ear, mail, echo)
        drained = await spawn_meta(node, owner, UnixServer(path, reader=reader))
        async with await trio.open_unix_socket(path) as old, trio.open_nursery() as nursery:
            await mail.wait_for(TCPConnected)
            nursery.start_soon(partial(node.call, drained, Drain(60.0), timeout=None))
            await until(lambda: not path.exists())
            await spawn_meta(node, owner, UnixServer(path, reader=reader))

            async with await trio.open_unix_socket(path) as new:
                for stream in (old, new):
                    await stream.send_all(b"x")
                    assert await stream.receive_some() == b"x"
            await old.aclose()
        node.send_exit(drained)
        await until(lambda: len(node.metas()) == 1)

        assert path.exists()  # of the server that has come later


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names that are no files")
async def test_a_server_may_have_an_abstract_name(reader: ReaderKind) -> None:
    name = f"\0ergo_py-{os.getpid()}-{reader}"
    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail(), echo)
        server = UnixServer(name, reader=reader)
        await spawn_meta(node, owner, server)
        mail = Mail()
        asker = await node.spawn(Ear, mail)

        alias = await spawn_meta(node, asker, UnixConnection.connect(name, reader=reader))
        node.send(alias, TCPSend(b"hello"))

        assert await mail.bytes(5) == b"hello"
        assert server.local == "@" + name[1:]


async def test_an_end_of_a_socket_pair_can_be_taken_over(reader: ReaderKind) -> None:
    ours, theirs = socket.socketpair()
    async with wired_node() as node:
        mail = Mail()
        owner = await node.spawn(Ear, mail, echo)

        await spawn_meta(node, owner, UnixConnection(ours, reader=reader))
        theirs.send(b"hello")

        assert await mail.bytes(5) == b"hello"
        assert mail.of(TCPConnected)[0].peer == ""
        theirs.close()


async def test_errors_contain_the_path(reader: ReaderKind, tmp_path: Path) -> None:
    async with wired_node() as node:
        owner = await node.spawn(Puppet)

        with pytest.raises(InitError, match=r"No such file or directory: .*/none/x\.sock"):
            await spawn_meta(node, owner, UnixServer(tmp_path / "none" / "x.sock", reader=reader))
        with pytest.raises(InitError, match=r"No such file or directory: .*/nobody\.sock"):
            await spawn_meta(
                node, owner, UnixConnection.connect(tmp_path / "nobody.sock", reader=reader)
            )
        with pytest.raises(InitError, match="Connection refused: @nobody here"):
            await spawn_meta(node, owner, UnixConnection.connect("\0nobody here", reader=reader))


@pytest.mark.parametrize("path", ["", "x" * 108, "zero\0byte", 5, b"bytes"])
def test_an_invalid_path_is_refused(path: str) -> None:
    with pytest.raises(BadInputError):
        UnixServer(path)


def test_tls_is_refused() -> None:
    with pytest.raises(BadInputError, match="does not leave the machine"):
        UnixServer("here.sock", tls=True)
