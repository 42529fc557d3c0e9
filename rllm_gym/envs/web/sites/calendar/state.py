"""The state of the calendar: events of one person and of colleagues, series, invitations, and free times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from random import Random
from typing import Any

from rllm_gym.envs.web.sites.errors import FormError
from rllm_gym.envs.web.sites.fields import clock
from rllm_gym.envs.web.sites.people import Person

WEEK = timedelta(weeks=1)
WORKDAY = (9 * 60, 17 * 60)

Interval = tuple[int, int]


@dataclass(frozen=True)
class Event:
    """An event, or a weekly series.

    Attributes:
        number: Number in the URL.
        owner: Address of the organiser, who alone may change the event.
        title: Name of the event.
        day: The day; of a series, the first day.
        start: Minutes after midnight.
        end: Minutes after midnight, later than ``start``.
        place: Room, or "".
        guests: Addresses with their answers: "waiting", "accepted" or "declined".
        until: Last day of a weekly series; ``None`` for a single event.
        skipped: Days of a series on which it does not take place.
    """

    number: int
    owner: str
    title: str
    day: date
    start: int
    end: int
    place: str = ""
    guests: tuple[tuple[str, str], ...] = ()
    until: date | None = None
    skipped: frozenset[date] = frozenset()

    def days(self, first: date, last: date) -> Iterator[date]:
        """Yield the days from ``first`` to ``last`` on which the event takes place."""
        if self.until is None:
            if first <= self.day <= last:
                yield self.day
            return
        weeks = max(0, -(-(first - self.day).days // 7))
        day = self.day + weeks * WEEK
        while day <= min(last, self.until):
            if day not in self.skipped:
                yield day
            day += WEEK

    def takes_place(self, day: date) -> bool:
        return any(True for _ in self.days(day, day))

    def answer_of(self, email: str) -> str:
        """Return "accepted" for the owner, otherwise the guest's answer; "" for people who are not invited."""
        return "accepted" if email == self.owner else dict(self.guests).get(email, "")

    def overlaps(self, start: int, end: int) -> bool:
        return self.start < end and start < self.end

    @property
    def hours(self) -> str:
        return f"{clock(self.start)}–{clock(self.end)}"

    def facts(self) -> dict[str, Any]:
        """Return the event without its number: a deleted event that is created again is equal."""
        return {
            "owner": self.owner,
            "title": self.title,
            "day": self.day.isoformat(),
            "hours": self.hours,
            "place": self.place,
            "guests": sorted(self.guests),
            "until": self.until.isoformat() if self.until else None,
            "skipped": sorted(day.isoformat() for day in self.skipped),
        }


