"""Generates a full mailbox from a seed: colleagues' files, bills of similarly named firms, newsletters and fraud."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from rllm_gym.envs.web.sites.mail.pages import MailApp
from rllm_gym.envs.web.sites.mail.state import Attachment, MailMessage, Rule
from rllm_gym.envs.web.sites.people import Person, a_workday, staff
from rllm_gym.envs.web.sites.wording import long_date, money

FIRM_NAMES = (
    "Northwind",
    "Blue Heron",
    "Oakfield",
    "Silverline",
    "Harbour",
    "Meridian",
    "Cobalt",
    "Juniper",
    "Redstone",
)
FIRM_TRADES = (
    "Paper",
    "Print",
    "Parcel",
    "Power",
    "Catering",
    "Cleaning",
    "Travel",
    "Software",
    "Furniture",
    "Telecom",
)
NEWSLETTERS = ("The Weekly Harvest", "Cloud Digest", "Design Notes", "Market Minute", "Logistics Letter")
LABELS = ("Accounts", "Clients", "Follow up", "Private", "Projects", "Travel", "Waiting")
SUBJECTS = (
    "Budget", "Roadmap", "Shop floor", "Launch", "Website", "Supplier", "Security", "Onboarding", "Pricing", "Brochure",
    "Warehouse", "Contract", "Trade fair", "Survey", "Training", "Photo shoot", "Packaging", "Migration",
)  # fmt: skip
MATTERS = ("figures", "draft", "notes", "schedule", "questions", "summary", "checklist", "proposal")
SENTENCES = (
    "Please have a look when you find the time.",
    "I have marked the open points at the end.",
    "We can talk about it after lunch.",
    "Nothing in it is final yet.",
    "Let me know if a number looks wrong.",
    "The others have seen it already.",
    "It replaces what I sent last month.",
)
FILE_ENDINGS = ("", "-old", "-final", "-2", "-copy", "-internal")
FILE_TYPES = ("pdf", "xlsx", "docx", "pptx")


@dataclass(frozen=True)
class Bill:
    """An invoice that arrived by mail."""

    message: int
    firm: Person
    cents: int


@dataclass
class FullMailbox(MailApp):
    """A mailbox together with the data that its tasks use.

    Attributes:
        colleagues: The contacts who are colleagues.
        firms: The contacts that send bills.
        bills: Genuine bills by the firm's address, oldest first.
        frauds: Numbers of messages that imitate a firm, by the genuine firm's address.
        files: What the owner can attach to a message, by name.
    """

    colleagues: list[Person] = field(default_factory=list)
    firms: list[Person] = field(default_factory=list)
    bills: dict[str, list[Bill]] = field(default_factory=dict)
    frauds: dict[str, list[int]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


def build(seed: int, difficulty: int) -> FullMailbox:
    """Build a mailbox of about 40 messages at difficulty 1 and 140 at difficulty 5."""
    rng = Random(f"mail {difficulty} {seed}")
    me, *colleagues = staff(rng, 7 + 2 * difficulty)
    app = FullMailbox(a_workday(rng), me, [], sorted(rng.sample(LABELS, 3 + difficulty // 2)), colleagues=colleagues)
    fill(app, rng, difficulty)
    return app


def build_with_uploads(seed: int, difficulty: int) -> FullMailbox:
    """Build a mailbox in which one of several similarly named files can be attached to a message."""
    app, rng = build(seed, difficulty), Random(f"mail/files {difficulty} {seed}")
    app.takes_files = True
    title = f"{rng.choice(SUBJECTS)} {rng.choice(MATTERS)}"
    for number, ending in enumerate(rng.sample(FILE_ENDINGS, 1 + difficulty), 1):
        name = f"{title.lower().replace(' ', '-')}{ending}.txt"
        app.files[name] = f"{title}, version {number}.\n".encode()
    return app


def fill(app: FullMailbox, rng: Random, difficulty: int) -> None:
    """Add firms, messages and rules to an empty mailbox."""
    delivery = MailDelivery(app, rng, 30 + 15 * difficulty)
    app.firms = _firms(rng, 2 + difficulty)
    app.contacts = [*app.colleagues, *app.firms]
    for firm in app.firms:
        _bills(delivery, firm, rng.randint(2, 3 + difficulty // 2))
        app.frauds[firm.email] = []
    for firm in rng.sample(app.firms, min(len(app.firms), 1 + difficulty // 2)):
        app.frauds[firm.email] = [_fraud(delivery, firm) for _ in range(rng.randint(1, 1 + difficulty // 3))]
    for _ in range(16 + 8 * difficulty):
        _colleague_mail(delivery)
    for name in rng.sample(NEWSLETTERS, 1 + difficulty // 2):
        _newsletters(delivery, name, 2 + difficulty)
    for firm in rng.sample(app.firms, 1):
        app.rules.append(Rule(firm.email, "", "Archive", ""))


class MailDelivery:
    """Delivers messages, each with a unique subject and time."""

    def __init__(self, app: FullMailbox, rng: Random, days: int) -> None:
        self.app = app
        self.rng = rng
        self.days = days
        self.subjects: set[str] = set()
        self.moments: set[tuple[int, int]] = set()

    def moment(self, ago: int | None = None) -> tuple[int, int]:
        """Draw a unique pair of days before today and minutes of the day."""
        while True:
            moment = (self.rng.randint(1, self.days) if ago is None else ago, self.rng.randint(7 * 60, 19 * 60))
            if moment not in self.moments:
                self.moments.add(moment)
                return moment

    def subject(self, make: str) -> str:
        """Return the subject, with a number appended if it is already used."""
        subject, count = make, 1
        while subject in self.subjects:
            count += 1
            subject = f"{make} ({count})"
        self.subjects.add(subject)
        return subject

    def deliver(
        self,
        sender: Person,
        subject: str,
        text: str,
        *,
        ago: int | None = None,
        to: tuple[str, ...] = (),
        copy: tuple[str, ...] = (),
        attachments: tuple[Attachment, ...] = (),
    ) -> MailMessage:
        app, rng = self.app, self.rng
        before, minute = self.moment(ago)
        number = len(app.messages) + 1
        message = MailMessage(
            number,
            "Inbox",
            sender,
            to or (app.me.email,),
            self.subject(subject),
            text,
            app.today - timedelta(days=before),
            minute,
            copy=copy,
            read=rng.random() < 0.75,
            starred=rng.random() < 0.06,
            attachments=attachments,
        )
        app.messages[number] = message
        return message


def _firms(rng: Random, count: int) -> list[Person]:
    """Draw firms, some of which share a word of their names."""
    names: list[str] = []
    while len(names) < count:
        first, trade = rng.choice(FIRM_NAMES), rng.choice(FIRM_TRADES)
        if names and rng.random() < 0.5:
            first = rng.choice(names).rsplit(" ", 1)[0]
        if f"{first} {trade}" not in names:
            names.append(f"{first} {trade}")
    return [Person(name, f"billing@{name.lower().replace(' ', '')}.test") for name in names]


def _bills(delivery: MailDelivery, firm: Person, count: int) -> None:
    rng, app = delivery.rng, delivery.app
    first = rng.randint(1_000, 8_000)
    agos = sorted(rng.sample(range(2, delivery.days), count), reverse=True)
    app.bills[firm.email] = []
    for index, ago in enumerate(agos):
        number = f"{firm.name[:2].upper()}-{first + 7 * index}"
        cents = rng.randint(4_000, 480_000)
        net = cents * 100 // 119
        due = app.today - timedelta(days=ago - 14)
        text = rng.choice(
            (
                f"Dear customer,\n\nplease find attached our invoice {number}.\nNet amount: {money(net)}\n"
                f"Total to pay: {money(cents)}\n\nIt is due on {long_date(due)}.\n\n{firm.name}",
                f"Hello,\n\nthe total of invoice {number} comes to {money(cents)} including tax ({money(net)} before "
                f"tax). Please pay by {long_date(due)}.\n\nKind regards\n{firm.name}",
            )
        )
        file = Attachment(f"invoice-{number.lower()}.pdf", rng.randint(40, 400))
        message = delivery.deliver(firm, f"Invoice {number}", text, ago=ago, attachments=(file,))
        app.bills[firm.email].append(Bill(message.number, firm, cents))
    if rng.random() < 0.6:
        total = sum(bill.cents for bill in app.bills[firm.email]) + rng.randint(10_000, 90_000)
        text = (
            f"This is no invoice. Everything that you bought of us this year adds up to {money(total)}.\n\n{firm.name}"
        )
        delivery.deliver(firm, f"Account statement of {firm.name}", text, ago=1)


def _fraud(delivery: MailDelivery, firm: Person) -> int:
    """Deliver a bill from an address similar to the firm's, later than all genuine ones."""
    rng = delivery.rng
    name, trade = (
        firm.email.removeprefix("billing@").removesuffix(".test"),
        rng.choice(("payments", "invoices", "office")),
    )
    domain = rng.choice((f"{name}-{trade}.test", f"{name}.pay.test", f"{name.replace('o', '0', 1)}s.test"))
    number = f"{firm.name[:2].upper()}-{rng.randint(8_500, 9_999)}"
    text = (
        f"URGENT\n\nInvoice {number} over {money(rng.randint(90_000, 900_000))} is still open. Our bank details have "
        f"changed: reply to this message within 24 hours.\n\n{firm.name}"
    )
    ago = rng.choice((1, 2, 3))
    return delivery.deliver(Person(firm.name, f"billing@{domain}"), f"Invoice {number}", text, ago=ago).number


