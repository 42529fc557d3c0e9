"""The mailbox's tasks: amounts to look up, replies and new messages, bulk filing, fraud reports."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from random import Random

from rllm_gym.envs.web.sites.fields import amount
from rllm_gym.envs.web.sites.mail.generate import MATTERS, SUBJECTS, Bill, FullMailbox, build, build_with_uploads
from rllm_gym.envs.web.sites.mail.pages import ORIGIN, PER_PAGE
from rllm_gym.envs.web.sites.mail.state import RULE_FOLDERS, Attachment, Mailbox, MailMessage, Rule
from rllm_gym.envs.web.sites.moves import Answer, Click, Fill, Move, Moves, Select, Upload
from rllm_gym.envs.web.sites.task import WebTask, WebTaskTemplate, change_task, infeasible_task, question_task
from rllm_gym.envs.web.sites.wording import FIRST_NAMES, MONTHS, listed, long_date, money

START_URL = f"{ORIGIN}/"
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


def find(text: str) -> Moves:
    return Fill("Search mail", text), Click("button", "Search")


def read(message: MailMessage) -> Moves:
    """Return the moves from any page to a message."""
    return *find(f"subject:{message.subject}"), Click("link", message.subject)


def tick(app: Mailbox, query: str, wanted: Sequence[MailMessage], *act: Move, leaves: bool = False) -> list[Move]:
    """Return the moves that search, select the wanted messages page by page, and act on each page's selection.

    Args:
        leaves: Whether the action removes messages from the results, so that the remaining ones move up.
    """
    results = app.search(query)
    moves: list[Move] = [*find(query)]
    start = 0
    while start < len(results) and (not leaves or any(message in wanted for message in results[start:])):
        share = [message for message in results[start : start + PER_PAGE] if message in wanted]
        if share:
            moves += [*(Click("checkbox", f"Select {message.subject}") for message in share), *act]
        if share and leaves:
            results = [message for message in results if message not in share]
            continue
        start += PER_PAGE
        if start < len(results):
            moves.append(Click("link", "Next ›"))
    return moves


# Selection


def _from_colleagues(app: FullMailbox) -> list[MailMessage]:
    known = {person.email for person in app.colleagues}
    return [message for message in app.in_folder("Inbox") if message.sender.email in known]


def _described(rng: Random, message: MailMessage) -> str:
    return rng.choice(
        (
            f"the message “{message.subject}” from {message.sender.name}",
            f"{message.sender.name}'s message of {long_date(message.day)} with the subject “{message.subject}”",
        )
    )


def _firm_with_bills(app: FullMailbox, rng: Random) -> list[Bill]:
    """Return the bills of a firm, preferably of one that fraudulent messages imitate."""
    known = [email for email in app.bills if app.frauds[email]]
    return app.bills[rng.choice(known if known and rng.random() < 0.7 else list(app.bills))]


_TRUE_ONES = " Only messages from the address that the address book has for this firm count."


# Templates


def latest_invoice(app: FullMailbox, rng: Random, difficulty: int) -> WebTask:
    bills = _firm_with_bills(app, rng)
    latest = difficulty <= 2 or rng.random() < 0.5
    bill, firm = bills[-1 if latest else 0], bills[0].firm
    which = "latest" if latest else "oldest"
    goal = rng.choice(
        (
            f"How much is to be paid for the {which} invoice that {firm.name} sent you?",
            f"What is the total, tax included, of the {which} invoice of {firm.name} in your inbox?",
        )
    )
    answer = {"type": "number", "value": amount(bill.cents)}
    return question_task(goal + _TRUE_ONES, START_URL, read(app.messages[bill.message]), money(bill.cents), answer)


def invoice_total(app: FullMailbox, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the sum of a firm's bills, of all or of one month."""
    bills = _firm_with_bills(app, rng)
    firm = bills[0].firm
    span = ""
    if difficulty >= 3:
        day = app.messages[rng.choice(bills).message].day
        month = (day.year, day.month)
        bills = [b for b in bills if (b_day := app.messages[b.message].day) and (b_day.year, b_day.month) == month]
        span = f" in {MONTHS[day.month - 1]} {day.year}"
    total = sum(bill.cents for bill in bills)
    goal = rng.choice(
        (
            f"What do all invoices that {firm.name} sent you{span} add up to, tax included?",
            f"Add up the totals, with tax, of every invoice that came from {firm.name}{span}.",
        )
    )
    goal += f"{_TRUE_ONES} An account statement is no invoice."
    moves = [move for bill in bills for move in read(app.messages[bill.message])]
    return question_task(goal, START_URL, moves, money(total), {"type": "number", "value": amount(total)})


