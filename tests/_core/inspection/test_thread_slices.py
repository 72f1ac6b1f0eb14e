"""A thread that reads many objects pauses so often that the loop never waits for a millisecond."""

import pytest

from ergo_py._core.inspection.thread_slices import in_slices


@pytest.mark.parametrize("cost", [1e-7, 2e-6, 5e-6, 9e-6])
def test_no_slice_takes_longer_than_a_millisecond(
    cost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, began, slices, read = 0.0, 0.0, list[float](), 0

    def pause(_seconds: float) -> None:
        nonlocal began
        slices.append(clock - began)
        began = clock

    monkeypatch.setattr("ergo_py._core.inspection.thread_slices.sleep", pause)
    monkeypatch.setattr("ergo_py._core.inspection.thread_slices.thread_time", lambda: clock)
    for piece in in_slices(range(10_000)):
        read += len(piece)
        clock += len(piece) * cost

    assert read == 10_000
    assert max(slices) <= 0.001 + 1e-9
    assert len(slices) >= 33


def test_a_piece_is_never_longer_than_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("ergo_py._core.inspection.thread_slices.sleep", pauses.append)
    monkeypatch.setattr("ergo_py._core.inspection.thread_slices.thread_time", lambda: 0.0)

    assert [len(piece) for piece in in_slices(range(450))] == [100, 100, 100, 100, 50]
    assert len(pauses) == 2
    assert [len(piece) for piece in in_slices(range(45), 20)] == [20, 20, 5]
    assert len(pauses) == 4
    assert [len(piece) for piece in in_slices(range(1500), 1000, 1000)] == [1000, 500]
    assert list(in_slices([])) == []
