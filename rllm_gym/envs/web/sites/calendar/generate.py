"""Generates a full calendar from a seed: similarly named meetings, series, open invitations, and busy colleagues."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random

from rllm_gym.envs.web.sites.calendar.pages import CalendarApp
from rllm_gym.envs.web.sites.calendar.state import WEEK, WORKDAY, Event
from rllm_gym.envs.web.sites.people import a_workday, staff

TOPICS = (
    "Budget", "Roadmap", "Hiring", "Launch", "Website", "Supplier", "Security", "Onboarding", "Pricing", "Newsletter",
    "Warehouse", "Contract", "Brand", "Survey", "Training", "Quarterly", "Customer", "Migration",
)  # fmt: skip
KINDS = ("review", "planning", "workshop", "kick-off", "check-in", "interview", "demo", "briefing", "retrospective")
SERIES = ("Team meeting", "Project stand-up", "Coffee round", "Support rota", "Reading group", "Walk and talk")
PLACES = ("Room Alder", "Room Birch", "Room Cedar", "Room Elm", "Room Maple", "Video call", "Library", "Canteen")
LENGTHS = (30, 30, 45, 60, 60, 90)


class _CalendarBuilder:
    """A calendar under construction; new events do not overlap with the person's existing ones."""

    def __init__(self, app: CalendarApp, rng: Random) -> None:
        self.app = app
        self.rng = rng
        self.taken: dict[tuple[str, date], list[tuple[int, int]]] = {}
        self.titles: set[tuple[str, date]] = set()

    def free(self, email: str, day: date, start: int, end: int) -> bool:
        return all(end <= other or start >= until for other, until in self.taken.get((email, day), ()))

    def hours(self, email: str, day: date) -> tuple[int, int] | None:
        """Return a start and an end at which a person is free, or ``None`` if a few attempts find none."""
        for _ in range(8):
            length = self.rng.choice(LENGTHS)
            start = self.rng.randrange(WORKDAY[0], WORKDAY[1] - length + 1, 30)
            if self.free(email, day, start, start + length):
                return start, start + length
        return None

    def title(self, *days: date) -> str:
        """Return a title that no other event of these days has."""
        while True:
            title = f"{self.rng.choice(TOPICS)} {self.rng.choice(KINDS)}"
            if all((title, day) not in self.titles for day in days):
                self.titles.update((title, day) for day in days)
                return title

    def put(
        self,
        owner: str,
        title: str,
        day: date,
        hours: tuple[int, int],
        *,
        place: str = "",
        guests: tuple[tuple[str, str], ...] = (),
        until: date | None = None,
    ) -> Event:
        number = len(self.app.events) + 1
        event = Event(number, owner, title, day, *hours, place=place, guests=guests, until=until)
        self.app.events[number] = event
        for busy in event.days(day, until or day):
            for email in (owner, *(email for email, reply in guests if reply == "accepted")):
                self.taken.setdefault((email, busy), []).append(hours)
        return event


def build(seed: int, difficulty: int) -> CalendarApp:
    """Build a calendar of three weeks at difficulty 1, up to seven at difficulty 5, with about 20 to 60 own events."""
    rng = Random(f"calendar {difficulty} {seed}")
    me, *others = staff(rng, 7 + 2 * difficulty)
    app = CalendarApp(a_workday(rng), me, others, seed=f"elsewhere {seed}")
    fill(app, rng, difficulty)
    return app


def fill(app: CalendarApp, rng: Random, difficulty: int) -> None:
    """Add events to an empty calendar."""
    builder = _CalendarBuilder(app, rng)
    monday = app.today - timedelta(days=app.today.weekday())
    days = [monday + WEEK * week + timedelta(days=day) for week in range(-1, 2 + difficulty) for day in range(5)]
    coming = [day for day in days if day > app.today]
    _series(builder, monday, 1 + (difficulty + 1) // 2)
    for _ in range(12 + 7 * difficulty):
        _own_event(builder, rng.choice(days))
    _invitations(builder, coming, monday + 2 * WEEK, 2 + difficulty)


def _series(builder: _CalendarBuilder, monday: date, count: int) -> None:
    app, rng = builder.app, builder.rng
    for title in rng.sample(SERIES, count):
        first = monday - 2 * WEEK + timedelta(days=rng.randrange(5))
        hours = builder.hours(app.me.email, first) or (12 * 60, 12 * 60 + 30)
        guests = tuple((person.email, "accepted") for person in rng.sample(app.people, rng.randint(2, 4)))
        builder.put(app.me.email, title, first, hours, place=rng.choice(PLACES), guests=guests, until=first + 12 * WEEK)


def _own_event(builder: _CalendarBuilder, day: date) -> None:
    app, rng = builder.app, builder.rng
    hours = builder.hours(app.me.email, day)
    if hours is None:
        return
    company = rng.sample(app.people, rng.randint(1, 4))
    owner = app.me
    if rng.random() < 0.3:
        owner, company[0] = company[0], app.me
    guests = tuple(
        (person.email, "accepted" if person is app.me or rng.random() < 0.8 else "waiting") for person in company
    )
    builder.put(owner.email, builder.title(day), day, hours, place=rng.choice(PLACES), guests=guests)


def _invitations(builder: _CalendarBuilder, coming: list[date], last: date, count: int) -> None:
    """Add unanswered invitations. No two overlap, about half overlap with other events, and their titles are unique."""
    app, rng = builder.app, builder.rng
    days = [day for day in coming if day <= last]
    asked: list[tuple[date, int, int]] = []
    for number in range(count * 6):
        day = rng.choice(days)
        busy = app.busy(app.me.email, day)
        if number % 2 and busy:
            start = max(WORKDAY[0], rng.choice(busy)[0] - rng.choice((0, 15)))
            hours = (start, start + 60)
        else:
            found = builder.hours(app.me.email, day)
            if found is None:
                continue
            hours = found
        if len(asked) < count and not any(
            day == when and hours[0] < end and start < hours[1] for when, start, end in asked
        ):
            asked.append((day, *hours))
            owner, *company = rng.sample(app.people, rng.randint(1, 3))
            guests = ((app.me.email, "waiting"), *((person.email, "accepted") for person in company))
            builder.put(owner.email, builder.title(*coming), day, hours, place=rng.choice(PLACES), guests=guests)
