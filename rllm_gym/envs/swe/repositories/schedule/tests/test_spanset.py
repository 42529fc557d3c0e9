from datetime import datetime

import pytest
from slotplan import SpanSet, parse_span


def spans(*clocks):
    return SpanSet(parse_span(f"2024-05-06 {clock}") for clock in clocks)


def test_spans_that_touch_are_joined():
    assert spans("09:00-10:00", "10:00-11:00") == spans("09:00-11:00")
    assert spans("10:00-11:00", "09:00-10:30", "10:15-10:20") == spans("09:00-11:00")
    assert len(spans("09:00-10:00", "10:01-11:00")) == 2


def test_moments():
    some = spans("09:00-10:00", "12:00-13:00")
    inside = [hour for hour in range(8, 15) if datetime(2024, 5, 6, hour) in some]
    assert inside == [9, 12]
    assert datetime(2024, 5, 6, 9, 59) in some
    assert datetime(2024, 5, 6, 9) not in SpanSet()


def test_union_and_length():
    assert spans("09:00-10:00").union(spans("09:30-11:00")) == spans("09:00-11:00")
    assert spans("09:00-10:00", "12:00-12:20").minutes == 80
    assert SpanSet().minutes == 0


@pytest.mark.parametrize(
    ("mine", "theirs", "both"),
    [
        (["09:00-12:00"], ["10:00-11:00"], ["10:00-11:00"]),
        (["09:00-10:00", "11:00-12:00"], ["09:30-11:30"], ["09:30-10:00", "11:00-11:30"]),
        (["09:00-10:00"], ["10:00-11:00"], []),
        (["09:00-10:00", "10:30-11:00"], ["09:00-10:00", "10:45-12:00"], ["09:00-10:00", "10:45-11:00"]),
        (["09:00-10:00"], [], []),
    ],
)
def test_intersection(mine, theirs, both):
    assert spans(*mine).intersection(spans(*theirs)) == spans(*both)
    assert spans(*theirs).intersection(spans(*mine)) == spans(*both)


@pytest.mark.parametrize(
    ("mine", "theirs", "left"),
    [
        (["09:00-12:00"], ["10:00-11:00"], ["09:00-10:00", "11:00-12:00"]),
        (["09:00-12:00"], ["08:00-13:00"], []),
        (["09:00-12:00"], ["08:00-09:30", "11:30-13:00"], ["09:30-11:30"]),
        (["09:00-10:00", "11:00-12:00"], ["09:30-11:30"], ["09:00-09:30", "11:30-12:00"]),
        (["09:00-10:00"], ["10:00-11:00"], ["09:00-10:00"]),
        (["09:00-10:00"], ["07:00-09:00"], ["09:00-10:00"]),
    ],
)
def test_difference(mine, theirs, left):
    assert spans(*mine).difference(spans(*theirs)) == spans(*left)


def test_gaps():
    day = parse_span("2024-05-06 09:00-17:00")
    assert spans("08:00-10:00", "12:00-13:00").gaps(day) == spans("10:00-12:00", "13:00-17:00")
    assert SpanSet().gaps(day) == SpanSet([day])


def test_short_spans_can_be_left_out():
    assert spans("09:00-09:29", "10:00-10:30", "11:00-12:00").at_least(30) == spans("10:00-10:30", "11:00-12:00")


def test_sets_are_values():
    assert hash(spans("09:00-10:00")) == hash(spans("09:00-09:30", "09:30-10:00"))
    assert repr(spans("09:00-10:00")) == "SpanSet([2024-05-06 09:00-10:00])"
