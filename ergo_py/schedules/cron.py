"""`Cron`: times of the calendar, as cron writes them, in a time zone. Without a clock: pure."""

from bisect import bisect
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.public_names import show_public_names

__all__ = ["Cron"]

_MONTHS: Final = {
    "jan": 1,
    "feb": 2,
    "mar": 3,
    "apr": 4,
    "may": 5,
    "jun": 6,
    "jul": 7,
    "aug": 8,
    "sep": 9,
    "oct": 10,
    "nov": 11,
    "dec": 12,
}
_DAYS: Final = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_SHORT: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS: Final[tuple[tuple[str, int, int, Mapping[str, int]], ...]] = (
    ("second", 0, 59, {}),
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)
_SOME_DAY: Final = datetime(2024, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_FAR: Final = timedelta(days=366 * 9)
"""Every date that exists at all comes within eight years, also a 29 February."""
_LONGEST_SHIFT: Final = timedelta(hours=25)
"""No clock change is larger: Samoa once left out a day."""
_SECOND: Final = timedelta(seconds=1)


class Cron:
    """Times of the calendar: five fields as in cron, or six, of which the first is the seconds.

    ``Cron("30 9 * * mon-fri", "Europe/Berlin")`` is half past nine on working days. A field is
    ``*``, a number or a name, a range ``9-17``, a step ``*/5`` or ``9-17/2``, or a list of these
    with commas. If both the day of the month and the day of the week are restricted, either
    suffices. ``@hourly``, ``@daily``, ``@weekly``, ``@monthly`` and ``@yearly`` are short forms.

    When clocks change, a time with a fixed hour runs exactly once: a time that is left out runs as
    much later as the clock moves, and of a time that comes twice the first counts. Where the hour
    is ``*``, the schedule goes on in real time.

    Args:
        text: the fields.
        timezone: the name of a time zone, or a ``tzinfo``; by default UTC.

    Raises:
        BadInputError: the text or the time zone is wrong; the error names the field.
    """

    __slots__ = ("_any_hour", "_fields", "_is_either_day", "text", "timezone")

    def __init__(self, text: str, timezone: str | tzinfo = "UTC") -> None:
        if not isinstance(text, str):
            raise BadInputError("Cron(text)", text, 'a text such as "*/5 9-17 * * mon-fri"')
        self.text: Final = text
        self.timezone: Final = _zone(timezone)
        parts = _SHORT.get(text.strip().lower(), text).lower().split()
        if len(parts) == 5:
            parts.insert(0, "0")
        if len(parts) != 6:
            raise BadInputError(
                "Cron(text)",
                text,
                "five fields, minute, hour, day of the month, month and day of the week, with the "
                'seconds before them if wanted: "*/5 9-17 * * mon-fri"',
            )
        fields = [_values(part, *field) for part, field in zip(parts, _FIELDS, strict=True)]
        # Sunday is 0 and 7.
        fields[5] = frozenset(day % 7 for day in fields[5])
        self._fields = tuple(tuple(sorted(values)) for values in fields)
        self._is_either_day = not (parts[3].startswith("*") or parts[5].startswith("*"))
        self._any_hour = len(self._fields[2]) == 24
        self._next_wall(_SOME_DAY)

    def __repr__(self) -> str:
        return f"Cron({self.text!r}, {str(self.timezone)!r})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Cron)
            and (self._fields, self._is_either_day) == (other._fields, other._is_either_day)
            and str(self.timezone) == str(other.timezone)
        )

    def __hash__(self) -> int:
        return hash((self._fields, self._is_either_day, str(self.timezone)))

    def next_after(self, moment: datetime) -> datetime:
        """The first time after a moment, in the time zone of the schedule.

        Raises:
            BadInputError: the moment has no time zone.
        """
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            raise BadInputError(
                "next_after(moment)", moment, "a datetime with a time zone: datetime.now(UTC)"
            )
        return self._after(moment.astimezone(UTC)).astimezone(self.timezone)

    def _after(self, now: datetime) -> datetime:
        change = self._change_near(now)
        if change is None:
            wall = self._next_wall(now.replace(tzinfo=None) + self._offset(now))
            found = wall.replace(tzinfo=self.timezone).astimezone(UTC)
            change = self._change_near(found)
            if change is None:
                return found
            now = max(now, found - _LONGEST_SHIFT)  # nothing lies between
        return self._after_near(now, *change)

    def _after_near(
        self, now: datetime, changed: datetime, before: timedelta, after: timedelta
    ) -> datetime:
        """The next time near a clock change: by the clock before it, or by the clock after it."""
        start = now.replace(tzinfo=None)
        end = begin = changed.replace(tzinfo=None)
        if not self._any_hour:
            # Times that are left out run by the clock before the change; of times that come twice,
            # those of the clock after it do not count.
            end += max(after - before, timedelta())
            begin += max(before - after, timedelta())
        old = self._next_wall(start + before) - before
        new = self._next_wall(max(start, begin - _SECOND) + after) - after
        found = min(old, new) if old < end else new
        far = changed + _LONGEST_SHIFT
        # The clock may have changed again before a time that is far away.
        return found.replace(tzinfo=UTC) if found <= far.replace(tzinfo=None) else self._after(far)

    def _change_near(self, now: datetime) -> tuple[datetime, timedelta, timedelta] | None:
        """The moment of a clock change near a moment, and the offsets before and after it."""
        low = now.replace(microsecond=0) - _LONGEST_SHIFT
        high = low + 2 * _LONGEST_SHIFT
        before, after = self._offset(low), self._offset(high)
        if before == after:
            return None
        while high - low > _SECOND:
            middle = low + (high - low) // _SECOND // 2 * _SECOND
            if self._offset(middle) == before:
                low = middle
            else:
                high = middle
        return high, before, after

    def _offset(self, moment: datetime) -> timedelta:
        offset = moment.astimezone(self.timezone).utcoffset()
        assert offset is not None
        return offset

    def _next_wall(self, wall: datetime) -> datetime:
        """The first time on the wall clock after another.

        Raises:
            BadInputError: there is none.
        """
        seconds, minutes, hours, _days, months, _week = self._fields
        wall = wall.replace(microsecond=0) + timedelta(seconds=1)
        end = wall + _FAR
        while wall < end:
            if wall.month not in months:
                wall = _start_of_month(wall)
            elif not self._has_day(wall):
                wall = wall.replace(hour=0, minute=0, second=0) + timedelta(days=1)
            elif wall.hour not in hours:
                wall = wall.replace(minute=0, second=0)
                wall += timedelta(hours=_steps(hours, wall.hour, 24))
            elif wall.minute not in minutes:
                wall = wall.replace(second=0)
                wall += timedelta(minutes=_steps(minutes, wall.minute, 60))
            elif wall.second not in seconds:
                wall += timedelta(seconds=_steps(seconds, wall.second, 60))
            else:
                return wall
        raise BadInputError("Cron(text)", self.text, "a date that exists")

    def _has_day(self, wall: datetime) -> bool:
        in_month = wall.day in self._fields[3]
        in_week = wall.isoweekday() % 7 in self._fields[5]
        return in_month or in_week if self._is_either_day else in_month and in_week


