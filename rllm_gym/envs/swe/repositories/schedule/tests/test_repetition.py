from datetime import date
from itertools import islice

import pytest
from slotplan import Repetition, parse_repetition
from slotplan.repetition import add_months


def days(rule, first, count=4):
    return [str(day) for day in islice(parse_repetition(rule).dates(date.fromisoformat(first)), count)]


def test_a_rule_is_read():
    assert parse_repetition("Weekly every 2 on wed,mon for 10") == Repetition("weekly", 2, (0, 2), 10)
    assert parse_repetition("daily until 2024-06-30") == Repetition("daily", until=date(2024, 6, 30))


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "hourly",
        "daily every",
        "daily every 0",
        "daily every two",
        "daily on mon",
        "weekly on mon,xyz",
        "daily for 3 until 2024-01-01",
        "daily with 3",
    ],
)
def test_other_rules_are_refused(rule):
    with pytest.raises(ValueError):
        parse_repetition(rule)


def test_daily():
    assert days("daily", "2024-02-28", 3) == ["2024-02-28", "2024-02-29", "2024-03-01"]
    assert days("daily every 3", "2024-01-30", 3) == ["2024-01-30", "2024-02-02", "2024-02-05"]


def test_the_count_includes_the_first():
    assert days("daily for 2", "2024-01-01") == ["2024-01-01", "2024-01-02"]


def test_until_includes_the_day():
    assert days("daily until 2024-01-03", "2024-01-01") == ["2024-01-01", "2024-01-02", "2024-01-03"]
    assert days("daily until 2023-12-31", "2024-01-01") == []


def test_weekly_keeps_its_day():
    assert days("weekly", "2024-05-08", 3) == ["2024-05-08", "2024-05-15", "2024-05-22"]


def test_weekly_on_days_begins_with_the_first_that_is_not_past():
    assert days("weekly on mon,wed,fri", "2024-05-08") == ["2024-05-08", "2024-05-10", "2024-05-13", "2024-05-15"]
    assert days("weekly on mon", "2024-05-08", 2) == ["2024-05-13", "2024-05-20"]


def test_every_second_week_counts_weeks_from_monday():
    assert days("weekly every 2 on mon,fri", "2024-05-10") == ["2024-05-10", "2024-05-20", "2024-05-24", "2024-06-03"]


def test_months_without_the_day_are_skipped():
    assert days("monthly", "2024-01-31", 3) == ["2024-01-31", "2024-03-31", "2024-05-31"]
    assert days("monthly every 2", "2024-11-05", 3) == ["2024-11-05", "2025-01-05", "2025-03-05"]


def test_years():
    assert days("yearly", "2023-07-01", 2) == ["2023-07-01", "2024-07-01"]
    assert days("yearly", "2024-02-29", 2) == ["2024-02-29", "2028-02-29"]


def test_adding_months():
    assert add_months(date(2024, 12, 5), 1) == date(2025, 1, 5)
    assert add_months(date(2024, 1, 5), 11) == date(2024, 12, 5)
    assert add_months(date(2024, 1, 31), 1) is None
