"""The reader of frames: whole frames in order, however the bytes are cut, in passes of a time
slice.
"""

import socket
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py._core import sources
from ergo_py.network.carriers import frame_reader
from ergo_py.network.carriers.frame_reader import HEADER, FrameReader, PartialFrames, ProtocolError


class Passes:
    """A network that notes the frames of each pass."""

    def __init__(self) -> None:
        self.passes: list[list[bytes]] = []
        self.is_open = False

    def begin_pass(self, reader: Any) -> None:
        assert not self.is_open
        self.is_open = True
        self.passes.append([])

    def frame(self, sender: str, data: bytes | memoryview) -> None:
        assert self.is_open
        self.passes[-1].append(bytes(data))

    def end_pass(self, reader: Any) -> None:
        self.is_open = False

    @property
    def frames(self) -> list[bytes]:
        return [frame for frames in self.passes for frame in frames]


def wire(*frames: bytes) -> bytes:
    return b"".join(HEADER.pack(len(frame)) + frame for frame in frames)


async def read_all(
    pieces: list[bytes], longest: int = 100, partial_frames: PartialFrames | None = None
) -> Passes:
    ours, theirs = socket.socketpair()
    sink: Any = Passes()
    with ours, theirs:
        ours.setblocking(False)
        reader = FrameReader(ours, partial_frames or PartialFrames(1 << 20))

        async def write() -> None:
            for piece in pieces:
                theirs.sendall(piece)
                await trio.testing.wait_all_tasks_blocked()
            theirs.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            assert await reader.first(longest) == b"name"
            await reader.run("b@test", sink, longest)
    assert not sink.is_open
    return sink  # type: ignore[no-any-return]


async def test_frames_arrive_whole_and_in_order_wherever_the_bytes_are_cut() -> None:
    frames = [b"one", b"", b"three", b"x" * 40]
    data = wire(b"name", *frames)
    for cut in range(len(data)):
        assert (await read_all([data[:cut], data[cut:]])).frames == frames
    assert (await read_all([bytes([byte]) for byte in data])).frames == frames


async def test_frames_that_arrive_together_are_a_single_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "slice_clock", lambda: 0.0)

    found = await read_all([wire(b"name"), wire(b"a", b"b", b"c"), wire(b"d")])

    assert [frames for frames in found.passes if frames] == [[b"a", b"b", b"c"], [b"d"]]


async def test_a_pass_ends_after_a_time_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr(sources, "slice_clock", lambda: float(next(ticks)))

    found = await read_all([wire(b"name", b"a", b"b", b"c")])

    assert [frames for frames in found.passes if frames] == [[b"a"], [b"b"], [b"c"]]


async def test_a_frame_larger_than_a_read_is_put_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frame_reader, "CHUNK", 64)
    large = bytes(range(250))

    found = await read_all([wire(b"name", large, b"next", large)], longest=1000)

    assert found.frames == [large, b"next", large]


@pytest.mark.parametrize("frames", [[], [b"name"], [b"name", b"fine"]])
async def test_a_frame_that_is_too_long_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await read_all([wire(*frames) + HEADER.pack(101)])

    assert caught.group_contains(ProtocolError)


async def test_a_connection_that_ends_early_has_no_first_frame() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        theirs.sendall(HEADER.pack(10) + b"half")
        theirs.close()

        assert await FrameReader(ours, PartialFrames(100)).first(100) == b""


async def test_the_bytes_of_half_frames_of_all_connections_are_bounded() -> None:
    partial_frames = PartialFrames(60)
    whole = wire(b"name") + wire(b"x" * 40)
    pieces = [whole[begin : begin + 10] for begin in range(0, len(whole), 10)]
    sink = await read_all(pieces, partial_frames=partial_frames)
    assert sink.frames == [b"x" * 40]

    partial_frames.take(60)  # the frame was given back when it was whole
    with pytest.raises(ExceptionGroup) as caught:
        await read_all(pieces, partial_frames=partial_frames)
    assert caught.group_contains(ProtocolError)
    partial_frames.give_back(44)
    assert (await read_all(pieces, partial_frames=partial_frames)).frames == [b"x" * 40]
