import pytest
from slotplan import Calendar, Event, parse_span


@pytest.fixture
def week():
    return parse_span("2024-05-06 00:00 - 2024-05-13 00:00")


@pytest.fixture
def ana():
    return Calendar(
        [
            Event("stand-up", parse_span("2024-05-06 09:00-09:15"), repeat="daily for 5"),
            Event("yoga", parse_span("2024-05-07 18:00-19:30"), repeat="weekly on tue,thu"),
            Event("birthday", parse_span("2024-05-08 00:00-24:00"), free=True),
        ]
    )


@pytest.fixture
def ben():
    return Calendar(
        [
            Event("dentist", parse_span("2024-05-06 08:30-10:00")),
            Event("review", parse_span("2024-05-06 11:10-11:40")),
        ]
    )
