"""The tasks that a message asks for: meetings, bug reports, refunds, and replies with a free time."""

from __future__ import annotations

from random import Random

from rllm_gym.envs.web.sites.admin.pages import AdminApp
from rllm_gym.envs.web.sites.admin.tasks import invoices_of, open_invoice, refund_moves
from rllm_gym.envs.web.sites.calendar.pages import CalendarApp
from rllm_gym.envs.web.sites.calendar.tasks import fill_in, look_at
from rllm_gym.envs.web.sites.desk.generate import bug_by_mail, meeting_by_mail, return_by_mail, time_by_mail
from rllm_gym.envs.web.sites.desk.state import BugReport, MailAndSite, MeetingRequest, RefundRequest
from rllm_gym.envs.web.sites.fields import clock
from rllm_gym.envs.web.sites.mail.pages import ORIGIN as MAIL
from rllm_gym.envs.web.sites.mail.tasks import read
from rllm_gym.envs.web.sites.moves import Click, Fill, Moves
from rllm_gym.envs.web.sites.task import WebTask, WebTaskTemplate, change_task, infeasible_task
from rllm_gym.envs.web.sites.tracker.pages import TrackerApp
from rllm_gym.envs.web.sites.tracker.tasks import report

START_URL = f"{MAIL}/"
_LEVELS = (1, 2, 3, 4, 5)


def enter_meeting(app: MailAndSite[CalendarApp, MeetingRequest], rng: Random, difficulty: int) -> WebTask:
    asked = app.asked
    sender = app.message.sender.name
    goal = rng.choice(
        (
            f"{sender} has written to you about “{asked.title}”. Put it into your calendar under that name, with the "
            "date, time and place of the latest message about it.",
            f"Enter the “{asked.title}” of which {sender} wrote to you in the calendar, by exactly that name and just "
            "as the latest message about it says, place included.",
        )
    )
    goal += f" Its guests are {sender} and everybody else whom that message names."

    def outcome(expected: MailAndSite[CalendarApp, MeetingRequest]) -> None:
        guests = [person.email for person in asked.guests]
        expected.other.add(asked.title, asked.day, asked.start, asked.end, place=asked.place, guests=guests)

    entering = fill_in(asked.title, asked.day, asked.start, asked.end, asked.place, asked.guests)
    return change_task(goal, START_URL, (*read(app.message), Click("link", "Calendar"), *entering), outcome)


def tell_time(app: MailAndSite[CalendarApp, MeetingRequest], rng: Random, difficulty: int) -> WebTask:
    asked, message = app.asked, app.message
    goal = rng.choice(
        (
            f"Look up in the calendar what {message.sender.name} asks in the message “{message.subject}”, and reply.",
            f"{message.sender.name} wants to know something (“{message.subject}”): find it out and reply.",
        )
    )
    goal += (
        " The text of your reply is the time and nothing else, such as 13:15; its subject stays as proposed. You have "
        "to be free as well; unanswered invitations block nothing, and the time may start at any minute."
    )
    text = clock(asked.start)
    look = *read(message), Click("link", "Calendar"), *look_at(asked.day, asked.guests), Click("link", "Mail")
    answering = *read(message), Click("link", "Reply"), Fill("Message", text), Click("button", "Send")

    def outcome(expected: MailAndSite[CalendarApp, MeetingRequest]) -> None:
        expected.mail.send([message.sender.email], f"Re: {message.subject}", text, answers=message.number)

    return change_task(goal, START_URL, (*look, *answering), outcome)


def report_bug(app: MailAndSite[TrackerApp, BugReport], rng: Random, difficulty: int) -> WebTask:
    asked, message = app.asked, app.message
    project = app.other.projects[asked.project]
    person = rng.choice(app.other.members)
    archives = difficulty >= 2
    then = " Archive the message afterwards." if archives else ""
    goal = rng.choice(
        (
            f"{message.sender.name} reports a fault by mail: “{message.subject}”. Report it in the tracker",
            f"Report the fault of which {message.sender.name} writes in the message “{message.subject}” in the tracker",
        )
    )
    goal += (
        ": project and priority as the message says, the message's subject as the title, the text in quotation marks "
        f"(without them) as the description, kind Bug, assigned to {person.name}, no label and no milestone.{then}"
    )
    chosen = {"Kind": "Bug", "Priority": asked.priority, "Assignee": person.name}
    reporting = report(project, asked.title, asked.text, chosen, ())
    archiving = (Click("link", "Mail"), *read(message), Click("button", "Archive")) if archives else ()

    def outcome(expected: MailAndSite[TrackerApp, BugReport]) -> None:
        expected.other.report(
            asked.project, asked.title, asked.text, kind="Bug", priority=asked.priority, assignee=person.email
        )
        if archives:
            expected.mail.move(message.number, "Archive")

    moves = *read(message), Click("link", "Tracker"), *reporting, *archiving
    return change_task(goal, START_URL, moves, outcome)


def pay_back(app: MailAndSite[AdminApp, RefundRequest], rng: Random, difficulty: int) -> WebTask:
    asked, message = app.asked, app.message
    reason = "Damaged in transit"
    goal = rng.choice(
        (
            f"{asked.customer} wants money back: see the message “{message.subject}”. Refund in the back office what "
            f"is asked for there, for the reason “{reason}”.",
            f"Refund what {asked.customer} asks for in the message “{message.subject}”. The reason is “{reason}”.",
        )
    )
    goal += " Refund nothing if the invoice is not one of this customer's; say that it cannot be done instead."
    cents = asked.pieces * asked.line.price
    moves: Moves = (*read(message), Click("link", "Back office"))
    if not asked.rightful:
        moves = *moves, *invoices_of(asked.customer)
        return infeasible_task(goal, START_URL, moves, f"{asked.invoice.label} is not an invoice of {asked.customer}.")
    moves = *moves, *open_invoice(app.other, asked.invoice), *refund_moves(cents, reason)
    return change_task(goal, START_URL, moves, lambda site: site.other.refund(asked.invoice.number, cents, reason))


TEMPLATES = (
    WebTaskTemplate("desk/enter-meeting", meeting_by_mail, enter_meeting, _LEVELS),
    WebTaskTemplate("desk/tell-time", time_by_mail, tell_time, _LEVELS),
    WebTaskTemplate("desk/report-fault", bug_by_mail, report_bug, _LEVELS),
    WebTaskTemplate("desk/pay-back", return_by_mail, pay_back, _LEVELS),
)
