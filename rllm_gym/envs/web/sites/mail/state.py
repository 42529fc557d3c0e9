"""The state of the mailbox: messages in folders, labels, drafts, rules and an address book."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import date
from hashlib import sha256
from typing import Any

from rllm_gym.envs.web.sites.errors import FormError
from rllm_gym.envs.web.sites.fields import clock
from rllm_gym.envs.web.sites.people import Person
from rllm_gym.envs.web.sites.wording import short_date

FOLDERS = ("Inbox", "Archive", "Sent", "Spam", "Bin")
RULE_FOLDERS = ("Archive", "Spam", "Bin")


@dataclass(frozen=True)
class Attachment:
    """A file of a message. ``digest`` is the SHA-256 hash of the content of an uploaded one, which is not kept."""

    name: str
    size_kb: int
    digest: str = ""

    @classmethod
    def of(cls, name: str, content: bytes) -> Attachment:
        return cls(name, max(1, round(len(content) / 1024)), sha256(content).hexdigest())


@dataclass(frozen=True)
class MailMessage:
    """A message.

    Attributes:
        number: Number in the URL.
        folder: One of :data:`FOLDERS`.
        sender: The sender.
        to: Addresses of the To line.
        copy: Addresses of the Cc line.
        subject: Subject line.
        text: The text; of a reply, without the message it replies to.
        day: Day of arrival or sending.
        minute: Minutes after midnight.
        read: Whether it was opened or marked as read.
        unread_again: Whether it was marked as unread by hand.
        starred: Whether it has a star.
        labels: Names of its labels, sorted.
        attachments: Its attachments.
        answers: Number of the message that this one replies to.
        forwards: Number of the message that this one forwards, with its attachments.
    """

    number: int
    folder: str
    sender: Person
    to: tuple[str, ...]
    subject: str
    text: str
    day: date
    minute: int
    copy: tuple[str, ...] = ()
    read: bool = True
    unread_again: bool = False
    starred: bool = False
    labels: tuple[str, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    answers: int | None = None
    forwards: int | None = None

    @property
    def when(self) -> str:
        return f"{short_date(self.day)}, {clock(self.minute)}"


@dataclass(frozen=True, order=True)
class Rule:
    """A rule for future messages.

    Attributes:
        sender: Part of the sender's address, or "".
        subject: Part of the subject, or "".
        folder: Target folder, or "" for the inbox.
        label: Label to add, or "".
    """

    sender: str
    subject: str
    folder: str
    label: str


@dataclass
class Mailbox:
    """The state of the site.

    Attributes:
        today: The fixed current date.
        me: The owner of the mailbox.
        contacts: The address book, without ``me``.
        labels: The existing labels, sorted.
        messages: Messages by number; a higher number is not always a later message.
        rules: Rules in order of creation.
        takes_files: Whether a file can be attached to a message.
    """

    today: date
    me: Person
    contacts: list[Person]
    labels: list[str]
    messages: dict[int, MailMessage] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    takes_files: bool = False

    def facts(self) -> dict[str, Any]:
        """Return folder, labels and stars of messages, which were marked as unread by hand, sent messages, and rules.

        Whether a message is read is excluded: opening a message marks it as read, which must not count as a change.
        """
        received = {
            str(message.number): [message.folder, list(message.labels), message.starred, message.unread_again]
            for message in self.messages.values()
            if message.folder != "Sent"
        }
        sent = sorted(
            json.dumps(
                [
                    sorted(message.to),
                    sorted(message.copy),
                    message.subject,
                    message.text,
                    message.answers,
                    message.forwards,
                    message.starred,
                    message.labels,
                    *([file.name, file.digest] for file in message.attachments if file.digest),
                ]
            )
            for message in self.messages.values()
            if message.folder == "Sent"
        )
        rules = [[rule.sender, rule.subject, rule.folder, rule.label] for rule in sorted(self.rules)]
        return {"received": received, "sent": sent, "rules": rules, "labels": list(self.labels)}

    # Queries

    def in_folder(self, folder: str) -> list[MailMessage]:
        """Return the messages of a folder, newest first."""
        return _newest_first(message for message in self.messages.values() if message.folder == folder)

    def with_label(self, label: str) -> list[MailMessage]:
        """Return the messages with a label, newest first, from every folder except Spam and Bin."""
        return _newest_first(
            message
            for message in self.messages.values()
            if label in message.labels and message.folder not in ("Spam", "Bin")
        )

    def search(self, text: str) -> list[MailMessage]:
        """Return the messages that contain every word, except those in Spam and Bin.

        ``from:``, ``to:``, ``subject:`` and ``label:`` restrict a word to a field.
        """
        words = text.lower().split()[:20]
        return _newest_first(
            message
            for message in self.messages.values()
            if message.folder not in ("Spam", "Bin") and all(_matches(message, word) for word in words)
        )

    def unread(self, folder: str) -> int:
        return sum(not message.read for message in self.messages.values() if message.folder == folder)

    def find_people(self, text: str) -> list[Person]:
        """Return the people whose name or address contains the text, sorted by name."""
        text = text.strip().lower()
        found = [person for person in self.contacts if text in f"{person.name} {person.email}".lower()]
        return sorted(found, key=lambda person: person.name)

    # Changes

    def open(self, number: int) -> MailMessage | None:
        """Return a message and mark it as read, or return ``None`` if it does not exist."""
        message = self.messages.get(number)
        if message is not None:
            message = self._put(message, read=True, unread_again=False)
        return message

    def move(self, number: int, folder: str) -> None:
        message = self._get(number)
        if message.folder == "Sent" and folder != "Bin":
            raise FormError("Messages that you sent can only be deleted.")
        if folder not in FOLDERS or folder == "Sent":
            raise FormError(f"Messages cannot be moved to {folder[:40]!r}.")
        self._put(message, folder=folder)

    def mark(self, number: int, *, read: bool) -> None:
        self._put(self._get(number), read=read, unread_again=not read)

    def star(self, number: int, starred: bool) -> None:
        self._put(self._get(number), starred=starred)

    def label(self, number: int, label: str, wanted: bool = True) -> None:
        """Add a label to a message, or remove it."""
        if label not in self.labels:
            raise FormError(f"There is no label {label[:40]!r}.")
        message = self._get(number)
        self._put(message, labels=tuple(sorted({*message.labels, label} if wanted else {*message.labels} - {label})))

    def send(
        self,
        to: Iterable[str],
        subject: str,
        text: str,
        *,
        copy: Iterable[str] = (),
        answers: int | None = None,
        forwards: int | None = None,
        files: Iterable[Attachment] = (),
    ) -> MailMessage:
        """Send a message and put it into the folder Sent.

        Raises:
            FormError: There is no recipient in the To line.
        """
        to, copy = tuple(dict.fromkeys(to)), tuple(dict.fromkeys(copy))
        if not to:
            raise FormError("Nobody stands in the To line.")
        number = max(self.messages, default=0) + 1
        passed_on = self.messages.get(forwards) if forwards is not None else None
        message = MailMessage(
            number,
            "Sent",
            self.me,
            to,
            subject,
            text,
            self.today,
            9 * 60 + min(number, 800),
            copy=copy,
            answers=answers if answers in self.messages else None,
            forwards=passed_on.number if passed_on else None,
            attachments=(*(passed_on.attachments if passed_on else ()), *files),
        )
        self.messages[number] = message
        return message

    def add_rule(self, rule: Rule) -> None:
        if not (rule.sender or rule.subject):
            raise FormError("A rule needs a sender or words of the subject to look for.")
        if not (rule.folder or rule.label):
            raise FormError("A rule needs a folder or a label to act with.")
        if rule.folder and rule.folder not in RULE_FOLDERS:
            raise FormError(f"A rule cannot move messages to {rule.folder[:40]!r}.")
        if rule.label and rule.label not in self.labels:
            raise FormError(f"There is no label {rule.label[:40]!r}.")
        if rule in self.rules:
            raise FormError("This rule exists already.")
        self.rules.append(rule)

    def delete_rule(self, index: int) -> None:
        if not 0 <= index < len(self.rules):
            raise FormError("There is no such rule.")
        del self.rules[index]

    def _get(self, number: int) -> MailMessage:
        message = self.messages.get(number)
        if message is None:
            raise FormError(f"There is no message {number}.")
        return message

    def _put(self, message: MailMessage, **changes: Any) -> MailMessage:
        message = self.messages[message.number] = replace(message, **changes)
        return message


def _newest_first(messages: Iterable[MailMessage]) -> list[MailMessage]:
    return sorted(messages, key=lambda message: (message.day, message.minute, message.number), reverse=True)


def _matches(message: MailMessage, word: str) -> bool:
    sender = f"{message.sender.name} {message.sender.email}"
    recipients = " ".join((*message.to, *message.copy))
    places = {
        "from": sender,
        "to": recipients,
        "subject": message.subject,
        "label": " ".join(message.labels),
    }
    where, colon, what = word.partition(":")
    if colon and where in places:
        return what in places[where].lower()
    names = " ".join(attachment.name for attachment in message.attachments)
    return word in f"{sender} {recipients} {message.subject} {message.text} {names}".lower()
