"""Tasks across several servers: files and a database; a calendar and an address book that both offer ``search``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from rllm_gym.envs.mcp.domains.calendar.state import OPENS, Meeting, OfficeCalendar, written
from rllm_gym.envs.mcp.domains.calendar.tasks import a_title, next_monday
from rllm_gym.envs.mcp.domains.files.folder import tree
from rllm_gym.envs.mcp.domains.files.office import files_server
from rllm_gym.envs.mcp.domains.multi_server.contacts import AddressBook, Contact
from rllm_gym.envs.mcp.domains.sqlite.database import Database
from rllm_gym.envs.mcp.domains.sqlite.state import database_server
from rllm_gym.envs.mcp.serving import server
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
from rllm_gym.envs.mcp.wording import CITIES, FIRST_NAMES, LAST_NAMES, a_day, a_today, money, words
from rllm_gym.mcp.servers import InProcessServer

# Files and a database

SCHEMA = """
CREATE TABLE invoices (number TEXT PRIMARY KEY, customer TEXT NOT NULL, city TEXT NOT NULL,
    amount_cents INTEGER NOT NULL, due_on TEXT NOT NULL, status TEXT NOT NULL);
"""
_INVOICES = {1: 8, 2: 20, 3: 45}


class Accounts(DomainState):
    """Invoices in a database, and files from the bank.

    Attributes:
        invoices: The initial rows.
        paid: Payments in the bank's file: (number of the invoice, cents).
    """

    def __init__(self, invoices: Sequence[dict[str, Any]], paid: Sequence[tuple[str, int]], today: date) -> None:
        self.invoices = invoices
        self.paid = paid
        self.today = today
        self.database = Database(SCHEMA, {"invoices": invoices})

    @property
    def statement(self) -> str:
        return "date,invoice,amount\n" + "".join(
            f"{self.today},{number},{money(cents)}\n" for number, cents in self.paid
        )

    def prepare(self, workspace: Path) -> None:
        (workspace / "bank").mkdir()
        (workspace / "bank" / f"{self.today}.csv").write_text(self.statement)
        earlier = self.today - timedelta(days=7)
        text = f"date,invoice,amount\n{earlier},{self.invoices[0]['number']},1.00\n"
        (workspace / "bank" / f"{earlier}.csv").write_text(text)

    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        return [files_server(workspace), database_server(self.database)]

    def facts(self, workspace: Path) -> Any:
        return {"files": tree(workspace), "database": self.database.facts()}


def accounts(seed: int, difficulty: int) -> Accounts:
    rng = Random(f"several/accounts/{seed}/{difficulty}")
    today = a_today(rng)
    cities = rng.sample(CITIES, 2 + difficulty)
    invoices: list[dict[str, Any]] = [
        {
            "number": f"R{number}",
            "customer": rng.choice(LAST_NAMES),
            "city": rng.choice(cities),
            "amount_cents": rng.randint(1_000, 90_000),
            "due_on": a_day(rng, today - timedelta(days=60), today + timedelta(days=30)).isoformat(),
            "status": rng.choice(("open", "open", "open", "paid")),
        }
        for number in sorted(rng.sample(range(1000, 9999), _INVOICES[difficulty]))
    ]
    invoices[0]["status"] = invoices[-1]["status"] = "open"
    waiting = [invoice for invoice in invoices if invoice["status"] == "open"]
    some = rng.sample(waiting, len(waiting) // 2 + 1)
    # At least one invoice is paid in full, and one is slightly underpaid.
    less = [0, 100, *(rng.choice((0, 0, 0, 50)) for _ in some[2:])]
    paid = [(invoice["number"], invoice["amount_cents"] - off) for invoice, off in zip(some, less, strict=True)]
    rng.shuffle(paid)
    return Accounts(invoices, paid, today)


def _statement(state: Accounts) -> Call:
    return Call("read_text_file", {"path": f"bank/{state.today}.csv"})


def _write(statement: str) -> Call:
    return Call("write_query", {"query": statement})


def reconcile(state: Accounts, rng: Random, difficulty: int) -> ToolTask:
    due = {invoice["number"]: invoice["amount_cents"] for invoice in state.invoices}
    full = [number for number, cents in state.paid if cents == due[number]]
    part = [number for number, cents in state.paid if cents != due[number]]
    word = rng.choice(("paid", "settled", "closed"))
    goal = rng.choice(
        (
            f"The file bank/{state.today}.csv lists payments that came in today. In the table invoices, set the status "
            f"of every invoice that was paid in full to '{word}'. Leave invoices that were paid with a different "
            "amount as they are, and answer with their numbers.",
            f"Go through the payments in bank/{state.today}.csv: where the amount is exactly that of the invoice in "
            f"the database, its status becomes '{word}'. Where it is not, nothing changes. Answer with the numbers "
            "of the invoices whose payment differs.",
        )
    )

    def outcome(state: Accounts, workspace: Path) -> None:
        for number in full:
            state.database.execute("UPDATE invoices SET status = ? WHERE number = ?", (word, number))

    names = ", ".join(f"'{number}'" for number in full)
    update = _write(f"UPDATE invoices SET status = '{word}' WHERE number IN ({names})")
    answer = FinalAnswer(", ".join(part))
    return ToolTask(
        goal,
        (_statement(state), Call("list_tables"), update, answer),
        outcome,
        {"type": "set", "value": part},
    )


def export(state: Accounts, rng: Random, difficulty: int) -> ToolTask:
    city = rng.choice(sorted({invoice["city"] for invoice in state.invoices if invoice["status"] == "open"}))
    chosen = [i for i in state.invoices if i["city"] == city and i["status"] == "open"]
    order, shown = rng.choice((("number", "number"), ("amount_cents", "amount, smallest first")))
    chosen.sort(key=lambda invoice: (invoice[order], invoice["number"]))
    target = rng.choice(("open.csv", f"{city.lower()}.csv", "bank/open.csv", "letters.csv"))
    goal = (
        f"Write the invoices of customers from {city} with the status open into a new file {target}: a first line "
        f"number,customer,amount_cents and then one line for each in that form, ordered by {shown}, without blanks "
        "around the commas."
    )
    lines = [f"{i['number']},{i['customer']},{i['amount_cents']}\n" for i in chosen]
    text = "number,customer,amount_cents\n" + "".join(lines)

    def outcome(state: Accounts, workspace: Path) -> None:
        (workspace / target).write_text(text)

    look = Call(
        "read_query",
        {
            "query": f"SELECT number, customer, amount_cents FROM invoices WHERE city = '{city}' AND status = 'open' "
            f"ORDER BY {order}, number"
        },
    )
    return ToolTask(goal, (look, Call("write_file", {"path": target, "content": text}), FinalAnswer()), outcome)


# A calendar and an address book

COMPANIES = words("Alpenglow Borealis Cobalt Dynamo Everline Fjordview Granite Horizon")
ROLES = words("accountant architect buyer designer director engineer lawyer planner")
_CONTACTS = {1: 8, 2: 16, 3: 30}


class Secretariat(DomainState):
    """A calendar that identifies people only by their addresses, and an address book."""

    def __init__(self, calendar: OfficeCalendar, book: AddressBook, today: date) -> None:
        self.calendar = calendar
        self.book = book
        self.today = today

    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        office_calendar = self.calendar
        tools = (office_calendar.search, office_calendar.list_events, office_calendar.create_event,
        office_calendar.move_event, office_calendar.delete_event,
                 office_calendar.add_attendee, office_calendar.remove_attendee)  # fmt: skip
        return [
            server("calendar", lambda: tools, instructions="The calendar. People are named by e-mail address."),
            self.book.server(),
        ]

    def facts(self, workspace: Path) -> Any:
        return {"calendar": self.calendar.facts(), "contacts": self.book.facts()}


def secretariat(seed: int, difficulty: int) -> Secretariat:
    rng = Random(f"several/secretariat/{seed}/{difficulty}")
    today = a_today(rng)
    # With few first names and companies, several people share each, few share both, and no two also share the role.
    firsts, companies = rng.sample(FIRST_NAMES, 2 + difficulty), rng.sample(COMPANIES, 2 + difficulty)
    lasts = rng.sample(LAST_NAMES, 2 + difficulty)
    shown: dict[tuple[str, str], str] = {}
    while len(shown) < min(_CONTACTS[difficulty], (2 + difficulty) ** 3 // 2):
        shown[f"{rng.choice(firsts)} {rng.choice(lasts)}", rng.choice(companies)] = rng.choice(ROLES)
    contacts = []
    for number, ((name, company), role) in enumerate(shown.items(), start=1):
        email = f"{name.split()[0][0]}.{name.split()[1]}{rng.randint(100, 999)}@{company}.example".lower()
        phone = f"+{rng.randint(30, 49)} {rng.randint(100, 999)} {rng.randint(10_000, 99_999)}"
        contacts.append(Contact(f"k{number}", name, company, role, email, phone))
    owner = "office@own.example"
    calendar = OfficeCalendar(owner, {contact.email: contact.name for contact in contacts} | {owner: "Office"}, ())
    monday = next_monday(today)
    titles: dict[str, None] = {}
    while len(titles) < 4 * difficulty:
        titles[a_title(rng)] = None
    for number, title in enumerate(titles, start=1):
        start = datetime.combine(monday + timedelta(days=rng.randint(0, 4)), OPENS)
        start += timedelta(minutes=30 * rng.randint(0, 12))
        guests = [contact.email for contact in rng.sample(contacts, rng.randint(1, 3))]
        meeting = Meeting(f"m{number}", title, written(start), written(start + timedelta(hours=1)), owner,
                          sorted({owner, *guests}))  # fmt: skip
        calendar.meetings[meeting.event_id] = meeting
    return Secretariat(calendar, AddressBook(contacts), today)


def _find(contact: Contact) -> Call:
    return Call("search", {"query": contact.name}, server="contacts")


def _search(meeting: Meeting) -> Call:
    return Call("search", {"query": meeting.title}, server="calendar")


def _who(contact: Contact) -> str:
    return f"{contact.name} of {contact.company}"


def invite(state: Secretariat, rng: Random, difficulty: int) -> ToolTask:
    guests = rng.sample(sorted(state.book.contacts.values(), key=lambda contact: contact.contact_id), difficulty)
    day = next_monday(state.today) + timedelta(days=rng.randint(7, 11))
    start = datetime.combine(day, OPENS) + timedelta(minutes=30 * rng.randint(0, 12))
    minutes, title = rng.choice((30, 45, 60, 90)), a_title(rng)
    goal = (
        f'Create a meeting "{title}" on {day} from {start:%H:%M} to {start + timedelta(minutes=minutes):%H:%M} and '
        f"invite {'; '.join(map(_who, guests))}. Their e-mail addresses are in the address book."
    )

    arguments = {
        "title": title,
        "start": written(start),
        "end": written(start + timedelta(minutes=minutes)),
        "attendees": [contact.email for contact in guests],
    }
    right, looks = Call("create_event", arguments), [_find(contact) for contact in guests]

    return ToolTask(goal, (*looks, right, FinalAnswer()), called([right], lambda state: state.calendar))


def replace_guest(state: Secretariat, rng: Random, difficulty: int) -> ToolTask:
    calls: list[Call] = []
    looks: list[Call] = []
    wishes = []
    by_address = {contact.email: contact for contact in state.book.contacts.values()}
    for meeting in rng.sample(sorted(state.calendar.meetings.values(), key=lambda m: m.event_id), difficulty):
        goes = by_address[rng.choice([address for address in meeting.attendees if address in by_address])]
        comes = by_address[rng.choice([address for address in by_address if address not in meeting.attendees])]
        for tool, contact in (("remove_attendee", goes), ("add_attendee", comes)):
            calls.append(Call(tool, {"event_id": meeting.event_id, "person": contact.email}))
        looks += [_search(meeting), _find(goes), _find(comes)]
        wishes.append(f'"{meeting.title}": {_who(comes)} comes instead of {_who(goes)}')
    goal = f"Change who is invited to {'meetings' if difficulty > 1 else 'a meeting'}: {'; '.join(wishes)}."

    return ToolTask(goal, (*looks, *calls, FinalAnswer()), called(calls, lambda state: state.calendar))


_IF_NOT = "If there is no such contact, this cannot be done."


def new_number(state: Secretariat, rng: Random, difficulty: int) -> ToolTask:
    contacts = sorted(state.book.contacts.values(), key=lambda contact: contact.contact_id)
    if difficulty > 1 and rng.random() < 0.3:
        return _nobody(state, rng, contacts)
    calls, wishes = [], []
    for contact in rng.sample(contacts, difficulty):
        field, value = rng.choice(
            (
                ("phone", f"+{rng.randint(30, 49)} {rng.randint(100, 999)} {rng.randint(10_000, 99_999)}"),
                ("role", rng.choice([role for role in ROLES if role != contact.role])),
            )
        )
        calls.append(Call("update_contact", {"contact_id": contact.contact_id, "field": field, "value": value}))
        wishes.append(f"the {field} of {_who(contact)} is now {value}")
    goal = f"Please keep the address book up to date: {'; '.join(wishes)}. {_IF_NOT}"
    looks = [Call("search", {"query": wish.split(" of ")[1]}, server="contacts") for wish in wishes]

    return ToolTask(goal, (*looks, *calls, FinalAnswer()), called(calls, lambda state: state.book))


def _nobody(state: Secretariat, rng: Random, contacts: Sequence[Contact]) -> ToolTask:
    """Create an infeasible task: people of that name exist, but none at that company."""
    contact = rng.choice(contacts)
    company = rng.choice([name for name in COMPANIES if all(other.company != name for other in contacts)])
    value = f"+{rng.randint(30, 49)} {rng.randint(100, 999)} {rng.randint(10_000, 99_999)}"
    goal = (
        f"Please keep the address book up to date: the phone of {contact.name} of {company} is now {value}. {_IF_NOT}"
    )
    look: SolutionStep = _find(contact)
    reason = f"There is no {contact.name} of {company}."
    return ToolTask(goal, (look, InfeasibleReport(reason)), infeasible=True)


TEMPLATES = (
    ToolTaskTemplate("several/reconcile", accounts, reconcile),
    ToolTaskTemplate("several/export", accounts, export),
    ToolTaskTemplate("several/invite", secretariat, invite),
    ToolTaskTemplate("several/replace-guest", secretariat, replace_guest),
    ToolTaskTemplate("several/update-contact", secretariat, new_number),
)
