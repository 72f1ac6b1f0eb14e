from ergo_py._core.inspection.loop_delays import BOUNDS, LoopDelays


def test_delays_are_counted_by_class() -> None:
    delays = LoopDelays()
    for seconds in (0.0, BOUNDS[0], 0.002, 60.0):
        delays.add(seconds)

    counts, total = delays.read()

    assert (counts[0], counts[1], counts[-1], sum(counts)) == (2, 1, 1, 4)
    assert total == 60.003
