"""Invented names of entities, of which some share words, as those of an encyclopedia do."""

from __future__ import annotations

import random
from collections.abc import Sequence


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = {
    "person": _words("painter engineer botanist composer physician astronomer potter printer"),
    "town": ("town",),
    "work": _words("novel play poem opera memoir"),
    "structure": _words("bridge lighthouse tower theatre mill"),
    "institution": _words("academy library observatory museum hospital"),
    "event": _words("regatta marathon festival tournament"),
}

_GIVEN = _words("Al Be Cor Da Ed Fi Gre Ha Il Jo Ka Lo Ma Ne Or Pe Ro Sa Te Ul Va Wi Yo Ze")
_GIVEN_ENDS = _words("ra len mina do vin sa rick nora tha bert lia mund ris ned")
_SYLLABLES = _words(
    "bal bren cal cros dar del dun fal fen gar gil har hol ist jar kel kor lam lin mar mor nas nor ost pel quin ral "
    "ros sar sel tam tor ul ur van vel wen wol yar zan"
)
_FAMILY_ENDS = _words("berg dahl ek enko er ic in ley man o ov quist ran sen son us wick")
_TOWN_ENDS = _words("burg by dale fell ford ham haven holm mere ness stad stow thorpe ton wick")
_OTHER_ENDS = _words("ace ado ane ara ent era ian ida ine ion ira ona ora une")
_PREFIXES = _words("Upper Lower New Old East West North South Great Little High Long")
_ADJECTIVES = _words(
    "Amber Ashen Broken Burning Copper Crimson Distant Drowned Empty Fading Forgotten Frozen Gilded Glass Hidden "
    "Hollow Iron Ivory Last Lonely Marble Midnight Mirrored Northern Painted Paper Quiet Restless Salted Second "
    "Secret Silver Sleeping Stolen Sunken Third Velvet Wandering Weightless Winter"
)
_THINGS = _words(
    "Almanac Anchor Archive Aviary Balcony Beacon Bell Candle Caravan Cartographer Clock Compass Corridor Estuary "
    "Ferry Garden Glacier Harvest Hourglass Island Kingdom Ladder Lantern Ledger Letter Meridian Meadow Orchard "
    "Pendulum Pilgrim Quarry Raven Staircase Summer Tide Trumpet Violin Voyage Window Wharf"
)


def draw_names(kind: str, count: int, towns: Sequence[str], rng: random.Random) -> list[tuple[str, str]]:
    """Draw pairs of noun and name; no pair occurs twice, and about a fifth of the names repeats another's or a part of
    it."""
    drawn: dict[tuple[str, str], None] = {}
    while len(drawn) < count:
        noun = rng.choice(NOUNS[kind])
        name = _name(kind, rng)
        others = [name for _, name in drawn]
        if others and rng.random() < 0.2:
            name = _similar(kind, rng.choice(others), name, rng)
        elif kind == "structure" and towns and rng.random() < 0.2:
            name = rng.choice(towns)
        drawn[noun, name] = None
    return list(drawn)


def _name(kind: str, rng: random.Random) -> str:
    stem = (rng.choice(_SYLLABLES) + rng.choice(_SYLLABLES)).capitalize()
    if kind == "person":
        return f"{rng.choice(_GIVEN)}{rng.choice(_GIVEN_ENDS)} {stem}{rng.choice(_FAMILY_ENDS)}"
    if kind == "work":
        return f"The {rng.choice(_ADJECTIVES)} {rng.choice(_THINGS)}"
    return stem + rng.choice(_TOWN_ENDS if kind == "town" else _OTHER_ENDS)


def _similar(kind: str, other: str, new: str, rng: random.Random) -> str:
    """Return a name that is easily confused with another one."""
    if kind == "person" and rng.random() < 0.7:
        return f"{new.split()[0]} {other.split()[1]}"
    if kind == "work":
        return f"{other.rpartition(' ')[0]} {new.rpartition(' ')[2]}"
    if kind == "town":
        return f"{rng.choice(_PREFIXES)} {other.rpartition(' ')[2]}"
    return other  # distinguished by the noun
