"""The bank of `examples/bank`: the session of its README, with kills of the program; and letters
that are printed although the printer fails.
"""

import http.client
import json
import re
import shlex
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from ergo_py import Node, ask, open_node
from ergo_py.entities import MemoryStore
from examples.bank import bank
from examples.bank.bank import Account
from examples.bank.front import Bank
from tests.examples.programs import EXAMPLES, running
from tests.web.rig import Peer, get

README = (EXAMPLES / "bank" / "README.md").read_text(encoding="utf-8")


def sessions() -> list[list[tuple[str, str]]]:
    """The commands of the README with their answers, session by session."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [re.findall(r"^\$ (.+)\n(.+)\n", block, re.MULTILINE) for block in blocks]


def request(port: int, command: str) -> str:
    """Run a command of curl, without curl."""
    words = shlex.split(command)
    method = words[words.index("-X") + 1] if "-X" in words else "GET"
    body = words[words.index("-d") + 1] if "-d" in words else None
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, words[-1].partition(":8090")[2], body)
    answer = connection.getresponse().read().decode()
    connection.close()
    return answer.rstrip("\n")


def test_a_bank_goes_on_after_kill_and_after_ctrl_c(tmp_path: Path) -> None:
    orders, looks = sessions()
    with running("-m", "examples.bank", tmp_path, 0) as first:
        port = first.port()
        for command, answer in orders:
            assert request(port, command) == answer
        first.process.kill()
        first.process.wait(60)

    with running("-m", "examples.bank", tmp_path, 0) as second:
        port = second.port()
        # The transfers were stored when they were answered, and go on by themselves.
        for id, last in (("rent", "done"), ("gift", "returned")):
            while json.loads(request(port, f"curl :8090/transfers/{id}"))["step"] != last:
                time.sleep(0.01)
        for command, answer in looks:
            assert request(port, command) == answer
        assert second.interrupt() == 0

    with running("-m", "examples.bank", tmp_path, 0) as third:
        lines = [third.line() for _ in range(3)]
        printed = re.findall(r"^```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)[1]
        assert lines[:2] == printed.splitlines()[:2]


@asynccontextmanager
async def banking(letters: Path) -> AsyncIterator[tuple[Node, Peer]]:
    with trio.fail_after(60):
        async with open_node("bank@localhost", log_output="none") as node:
            await node.spawn(Bank, MemoryStore(), letters, 0, name="bank")
            port = await node.call("front", "port")
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                yield node, Peer(stream)


async def test_a_letter_is_printed_when_the_printer_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bank, "MONTH", 0.01)
    letters = tmp_path / "letters"
    async with banking(letters) as (node, _):
        letters.rmdir()  # the printer fails, and makes the folder when it starts again
        await node.entity(Account, "ada").call(ask(Account.open))
        while not (letters / "ada-1.txt").exists():  # noqa: ASYNC110 - a file tells no task
            await trio.sleep(0.01)

    assert (letters / "ada-1.txt").read_text(encoding="utf-8").startswith("Statement 1 for ada\n")


@pytest.mark.parametrize(
    "method, path, body, status",
    [
        ("GET", "/accounts/eve", "", 404),
        ("PUT", "/accounts/..%2Feve", "", 400),
        ("PUT", "/accounts/eve/deposits/1", '{"amount": 1}', 404),
        ("PUT", "/accounts/eve/deposits/1", '{"amount": 0}', 400),
        ("PUT", "/accounts/eve/deposits/1", "[]", 400),
        ("PUT", "/transfers/1", '{"source": "ada", "target": "bob", "amount": -1}', 400),
        ("POST", "/accounts", "", 404),
    ],
)
async def test_the_bank_refuses_wrong_requests(
    tmp_path: Path, method: str, path: str, body: str, status: int
) -> None:
    async with banking(tmp_path) as (_, peer):
        asked = get(path, f"Content-Length: {len(body)}", method=method) + body.encode()
        assert (await peer.ask(asked)).status == status
