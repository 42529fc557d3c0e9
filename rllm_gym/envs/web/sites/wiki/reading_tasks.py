"""The wiki's question generators. See ``editing`` for tasks that require changes."""

from __future__ import annotations

from random import Random

from rllm_gym.envs.web.sites.task import Answer, Click, WebTask
from rllm_gym.envs.web.sites.wiki.content import NUMBERS, SINGULAR, number_in
from rllm_gym.envs.web.sites.wiki.navigation import (
    MORE,
    START_URL,
    answer_spec,
    clean_pages,
    look_alike,
    open_page,
    open_version,
)
from rllm_gym.envs.web.sites.wiki.state import Wiki, kind_of
from rllm_gym.envs.web.sites.wiki.views import ROWS_PER_PAGE, VERSIONS_PER_PAGE


def fact(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a question about a fact of a page. From difficulty 3 on, it uses an older title that redirects there."""
    older = {p.content.redirect: p for _, p in sorted(wiki.pages.items()) if p.content.redirect}
    pages = clean_pages(wiki, lambda page: page.title in older) if difficulty > 2 else []
    page = rng.choice(pages or clean_pages(wiki))
    asked = older[page.title].title if pages else page.title
    name, value = rng.choice(page.content.facts)
    other = next(
        p
        for p in [look_alike(wiki, page), *clean_pages(wiki)]
        if kind_of(p) == kind_of(page) and p.content.fact(name) != value
    )
    goal = rng.choice(
        [
            "According to the wiki, what is the “{name}” of {title}?",
            "Look up {title} in the wiki. What is given there as “{name}”?",
            "Find the fact “{name}” on the page of {title} and answer with it.",
        ]
    ).format(title=asked, name=name)
    return WebTask(
        goal=goal,
        start=START_URL,
        answer=answer_spec(name, value),
        moves=(*open_page(asked), Answer(value)),
        wrong_moves=(*open_page(other.title), Answer(other.content.fact(name))),
    )


def extreme(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the largest entry within a limit, from a multi-page table that sorts by one column."""
    kind, by, limited, above = rng.choice(
        [
            ("Towns", "Population", "Founded", False),
            ("Towns", "Population", "Area", False),
            ("Rivers", "Length", "Bridges", False),
            ("Mountains", "Height", "First climbed", True),
        ]
    )
    rows = sorted(wiki.of_kind(kind), key=lambda p: number_in(p.content.fact(by)), reverse=True)
    limits = [number_in(page.content.fact(limited)) for page in rows]
    # The limit excludes the first rows; their number grows with the difficulty.
    skipped = min(len(rows) - 2, difficulty + rng.randint(0, 2))
    right = max(range(skipped, len(rows)), key=lambda i: limits[i] if above else -limits[i])
    limit = limits[right] - 1 if above else limits[right] + 1
    found = next(page for page, number in zip(rows, limits) if (number > limit if above else number < limit))
    words = {
        "Founded": "that was founded before {}",
        "Area": "with an area of less than {} km²",
        "Bridges": "with fewer than {} bridges",
        "First climbed": "that was first climbed after {}",
    }
    what = {"Population": "the largest population", "Length": "the greatest length", "Height": "the greatest height"}
    goal = rng.choice(
        [
            "Which {kind} {limit} has {what}? Answer with its name.",
            "Use the wiki's table of {plural}: of every {kind} {limit}, which one has {what}?",
        ]
    ).format(kind=SINGULAR[kind], plural=kind.lower(), limit=words[limited].format(limit), what=what[by])
    other = rows[0] if rows[0] is not found else rows[1]
    place = rows.index(found) // ROWS_PER_PAGE
    look = (Click("link", f"Table of {kind.lower()}"), Click("link", by), Click("link", by))
    turn = (Click("link", f"Page {place + 1}"),) if place else ()
    return WebTask(
        goal=goal,
        start=START_URL,
        answer={"type": "string", "value": found.title},
        moves=(*look, *turn, Answer(found.title)),
        wrong_moves=(*look, Answer(other.title)),
    )


def count(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the number of table rows above a limit."""
    kind, name = rng.choice(
        [("Towns", "Population"), ("Rivers", "Length"), ("Mountains", "Height"), ("Rivers", "Bridges")]
    )
    numbers = sorted(number_in(page.content.fact(name)) for page in wiki.of_kind(kind))
    limit = numbers[rng.randrange(len(numbers) // 4, len(numbers) - 1)]
    right = sum(number > limit for number in numbers)
    goal = rng.choice(
        [
            "How many {plural} in the wiki have {more}?",
            "Count the {plural} whose “{name}” is greater than {limit:,} in the wiki's table.",
        ]
    ).format(plural=kind.lower(), limit=limit, more=_more_than(name, limit), name=name)
    look = (Click("link", f"Table of {kind.lower()}"), Click("link", name), Click("link", name))
    return WebTask(
        goal=goal,
        start=START_URL,
        answer={"type": "number", "value": right},
        moves=(*look, Answer(str(right))),
        wrong_moves=(*look, Answer(str(sum(number >= limit for number in numbers)))),
    )


def _more_than(name: str, limit: int) -> str:
    """Return for example ``a length of more than 845 km`` or ``more than 34 bridges``."""
    dollars = f"more than {limit:,} {MORE[name]}"
    return f"a {name.lower()} of {dollars}" if name in ("Length", "Height") else dollars


def first_editor(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the first or the last editor of a page: the two ends of a multi-page history."""
    pages = [p for p in clean_pages(wiki) if p.revisions[0].author != p.revisions[-1].author]
    page = rng.choice(sorted(pages, key=lambda p: (len(p.revisions), p.title))[len(pages) // 2 :])
    first = rng.random() < 0.5
    revision, other = page.revisions[0 if first else -1], page.revisions[-1 if first else 0]
    goal = rng.choice(
        ["Who created the wiki page {title}?", "Which editor wrote the very first version of {title}?"]
        if first
        else ["Who made the latest change to the wiki page {title}?", "Which editor changed {title} last?"]
    )
    see = (*open_page(page.title), Click("link", "History"))
    turn = (Click("link", "Next ›"),) * ((len(page.revisions) - 1) // VERSIONS_PER_PAGE) if first else ()
    return WebTask(
        goal=goal.format(title=page.title),
        start=START_URL,
        answer={"type": "string", "value": revision.author},
        moves=(*see, *turn, Answer(revision.author)),
        wrong_moves=(*see, Answer(other.author)),
    )


def old_value(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a question about a fact in an older version of a page."""
    candidates = []
    for page in clean_pages(wiki):
        for revision in page.revisions[:-1]:
            for name, value in revision.content.facts:
                if name in NUMBERS and page.content.fact(name) != value:
                    candidates.append((page, revision, name, value))
    page, revision, name, value = rng.choice(candidates)
    goal = rng.choice(
        [
            "What was given as “{name}” on the page {title} in version {number}?",
            "Version {number} of the wiki page {title}: what did it give as “{name}”?",
        ]
    )
    return WebTask(
        goal=goal.format(name=name, title=page.title, number=revision.number),
        start=START_URL,
        answer=answer_spec(name, value),
        moves=(*open_version(page, revision), Answer(value)),
        wrong_moves=(*open_page(page.title), Answer(page.content.fact(name))),
    )


def linking(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a question about all pages that link to a page."""
    counts = [(len(wiki.links_to(p.title)), p) for p in clean_pages(wiki, lambda p: kind_of(p) != "Towns")]
    fitting = [p for n, p in counts if 1 < n <= 3 + difficulty] or [p for n, p in counts if n]
    page = rng.choice(fitting)
    titles = wiki.links_to(page.title)
    goal = rng.choice(
        [
            "Which pages link to {title}? Name all of them (separated by commas).",
            "List the titles of all wiki pages that link to the page {title}, separated by commas.",
        ]
    )
    wrong = titles[:-1] or [page.title]
    return WebTask(
        goal=goal.format(title=page.title),
        start=START_URL,
        answer={"type": "set", "value": titles},
        moves=(*open_page(page.title), Click("link", "What links here"), Answer(", ".join(titles))),
        wrong_moves=(*open_page(page.title), Click("link", "What links here"), Answer(", ".join(wrong))),
    )
