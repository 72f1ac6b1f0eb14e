import pytest

from ergo_py import ChildSpec, Node, Published, TargetDownError
from ergo_py.meta import TCP
from ergo_py.testing import Alone, Probe, VirtualClock
from poll import Metrics, Obeyed, Poll, Session, Share, Vote


async def test_votes_are_counted() -> None:
    alone = Alone(Poll, "tea", "coffee")

    await alone.message(Vote("tea"))
    await alone.message(Vote("coffee"))

    assert await alone.call(Share("tea")) == 0.5


async def test_a_session_answers_its_peer(node: Node) -> None:
    await node.supervise([ChildSpec("poll", Poll, "tea"), ChildSpec("metrics", Metrics)])
    peer = await Probe.start(node)
    session = await node.spawn(Session)

    await peer.do(lambda peer: peer.send(session, TCP.Data(peer.create_alias(), b"vote tea")))

    await peer.expect(TCP.Send(b"thank you\n"))


@pytest.mark.ergo_node(expect_crash=ZeroDivisionError)
async def test_a_poll_without_votes_fails_and_comes_back(node: Node) -> None:
    await node.supervise([ChildSpec("poll", Poll, "tea")])
    poll = node.service("poll")

    with pytest.raises(TargetDownError):
        await poll.call(Share("tea"))
    poll.send(Vote("tea"))

    assert await poll.call(Share("tea")) == 1.0


async def test_metrics_are_published_every_second(node: Node, virtual_clock: VirtualClock) -> None:
    metrics = await node.spawn(Metrics)
    listener = await Probe.start(node)
    await listener.subscribe("metrics")

    node.send(metrics, Obeyed("vote", 0.002))
    published = await listener.expect(Published, timeout=1.5)

    assert published.message == {"vote": 1}
    assert virtual_clock.current_time() == 1.0
