"""The calendar's tasks: creating, moving, cancelling and answering events, finding free times, and questions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from random import Random

from rllm_gym.envs.web.sites.calendar.generate import KINDS, LENGTHS, PLACES, TOPICS, build
from rllm_gym.envs.web.sites.calendar.pages import ORIGIN, CalendarApp
from rllm_gym.envs.web.sites.calendar.state import Event
from rllm_gym.envs.web.sites.fields import clock, full_date
from rllm_gym.envs.web.sites.people import Person
from rllm_gym.envs.web.sites.task import Answer, Click, Fill, Move, ReportInfeasible, WebTask, WebTaskTemplate
from rllm_gym.envs.web.sites.wording import FIRST_NAMES, listed, long_date

START_URL = f"{ORIGIN}/"
_LEVELS = (1, 2, 3, 4, 5)

# Move sequences


def go_to(day: date, view: str = "Day") -> tuple[Move, ...]:
    return Click("link", view), Fill("Go to date", day.isoformat()), Click("button", "Go")


def go_to_event(day: date, event: Event) -> tuple[Move, ...]:
    return *go_to(day), Click("link", event.title)


def fill_in(
    title: str, day: date, start: int, end: int, place: str = "", guests: Sequence[Person] = ()
) -> tuple[Move, ...]:
    """Return the moves from any page to a new event."""
    return (
        Click("link", "New event"),
        Fill("Title", title),
        Fill("Date", day.isoformat()),
        Fill("Starts", clock(start)),
        Fill("Ends", clock(end)),
        *([Fill("Place", place)] if place else ()),
        *([Fill("Guests", ", ".join(person.name for person in guests))] if guests else ()),
        Click("button", "Create event"),
    )


def look_at(day: date, people: Sequence[Person]) -> tuple[Move, ...]:
    return (
        Click("link", "Find a time"),
        Fill("People", ", ".join(person.name for person in people)),
        Fill("Date", day.isoformat()),
        Click("button", "Show"),
    )


# Selection


def _coming(app: CalendarApp, days: int = 60) -> list[tuple[date, Event]]:
    """Return the user's occurrences from tomorrow on."""
    return app.occurrences(app.today + timedelta(days=1), app.today + timedelta(days=days))


def _single(app: CalendarApp, *, own: bool) -> list[Event]:
    """Return future events that are not series: the user's own, or accepted ones of others."""
    me = app.me.email
    return [
        event
        for _, event in _coming(app)
        if event.until is None and (event.owner == me) == own and event.answer_of(me) == "accepted"
    ]


def _pick(rng: Random, events: Sequence[Event]) -> Event:
    """Draw an event, preferably one with a similarly named counterpart, so that the date must be read."""
    alike = [event for event in events if sum(other.title.split()[0] == event.title.split()[0] for other in events) > 1]
    return rng.choice(alike or events)


def _stranger(rng: Random, app: CalendarApp) -> str:
    """Return a name that nobody has, with an existing surname."""
    known = {person.name for person in (app.me, *app.people)}
    surname = rng.choice(app.people).last
    return next(
        name for first in rng.sample(FIRST_NAMES, len(FIRST_NAMES)) if (name := f"{first} {surname}") not in known
    )


def _workday(rng: Random, app: CalendarApp, difficulty: int) -> date:
    """Draw a future day from Monday to Friday."""
    day = app.today + timedelta(days=rng.randint(1, 7 + 7 * difficulty))
    return day if day.weekday() < 5 else day + timedelta(days=3)


def _similar(rng: Random, app: CalendarApp, person: Person, others: Sequence[Person] = ()) -> Person:
    """Return another person, with the same surname or first name if possible."""
    rest = [other for other in app.people if other != person and other not in others]
    alike = [other for other in rest if other.last == person.last or other.first == person.first]
    return rng.choice(alike or rest)


# Templates


