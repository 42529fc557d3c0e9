"""The content of the wiki: towns, rivers and mountains of a fictional country, with facts to look up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from rllm_gym.envs.web.sites.wording import people

BEGINNINGS = (
    "Old",
    "Ash",
    "Brant",
    "Cald",
    "Dun",
    "El",
    "Fal",
    "Glen",
    "Har",
    "Ing",
    "Kirk",
    "Lan",
    "Mar",
    "Nor",
    "Ost",
)
TOWN_ENDINGS = ("mere", "moor", "ford", "bridge", "wick", "ton", "haven", "field", "stead", "borough")
RIVER_ENDINGS = ("burn", "beck", "water", "rill", "brook", "fleet")
PEAK_ENDINGS = ("fell", "horn", "crag", "tor", "nab", "pike")
REGIONS = ("North Marches", "Lakeland", "Saltcoast", "High Vale", "Southwold", "Greenway")
TRADES = ("wool", "tin", "timber", "salt", "glass", "cider", "paper", "slate")
SIGHTS = ("a stone market hall", "a round chapel", "a covered bridge", "a clock tower", "an old mint", "a windmill")
NONSENSE = ("lol nothing here", "BUY GOLD NOW", "this place does not exist!!!", "my brother was here", "asdf asdf asdf")

PER_KIND = {1: 8, 2: 14, 3: 22, 4: 32, 5: 44}
NUMBERS = {"Population", "Founded", "Area", "Length", "Bridges", "Height", "First climbed"}
"""Names of numeric facts; the values of some have a unit."""

KINDS = {
    "Towns": ("Population", "Founded", "Area", "Mayor"),
    "Rivers": ("Length", "Bridges", "Source", "Mouth"),
    "Mountains": ("Height", "First climbed", "First climber", "Region"),
}
SINGULAR = {"Towns": "town", "Rivers": "river", "Mountains": "mountain"}


@dataclass(frozen=True, slots=True)
class Content:
    """The content of one version of a page: facts, sections with texts, and categories; or the target of a redirect."""

    facts: tuple[tuple[str, str], ...] = ()
    sections: tuple[tuple[str, str], ...] = ()
    categories: tuple[str, ...] = ()
    redirect: str = ""

    def fact(self, name: str) -> str:
        return dict(self.facts)[name]

    def with_fact(self, name: str, value: str) -> Content:
        return replace(self, facts=tuple((n, value if n == name else v) for n, v in self.facts))

    def with_section(self, heading: str, text: str) -> Content:
        return replace(self, sections=tuple((name, text if name == heading else t) for name, t in self.sections))

    def to_json(self) -> list[object]:
        return [list(map(list, self.facts)), list(map(list, self.sections)), sorted(self.categories), self.redirect]


def number_in(value: str) -> int:
    """Return the number in a value: 12400 for ``12,400``, 214 for ``214 km``."""
    return int("".join(c for c in value.split()[0] if c.isdigit()))


def with_number(value: str, number: int) -> str:
    """Return the value with another number in the same format."""
    first, *unit = value.split()
    written = f"{number:,}" if "," in first or (not unit and number >= 3_000) else str(number)
    return " ".join([written, *unit])


def make_pages(rng: Random, difficulty: int) -> dict[str, Content]:
    """Return pages by title. First numbers are unique per kind; some titles differ only in a word or a few letters."""
    count = PER_KIND[difficulty]
    towns = _names(rng, TOWN_ENDINGS, count, "{}")
    for i in rng.sample(range(count), count // 4):  # similar titles, such as New Oldmere and Oldmere
        towns[i] = f"{rng.choice(('New', 'Upper', 'Lower'))} {towns[i - 1]}"
    towns = list(dict.fromkeys(towns))
    rivers = _names(rng, RIVER_ENDINGS, count, "River {}")
    peaks = _names(rng, PEAK_ENDINGS, count, "{}")
    mayors = people(rng, len(towns))
    populations, lengths, heights = (
        rng.sample(range(*bounds), count) for bounds in ((3_000, 90_000), (20, 900), (600, 4_900))
    )
    pages: dict[str, Content] = {}
    for title, population, mayor in zip(towns, populations, mayors):
        river, region = rng.choice(rivers), rng.choice(REGIONS)
        pages[title] = Content(
            (
                ("Population", f"{population:,}"),
                ("Founded", str(rng.randint(980, 1890))),
                ("Area", f"{rng.randint(9, 140)} km²"),
                ("Mayor", mayor),
            ),
            (
                ("Overview", f"{title} is a town in {region}. It lies on the [[{river}]]."),
                (
                    "History",
                    f"The town grew rich from {rng.choice(TRADES)}. Its charter is kept in {rng.choice(SIGHTS)}.",
                ),
                ("Sights", f"Visitors come for {rng.choice(SIGHTS)} and for the walk to [[{rng.choice(peaks)}]]."),
            ),
            ("Towns", region),
        )
    for title, length in zip(rivers, lengths):
        source, mouth = rng.choice(peaks), rng.choice(towns)
        pages[title] = Content(
            (
                ("Length", f"{length} km"),
                ("Bridges", str(rng.randint(2, 60))),
                ("Source", source),
                ("Mouth", mouth),
            ),
            (
                ("Course", f"The {title} rises on [[{source}]] and reaches the sea near [[{mouth}]]."),
                ("Use", f"For centuries it carried {rng.choice(TRADES)} and {rng.choice(TRADES)} to the coast."),
            ),
            ("Rivers",),
        )
    for title, height in zip(peaks, heights):
        region = rng.choice(REGIONS)
        pages[title] = Content(
            (
                ("Height", f"{height:,} m" if height >= 1_000 else f"{height} m"),
                ("First climbed", str(rng.randint(1780, 1960))),
                ("First climber", people(rng, 1)[0]),
                ("Region", region),
            ),
            (
                ("Overview", f"{title} is a mountain in {region}, seen from [[{rng.choice(towns)}]] on clear days."),
                ("Routes", f"The usual way starts at [[{rng.choice(towns)}]] and takes {rng.randint(3, 11)} hours."),
            ),
            ("Mountains", region),
        )
    return pages


def _names(rng: Random, endings: tuple[str, ...], count: int, pattern: str) -> list[str]:
    codes = rng.sample(range(len(BEGINNINGS) * len(endings)), count)
    return [pattern.format(BEGINNINGS[code // len(endings)] + endings[code % len(endings)]) for code in codes]
