"""The mailbox's tasks: amounts to look up, replies and new messages, bulk filing, fraud reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from random import Random

from rllm_gym.sites.errand import Answer, Click, Errand, Fill, Move, ReportInfeasible, Select, Template
from rllm_gym.sites.mail.pages import ORIGIN, PER_PAGE
from rllm_gym.sites.mail.state import RULE_FOLDERS, Mailbox, Message, Rule
from rllm_gym.sites.mail.world import MATTERS, SUBJECTS, Bill, FullMailbox, build
from rllm_gym.sites.wording import FIRST_NAMES, MONTHS, listed, long_date, money

START = f"{ORIGIN}/"
_LEVELS = (1, 2, 3, 4, 5)
_TEXTS = (
    "Thank you, that works for me.",
    "I will look at it tomorrow morning.",
    "Please send me the numbers by Friday.",
    "Can we talk about this next week?",
    "This is fine as it is, go ahead.",
    "I have a question about the second page.",
    "Please use the new address from now on.",
    "We agreed on this at the last meeting.",
)

# Move sequences


def find(text: str) -> tuple[Move, ...]:
    return Fill("Search mail", text), Click("button", "Search")


def read(message: Message) -> tuple[Move, ...]:
    """Return the moves from any page to a message."""
    return *find(f"subject:{message.subject}"), Click("link", message.subject)


def write(to: Sequence[str], subject: str, text: str, copy: Sequence[str] = ()) -> tuple[Move, ...]:
    return (
        Click("link", "Write"),
        Fill("To", ", ".join(to)),
        *([Fill("Cc", ", ".join(copy))] if copy else ()),
        Fill("Subject", subject),
        Fill("Message", text),
        Click("button", "Send"),
    )


def _tick(
    world: Mailbox, query: str, wanted: Sequence[Message], act: Callable[[], Sequence[Move]], *, leaves: bool = False
) -> tuple[Move, ...]:
    """Return the moves that search, select the wanted messages page by page, and act on each page's selection.

    Args:
        leaves: Whether the action removes messages from the results, so that the remaining ones move up.
    """
    results = world.search(query)
    moves: list[Move] = [*find(query)]
    pages = max(1, -(-len(results) // PER_PAGE))
    if leaves:
        return _tick_leaving(moves, results, wanted, act)
    for number in range(pages):
        share = [message for message in results[number * PER_PAGE : (number + 1) * PER_PAGE] if message in wanted]
        if number:
            moves.append(Click("link", "Next ›"))
        if share:
            moves += [Click("checkbox", f"Select {message.subject}") for message in share]
            moves += act()
    return tuple(moves)


def _tick_leaving(
    moves: list[Move], results: list[Message], wanted: Sequence[Message], act: Callable[[], Sequence[Move]]
) -> tuple[Move, ...]:
    page = 0
    while any(message in wanted for message in results[page * PER_PAGE :]):
        share = [message for message in results[page * PER_PAGE : (page + 1) * PER_PAGE] if message in wanted]
        if share:
            moves += [Click("checkbox", f"Select {message.subject}") for message in share]
            moves += act()
            results = [message for message in results if message not in share]
        elif (page + 1) * PER_PAGE < len(results):
            moves.append(Click("link", "Next ›"))
            page += 1
    return tuple(moves)


# Selection


def _from_colleagues(world: FullMailbox) -> list[Message]:
    known = {person.email for person in world.colleagues}
    return [message for message in world.in_folder("Inbox") if message.sender.email in known]


def _described(rng: Random, message: Message) -> str:
    return rng.choice(
        (
            f"the message “{message.subject}” from {message.sender.name}",
            f"{message.sender.name}'s message of {long_date(message.day)} with the subject “{message.subject}”",
        )
    )


def _firm_with_bills(world: FullMailbox, rng: Random) -> list[Bill]:
    """Return the bills of a firm, preferably of one that fraudulent messages imitate."""
    known = [email for email in world.bills if world.frauds[email]]
    return world.bills[rng.choice(known if known and rng.random() < 0.7 else list(world.bills))]


_TRUE_ONES = " Only messages from the address that the address book has for this firm count."


# Templates


def latest_invoice(world: FullMailbox, rng: Random, difficulty: int) -> Errand:
    bills = _firm_with_bills(world, rng)
    index = -1 if difficulty <= 2 or rng.random() < 0.5 else 0
    bill, firm = bills[index], bills[0].firm
    other = next((other.cents for other in bills if other is not bill and other.cents != bill.cents), bill.cents + 100)
    which = "latest" if index == -1 else "oldest"
    goal = rng.choice(
        (
            f"How much is to be paid for the {which} invoice that {firm.name} sent you?",
            f"What is the total, tax included, of the {which} invoice of {firm.name} in your inbox?",
        )
    )
    way = read(world.messages[bill.message])
    return Errand(
        goal + _TRUE_ONES,
        START,
        moves=(*way, Answer(money(bill.cents))),
        wrong_moves=(*way, Answer(money(other))),
        answer={"type": "number", "value": f"{bill.cents // 100}.{bill.cents % 100:02d}"},
    )


def invoice_total(world: FullMailbox, rng: Random, difficulty: int) -> Errand:
    """Return a question about the sum of a firm's bills, of all or of one month."""
    bills = _firm_with_bills(world, rng)
    firm = bills[0].firm
    span = ""
    if difficulty >= 3:
        day = world.messages[rng.choice(bills).message].day
        month = (day.year, day.month)
        bills = [b for b in bills if (b_day := world.messages[b.message].day) and (b_day.year, b_day.month) == month]
        span = f" in {MONTHS[day.month - 1]} {day.year}"
    total = sum(bill.cents for bill in bills)
    goal = rng.choice(
        (
            f"What do all invoices that {firm.name} sent you{span} add up to, tax included?",
            f"Add up the totals, with tax, of every invoice that came from {firm.name}{span}.",
        )
    )
    goal += f"{_TRUE_ONES} An account statement is no invoice."
    way = [move for bill in bills for move in read(world.messages[bill.message])]
    return Errand(
        goal,
        START,
        moves=(*way, Answer(money(total))),
        wrong_moves=(*way, Answer(money(total - bills[0].cents // 2))),
        answer={"type": "number", "value": f"{total // 100}.{total % 100:02d}"},
    )


def reply(world: FullMailbox, rng: Random, difficulty: int) -> Errand:
    messages = _from_colleagues(world)
    shared = [message for message in messages if len(message.to) + len(message.copy) > 1]
    everyone = bool(shared) and difficulty >= 2 and rng.random() < 0.5
    message = rng.choice(shared if shared and difficulty >= 2 else messages)
    text = " ".join(rng.sample(_TEXTS, min(3, 1 + difficulty // 2)))
    whom = "to everybody who got it as well (“Reply to all”)" if everyone else "to the sender only"
    goal = rng.choice(
        (
            f"Answer {_described(rng, message)}, {whom}, with exactly this text: “{text}”",
            f"Reply to {_described(rng, message)}, {whom}. Write just this: “{text}”",
        )
    )
    goal += " Leave the subject as it is proposed."

    def moves(button: str, written: str) -> tuple[Move, ...]:
        return *read(message), Click("link", button), Fill("Message", written), Click("button", "Send"), Answer("done")

    others = [email for email in (*message.to, *message.copy) if email not in (world.me.email, message.sender.email)]
    subject = f"Re: {message.subject}"

    def outcome(twin: FullMailbox) -> None:
        copy = others if everyone else ()
        twin.send([message.sender.email], subject, text, copy=copy, answers=message.number)

    mistaken = "Reply to all" if others and not everyone else "Reply"
    return Errand(
        goal,
        START,
        moves=moves("Reply to all" if everyone else "Reply", text),
        wrong_moves=moves(mistaken, text if others else f"{text} Thanks."),
        outcome=outcome,
    )


def forward(world: FullMailbox, rng: Random, difficulty: int) -> Errand:
    """Return a task: forward the message with a given attachment to somebody else."""
    messages = [message for message in _from_colleagues(world) if message.attachments]
    names = [message.attachments[0].name for message in messages]
    messages = [message for message in messages if names.count(message.attachments[0].name) == 1]
    message = rng.choice(messages)
    file = message.attachments[0].name
    people = [person for person in world.colleagues if person.email != message.sender.email]
    person, other = rng.sample(people, 2)
    other = next((p for p in people if p != person and person.last == p.last), other)
    text = rng.choice(_TEXTS)
    goal = rng.choice(
        (
            f"Forward the message with the attachment “{file}” to {person.name}. Write as your own text only: “{text}”",
            f"{person.name} needs the file “{file}”: forward the message it is attached to, with the text “{text}”",
        )
    )
    goal += " Leave the subject as it is proposed."

    def moves(to: str) -> tuple[Move, ...]:
        return (
            *find(file),
            Click("link", message.subject),
            Click("link", "Forward"),
            Fill("To", to),
            Fill("Message", text),
            Click("button", "Send"),
            Answer("done"),
        )

    subject = f"Fwd: {message.subject}"
    return Errand(
        goal,
        START,
        moves=moves(person.name),
        wrong_moves=moves(other.name),
        outcome=lambda twin: twin.send([person.email], subject, text, forwards=message.number),
    )


def file_invoices(world: FullMailbox, rng: Random, difficulty: int) -> Errand:
    """Return a task: label every bill of a firm and move it out of the inbox."""
    bills = _firm_with_bills(world, rng)
    firm = bills[0].firm
    messages = [world.messages[bill.message] for bill in bills]
    label = rng.choice(world.labels)
    query = f"from:{firm.email} subject:invoice"
    archive = difficulty >= 2
    then = " and archive it" if archive else ", and leave it in the inbox"
    goal = f"Give every invoice of {firm.name} the label “{label}”{then}.{_TRUE_ONES} Touch no other message."

    def moves(wanted: Sequence[Message]) -> tuple[Move, ...]:
        labelling = _tick(world, query, wanted, lambda: (Select("Label", label), Click("button", "Apply label")))
        archiving = _tick(world, query, wanted, lambda: (Click("button", "Archive"),)) if archive else ()
        return *labelling, *archiving, Answer("done")

    def outcome(twin: FullMailbox) -> None:
        for message in messages:
            twin.label(message.number, label)
            if archive:
                twin.move(message.number, "Archive")

    return Errand(goal, START, moves=moves(messages), wrong_moves=moves(messages[1:]), outcome=outcome)


def compose(world: FullMailbox, rng: Random, difficulty: int) -> Errand:
    people = rng.sample(world.colleagues, 2 + difficulty // 2)
    to, copy = people[:1], people[1:]
    subject = f"{rng.choice(SUBJECTS)} {rng.choice(MATTERS)} for {rng.choice(MONTHS)}"
    text = " ".join(rng.sample(_TEXTS, min(3, 1 + difficulty // 2)))
    names = [person.name for person in copy]
    infeasible = rng.random() < 0.15
    if infeasible:
        known = {person.name for person in world.contacts}
        name = next(n for f in rng.sample(FIRST_NAMES, len(FIRST_NAMES)) if (n := f"{f} {to[0].last}") not in known)
    else:
        name = to[0].name
    goal = rng.choice(
        (
            f"Write to {name}, with a copy to {listed(names)}. Subject: “{subject}”. Text: “{text}”",
            f"Send a message “{subject}” to {name} (To) and {listed(names)} (Cc). It says only: “{text}”",
        )
    )
    emails, copies = [person.email for person in to], [person.email for person in copy]
    if infeasible:
        return Errand(
            f"{goal} Send nothing if one of them is not in the address book.",
            START,
            moves=(Click("link", "Address book"), ReportInfeasible(f"{name} is not in the address book.")),
            wrong_moves=(*write(emails, subject, text, copies), Answer("done")),
            infeasible=True,
        )
    return Errand(
        goal,
        START,
        moves=(*write(emails, subject, text, copies), Answer("done")),
        wrong_moves=(*write([*emails, *copies], subject, text), Answer("done")),
        outcome=lambda twin: twin.send(emails, subject, text, copy=copies),
    )


def report_fraud(world: FullMailbox, rng: Random, difficulty: int) -> Errand:
    firms = [firm for firm in world.firms if world.frauds[firm.email]]
    if difficulty <= 2:
        firms = [rng.choice(firms)]
    frauds = [world.messages[number] for firm in firms for number in world.frauds[firm.email]]
    true = world.messages[world.bills[firms[0].email][-1].message]
    names = listed([firm.name for firm in firms], "or")
    goal = rng.choice(
        (
            f"Somebody sends invoices in the name of {names}, from addresses other than those in the address book. "
            "Report every such message in the inbox as spam, and leave the true ones alone.",
            f"Report as spam every message in your inbox that pretends to come from {names} but was sent from an "
            "address that is not the one in your address book. True messages stay where they are.",
        )
    )

    def report(messages: Sequence[Message]) -> tuple[Move, ...]:
        moves: list[Move] = []
        for message in messages:
            moves += [*read(message), Click("button", "Report spam")]
        return *moves, Answer("done")

    def outcome(twin: FullMailbox) -> None:
        for message in frauds:
            twin.move(message.number, "Spam")

    return Errand(goal, START, moves=report(frauds), wrong_moves=report([*frauds, true]), outcome=outcome)


def make_rule(world: FullMailbox, rng: Random, difficulty: int) -> Errand:
    ruled = {rule.sender for rule in world.rules}
    firm = rng.choice([firm for firm in world.firms if firm.email not in ruled])
    folder, label = rng.choice(RULE_FOLDERS), rng.choice(world.labels) if difficulty >= 2 else ""
    subject = "invoice" if difficulty >= 3 and rng.random() < 0.6 else ""
    old = world.rules[0]
    replaces = difficulty >= 4
    about = f" and whose subject contains “{subject}”" if subject else ""
    also = f" and get the label “{label}”" if label else " and get no label"
    goal = (
        f"Make a rule: messages whose sender contains “{firm.email}”{about} are moved to “{folder}”{also}."
        f"{f' Delete the rule for “{old.sender}” that exists.' if replaces else ' Leave the rules that exist.'}"
    )
    rule = Rule(firm.email, subject, folder, label)

    def moves(target: str) -> tuple[Move, ...]:
        return (
            Click("link", "Rules"),
            *([Click("button", "Delete", within=old.sender)] if replaces else ()),
            Fill("Sender contains", firm.email),
            *([Fill("Subject contains", subject)] if subject else ()),
            Select("Move to", target),
            *([Select("Add label", label)] if label else ()),
            Click("button", "Create rule"),
            Answer("done"),
        )

    def outcome(twin: FullMailbox) -> None:
        if replaces:
            twin.delete_rule(0)
        twin.add_rule(rule)

    other = next(name for name in RULE_FOLDERS if name != folder)
    return Errand(goal, START, moves=moves(folder), wrong_moves=moves(other), outcome=outcome)


def mark_unread(world: FullMailbox, rng: Random, difficulty: int) -> Errand:
    """Return a task: mark a colleague's messages since a day as unread, or star all of them."""
    messages = _from_colleagues(world)
    counts = {person.email: sum(m.sender == person for m in messages) for person in world.colleagues}
    senders = [person for person in world.colleagues if counts[person.email] >= min(2, max(counts.values()))]
    person = rng.choice(senders)
    theirs = [message for message in messages if message.sender == person]
    wanted = theirs[: rng.randint(1, len(theirs))]
    since = wanted[-1].day
    wanted = [message for message in theirs if message.day >= since]
    goal = rng.choice(
        (
            f"Mark as unread every message in the inbox that {person.name} sent on {long_date(since)} or later.",
            f"Everything in the inbox from {person.name} since {long_date(since)}, that day included, shall be marked "
            "as unread by hand, whatever it was before.",
        )
    )
    query = f"from:{person.email}"

    def moves(button: str) -> tuple[Move, ...]:
        return *_tick(world, query, wanted, lambda: (Click("button", button),)), Answer("done")

    def outcome(twin: FullMailbox) -> None:
        for message in wanted:
            twin.mark(message.number, read=False)

    return Errand(goal, START, moves=moves("Mark as unread"), wrong_moves=moves("Archive"), outcome=outcome)


def clear_newsletters(world: FullMailbox, rng: Random, difficulty: int) -> Errand:
    """Return a task: move old issues of a newsletter to the bin."""
    letters = [message for message in world.in_folder("Inbox") if message.sender.email.startswith("news@")]
    sender = rng.choice(sorted({message.sender.name for message in letters}))
    issues = [message for message in letters if message.sender.name == sender]
    kept = rng.randint(1, len(issues) - 1)
    old = issues[kept:]
    before = old[0].day + timedelta(days=rng.randint(1, 5))
    goal = rng.choice(
        (
            f"Delete every issue of “{sender}” that came before {long_date(before)}. Keep the later ones.",
            f"The issues of “{sender}” from before {long_date(before)} can be deleted; all the others stay.",
        )
    )
    query = f"from:{old[0].sender.email}"

    def moves(wanted: Sequence[Message]) -> tuple[Move, ...]:
        return *_tick(world, query, wanted, lambda: (Click("button", "Delete"),), leaves=True), Answer("done")

    def outcome(twin: FullMailbox) -> None:
        for message in old:
            twin.move(message.number, "Bin")

    return Errand(goal, START, moves=moves(old), wrong_moves=moves([*old, issues[kept - 1]]), outcome=outcome)


TEMPLATES = tuple(
    Template(f"mail/{name}", build, errand, _LEVELS)
    for name, errand in (
        ("latest-invoice", latest_invoice),
        ("invoice-total", invoice_total),
        ("reply", reply),
        ("forward", forward),
        ("file-invoices", file_invoices),
        ("compose", compose),
        ("report-fraud", report_fraud),
        ("make-rule", make_rule),
        ("mark-unread", mark_unread),
        ("clear-newsletters", clear_newsletters),
    )
)
