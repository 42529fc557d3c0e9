"""The wiki's tasks: questions about pages and their versions, and edits, reverts and renames."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from rllm_gym.envs.web.sites.task import Answer, Click, Fill, Move, ReportInfeasible, Select, WebTask, WebTaskTemplate
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
DONE = Answer("done")
UNITS = {"Area": ["km²", "km2", "square kilometres"], "Length": ["km", "kilometres"], "Height": ["m", "metres"]}
MORE = {"Population": "inhabitants", "Founded": "", "Area": "km²", "Length": "km", "Bridges": "bridges", "Height": "m"}
Moves = tuple[Move, ...]


# Moves and selections that the tasks share


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


# Questions


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


# Changes


def edit_fact(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: change one or two facts of a page, with a summary. If the page is protected, it is infeasible."""
    impossible = rng.random() < 0.2
    protected = clean_pages(wiki, lambda page: page.protected and page.content.facts)
    page = rng.choice(protected if impossible and protected else open_to_all(wiki))
    impossible = page.protected
    names = rng.sample([name for name, _ in page.content.facts if name in NUMBERS], 1 if difficulty < 3 else 2)
    values = {}
    for name in names:
        old = page.content.fact(name)
        values[name] = with_number(old, number_in(old) + rng.randint(1, 40))
    summary = rng.choice(("new survey", "census results", "corrected after the archive", "figures of this year"))
    changes = listed([f"“{name}” to {value}" for name, value in values.items()])
    goal = rng.choice(
        [
            "On the wiki page {title}, change the fact {changes}. Give the summary “{summary}”.",
            "Update {title} in the wiki: set {changes}, in one edit with the summary “{summary}”.",
        ]
    ).format(title=page.title, changes=changes, summary=summary)

    def outcome(expected: Wiki) -> None:
        content = expected.page(page.title).content
        for name, value in values.items():
            content = content.with_fact(name, value)
        expected.edit(page.title, content, summary)

    def change(page: WikiPage) -> Moves:
        fills = [Fill(name, value) for name, value in values.items()]
        save = Fill("Summary", summary), Click("button", "Save changes")
        return *open_page(page.title), *from_menu("Edit facts"), *fills, *save, DONE

    kind = kind_of(page)
    other = next(p for p in open_to_all(wiki) if p is not page and kind_of(p) == kind)
    if impossible:
        return WebTask(
            goal=goal,
            start=START_URL,
            infeasible=True,
            moves=(*open_page(page.title), ReportInfeasible("the page is protected")),
            wrong_moves=change(other),
        )
    return WebTask(goal=goal, start=START_URL, outcome=outcome, moves=change(page), wrong_moves=change(other))


def edit_section(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: replace a word in a section, or append a sentence to it."""
    page = rng.choice(open_to_all(wiki))
    heading, text = rng.choice(page.content.sections)
    trade = next((word for word in TRADES if f" {word}" in text), None)
    if trade and text.count(trade) == 1:
        new = rng.choice([word for word in TRADES if word not in text])
        wanted, wrong = text.replace(trade, new), text.replace(f" {trade}", "")
        goal = rng.choice(
            [
                "In the section “{heading}” of {title}, replace the word “{old}” by “{new}”. Change nothing else.",
                "The wiki page {title} is wrong: in “{heading}” it should say “{new}” where it says “{old}”. "
                "Correct that.",
            ]
        ).format(heading=heading, title=page.title, old=trade, new=new)
    else:
        month = rng.choice(("May", "June", "September"))
        sentence = rng.choice(("A bus runs there every hour.", f"A fair is held in {month}.", "There is a museum."))
        wanted, wrong = f"{text} {sentence}", f"{sentence} {text}"
        goal = rng.choice(
            [
                "Add the sentence “{sentence}” at the end of the section “{heading}” of {title}, after a space.",
                "In the wiki page {title}, section “{heading}”: append a space and “{sentence}” to the text "
                "that is there.",
            ]
        ).format(heading=heading, title=page.title, sentence=sentence)

    def change(text: str) -> Moves:
        save = Click("button", "Save changes")
        return *open_page(page.title), Click("link", f"Edit section {heading}"), Fill("Text", text), save, DONE

    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=lambda site: site.edit_section(page.title, heading, wanted, ""),
        moves=change(wanted),
        wrong_moves=change(wrong),
    )


def revert(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: restore the version before a vandal's edits, which may be several edits ago."""
    spoilt = [page for _, page in sorted(wiki.pages.items()) if page.revisions[-1].author == wiki.vandal]
    most = max(sum(r.author == wiki.vandal for r in page.revisions) for page in spoilt)
    page = rng.choice([p for p in spoilt if sum(r.author == wiki.vandal for r in p.revisions) == most])
    honest = [revision for revision in page.revisions if revision.author != wiki.vandal]
    goal = rng.choice(
        [
            "The editor {vandal} spoilt the page {title}. Restore the last version from before the edits by {vandal}.",
            "Undo the vandalism of {vandal} on the wiki page {title}: it should say again exactly what it said before.",
        ]
    ).format(vandal=wiki.vandal, title=page.title)

    def restore(revision: Revision) -> Moves:
        return *open_version(page, revision), Click("button", "Restore this version"), DONE

    # The wrong moves restore the version before the correct one.
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=lambda site: _restore(site, honest[-1].number),
        moves=restore(honest[-1]),
        wrong_moves=restore(honest[-2]),
    )


