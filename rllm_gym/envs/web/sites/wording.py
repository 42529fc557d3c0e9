"""Names, dates and money for the built-in sites: seeded generators and formatters."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July",
    "August", "September", "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

FIRST_NAMES = (
    "Ada", "Aisha", "Alejandro", "Amara", "Anders", "Anika", "Anton", "Beatriz", "Bruno", "Carla", "Chidi", "Clara",
    "Daniel", "Davit", "Dilnoza", "Elena", "Emeka", "Erik", "Esther", "Farah", "Felix", "Fiona", "Gabriel", "Grace",
    "Hana", "Hugo", "Ines", "Ivan", "Jasmin", "Joao", "Jonas", "Julia", "Kamal", "Karin", "Kofi", "Lars", "Leila",
    "Liam", "Lucia", "Magnus", "Maria", "Marek", "Mei", "Miriam", "Mohan", "Nadia", "Naomi", "Nikolai", "Noor", "Olga",
    "Omar", "Paula", "Pedro", "Priya", "Rafael", "Rosa", "Ruth", "Samir", "Sara", "Sven", "Tamar", "Tariq", "Teresa",
    "Thabo", "Tomas", "Ulrike", "Vera", "Viktor", "Wanda", "Yara", "Yusuf", "Zofia",
)  # fmt: skip
LAST_NAMES = (
    "Abebe", "Almeida", "Andersson", "Bauer", "Becker", "Bianchi", "Carter", "Castillo", "Chen", "Costa", "Dahl",
    "Diallo", "Dubois", "Eriksen", "Farouk", "Fischer", "Flores", "Garcia", "Gupta", "Haddad", "Hansen", "Hoffmann",
    "Horvat", "Ibrahim", "Ito", "Jansen", "Johnson", "Kaya", "Keller", "Khan", "Kim", "Kovacs", "Larsen", "Lindgren",
    "Lopez", "Mbeki", "Mendes", "Moreau", "Morgan", "Nakamura", "Novak", "Nwosu", "Okafor", "Olsen", "Ortega", "Park",
    "Patel", "Pereira", "Petrov", "Quinn", "Rahman", "Reyes", "Romano", "Rossi", "Santos", "Sato", "Schmidt", "Silva",
    "Singh", "Sokolov", "Suzuki", "Tanaka", "Torres", "Varga", "Vogel", "Walker", "Weber", "Wong", "Yilmaz", "Zhang",
)  # fmt: skip


def people(rng: Random, count: int) -> list[str]:
    """Draw ``count`` different full names. Surnames may repeat."""
    drawn = rng.sample(range(len(FIRST_NAMES) * len(LAST_NAMES)), count)
    return [f"{FIRST_NAMES[n // len(LAST_NAMES)]} {LAST_NAMES[n % len(LAST_NAMES)]}" for n in drawn]


def any_day(rng: Random) -> date:
    """Draw a day, used as the current date of a site."""
    first, last = date(2024, 1, 8), date(2027, 11, 30)
    return first + timedelta(days=rng.randrange((last - first).days + 1))


def long_date(day: date) -> str:
    """Format a date as ``4 March 2025``."""
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def short_date(day: date) -> str:
    """Format a date as ``4 Mar 2025``."""
    return f"{day.day} {MONTHS[day.month - 1][:3]} {day.year}"


def weekday(day: date) -> str:
    return WEEKDAYS[day.weekday()]


def money(cents: int) -> str:
    """Format cents as an amount: 120450 as ``$1,204.50``."""
    dollars, rest = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}${dollars:,}.{rest:02d}"


def plural(count: int, one: str) -> str:
    """Return the count with its noun: ``1 issue``, ``2 issues``."""
    return f"{count:,} {one if count == 1 else one + 's'}"


def listed(words: list[str] | tuple[str, ...], last: str = "and") -> str:
    """Join words as ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
