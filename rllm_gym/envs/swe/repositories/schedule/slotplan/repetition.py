"""Rules by which an event takes place again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

UNITS = ("daily", "weekly", "monthly", "yearly")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True)
class Repetition:
    """A rule; ``docs/repetition.md`` says what each part means."""

    unit: str
    every: int = 1
    days: tuple[int, ...] = ()
    count: int | None = None
    until: date | None = None

    def dates(self, first: date) -> Iterator[date]:
        """The days on which an event of ``first`` takes place, in order; without ``count`` and ``until``, for ever."""
        for number, day in enumerate(self._endless(first)):
            if self.until is not None and day > self.until:
                return
            if self.count is not None and number >= self.count:
                return
            yield day

    def _endless(self, first: date) -> Iterator[date]:
        if self.unit == "daily":
            step = 0
            while True:
                yield first + timedelta(days=step * self.every)
                step += 1
        elif self.unit == "weekly":
            yield from self._weeks(first)
        else:
            months = self.every * (12 if self.unit == "yearly" else 1)
            step = 0
            while True:
                day = add_months(first, step * months)
                if day is not None:
                    yield day
                step += 1

    def _weeks(self, first: date) -> Iterator[date]:
        monday = first - timedelta(days=first.weekday())
        days = self.days or (first.weekday(),)
        while True:
            for weekday in days:
                day = monday + timedelta(days=weekday)
                if day >= first:
                    yield day
            monday += timedelta(weeks=self.every)


def add_months(day: date, months: int) -> date | None:
    """The same day of a later month, ``None`` where that month has no such day."""
    years, month = divmod(day.month - 1 + months, 12)
    try:
        return day.replace(year=day.year + years, month=month + 1)
    except ValueError:
        return None


def parse_repetition(text: str) -> Repetition:
    """Read a rule such as ``"weekly every 2 on mon,wed for 10"``."""
    words = text.lower().split()
    if not words or words[0] not in UNITS:
        raise ValueError(f"a rule begins with one of {', '.join(UNITS)}, not {text!r}")
    unit, rest = words[0], words[1:]
    every, days, count, until = 1, (), None, None
    while rest:
        if len(rest) < 2:
            raise ValueError(f"{rest[0]!r} at the end of {text!r} needs a value")
        key, value, *rest = rest
        match key:
            case "every":
                every = _positive(value, key)
            case "on":
                days = _days(value)
            case "for":
                count = _positive(value, key)
            case "until":
                until = date.fromisoformat(value)
            case _:
                raise ValueError(f"{key!r} in {text!r} is none of every, on, for, until")
    if days and unit != "weekly":
        raise ValueError(f"only weekly rules have days: {text!r}")
    if count is not None and until is not None:
        raise ValueError(f"a rule has 'for' or 'until', not both: {text!r}")
    return Repetition(unit, every, days, count, until)


def _positive(text: str, key: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"what follows {key!r} is a whole number from 1, not {text!r}")
    return int(text)


def _days(text: str) -> tuple[int, ...]:
    names = text.split(",")
    unknown = [name for name in names if name not in DAYS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no day; the days are {', '.join(DAYS)}")
    return tuple(sorted({DAYS.index(name) for name in names}))
