"""The calendar: every errand can be done, near misses are seen, and free time is what it says."""

from __future__ import annotations

from datetime import date, timedelta
from functools import partial

import pytest

from rllm_gym.sites.calendar import ORIGIN, TEMPLATES, CalendarApp, build
from rllm_gym.sites.errors import FormError
from rllm_gym.sites.people import Person
from rllm_gym.sites.task import Click, Fill
from tests.sites.html_walker import Walker
from tests.sites.task_checks import FEW_SEEDS, MANY_SEEDS, check_task, share_of_today

ME, ANNA, ANNE = (
    Person(name, f"{name.split()[0].lower()}@brightwater.test") for name in ("Mo Lee", "Anna Li", "Anne Li")
)
MONDAY = date(2025, 3, 3)


def empty() -> CalendarApp:
    return CalendarApp(MONDAY, ME, [ANNA, ANNE])


def test_the_solution_is_rewarded_and_a_near_miss_is_not() -> None:
    check_task(TEMPLATES, FEW_SEEDS)


@pytest.mark.long
def test_the_solution_of_many_seeds() -> None:
    check_task(TEMPLATES, share_of_today(MANY_SEEDS, 25))


def test_harder_sites_are_larger() -> None:
    sizes = [len(build(1, difficulty).events) for difficulty in range(1, 6)]
    assert sizes == sorted(set(sizes))


def test_a_series_takes_place_every_week_until_it_ends_but_on_no_day_that_was_cancelled() -> None:
    world = empty()
    event = world.add("Run", MONDAY, 600, 660, until=MONDAY + timedelta(days=21))
    world.skip(event.number, MONDAY + timedelta(days=7))
    days = [day for day, _ in world.occurrences(MONDAY - timedelta(days=30), MONDAY + timedelta(days=90))]
    assert days == [MONDAY, MONDAY + timedelta(days=14), MONDAY + timedelta(days=21)]
    for day in (MONDAY + timedelta(days=7), MONDAY + timedelta(days=1), MONDAY + timedelta(days=28)):
        with pytest.raises(FormError):
            world.skip(event.number, day)


def test_people_are_free_when_nothing_they_accepted_takes_place() -> None:
    world = build(7, 3)
    people = [world.me.email, *(person.email for person in world.people[:2])]
    for ahead in range(10):
        day = world.today + timedelta(days=ahead)
        gaps = world.common_gaps(people, day)
        free = {minute for start, end in gaps for minute in range(start, end)}
        taken = {m for email in people for start, end in world.busy(email, day) for m in range(start, end)}
        assert free == set(range(9 * 60, 17 * 60)) - taken


def test_an_event_made_twice_moved_away_and_back_or_made_again_is_judged_by_what_is_there() -> None:
    world = empty()
    event = world.add("Talk", MONDAY, 600, 630, guests=[ANNA.email])
    wanted = world.facts()
    world.change(event.number, day=MONDAY + timedelta(days=1))
    assert world.facts() != wanted
    world.change(event.number, day=MONDAY)
    assert world.facts() == wanted
    world.add("Talk", MONDAY, 600, 630, guests=[ANNA.email])
    assert world.facts() != wanted
    world.delete(event.number)
    assert world.facts() == wanted


def test_a_form_that_cannot_be_accepted_changes_nothing_and_says_why() -> None:
    for field, text, output in (
        ("Title", "", "must not be empty"),
        ("Date", "next Tuesday", "must be a date such as 2025-03-04"),
        ("Starts", "25:00", "must be a time such as 14:30"),
        ("Ends", "08:00", "must end after it starts"),
        ("Guests", "Ann Li", "not in the address book"),
        ("Repeat weekly until", "2020-01-01", "within a year"),
    ):
        world = empty()
        walker = Walker(world, f"{ORIGIN}/new")
        for move in (Fill("Title", "Talk"), Fill(field, text), Click("button", "Create event")):
            walker.do(move)
        assert output in walker.page.text, field
        assert not world.events, field


def test_only_the_organiser_can_change_an_event_whatever_a_form_claims() -> None:
    world = build(2, 2)
    number = next(event.number for event in world.mine() if event.owner != world.me.email)
    before = world.facts()
    for change in (partial(world.delete, number), partial(world.change, number, title="Mine")):
        with pytest.raises(FormError):
            change()
    with pytest.raises(FormError):
        world.answer(next(event.number for event in world.mine() if event.owner == world.me.email), "declined")
    assert world.facts() == before


def test_names_are_offered_while_guests_are_typed() -> None:
    world = empty()
    walker = Walker(world, f"{ORIGIN}/new")
    choosing = (Fill("Guests", "Anna Li, ann"), Click("option", "Anne Li"))
    for move in (Fill("Title", "Talk"), *choosing, Click("button", "Create event")):
        walker.do(move)
    assert [dict(event.guests) for event in world.events.values()] == [{ANNA.email: "waiting", ANNE.email: "waiting"}]
