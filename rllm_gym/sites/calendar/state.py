"""A calendar: events of one person and of their colleagues, series, invitations, and who is free when."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from random import Random
from typing import Any

from rllm_gym.sites.colleagues import Person
from rllm_gym.sites.errors import Refused
from rllm_gym.sites.fields import clock

WEEK = timedelta(weeks=1)
WORKDAY = (9 * 60, 17 * 60)

Interval = tuple[int, int]


@dataclass(frozen=True)
class Event:
    """One event, or a weekly series of it.

    Attributes:
        number: Its number in the URL.
        owner: Address of who made it, and alone may change it.
        title: Its name.
        day: Its day; of a series, the first.
        start: Minutes after midnight.
        end: Minutes after midnight, after the start.
        place: Room or "".
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
        """The days from ``first`` to ``last`` on which it takes place."""
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
        """ "accepted" for the owner, else what the guest said; "" for one who is not invited."""
        return "accepted" if email == self.owner else dict(self.guests).get(email, "")

    def overlaps(self, start: int, end: int) -> bool:
        return self.start < end and start < self.end

    @property
    def hours(self) -> str:
        return f"{clock(self.start)}–{clock(self.end)}"

    def facts(self) -> dict[str, Any]:
        """Without its number: an event made again as it was is the same."""
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
        today: The day on which this world stands still.
        me: Whose calendar it is.
        people: Everybody who can be invited, without ``me``.
        events: By number: those I made and those I am invited to.
        seed: Of what my colleagues do without me, of which only the hours are shown; "" for nothing.
    """

    today: date
    me: Person
    people: list[Person]
    events: dict[int, Event] = field(default_factory=dict)
    seed: str = ""

    def facts(self) -> list[str]:
        """Every event, whatever its number. Looking at pages changes nothing."""
        return sorted(json.dumps(event.facts()) for event in self.events.values())

    # Looking -------------------------------------------------------------------------------------------------------

    def person(self, email: str) -> Person | None:
        return next((person for person in (self.me, *self.people) if person.email == email), None)

    def name_of(self, email: str) -> str:
        person = self.person(email)
        return person.name if person else email

    def find_people(self, text: str) -> list[Person]:
        """Whose name or address contains the text, in the order of their names; nobody for an empty one."""
        text = text.strip().lower()
        found = [person for person in self.people if text and text in f"{person.name} {person.email}".lower()]
        return sorted(found, key=lambda person: person.name)

    def mine(self) -> list[Event]:
        """The events that this calendar shows."""
        return [event for event in self.events.values() if event.answer_of(self.me.email)]

    def occurrences(self, first: date, last: date) -> list[tuple[date, Event]]:
        """My events of these days in the order of time."""
        found = [(day, event) for event in self.mine() for day in event.days(first, last)]
        return sorted(found, key=lambda item: (item[0], item[1].start, item[1].end, item[1].title, item[1].number))

    def search(self, text: str) -> list[tuple[date, Event]]:
        """My single events and first coming days of series whose title, place or people contain the text."""
        text = text.strip().lower()
        found = []
        for event in self.mine():
            names = " ".join(self.name_of(email) for email in (event.owner, *dict(event.guests)))
            if text in f"{event.title} {event.place} {names}".lower():
                coming = event.until and next(event.days(self.today, event.until), None)
                found.append((coming or event.day, event))
        return sorted(found, key=lambda item: (item[0], item[1].start, item[1].title, item[1].number))

    def busy(self, email: str, day: date) -> list[Interval]:
        """When somebody is taken: by events they made or accepted. Unanswered invitations leave them free."""
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
        """The hours of a working day, 9:00 to 17:00, in which all of them are free."""
        taken = sorted(interval for email in emails for interval in self.busy(email, day))
        gaps, free_from = [], WORKDAY[0]
        for start, end in [*taken, (WORKDAY[1], WORKDAY[1])]:
            if min(start, WORKDAY[1]) > free_from:
                gaps.append((free_from, min(start, WORKDAY[1])))
            free_from = max(free_from, end)
        return gaps

    # Changing ------------------------------------------------------------------------------------------------------

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
        """A new event of mine; the guests have not answered yet."""
        number = max(self.events, default=0) + 1
        waiting = tuple((email, "waiting") for email in dict.fromkeys(guests))
        event = Event(number, self.me.email, title, day, start, end, place, waiting, until)
        self._check(event)
        self.events[number] = event
        return event

    def change(self, number: int, *, guests: Iterable[str] | None = None, **changes: Any) -> Event:
        """Changes an event of mine. Guests who stay keep their answers."""
        event = self._own(number)
        if guests is not None:
            said = dict(event.guests)
            changes["guests"] = tuple((email, said.get(email, "waiting")) for email in dict.fromkeys(guests))
        event = replace(event, **changes)
        self._check(event)
        self.events[number] = event
        return event

    def delete(self, number: int) -> None:
        """Deletes an event of mine, with all days of a series."""
        del self.events[self._own(number).number]

    def skip(self, number: int, day: date) -> None:
        """Cancels one day of a series of mine."""
        event = self._own(number)
        if event.until is None or not event.takes_place(day):
            raise Refused(f"“{event.title}” does not take place on {day.isoformat()} as part of a series.")
        self.events[number] = replace(event, skipped=event.skipped | {day})

    def answer(self, number: int, answer: str) -> Event:
        """Accepts or declines an invitation."""
        event = self.events.get(number)
        if event is None or event.owner == self.me.email or not event.answer_of(self.me.email):
            raise Refused("You are not invited to this event.")
        if answer not in ("accepted", "declined"):
            raise Refused(f"An invitation is accepted or declined, not {answer[:40]!r}.")
        said = dict(event.guests) | {self.me.email: answer}
        event = self.events[number] = replace(event, guests=tuple(said.items()))
        return event

    def _own(self, number: int) -> Event:
        event = self.events.get(number)
        if event is None or event.owner != self.me.email:
            raise Refused("Only whoever made an event can change it.")
        return event

    def _check(self, event: Event) -> None:
        if not event.start < event.end:
            raise Refused("An event must end after it starts.")
        if event.until is not None and not event.day <= event.until <= event.day + 53 * WEEK:
            raise Refused("A series ends after its first day and within a year.")
        known = {person.email for person in self.people}
        for email, _ in event.guests:
            if email not in known:
                raise Refused(f"{email[:80]!r} is not in the address book.")


def _elsewhere(rng: Random) -> list[Interval]:
    """Up to three meetings of a day. Drawn when they are looked at: nobody asks about most people on most days."""
    starts = [rng.randrange(WORKDAY[0], WORKDAY[1] - 60, 30) for _ in range(rng.randint(0, 3))]
    return [(start, start + rng.choice((30, 45, 60, 90))) for start in starts]
