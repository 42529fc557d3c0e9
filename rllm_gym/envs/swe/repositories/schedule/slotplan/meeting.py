"""When several people have time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice

from slotplan.calendar import Calendar
from slotplan.span import Span
from slotplan.spanset import SpanSet


def find_meeting(people: Sequence[Calendar], within: Span, *, minutes: int, step: int = 15) -> Span | None:
    """The first time at which all of them are free for ``minutes``, ``None`` if there is none.

    Meetings start at full steps of the hour: at :00, :15, :30 and :45 by default.
    """
    return next(_candidates(people, within, minutes, step), None)


def suggest_meetings(
    people: Sequence[Calendar], within: Span, *, minutes: int, step: int = 15, count: int = 3
) -> list[Span]:
    """The first ``count`` times that do not overlap each other."""
    return list(islice(_candidates(people, within, minutes, step), count))


def _candidates(people: Sequence[Calendar], within: Span, minutes: int, step: int) -> Iterator[Span]:
    if minutes < 1:
        raise ValueError(f"a meeting takes a minute or more, not {minutes}")
    length = timedelta(minutes=minutes)
    for gap in common_free_time(people, within):
        start = round_up(gap.start, step)
        while start + length <= gap.end:
            yield Span(start, start + length)
            start = round_up(start + length, step)


def common_free_time(people: Sequence[Calendar], within: Span) -> SpanSet:
    """When everybody is free."""
    free = SpanSet([within])
    for person in people:
        free = free.intersection(person.free(within))
    return free


def round_up(moment: datetime, step: int) -> datetime:
    """The next moment whose minutes are a multiple of ``step``; ``moment`` itself if it is one."""
    if not 1 <= step <= 60 or 60 % step:
        raise ValueError(f"the step divides an hour, {step} does not")
    hour = moment.replace(minute=0, second=0, microsecond=0)
    steps = -((moment - hour) // -timedelta(minutes=step))
    return hour + timedelta(minutes=steps * step)
