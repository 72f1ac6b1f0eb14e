"""The advice of the watchdog fits the code that blocks: read from stacks of code that does."""

import traceback
import urllib.request
from http.client import HTTPConnection

import pytest

from ergo_py._core.inspection.blocking_advice import advice_for

LIBRARY = '  File "/usr/lib/python3.11/{}.py", line 1, in f\n    return self.g(x)\n'
PROGRAM = '  File "/home/me/shop.py", line 7, in handle_message\n    {}\n'


@pytest.mark.parametrize(
    "stack, advice",
    [
        (PROGRAM.format("time.sleep(5)"), "await trio.sleep"),
        (PROGRAM.format("time.sleep(5)") + "    ~~~~~~~~~~^^^\n", "await trio.sleep"),
        (PROGRAM.format("rows = self.db.execute(text)"), "BlockingCalls"),
        (PROGRAM.format("data = sock.recv(100)"), "TCPConnection"),
        (PROGRAM.format("subprocess.run(args)") + LIBRARY.format("subprocess"), "Port runs it"),
        (PROGRAM.format("self.done.wait()") + LIBRARY.format("threading"), "node.send"),
        (
            PROGRAM.format("requests.get(url)")
            + LIBRARY.format("requests/api")
            + LIBRARY.format("socket"),
            "over HTTP",
        ),
        (PROGRAM.format("total += x * x"), "ProcessCalls or a worker node"),
        (PROGRAM.format("self.execute(order)") + PROGRAM.format("x += 1"), "ProcessCalls"),
        (PROGRAM.format('line = ",".join(map(str, rows))'), "ProcessCalls"),
        (PROGRAM.format("worker.join()"), "node.send"),
        ('  File "/home/me/requests/app.py", line 7, in f\n    total += 1\n', "ProcessCalls"),
        ("", "ProcessCalls"),
    ],
    ids=[
        "sleep",
        "underlined",
        "database",
        "socket",
        "program",
        "thread",
        "HTTP",
        "loop",
        "outer",
        "text",
        "join",
        "module of the program",
        "empty",
    ],
)
def test_the_advice_fits_the_code_that_blocks(stack: str, advice: str) -> None:
    assert advice in advice_for(stack)


class Stopped(Exception):
    pass


def stack_of_a_request(monkeypatch: pytest.MonkeyPatch) -> str:
    stacks: list[str] = []

    def connect(_: HTTPConnection) -> None:
        stacks.append("".join(traceback.format_stack()[:-1]))
        raise Stopped

    monkeypatch.setattr(HTTPConnection, "connect", connect)
    with pytest.raises(Stopped):
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open("http://127.0.0.1:9/")
    return stacks[0]


def test_the_frames_of_a_real_request_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "over HTTP" in advice_for(stack_of_a_request(monkeypatch))
