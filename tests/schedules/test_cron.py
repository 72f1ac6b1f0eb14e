"""Times of the calendar: fields, time zones, clock changes, and texts that are refused."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergo_py import BadInputError, Cron

ZONES = available_timezones()
pytestmark = pytest.mark.skipif(not ZONES, reason="there is no database of time zones here")
BERLIN = ZoneInfo("Europe/Berlin") if ZONES else UTC


def times(cron: Cron, begin: datetime, count: int) -> list[str]:
    found = []
    for _ in range(count):
        begin = cron.next_after(begin)
        found.append(begin.strftime("%Y-%m-%d %H:%M:%S %Z"))
    return found


@pytest.mark.parametrize(
    "text, expected",
    [
        ("* * * * *", "2026-03-01 00:01:00"),
        ("*/15 * * * *", "2026-03-01 00:15:00"),
        ("30 9 * * mon-fri", "2026-03-02 09:30:00"),
        ("0 0 29 2 *", "2028-02-29 00:00:00"),
        ("5/20 * * * *", "2026-03-01 00:05:00"),
        ("10-20/5 8,12 * * *", "2026-03-01 08:10:00"),
        ("0 12 * jan,dec *", "2026-12-01 12:00:00"),
        ("0 0 * * 7", "2026-03-08 00:00:00"),
        ("0 0 13 * fri", "2026-03-06 00:00:00"),
        ("*/10 * * * * *", "2026-03-01 00:00:10"),
        ("30 0 0 * * *", "2026-03-01 00:00:30"),
        ("0 0 31 * *", "2026-03-31 00:00:00"),
        ("@monthly", "2026-04-01 00:00:00"),
        ("@YEARLY", "2027-01-01 00:00:00"),
        ("  0   6  *  *  SUN ", "2026-03-01 06:00:00"),
    ],
)
def test_the_next_time_after_a_sunday_midnight(text: str, expected: str) -> None:
    begin = datetime(2026, 3, 1, tzinfo=UTC)

    assert times(Cron(text), begin, 1) == [f"{expected} UTC"]


def test_a_time_that_the_clock_change_leaves_out_runs_later_and_once() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")
    begin = datetime(2026, 3, 28, 12, tzinfo=BERLIN)

    assert times(cron, begin, 3) == [
        "2026-03-29 03:30:00 CEST",
        "2026-03-30 02:30:00 CEST",
        "2026-03-31 02:30:00 CEST",
    ]


def test_a_time_that_comes_twice_runs_once() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")
    begin = datetime(2026, 10, 24, 12, tzinfo=BERLIN)

    assert times(cron, begin, 2) == ["2026-10-25 02:30:00 CEST", "2026-10-26 02:30:00 CET"]


def test_a_schedule_of_every_hour_goes_on_in_real_time_through_clock_changes() -> None:
    cron = Cron("*/30 * * * *", "Europe/Berlin")
    for begin in (datetime(2026, 10, 25, tzinfo=BERLIN), datetime(2026, 3, 29, tzinfo=BERLIN)):
        moment = begin
        for _ in range(10):
            following = cron.next_after(moment)
            assert following.astimezone(UTC) - moment.astimezone(UTC) == timedelta(minutes=30)
            moment = following


def test_two_times_that_meet_in_a_gap_run_once() -> None:
    cron = Cron("30 2,3 * * *", "Europe/Berlin")
    begin = datetime(2026, 3, 29, tzinfo=BERLIN)

    assert times(cron, begin, 2) == ["2026-03-29 03:30:00 CEST", "2026-03-30 02:30:00 CEST"]


@given(
    fields=st.tuples(
        st.sampled_from(["*", "*/7", "0", "5,50"]),
        st.sampled_from(["*", "*/6", "2", "1-3", "23"]),
        st.sampled_from(["*", "1", "15,31", "*/9"]),
        st.sampled_from(["*", "3", "10", "feb-apr"]),
        st.sampled_from(["*", "0", "mon-fri", "6,7"]),
    ),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    begin=st.integers(0, 6 * 366 * 24 * 3600).map(
        lambda seconds: datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    ),
)
def test_the_next_time_is_later_and_nothing_lies_between(
    fields: tuple[str, ...], zone: str, begin: datetime
) -> None:
    cron = Cron(" ".join(fields), zone)
    found = cron.next_after(begin)

    assert found > begin
    assert found.second == 0
    # From any moment before, the same time comes next.
    middle = begin + (found - begin) / 2
    assert cron.next_after(middle.replace(microsecond=0)) == found or middle >= found
    assert cron.next_after(found - timedelta(seconds=1)) == found


@pytest.mark.parametrize(
    "text, words",
    [
        ("* * * *", "five fields"),
        ("* * * * * * *", "five fields"),
        ("", "five fields"),
        ("60 * * * *", "minute: got '60'"),
        ("* 24 * * *", "the hour"),
        ("* * 0 * *", "the day of the month"),
        ("* * * 13 *", "jan-dec"),
        ("* * * * 8", "sun-sat"),
        ("* * * * lun", "the day of the week"),
        ("5-1 * * * *", "ranges a-b"),
        ("*/0 * * * *", "steps"),
        ("*/x * * * *", "steps"),
        ("1,,2 * * * *", "with commas"),
        ("-1 * * * *", "the minute"),
        ("٣ * * * *", "the minute"),
        ("0 0 30 2 *", "a date that exists"),
        (5, "a text"),
    ],
)
def test_a_wrong_text_is_refused_with_its_field(text: Any, words: str) -> None:
    with pytest.raises(BadInputError) as caught:
        Cron(text)

    assert words in str(caught.value)


@pytest.mark.parametrize("zone", ["Mars/Base", "", 5, "../etc/passwd"])
def test_a_wrong_time_zone_is_refused(zone: Any) -> None:
    with pytest.raises(BadInputError, match="time zone"):
        Cron("* * * * *", zone)


def test_a_moment_without_a_time_zone_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"datetime\.now\(UTC\)"):
        Cron("* * * * *").next_after(datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None))


def test_crons_are_compared_by_their_times() -> None:
    assert Cron("@daily") == Cron("0 0 * * *")
    assert len({Cron("@daily"), Cron("0 0 0 * * *")}) == 1
    assert Cron("@daily") != Cron("@daily", "Europe/Berlin")
    assert repr(Cron("@daily")) == "Cron('@daily', 'UTC')"
