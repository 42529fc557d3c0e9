"""The calendar: series, guests and free times are correct."""

from __future__ import annotations

from datetime import date, timedelta
from functools import partial

import pytest

from rllm_gym.envs.web.sites.calendar import ORIGIN, CalendarApp, build
from rllm_gym.envs.web.sites.errors import FormError
from rllm_gym.envs.web.sites.moves import Click, Fill
from rllm_gym.envs.web.sites.people import Person
from tests.sites.html_walker import SiteDriver

ME, ANNA, ANNE = (
    Person(name, f"{name.split()[0].lower()}@brightwater.test") for name in ("Mo Lee", "Anna Li", "Anne Li")
)
MONDAY = date(2025, 3, 3)


def empty() -> CalendarApp:
    return CalendarApp(MONDAY, ME, [ANNA, ANNE])


def test_harder_sites_are_larger() -> None:
    sizes = [len(build(1, difficulty).events) for difficulty in range(1, 6)]
    assert sizes == sorted(set(sizes))


def test_a_series_repeats_weekly_until_it_ends_except_on_cancelled_days() -> None:
    site = empty()
    event = site.add("Run", MONDAY, 600, 660, until=MONDAY + timedelta(days=21))
    site.skip(event.number, MONDAY + timedelta(days=7))
    days = [day for day, _ in site.occurrences(MONDAY - timedelta(days=30), MONDAY + timedelta(days=90))]
    assert days == [MONDAY, MONDAY + timedelta(days=14), MONDAY + timedelta(days=21)]
    for day in (MONDAY + timedelta(days=7), MONDAY + timedelta(days=1), MONDAY + timedelta(days=28)):
        with pytest.raises(FormError):
            site.skip(event.number, day)


def test_people_are_free_outside_of_accepted_events() -> None:
    site = build(7, 3)
    people = [site.me.email, *(person.email for person in site.people[:2])]
    for ahead in range(10):
        day = site.today + timedelta(days=ahead)
        gaps = site.common_gaps(people, day)
        free = {minute for start, end in gaps for minute in range(start, end)}
        taken = {m for email in people for start, end in site.busy(email, day) for m in range(start, end)}
        assert free == set(range(9 * 60, 17 * 60)) - taken


def test_events_are_graded_by_their_final_state() -> None:
    site = empty()
    event = site.add("Talk", MONDAY, 600, 630, guests=[ANNA.email])
    expected = site.facts()
    site.change(event.number, day=MONDAY + timedelta(days=1))
    assert site.facts() != expected
    site.change(event.number, day=MONDAY)
    assert site.facts() == expected
    site.add("Talk", MONDAY, 600, 630, guests=[ANNA.email])
    assert site.facts() != expected
    site.delete(event.number)
    assert site.facts() == expected


def test_an_invalid_form_changes_nothing_and_reports_the_reason() -> None:
    for field, text, output in (
        ("Title", "", "must not be empty"),
        ("Date", "next Tuesday", "must be a date such as 2025-03-04"),
        ("Starts", "25:00", "must be a time such as 14:30"),
        ("Ends", "08:00", "must end after it starts"),
        ("Guests", "Ann Li", "not in the address book"),
        ("Repeat weekly until", "2020-01-01", "within a year"),
    ):
        site = empty()
        driver = SiteDriver(site, f"{ORIGIN}/new")
        for move in (Fill("Title", "Talk"), Fill(field, text), Click("button", "Create event")):
            driver.do(move)
        assert output in driver.page.text, field
        assert not site.events, field


def test_only_the_organiser_can_change_an_event_whatever_a_form_claims() -> None:
    site = build(2, 2)
    number = next(event.number for event in site.mine() if event.owner != site.me.email)
    before = site.facts()
    for change in (partial(site.delete, number), partial(site.change, number, title="Mine")):
        with pytest.raises(FormError):
            change()
    with pytest.raises(FormError):
        site.answer(next(event.number for event in site.mine() if event.owner == site.me.email), "declined")
    assert site.facts() == before


def test_guest_names_are_suggested_while_typing() -> None:
    site = empty()
    driver = SiteDriver(site, f"{ORIGIN}/new")
    choosing = (Fill("Guests", "Anna Li, ann"), Click("option", "Anne Li"))
    for move in (Fill("Title", "Talk"), *choosing, Click("button", "Create event")):
        driver.do(move)
    assert [dict(event.guests) for event in site.events.values()] == [{ANNA.email: "waiting", ANNE.email: "waiting"}]
