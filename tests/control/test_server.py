"""The control socket: the permissions, and the limits of clients, however hard they try.

Threads and sockets are the point here, so time is real.
"""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sized
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import Actor, BadInputError, open_node
from ergo_py.control.client import find_nodes
from ergo_py.control.commands import COMMANDS, Command
from ergo_py.control.protocol import MAX_REQUEST
from ergo_py.control.socket_paths import clean
from tests.actors import Recorder
from tests.control.rig import Impatient, Quick, Wire, in_thread, served
from tests.support import (
    Passes,
    kernel_of,
    last_blocked,
    process_of,
    replace_private,
    router_of,
    running_node,
)


def control_threads() -> list[str]:
    return [
        thread.name for thread in threading.enumerate() if thread.name.startswith("ergo-control")
    ]


class Blocker(Actor):
    """Blocks the loop until the test has seen enough."""

    def __init__(self) -> None:
        self.enough = threading.Event()

    def handle_message(self, message: Any, sender: Any) -> None:
        self.enough.wait(120)


# -- permissions -----------------------------------------------------------------------------------


async def test_there_is_no_socket_and_no_thread_unless_asked_for(runtime_directory: Path) -> None:
    async with running_node() as node:
        assert node.control_path is None
        assert control_threads() == []
        assert os.listdir(runtime_directory) == []


async def test_the_control_socket_is_private_to_its_user_and_is_removed_with_the_node(
    runtime_directory: Path,
) -> None:
    async with running_node("demo@localhost", control="look") as node:
        path = node.control_path
        assert path is not None

        assert path.parent == runtime_directory / "ergo"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with Wire(path) as wire:
            hello = await in_thread(wire.hear)
        assert hello == {
            "ergo": 1,
            "node": "demo@localhost",
            "os_pid": os.getpid(),
            "may": ["look"],
        }

    assert not path.exists()
    assert control_threads() == []


