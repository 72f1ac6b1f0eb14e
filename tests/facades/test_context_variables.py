"""Context variables of the code that uses a verb: a verb runs with a copy of them."""

import json
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import pytest
from structlog.contextvars import bound_contextvars

from ergo_py import Actor, Caller, ChildSpec, Node
from ergo_py.blocking import open_node
from ergo_py.blocking.loop_thread import OwnedNode
from tests.telemetry.rig import Spans, tracing

colour: ContextVar[str] = ContextVar("colour", default="none")


class Painter(Actor):
    """Knows the colour with which it has begun, and the present one."""

    def init(self) -> None:
        self.first = colour.get()

    def handle_call(self, request: object, caller: Caller) -> tuple[str, str]:
        return self.first, colour.get()


async def colour_on_the_loop(*_: object) -> str:
    return colour.get()


def colour_in_a_thread(*_: object) -> str:
    return colour.get()


@pytest.fixture
def node() -> Iterator[OwnedNode]:
    with open_node("colours@localhost", log_output="none", watchdog=None) as node:
        yield node


@pytest.fixture
def green() -> Iterator[None]:
    token = colour.set("green")
    yield
    colour.reset(token)


def spawned(node: OwnedNode) -> str:
    first, now = node.call(node.spawn(Painter), "colours")
    assert first == now
    return str(first)


def supervised(node: OwnedNode) -> str:
    node.supervise([ChildSpec("painter", Painter)])
    return str(node.call("painter", "colours")[0])


VERBS: dict[str, Callable[[OwnedNode], str]] = {
    "run": lambda node: node.run(colour_on_the_loop),
    "run, plain": lambda node: node.run(colour_in_a_thread),
    "run_task": lambda node: node.run_task(colour_on_the_loop).result(60),
    "run_task, plain": lambda node: node.run_task(colour_in_a_thread).result(60),
    "map_stream": lambda node: next(node.map_stream(colour_on_the_loop, [1])),
    "map_stream, plain": lambda node: next(node.map_stream(colour_in_a_thread, [1])),
    "spawn": spawned,
    "supervise": supervised,
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_blocking_verb_runs_with_the_variables_of_its_thread(
    verb: str, node: OwnedNode, green: None
) -> None:
    assert VERBS[verb](node) == "green"


def test_a_blocking_verb_changes_no_variable_of_its_thread(node: OwnedNode, green: None) -> None:
    node.run(lambda _: colour.set("blue"))

    assert colour.get() == "green"
    assert node.run(colour_on_the_loop) == "green"


def test_threads_have_their_own_variables(node: OwnedNode, green: None) -> None:
    found: list[str] = []
    other = threading.Thread(target=lambda: found.append(node.run(colour_on_the_loop)))
    other.start()
    other.join()

    assert (found, node.run(colour_on_the_loop)) == (["none"], "green")


def test_a_running_process_keeps_its_variables_when_it_is_called(node: OwnedNode) -> None:
    painter = node.spawn(Painter)
    token = colour.set("green")
    try:
        assert node.call(painter, "colours") == ("none", "none")
    finally:
        colour.reset(token)


def test_the_start_of_run_main_has_the_variables_of_the_main_thread(
    node: OwnedNode, green: None
) -> None:
    found: list[str] = []

    def start(node: Node) -> None:
        found.append(colour.get())
        node.stop_soon()

    node.run_main(start)

    assert found == ["green"]


def test_log_lines_of_a_verb_have_the_values_that_the_thread_has_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with open_node("colours@localhost", log_output="json", watchdog=None) as node:
        with bound_contextvars(request_id="r-1"):
            node.run(lambda node: node.log.warning("inside"))
        node.run(lambda node: node.log.warning("outside"))

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line.get("request_id")) for line in lines] == [
        ("inside", "r-1"),
        ("outside", None),
    ]


CALLS: dict[str, Callable[[OwnedNode], object]] = {
    "call": lambda node: node.call("painter", "colours"),
    "ask": lambda node: node.ask("painter", "colours").result(60),
    "service": lambda node: node.service("painter").call("colours"),
    "run": lambda node: node.run(lambda node: node.call("painter", "colours")),
}


@pytest.mark.parametrize("verb", CALLS)
def test_a_blocking_call_belongs_to_the_span_of_its_thread(verb: str) -> None:
    spans = Spans()
    with open_node(tracing=tracing(spans), log_output="none", watchdog=None) as node:
        node.supervise([ChildSpec("painter", Painter)])
        with spans.provider.get_tracer("test").start_as_current_span("request"):
            CALLS[verb](node)

    assert spans.parent_of("Painter.handle_call str") == "request"
