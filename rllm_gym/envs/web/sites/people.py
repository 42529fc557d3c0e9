"""The people of an office, drawn with a seed. Some share a first name or surname, so the full name must be read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from random import Random

from rllm_gym.envs.web.sites.errors import FormError
from rllm_gym.envs.web.sites.wording import FIRST_NAMES, LAST_NAMES, any_day

COMPANY = "brightwater.test"
MAX_NAMES = 50


@dataclass(frozen=True, slots=True)
class Person:
    """A person with an e-mail address.

    Attributes:
        name: First name and surname; no two people of one environment share both.
        email: E-mail address, unique in the environment.
    """

    name: str
    email: str

    @property
    def first(self) -> str:
        return self.name.split()[0]

    @property
    def last(self) -> str:
        return self.name.split()[-1]


def staff(rng: Random, count: int) -> list[Person]:
    """Draw ``count`` people. From the third on, about one in three shares a surname or a first name with another."""
    taken: dict[str, Person] = {}
    while len(taken) < count:
        first, last = rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES)
        if len(taken) >= 2 and rng.random() < 0.35:
            other = rng.choice(list(taken.values()))
            first, last = rng.choice(((first, other.last), (other.first, last)))
        name = f"{first} {last}"
        taken.setdefault(name, Person(name, f"{name.lower().replace(' ', '.')}@{COMPANY}"))
    return list(taken.values())


def a_workday(rng: Random) -> date:
    """Draw a day from Monday to Thursday, used as the current date of an office."""
    day = any_day(rng)
    return day - timedelta(days=day.weekday()) + timedelta(days=rng.randrange(4))


def names_of(text: str) -> list[str]:
    """Split a line at its commas and return the non-empty, stripped parts.

    Raises:
        FormError: There are more than 50 parts.
    """
    parts = [part for piece in text.split(",") if (part := piece.strip())]
    if len(parts) > MAX_NAMES:
        raise FormError(f"These are {len(parts)} names; at most {MAX_NAMES} can be given.")
    return parts


def addressed(text: str, known: list[Person]) -> list[Person]:
    """Return the people that a comma-separated line of names or addresses refers to.

    Raises:
        FormError: A name is unknown, or there are more than 50.
    """
    found = []
    for part in names_of(text):
        wanted = part.rpartition("<")[2].rstrip("> ").lower()
        matches = [person for person in known if wanted in (person.name.lower(), person.email.lower())]
        if len(matches) != 1:
            raise FormError(f"“{part[:80]}” is not in the address book. Type a full name or an address.")
        found.append(matches[0])
    return found
