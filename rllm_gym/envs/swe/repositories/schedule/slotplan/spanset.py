"""Sets of moments, kept as spans that are sorted and do not touch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import datetime

from slotplan.span import Span


class SpanSet:
    """An immutable set of moments. Spans that overlap or touch are joined."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        joined: list[Span] = []
        for span in sorted(spans):
            if joined and joined[-1].touches(span):
                joined[-1] = Span(joined[-1].start, max(joined[-1].end, span.end))
            else:
                joined.append(span)
        self._spans = tuple(joined)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpanSet) and self._spans == other._spans

    def __hash__(self) -> int:
        return hash(self._spans)

    def __repr__(self) -> str:
        return f"SpanSet([{', '.join(map(str, self._spans))}])"

    def __contains__(self, moment: datetime) -> bool:
        place = bisect_right(self._spans, moment, key=lambda span: span.start)
        return place > 0 and moment in self._spans[place - 1]

    @property
    def minutes(self) -> int:
        """The length of all spans together."""
        return sum(span.minutes for span in self._spans)

    def union(self, other: SpanSet) -> SpanSet:
        return SpanSet([*self._spans, *other._spans])

    def intersection(self, other: SpanSet) -> SpanSet:
        found: list[Span] = []
        mine, theirs = list(self._spans), list(other._spans)
        i = j = 0
        while i < len(mine) and j < len(theirs):
            common = mine[i].common(theirs[j])
            if common is not None:
                found.append(common)
            # The one that ends first cannot meet anything else.
            if mine[i].end <= theirs[j].end:
                i += 1
            else:
                j += 1
        return SpanSet(found)

    def difference(self, other: SpanSet) -> SpanSet:
        """The moments of this set that are not in the other."""
        left: list[Span] = []
        for span in self._spans:
            start = span.start
            for taken in other._spans:
                if taken.end <= start:
                    continue
                if taken.start >= span.end:
                    break
                if start < taken.start:
                    left.append(Span(start, taken.start))
                start = taken.end
            if start < span.end:
                left.append(Span(start, span.end))
        return SpanSet(left)

    def gaps(self, within: Span) -> SpanSet:
        """The moments of ``within`` that are not in this set."""
        return SpanSet([within]).difference(self)

    def at_least(self, minutes: int) -> SpanSet:
        """Only the spans of this length or longer."""
        return SpanSet(span for span in self._spans if span.minutes >= minutes)
