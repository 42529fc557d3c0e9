"""The wiki's tasks: questions about pages and their versions, and edits, reverts and renames."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from rllm_gym.envs.web.sites.moves import Click, Fill, Moves, Select, page_of
from rllm_gym.envs.web.sites.task import WebTask, WebTaskTemplate, change_task, infeasible_task, question_task
from rllm_gym.envs.web.sites.wiki.generate import TRADES, build, with_number
from rllm_gym.envs.web.sites.wiki.pages import ORIGIN, ROWS_PER_PAGE, VERSIONS_PER_PAGE
from rllm_gym.envs.web.sites.wiki.state import (
    KINDS,
    NUMBERS,
    SINGULAR,
    Content,
    Revision,
    Wiki,
    WikiPage,
    kind_of,
    number_in,
)
from rllm_gym.envs.web.sites.wording import listed

START_URL = f"{ORIGIN}/"
_LEVELS = (1, 2, 3, 4, 5)
UNITS = {"Area": ["km²", "km2", "square kilometres"], "Length": ["km", "kilometres"], "Height": ["m", "metres"]}
MORE = {"Population": "inhabitants", "Founded": "", "Area": "km²", "Length": "km", "Bridges": "bridges", "Height": "m"}


# Moves and selections that the tasks share


def open_page(title: str) -> Moves:
    return Fill("Search the wiki", title), Click("button", "Search"), Click("link", title)


def from_menu(item: str) -> Moves:
    return Click("button", "Edit ▾"), Click("link", item)


def open_version(page: WikiPage, revision: Revision) -> Moves:
    turn = page_of(page.revisions[::-1].index(revision), VERSIONS_PER_PAGE)
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


def similar_title(wiki: Wiki, page: WikiPage) -> str:
    """Return the title of another page of the same kind that is the most similar."""

    def common(title: str) -> tuple[int, str]:
        words = set(page.title.split()) & set(title.split()) - {"River"}
        return len(words) * 10 + (title.split()[-1][:3] == page.title.split()[-1][:3]), title

    same_kind = clean_pages(wiki, lambda other: other is not page and kind_of(other) == kind_of(page))
    return max((other.title for other in same_kind), key=common)


def sort_table(kind: str, column: str) -> Moves:
    """Return the moves to the table of a kind, in descending order of a column."""
    return Click("link", f"Table of {kind.lower()}"), Click("link", column), Click("link", column)


def answer_spec(name: str, value: str) -> dict[str, object]:
    if name not in NUMBERS:
        return {"type": "string", "value": value}
    number: dict[str, object] = {"type": "number", "value": number_in(value)}
    return {**number, "unit": UNITS[name]} if name in UNITS else number


# Questions


def fact(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a question about a fact of a page. From difficulty 3 on, it uses an older title that redirects there."""
    older = {p.content.redirect: p for _, p in sorted(wiki.pages.items()) if p.content.redirect}
    pages = clean_pages(wiki, lambda page: page.title in older) if difficulty > 2 else []
    page = rng.choice(pages or clean_pages(wiki))
    title = older[page.title].title if pages else page.title
    name, value = rng.choice(page.content.facts)
    goal = rng.choice(
        [
            f"According to the wiki, what is the “{name}” of {title}?",
            f"Look up {title} in the wiki. What is given there as “{name}”?",
            f"Find the fact “{name}” on the page of {title} and answer with it.",
        ]
    )
    return question_task(goal, START_URL, open_page(title), value, answer_spec(name, value))


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
    place = next(i for i, number in enumerate(limits) if (number > limit if above else number < limit))
    within = {
        "Founded": f"that was founded before {limit}",
        "Area": f"with an area of less than {limit} km²",
        "Bridges": f"with fewer than {limit} bridges",
        "First climbed": f"that was first climbed after {limit}",
    }[limited]
    what = {"Population": "the largest population", "Length": "the greatest length", "Height": "the greatest height"}
    one, many = SINGULAR[kind], kind.lower()
    goal = rng.choice(
        [
            f"Which {one} {within} has {what[by]}? Answer with its name.",
            f"Use the wiki's table of {many}: of every {one} {within}, which one has {what[by]}?",
        ]
    )
    title, moves = rows[place].title, (*sort_table(kind, by), *page_of(place, ROWS_PER_PAGE))
    return question_task(goal, START_URL, moves, title, {"type": "string", "value": title})