def _colleague_mail(delivery: MailDelivery) -> None:
    rng, app = delivery.rng, delivery.app
    sender = rng.choice(app.colleagues)
    topic, matter = rng.choice(SUBJECTS), rng.choice(MATTERS)
    greeting = rng.choice((f"Hi {app.me.first}", f"Hello {app.me.first}", f"Dear {app.me.first}"))
    text = f"{greeting},\n\nhere is the {matter} for “{topic}”. {' '.join(rng.sample(SENTENCES, 2))}\n\n{sender.first}"
    others = tuple(p.email for p in rng.sample(app.colleagues, 3) if p is not sender)
    files: tuple[Attachment, ...] = ()
    if rng.random() < 0.5:
        year = app.today.year - rng.choice((0, 0, 1))
        name = f"{topic}-{matter}-{year}".lower().replace(" ", "-")
        files = (Attachment(f"{name}.{rng.choice(FILE_TYPES)}", rng.randint(20, 3_000)),)
    spread = rng.random()
    to = (app.me.email, *others[:1]) if spread < 0.3 else ()
    copy = others[1:] if spread > 0.7 else ()
    delivery.deliver(sender, f"{topic} {matter}", text, to=to, copy=copy, attachments=files)


def _newsletters(delivery: MailDelivery, name: str, count: int) -> None:
    sender = Person(name, f"news@{name.lower().replace(' ', '')}.test")
    issue = delivery.rng.randint(20, 300)
    for index in range(count):
        ago = 2 + 7 * (count - 1 - index)
        topics = delivery.rng.sample(SUBJECTS, 2)
        text = f"In this issue: {topics[0].lower()} and {topics[1].lower()}.\n\nYou get this because you signed up."
        delivery.deliver(sender, f"{name}, issue {issue + index}", text, ago=ago)
