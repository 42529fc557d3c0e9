"""The wiki's task generators that require changes. See ``reading`` for questions."""

from __future__ import annotations

from random import Random

from rllm_gym.envs.web.sites.task import Click, Fill, ReportInfeasible, Select, WebTask
from rllm_gym.envs.web.sites.wiki.content import KINDS, NUMBERS, TRADES, Content, number_in, with_number
from rllm_gym.envs.web.sites.wiki.navigation import (
    DONE,
    START_URL,
    Moves,
    clean_pages,
    from_menu,
    look_alike,
    open_page,
    open_to_all,
    open_version,
)
from rllm_gym.envs.web.sites.wiki.state import Revision, Wiki, WikiPage, kind_of
from rllm_gym.envs.web.sites.wording import listed


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