async def test_two_nodes_of_a_program_with_the_same_name_are_told_of(
    runtime_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: Any = {"control": "look", "log_output": "json"}
    for _ in range(2):  # in sequence, the name is free again
        async with open_node("twin@localhost", **options), open_node("other@localhost", **options):
            assert capsys.readouterr().err == ""

    async with open_node("twin@localhost", **options), open_node("twin@localhost", **options):
        pass

    (line,) = capsys.readouterr().err.splitlines()
    assert "another node of this program is named 'twin@localhost'" in line
    assert re.search(rf"opened at {__file__}:(\d+) and {__file__}:\1", line)


@pytest.mark.parametrize(
    "permissions, allowed",
    [("look", {"ps"}), ("act", {"send"}), ("attach", {"eval"}), ("look,attach", {"ps", "eval"})],
)
async def test_look_act_and_eval_are_permitted_separately(
    permissions: str, allowed: set[str]
) -> None:
    async with served(permissions) as (node, server):
        await node.spawn(Recorder, name="recorder")
        asked: dict[str, dict[str, Any]] = {
            "ps": {},
            "send": {"to": "recorder", "message": 1},
            "eval": {"source": "1"},
        }

        def try_all() -> dict[str, Any]:
            with Wire(server.path) as wire:
                wire.hear()
                return {do: wire.ask(do, **arguments) for do, arguments in asked.items()}

        answers = await in_thread(try_all)

        for do, answer in answers.items():
            assert (answer.get("code") == "not_permitted") == (do not in allowed), answer
            if do not in allowed:
                assert "open it with control=" in answer["text"]


@pytest.mark.parametrize("permission", ["look", "act", "attach"])
async def test_no_command_is_executed_without_its_permission(permission: str) -> None:
    async with served(permission) as (node, server):
        await node.spawn(Recorder, name="recorder")

        def try_all() -> dict[str, Any]:
            with Wire(server.path) as wire:
                wire.hear()
                return {
                    do: wire.ask(do)
                    for do, command in COMMANDS.items()
                    if command.permission != permission
                }

        answers = await in_thread(try_all)

        assert {answer.get("code") for answer in answers.values()} == {"not_permitted"}
        assert node.whereis("recorder") is not None


async def test_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_private(monkeypatch, "user of a control client", lambda connection: os.geteuid() + 1)
    async with served() as (_, server):

        def come() -> list[Any]:
            with Wire(server.path) as wire:
                return [wire.hear(), wire.hear()]

        said, after = await in_thread(come)

        assert said["error"]["code"] == "not_permitted"
        assert after is None


@pytest.mark.counted
async def test_unknown_permissions_are_refused() -> None:
    for wrong in ("everything", ["look", "eval"], 5):
        with pytest.raises(BadInputError, match="control"):
            open_node(control=wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_a_node_without_its_control_socket_does_not_open(runtime_directory: Path) -> None:
    directory = runtime_directory / "ergo"
    directory.mkdir()
    directory.chmod(0o755)  # independent of the umask

    with pytest.raises(OSError, match="mode 0700"):
        async with running_node(control="look"):
            pytest.fail("it opened")

    assert control_threads() == []


# -- hostile clients -------------------------------------------------------------------------------

GARBAGE = {
    "bytes": bytes(range(256)).replace(b"\n", b"") + b"\n",
    "no JSON": b"GET / HTTP/1.1\r\n",
    "empty line": b"\n",
    "no object": b"[1, 2]\n",
    "no version": b'{"id": 1, "do": "ps"}\n',
    "other version": b'{"v": 2, "id": 1, "do": "ps"}\n',
    "no command": b'{"v": 1, "id": 1}\n',
    "arguments that are none": b'{"v": 1, "id": 1, "do": "ps", "with": 5}\n',
    "strange id": b'{"v": 1, "id": {"a": 1}, "do": "ps"}\n',
    "deep": b'{"v": 1, "id": 1, "do": "ps", "with": ' + b"[" * 30_000 + b"\n",
    "long number": b'{"v": 1, "id": ' + b"9" * 30_000 + b', "do": "ps"}\n',
    "half a character": b'{"v": 1, "do": "\xc3"}\n',
    "no number": b'{"v": NaN, "id": 1, "do": "ps"}\n',
}


async def assert_serves(server: Any) -> None:
    def look() -> Any:
        with Wire(server.path) as wire:
            wire.hear()
            return wire.ask("ps")

    assert "rows" in await in_thread(look)


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_is_answered_once_and_the_connection_closed(garbage: bytes) -> None:
    async with served() as (_, server):

        def talk() -> list[Any]:
            with Wire(server.path) as wire:
                wire.hear()
                wire.say(garbage)
                return [wire.hear(), wire.hear()]

        said, after = await in_thread(talk)

        assert said["error"]["code"] in ("bad_request", "version")
        assert after is None
        await assert_serves(server)


async def test_a_line_that_is_too_long_is_refused_before_it_ends() -> None:
    async with served() as (_, server):

        def talk() -> Any:
            with Wire(server.path) as wire:
                wire.hear()
                try:
                    wire.say(b'{"v": 1, "do": "' + b"x" * (4 * MAX_REQUEST))
                except OSError:  # it has hung up in the middle
                    pass
                return wire.hear()

        said = await in_thread(talk)

        assert said is None or said["error"]["code"] == "too_large"
        await assert_serves(server)


async def test_the_server_waits_for_the_end_of_a_line_only_for_a_limited_time() -> None:
    async with served() as (_, server):

        def talk() -> list[Any]:
            with Wire(server.path) as wire:
                wire.hear()
                wire.say(b'{"v": 1,')
                return [wire.hear(), wire.hear()]

        said, after = await in_thread(talk)

        assert "complete within" in said["error"]["text"]
        assert after is None


async def test_silent_clients_do_not_keep_others_out() -> None:
    async with served() as (_, server):
        silent = [Wire(server.path) for _ in range(Quick.clients)]
        for wire in silent:
            await in_thread(wire.hear)

        def refused() -> Any:
            with Wire(server.path) as wire:
                return wire.hear()

        first = await in_thread(refused)
        # After a while the client that was silent longest goes.
        with trio.fail_after(60):
            while "error" in await in_thread(refused):  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.05)

        assert first["error"]["code"] == "busy"
        for wire in silent:
            wire.close()


async def test_a_flood_of_connections_does_not_stop_the_server() -> None:
    async with served() as (_, server):

        def flood() -> None:
            for _ in range(150):
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(0.01)
                try:
                    sock.connect(str(server.path))
                except OSError:  # the queue of waiting connections is full
                    pass
                sock.close()

        await in_thread(flood)
        await assert_serves(server)


class Slow(Quick):
    """Few requests a second, so that a busy machine can make as many as are allowed, and more."""

    pace = 0.05
    pace_of_all = 0.03


async def test_a_flood_of_requests_is_slowed_down_without_delaying_others() -> None:
    line = b'{"v": 1, "id": 1, "do": "info"}\n'
    async with served(limits=Slow) as (node, server):
        pid = await node.spawn(Recorder)
        stop = threading.Event()
        answered = [0, 0, 0]

        def flood(number: int) -> None:
            with Wire(server.path) as wire:
                wire.sock.setblocking(False)
                while not stop.is_set():
                    for step in (
                        lambda: wire.sock.send(line * 100),
                        lambda: wire.sock.recv(1 << 20),
                    ):
                        try:
                            got = step()
                            answered[number] += (
                                got.count(b'"ok":true') if isinstance(got, bytes) else 0
                            )
                        except BlockingIOError:
                            time.sleep(0.001)

        threads = [threading.Thread(target=flood, args=(number,)) for number in range(3)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        try:
            for number in range(5):
                node.send(pid, number)
                await node.call(pid, "all")
                await assert_serves(server)
            while not all(answered):  # noqa: ASYNC110 - threads tell no task
                await trio.sleep(0.001)
        finally:
            stop.set()
            for thread in threads:
                await in_thread(thread.join)
        took = time.perf_counter() - began

        assert max(answered) <= took / Slow.pace + 2
        assert sum(answered) <= took / Slow.pace_of_all + 2


ROUNDS = 10_000
"""Looks of a loop that is blocked: far more than the thread of the control socket needs."""


def block_until_more(jobs: Sized, than: int) -> None:
    """Block the loop until more than so many jobs wait for it, while the thread of the control
    socket goes on.
    """
    for _ in range(ROUNDS):
        if len(jobs) > than:
            return
        time.sleep(0.001)
    pytest.fail(f"after {ROUNDS} looks, these jobs wait for the loop: {jobs}")


async def test_requests_that_wait_for_the_loop_begin_in_turns_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes, begun = Passes(), list[int]()

    async def note(client: object, arguments: object) -> None:
        begun.append(passes.number)

    monkeypatch.setitem(COMMANDS, "info", Command("look", note))
    async with served() as (node, server):
        wires = [await in_thread(Wire, server.path) for _ in range(4)]
        for wire in wires:
            assert "may" in await in_thread(wire.hear)
        waiting = router_of(node).bridge.pending
        for wire in wires:
            wire.say(b'{"v": 1, "id": 1, "do": "info"}\n')
        block_until_more(waiting, 4)  # the requests, and a heartbeat
        # Nothing begins for a client that has left meanwhile.
        wires.pop().close()
        block_until_more(waiting, 6)
        trio.lowlevel.add_instrument(passes)
        for wire in wires:
            assert (await in_thread(wire.hear))["ok"]
            await in_thread(wire.close)
        trio.lowlevel.remove_instrument(passes)

    assert len(begun) == len(set(begun)) == 3


async def test_the_request_rate_of_a_client_is_limited() -> None:
    class Alone(Slow):
        pace_of_all = 0.0

    async with served(limits=Alone) as (_, server):

        def ask() -> float:
            with Wire(server.path) as wire:
                wire.hear()
                began = time.perf_counter()
                for _ in range(6):
                    wire.ask("info")
                return time.perf_counter() - began

        assert await in_thread(ask) > 5 * Slow.pace * 0.9


async def test_a_client_that_does_not_read_is_dropped() -> None:
    async with served() as (node, server):
        for _ in range(2000):
            await node.spawn(Recorder)

        def talk() -> bool:
            with Wire(server.path) as wire:
                wire.hear()
                for number in range(100):
                    try:
                        wire.say(
                            json.dumps(
                                {"v": 1, "id": number, "do": "ps", "with": {"limit": 2000}}
                            ).encode()
                            + b"\n"
                        )
                    except OSError:
                        return True
                # It takes 2 answers to fill the buffers of the operating system; and then it is
                # given up.
                deadline = time.monotonic() + 100
                while time.monotonic() < deadline:
                    try:
                        wire.say(b"\n")
                    except OSError:
                        return True
                    time.sleep(0.02)
                return False

        assert await in_thread(talk)
        await assert_serves(server)


async def test_a_client_that_hangs_up_during_an_answer_does_not_disturb_others() -> None:
    async with served() as (node, server):
        for _ in range(1000):
            await node.spawn(Recorder)

        def hang_up() -> None:
            for _ in range(5):
                with Wire(server.path) as wire:
                    wire.hear()
                    wire.say(b'{"v": 1, "id": 1, "do": "ps"}\n' * 3)
                    # Some of the answer has come, and the rest is thrown away.
                    wire.sock.recv(10)

        await in_thread(hang_up)

        await assert_serves(server)


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with served() as (node, server):
        await node.spawn(Recorder, name="recorder")

        def ask_ahead() -> list[int]:
            with Wire(server.path) as wire:
                wire.hear()
                for number in range(30):
                    do, how = (
                        ("ps", {}),
                        ("inspect", {"to": "recorder"}),
                        ("info", {"to": "nobody"}),
                    )[number % 3]
                    wire.say(
                        json.dumps({"v": 1, "id": number, "do": do, "with": how}).encode() + b"\n"
                    )
                return [wire.hear()["id"] for _ in range(30)]

        assert await in_thread(ask_ahead) == list(range(30))


async def test_a_client_that_does_not_read_its_trace_is_dropped_and_the_trace_ends() -> None:
    async with served() as (node, server):
        pid = await node.spawn(Recorder, name="recorder")
        behaviour = process_of(node, pid).behaviour

        def forget() -> None:
            with Wire(server.path) as wire:
                wire.hear()
                asked = {"to": "recorder", "seconds": 3600, "limit": 100_000, "contents": True}
                wire.say(
                    json.dumps({"v": 1, "id": 1, "do": "trace", "with": asked}).encode() + b"\n"
                )
                # Not a word of it is read, until the node hangs up.
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline:
                    node.send(pid, "x" * 2000)
                    try:
                        wire.say(b" ")
                    except OSError:
                        return
                raise AssertionError("it was not dropped")

        with trio.fail_after(60):
            await in_thread(forget)
            while kernel_of(node).watches:  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.01)

        assert process_of(node, pid).behaviour is behaviour
        await assert_serves(server)


async def test_the_request_of_a_client_is_cancelled_when_it_leaves() -> None:
    async with served() as (node, server):
        left = trio.Event()

        class Waits:
            async def __call__(self) -> None:
                try:
                    await trio.sleep_forever()
                finally:
                    left.set()

        node.waits = Waits()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

        def talk() -> None:
            with Wire(server.path) as wire:
                wire.hear()
                wire.say(
                    b'{"v": 1, "id": 1, "do": "eval", '
                    b'"with": {"source": "print(1); await node.waits()"}}\n'
                )
                assert wire.hear() == {"id": 1, "out": "1\n"}

        await in_thread(talk)

        with trio.fail_after(20):
            await left.wait()


async def test_a_client_can_cancel_its_request_and_continue_the_session() -> None:
    async with served() as (_, server):

        def talk() -> list[Any]:
            with Wire(server.path) as wire:
                wire.hear()
                wire.say(
                    b'{"v": 1, "id": 1, "do": "eval", '
                    b'"with": {"source": "x = 5; print(x); await trio.sleep_forever()"}}\n'
                )
                heard = [wire.hear()]
                wire.say(b'{"v": 1, "do": "cancel"}\n')
                heard.append(wire.hear())
                wire.number = 1
                heard += [wire.show("x"), wire.ask("cancel")]
                return heard

        out, cancelled, x, nothing = await in_thread(talk)

        assert out == {"id": 1, "out": "5\n"}
        assert cancelled["error"]["code"] == "cancelled"
        assert x == "5\n"
        assert nothing["code"] == "bad_argument"


async def test_a_client_that_does_not_read_endless_output_is_dropped() -> None:
    source = "for _ in range(2000):\\n    print('x' * 10_000)\\n    await trio.sleep(0)"
    async with served() as (node, server):
        pid = await node.spawn(Recorder)

        def talk() -> None:
            with Wire(server.path) as wire:
                wire.hear()
                wire.say(
                    b'{"v": 1, "id": 1, "do": "eval", "with": {"source": "'
                    + source.encode()
                    + b'"}}\n'
                )
                # Not a word of it is read.
                deadline = time.monotonic() + 100
                while time.monotonic() < deadline:
                    try:
                        wire.say(b" ")
                    except OSError:
                        return
                    time.sleep(0.02)
                raise AssertionError("it was not dropped")

        await in_thread(talk)

        assert await node.call(pid, "all") == []
        await assert_serves(server)


# -- a blocked loop --------------------------------------------------------------------------------


@pytest.mark.counted
async def test_the_error_about_a_blocked_loop_names_the_blocking_process() -> None:
    async with served(limits=Impatient) as (node, server):
        pid = await node.spawn(Blocker, name="blocker")
        found: Any = (await node.get_state(pid))["enough"]
        answers: dict[str, Any] = {}

        def talk() -> None:
            try:
                with Wire(server.path) as wire:
                    wire.hear()
                    wire.ask("send", to="blocker", message="now")
                    answers["inspect"] = wire.ask("inspect", to="blocker")
                    answers["ps"] = wire.ask("ps")
                    answers["eval"] = wire.ask("eval", source="1")
            finally:
                found.set()

        await in_thread(talk)

        told = answers["inspect"]
        assert told["code"] == "blocked"
        assert "blocked by Blocker.handle_message" in told["text"]
        assert told["report"]["name"] == "blocker"
        assert told["report"]["message_type"] == "str"
        assert told["report"]["seconds"] > 0.3
        assert "self.enough.wait(120)" in told["report"]["stack"]
        (row,) = answers["ps"]["rows"]
        assert (row["callback"], row["state"]) == ("handle_message", "running")
        assert answers["ps"]["blocked"]["behaviour"] == "Blocker"
        assert answers["eval"]["code"] == "blocked"
        # And now it is not any more.
        await assert_serves(server)
        assert await node.inspect(pid) == {}


async def test_the_watchdog_knows_since_when_the_loop_is_blocked() -> None:
    async with served(limits=Impatient, watchdog=0.2) as (node, server):
        pid = await node.spawn(Blocker, name="blocker")
        found: Any = (await node.get_state(pid))["enough"]
        answers: list[Any] = []

        def talk() -> None:
            try:
                node.send(pid, "now")
                # The watchdog has seen it before the request here; a busy machine may have shown it
                # something else before.
                deadline = time.monotonic() + 100
                while (
                    (last := last_blocked(node)) is None or last.process != pid
                ) and time.monotonic() < deadline:
                    time.sleep(0.01)
                time.sleep(0.5)
                with Wire(server.path) as wire:
                    wire.hear()
                    answers.append(wire.ask("ps"))
            finally:
                found.set()

        await in_thread(talk)

        assert answers[0]["blocked"]["seconds"] > 0.5


# -- the end of a program --------------------------------------------------------------------------

PROGRAM = """
    import os, sys, time
    import trio
    from ergo_py import run

    async def main(node):
        read, write = os.pipe()
        if os.fork() == 0:
            # The copy has closed the socket before it comes here.
            os.write(write, b"!")
            time.sleep(60)
            os._exit(0)
        os.read(read, 1)
        print("up", flush=True)
        await trio.sleep_forever()

    run(main, name="doomed@localhost", control="look", log_output="none")
"""


def test_the_socket_of_a_killed_program_is_removed_although_a_forked_copy_lives(
    runtime_directory: Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        before = find_nodes()
        process.kill()
        process.wait(20)
        left = list((runtime_directory / "ergo").iterdir())

        removed = clean()

        assert [(one.name, one.os_pid) for one in before] == [("doomed@localhost", process.pid)]
        assert len(left) == 1
        assert removed == left
        assert list((runtime_directory / "ergo").iterdir()) == []
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()


async def test_a_stopping_node_answers_that_it_is_stopping() -> None:
    async with served() as (node, server):
        with Wire(server.path) as wire:
            await in_thread(wire.hear)
            router_of(node).bridge.close()

            said = await in_thread(wire.ask, "info")

            assert said["code"] == "stopping"