def count(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the number of table rows above a limit."""
    kind, name = rng.choice(
        [("Towns", "Population"), ("Rivers", "Length"), ("Mountains", "Height"), ("Rivers", "Bridges")]
    )
    numbers = sorted(number_in(page.content.fact(name)) for page in wiki.of_kind(kind))
    limit = numbers[rng.randrange(len(numbers) // 4, len(numbers) - 1)]
    right = sum(number > limit for number in numbers)
    more = f"more than {limit:,} {MORE[name]}"
    if name in ("Length", "Height"):
        more = f"a {name.lower()} of {more}"
    goal = rng.choice(
        [
            f"How many {kind.lower()} in the wiki have {more}?",
            f"Count the {kind.lower()} whose “{name}” is greater than {limit:,} in the wiki's table.",
        ]
    )
    return question_task(goal, START_URL, sort_table(kind, name), str(right), {"type": "number", "value": right})


def first_editor(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the first or the last editor of a page: the two ends of a multi-page history."""
    pages = [p for p in clean_pages(wiki) if p.revisions[0].author != p.revisions[-1].author]
    page = rng.choice(sorted(pages, key=lambda p: (len(p.revisions), p.title))[len(pages) // 2 :])
    first = rng.random() < 0.5
    editor = page.revisions[0 if first else -1].author
    goal = rng.choice(
        [f"Who created the wiki page {page.title}?", f"Which editor wrote the very first version of {page.title}?"]
        if first
        else [f"Who made the latest change to the wiki page {page.title}?", f"Which editor changed {page.title} last?"]
    )
    turn = [Click("link", "Next ›")] * ((len(page.revisions) - 1) // VERSIONS_PER_PAGE) if first else []
    moves = *open_page(page.title), Click("link", "History"), *turn
    return question_task(goal, START_URL, moves, editor, {"type": "string", "value": editor})


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
            f"What was given as “{name}” on the page {page.title} in version {revision.number}?",
            f"Version {revision.number} of the wiki page {page.title}: what did it give as “{name}”?",
        ]
    )
    return question_task(goal, START_URL, open_version(page, revision), value, answer_spec(name, value))


def linking(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a question about all pages that link to a page."""
    counts = [(len(wiki.links_to(p.title)), p) for p in clean_pages(wiki, lambda p: kind_of(p) != "Towns")]
    fitting = [p for n, p in counts if 1 < n <= 3 + difficulty] or [p for n, p in counts if n]
    title = rng.choice(fitting).title
    goal = rng.choice(
        [
            f"Which pages link to {title}? Name all of them (separated by commas).",
            f"List the titles of all wiki pages that link to the page {title}, separated by commas.",
        ]
    )
    titles = wiki.links_to(title)
    moves = *open_page(title), Click("link", "What links here")
    return question_task(goal, START_URL, moves, ", ".join(titles), {"type": "set", "value": titles})


# Changes


def edit_fact(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: change one or two facts of a page, with a summary. If the page is protected, it is infeasible."""
    impossible = rng.random() < 0.2
    protected = clean_pages(wiki, lambda page: page.protected and page.content.facts)
    page = rng.choice(protected if impossible and protected else open_to_all(wiki))
    names = rng.sample([name for name, _ in page.content.facts if name in NUMBERS], 1 if difficulty < 3 else 2)
    values = {}
    for name in names:
        old = page.content.fact(name)
        values[name] = with_number(old, number_in(old) + rng.randint(1, 40))
    summary = rng.choice(("new survey", "census results", "corrected after the archive", "figures of this year"))
    changes = listed([f"“{name}” to {value}" for name, value in values.items()])
    goal = rng.choice(
        [
            f"On the wiki page {page.title}, change the fact {changes}. Give the summary “{summary}”.",
            f"Update {page.title} in the wiki: set {changes}, in one edit with the summary “{summary}”.",
        ]
    )
    if page.protected:
        return infeasible_task(goal, START_URL, open_page(page.title), "the page is protected")

    def outcome(expected: Wiki) -> None:
        content = expected.page(page.title).content
        for name, value in values.items():
            content = content.with_fact(name, value)
        expected.edit(page.title, content, summary)

    fills = [Fill(name, value) for name, value in {**values, "Summary": summary}.items()]
    moves = *open_page(page.title), *from_menu("Edit facts"), *fills, Click("button", "Save changes")
    return change_task(goal, START_URL, moves, outcome)


def edit_section(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: replace a word in a section, or append a sentence to it."""
    page = rng.choice(open_to_all(wiki))
    title = page.title
    heading, text = rng.choice(page.content.sections)
    trade = next((word for word in TRADES if f" {word}" in text), None)
    if trade and text.count(trade) == 1:
        new = rng.choice([word for word in TRADES if word not in text])
        wanted = text.replace(trade, new)
        goal = rng.choice(
            [
                f"In the section “{heading}” of {title}, replace the word “{trade}” by “{new}”. Change nothing else.",
                f"The wiki page {title} is wrong: in “{heading}” it should say “{new}” where it says “{trade}”. "
                "Correct that.",
            ]
        )
    else:
        month = rng.choice(("May", "June", "September"))
        sentence = rng.choice(("A bus runs there every hour.", f"A fair is held in {month}.", "There is a museum."))
        wanted = f"{text} {sentence}"
        goal = rng.choice(
            [
                f"Add the sentence “{sentence}” at the end of the section “{heading}” of {title}, after a space.",
                f"In the wiki page {title}, section “{heading}”: append a space and “{sentence}” to the text "
                "that is there.",
            ]
        )
    edit = Click("link", f"Edit section {heading}"), Fill("Text", wanted), Click("button", "Save changes")
    moves = *open_page(title), *edit
    return change_task(goal, START_URL, moves, lambda site: site.edit_section(title, heading, wanted, ""))


def revert(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: restore the version before a vandal's edits, which may be several edits ago."""
    vandal = wiki.vandal
    spoilt = [page for _, page in sorted(wiki.pages.items()) if page.revisions[-1].author == vandal]
    most = max(sum(r.author == vandal for r in page.revisions) for page in spoilt)
    page = rng.choice([p for p in spoilt if sum(r.author == vandal for r in p.revisions) == most])
    goal = rng.choice(
        [
            f"The editor {vandal} spoilt the page {page.title}. Restore the last version from before the edits by "
            f"{vandal}.",
            f"Undo the vandalism of {vandal} on the wiki page {page.title}: it should say again exactly what it said "
            "before.",
        ]
    )
    last = [revision for revision in page.revisions if revision.author != vandal][-1]
    moves = *open_version(page, last), Click("button", "Restore this version")
    return change_task(goal, START_URL, moves, lambda site: site.restore(last.number))


def create(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: create a page in a category. If the title is taken, the task is infeasible."""
    impossible = rng.random() < 0.2
    subject = rng.choice(clean_pages(wiki))
    kind = kind_of(subject) or "Towns"
    free = f"{rng.choice(('Museum', 'Bridge', 'Festival', 'Harbour', 'School'))} of {subject.title}"
    title = subject.title if impossible else free
    text = f"{title} was first mentioned in {rng.randint(1100, 1900)}."
    if difficulty > 1:
        text += f" It is close to [[{rng.choice(clean_pages(wiki)).title}]]."
    summary = rng.choice(("new page", "first draft", "was missing"))
    goal = rng.choice(
        [
            f"Create a new wiki page with the title “{title}” in the category “{kind}”, with exactly this text: "
            f"“{text}” The summary is “{summary}”.",
            f"The wiki needs a page “{title}” (category: {kind}; summary: “{summary}”). Create it with the text "
            f"“{text}”",
        ]
    )
    moves = (
        Click("link", "New page"),
        Fill("Title", title),
        Select("Category", kind),
        Fill("Text", text),
        Fill("Summary", summary),
        Click("button", "Create page"),
    )
    if impossible:
        return infeasible_task(goal, START_URL, moves, "there is a page of this title already")
    content = Content(sections=(("Overview", text),), categories=(kind,))
    return change_task(goal, START_URL, moves, lambda site: site.create(title, content, summary))


def redirect(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: create a redirect to a page."""
    target = rng.choice(clean_pages(wiki)).title
    title = f"{rng.choice(('Port', 'Fort', 'Little', 'Royal', 'Old Town of'))} {target}"
    goal = rng.choice(
        [
            f"Create a redirect in the wiki: “{title}” should lead to “{target}”.",
            f"Readers look for “{title}”. Make that title lead to the page “{target}” (a redirect).",
        ]
    )
    fills = Fill("Title", title), Fill("Leads to", target)
    moves = Click("link", "New page"), Click("tab", "Redirect"), *fills, Click("button", "Create redirect")
    return change_task(goal, START_URL, moves, lambda site: site.create(title, Content(redirect=target), ""))


_IN_A_SENTENCE = {
    "Founded": "year of its foundation",
    "First climbed": "year of its first ascent",
    "Bridges": "number of bridges",
}


def comment(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: write a comment on the talk page, not on the page itself."""
    page = rng.choice(clean_pages(wiki))
    title = page.title
    name, _ = rng.choice(page.content.facts)
    heading = rng.choice(("Source?", f"About: {name}", "A question", "Please check"))
    item = _IN_A_SENTENCE.get(name, name.lower())
    text = rng.choice(
        (
            f"Which source gives the {item} of {title}?",
            f"I think the {item} should be checked again.",
            f"A newspaper of last month gives another {item}.",
        )
    )
    goal = rng.choice(
        [
            f"On the talk page of {title}, add a comment with the heading “{heading}” and the text “{text}”",
            f"Start a topic “{heading}” on the talk page of the wiki page {title}. The comment: “{text}”",
        ]
    )
    fills = Fill("Heading", heading), Fill("Comment", text), Click("button", "Add comment")
    moves = *open_page(title), Click("link", "Talk"), *fills
    return change_task(goal, START_URL, moves, lambda site: site.comment(title, heading, text))


def categories(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: move a page from one region's category to another's."""
    page = rng.choice([p for p in open_to_all(wiki) if any(c not in KINDS for c in p.content.categories)])
    old = next(name for name in page.content.categories if name not in KINDS)
    new = rng.choice([name for name in wiki.categories() if name not in KINDS and name != old])
    goal = rng.choice(
        [
            f"The page {page.title} is in the wrong category: take it out of “{old}” and put it into “{new}”.",
            f"Change the categories of {page.title} in the wiki: “{new}” instead of “{old}”, the others stay.",
        ]
    )

    def outcome(expected: Wiki) -> None:
        now = expected.page(page.title).content
        wanted = tuple(sorted({*now.categories, new} - {old}))
        expected.edit(page.title, Content(now.facts, now.sections, wanted, now.redirect), "")

    ticks = Click("checkbox", old), Click("checkbox", new), Click("button", "Save changes")
    return change_task(goal, START_URL, (*open_page(page.title), *from_menu("Edit categories"), *ticks), outcome)


def move(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: rename a page. If the new title is taken, the task is infeasible."""
    impossible = rng.random() < 0.2
    page = rng.choice(open_to_all(wiki))
    title = page.title
    free = f"{title} ({rng.choice(('March', 'north', 'south', 'inland', 'coast'))})"
    new = similar_title(wiki, page) if impossible else free
    goal = rng.choice(
        [
            f"Move the wiki page “{title}” to the new title “{new}”, without deleting or overwriting any page.",
            f"Rename the page “{title}” to “{new}” in the wiki. No other page may be changed.",
        ]
    )
    moves = *open_page(title), *from_menu("Move page"), Fill("New title", new), Click("button", "Move page")
    if impossible:
        return infeasible_task(goal, START_URL, moves, "the title is taken")
    return change_task(goal, START_URL, moves, lambda site: site.move(title, new))


build_with_summaries = partial(build, summaries_count=True)

TEMPLATES = (
    WebTaskTemplate("wiki/fact", build, fact, _LEVELS),
    WebTaskTemplate("wiki/extreme", build, extreme, _LEVELS),
    WebTaskTemplate("wiki/count", build, count, _LEVELS),
    WebTaskTemplate("wiki/first-editor", build, first_editor, _LEVELS),
    WebTaskTemplate("wiki/old-value", build, old_value, _LEVELS),
    WebTaskTemplate("wiki/links", build, linking, _LEVELS),
    WebTaskTemplate("wiki/edit-fact", build_with_summaries, edit_fact, _LEVELS),
    WebTaskTemplate("wiki/edit-section", build, edit_section, _LEVELS),
    WebTaskTemplate("wiki/revert", build, revert, _LEVELS),
    WebTaskTemplate("wiki/create", build_with_summaries, create, _LEVELS),
    WebTaskTemplate("wiki/redirect", build, redirect, _LEVELS),
    WebTaskTemplate("wiki/comment", build, comment, _LEVELS),
    WebTaskTemplate("wiki/categories", build, categories, _LEVELS),
    WebTaskTemplate("wiki/move", build, move, _LEVELS),
)
