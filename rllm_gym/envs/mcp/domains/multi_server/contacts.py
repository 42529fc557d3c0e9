"""An address book with its tools. Several people share a name and differ in company and role."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rllm_gym.envs.mcp.serving import Refusal, server
from rllm_gym.mcp.servers import InProcessServer

MAX_CHARS = 200
CHANGEABLE = ("phone", "role", "company")


@dataclass(frozen=True)
class Contact:
    contact_id: str
    name: str
    company: str
    role: str
    email: str
    phone: str


class AddressBook:
    """People and their contact data.

    Args:
        contacts: The initial contacts.
    """

    def __init__(self, contacts: Iterable[Contact]) -> None:
        self.contacts = {contact.contact_id: contact for contact in contacts}

    def server(self) -> InProcessServer:
        return server("contacts", self.tools, instructions="The address book of an office.")

    def tools(self) -> Sequence[Any]:
        return self.search, self.get_contact, self.update_contact

    def facts(self) -> Any:
        return {number: asdict(contact) for number, contact in self.contacts.items()}

    def search(self, query: str) -> list[Contact]:
        """Find contacts by a part of their name, company or role.

        Args:
            query: A part of the name, company or role; upper and lower case are the same.
        """
        part = query.strip().lower()
        if not 2 <= len(part) <= MAX_CHARS:
            raise Refusal(f"Search for 2 to {MAX_CHARS} characters.")
        found = [c for c in self.contacts.values() if any(part in s.lower() for s in (c.name, c.company, c.role))]
        return sorted(found, key=lambda contact: contact.contact_id)

    def get_contact(self, contact_id: str) -> Contact:
        """One contact.

        Args:
            contact_id: Its id.
        """
        contact = self.contacts.get(contact_id.strip())
        if contact is None:
            raise Refusal(f"There is no contact {contact_id[:MAX_CHARS]!r}; search finds them.")
        return contact

    def update_contact(self, contact_id: str, field: str, value: str) -> Contact:
        """Change one field of a contact.

        Args:
            contact_id: Its id.
            field: phone, role or company.
            value: The new value.
        """
        contact = self.get_contact(contact_id)
        if field not in CHANGEABLE:
            raise Refusal(f"{field[:MAX_CHARS]!r} cannot be changed; {', '.join(CHANGEABLE)} can.")
        if not 1 <= len(value.strip()) <= MAX_CHARS:
            raise Refusal(f"A value has 1 to {MAX_CHARS} characters.")
        self.contacts[contact.contact_id] = replace(contact, **{field: value.strip()})
        return self.contacts[contact.contact_id]
