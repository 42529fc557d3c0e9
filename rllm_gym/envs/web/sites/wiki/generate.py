"""Generates a wiki with a history from a seed: corrected numbers, protected pages, redirects and vandalism."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from random import Random

from rllm_gym.envs.web.sites.wiki.pages import WikiApp
from rllm_gym.envs.web.sites.wiki.state import NUMBERS, Content, Revision, Wiki, WikiPage, number_in
from rllm_gym.envs.web.sites.wording import any_day, people

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

EDITORS = (
    "Aldous", "Birgit", "Cato", "Delphine", "Edda", "Fabio", "Greta", "Hector", "Ilse", "Jorge",
    "Katja", "Ludo", "Merle", "Nestor", "Orla", "Piet", "Quentin", "Renata", "Silas", "Thea",
)  # fmt: skip
SUMMARIES = (
    "newer source",
    "corrected a number",
    "checked in the archive",
    "typo",
    "better wording",
    "after the survey",
)


def build(seed: int, difficulty: int, *, summaries_count: bool = False) -> WikiApp:
    """Build a wiki with a history: corrected numbers, a few protected pages, and vandalism."""
    rng = Random(f"wiki/{seed}/{difficulty}")
    now = datetime.combine(any_day(rng), time(12, 0))
    editors = rng.sample(EDITORS, min(len(EDITORS), 6 + 2 * difficulty))
    contents = make_pages(rng, difficulty)
    lengths = {title: rng.randint(2, 4 + 2 * difficulty) for title in contents}
    ages = iter(rng.sample(range(60 * 24, 60 * 24 * 900), sum(lengths.values())))
    pages = {}
    drafts: list[tuple[datetime, WikiPage, str, str, Content]] = []
    for title, content in contents.items():
        page = pages[title] = WikiPage(title, [])
        times = sorted(next(ages) for _ in range(lengths[title]))  # the smallest age is the newest version
        for place, age in enumerate(times):
            author = rng.choice(editors[:-2])
            last = place == len(times) - 1
            summary = "new page" if last else rng.choice(SUMMARIES)
            drafts.append((now - timedelta(minutes=age), page, author, summary, content))
            content = _older(rng, content)
    wiki = WikiApp(now, editors[-2], editors, editors[-1], pages, 20_000, summaries_count)
    for when, page, author, summary, content in sorted(drafts, key=lambda draft: draft[0]):
        wiki.next_revision += rng.randint(1, 9)
        page.revisions.append(Revision(wiki.next_revision, author, when, summary, content))
    shuffled = rng.sample(sorted(pages), len(pages))
    _vandalise(wiki, rng, shuffled[: 1 + difficulty], difficulty)
    for title in shuffled[1 + difficulty : 3 + 2 * difficulty]:
        pages[title].protected = True
    for title in shuffled[-2 - difficulty :]:
        _rename_in_the_past(wiki, rng, title)
        wiki.pages[title].talk.append((rng.choice(editors[:-2]), "Sources", "Where do these numbers come from?"))
    wiki.watched = rng.sample(sorted(pages), 2)
    return wiki


def _older(rng: Random, content: Content) -> Content:
    """Return the previous version of a page, in which one number was different."""
    name = rng.choice([name for name, _ in content.facts if name in NUMBERS])
    value = content.fact(name)
    number = number_in(value)
    return content.with_fact(name, with_number(value, number + rng.randint(1, 3 + number // 50)))


def _vandalise(wiki: Wiki, rng: Random, titles: list[str], difficulty: int) -> None:
    for title in titles:
        page = wiki.pages[title]
        for _ in range(1 + rng.randrange(1 + difficulty // 2)):
            heading = rng.choice(page.content.sections)[0]
            text = f"{rng.choice(NONSENSE)} {rng.randint(10, 99)}"
            wiki.next_revision += 1
            # Vandalism happens within the last day, after all legitimate edits.
            when = wiki.now - timedelta(minutes=1_400 - (wiki.next_revision * 7) % 1_300)
            when = max(when, page.revisions[-1].when + timedelta(minutes=1))
            content = page.content.with_section(heading, text)
            page.revisions.append(Revision(wiki.next_revision, wiki.vandal, when, "", content))


def _rename_in_the_past(wiki: Wiki, rng: Random, title: str) -> None:
    """Add a redirect from an older title to the page."""
    old = f"{rng.choice(('Castle', 'Saint', 'Great'))} {title.removeprefix('River ')}"
    if old not in wiki.pages:
        wiki.next_revision += 1
        when = wiki.now - timedelta(days=rng.randint(10, 800), minutes=wiki.next_revision % 1_000)
        revision = Revision(wiki.next_revision, wiki.editors[0], when, "older name", Content(redirect=title))
        wiki.pages[old] = WikiPage(old, [revision])


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
