"""The mistakes on the page "Common mistakes", and the text that the framework answers to each.

`make docs` runs this module, which writes the texts into the page.
"""

# The mistakes are on purpose, and type checkers see them.
# pyright: reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false
# pyright: reportUnusedCoroutine=false, reportUnusedExpression=false, reportCallIssue=false
# pyright: reportIncompatibleVariableOverride=false, reportArgumentType=false
# pyright: reportAssignmentType=false, reportIndexIssue=false

import asyncio
import contextlib
import gc
import io
import json
import logging
import re
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import Actor, Caller, ChildSpec, Node, Request, ask, open_node, run
from ergo_py.meta import TCPServer
from tests.pages import ROOT

__all__ = ["MISTAKES", "PAGE", "answer", "rows", "updated"]

PAGE = ROOT / "docs" / "common-mistakes.md"
ROW = re.compile(r"^\| (.+?) \| (``.+``) \|$", re.MULTILINE)


def rows(page: str) -> dict[str, str]:
    """The cells with the texts on a page, by mistake."""
    return dict(ROW.findall(page))


Mistake = Callable[[], object]
MISTAKES: dict[str, Mistake] = {}


ADVICE: set[Mistake] = set()
"""Mistakes that the advice in the line of a crash answers."""


def mistake(title: str, *, advice: bool = False) -> Callable[[Mistake], Mistake]:
    def add(function: Mistake) -> Mistake:
        MISTAKES[title] = function
        if advice:
            ADVICE.add(function)
        return function

    return add


def on_a_node(
    main: Callable[[Node], Awaitable[object]], level: str = "warning", *, debug: bool = False
) -> None:
    async def whole() -> None:
        with trio.fail_after(30):
            async with open_node(
                watchdog=None, log_output="json", log_level=level, debug_shared_state=debug
            ) as node:
                await main(node)

    trio.run(whole)


def spawn(behaviour: Any, *messages: object) -> None:
    """Spawn an actor on a node, and send it messages."""

    async def main(node: Node) -> None:
        pid = await node.spawn(behaviour)
        for message in messages:
            node.send(pid, message)
        await wait_all_tasks_blocked()

    on_a_node(main)


@dataclass(frozen=True)
class Total(Request[int]):
    """The sum so far."""


class Counter(Actor):
    def handle_call(self, request: object, caller: Caller) -> object:
        return 7


# -- starting --------------------------------------------------------------------------------------


@mistake("`asyncio.run(main())`, and `open_node()` in `main`")
def _() -> None:
    async def main() -> None:
        async with open_node():
            pass

    asyncio.run(main())


@mistake("`await asyncio.sleep(1)` in a callback")
def _() -> None:
    class Sleepy(Actor):
        async def handle_message(self, message: object, sender: object) -> None:
            await asyncio.sleep(1)

    spawn(Sleepy, "sleep")


@mistake("`node = open_node()`, then `await node.spawn(Counter)`")
def _() -> None:
    node: Any = open_node()
    node.spawn(Counter)


@mistake("`with open_node() as node:`")
def _() -> None:
    node: Any = open_node()
    with node:
        pass


@mistake("`run(main)` with `async def main():`")
def _() -> None:
    async def main() -> None:
        """No parameter."""

    run(main)  # type: ignore[arg-type]


@mistake("`run(main())`")
def _() -> None:
    async def main(node: Node) -> None:
        """Never runs."""

    node: Any = None
    run(main(node))  # type: ignore[call-overload]


@mistake(
    "`node = await open_node().__aenter__()` in an IPython cell, `node.spawn` in the next cell"
)
def _() -> None:
    async def first_cell() -> Node:
        return await open_node(watchdog=None).__aenter__()

    async def next_cell() -> None:
        await node.spawn(Counter)

    node = trio.run(first_cell)
    trio.run(next_cell)


# -- await -----------------------------------------------------------------------------------------


@mistake("`counter = node.spawn(Counter)`, then `node.send(counter, 5)`")
def _() -> None:
    async def main(node: Node) -> None:
        counter: Any = node.spawn(Counter)
        node.send(counter, 5)

    on_a_node(main)


@mistake("`counter = self.spawn(Counter)`, then `await self.call(counter, Total())`")
def _() -> None:
    class Boss(Actor):
        async def handle_message(self, message: object, sender: object) -> None:
            counter: Any = self.spawn(Counter)
            await self.call(counter, Total())

    spawn(Boss, "go")


@mistake("`total = node.call(counter, Total())`, then `total + 1`")
def _() -> None:
    async def main(node: Node) -> None:
        counter = await node.spawn(Counter)
        total: Any = node.call(counter, Total())
        total + 1

    on_a_node(main)


