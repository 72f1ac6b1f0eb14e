"""`Cron`: times of the calendar, as cron writes them, in a time zone. Without a clock: pure."""

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
_LONGEST_SHIFT: Final = timedelta(hours=3)
"""No clock change is larger."""


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
        if self._next_wall(_SOME_DAY) is None:
            raise BadInputError("Cron(text)", text, "a date that exists")

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
        now = moment.astimezone(UTC)
        found = self._after(now)
        if self._any_hour:
            again = self._again_after(now)
            found = found if again is None else min(found, again)
        return found.astimezone(self.timezone)

    def _after(self, now: datetime) -> datetime:
        """The next time, of those that come twice the first."""
        # A time in a gap runs later than its wall clock says, so begin before.
        begin = now - _LONGEST_SHIFT if self._shifts_near(now) else now
        wall = begin.astimezone(self.timezone).replace(tzinfo=None)
        while True:
            candidate = self._next_wall(wall)
            assert candidate is not None
            wall = candidate
            local = wall.replace(tzinfo=self.timezone)
            instant = local.astimezone(UTC)
            exists = instant.astimezone(self.timezone).replace(tzinfo=None) == wall
            if instant > now and (exists or not self._any_hour):
                return instant

    def _again_after(self, now: datetime) -> datetime | None:
        """The next time in the second pass of an hour that comes twice."""
        if not self._shifts_near(now):
            return None
        later = (now + _LONGEST_SHIFT).astimezone(self.timezone).utcoffset()
        assert later is not None
        wall = self._next_wall((now + later).replace(tzinfo=None))
        assert wall is not None
        local = wall.replace(tzinfo=self.timezone)
        first, second = local.utcoffset(), local.replace(fold=1).utcoffset()
        assert first is not None
        assert second is not None
        return local.replace(fold=1).astimezone(UTC) if first > second else None

    def _shifts_near(self, now: datetime) -> bool:
        before, after = (
            (now + step).astimezone(self.timezone).utcoffset()
            for step in (-_LONGEST_SHIFT, _LONGEST_SHIFT)
        )
        return before != after

    def _next_wall(self, wall: datetime) -> datetime | None:
        """The first time on the wall clock after another; None if there is none."""
        seconds, minutes, hours, _days, months, _week = self._fields
        wall = wall.replace(microsecond=0) + timedelta(seconds=1)
        end = wall + _FAR
        while wall < end:
            if wall.month not in months:
                wall = _start_of_month(wall)
            elif not self._has_day(wall):
                wall = wall.replace(hour=0, minute=0, second=0) + timedelta(days=1)
            elif wall.hour not in hours:
                wall = wall.replace(minute=0, second=0) + timedelta(hours=1)
            elif wall.minute not in minutes:
                wall = wall.replace(second=0) + timedelta(minutes=1)
            elif wall.second not in seconds:
                wall += timedelta(seconds=1)
            else:
                return wall
        return None

    def _has_day(self, wall: datetime) -> bool:
        in_month = wall.day in self._fields[3]
        in_week = wall.isoweekday() % 7 in self._fields[5]
        return in_month or in_week if self._is_either_day else in_month and in_week


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