def create(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    titles = {event.title for event in app.events.values()}
    title = next(
        name for _ in range(1_000) if (name := f"{rng.choice(TOPICS)} {rng.choice(KINDS)} with partners") not in titles
    )
    day, length = _workday(rng, app, difficulty), rng.choice(LENGTHS)
    start = rng.randrange(8 * 60, 16 * 60, 15)
    place = rng.choice(PLACES) if difficulty >= 2 or rng.random() < 0.5 else ""
    guests = rng.sample(app.people, rng.randint(1, min(4, difficulty + 1)))
    when = rng.choice(
        (
            f"on {full_date(day)}, from {clock(start)} to {clock(start + length)}",
            f"on {long_date(day)} at {clock(start)}; it takes {length} minutes",
        )
    )
    where = f" It takes place in “{place}”." if place else " It has no place."
    names = [person.name for person in guests]
    infeasible = rng.random() < 0.15
    if infeasible:
        names[rng.randrange(len(names))] = _stranger(rng, app)
    goal = rng.choice(
        (
            f"Put an event called “{title}” into the calendar {when}.{where} Invite {listed(names)} and nobody else.",
            f"Create a new event “{title}” {when}.{where} Its guests are {listed(names)}.",
        )
    )
    if infeasible:
        goal += " Do not create it if one of them is not in the address book."
        return WebTask(
            goal,
            START_URL,
            moves=(ReportInfeasible("One of the guests is not in the address book."),),
            wrong_moves=(*fill_in(title, day, start, start + length, place, guests[1:]), Answer("done")),
            infeasible=True,
        )
    emails = [person.email for person in guests]
    mistaken = [*guests[:-1], _similar(rng, app, guests[-1], guests)]
    return WebTask(
        goal,
        START_URL,
        moves=(*fill_in(title, day, start, start + length, place, guests), Answer("done")),
        wrong_moves=(*fill_in(title, day, start, start + length, place, mistaken), Answer("done")),
        outcome=lambda site: site.add(title, day, start, start + length, place=place, guests=emails),
    )


def reschedule(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    infeasible = rng.random() < 0.15
    event = _pick(rng, _single(app, own=not infeasible) or _single(app, own=True))
    infeasible = event.owner != app.me.email
    length = event.end - event.start
    start = rng.choice([start for start in range(8 * 60, 17 * 60, 30) if start != event.start])
    day = _workday(rng, app, difficulty) if difficulty >= 2 else event.day
    to = f"{full_date(day)}, {clock(start)}" if day != event.day else f"{clock(start)} on the same day"
    goal = rng.choice(
        (
            f"Move “{event.title}” on {full_date(event.day)} to {to}. It shall take as long as before.",
            f"“{event.title}” on {long_date(event.day)} has to be moved to {to}, with the same length as now.",
        )
    )
    if difficulty >= 3:
        goal += " Nothing else about it shall change."
    if infeasible:
        return WebTask(
            f"{goal} If you are not allowed to change it, say so and leave everything as it is.",
            START_URL,
            moves=(*go_to_event(event.day, event), ReportInfeasible("Only the organiser can change this event.")),
            wrong_moves=(*go_to_event(event.day, event), Click("button", "Decline"), Answer("done")),
            infeasible=True,
        )

    def moves(end: int) -> tuple[Move, ...]:
        return (
            *go_to_event(event.day, event),
            Click("link", "Edit"),
            Fill("Date", day.isoformat()),
            Fill("Starts", clock(start)),
            Fill("Ends", clock(end)),
            Click("button", "Save changes"),
            Answer("done"),
        )

    return WebTask(
        goal,
        START_URL,
        moves=moves(start + length),
        wrong_moves=moves(start + length + 15),
        outcome=lambda site: site.change(event.number, day=day, start=start, end=start + length),
    )


def cancel_one_day(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    series = [(day, event) for day, event in _coming(app, 7 * (1 + difficulty)) if event.until]
    day, event = rng.choice(series)
    goal = rng.choice(
        (
            f"The “{event.title}” on {full_date(day)} does not take place. Cancel that one day; the series goes on.",
            f"Cancel “{event.title}” on {long_date(day)} only. It must stay on all its other days.",
        )
    )
    return WebTask(
        goal,
        START_URL,
        moves=(*go_to_event(day, event), Click("button", "Cancel only this day"), Answer("done")),
        wrong_moves=(*go_to_event(day, event), Click("button", "Delete the series"), Answer("done")),
        outcome=lambda site: site.skip(event.number, day),
    )


def clear_half_day(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: remove the user's events of half a day; events of others and of the other half must stay."""
    noon = 12 * 60
    me = app.me.email
    days = sorted({day for day, event in _coming(app) if event.owner == me})
    most = 1 + difficulty // 2
    afternoon = rng.random() < 0.5

    def due(day: date) -> list[Event]:
        events = [event for _, event in app.occurrences(day, day) if event.owner == me]
        return [event for event in events if (event.start >= noon) == afternoon]

    if not any(map(due, days)):  # all of them are in the other half of the day
        afternoon = not afternoon
    counts = {len(due(day)) for day in days} - {0}
    wanted = max((count for count in counts if count <= most), default=min(counts))
    day = rng.choice([day for day in days if len(due(day)) == wanted])
    events = due(day)
    half = "at 12:00 or later" if afternoon else "before 12:00"
    goal = (
        f"You need {full_date(day)} for yourself. Delete every event that you organise and that starts {half} on that "
        "day. Of a weekly series cancel only that day. Events that others organise stay as they are."
    )

    def removal(event: Event) -> tuple[Move, ...]:
        return *go_to_event(day, event), Click("button", "Cancel only this day" if event.until else "Delete")

    def outcome(expected: CalendarApp) -> None:
        for event in events:
            expected.skip(event.number, day) if event.until else expected.delete(event.number)

    if len(events) > 1:
        wrong = [move for event in events[:-1] for move in removal(event)]
    elif events[0].until:
        wrong = [*go_to_event(day, events[0]), Click("button", "Delete the series")]
    else:  # moves the event instead of deleting it
        next_day = Fill("Date", (day + timedelta(days=1)).isoformat())
        wrong = [*go_to_event(day, events[0]), Click("link", "Edit"), next_day, Click("button", "Save changes")]
    return WebTask(
        goal,
        START_URL,
        moves=(*(move for event in events for move in removal(event)), Answer("done")),
        wrong_moves=(*wrong, Answer("done")),
        outcome=outcome,
    )


def answer_invitations(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    waiting = sorted(
        (event for event in app.mine() if event.answer_of(app.me.email) == "waiting"),
        key=lambda event: (event.day, event.start),
    )
    number = len(waiting)
    limit = ""
    if difficulty >= 3 and waiting[-1].day > waiting[-2].day:
        limit = f" Leave invitations for {full_date(waiting[-1].day)} or later unanswered."
        waiting.pop()

    def clashes(event: Event) -> bool:
        busy = app.busy(app.me.email, event.day)
        return any(event.start < end and start < event.end for start, end in busy)

    def moves(declined: Sequence[Event]) -> tuple[Move, ...]:
        return (
            Click("link", f"Invitations ({number})"),
            *(Click("button", "Decline" if event in declined else "Accept", within=event.title) for event in waiting),
            Answer("done"),
        )

    def outcome(expected: CalendarApp) -> None:
        for event in waiting:
            expected.answer(event.number, "declined" if clashes(event) else "accepted")

    declined = [event for event in waiting if clashes(event)]
    almost = declined[1:] if declined else waiting[:1]
    goal = rng.choice(
        (
            "Answer all open invitations: decline those that overlap with something you organise or have accepted, and "
            "accept the others.",
            "Some invitations wait for your answer. Accept each one for which you have time, and decline each one "
            "during which another event takes place that you organise or have accepted.",
        )
    )
    goal += f" Events that only touch, one ending when the other starts, do not overlap.{limit}"
    goal += f" (The calendar is that of {app.me.name}.)"
    return WebTask(goal, START_URL, moves=moves(declined), wrong_moves=moves(almost), outcome=outcome)


def _meeting(app: CalendarApp, rng: Random, difficulty: int) -> tuple[date, list[Person], int, int]:
    """Draw a day, people and a length in minutes, and find the first start time at which all of them are free."""
    busy_days = [app.today + timedelta(days=number) for number in range(1, 8 + difficulty)]
    busy_days = [day for day in busy_days if day.weekday() < 5][: 4 + difficulty]
    for _ in range(100):
        day = rng.choice(busy_days)
        people = rng.sample(app.people, min(5, 1 + (difficulty + 2) // 2))
        length = rng.choice((30, 45, 60, 90))
        start = first_gap(app, people, day, length)
        if start is not None and start > 9 * 60:  # the first hour is occupied, so the answer is not trivial
            return day, people, length, start
    return next(
        (day, [person], 30, start)
        for day in busy_days
        for person in app.people
        if (start := first_gap(app, [person], day, 30)) is not None
    )


def first_gap(app: CalendarApp, people: Sequence[Person], day: date, length: int) -> int | None:
    gaps = app.common_gaps((app.me.email, *(person.email for person in people)), day)
    return next((start for start, end in gaps if end - start >= length), None)


_RULES = (
    "Only the hours from 9:00 to 17:00 count, the time may start at any minute, and an invitation that nobody has "
    "answered yet blocks nothing."
)


def find_common_time(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    day, people, length, start = _meeting(app, rng, difficulty)
    names = listed([person.name for person in people])
    goal = rng.choice(
        (
            f"What is the earliest time on {full_date(day)} at which you, {names} are all free for {length} minutes?",
            f"When on {full_date(day)} can you first meet for {length} minutes together with {names}?",
        )
    )
    moves = look_at(day, people)
    return WebTask(
        f"{goal} {_RULES} Answer with the start, such as 13:15.",
        START_URL,
        moves=(*moves, Answer(clock(start))),
        wrong_moves=(*moves, Answer(clock(start + 15))),
        answer={"type": "time", "value": clock(start)},
    )


def book_common_time(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    day, people, length, start = _meeting(app, rng, difficulty)
    names = listed([person.name for person in people])
    title = f"{rng.choice(TOPICS)} {rng.choice(KINDS)} with all of us"
    goal = (
        f"Find the earliest time on {full_date(day)} at which you, {names} are all free for {length} minutes, and put "
        f"an event “{title}” of that length there, with them as guests and without a place. {_RULES}"
    )
    if rng.random() < 0.2:
        longest = max(end - start for start, end in app.common_gaps([app.me.email, *(p.email for p in people)], day))
        if longest < 7 * 60:
            length = (longest // 30 + 1) * 30
            goal = (
                f"Find a time on {full_date(day)} at which you, {names} are all free for {length} minutes, and put an "
                f"event “{title}” of that length there, with them as guests and without a place. {_RULES}"
            )
            return WebTask(
                goal,
                START_URL,
                moves=(*look_at(day, people), ReportInfeasible("There is no such time on that day.")),
                wrong_moves=(*fill_in(title, day, 9 * 60, 9 * 60 + length, "", people), Answer("done")),
                infeasible=True,
            )
    return WebTask(
        goal,
        START_URL,
        moves=(*look_at(day, people), *fill_in(title, day, start, start + length, "", people), Answer("done")),
        wrong_moves=(
            *look_at(day, people),
            *fill_in(title, day, start + 15, start + 15 + length, "", people),
            Answer("done"),
        ),
        outcome=lambda site: site.add(title, day, start, start + length, guests=[person.email for person in people]),
    )


def look_up(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the date of the next event of a name, the end of a day, or an event's organiser."""
    accepted = [(day, event) for day, event in _coming(app) if event.answer_of(app.me.email) == "accepted"]
    question = rng.choice(("date", "end", "organiser"))
    if question == "date":
        day, event = rng.choice(accepted)
        day = next(day for day, other in accepted if other.title == event.title)
        goal = rng.choice(
            (
                f"On which date is the next “{event.title}”, counted from tomorrow on?",
                f"When does “{event.title}” take place next, today not counted? Answer with the date.",
            )
        )
        moves: tuple[Move, ...] = (Fill("Search events", event.title), Click("button", "Search"))
        right, wrong = long_date(day), long_date(day + timedelta(days=7))
        answer = {"type": "date", "value": day.isoformat()}
    elif question == "end":
        day, _ = rng.choice(accepted)
        last = max(event.end for when, event in accepted if when == day)
        goal = (
            f"At what time does the last event end that you have on {full_date(day)}? Only events count that you "
            "organise or have accepted."
        )
        moves = go_to(day)
        right, wrong = clock(last), clock(last - 15)
        answer = {"type": "time", "value": right}
    else:
        invited = [(day, event) for day, event in accepted if event.owner != app.me.email] or accepted
        day, event = rng.choice(invited)
        goal = f"Who organises “{event.title}” on {full_date(day)}? Answer with first name and surname."
        moves = go_to_event(day, event)
        right = app.name_of(event.owner)
        wrong = _similar(rng, app, next(p for p in (app.me, *app.people) if p.email == event.owner)).name
        answer = {"type": "string", "value": right}
    return WebTask(goal, START_URL, moves=(*moves, Answer(right)), wrong_moves=(*moves, Answer(wrong)), answer=answer)


def minutes_in_meetings(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the minutes in meetings of a day, a week, or a week with one person."""
    day, _ = rng.choice(_coming(app, 7 * (1 + difficulty)))
    monday = day - timedelta(days=day.weekday())
    first, last = (day, day) if difficulty == 1 else (monday, monday + timedelta(days=6))
    events = [event for _, event in app.occurrences(first, last) if event.answer_of(app.me.email) == "accepted"]
    span = f"on {full_date(day)}" if first == last else f"in the week from {full_date(first)} to {full_date(last)}"
    with_whom = ""
    if difficulty >= 3:
        present = sorted({email for event in events for email in (event.owner, *dict(event.guests))} - {app.me.email})
        if present:
            email = rng.choice(present)
            events = [event for event in events if event.owner == email or email in dict(event.guests)]
            name = app.name_of(email)
            with_whom = f" and of which {name} is the organiser or a guest, whatever {name} answered"
    total = sum(event.end - event.start for event in events)
    goal = (
        f"How many minutes do your events {span} take in all? Count those that you organise or have "
        f"accepted{with_whom}, each day of a series for itself, and answer with the number of minutes."
    )
    moves = go_to(day, "Day" if first == last else "Week")
    return WebTask(
        goal,
        START_URL,
        moves=(*moves, Answer(str(total))),
        wrong_moves=(*moves, Answer(str(total + 30))),
        answer={"type": "number", "value": total},
    )


def change_guests(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    event = _pick(rng, _single(app, own=True))
    guests = [email for email, _ in event.guests]
    person = rng.choice([person for person in app.people if person.email not in guests])
    asked = f"“{event.title}” on {full_date(event.day)}"
    removed = rng.choice(guests) if difficulty >= 2 and rng.random() < 0.6 else None
    goal = f"Invite {person.name} to {asked}."
    if removed:
        goal = f"In {asked}, {app.name_of(removed)} is replaced by {person.name}: change the guests."
    goal += " The other guests stay."
    wanted = [email for email in guests if email != removed] + [person.email]
    other = _similar(rng, app, person, [p for p in app.people if p.email in guests])

    def moves(emails: Sequence[str]) -> tuple[Move, ...]:
        return (
            *go_to_event(event.day, event),
            Click("link", "Edit"),
            Fill("Guests", ", ".join(app.name_of(email) for email in emails)),
            Click("button", "Save changes"),
            Answer("done"),
        )

    return WebTask(
        goal,
        START_URL,
        moves=moves(wanted),
        wrong_moves=moves([*wanted[:-1], other.email]),
        outcome=lambda site: site.change(event.number, guests=wanted),
    )


TEMPLATES = tuple(
    WebTaskTemplate(f"calendar/{name}", build, make_task, _LEVELS)
    for name, make_task in (
        ("create-event", create),
        ("reschedule", reschedule),
        ("cancel-one-day", cancel_one_day),
        ("clear-half-day", clear_half_day),
        ("answer-invitations", answer_invitations),
        ("find-common-time", find_common_time),
        ("book-common-time", book_common_time),
        ("look-up", look_up),
        ("minutes-in-meetings", minutes_in_meetings),
        ("change-guests", change_guests),
    )
)