@mistake("`self.total += self.call(counter, Total())`")
def _() -> None:
    class Sum(Actor):
        def init(self) -> None:
            self.total: Any = 0

        async def handle_message(self, message: Any, sender: object) -> None:
            self.total += self.call(self.pid, Total())

    spawn(Sum, "add")


@mistake("`self.call(counter, Total())` without a use of its result")
def _() -> None:
    class Careless(Actor):
        async def handle_message(self, message: object, sender: object) -> None:
            self.call(self.pid, Total())  # type: ignore[unused-coroutine]

    spawn(Careless, "call")


@mistake("`self.spawn_meta(TCPServer(port=7777))` without a use of its result")
def _() -> None:
    class Careless(Actor):
        async def init(self) -> None:
            self.spawn_meta(TCPServer(port=7777))  # type: ignore[unused-coroutine]

    spawn(Careless)


@mistake("`await node.send(counter, 5)`")
def _() -> None:
    async def main(node: Node) -> None:
        send: Any = node.send
        await send(await node.spawn(Counter), 5)

    on_a_node(main)


@mistake("`def handle_message`, and `return self.call(…)` in it")
def _() -> None:
    class Plain(Actor):
        def handle_message(self, message: object, sender: object) -> Any:
            return self.call(self.pid, Total())

    spawn(Plain, "call")


# -- names -----------------------------------------------------------------------------------------


@mistake("`self.stop = False`")
def _() -> None:
    class Clock(Actor):
        def __init__(self) -> None:
            self.stop = False  # type: ignore[method-assign, assignment]

    spawn(Clock)


@mistake("`self.call = []`")
def _() -> None:
    class Phone(Actor):
        async def init(self) -> None:
            self.call = []  # type: ignore[method-assign, assignment]

    spawn(Phone)


@mistake("`stop: bool = False` in the class")
def _() -> None:
    class Clock(Actor):
        stop: bool = False  # type: ignore[assignment]

    spawn(Clock)


@mistake('`setattr(self, "stop", True)`, later `self.stop()`')
def _() -> None:
    class Clock(Actor):
        def handle_message(self, message: object, sender: object) -> None:
            setattr(self, "stop", True)  # noqa: B010 - the mistake
            self.stop()

    spawn(Clock, "stop")


@mistake("`self.node = None`")
def _() -> None:
    class Leaf(Actor):
        def __init__(self) -> None:
            self.node = None  # type: ignore[misc, assignment]

    spawn(Leaf)


@mistake("`self.log = logging.getLogger()`")
def _() -> None:
    class Chatty(Actor):
        def handle_message(self, message: object, sender: object) -> None:
            logger: Any = logging.getLogger()
            self.log = logger

    spawn(Chatty, "log")


@mistake("`def handle_mesage(self, message, sender)`")
def _() -> None:
    class Counter(Actor):
        def handle_mesage(self, message: object, sender: object) -> None:
            """Never called."""

    spawn(Counter)


@mistake("`def handle_cal(self, request, caller)`, and a call")
def _() -> None:
    class Counter(Actor):
        def handle_cal(self, request: object, caller: Caller) -> int:
            return 7

    async def main(node: Node) -> None:
        await node.call(await node.spawn(Counter), Total())

    on_a_node(main, "error")


@mistake("`def handle_info(self, message)`, as in Elixir")
def _() -> None:
    class Counter(Actor):
        def handle_info(self, message: object) -> None:
            """Never called."""

    spawn(Counter)


@mistake("`def on_start(self)`, as in pykka")
def _() -> None:
    class Counter(Actor):
        def on_start(self) -> None:
            """Never called."""

    spawn(Counter)


@mistake("`def handle_message(self, message)`")
def _() -> None:
    class Counter(Actor):
        def handle_message(self, message: object) -> None:  # type: ignore[override]
            """Cannot be called."""

    spawn(Counter)


# -- addresses, options, answers -------------------------------------------------------------------


@mistake('`node.send("conter", 5)`')
def _() -> None:
    async def main(node: Node) -> None:
        await node.spawn(Counter, name="counter")
        assert not node.send("conter", 5)

    on_a_node(main)


@mistake('`await node.call("conter", Total())`')
def _() -> None:
    async def main(node: Node) -> None:
        await node.spawn(Counter, name="counter")
        await node.call("conter", Total())

    on_a_node(main)


