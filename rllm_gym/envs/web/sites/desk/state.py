"""The state of a desk: a mailbox and the site on which a message's request is carried out, and the requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Generic, TypeVar

from rllm_gym.envs.web.sites.admin.pages import AdminApp
from rllm_gym.envs.web.sites.admin.state import Invoice, InvoiceLine
from rllm_gym.envs.web.sites.calendar.pages import CalendarApp
from rllm_gym.envs.web.sites.http import Handler
from rllm_gym.envs.web.sites.mail.generate import FullMailbox
from rllm_gym.envs.web.sites.mail.state import MailMessage
from rllm_gym.envs.web.sites.people import Person
from rllm_gym.envs.web.sites.tracker.pages import TrackerApp

Other = TypeVar("Other", CalendarApp, TrackerApp, AdminApp)
Asked = TypeVar("Asked")


@dataclass
class MailAndSite(Generic[Other, Asked]):
    """A mailbox and another site that link to each other.

    Attributes:
        mail: The mailbox, with messages of the last weeks.
        other: The other site, of the same person and on the same day.
        message: The message with the request.
        asked: The content of the request.
    """

    mail: FullMailbox
    other: Other
    message: MailMessage
    asked: Asked

    def handlers(self) -> Mapping[str, Handler]:
        return {**self.mail.handlers(), **self.other.handlers()}

    def facts(self) -> Any:
        return [self.mail.facts(), self.other.facts()]


@dataclass(frozen=True)
class MeetingRequest:
    title: str
    day: date
    start: int
    end: int
    place: str
    guests: tuple[Person, ...]


@dataclass(frozen=True)
class BugReport:
    """A defect to be reported; the message contains ``text`` in quotation marks."""

    project: str
    title: str
    text: str
    priority: str


@dataclass(frozen=True)
class RefundRequest:
    """A request to refund pieces of an invoice line; the invoice may not be the customer's."""

    customer: str
    invoice: Invoice
    line: InvoiceLine
    pieces: int
    rightful: bool
