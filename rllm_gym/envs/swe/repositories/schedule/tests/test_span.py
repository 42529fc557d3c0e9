from datetime import datetime, timedelta

import pytest
from slotplan import Span, parse_span


def test_a_span_is_read_and_shown():
    span = parse_span("2024-05-06 09:00-10:30")
    assert (span.start, span.end) == (datetime(2024, 5, 6, 9), datetime(2024, 5, 6, 10, 30))
    assert str(span) == "2024-05-06 09:00-10:30"
    assert span.minutes == 90


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2024-05-06 22:00-06:00", "2024-05-06 22:00-2024-05-07 06:00"),
        ("2024-05-06 08:00-08:00", "2024-05-06 08:00-2024-05-07 08:00"),
        ("2024-05-06 08:00-24:00", "2024-05-06 08:00-2024-05-07 00:00"),
        ("2024-05-06 8:00 - 2024-05-08 06:00", "2024-05-06 08:00-2024-05-08 06:00"),
    ],
)
def test_spans_over_midnight(text, shown):
    assert str(parse_span(text)) == shown
    assert parse_span(str(parse_span(text))) == parse_span(text)


@pytest.mark.parametrize(
    "text",
    ["", "2024-05-06", "2024-05-06 09:00", "2024-05-06 25:00-26:00", "2024-05-06 09:00-09:60", "2024-05-06 9:00-24:01"],
)
def test_other_text_is_refused(text):
    with pytest.raises(ValueError):
        parse_span(text)


def test_a_span_is_not_empty():
    moment = datetime(2024, 1, 1)
    with pytest.raises(ValueError, match="ends after it starts"):
        Span(moment, moment)


def test_the_end_is_outside():
    span = parse_span("2024-05-06 09:00-10:00")
    moments = span.start, span.end - timedelta(seconds=1), span.end
    assert [moment in span for moment in moments] == [True, True, False]


def test_touching_is_not_overlapping():
    first, second = parse_span("2024-05-06 09:00-10:00"), parse_span("2024-05-06 10:00-11:00")
    assert not first.overlaps(second)
    assert not second.overlaps(first)
    assert first.touches(second)
    assert second.touches(first)
    assert first.common(second) is None
    assert not first.touches(parse_span("2024-05-06 10:01-11:00"))


def test_what_is_common():
    outer, inner = parse_span("2024-05-06 09:00-12:00"), parse_span("2024-05-06 10:00-11:00")
    assert outer.common(inner) == inner
    assert inner.common(outer) == inner
    late = parse_span("2024-05-06 11:30-13:00")
    assert str(outer.common(late)) == "2024-05-06 11:30-12:00"


def test_shift_and_pad():
    span = parse_span("2024-05-06 09:00-10:00")
    assert str(span.shift(timedelta(days=1))) == "2024-05-07 09:00-10:00"
    assert str(span.pad(10)) == "2024-05-06 08:50-10:10"
    assert span.pad(-20).minutes == 20