@mistake("`node.spawn(Counter(), …)`")
def _() -> None:
    async def main(node: Node) -> None:
        given: Any = Counter()
        await node.spawn(given)

    on_a_node(main)


@mistake("`node.spawn(Counter, mailbox=100)`")
def _() -> None:
    async def main(node: Node) -> None:
        await node.spawn(Counter, mailbox=100)  # type: ignore[call-arg]

    on_a_node(main)


@mistake("two `open_node()` in a program, and `node.send` to a process of the other node")
def _() -> None:
    async def main(node: Node) -> None:
        async with open_node(watchdog=None, log_output="json") as other:
            node.send(await other.spawn(Counter), 5)

    on_a_node(main)


@mistake("`await ask(counter).add(3)` with an address")
def _() -> None:
    async def main(node: Node) -> None:
        counter: Any = await node.spawn(Counter, name="counter")
        await ask(counter).add(3)  # type: ignore[attr-defined]

    on_a_node(main)


async def fetch(retries: int = 1) -> None: ...


@mistake("`self.run_task(fetch, retries=3)`")
def _() -> None:
    async def main(node: Node) -> None:
        options: Any = {"retries": 3}
        await node.run_task(fetch, **options)

    on_a_node(main)


@mistake("`self.run_task(fetch())`")
def _() -> None:
    async def main(node: Node) -> None:
        given: Any = fetch()
        try:
            await node.run_task(given)
        finally:
            given.close()

    on_a_node(main)


@mistake('`node.publish("price", 7)`, and the topic is `"prices"`')
def _() -> None:
    async def main(node: Node) -> None:
        node.open_topic("prices")
        node.publish("price", 7)

    on_a_node(main)


@mistake("`TCPServer(port=7777, max_conections=100)`")
def _() -> None:
    options: Any = {"max_conections": 100}
    TCPServer(port=7777, **options)


@mistake("`TCPServer(port=7777, backlog=100)`")
def _() -> None:
    options: Any = {"backlog": 100}
    TCPServer(port=7777, **options)


@mistake('`return "fine"` in `handle_inspect`')
def _() -> None:
    class Counter(Actor):
        def handle_inspect(self, *items: str) -> Any:
            return "fine"

    async def main(node: Node) -> None:
        await node.inspect(await node.spawn(Counter))

    on_a_node(main, "critical")


@mistake("`handle_call` without a case for `Total`")
def _() -> None:
    class Counter(Actor):
        def handle_call(self, request: object, caller: Caller) -> object:
            match request:
                case "total":
                    return 7
            return None

    async def main(node: Node) -> None:
        await node.call(await node.spawn(Counter), Total())

    on_a_node(main)


# -- starts and restarts ---------------------------------------------------------------------------


@mistake("`node.spawn(Sum)` without a supervisor, and `Sum` crashes", advice=True)
def _() -> None:
    class Sum(Actor):
        def handle_message(self, message: str, sender: object) -> None:
            int(message)

    spawn(Sum, "five")


@mistake('`ChildSpec(Counter, "counter")`')
def _() -> None:
    ChildSpec(Counter, "counter")  # type: ignore[arg-type]


@mistake('`node.supervise(ChildSpec("counter", Counter))` without a list')
def _() -> None:
    async def main(node: Node) -> None:
        await node.supervise(ChildSpec("counter", Counter))  # type: ignore[arg-type]

    on_a_node(main)


@mistake('`ChildSpec("counter", Counter, restart="always")`')
def _() -> None:
    ChildSpec("counter", Counter, restart="always")  # type: ignore[arg-type]


@mistake("`node.spawn(Stock)`, and `Stock.__init__` needs an argument")
def _() -> None:
    class Stock(Actor):
        def __init__(self, size: int) -> None:
            self.size = size

    async def main(node: Node) -> None:
        await node.spawn(Stock)  # type: ignore[arg-type]

    on_a_node(main)


@mistake("an exception in `init`")
def _() -> None:
    class Stock(Actor):
        def init(self) -> None:
            int("five")

    async def main(node: Node) -> None:
        await node.spawn(Stock)

    on_a_node(main, "critical")


@mistake('`node.spawn(Counter, name="counter")` twice')
def _() -> None:
    async def main(node: Node) -> None:
        for _ in range(2):
            await node.spawn(Counter, name="counter")

    on_a_node(main)


@mistake("`__init__` without `super().__init__()`, and a base that sets `self.total`")
def _() -> None:
    class Base(Actor):
        def __init__(self) -> None:
            self.total = 0

    class Sum(Base):
        def __init__(self) -> None:
            self.count = 0

        def handle_message(self, message: int, sender: object) -> None:
            self.total += message

    spawn(Sum, 5)


