"""Vocabulary of the tool tasks: names of people and places, dates, and number formats."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import date, timedelta
from random import Random
from typing import Any


def words(text: str) -> tuple[str, ...]:
    """Split a text into words; keeps a word list readable in the source."""
    return tuple(text.split())


FIRST_NAMES = words(
    "Ada Amir Anna Aylin Ben Bela Carla Chen Chloe Clara Dana Daniel David Diego Elena Elif Emil Emma Erik Eva Farah "
    "Felix Fiona Frida Gabriel Gina Greta Hana Hugo Ida Igor Ines Iris Ivan Jan Jana Jonas Julia Kai Karim Katja Klara "
    "Lara Lea Leo Lena Liam Lina Luca Lucia Maja Malik Marco Maria Marta Max Mia Mila Mina Nadia Nico Nina Noah Nora "
    "Olga Omar Oscar Paula Pavel Petra Priya Rafael Ravi Rita Rosa Ruben Sam Sana Sara Selma Simon Sofia Sven Tara "
    "Theo Tilda Tim Tomas Uma Vera Victor Wanda Yara Yusuf Zoe"
)
LAST_NAMES = words(
    "Abbott Adler Aydin Baker Becker Berg Bianchi Blanc Bose Brandt Brown Castro Chang Cohen Costa Dahl Davies Diaz "
    "Dubois Eriksen Evans Farkas Ferrari Fischer Fontaine Garcia Gomez Gupta Haas Hansen Hoffmann Horvat Huber Ibrahim "
    "Ito Jansen Jensen Kaya Keller Khan Kim Klein Kovacs Kowalski Kumar Lang Larsen Lopez Maier Marino Martin Meyer "
    "Moreau Mori Moser Nagy Nakamura Novak Nowak Olsen Ortiz Park Patel Perez Petrov Popov Quinn Ramos Reyes Ricci "
    "Romano Rossi Roth Roy Santos Sato Schmid Silva Singh Smith Sokolov Suzuki Svensson Tanaka Torres Varga Vogel "
    "Wagner Walker Weber White Wolf Wong Yilmaz Young Zhang Ziegler"
)
CITIES = words(
    "Aachen Basel Bergen Bilbao Bologna Bordeaux Bristol Brno Cork Dresden Galway Geneva Ghent Gothenburg Graz Krakow "
    "Leeds Leipzig Linz Lisbon Ljubljana Lyon Malaga Nantes Odense Oslo Porto Riga Seville Tallinn Tampere Turin "
    "Utrecht Vilnius York Zagreb"
)
STREETS = words(
    "Alder Birch Bridge Canal Castle Cedar Chapel Church Elm Garden Harbour Hazel High Hill Lake Lime Linden Maple "
    "Market Meadow Mill Oak Orchard Park Pine Poplar River School Spring Station Sycamore Tower Valley Willow"
)
MONTHS = words("January February March April May June July August September October November December")


def people(rng: Random, count: int) -> list[str]:
    """Draw different full names."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"] = None
    return list(found)


def email_of(name: str) -> str:
    return f"{name.lower().replace(' ', '.')}@example.org"


def a_day(rng: Random, first: date, last: date) -> date:
    """Draw a day from ``first`` to ``last``, both included."""
    return first + timedelta(days=rng.randint(0, (last - first).days))


def a_today(rng: Random) -> date:
    """Draw the current date of an episode, in the years 2023 to 2027; the goal states it, no clock does."""
    return a_day(rng, date(2023, 2, 1), date(2027, 11, 30))


def listed(words: Iterable[str]) -> str:
    """Format a list: ``"a"``, ``"a and b"``, ``"a, b and c"``."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def money(cents: int) -> str:
    """Format ``1250`` as ``"12.50"``."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"


def as_json(value: Any) -> str:
    """Format a value as JSON, in the format the tools use."""
    return json.dumps(value, ensure_ascii=False)