def _restore(wiki: Wiki, number: int) -> None:
    wiki.restore(number)


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
            "Create a new wiki page with the title “{title}” in the category “{category}”, with exactly this text: "
            "“{text}” The summary is “{summary}”.",
            "The wiki needs a page “{title}” (category: {category}; summary: “{summary}”). Create it with the text "
            "“{text}”",
        ]
    ).format(title=title, category=kind, text=text, summary=summary)

    def write(title: str) -> Moves:
        return (
            Click("link", "New page"),
            Fill("Title", title),
            Select("Category", kind),
            Fill("Text", text),
            Fill("Summary", summary),
            Click("button", "Create page"),
        )

    if impossible:
        return WebTask(
            goal=goal,
            start=START_URL,
            infeasible=True,
            moves=(*write(title), ReportInfeasible("there is a page of this title already")),
            wrong_moves=(*write(free), DONE),
        )
    content = Content(sections=(("Overview", text),), categories=(kind,))
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=lambda site: site.create(title, content, summary),
        moves=(*write(title), DONE),
        wrong_moves=(*write(f"{title} II"), DONE),
    )


def redirect(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: create a redirect to a page."""
    page = rng.choice(clean_pages(wiki))
    other = look_alike(wiki, page)
    title = f"{rng.choice(('Port', 'Fort', 'Little', 'Royal', 'Old Town of'))} {page.title}"
    goal = rng.choice(
        [
            "Create a redirect in the wiki: “{title}” should lead to “{target}”.",
            "Readers look for “{title}”. Make that title lead to the page “{target}” (a redirect).",
        ]
    ).format(title=title, target=page.title)

    def lead(target: str) -> Moves:
        return (
            Click("link", "New page"),
            Click("tab", "Redirect"),
            Fill("Title", title),
            Fill("Leads to", target),
            Click("button", "Create redirect"),
            DONE,
        )

    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=lambda site: site.create(title, Content(redirect=page.title), ""),
        moves=lead(page.title),
        wrong_moves=lead(other.title),
    )


_IN_A_SENTENCE = {
    "Founded": "year of its foundation",
    "First climbed": "year of its first ascent",
    "Bridges": "number of bridges",
}


def comment(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: write a comment on the talk page, not on the page itself."""
    page = rng.choice(clean_pages(wiki))
    other = look_alike(wiki, page)
    name, _ = rng.choice(page.content.facts)
    heading = rng.choice(("Source?", f"About: {name}", "A question", "Please check"))
    comment_text = _IN_A_SENTENCE.get(name, name.lower())
    text = rng.choice(
        (
            f"Which source gives the {comment_text} of {page.title}?",
            f"I think the {comment_text} should be checked again.",
            f"A newspaper of last month gives another {comment_text}.",
        )
    )
    goal = rng.choice(
        [
            "On the talk page of {title}, add a comment with the heading “{heading}” and the text “{text}”",
            "Start a topic “{heading}” on the talk page of the wiki page {title}. The comment: “{text}”",
        ]
    ).format(title=page.title, heading=heading, text=text)

    def write(title: str) -> Moves:
        fills = Fill("Heading", heading), Fill("Comment", text), Click("button", "Add comment")
        return *open_page(title), Click("link", "Talk"), *fills, DONE

    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=lambda site: site.comment(page.title, heading, text),
        moves=write(page.title),
        wrong_moves=write(other.title),
    )


def categories(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: move a page from one region's category to another's."""
    page = rng.choice([p for p in open_to_all(wiki) if any(c not in KINDS for c in p.content.categories)])
    old = next(name for name in page.content.categories if name not in KINDS)
    regions = [name for name in wiki.categories() if name not in KINDS and name != old]
    new = rng.choice(regions)
    wanted = {*page.content.categories, new} - {old}
    goal = rng.choice(
        [
            "The page {title} is in the wrong category: take it out of “{old}” and put it into “{new}”.",
            "Change the categories of {title} in the wiki: “{new}” instead of “{old}”, the others stay.",
        ]
    ).format(title=page.title, old=old, new=new)

    def outcome(expected: Wiki) -> None:
        now = expected.page(page.title).content
        content = Content(now.facts, now.sections, tuple(sorted(wanted)), now.redirect)
        expected.edit(page.title, content, "")

    edit = (*open_page(page.title), *from_menu("Edit categories"))
    save = Click("button", "Save changes")
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=outcome,
        moves=(*edit, Click("checkbox", old), Click("checkbox", new), save, DONE),
        wrong_moves=(*edit, Click("checkbox", new), save, DONE),
    )


def move(wiki: Wiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: rename a page. If the new title is taken, the task is infeasible."""
    impossible = rng.random() < 0.2
    page = rng.choice(open_to_all(wiki))
    other = look_alike(wiki, page)
    free = f"{page.title} ({rng.choice(('March', 'north', 'south', 'inland', 'coast'))})"
    new = other.title if impossible else free
    goal = rng.choice(
        [
            "Move the wiki page “{title}” to the new title “{new}”, without deleting or overwriting any page.",
            "Rename the page “{title}” to “{new}” in the wiki. No other page may be changed.",
        ]
    ).format(title=page.title, new=new)

    def shift(new: str) -> Moves:
        rename = Fill("New title", new), Click("button", "Move page")
        return *open_page(page.title), *from_menu("Move page"), *rename

    if impossible:
        return WebTask(
            goal=goal,
            start=START_URL,
            infeasible=True,
            moves=(*shift(new), ReportInfeasible("the title is taken")),
            wrong_moves=(*shift(free), DONE),
        )
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=lambda site: site.move(page.title, new),
        moves=(*shift(new), DONE),
        wrong_moves=(*shift(f"{new} 2"), DONE),
    )


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
