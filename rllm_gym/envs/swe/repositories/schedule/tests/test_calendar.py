from datetime import datetime

from slotplan import Calendar, Event, SpanSet, parse_span


def test_the_agenda_is_in_order(ana, week):
    assert [f"{span.start:%a %H:%M} {title}" for span, title in ana.agenda(week)] == [
        "Mon 09:00 stand-up",
        "Tue 09:00 stand-up",
        "Tue 18:00 yoga",
        "Wed 00:00 birthday",
        "Wed 09:00 stand-up",
        "Thu 09:00 stand-up",
        "Thu 18:00 yoga",
        "Fri 09:00 stand-up",
    ]


def test_occurrences_that_reach_into_the_time_count():
    night = Event("shift", parse_span("2024-05-06 22:00-06:00"), repeat="daily")
    found = list(night.occurrences(parse_span("2024-05-08 05:00-23:00")))
    assert [str(span) for span in found] == [
        "2024-05-07 22:00-2024-05-08 06:00",
        "2024-05-08 22:00-2024-05-09 06:00",
    ]
    assert list(night.occurrences(parse_span("2024-05-08 06:00-22:00"))) == []


def test_one_occurrence_can_be_cancelled(week):
    event = Event(
        "course",
        parse_span("2024-05-06 10:00-11:00"),
        repeat="daily for 3",
        cancelled=frozenset({datetime(2024, 5, 7, 10)}),
    )
    assert [span.start.day for span in event.occurrences(week)] == [6, 8]


def test_busy_is_cut_to_the_time_and_leaves_out_free_events(ana):
    busy = ana.busy(parse_span("2024-05-08 09:05-12:00"))
    assert busy == SpanSet([parse_span("2024-05-08 09:05-09:15")])
    assert [(span.start.minute, span.end.minute) for span in busy] == [(5, 15)]


def test_free_time(ben):
    morning = parse_span("2024-05-06 08:00-12:00")
    assert [str(span)[11:] for span in ben.free(morning)] == ["08:00-08:30", "10:00-11:10", "11:40-12:00"]
    assert [str(span)[11:] for span in ben.free(morning, minutes=30)] == ["08:00-08:30", "10:00-11:10"]


def test_conflicts(week):
    calendar = Calendar(
        [
            Event("b", parse_span("2024-05-06 10:00-11:00"), repeat="daily for 2"),
            Event("a", parse_span("2024-05-06 09:00-10:30"), repeat="daily for 2"),
            Event("c", parse_span("2024-05-06 11:00-12:00")),
            Event("d", parse_span("2024-05-06 09:00-18:00"), free=True),
        ]
    )
    assert calendar.conflicts(week) == [("a", "b")]


def test_a_long_event_conflicts_with_all_it_covers(week):
    calendar = Calendar([Event("trip", parse_span("2024-05-06 08:00-20:00"))])
    calendar.add(Event("x", parse_span("2024-05-06 09:00-10:00")))
    calendar.add(Event("y", parse_span("2024-05-06 19:00-21:00")))
    assert calendar.conflicts(week) == [("trip", "x"), ("trip", "y")]