# -- messages and calls ----------------------------------------------------------------------------


@mistake("`handle_message` without a case for `Total`")
def _() -> None:
    class Sum(Actor):
        def handle_message(self, message: object, sender: object) -> None:
            match message:
                case int():
                    """Adds it."""

    spawn(Sum, Total())


@mistake("message after message to a process that has ended")
def _() -> None:
    async def main(node: Node) -> None:
        pid = await node.spawn(Counter)
        node.kill(pid)
        await node.wait_ended(pid)
        for _ in range(10):
            node.send(pid, 5)

    on_a_node(main)


@mistake("`node.send(counter, items)`, then `items.append(…)`; with `debug_shared_state=True`")
def _() -> None:
    class Quiet(Actor):
        def handle_message(self, message: object, sender: object) -> None:
            """Keeps it."""

    async def main(node: Node) -> None:
        items = [1]
        node.send(await node.spawn(Quiet), items)
        items.append(2)
        await wait_all_tasks_blocked()

    on_a_node(main, debug=True)


@mistake("`await self.call(self.pid, Total())`")
def _() -> None:
    class Sum(Actor):
        async def handle_message(self, message: object, sender: object) -> None:
            await self.call(self.pid, Total())

    spawn(Sum, 5)


@mistake('`await node.call(counter, Total(), timeout="5s")`')
def _() -> None:
    async def main(node: Node) -> None:
        await node.call(await node.spawn(Counter), Total(), timeout="5s")  # type: ignore[call-overload]

    on_a_node(main)


@mistake("`await node.call(counter, Total())`, and it has ended")
def _() -> None:
    async def main(node: Node) -> None:
        pid = await node.spawn(Counter)
        node.kill(pid)
        await node.wait_ended(pid)
        await node.call(pid, Total())

    on_a_node(main)


@mistake("`await node.call(quiet, Total())`, and `Quiet` has no `handle_call`")
def _() -> None:
    class Quiet(Actor):
        def handle_message(self, message: object, sender: object) -> None:
            """Not called."""

    async def main(node: Node) -> None:
        await node.call(await node.spawn(Quiet), Total())

    on_a_node(main)


# -- the answers -----------------------------------------------------------------------------------


def said(function: Mistake) -> str:
    """The exception, the line of the log, or the warning that answers a mistake."""
    log = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(log):
        gc.collect()  # garbage of other tests, which Python may warn about
        caught.clear()
        warnings.simplefilter("always", RuntimeWarning)
        text = ""
        try:
            function()
        except Exception as error:
            notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("hint")]
            text = " ⏎ ".join((f"{type(error).__name__}: {error}", *notes))
        # Python warns about a coroutine when it is freed: here, not in another test.
        gc.collect()
    if text:
        return text
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    for line in lines:
        if line["event"] == "process crashed":
            if function in ADVICE:
                return str(line["advice"])
            # The lines below the traceback.
            named = re.split(r"^(?:  |Traceback).*\n", line["exception"], flags=re.MULTILINE)[-1]
            return str(named.strip().replace("\n", " ⏎ "))
    [text] = [str(line["event"]) for line in lines if line["level"] != "info"] or [
        f"{each.category.__name__}: {each.message}"
        for each in caught
        if each.category is RuntimeWarning
    ]
    return text


def masked(text: str) -> str:
    """A text without the parts that differ from run to run."""
    text = re.sub(
        r"<(function |coroutine object )?(?:[\w.]|<locals>)*?(\w+)( object)? at 0x[0-9a-f]+>",
        r"<\1\2\3 at 0x…>",
        text,
    )
    # As Python 3.14 says it, and as the versions before do.
    was = r"object \1 can't be used in 'await' expression"
    text = re.sub(r"'(\w+)' object can't be awaited", was, text)
    lines = iter((9, 14))
    text = re.sub(rf"{re.escape(__file__)}:\d+", lambda _: f"…/shop.py:{next(lines)}", text)
    return re.sub(r"\b_\.<locals>\.|  # type: ignore\[.*?\]", "", text)


def answer(title: str) -> str:
    """The cell of the page with the text that answers a mistake."""
    text = masked(said(MISTAKES[title])).replace("|", r"\|")
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"``{space}{text}{space}``"


def updated(page: str) -> str:
    """A page with the present texts."""
    return ROW.sub(lambda row: f"| {row[1]} | {answer(row[1])} |", page)


if __name__ == "__main__":
    # Texts name the module of a class, which `python -m` would call __main__.
    from tests.mistakes import updated

    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
