"""Finding nodes and asking them, when all is well and when the other side is an impostor."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ergo_py.blocking.loop_thread import open_node
from ergo_py.control.client import Link, find_nodes
from ergo_py.control.protocol import ControlError
from ergo_py.control.socket_paths import bind_socket
from ergo_py.shell.exit_codes import Leave, Status
from ergo_py.shell.node_choice import choose
from tests.support import replace_private


@contextmanager
def impostor(serve: Callable[[socket.socket], object]) -> Iterator[Path]:
    """A listener in place of a node, with the behaviour that the test gives it."""
    listener, path = bind_socket("impostor@here")
    listener.settimeout(20)
    over = threading.Event()

    def run() -> None:
        while True:
            peer, _ = listener.accept()
            with peer:
                if over.is_set():
                    return
                peer.settimeout(20)
                # A client that only checks for a listener leaves without a word.
                with suppress(OSError):
                    serve(peer)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield path
    finally:
        over.set()
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(path))
            thread.join()
        listener.close()
        path.unlink()


def test_a_node_is_found_chosen_and_asked() -> None:
    with open_node("demo@here", control="look", log_output="none", watchdog=None):
        (found,) = find_nodes()
        with choose(None, None) as link, choose("demo", os.getpid()) as other:
            assert link.ask("info")["name"] == "demo@here"
            assert other.may == ["look"]
            with pytest.raises(ControlError) as refused:
                link.ask("inspect", to="nobody")

    assert (found.name, found.os_pid, found.may, found.problem) == (
        "demo@here",
        os.getpid(),
        ("look",),
        None,
    )
    assert refused.value.code == "no_such_process"
    assert find_nodes() == []


def test_a_silent_socket_is_listed_as_not_answering(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_private(monkeypatch, "greeting timeout of the shell", 0.1)
    with impostor(lambda peer: peer.recv(1)):
        (found,) = find_nodes()

        assert found.problem == "does not answer"
        with pytest.raises(Leave) as leave:
            choose("impostor", None)
        assert leave.value.status == Status.NO_ANSWER


@pytest.mark.parametrize(
    "says, text",
    [
        (b"SSH-2.0-OpenSSH\n", "does not speak the protocol"),
        (b"[1]\n", "does not speak the protocol"),
        (b"\xff\xfe\n", "does not speak the protocol"),
        (b'{"error": 1}\n', "does not speak the protocol"),
        (b'{"error": {"code": 1, "text": []}}\n', "does not speak the protocol"),
        (b'{"ergo": 1}\n', "does not speak the protocol"),
        (b'{"ergo": 1, "node": [], "os_pid": {}, "may": 3}\n', "does not speak the protocol"),
        (b'{"ergo": 1, "node": "x", "os_pid": 1, "may": [[]]}\n', "does not speak the protocol"),
        (b"[" * 100_000 + b"\n", "does not speak the protocol"),
        (b'{"ergo": 99}\n', "speaks version 99"),
        (b'{"error": {"code": "busy", "text": "too many"}}\n', "too many"),
        (b"", "closed the connection"),
    ],
)
def test_a_socket_with_another_protocol_is_refused(says: bytes, text: str) -> None:
    with impostor(lambda peer: peer.sendall(says)) as path:
        link = Link(path)
        with pytest.raises((OSError, ControlError), match=text):
            link.open()
        link.close()


@pytest.mark.parametrize(
    "says", [b'{"ergo": 1}\n', b'{"error": 1}\n', b"[" * 100_000 + b"\n", b"\xff\n", b"7\n"]
)
def test_a_socket_with_another_protocol_does_not_hide_other_nodes(says: bytes) -> None:
    with (
        impostor(lambda peer: peer.sendall(says)),
        open_node("honest@here", control="look", log_output="none", watchdog=None),
    ):
        found = {one.name: one for one in find_nodes()}
        with choose("honest", None) as link:
            assert link.ask("info")["name"] == "honest@here"
        with pytest.raises(Leave) as leave:
            choose("impostor", None)

    assert found["honest@here"].problem is None
    assert "does not speak the protocol of control sockets" in (
        found["impostor@here"].problem or ""
    )
    assert leave.value.status == Status.NO_ANSWER
    assert "\n" not in leave.value.text


def test_a_malformed_answer_is_a_connection_error() -> None:
    def serve(peer: socket.socket) -> None:
        peer.sendall(b'{"ergo": 1, "node": "impostor@here", "os_pid": 1, "may": []}\n')
        peer.recv(1000)
        peer.sendall(b'{"id": 1, "ok": false, "error": "no"}\n')

    with impostor(serve) as path:
        link = Link(path)
        link.open()
        with pytest.raises(ConnectionError, match="does not speak the protocol"):
            link.ask("ps")
        link.close()


def test_files_with_odd_names_in_the_directory_are_ignored(runtime_directory: Path) -> None:
    place = runtime_directory / "ergo"
    place.mkdir(mode=0o700)
    (place / "directory+1.sock").mkdir()
    (place / "file+1.sock").touch()

    with open_node("honest@here", control="look", log_output="none", watchdog=None):
        assert [one.name for one in find_nodes()] == ["honest@here"]


def test_a_socket_with_an_impossible_pid_is_left_out(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_private(monkeypatch, "greeting timeout of the shell", 0.1)
    place = runtime_directory / "ergo"
    place.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "a@b+99999999999999999999.sock"))
        listener.listen()

        assert find_nodes() == []


def test_a_node_that_goes_away_in_the_middle_is_an_error() -> None:
    def serve(peer: socket.socket) -> None:
        peer.sendall(b'{"ergo": 1, "node": "impostor@here", "os_pid": 1, "may": []}\n')
        peer.recv(1000)

    with impostor(serve) as path:
        link = Link(path)
        link.open()
        with pytest.raises(ConnectionError, match="impostor@here closed the connection"):
            link.ask("ps")
        link.close()


def test_ctrl_c_just_before_the_wait_for_an_answer_is_noticed() -> None:
    # A signal that interrupted another thread does not wake the main thread either.
    presser = threading.Thread(
        target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with (
            open_node("demo@here", control="attach", log_output="none", watchdog=None),
            choose("demo", None) as link,
            pytest.raises(KeyboardInterrupt),
        ):
            waits = "print('waiting'); await trio.sleep_forever()"
            link.ask("eval", source=waits, out=lambda _: presser.start())
    finally:
        signal.signal(signal.SIGINT, before)
    presser.join(30)
