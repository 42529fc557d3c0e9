from datetime import datetime

import pytest
from slotplan import Calendar, find_meeting, meeting, parse_span, suggest_meetings
from slotplan.meeting import common_free_time

MORNING = parse_span("2024-05-06 08:00-12:00")


def test_the_first_time_everybody_is_free(ana, ben):
    assert str(find_meeting([ana, ben], MORNING, minutes=45)) == "2024-05-06 10:00-10:45"
    assert str(find_meeting([ana, ben], MORNING, minutes=30)) == "2024-05-06 08:00-08:30"
    assert find_meeting([ana, ben], MORNING, minutes=71) is None


def test_a_meeting_may_fill_the_gap(ana, ben):
    assert str(find_meeting([ana, ben], MORNING, minutes=70)) == "2024-05-06 10:00-11:10"


def test_meetings_start_at_full_steps(ben):
    afternoon = parse_span("2024-05-06 11:20-13:00")
    assert str(find_meeting([ben], afternoon, minutes=15)) == "2024-05-06 11:45-12:00"
    assert str(find_meeting([ben], afternoon, minutes=15, step=5)) == "2024-05-06 11:40-11:55"


def test_suggestions_do_not_overlap(ana, ben):
    assert [str(span)[11:] for span in suggest_meetings([ana, ben], MORNING, minutes=25)] == [
        "08:00-08:25",
        "10:00-10:25",
        "10:30-10:55",
    ]
    assert len(suggest_meetings([ana, ben], MORNING, minutes=25, count=1)) == 1


def test_nobody_is_always_free():
    assert list(common_free_time([], MORNING)) == [MORNING]
    assert find_meeting([Calendar()], MORNING, minutes=240) == MORNING


def test_rounding_up():
    assert meeting.round_up(datetime(2024, 1, 1, 9, 0), 15) == datetime(2024, 1, 1, 9, 0)
    assert meeting.round_up(datetime(2024, 1, 1, 9, 1), 15) == datetime(2024, 1, 1, 9, 15)
    assert meeting.round_up(datetime(2024, 1, 1, 9, 46), 15) == datetime(2024, 1, 1, 10, 0)
    assert meeting.round_up(datetime(2024, 1, 1, 9, 15, 1), 15) == datetime(2024, 1, 1, 9, 30)


@pytest.mark.parametrize("step", [0, 7, 61, -15])
def test_steps_divide_the_hour(step):
    with pytest.raises(ValueError):
        meeting.round_up(datetime(2024, 1, 1), step)


def test_a_meeting_takes_time(ana):
    with pytest.raises(ValueError):
        find_meeting([ana], MORNING, minutes=0)
