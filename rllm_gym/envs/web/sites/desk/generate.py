"""Generates a desk from a seed: a full mailbox, another site, and a message with a request."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random

from rllm_gym.envs.web.sites.admin.generate import fill as fill_admin
from rllm_gym.envs.web.sites.admin.pages import ORIGIN as ADMIN
from rllm_gym.envs.web.sites.admin.pages import AdminApp
from rllm_gym.envs.web.sites.calendar.generate import KINDS, PLACES, TOPICS
from rllm_gym.envs.web.sites.calendar.generate import fill as fill_calendar
from rllm_gym.envs.web.sites.calendar.pages import ORIGIN as CALENDAR
from rllm_gym.envs.web.sites.calendar.pages import CalendarApp
from rllm_gym.envs.web.sites.desk.state import BugReport, MailAndSite, MeetingRequest, RefundRequest
from rllm_gym.envs.web.sites.fields import clock, full_date
from rllm_gym.envs.web.sites.mail.generate import FullMailbox, MailDelivery
from rllm_gym.envs.web.sites.mail.generate import build as build_mail
from rllm_gym.envs.web.sites.mail.pages import ORIGIN as MAIL
from rllm_gym.envs.web.sites.people import Person
from rllm_gym.envs.web.sites.tracker.generate import PARTS, PROBLEMS, REPORTS
from rllm_gym.envs.web.sites.tracker.generate import fill as fill_tracker
from rllm_gym.envs.web.sites.tracker.pages import ORIGIN as TRACKER
from rllm_gym.envs.web.sites.tracker.pages import TrackerApp
from rllm_gym.envs.web.sites.tracker.state import PRIORITIES
from rllm_gym.envs.web.sites.wording import listed


def meeting_by_mail(seed: int, difficulty: int) -> MailAndSite[CalendarApp, MeetingRequest]:
    """Build a desk whose message proposes a meeting. From difficulty 2 on, a later message changes the meeting."""
    mail, rng = _mailbox(seed, difficulty, "Calendar", CALENDAR)
    calendar = _calendar(mail, rng, difficulty)
    sender, *others = rng.sample(mail.colleagues, 1 + min(4, 1 + difficulty // 2))
    day = _workday(rng, mail.today)
    start = rng.randrange(8 * 60, 17 * 60, 15)
    title = f"{rng.choice(TOPICS)} {rng.choice(KINDS)} {rng.choice(('with the board', 'in person', 'at short notice'))}"
    meeting = MeetingRequest(
        title, day, start, start + rng.choice((30, 45, 60, 90)), rng.choice(PLACES), (sender, *others)
    )
    delivery = _delivery(mail, rng)
    names = listed([person.name for person in others])
    if difficulty >= 2:
        before = _workday(rng, mail.today)
        text = f"Let us meet for the {title} on {full_date(before)} from 10:00 to 11:00 in “{PLACES[0]}”, with {names}."
        delivery.deliver(sender, f"Meeting: {title}", _letter(mail, sender, text), ago=4)
    text = (
        f"here is the time for the {title}: {full_date(day)}, {clock(start)} to {clock(meeting.end)}, in "
        f"“{meeting.place}”. {names} should come as well. This replaces anything that I wrote before."
    )
    message = delivery.deliver(sender, f"Time and place: {title}", _letter(mail, sender, text), ago=rng.randint(1, 3))
    return MailAndSite(mail, calendar, message, meeting)


def time_by_mail(seed: int, difficulty: int) -> MailAndSite[CalendarApp, MeetingRequest]:
    """Build a desk whose message asks for the first time at which both people, and others, are free."""
    mail, rng = _mailbox(seed, difficulty, "Calendar", CALENDAR)
    calendar = _calendar(mail, rng, difficulty)
    for _ in range(200):
        people = rng.sample(mail.colleagues, 1 + difficulty // 2)
        day, length = _workday(rng, mail.today), rng.choice((30, 45, 60, 90))
        gaps = calendar.common_gaps((mail.me.email, *(person.email for person in people)), day)
        start = next((start for start, end in gaps if end - start >= length), None)
        if start is not None:
            break
    else:
        raise AssertionError(f"nobody is ever free in the calendar of seed {seed}")
    meeting = MeetingRequest("", day, start, start + length, "", tuple(people))
    sender, *others = people
    company = f" together with {listed([person.name for person in others])}" if others else ""
    text = (
        f"when can we first meet{company} on {full_date(day)}, for {length} minutes between 9:00 and 17:00? Please "
        "look into the calendars of all of us and send me just the start."
    )
    subject = f"When on {day.day}/{day.month}?"
    message = _delivery(mail, rng).deliver(sender, subject, _letter(mail, sender, text), ago=rng.randint(1, 3))
    return MailAndSite(mail, calendar, message, meeting)


def bug_by_mail(seed: int, difficulty: int) -> MailAndSite[TrackerApp, BugReport]:
    """Build a desk whose message describes a defect."""
    mail, rng = _mailbox(seed, difficulty, "Tracker", TRACKER)
    members = sorted([mail.me, *mail.colleagues], key=lambda person: person.name)
    tracker = TrackerApp(mail.today, mail.me, members, {}, neighbours=_BACK)
    fill_tracker(tracker, rng, difficulty)
    project = rng.choice(list(tracker.projects.values()))
    sender = rng.choice(mail.colleagues)
    title = f"{rng.choice(PARTS)} {rng.choice(PROBLEMS['Bug'])} again"
    fault = BugReport(
        project.key, title, " ".join(rng.sample(REPORTS, min(3, 1 + difficulty // 2))), rng.choice(PRIORITIES)
    )
    text = (
        f"in the project {project.name} something is broken. Please report it with this description: “{fault.text}” "
        f"I would say its priority is {fault.priority}."
    )
    message = _delivery(mail, rng).deliver(sender, title, _letter(mail, sender, text), ago=rng.randint(1, 5))
    return MailAndSite(mail, tracker, message, fault)


def return_by_mail(seed: int, difficulty: int) -> MailAndSite[AdminApp, RefundRequest]:
    """Build a desk whose message requests a refund, sometimes for an invoice of somebody else."""
    mail, rng = _mailbox(seed, difficulty, "Back office", ADMIN)
    admin = AdminApp(mail.today, mail.me, neighbours=_BACK)
    fill_admin(admin, rng, difficulty, mail.colleagues)
    invoice = rng.choice([invoice for invoice in admin.invoices.values() if invoice.paid and not invoice.refunded])
    rightful = rng.random() >= 0.25
    others = [customer for customer in admin.customers.values() if customer.number != invoice.customer]
    customer = admin.customers[invoice.customer] if rightful else rng.choice(others)
    line = rng.choice(invoice.lines)
    asked = RefundRequest(customer.name, invoice, line, rng.randint(1, line.pieces), rightful)
    text = (
        f"of the {line.pieces} pieces of “{line.product}” on your invoice {invoice.label}, {asked.pieces} arrived "
        f"broken. We would like to have our money for them back.\n\n{customer.name}"
    )
    sender = Person(customer.contact, customer.email)
    message = _delivery(mail, rng).deliver(sender, f"Broken goods, {invoice.label}", _letter(mail, sender, text), ago=1)
    return MailAndSite(mail, admin, message, asked)


_BACK = (("Mail", f"{MAIL}/"),)


def _mailbox(seed: int, difficulty: int, label: str, origin: str) -> tuple[FullMailbox, Random]:
    mail = build_mail(seed, difficulty)
    mail.neighbours = ((label, f"{origin}/"),)
    return mail, Random(f"desk {difficulty} {seed}")


def _calendar(mail: FullMailbox, rng: Random, difficulty: int) -> CalendarApp:
    calendar = CalendarApp(mail.today, mail.me, mail.colleagues, seed=f"desk {rng.random()}", neighbours=_BACK)
    fill_calendar(calendar, rng, difficulty)
    return calendar


def _delivery(mail: FullMailbox, rng: Random) -> MailDelivery:
    """Return a :class:`MailDelivery` that delivers further messages to a full mailbox."""
    delivery = MailDelivery(mail, rng, 30)
    delivery.subjects.update(message.subject for message in mail.messages.values())
    return delivery


def _letter(mail: FullMailbox, sender: Person, text: str) -> str:
    return f"Hello {mail.me.first},\n\n{text}\n\n{sender.name}"


def _workday(rng: Random, today: date) -> date:
    """Draw a day from Monday to Friday in the next two weeks."""
    day = today + timedelta(days=rng.randint(1, 14))
    return day if day.weekday() < 5 else day + timedelta(days=2)
