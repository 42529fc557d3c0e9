"""The calendar's tasks: creating, moving, cancelling and answering events, finding free times, and questions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from random import Random

from rllm_gym.envs.web.sites.calendar.generate import KINDS, LENGTHS, PLACES, TOPICS, build
from rllm_gym.envs.web.sites.calendar.pages import ORIGIN, CalendarApp
from rllm_gym.envs.web.sites.calendar.state import Event
from rllm_gym.envs.web.sites.fields import clock, full_date
from rllm_gym.envs.web.sites.moves import Click, Fill, Move, Moves
from rllm_gym.envs.web.sites.people import Person
from rllm_gym.envs.web.sites.task import WebTask, WebTaskTemplate, change_task, infeasible_task, question_task
from rllm_gym.envs.web.sites.wording import FIRST_NAMES, listed, long_date

START_URL = f"{ORIGIN}/"
_LEVELS = (1, 2, 3, 4, 5)

# Move sequences


def go_to(day: date, view: str = "Day") -> Moves:
    return Click("link", view), Fill("Go to date", day.isoformat()), Click("button", "Go")


def go_to_event(day: date, event: Event) -> Moves:
    return *go_to(day), Click("link", event.title)


def fill_in(title: str, day: date, start: int, end: int, place: str = "", guests: Sequence[Person] = ()) -> Moves:
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


def look_at(day: date, people: Sequence[Person]) -> Moves:
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


# Templates


def create(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    titles = {event.title for event in app.events.values()}
    title = next(
        name for _ in range(1_000) if (name := f"{rng.choice(TOPICS)} {rng.choice(KINDS)} with partners") not in titles
    )
    day, length = _workday(rng, app, difficulty), rng.choice(LENGTHS)
    start = rng.randrange(8 * 60, 16 * 60, 15)
    end = start + length
    place = rng.choice(PLACES) if difficulty >= 2 or rng.random() < 0.5 else ""
    guests = rng.sample(app.people, rng.randint(1, min(4, difficulty + 1)))
    when = rng.choice(
        (
            f"on {full_date(day)}, from {clock(start)} to {clock(end)}",
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
        return infeasible_task(goal, START_URL, (), "One of the guests is not in the address book.")
    emails = [person.email for person in guests]
    moves = fill_in(title, day, start, end, place, guests)
    return change_task(
        goal, START_URL, moves, lambda site: site.add(title, day, start, end, place=place, guests=emails)
    )


def reschedule(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    infeasible = rng.random() < 0.15
    event = _pick(rng, _single(app, own=not infeasible) or _single(app, own=True))
    start = rng.choice([start for start in range(8 * 60, 17 * 60, 30) if start != event.start])
    end = start + event.end - event.start
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
    moves = go_to_event(event.day, event)
    if event.owner != app.me.email:
        goal += " If you are not allowed to change it, say so and leave everything as it is."
        return infeasible_task(goal, START_URL, moves, "Only the organiser can change this event.")
    fills = Fill("Date", day.isoformat()), Fill("Starts", clock(start)), Fill("Ends", clock(end))
    moves = *moves, Click("link", "Edit"), *fills, Click("button", "Save changes")
    return change_task(goal, START_URL, moves, lambda site: site.change(event.number, day=day, start=start, end=end))


def cancel_one_day(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    day, event = rng.choice([(day, event) for day, event in _coming(app, 7 * (1 + difficulty)) if event.until])
    goal = rng.choice(
        (
            f"The “{event.title}” on {full_date(day)} does not take place. Cancel that one day; the series goes on.",
            f"Cancel “{event.title}” on {long_date(day)} only. It must stay on all its other days.",
        )
    )
    moves = *go_to_event(day, event), Click("button", "Cancel only this day")
    return change_task(goal, START_URL, moves, lambda site: site.skip(event.number, day))


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
    moves: list[Move] = []
    for event in events:
        moves += [*go_to_event(day, event), Click("button", "Cancel only this day" if event.until else "Delete")]

    def outcome(expected: CalendarApp) -> None:
        for event in events:
            expected.skip(event.number, day) if event.until else expected.delete(event.number)

    return change_task(goal, START_URL, moves, outcome)


def answer_invitations(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    waiting = sorted(
        (event for event in app.mine() if event.answer_of(app.me.email) == "waiting"),
        key=lambda event: (event.day, event.start),
    )
    open_list = Click("link", f"Invitations ({len(waiting)})")
    limit = ""
    if difficulty >= 3 and waiting[-1].day > waiting[-2].day:
        limit = f" Leave invitations for {full_date(waiting[-1].day)} or later unanswered."
        waiting.pop()

    def clashes(event: Event) -> bool:
        busy = app.busy(app.me.email, event.day)
        return any(event.start < end and start < event.end for start, end in busy)

    def outcome(expected: CalendarApp) -> None:
        for event in waiting:
            expected.answer(event.number, "declined" if clashes(event) else "accepted")

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
    answers = [Click("button", "Decline" if clashes(event) else "Accept", within=event.title) for event in waiting]
    return change_task(goal, START_URL, (open_list, *answers), outcome)


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
    goal += f" {_RULES} Answer with the start, such as 13:15."
    answer = {"type": "time", "value": clock(start)}
    return question_task(goal, START_URL, look_at(day, people), clock(start), answer)


def book_common_time(app: CalendarApp, rng: Random, difficulty: int) -> WebTask:
    day, people, length, start = _meeting(app, rng, difficulty)
    names = listed([person.name for person in people])
    title = f"{rng.choice(TOPICS)} {rng.choice(KINDS)} with all of us"
    infeasible = False
    if rng.random() < 0.2:
        longest = max(end - start for start, end in app.common_gaps([app.me.email, *(p.email for p in people)], day))
        infeasible = longest < 7 * 60
        length = (longest // 30 + 1) * 30 if infeasible else length
    goal = (
        f"Find {'a' if infeasible else 'the earliest'} time on {full_date(day)} at which you, {names} are all free for "
        f"{length} minutes, and put an event “{title}” of that length there, with them as guests and without a place. "
        f"{_RULES}"
    )
    moves = look_at(day, people)
    if infeasible:
        return infeasible_task(goal, START_URL, moves, "There is no such time on that day.")
    end = start + length
    emails = [person.email for person in people]
    moves = *moves, *fill_in(title, day, start, end, "", people)
    return change_task(goal, START_URL, moves, lambda site: site.add(title, day, start, end, guests=emails))


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
        moves: Moves = (Fill("Search events", event.title), Click("button", "Search"))
        text, answer = long_date(day), {"type": "date", "value": day.isoformat()}
    elif question == "end":
        day, _ = rng.choice(accepted)
        text = clock(max(event.end for when, event in accepted if when == day))
        goal = (
            f"At what time does the last event end that you have on {full_date(day)}? Only events count that you "
            "organise or have accepted."
        )
        moves = go_to(day)
        answer = {"type": "time", "value": text}
    else:
        invited = [(day, event) for day, event in accepted if event.owner != app.me.email] or accepted
        day, event = rng.choice(invited)
        goal = f"Who organises “{event.title}” on {full_date(day)}? Answer with first name and surname."
        moves = go_to_event(day, event)
        text = app.name_of(event.owner)
        answer = {"type": "string", "value": text}
    return question_task(goal, START_URL, moves, text, answer)


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
    return question_task(goal, START_URL, moves, str(total), {"type": "number", "value": total})


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
    edit = Click("link", "Edit"), Fill("Guests", ", ".join(map(app.name_of, wanted))), Click("button", "Save changes")
    moves = *go_to_event(event.day, event), *edit
    return change_task(goal, START_URL, moves, lambda site: site.change(event.number, guests=wanted))


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