@dataclass
class Calendar:
    """The state of the site.

    Attributes:
        today: The fixed current date.
        me: The owner of the calendar.
        people: Everybody who can be invited, without ``me``.
        events: Events by number: the owner's and those the owner is invited to.
        seed: Seed of the colleagues' other events, of which only the hours are shown; "" for none.
    """

    today: date
    me: Person
    people: list[Person]
    events: dict[int, Event] = field(default_factory=dict)
    seed: str = ""

    def facts(self) -> list[str]:
        """Return every event without its number. Looking at pages changes nothing."""
        return sorted(json.dumps(event.facts()) for event in self.events.values())

    # Queries

    def person(self, email: str) -> Person | None:
        return next((person for person in (self.me, *self.people) if person.email == email), None)

    def name_of(self, email: str) -> str:
        person = self.person(email)
        return person.name if person else email

    def find_people(self, text: str) -> list[Person]:
        """Return the people whose name or address contains the text, sorted by name; none for an empty text."""
        text = text.strip().lower()
        found = [person for person in self.people if text and text in f"{person.name} {person.email}".lower()]
        return sorted(found, key=lambda person: person.name)

    def mine(self) -> list[Event]:
        """Return the events that this calendar shows."""
        return [event for event in self.events.values() if event.answer_of(self.me.email)]

    def occurrences(self, first: date, last: date) -> list[tuple[date, Event]]:
        """Return the owner's events of these days in chronological order."""
        found = [(day, event) for event in self.mine() for day in event.days(first, last)]
        return sorted(found, key=lambda item: (item[0], item[1].start, item[1].end, item[1].title, item[1].number))

    def search(self, text: str) -> list[tuple[date, Event]]:
        """Return single events and the next days of series whose title, place or people contain the text."""
        text = text.strip().lower()
        found = []
        for event in self.mine():
            names = " ".join(self.name_of(email) for email in (event.owner, *dict(event.guests)))
            if text in f"{event.title} {event.place} {names}".lower():
                coming = event.until and next(event.days(self.today, event.until), None)
                found.append((coming or event.day, event))
        return sorted(found, key=lambda item: (item[0], item[1].start, item[1].title, item[1].number))

    def busy(self, email: str, day: date) -> list[Interval]:
        """Return the busy intervals of a person: organised and accepted events. Unanswered invitations do not count."""
        taken = [
            (event.start, event.end)
            for event in self.events.values()
            if event.answer_of(email) == "accepted" and event.takes_place(day)
        ]
        if self.seed and email != self.me.email and day.weekday() < 5:
            taken += _elsewhere(Random(f"{self.seed} {email} {day}"))
        merged: list[Interval] = []
        for start, end in sorted(taken):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged

    def common_gaps(self, emails: Iterable[str], day: date) -> list[Interval]:
        """Return the intervals of a working day, 9:00 to 17:00, in which all of them are free."""
        taken = sorted(interval for email in emails for interval in self.busy(email, day))
        gaps, free_from = [], WORKDAY[0]
        for start, end in [*taken, (WORKDAY[1], WORKDAY[1])]:
            if min(start, WORKDAY[1]) > free_from:
                gaps.append((free_from, min(start, WORKDAY[1])))
            free_from = max(free_from, end)
        return gaps

    # Changes

    def add(
        self,
        title: str,
        day: date,
        start: int,
        end: int,
        *,
        place: str = "",
        guests: Iterable[str] = (),
        until: date | None = None,
    ) -> Event:
        """Create an event of the owner. The guests have not answered yet."""
        number = max(self.events, default=0) + 1
        waiting = tuple((email, "waiting") for email in dict.fromkeys(guests))
        event = Event(number, self.me.email, title, day, start, end, place, waiting, until)
        self._check(event)
        self.events[number] = event
        return event

    def change(self, number: int, *, guests: Iterable[str] | None = None, **changes: Any) -> Event:
        """Change an event of the owner. Guests who stay keep their answers."""
        event = self._own(number)
        if guests is not None:
            comment = dict(event.guests)
            changes["guests"] = tuple((email, comment.get(email, "waiting")) for email in dict.fromkeys(guests))
        event = replace(event, **changes)
        self._check(event)
        self.events[number] = event
        return event

    def delete(self, number: int) -> None:
        """Delete an event of the owner, including all days of a series."""
        del self.events[self._own(number).number]

    def skip(self, number: int, day: date) -> None:
        """Cancel one day of a series of the owner."""
        event = self._own(number)
        if event.until is None or not event.takes_place(day):
            raise FormError(f"“{event.title}” does not take place on {day.isoformat()} as part of a series.")
        self.events[number] = replace(event, skipped=event.skipped | {day})

    def answer(self, number: int, answer: str) -> Event:
        """Accept or decline an invitation."""
        event = self.events.get(number)
        if event is None or event.owner == self.me.email or not event.answer_of(self.me.email):
            raise FormError("You are not invited to this event.")
        if answer not in ("accepted", "declined"):
            raise FormError(f"An invitation is accepted or declined, not {answer[:40]!r}.")
        comment = dict(event.guests) | {self.me.email: answer}
        event = self.events[number] = replace(event, guests=tuple(comment.items()))
        return event

    def _own(self, number: int) -> Event:
        event = self.events.get(number)
        if event is None or event.owner != self.me.email:
            raise FormError("Only whoever made an event can change it.")
        return event

    def _check(self, event: Event) -> None:
        if not event.start < event.end:
            raise FormError("An event must end after it starts.")
        if event.until is not None and not event.day <= event.until <= event.day + 53 * WEEK:
            raise FormError("A series ends after its first day and within a year.")
        known = {person.email for person in self.people}
        for email, _ in event.guests:
            if email not in known:
                raise FormError(f"{email[:80]!r} is not in the address book.")


def _elsewhere(rng: Random) -> list[Interval]:
    """Draw up to three other meetings of a day. They are drawn on access, because most are never requested."""
    starts = [rng.randrange(WORKDAY[0], WORKDAY[1] - 60, 30) for _ in range(rng.randint(0, 3))]
    return [(start, start + rng.choice((30, 45, 60, 90))) for start in starts]
