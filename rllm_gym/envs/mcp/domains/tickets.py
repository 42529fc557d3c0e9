"""A help desk with many similar tools, and a second server whose tools are irrelevant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any, Literal

from rllm_gym.envs.mcp.serving import Refusal, server
from rllm_gym.envs.mcp.task import (
    Call,
    DomainState,
    FinalAnswer,
    InfeasibleReport,
    SolutionStep,
    ToolTask,
    ToolTaskTemplate,
    called,
)
from rllm_gym.envs.mcp.wording import CITIES, a_day, a_today, as_json, listed, people, words
from rllm_gym.mcp.servers import InProcessServer

MAX_CHARS = 500
MAX_ENTRIES = 50
Priority = Literal["low", "normal", "high", "urgent"]
PRIORITIES: tuple[Priority, ...] = ("low", "normal", "high", "urgent")
TAGS = words("billing email hardware login network printer security software vpn")
TROUBLES = words("broken slow missing locked lost noisy crashing blinking")
_TICKETS = {1: 8, 2: 20, 3: 40}
_STAFF = {1: 3, 2: 5, 3: 7}


@dataclass
class Ticket:
    ticket_id: int
    title: str
    status: str
    priority: str
    assignee: str | None
    tags: list[str]
    opened_on: str
    due_on: str | None = None
    comments: list[str] = field(default_factory=list)
    internal_notes: list[str] = field(default_factory=list)
    watchers: list[str] = field(default_factory=list)
    locked: bool = False
    archived: bool = False


class HelpDesk(DomainState):
    """Tickets, and the actions on them."""

    def __init__(self, tickets: Sequence[Ticket], staff: Sequence[str], today: date) -> None:
        self.tickets = {ticket.ticket_id: ticket for ticket in tickets}
        self.staff = list(staff)
        self.today = today

    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        canteen = Canteen(self.today)
        return [
            server("helpdesk", self.tools, instructions="Tickets of a help desk."),
            server("canteen", canteen.tools, instructions="Meals and parking."),
        ]

    def facts(self, workspace: Path) -> Any:
        return [asdict(ticket) for ticket in self.tickets.values()]

    def tools(self) -> Sequence[Any]:
        return (
            self.list_tickets, self.get_ticket, self.close_ticket, self.resolve_ticket, self.archive_ticket,
            self.delete_ticket, self.reopen_ticket, self.hold_ticket, self.assign_ticket, self.unassign_ticket,
            self.escalate_ticket, self.set_priority, self.set_due_date, self.add_tag, self.remove_tag,
            self.add_comment, self.add_internal_note, self.add_watcher, self.lock_ticket, self.list_staff,
        )  # fmt: skip

    def list_tickets(self, status: str | None = None, assignee: str | None = None, tag: str | None = None) -> str:
        """List tickets: id, title, status, priority, assignee and tags, one ticket a line.

        Args:
            status: Only tickets with this status: open, on hold, resolved or closed.
            assignee: Only tickets assigned to this person.
            tag: Only tickets with this tag.
        """
        found = [
            f"{t.ticket_id}  {t.title}  [{t.status}, {t.priority}]  {t.assignee or 'nobody'}  {', '.join(t.tags)}"
            for t in self.tickets.values()
            if status in (None, t.status) and assignee in (None, t.assignee) and (tag is None or tag in t.tags)
        ]
        return "\n".join(found) or "No tickets."

    def get_ticket(self, ticket_id: int) -> str:
        """Everything about one ticket.

        Args:
            ticket_id: Its number.
        """
        return as_json(asdict(self._ticket(ticket_id)))

    def close_ticket(self, ticket_id: int) -> str:
        """Close a ticket: the matter is over, whether or not it was solved.

        Args:
            ticket_id: Its number.
        """
        return self._set(ticket_id, "status", "closed")

    def resolve_ticket(self, ticket_id: int) -> str:
        """Mark a ticket as resolved: the trouble is gone, and the customer still has to confirm it.

        Args:
            ticket_id: Its number.
        """
        return self._set(ticket_id, "status", "resolved")

    def archive_ticket(self, ticket_id: int) -> str:
        """Put a ticket away among the old ones; its status stays.

        Args:
            ticket_id: Its number.
        """
        return self._set(ticket_id, "archived", True)

    def delete_ticket(self, ticket_id: int) -> str:
        """Delete a ticket for good.

        Args:
            ticket_id: Its number.
        """
        del self.tickets[self._ticket(ticket_id).ticket_id]
        return f"Ticket {ticket_id} is deleted."

    def reopen_ticket(self, ticket_id: int) -> str:
        """Open a ticket again.

        Args:
            ticket_id: Its number.
        """
        return self._set(ticket_id, "status", "open")

    def hold_ticket(self, ticket_id: int) -> str:
        """Put a ticket on hold until somebody else has answered.

        Args:
            ticket_id: Its number.
        """
        return self._set(ticket_id, "status", "on hold")

    def assign_ticket(self, ticket_id: int, person: str) -> str:
        """Give a ticket to a person, instead of whoever has it.

        Args:
            ticket_id: Its number.
            person: Full name of one of the staff.
        """
        return self._set(ticket_id, "assignee", self._person(person))

    def unassign_ticket(self, ticket_id: int) -> str:
        """Take a ticket from whoever has it; then nobody has it.

        Args:
            ticket_id: Its number.
        """
        return self._set(ticket_id, "assignee", None)

    def escalate_ticket(self, ticket_id: int) -> str:
        """Escalate a ticket to the management: it becomes urgent, and nobody of the staff has it any more.

        Args:
            ticket_id: Its number.
        """
        self._set(ticket_id, "assignee", None)
        return self._set(ticket_id, "priority", "urgent")

    def set_priority(self, ticket_id: int, priority: Priority) -> str:
        """Set how pressing a ticket is.

        Args:
            ticket_id: Its number.
            priority: low, normal, high or urgent.
        """
        return self._set(ticket_id, "priority", priority)

    def set_due_date(self, ticket_id: int, day: str) -> str:
        """Set the day by which a ticket has to be done.

        Args:
            ticket_id: Its number.
            day: YYYY-MM-DD.
        """
        try:
            due = date.fromisoformat(day.strip()).isoformat()
        except ValueError:
            raise Refusal(f"{day[:40]!r} is not a day; write YYYY-MM-DD.") from None
        return self._set(ticket_id, "due_on", due)

    def add_tag(self, ticket_id: int, tag: str) -> str:
        """Add a tag to a ticket.

        Args:
            ticket_id: Its number.
            tag: The tag.
        """
        ticket, word = self._ticket(ticket_id), self._text(tag).lower()
        return self._set(ticket_id, "tags", sorted({*ticket.tags, word}))

    def remove_tag(self, ticket_id: int, tag: str) -> str:
        """Take a tag off a ticket.

        Args:
            ticket_id: Its number.
            tag: The tag.
        """
        ticket, word = self._ticket(ticket_id), self._text(tag).lower()
        if word not in ticket.tags:
            raise Refusal(f"Ticket {ticket_id} has no tag {word[:MAX_CHARS]!r}; its tags are {', '.join(ticket.tags)}.")
        return self._set(ticket_id, "tags", [other for other in ticket.tags if other != word])

    def add_comment(self, ticket_id: int, text: str) -> str:
        """Write a comment that the customer gets to read.

        Args:
            ticket_id: Its number.
            text: The comment.
        """
        return self._set(ticket_id, "comments", [*self._ticket(ticket_id).comments, self._text(text)])

    def add_internal_note(self, ticket_id: int, text: str) -> str:
        """Write a note that only the staff get to read.

        Args:
            ticket_id: Its number.
            text: The note.
        """
        return self._set(ticket_id, "internal_notes", [*self._ticket(ticket_id).internal_notes, self._text(text)])

    def add_watcher(self, ticket_id: int, person: str) -> str:
        """Let a person be told of every change of a ticket. They do not have to work on it.

        Args:
            ticket_id: Its number.
            person: Full name of one of the staff.
        """
        watchers = sorted({*self._ticket(ticket_id).watchers, self._person(person)})
        return self._set(ticket_id, "watchers", watchers)

    def lock_ticket(self, ticket_id: int) -> str:
        """Lock a ticket: the customer can no longer write to it.

        Args:
            ticket_id: Its number.
        """
        return self._set(ticket_id, "locked", True)

    def list_staff(self) -> str:
        """The full names of the staff, one a line."""
        return "\n".join(self.staff)

    def _ticket(self, ticket_id: int) -> Ticket:
        ticket = self.tickets.get(ticket_id)
        if ticket is None:
            raise Refusal(f"There is no ticket {ticket_id}; list_tickets shows those there are.")
        return ticket

    def _person(self, person: str) -> str:
        name = person.strip()
        if name not in self.staff:
            raise Refusal(f"{person[:MAX_CHARS]!r} is not one of the staff; list_staff shows them.")
        return name

    def _text(self, text: str) -> str:
        if not 1 <= len(text.strip()) <= MAX_CHARS:
            raise Refusal(f"A text has 1 to {MAX_CHARS} characters.")
        return text.strip()

    def _set(self, ticket_id: int, name: str, value: Any) -> str:
        if isinstance(value, list) and len(value) > MAX_ENTRIES:
            raise Refusal(f"A ticket has at most {MAX_ENTRIES} of these.")
        setattr(self._ticket(ticket_id), name, value)
        return f"Ticket {ticket_id}: {name} is {as_json(value)}."


class Canteen:
    """Tools that no task needs. They change nothing."""

    def __init__(self, today: date) -> None:
        self._today = today

    def tools(self) -> Sequence[Any]:
        return self.get_menu, self.get_opening_hours, self.get_parking_fee, self.count_free_places, self.get_weather

    def get_menu(self, day: str) -> str:
        """The dishes of a day in the canteen.

        Args:
            day: YYYY-MM-DD.
        """
        return "Soup, pasta, salad."

    def get_opening_hours(self) -> str:
        """When the canteen is open."""
        return "11:30 to 14:00"

    def get_parking_fee(self, hours: int) -> str:
        """What parking costs.

        Args:
            hours: For how long.
        """
        return f"{2 * max(0, min(hours, 24))}.00"

    def count_free_places(self) -> str:
        """How many parking places are free."""
        return str(self._today.day)

    def get_weather(self, city: str) -> str:
        """The weather in a city.

        Args:
            city: Name of the city.
        """
        return f"It is mild in {city[:100]}."


def build(seed: int, difficulty: int) -> HelpDesk:
    rng = Random(f"distractors/{seed}/{difficulty}")
    today = a_today(rng)
    staff = people(rng, _STAFF[difficulty])
    tickets = []
    for number in sorted(rng.sample(range(1000, 9999), _TICKETS[difficulty])):
        tags = sorted(rng.sample(TAGS, rng.randint(1, 2)))
        tickets.append(
            Ticket(
                ticket_id=number,
                title=f"{rng.choice(TAGS).capitalize()} {rng.choice(TROUBLES)} in {rng.choice(CITIES)}",
                status=rng.choice(("open", "open", "open", "on hold", "closed")),
                priority=rng.choice(PRIORITIES[:3]),
                assignee=rng.choice([*staff, None]),
                tags=tags,
                opened_on=a_day(rng, today - timedelta(days=60), today).isoformat(),
            )
        )
    tickets[0].status = "open"
    return HelpDesk(tickets, staff, today)


def _deeds(state: HelpDesk, rng: Random, ticket: Ticket) -> list[tuple[str, str, dict[str, Any]]]:
    """Return possible actions on a ticket: the request, its tool, and further arguments."""
    person, note = rng.choice(state.staff), f"seen by {rng.choice(state.staff)}, room {rng.randint(100, 400)}"
    deeds: list[tuple[str, str, dict[str, Any]]] = [
        ("close it", "close_ticket", {}),
        ("mark it as resolved, the customer has not confirmed it yet", "resolve_ticket", {}),
        ("put it on hold", "hold_ticket", {}),
        ("put it away in the archive, with its status as it is", "archive_ticket", {}),
        ("lock it, so that the customer can no longer write", "lock_ticket", {}),
        (f"let {person} be told of every change, without giving it to them", "add_watcher", {"person": person}),
        (f"make a note that only the staff can read: \"{note}\"", "add_internal_note", {"text": note}),
        (f"tell the customer in a comment: \"{note}\"", "add_comment", {"text": note}),
    ]  # fmt: skip
    if ticket.assignee:
        deeds.append((f"make it urgent, and leave it with {ticket.assignee}", "set_priority", {"priority": "urgent"}))
    return deeds


def act(state: HelpDesk, rng: Random, difficulty: int) -> ToolTask:
    waiting = [ticket for ticket in state.tickets.values() if ticket.status == "open"]
    calls: list[Call] = []
    wishes = []
    for ticket in rng.sample(waiting, min(difficulty, len(waiting))):
        wish, tool, arguments = rng.choice(_deeds(state, rng, ticket))
        wishes.append(f"Ticket {ticket.ticket_id}: {wish}")
        calls.append(Call(tool, {"ticket_id": ticket.ticket_id, **arguments}))
    goal = f"Please do the following, and nothing else. {'; '.join(wishes)}."
    looks = [Call("get_ticket", {"ticket_id": call.arguments["ticket_id"]}) for call in calls]
    return ToolTask(goal, (*looks, *calls, FinalAnswer()), called(calls))


def hand_over(state: HelpDesk, rng: Random, difficulty: int) -> ToolTask:
    example = rng.choice([ticket for ticket in state.tickets.values() if ticket.status == "open"])
    tag, source = rng.choice(example.tags), example.assignee
    to = rng.choice([person for person in state.staff if person != source])
    chosen = [t for t in state.tickets.values() if t.status == "open" and tag in t.tags and t.assignee == source]
    condition = f"with the tag {tag} that {source or 'nobody'} has"
    if difficulty == 1:
        chosen = [ticket for ticket in state.tickets.values() if ticket.status == "open" and ticket.assignee == source]
        condition = f"that {source or 'nobody'} has"
    goal = f"Assign every open ticket {condition} to {to}. Tickets with another status stay where they are."

    def outcome(state: HelpDesk, workspace: Path) -> None:
        for ticket in chosen:
            state.tickets[ticket.ticket_id].assignee = to

    calls = [Call("assign_ticket", {"ticket_id": ticket.ticket_id, "person": to}) for ticket in chosen]
    look: SolutionStep = Call("list_tickets", {"status": "open"})
    return ToolTask(goal, (look, *calls, FinalAnswer()), outcome)


def count(state: HelpDesk, rng: Random, difficulty: int) -> ToolTask:
    example = rng.choice(list(state.tickets.values()))
    conditions = [f"the status {example.status}"]
    found = [ticket for ticket in state.tickets.values() if ticket.status == example.status]
    if difficulty > 1:
        conditions.append(f"the priority {example.priority}")
        found = [ticket for ticket in found if ticket.priority == example.priority]
    if difficulty > 2:
        tag = rng.choice(example.tags)
        conditions.append(f"the tag {tag}")
        found = [ticket for ticket in found if tag in ticket.tags]
    numbers = [str(ticket.ticket_id) for ticket in found]
    goal = f"Which tickets have {listed(conditions)}? Answer with their numbers."
    look = Call("list_tickets", {"status": example.status})
    return ToolTask(goal, (look, FinalAnswer(", ".join(numbers))), answer={"type": "set", "value": numbers})


def if_possible(state: HelpDesk, rng: Random, difficulty: int) -> ToolTask:
    """Create a task; half of these requests cannot be fulfilled by any tool, though some seem to be supported."""
    first, second = rng.sample(sorted(state.tickets), 2)
    ticket = state.tickets[first]
    last = " If the tools at hand do not allow it, leave everything as it is and report that it cannot be done."
    look = Call("get_ticket", {"ticket_id": first})
    if rng.random() < 0.5 and ticket.status == "open":
        wish, tool, arguments = rng.choice(_deeds(state, rng, ticket))
        right = Call(tool, {"ticket_id": first, **arguments})
        goal = f"Ticket {first}: {wish}.{last}"
        return ToolTask(goal, (look, right, FinalAnswer()), called([right]))
    wish = rng.choice(
        (
            f"Ticket {first}: merge it into ticket {second}, so that only {second} is left, with the comments of both.",
            f'Ticket {first}: change its title to "Solved by {rng.choice(state.staff)}".',
            f"Ticket {first}: attach the file invoice-{rng.randint(100, 999)}.pdf to it.",
            f"Ticket {first}: change the day on which it was opened to {state.today}.",
        )
    )
    reason = "There is no tool for it."
    return ToolTask(wish + last, (look, InfeasibleReport(reason)), infeasible=True)


TEMPLATES = (
    ToolTaskTemplate("distractors/act", build, act),
    ToolTaskTemplate("distractors/hand-over", build, hand_over),
    ToolTaskTemplate("distractors/list", build, count),
    ToolTaskTemplate("distractors/if-possible", build, if_possible),
)
