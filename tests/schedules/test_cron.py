"""Times of the calendar: fields, time zones, clock changes, and texts that are refused."""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given
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


MINUTES = {
    "*": range(60),
    "*/7": range(0, 60, 7),
    "0": [0],
    "5,50": [5, 50],
    "0-59/20": [0, 20, 40],
    "15,30": [15, 30],
    "45": [45],
}
HOURS = {
    "*": range(24),
    "0-23": range(24),
    "*/6": range(0, 24, 6),
    "*/2": range(0, 24, 2),
    "2": [2],
    "0": [0],
    "1-3": [1, 2, 3],
    "23": [23],
    "3,12": [3, 12],
}
DAYS = {"*": range(1, 32), "1-15": range(1, 16), "*/2": range(1, 32, 2)}


def slowly_after(
    fields: tuple[str, str, str], zone: ZoneInfo, begin: datetime, end: datetime
) -> datetime | None:
    """The first time after a moment, minute by minute; None if there is none until the end."""
    minute, hour, day = MINUTES[fields[0]], HOURS[fields[1]], DAYS[fields[2]]
    found = []
    moment = begin.replace(second=0, microsecond=0) - timedelta(hours=26)
    while moment <= end + timedelta(hours=26):
        if len(hour) == 24:  # in real time
            wall, instant = moment.astimezone(zone), moment
        else:  # each minute on the wall clock, also a minute that is left out
            wall = moment.replace(tzinfo=zone, fold=0)
            instant = wall.astimezone(UTC)
        if (
            begin < instant <= end
            and wall.minute in minute
            and wall.hour in hour
            and wall.day in day
        ):
            found.append(instant)
        moment += timedelta(minutes=1)
    return min(found, default=None)


@given(
    fields=st.tuples(
        st.sampled_from(list(MINUTES)), st.sampled_from(list(HOURS)), st.sampled_from(list(DAYS))
    ),
    change=st.sampled_from(
        [
            ("Europe/Berlin", "2026-10-25T01:00"),
            ("Europe/Berlin", "2027-03-28T01:00"),
            ("America/New_York", "2026-11-01T06:00"),
            ("America/Sao_Paulo", "2018-11-04T03:00"),
            ("Australia/Lord_Howe", "2026-10-03T15:30"),
            ("Australia/Lord_Howe", "2027-04-03T15:00"),
            ("Antarctica/Troll", "2027-03-28T01:00"),
            ("Antarctica/Troll", "2026-10-25T01:00"),
            ("Africa/Casablanca", "2027-02-07T02:00"),
            ("Pacific/Apia", "2011-12-30T10:00"),
        ]
    ),
    seconds=st.integers(-40 * 3600, 40 * 3600),
)
@example(("0-59/20", "0-23", "*"), ("Australia/Lord_Howe", "2027-04-03T15:00"), -1200)
@example(("15,30", "2", "*"), ("Australia/Lord_Howe", "2026-10-03T15:30"), -7200)
def test_around_a_clock_change_the_next_time_is_that_of_a_slow_search(
    fields: tuple[str, str, str], change: tuple[str, str], seconds: int
) -> None:
    zone, moment = ZoneInfo(change[0]), datetime.fromisoformat(change[1]).replace(tzinfo=UTC)
    cron = Cron(" ".join([*fields, "*", "*"]), zone)
    begin = moment + timedelta(seconds=seconds)
    end = begin + timedelta(hours=40)
    found = cron.next_after(begin).astimezone(UTC)

    assert (found if found <= end else None) == slowly_after(fields, zone, begin, end)


class CountedZone(tzinfo):
    """Berlin; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        self.asked += 1
        return None if moment is None else BERLIN.utcoffset(moment.replace(tzinfo=BERLIN))

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else BERLIN.dst(moment.replace(tzinfo=BERLIN))

    def tzname(self, moment: datetime | None) -> str:
        return "Berlin"

    def fromutc(self, moment: datetime) -> datetime:
        self.asked += 1
        return moment.replace(tzinfo=UTC).astimezone(BERLIN).replace(tzinfo=self)


@pytest.mark.parametrize("text", ["* * * * * *", "* * * * *", "30 2 * * *", "0 0 29 2 *"])
@pytest.mark.parametrize("hours", [-30, -2, 0, 2, 30])
def test_a_clock_change_makes_no_search_second_by_second(text: str, hours: int) -> None:
    zone = CountedZone()
    found = Cron(text, zone).next_after(
        datetime(2026, 10, 25, 1, tzinfo=UTC) + timedelta(hours=hours)
    )

    assert found.tzinfo is zone
    assert zone.asked < 100


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
