"""Generates a wiki with a history from a seed: corrected numbers, protected pages, redirects and vandalism."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from random import Random

from rllm_gym.envs.web.sites.wiki.content import NONSENSE, NUMBERS, Content, make_pages, number_in, with_number
from rllm_gym.envs.web.sites.wiki.state import Revision, Wiki, WikiPage
from rllm_gym.envs.web.sites.wiki.views import WikiApp
from rllm_gym.envs.web.sites.wording import any_day

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
