"""Task templates for the calendar: meetings are arranged, moved, cancelled, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from random import Random

from rllm_gym.envs.mcp.domains.calendar.state import (
    CLOSES,
    OPENS,
    Meeting,
    OfficeCalendar,
    OfficeCalendarState,
    written,
)
from rllm_gym.envs.mcp.task import Call, FinalAnswer, InfeasibleReport, ToolTask, ToolTaskTemplate, called
from rllm_gym.envs.mcp.wording import a_today, listed, people, words

SUBJECTS = words("Budget Design Hiring Launch Marketing Pricing Quality Safety Sales Security Strategy Website")
KINDS = words("check-in review planning workshop interview briefing")
WEEKDAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
DOMAINS = ("acme.example", "north.example", "studio.example")
_PEOPLE = {1: 4, 2: 6, 3: 9}
_WEEKS = {1: 1, 2: 1, 3: 2}


def a_title(rng: Random) -> str:
    return f"{rng.choice(SUBJECTS)} {rng.choice(KINDS)}"


def a_calendar(rng: Random, today: date, difficulty: int) -> OfficeCalendar:
    """Generate some weeks of meetings from the Monday after ``today`` on; nobody has two at the same time."""
    domain = rng.choice(DOMAINS)
    names = people(rng, _PEOPLE[difficulty])
    staff = {f"{name.split()[0][0]}{name.split()[1]}{rng.randint(10, 99)}@{domain}".lower(): name for name in names}
    addresses = list(staff)
    calendar = OfficeCalendar(addresses[0], staff, ())
    monday = next_monday(today)
    for day in (
        monday + timedelta(days=7 * week + number) for week in range(_WEEKS[difficulty]) for number in range(5)
    ):
        # Every day, the owner organizes one meeting and attends another.
        for organizer, guest in ((0, None), (rng.randint(1, len(addresses) - 1), 0), *[(None, None)] * len(addresses)):
            _arrange(rng, calendar, addresses, day, organizer, guest)
    return calendar


def _arrange(
    rng: Random, calendar: OfficeCalendar, addresses: Sequence[str], day: date, organizer: int | None, guest: int | None
) -> None:
    """Add one meeting, at the first of several drawn times at which all attendees are free."""
    leader = addresses[rng.randrange(1, len(addresses)) if organizer is None else organizer]
    invited = {leader, *rng.sample(addresses, rng.randint(1, min(3, len(addresses) - 1)))}
    if guest is None and leader != calendar.owner:
        invited.discard(calendar.owner)
    elif guest is not None:
        invited.add(addresses[guest])
    length = timedelta(minutes=30 * rng.randint(1, 3))
    title = a_title(rng)
    for _ in range(8):
        start = datetime.combine(day, OPENS) + timedelta(minutes=30 * rng.randint(0, 13))
        fits = start + length <= datetime.combine(day, CLOSES)
        if fits and not any(calendar.busy(address, start, start + length) for address in invited):
            number = f"ev-{len(calendar.meetings) + 11}"
            meeting = Meeting(number, title, written(start), written(start + length), leader, sorted(invited))
            calendar.meetings[number] = meeting
            return


def next_monday(today: date) -> date:
    return today + timedelta(days=7 - today.weekday())


def build(seed: int, difficulty: int) -> OfficeCalendarState:
    rng = Random(f"calendar/{seed}/{difficulty}")
    today = a_today(rng)
    return OfficeCalendarState(a_calendar(rng, today, difficulty), today)


def _days(state: OfficeCalendarState) -> list[date]:
    return sorted({meeting.starts.date() for meeting in state.calendar.meetings.values()})


def _setting(state: OfficeCalendarState) -> str:
    return f"You work for {state.calendar.people[state.calendar.owner]}, whose calendar this is. "


def _on(day: date) -> str:
    return f"{WEEKDAYS[day.weekday()]}, {day}"


def _list(first: date, last: date, person: str | None = None) -> Call:
    arguments = {"first_day": str(first), "last_day": str(last)}
    return Call("list_events", {**arguments, "person": person} if person else arguments)


def _create(title: str, start: datetime, length: timedelta, others: Sequence[str]) -> Call:
    arguments = {"title": title, "start": written(start), "end": written(start + length), "attendees": list(others)}
    return Call("create_event", arguments)


def _tools(state: OfficeCalendarState) -> OfficeCalendar:
    return state.calendar


def _others(state: OfficeCalendarState, rng: Random, count: int) -> list[str]:
    return rng.sample([address for address in state.calendar.people if address != state.calendar.owner], count)


def _named(state: OfficeCalendarState, addresses: Sequence[str]) -> str:
    return listed(state.calendar.people[address] for address in addresses)


def _own_meetings(state: OfficeCalendarState, rng: Random, count: int) -> list[Meeting]:
    office_calendar = state.calendar
    own = [meeting for meeting in office_calendar.meetings.values() if meeting.organizer == office_calendar.owner]
    return rng.sample(sorted(own, key=lambda meeting: meeting.start), min(count, len(own)))


def create(state: OfficeCalendarState, rng: Random, difficulty: int) -> ToolTask:
    calls, wishes = [], []
    for _ in range(difficulty):
        day = rng.choice(_days(state))
        start = datetime.combine(day, OPENS) + timedelta(minutes=15 * rng.randint(0, 24))
        length, title = timedelta(minutes=15 * rng.randint(1, 6)), a_title(rng)
        others = _others(state, rng, rng.randint(1, 3))
        calls.append(_create(title, start, length, others))
        wishes.append(
            f'a meeting called "{title}" with {_named(state, others)} on {_on(day)}, from {start:%H:%M} to '
            f"{start + length:%H:%M}"
        )
    goal = _setting(state) + f"Enter {'; '.join(wishes)}. Whether people are free does not matter."
    first = calls[0].arguments
    length = datetime.fromisoformat(str(first["end"])) - datetime.fromisoformat(str(first["start"]))
    look = Call("list_people")
    return ToolTask(goal, (look, *calls, FinalAnswer()), called(calls, _tools))


def first_free(state: OfficeCalendarState, rng: Random, difficulty: int) -> ToolTask:
    office_calendar, days = state.calendar, _days(state)
    others = _others(state, rng, difficulty)
    length, title = timedelta(minutes=30 * rng.randint(2, 4)), a_title(rng)
    day = rng.choice(days[: max(2, len(days) - 2)])
    everybody = [office_calendar.owner, *others]
    start = next(office_calendar.free_slots(everybody, day, length))
    everyone = "both" if len(everybody) == 2 else "all"
    goal = _setting(state) + (
        f"Find the earliest time from {_on(day)} on at which {_named(state, everybody)} are {everyone} free for "
        f'{length.seconds // 60} minutes, and create a meeting "{title}" of that length with them then. It begins on '
        "the full or half hour and lies within 09:00 to 17:00, Monday to Friday."
    )
    looks = [_list(day, max(day, start.date()), address) for address in everybody]
    right = _create(title, start, length, others)
    return ToolTask(goal, (*looks, right, FinalAnswer()), called([right], _tools))


def move(state: OfficeCalendarState, rng: Random, difficulty: int) -> ToolTask:
    calls, wishes = [], []
    for meeting in _own_meetings(state, rng, difficulty):
        day = rng.choice(_days(state))
        start = datetime.combine(day, OPENS) + timedelta(minutes=15 * rng.randint(0, 23))
        if start == meeting.starts:
            start += timedelta(minutes=15)
        calls.append(Call("move_event", {"event_id": meeting.event_id, "start": written(start)}))
        wishes.append(
            f'"{meeting.title}", which begins on {_on(meeting.starts.date())} at {meeting.starts:%H:%M}, to {_on(day)} '
            f"at {start:%H:%M}"
        )
    goal = _setting(state) + (
        f"Move {'; '.join(wishes)}. Length and participants stay, and whether people are free does not matter."
    )
    look = _list(_days(state)[0], _days(state)[-1])
    return ToolTask(goal, (look, *calls, FinalAnswer()), called(calls, _tools))


def clear(state: OfficeCalendarState, rng: Random, difficulty: int) -> ToolTask:
    office_calendar, days = state.calendar, _days(state)
    first = rng.randrange(len(days) - difficulty + 1)
    away = days[first : first + difficulty]
    mine = [
        m for m in office_calendar.meetings.values() if office_calendar.owner in m.attendees and m.starts.date() in away
    ]
    calls = [
        Call("delete_event", {"event_id": meeting.event_id})
        if meeting.organizer == office_calendar.owner
        else Call("remove_attendee", {"event_id": meeting.event_id, "person": office_calendar.owner})
        for meeting in mine
    ]
    name = office_calendar.people[office_calendar.owner]
    when = f"on {_on(away[0])}" if len(away) == 1 else f"from {_on(away[0])} to {_on(away[-1])}, both included"
    goal = _setting(state) + (
        f"{name} is away {when}. Cancel every meeting in that time that {name} organizes, and take {name} off every "
        "meeting that others organize."
    )
    look = _list(away[0], away[-1])
    return ToolTask(goal, (look, *calls, FinalAnswer()), called(calls, _tools))


def swap_attendee(state: OfficeCalendarState, rng: Random, difficulty: int) -> ToolTask:
    office_calendar = state.calendar
    calls, wishes = [], []
    for meeting in _own_meetings(state, rng, difficulty):
        outside = [address for address in office_calendar.people if address not in meeting.attendees]
        inside = [address for address in meeting.attendees if address != office_calendar.owner]
        comes, goes = rng.choice(outside or [""]), rng.choice(inside or [""])
        wish = []
        if comes:
            calls.append(Call("add_attendee", {"event_id": meeting.event_id, "person": comes}))
            wish.append(f"invite {office_calendar.people[comes]}")
        if goes:
            calls.append(Call("remove_attendee", {"event_id": meeting.event_id, "person": goes}))
            wish.append(f"take {office_calendar.people[goes]} off")
        wishes.append(
            f'"{meeting.title}" on {_on(meeting.starts.date())} at {meeting.starts:%H:%M} ({" and ".join(wish)})'
        )
    goal = _setting(state) + f"Change who takes part: {'; '.join(wishes)}."
    look = _list(_days(state)[0], _days(state)[-1])
    return ToolTask(goal, (look, *calls, FinalAnswer()), called(calls, _tools))


def busy_time(state: OfficeCalendarState, rng: Random, difficulty: int) -> ToolTask:
    office_calendar, days = state.calendar, _days(state)
    person = office_calendar.owner if difficulty == 1 else rng.choice(_others(state, rng, 1))
    span = {1: rng.randint(1, 2), 2: rng.randint(2, 4), 3: rng.randint(5, 9)}[difficulty]
    first = rng.randrange(len(days) - span)
    last = first + span
    theirs = [
        m
        for m in office_calendar.meetings.values()
        if person in m.attendees and days[first] <= m.starts.date() <= days[last]
    ]
    which = ""
    if difficulty > 2:
        theirs = [meeting for meeting in theirs if meeting.organizer != person]
        which = " organized by somebody else"
    minutes = sum(int(meeting.length.total_seconds()) // 60 for meeting in theirs)
    goal = _setting(state) + rng.choice(
        (
            f"How many minutes does {office_calendar.people[person]} spend in meetings{which} from "
            f"{_on(days[first])} to {_on(days[last])}, both days included?",
            f"Add up the length, in minutes, of all meetings{which} that {office_calendar.people[person]} takes part "
            f"in from {_on(days[first])} up to and including {_on(days[last])}.",
        )
    )
    look = _list(days[first], days[last], person)
    answer = {"type": "number", "value": minutes}
    return ToolTask(goal, (look, FinalAnswer(str(minutes))), answer=answer)


def within(state: OfficeCalendarState, rng: Random, difficulty: int) -> ToolTask:
    """Create a task; in half of these time spans somebody is never free."""
    office_calendar, length, title = state.calendar, timedelta(minutes=30), a_title(rng)
    others = _others(state, rng, difficulty)
    everybody = [office_calendar.owner, *others]
    if rng.random() < 0.5:
        start = next(office_calendar.free_slots(everybody, rng.choice(_days(state)), length))
        first, last = start - length * rng.randint(0, 1), start + length * rng.randint(1, 2)
        day = start.date()
        first, last = max(first, datetime.combine(day, OPENS)), min(last, datetime.combine(day, CLOSES))
        start = next(slot for slot in office_calendar.free_slots(everybody, day, length) if slot >= first)
    else:
        meetings = sorted(office_calendar.meetings.values(), key=lambda meeting: meeting.event_id)
        blocked = rng.choice([meeting for meeting in meetings if set(meeting.attendees) & set(everybody)])
        start = first = blocked.starts
        last, day = blocked.ends, blocked.starts.date()
    everyone = "both" if len(everybody) == 2 else "all"
    goal = _setting(state) + (
        f'Arrange a meeting "{title}" of 30 minutes with {_named(state, others)} on {_on(day)}, between {first:%H:%M} '
        f"and {last:%H:%M}, at the earliest full or half hour from which {_named(state, everybody)} are {everyone} "
        "free for it. If there is none in that time, it cannot be done."
    )
    looks = [_list(day, day, address) for address in everybody]
    right = _create(title, start, length, others)
    if any(office_calendar.busy(address, start, start + length) for address in everybody):
        return ToolTask(goal, (*looks, InfeasibleReport("Somebody is busy.")), infeasible=True)
    return ToolTask(goal, (*looks, right, FinalAnswer()), called([right], _tools))


TEMPLATES = (
    ToolTaskTemplate("calendar/create", build, create),
    ToolTaskTemplate("calendar/first-free", build, first_free),
    ToolTaskTemplate("calendar/move", build, move),
    ToolTaskTemplate("calendar/clear", build, clear),
    ToolTaskTemplate("calendar/attendees", build, swap_attendee),
    ToolTaskTemplate("calendar/busy-time", build, busy_time),
    ToolTaskTemplate("calendar/within", build, within),
)
