"""One stretch of time, from its start up to but not including its end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

_SPAN = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d?):(\d\d) ?- ?(?:(\d{4}-\d\d-\d\d) )?(\d\d?):(\d\d)")


@dataclass(frozen=True, order=True)
class Span:
    """From ``start`` to ``end``. An empty span is an error."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise ValueError(f"a span ends after it starts, not from {self.start} to {self.end}")

    @property
    def minutes(self) -> int:
        """Its length in whole minutes."""
        return (self.end - self.start) // timedelta(minutes=1)

    def __contains__(self, moment: datetime) -> bool:
        return self.start <= moment < self.end

    def __str__(self) -> str:
        end = f"{self.end:%H:%M}" if self.start.date() == self.end.date() else f"{self.end:%Y-%m-%d %H:%M}"
        return f"{self.start:%Y-%m-%d %H:%M}-{end}"

    def overlaps(self, other: Span) -> bool:
        """Whether they have a moment in common; spans that only touch have none."""
        return self.start < other.end and other.start < self.end

    def touches(self, other: Span) -> bool:
        """Whether they overlap or one begins where the other ends."""
        return self.start <= other.end and other.start <= self.end

    def common(self, other: Span) -> Span | None:
        """What lies in both."""
        if not self.overlaps(other):
            return None
        return Span(max(self.start, other.start), min(self.end, other.end))

    def shift(self, by: timedelta) -> Span:
        return Span(self.start + by, self.end + by)

    def pad(self, minutes: int) -> Span:
        """Longer by ``minutes`` on both sides, or shorter where it is negative."""
        return Span(self.start - timedelta(minutes=minutes), self.end + timedelta(minutes=minutes))


def parse_span(text: str) -> Span:
    """Read ``"2024-05-06 09:00-10:30"``.

    An end that is not after the start is on the next day; a span over several days gives the day of its end:
    ``"2024-05-06 22:00 - 2024-05-08 06:00"``. ``24:00`` is the end of a day.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a span: {text!r}; write it like 2024-05-06 09:00-10:30")
    day, *start_clock, last_day, end_hour, end_minute = match.groups()
    start = _moment(day, *start_clock)
    end = _moment(last_day or day, end_hour, end_minute)
    if last_day is None and end <= start:
        end += timedelta(days=1)
    return Span(start, end)


def _moment(day: str, hour: str, minute: str) -> datetime:
    if int(hour) > 24 or int(minute) > 59 or (int(hour) == 24 and int(minute) > 0):
        raise ValueError(f"there is no {hour}:{minute} on a clock")
    return datetime.fromisoformat(day) + timedelta(hours=int(hour), minutes=int(minute))
