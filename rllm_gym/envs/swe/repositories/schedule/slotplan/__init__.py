"""Intervals of time, events that repeat, and the gaps between them."""

from slotplan.calendar import Calendar, Event
from slotplan.meeting import find_meeting, suggest_meetings
from slotplan.repetition import Repetition, parse_repetition
from slotplan.span import Span, parse_span
from slotplan.spanset import SpanSet

__all__ = [
    "Calendar",
    "Event",
    "Repetition",
    "Span",
    "SpanSet",
    "find_meeting",
    "parse_repetition",
    "parse_span",
    "suggest_meetings",
]
