"""`advice_for`: what to write in place of the code that blocks the loop."""

import re
from typing import Final, NamedTuple

__all__ = ["advice_for"]

_LIBRARIES: Final = r"(?:(?:site|dist)-packages|python3\.\d+t?|[/\\]Lib)"
"""The directories of libraries: a program may have modules of the same names."""
_NO_TEXT: Final = r"(?<![\"']\.)(?<!path\.)"
"""The join of texts and of paths is no join of a thread."""
_IN_A_THREAD: Final = "`await self.run_task(function, …)` makes it in a thread"


class _Kind(NamedTuple):
    """Code that blocks, and the code to write instead."""

    modules: str
    """The libraries whose frames are on the stack."""
    calls: str
    """The calls in the innermost line, for functions in C, which have no frames."""
    advice: str

    def fits(self, stack: str, line: str) -> bool:
        """Whether the stack, or its innermost line, shows this code."""
        in_library = rf"{_LIBRARIES}[/\\](?:{self.modules})(?:\.py\"|[/\\])"
        call = rf"{_NO_TEXT}\b(?:{self.calls})\("
        return bool(re.search(in_library, stack) or re.search(call, line))


_KINDS: Final = (
    _Kind(
        r"requests|urllib3|httpx|httpcore|http.client|urllib.request",
        "urlopen",
        f"a request over HTTP blocks: {_IN_A_THREAD}; AsyncioCalls owns a client of asyncio",
    ),
    _Kind(
        "subprocess",
        "system|popen|waitpid",
        "a program blocks: the meta-process Port runs it, and sends its output as messages",
    ),
    _Kind(
        "sqlite3|psycopg|psycopg2|pymysql",
        "execute|executemany|executescript|commit|fetchall|fetchone",
        "a database blocks: the meta-process BlockingCalls owns the connection in a thread",
    ),
    _Kind(
        "socket|ssl|socketserver",
        "recv|recvfrom|accept|connect|sendall",
        "a socket blocks: the meta-processes TCPServer, TCPConnection, UDPServer and UDPClient own "
        "sockets, and send their input as messages",
    ),
    _Kind(
        "threading|queue|concurrent.futures",
        "acquire|join|result",
        "a wait for another thread blocks: let that thread `node.send(…)` its result",
    ),
    _Kind(
        "tenacity|backoff",
        "sleep",
        "`await trio.sleep(…)` instead of `time.sleep(…)`; `self.send_after(…)` lets the process "
        "handle other messages meanwhile",
    ),
)
"""The first that fits counts: an HTTP client waits in a socket."""
_OTHER: Final = (
    "if it computes, ProcessCalls or a worker node does so on another core; if it waits, "
    f"{_IN_A_THREAD}"
)


def advice_for(stack: str) -> str:
    """The code to write in place of the innermost frames of a stack, which block the loop."""
    # Python 3.11 and later underline a part of the innermost line below it.
    lines = [line for line in stack.splitlines() if line.strip(" ^~")] or [""]
    return next((kind.advice for kind in _KINDS if kind.fits(stack, lines[-1])), _OTHER)
