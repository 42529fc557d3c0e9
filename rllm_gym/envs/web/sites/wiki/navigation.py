"""Move sequences that the solutions of the wiki's tasks share."""

from __future__ import annotations

from collections.abc import Callable

from rllm_gym.envs.web.sites.task import Answer, Click, Fill, Move
from rllm_gym.envs.web.sites.wiki.content import NUMBERS, number_in
from rllm_gym.envs.web.sites.wiki.state import ORIGIN, Revision, Wiki, WikiPage, kind_of
from rllm_gym.envs.web.sites.wiki.views import VERSIONS_PER_PAGE

START_URL = f"{ORIGIN}/"
DONE = Answer("done")
UNITS = {"Area": ["km²", "km2", "square kilometres"], "Length": ["km", "kilometres"], "Height": ["m", "metres"]}
MORE = {"Population": "inhabitants", "Founded": "", "Area": "km²", "Length": "km", "Bridges": "bridges", "Height": "m"}
Moves = tuple[Move, ...]


def open_page(title: str) -> Moves:
    return Fill("Search the wiki", title), Click("button", "Search"), Click("link", title)


def from_menu(item: str) -> Moves:
    return Click("button", "Edit ▾"), Click("link", item)


def open_version(page: WikiPage, revision: Revision) -> Moves:
    number = page.revisions[::-1].index(revision) // VERSIONS_PER_PAGE + 1
    turn = (Click("link", f"Page {number}"),) if number > 1 else ()
    return *open_page(page.title), Click("link", "History"), *turn, Click("link", f"Version {revision.number}")


def clean_pages(wiki: Wiki, wanted: Callable[[WikiPage], object] = lambda page: True) -> list[WikiPage]:
    """Return the pages with content that were not vandalised."""
    return [
        page
        for _, page in sorted(wiki.pages.items())
        if not page.content.redirect and page.revisions[-1].author != wiki.vandal and wanted(page)
    ]


def open_to_all(wiki: Wiki) -> list[WikiPage]:
    return clean_pages(wiki, lambda page: not page.protected)


def look_alike(wiki: Wiki, page: WikiPage) -> WikiPage:
    """Return another page of the same kind whose title is the most similar."""

    def common(other: WikiPage) -> tuple[int, str]:
        words = set(page.title.split()) & set(other.title.split()) - {"River"}
        return len(words) * 10 + (other.title.split()[-1][:3] == page.title.split()[-1][:3]), other.title

    kind = kind_of(page)
    return max(clean_pages(wiki, lambda other: other is not page and kind_of(other) == kind), key=common)


def answer_spec(name: str, value: str) -> dict[str, object]:
    if name not in NUMBERS:
        return {"type": "string", "value": value}
    number: dict[str, object] = {"type": "number", "value": number_in(value)}
    return {**number, "unit": UNITS[name]} if name in UNITS else number