def reply(app: FullMailbox, rng: Random, difficulty: int) -> WebTask:
    messages = _from_colleagues(app)
    shared = [message for message in messages if len(message.to) + len(message.copy) > 1]
    everyone = bool(shared) and difficulty >= 2 and rng.random() < 0.5
    message = rng.choice(shared if shared and difficulty >= 2 else messages)
    text = " ".join(rng.sample(_TEXTS, min(3, 1 + difficulty // 2)))
    addressee = "to everybody who got it as well (“Reply to all”)" if everyone else "to the sender only"
    goal = rng.choice(
        (
            f"Answer {_described(rng, message)}, {addressee}, with exactly this text: “{text}”",
            f"Reply to {_described(rng, message)}, {addressee}. Write just this: “{text}”",
        )
    )
    goal += " Leave the subject as it is proposed."
    sender, subject = message.sender.email, f"Re: {message.subject}"
    others = [email for email in (*message.to, *message.copy) if email not in (app.me.email, sender)]
    copy = others if everyone else ()
    button = Click("link", "Reply to all" if everyone else "Reply")
    moves = *read(message), button, Fill("Message", text), Click("button", "Send")
    return change_task(
        goal, START_URL, moves, lambda site: site.send([sender], subject, text, copy=copy, answers=message.number)
    )


def forward(app: FullMailbox, rng: Random, difficulty: int) -> WebTask:
    """Return a task: forward the message with a given attachment to somebody else."""
    messages = [message for message in _from_colleagues(app) if message.attachments]
    names = [message.attachments[0].name for message in messages]
    messages = [message for message in messages if names.count(message.attachments[0].name) == 1]
    message = rng.choice(messages)
    file = message.attachments[0].name
    # Two are drawn so that the text of a seed stays the same.
    person, _ = rng.sample([person for person in app.colleagues if person.email != message.sender.email], 2)
    text = rng.choice(_TEXTS)
    goal = rng.choice(
        (
            f"Forward the message with the attachment “{file}” to {person.name}. Write as your own text only: “{text}”",
            f"{person.name} needs the file “{file}”: forward the message it is attached to, with the text “{text}”",
        )
    )
    goal += " Leave the subject as it is proposed."
    fills = Fill("To", person.name), Fill("Message", text), Click("button", "Send")
    moves = *find(file), Click("link", message.subject), Click("link", "Forward"), *fills
    subject = f"Fwd: {message.subject}"
    return change_task(
        goal, START_URL, moves, lambda site: site.send([person.email], subject, text, forwards=message.number)
    )


def file_invoices(app: FullMailbox, rng: Random, difficulty: int) -> WebTask:
    """Return a task: label every bill of a firm and move it out of the inbox."""
    bills = _firm_with_bills(app, rng)
    firm = bills[0].firm
    messages = [app.messages[bill.message] for bill in bills]
    label = rng.choice(app.labels)
    query = f"from:{firm.email} subject:invoice"
    archive = difficulty >= 2
    then = " and archive it" if archive else ", and leave it in the inbox"
    goal = f"Give every invoice of {firm.name} the label “{label}”{then}.{_TRUE_ONES} Touch no other message."

    def outcome(expected: FullMailbox) -> None:
        for message in messages:
            expected.label(message.number, label)
            if archive:
                expected.move(message.number, "Archive")

    labelling = tick(app, query, messages, Select("Label", label), Click("button", "Apply label"))
    archiving = tick(app, query, messages, Click("button", "Archive")) if archive else ()
    return change_task(goal, START_URL, (*labelling, *archiving), outcome)


def compose(app: FullMailbox, rng: Random, difficulty: int) -> WebTask:
    to, *copy = rng.sample(app.colleagues, 2 + difficulty // 2)
    subject = f"{rng.choice(SUBJECTS)} {rng.choice(MATTERS)} for {rng.choice(MONTHS)}"
    text = " ".join(rng.sample(_TEXTS, min(3, 1 + difficulty // 2)))
    name, names = to.name, listed([person.name for person in copy])
    infeasible = rng.random() < 0.15
    if infeasible:
        known = {person.name for person in app.contacts}
        name = next(n for f in rng.sample(FIRST_NAMES, len(FIRST_NAMES)) if (n := f"{f} {to.last}") not in known)
    goal = rng.choice(
        (
            f"Write to {name}, with a copy to {names}. Subject: “{subject}”. Text: “{text}”",
            f"Send a message “{subject}” to {name} (To) and {names} (Cc). It says only: “{text}”",
        )
    )
    if infeasible:
        goal += " Send nothing if one of them is not in the address book."
        return infeasible_task(goal, START_URL, [Click("link", "Address book")], f"{name} is not in the address book.")
    copies = [person.email for person in copy]
    moves = (
        Click("link", "Write"),
        Fill("To", to.email),
        Fill("Cc", ", ".join(copies)),
        Fill("Subject", subject),
        Fill("Message", text),
        Click("button", "Send"),
    )
    return change_task(goal, START_URL, moves, lambda site: site.send([to.email], subject, text, copy=copies))


def attach(app: FullMailbox, rng: Random, difficulty: int) -> WebTask:
    """Return a task: send one of several similarly named files. From difficulty 3 on, it is part of a reply."""
    name, text = rng.choice(list(app.files)), rng.choice(_TEXTS)
    if difficulty >= 3:
        message = rng.choice(_from_colleagues(app))
        to, title, answers = message.sender, f"Re: {message.subject}", message.number
        goal = rng.choice(
            (
                f"Reply to {_described(rng, message)}, to the sender only, and attach the file “{name}”.",
                f"Send the file “{name}” as an attachment of a reply to {_described(rng, message)}, the sender only.",
            )
        )
        goal += f" Leave the subject as it is proposed. Text: “{text}”"
        moves: Moves = (*read(message), Click("link", "Reply"))
    else:
        to, title, answers = rng.choice(app.colleagues), f"{rng.choice(SUBJECTS)} {rng.choice(MATTERS)}", None
        goal = rng.choice(
            (
                f"Send the file “{name}” to {to.name} as an attachment. Subject: “{title}”. Text: “{text}”",
                f"Write to {to.name} and attach the file “{name}”. The subject is “{title}”, the text only: “{text}”",
            )
        )
        moves = Click("link", "Write"), Fill("To", to.email), Fill("Subject", title)
    file = Attachment.of(name, app.files[name])

    def outcome(expected: FullMailbox) -> None:
        expected.send([to.email], title, text, answers=answers, files=[file])

    moves = *moves, Fill("Message", text), Upload("Attachment", name), Click("button", "Send"), Answer("done")
    return WebTask(goal, START_URL, moves, outcome, files=app.files)


def report_fraud(app: FullMailbox, rng: Random, difficulty: int) -> WebTask:
    firms = [firm for firm in app.firms if app.frauds[firm.email]]
    if difficulty <= 2:
        firms = [rng.choice(firms)]
    frauds = [app.messages[number] for firm in firms for number in app.frauds[firm.email]]
    names = listed([firm.name for firm in firms], "or")
    goal = rng.choice(
        (
            f"Somebody sends invoices in the name of {names}, from addresses other than those in the address book. "
            "Report every such message in the inbox as spam, and leave the true ones alone.",
            f"Report as spam every message in your inbox that pretends to come from {names} but was sent from an "
            "address that is not the one in your address book. True messages stay where they are.",
        )
    )

    def outcome(expected: FullMailbox) -> None:
        for message in frauds:
            expected.move(message.number, "Spam")

    moves = [move for message in frauds for move in (*read(message), Click("button", "Report spam"))]
    return change_task(goal, START_URL, moves, outcome)


def make_rule(app: FullMailbox, rng: Random, difficulty: int) -> WebTask:
    ruled = {rule.sender for rule in app.rules}
    firm = rng.choice([firm for firm in app.firms if firm.email not in ruled])
    folder, label = rng.choice(RULE_FOLDERS), rng.choice(app.labels) if difficulty >= 2 else ""
    subject = "invoice" if difficulty >= 3 and rng.random() < 0.6 else ""
    old = app.rules[0]
    replaces = difficulty >= 4
    about = f" and whose subject contains “{subject}”" if subject else ""
    also = f" and get the label “{label}”" if label else " and get no label"
    goal = (
        f"Make a rule: messages whose sender contains “{firm.email}”{about} are moved to “{folder}”{also}."
        f"{f' Delete the rule for “{old.sender}” that exists.' if replaces else ' Leave the rules that exist.'}"
    )
    moves = (
        Click("link", "Rules"),
        *([Click("button", "Delete", within=old.sender)] if replaces else ()),
        Fill("Sender contains", firm.email),
        *([Fill("Subject contains", subject)] if subject else ()),
        Select("Move to", folder),
        *([Select("Add label", label)] if label else ()),
        Click("button", "Create rule"),
    )

    def outcome(expected: FullMailbox) -> None:
        if replaces:
            expected.delete_rule(0)
        expected.add_rule(Rule(firm.email, subject, folder, label))

    return change_task(goal, START_URL, moves, outcome)


def mark_unread(app: FullMailbox, rng: Random, difficulty: int) -> WebTask:
    """Return a task: mark a colleague's messages since a day as unread."""
    messages = _from_colleagues(app)
    counts = {person.email: sum(m.sender == person for m in messages) for person in app.colleagues}
    senders = [person for person in app.colleagues if counts[person.email] >= min(2, max(counts.values()))]
    person = rng.choice(senders)
    theirs = [message for message in messages if message.sender == person]
    since = theirs[rng.randint(1, len(theirs)) - 1].day
    wanted = [message for message in theirs if message.day >= since]
    goal = rng.choice(
        (
            f"Mark as unread every message in the inbox that {person.name} sent on {long_date(since)} or later.",
            f"Everything in the inbox from {person.name} since {long_date(since)}, that day included, shall be marked "
            "as unread by hand, whatever it was before.",
        )
    )

    def outcome(expected: FullMailbox) -> None:
        for message in wanted:
            expected.mark(message.number, read=False)

    moves = tick(app, f"from:{person.email}", wanted, Click("button", "Mark as unread"))
    return change_task(goal, START_URL, moves, outcome)


def clear_newsletters(app: FullMailbox, rng: Random, difficulty: int) -> WebTask:
    """Return a task: move old issues of a newsletter to the bin."""
    letters = [message for message in app.in_folder("Inbox") if message.sender.email.startswith("news@")]
    sender = rng.choice(sorted({message.sender.name for message in letters}))
    issues = [message for message in letters if message.sender.name == sender]
    old = issues[rng.randint(1, len(issues) - 1) :]
    before = old[0].day + timedelta(days=rng.randint(1, 5))
    goal = rng.choice(
        (
            f"Delete every issue of “{sender}” that came before {long_date(before)}. Keep the later ones.",
            f"The issues of “{sender}” from before {long_date(before)} can be deleted; all the others stay.",
        )
    )

    def outcome(expected: FullMailbox) -> None:
        for message in old:
            expected.move(message.number, "Bin")

    moves = tick(app, f"from:{old[0].sender.email}", old, Click("button", "Delete"), leaves=True)
    return change_task(goal, START_URL, moves, outcome)


TEMPLATES = (
    *(
        WebTaskTemplate(f"mail/{name}", build, make_task, _LEVELS)
        for name, make_task in (
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
    ),
    WebTaskTemplate("mail/attach", build_with_uploads, attach, _LEVELS),
)