def _steps(values: tuple[int, ...], at: int, size: int) -> int:
    """The steps from a value of a field to the next that is allowed."""
    return (values[bisect(values, at) % len(values)] - at) % size


def _start_of_month(wall: datetime) -> datetime:
    first = wall.replace(day=1, hour=0, minute=0, second=0)
    return (first + timedelta(days=32)).replace(day=1)


def _zone(given: str | tzinfo) -> tzinfo:
    if isinstance(given, tzinfo):
        return given
    if given == "UTC":  # needs no database of time zones
        return UTC
    try:
        return ZoneInfo(given)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise BadInputError(
            "Cron(timezone)",
            given,
            'the name of a time zone, such as "Europe/Berlin", or a tzinfo; on a system without a '
            "database of time zones, install the package tzdata",
        ) from None


def _values(
    part: str, field: str, least: int, most: int, names: Mapping[str, int]
) -> frozenset[int]:
    """The numbers that a field allows."""
    found: set[int] = set()
    for item in part.split(","):
        span, slash, step_text = item.partition("/")
        if span == "*":
            first, last = least, most
        else:
            begin, dash, end = span.partition("-")
            first = _number(begin, item, field, least, most, names)
            last = _number(end, item, field, least, most, names) if dash else first
            if slash and not dash:
                last = most
        step = int(step_text) if step_text.isascii() and step_text.isdigit() else 0
        if first > last or (slash and step < 1):
            raise _wrong(item, field, least, most, names)
        found.update(range(first, last + 1, step if slash else 1))
    return frozenset(found)


def _number(
    text: str, item: str, field: str, least: int, most: int, names: Mapping[str, int]
) -> int:
    if text in names:
        return names[text]
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise _wrong(item, field, least, most, names)
    return int(text)


def _wrong(item: str, field: str, least: int, most: int, names: Mapping[str, int]) -> BadInputError:
    ordered = sorted(names, key=names.__getitem__)
    words = f" or {ordered[0]}-{ordered[-1]}" if ordered else ""
    return BadInputError(
        f"Cron(text), the {field}",
        item,
        f"*, numbers from {least} to {most}{words}, ranges a-b and steps */n or "
        "a-b/n, with commas between",
    )


show_public_names(__name__)
