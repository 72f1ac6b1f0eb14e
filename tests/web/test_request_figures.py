"""Durations and numbers of requests, for the metrics of the node."""

from hypothesis import given
from hypothesis import strategies as st

from ergo_py import Reject
from ergo_py.telemetry import read_figures, render_metrics
from ergo_py.telemetry.figures import Figures
from ergo_py.web import HTTPError, HTTPRequest, Response, Route
from ergo_py.web.request_figures import BOUNDS, RequestFigures
from tests.web.rig import get, later, post, serving, until


def counted(figures: Figures) -> dict[tuple[str, str, str], int]:
    return {key: sum(counts) for key, (counts, _) in figures.requests.items()}


def answer(request: HTTPRequest) -> object:
    match request:
        case HTTPRequest("GET", ("orders", *_)):
            return Response(200, "ok")
        case HTTPRequest("GET", ("crash", *_)):
            raise ValueError("told to")
    raise Reject(HTTPError(404))


async def test_responses_are_counted_by_method_route_and_status() -> None:
    async with serving(answer, routes=[Route("/orders"), Route("/shop")], metrics=True) as served:
        for _ in range(2):
            await served.ask(get("/orders/17?secret=1"))
        await served.ask(get("/orders", method="BREW"))
        await served.ask(post("/shop/cart", b"x"))
        await served.ask(get("/nowhere"))
        await served.ask(b"GET / HTTP/1.1\r\n\r\n")
        figures = read_figures(served.node)

        assert counted(figures) == {
            ("GET", "/orders", "200"): 2,
            ("_OTHER", "/orders", "404"): 1,
            ("POST", "/shop", "404"): 1,
            ("GET", "", "404"): 1,
        }
        assert figures.active_requests == 0
        text = render_metrics(served.node)[1].decode()
        assert (
            'http_server_request_duration_seconds_count{node="web@localhost",method="GET",'
            'route="/orders",status="200"} 2' in text
        )


async def test_requests_under_way_are_counted_until_their_end() -> None:
    async with serving(later, metrics=True) as served:
        first, second = await served.dial(), await served.dial()
        await first.send(get())
        await until(lambda: read_figures(served.node).active_requests == 1)
        await second.send(get())
        await until(lambda: read_figures(served.node).active_requests == 2)
        await first.aclose()
        await until(lambda: read_figures(served.node).active_requests == 1)
        served.run(lambda owner: owner.reply(owner.callers[1], Response(204)))
        await second.reply()

        figures = read_figures(served.node)
        assert (figures.active_requests, counted(figures)) == (0, {("GET", "/", "204"): 1})


async def test_a_server_without_metrics_counts_nothing() -> None:
    async with serving() as served:
        await served.ask(get())
        figures = read_figures(served.node)

        assert (figures.active_requests, figures.requests) == (None, {})


@given(
    st.lists(
        st.tuples(st.sampled_from(["GET", "X"]), st.integers(200, 599), st.floats(0, 20)),
        max_size=30,
    )
)
def test_every_response_is_in_a_single_class(responses: list[tuple[str, int, float]]) -> None:
    figures = RequestFigures()
    for method, status, seconds in responses:
        figures.begin()
        figures.finish(method, "/", status, seconds)

    found = figures.read()
    assert sum(sum(counts) for counts, _ in found.values()) == len(responses)
    assert figures.active == 0
    for (verb, _, shown), (counts, total) in found.items():
        mine = [
            seconds
            for method, status, seconds in responses
            if (str(status), method == "GET") == (shown, verb == "GET")
        ]
        assert abs(total - sum(mine)) < 1e-6
        assert sum(counts[: len(BOUNDS)]) == sum(1 for each in mine if each <= BOUNDS[-1])


def test_the_number_of_combinations_is_bounded() -> None:
    figures = RequestFigures()
    for number in range(1500):
        figures.finish("GET", f"/{number}", 200, 0.1)

    found = figures.read()
    assert len(found) == 1001
    assert sum(found["_OTHER", "other", "other"][0]) == 500
