"""A person's events, and when they are busy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from slotplan.repetition import parse_repetition
from slotplan.span import Span
from slotplan.spanset import SpanSet


@dataclass(frozen=True)
class Event:
    """Something that takes place, once or by a rule.

    Attributes:
        title: What it is.
        span: When it takes place the first time.
        repeat: A rule, see ``docs/repetition.md``; empty: it does not repeat.
        free: It does not keep anybody busy.
        cancelled: Starts of occurrences that do not take place.
    """

    title: str
    span: Span
    repeat: str = ""
    free: bool = False
    cancelled: frozenset[datetime] = frozenset()

    def occurrences(self, within: Span) -> Iterator[Span]:
        """When it takes place, as far as that overlaps ``within``; in order."""
        for span in self._all():
            if span.start >= within.end:
                return
            if span.overlaps(within) and span.start not in self.cancelled:
                yield span

    def _all(self) -> Iterator[Span]:
        if not self.repeat:
            yield self.span
            return
        first = self.span.start.date()
        for day in parse_repetition(self.repeat).dates(first):
            yield self.span.shift(timedelta(days=(day - first).days))


class Calendar:
    """The events of one person."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events = list(events)

    def add(self, event: Event) -> None:
        self.events.append(event)

    def agenda(self, within: Span) -> list[tuple[Span, str]]:
        """Every occurrence with its title, by start, end and title."""
        found = [(span, event.title) for event in self.events for span in event.occurrences(within)]
        return sorted(found)

    def busy(self, within: Span) -> SpanSet:
        """The moments of ``within`` taken by events that keep one busy."""
        taken = SpanSet(span for event in self.events if not event.free for span in event.occurrences(within))
        return taken.intersection(SpanSet([within]))

    def free(self, within: Span, *, minutes: int = 1) -> SpanSet:
        """What is left of ``within``, in stretches of at least ``minutes``."""
        return self.busy(within).gaps(within).at_least(minutes)

    def conflicts(self, within: Span) -> list[tuple[str, str]]:
        """Titles of the events that overlap, each pair once, the one that starts first in front."""
        busy = [(span, event.title) for event in self.events if not event.free for span in event.occurrences(within)]
        busy.sort()
        found: list[tuple[str, str]] = []
        for place, (span, title) in enumerate(busy):
            for later, other in busy[place + 1 :]:
                if later.start >= span.end:
                    break
                if (title, other) not in found:
                    found.append((title, other))
        return found
