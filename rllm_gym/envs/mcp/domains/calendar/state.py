"""The shared calendar of an office: meetings with an organizer and attendees, and its tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, time, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from rllm_gym.envs.mcp.serving import Refusal, server
from rllm_gym.envs.mcp.task import DomainState
from rllm_gym.envs.mcp.wording import as_json
from rllm_gym.mcp.servers import InProcessServer

MAX_EVENTS = 1_000
MAX_CHARS = 200
MAX_ATTENDEES = 50
MAX_LISTED = 60
OPENS, CLOSES = time(9), time(17)
SLOT = timedelta(minutes=30)


@dataclass(frozen=True)
class Meeting:
    event_id: str
    title: str
    start: str
    end: str
    organizer: str
    attendees: list[str]  # includes the organizer

    @cached_property
    def starts(self) -> datetime:
        return datetime.fromisoformat(self.start)

    @cached_property
    def ends(self) -> datetime:
        return datetime.fromisoformat(self.end)

    @property
    def length(self) -> timedelta:
        return self.ends - self.starts


def written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M")


class OfficeCalendar:
    """The meetings of several people, as one of them sees and changes them.

    Args:
        owner: E-mail address of the person the model works for.
        people: Names by e-mail address.
        meetings: The initial meetings.
    """

    def __init__(self, owner: str, people: Mapping[str, str], meetings: Iterable[Meeting]) -> None:
        self.owner = owner
        self.people = dict(people)
        self.meetings = {meeting.event_id: meeting for meeting in meetings}
        self._created = 0

    def tools(self) -> Sequence[Any]:
        return (
            self.list_people,
            self.list_events,
            self.search,
            self.create_event,
            self.move_event,
            self.delete_event,
            self.add_attendee,
            self.remove_attendee,
        )

    def facts(self) -> Any:
        """Return all meetings, in order; their ids are not compared."""
        meetings = [asdict(meeting) for meeting in self.meetings.values()]
        return sorted(([event[key] for key in event if key != "event_id"] for event in meetings), key=as_json)

    def busy(self, address: str, start: datetime, end: datetime) -> bool:
        return any(address in m.attendees and m.starts < end and start < m.ends for m in self.meetings.values())

    def free_slots(self, addresses: Sequence[str], day: date, length: timedelta) -> Iterator[datetime]:
        """Yield the times, on the full or half hour, at which all are free in working hours; endless from a day on."""
        while True:
            moment = datetime.combine(day, OPENS)
            while day.weekday() < 5 and moment + length <= datetime.combine(day, CLOSES):
                if not any(self.busy(address, moment, moment + length) for address in addresses):
                    yield moment
                moment += SLOT
            day += timedelta(days=1)

    # Tools

    def list_people(self) -> dict[str, str]:
        """The names of all people whose calendars you can see, by e-mail address."""
        return self.people

    def list_events(self, first_day: str, last_day: str, person: str | None = None) -> list[Meeting]:
        """The meetings of a person in a span of days, in order of time.

        Args:
            first_day: First day, YYYY-MM-DD.
            last_day: Last day, YYYY-MM-DD, included.
            person: Their e-mail address; your own calendar if left out.
        """
        address = self._address(person or self.owner)
        first, last = _day(first_day), _day(last_day)
        found = [m for m in self.meetings.values() if address in m.attendees and first <= m.starts.date() <= last]
        return self._some(found)

    def search(self, query: str) -> list[Meeting]:
        """Find meetings of anybody by a part of their title.

        Args:
            query: A part of the title; upper and lower case are the same.
        """
        part = query.strip().lower()
        if not 1 <= len(part) <= MAX_CHARS:
            raise Refusal(f"Search for 1 to {MAX_CHARS} characters.")
        return self._some([meeting for meeting in self.meetings.values() if part in meeting.title.lower()])

    def create_event(self, title: str, start: str, end: str, attendees: list[str]) -> Meeting:
        """Create a meeting with you as its organizer; you take part without being named. Invitations go out at once.

        Args:
            title: What it is about.
            start: YYYY-MM-DD HH:MM.
            end: YYYY-MM-DD HH:MM, on the same day.
            attendees: E-mail addresses of the others.
        """
        if len(self.meetings) >= MAX_EVENTS:
            raise Refusal(f"The calendar is full: {MAX_EVENTS} meetings.")
        if not 1 <= len(title.strip()) <= MAX_CHARS:
            raise Refusal(f"A title has 1 to {MAX_CHARS} characters.")
        if len(attendees) > MAX_ATTENDEES:
            raise Refusal(f"At most {MAX_ATTENDEES} people can be invited.")
        starts, ends = _moment(start), _moment(end)
        if ends <= starts or ends.date() != starts.date():
            raise Refusal(f"A meeting ends after it starts, on the same day; {start[:40]!r} to {end[:40]!r} does not.")
        invited = sorted({self.owner, *map(self._address, attendees)})
        self._created += 1
        meeting = Meeting(f"new-{self._created}", title.strip(), written(starts), written(ends), self.owner, invited)
        self.meetings[meeting.event_id] = meeting
        return meeting

    def move_event(self, event_id: str, start: str) -> Meeting:
        """Move a meeting that you organize to another time. It stays as long as it is, with the same people.

        Args:
            event_id: The meeting's id.
            start: Its new beginning, YYYY-MM-DD HH:MM.
        """
        meeting = self._own(event_id)
        starts = _moment(start)
        ends = starts + meeting.length
        if ends.date() != starts.date():
            raise Refusal("The meeting would not end on the same day.")
        return self._keep(replace(meeting, start=written(starts), end=written(ends)))

    def delete_event(self, event_id: str) -> str:
        """Cancel a meeting that you organize, for everybody.

        Args:
            event_id: The meeting's id.
        """
        meeting = self._own(event_id)
        del self.meetings[meeting.event_id]
        return f"{meeting.title} on {meeting.start} is cancelled."

    def add_attendee(self, event_id: str, person: str) -> Meeting:
        """Invite one more person to a meeting that you organize.

        Args:
            event_id: The meeting's id.
            person: Their e-mail address.
        """
        meeting, address = self._own(event_id), self._address(person)
        return self._keep(replace(meeting, attendees=sorted({*meeting.attendees, address})))

    def remove_attendee(self, event_id: str, person: str) -> Meeting:
        """Take a person off a meeting that you organize, or yourself off a meeting of somebody else.

        Args:
            event_id: The meeting's id.
            person: Their e-mail address.
        """
        meeting, address = self._meeting(event_id), self._address(person)
        if self.owner not in (meeting.organizer, address):
            raise Refusal(f"Only {meeting.organizer} can take others off {meeting.title!r}.")
        if address == meeting.organizer:
            raise Refusal("The organizer cannot leave; delete_event cancels the meeting.")
        if address not in meeting.attendees:
            raise Refusal(f"{address} does not take part in {meeting.title!r}.")
        return self._keep(replace(meeting, attendees=[other for other in meeting.attendees if other != address]))

    def _some(self, found: list[Meeting]) -> list[Meeting]:
        if len(found) > MAX_LISTED:
            raise Refusal(f"That are {len(found)} meetings, more than {MAX_LISTED}; narrow it down.")
        return sorted(found, key=lambda meeting: (meeting.start, meeting.event_id))

    def _keep(self, meeting: Meeting) -> Meeting:
        self.meetings[meeting.event_id] = meeting
        return meeting

    def _address(self, person: str) -> str:
        address = person.strip().lower()
        if address not in self.people:
            raise Refusal(f"Nobody has the e-mail address {person[:MAX_CHARS]!r}.")
        return address

    def _meeting(self, event_id: str) -> Meeting:
        meeting = self.meetings.get(event_id.strip())
        if meeting is None:
            raise Refusal(f"There is no meeting with the id {event_id[:MAX_CHARS]!r}.")
        return meeting

    def _own(self, event_id: str) -> Meeting:
        meeting = self._meeting(event_id)
        if meeting.organizer != self.owner:
            raise Refusal(f"{meeting.title!r} is organized by {meeting.organizer}; only they can change it.")
        return meeting


def _day(text: str) -> date:
    try:
        return datetime.strptime(text.strip(), "%Y-%m-%d").date()
    except ValueError:
        raise Refusal(f"{text[:40]!r} is not a day; write YYYY-MM-DD.") from None


def _moment(text: str) -> datetime:
    for form in ("%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"):
        try:
            moment = datetime.strptime(text.strip().replace("T", " "), form).replace(second=0)
        except ValueError:
            continue
        if 2000 <= moment.year < 2100:
            return moment
    raise Refusal(f"{text[:40]!r} is not a day and time; write YYYY-MM-DD HH:MM.")


class OfficeCalendarState(DomainState):
    """An office with a calendar, and its current date."""

    def __init__(self, calendar: OfficeCalendar, today: date) -> None:
        self.calendar = calendar
        self.today = today

    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        return [server("calendar", self.calendar.tools, instructions="The shared calendar of an office.")]

    def facts(self, workspace: Path) -> Any:
        return self.calendar.facts()
