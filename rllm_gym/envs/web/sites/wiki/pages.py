"""The pages of the wiki: search and lists, pages, versions, editing, talk pages and the watch list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from rllm_gym.envs.web.sites import pages
from rllm_gym.envs.web.sites.errors import FormError, NotFound
from rllm_gym.envs.web.sites.http import Response
from rllm_gym.envs.web.sites.markup import Content as Html
from rllm_gym.envs.web.sites.markup import Markup, h, join, url
from rllm_gym.envs.web.sites.pages import Frame, HtmlPage, form
from rllm_gym.envs.web.sites.pictures import image, landscape
from rllm_gym.envs.web.sites.site import Redirect, Site, SiteApp, Visit, one_line, whole_number
from rllm_gym.envs.web.sites.wiki.state import KINDS, NUMBERS, Content, Wiki, WikiPage, number_in
from rllm_gym.envs.web.sites.wording import plural, short_date

ORIGIN = "http://wiki.test"
_LOOK = pages.read_style(__file__)
TITLES_PER_PAGE = 20
ROWS_PER_PAGE = 12
VERSIONS_PER_PAGE = 8


def _frame(wiki: Wiki) -> Frame:
    navigation = [("Main page", "/"), ("Recent changes", "/recent"), ("Watch list", "/watched"), ("New page", "/new")]
    return Frame(
        "Marchland Wiki", "#1d4f91", navigation, wiki.now.date(), wiki.user, ("Search the wiki", "/search"), style=_LOOK
    )


site: Site[Wiki] = Site(ORIGIN, _frame)


@dataclass
class WikiApp(SiteApp, Wiki):
    """The wiki with its pages."""

    routes = site


# Search and lists


@site.get("/")
def main_page(wiki: Wiki, visit: Visit) -> HtmlPage:
    kinds = [
        pages.card(
            h("h2", kind),
            h("p", plural(len(wiki.of_kind(kind)), "page")),
            h("p.buttons", h("a", f"Table of {kind.lower()}", href=url(f"/table/{kind.lower()}"))),
        )
        for kind in KINDS
    ]
    others = [name for name in wiki.categories() if name not in KINDS]
    return HtmlPage(
        "Main page",
        [
            h("p", "An encyclopedia of the March country that everybody can improve."),
            h("div.grid", kinds),
            pages.card(h("h2", "Categories"), h("ul", [h("li", _category(name)) for name in [*KINDS, *others]])),
        ],
    )


@site.get("/search")
def search(wiki: Wiki, visit: Visit) -> HtmlPage:
    asked = visit.asked("q", 80)
    words = asked.lower().split()
    found = [title for title in sorted(wiki.pages) if all(word in title.lower() for word in words)]
    # Exact matches and titles that begin with the query come first.
    found.sort(key=lambda title: (title.lower() != asked.lower(), not title.lower().startswith(asked.lower())))
    body = [h("p.muted", plural(len(found), "page")), _titles(found, visit.page(), "/search", q=asked)]
    return HtmlPage(f"Pages with “{asked}” in the title" if asked else "All pages", body, query=asked)


@site.get("/category/<name>")
def category(wiki: Wiki, visit: Visit, name: str) -> HtmlPage:
    found = [page.title for page in wiki.of_kind(name)]
    if not found:
        raise NotFound(f"There is no page in the category {one_line(name)}.")
    body = [h("p.muted", plural(len(found), "page")), _titles(found, visit.page(), f"/category/{name}")]
    return HtmlPage(f"Category: {name}", body, trail=[("Main page", "/")])


def _titles(titles: Sequence[str], page: int, path: str, **query: object) -> Markup:
    part = pages.paginate(titles, page, TITLES_PER_PAGE)
    listed = h("ul", [h("li", _link(title)) for title in part.items]) if part.items else h("p", "Nothing found.")
    return join(pages.card(listed), pages.page_links(part, path, **query))


@site.get("/table/<name>")
def table(wiki: Wiki, visit: Visit, name: str) -> HtmlPage:
    kind = name.capitalize()
    if kind not in KINDS:
        raise NotFound(f"There is no table of {one_line(name)}.")
    columns = KINDS[kind]
    sort = visit.asked("sort")
    rows = [page for page in wiki.of_kind(kind) if set(columns) <= {name for name, _ in page.content.facts}]
    column = sort.removeprefix("-")
    if column in columns:
        rows.sort(key=lambda page: _sort_key(page.content.fact(column)), reverse=sort.startswith("-"))
    elif sort == "-Name":
        rows.reverse()
    part = pages.paginate(rows, visit.page(), ROWS_PER_PAGE)
    path = f"/table/{name}"
    heads = [pages.sort_heading(head, head, sort or "Name", path) for head in ("Name", *columns)]
    numeric = [i for i, head in enumerate(columns, 1) if head in NUMBERS]
    cells: list[list[Html]] = [
        [_link(page.title), *(page.content.fact(column) for column in columns)] for page in part.items
    ]
    body = [pages.table(heads, cells, numeric=numeric), pages.page_links(part, path, sort=sort)]
    return HtmlPage(f"Table of {kind.lower()}", body, trail=[("Main page", "/")])


def _sort_key(value: str) -> tuple[int, str]:
    return (number_in(value), "") if value[:1].isdigit() else (-1, value)


@site.get("/recent")
def recent(wiki: Wiki, visit: Visit) -> HtmlPage:
    part = pages.paginate(wiki.changes(), visit.page(), 20)
    rows = [
        (_when(revision.when), _link(page.title), _editor(revision.author), revision.summary)
        for page, revision in part.items
    ]
    body = [pages.table(["When", "Page", "Editor", "Summary"], rows), pages.page_links(part, "/recent")]
    return HtmlPage("Recent changes", body)


@site.get("/user/<name>")
def editor(wiki: Wiki, visit: Visit, name: str) -> HtmlPage:
    if name not in wiki.editors:
        raise NotFound(f"There is no editor called {one_line(name)}.")
    changes = [(page, revision) for page, revision in wiki.changes() if revision.author == name]
    part = pages.paginate(changes, visit.page(), 20)
    rows = [(_when(revision.when), _link(page.title), revision.summary) for page, revision in part.items]
    body = [
        h("p", f"{plural(len(changes), 'change')} so far."),
        pages.table(["When", "Page", "Summary"], rows),
        pages.page_links(part, f"/user/{name}"),
    ]
    return HtmlPage(f"Editor: {name}", body)


@site.get("/watched")
def watched(wiki: Wiki, visit: Visit) -> HtmlPage:
    if not wiki.watched:
        return HtmlPage("Watch list", h("p", "You watch no pages."))
    rows = [
        (
            _link(title),
            _when(wiki.page(title).revisions[-1].when),
            _editor(wiki.page(title).revisions[-1].author),
            pages.post_button("Stop watching", "/watch", fields={"title": title, "on": ""}),
        )
        for title in sorted(wiki.watched)
    ]
    return HtmlPage("Watch list", pages.table(["Page", "Last change", "Editor", ""], rows))


# A page


@site.get("/page/<path:title>")
def article(wiki: Wiki, visit: Visit, title: str) -> HtmlPage | Redirect:
    page = wiki.page(title)
    target = page.content.redirect
    if target and not visit.asked("stay") and target in wiki.pages and not wiki.pages[target].content.redirect:
        return Redirect(url(f"/page/{target}"), f"“{title}” leads here.")
    last = page.revisions[-1]
    body = [
        _tools(page, "Page"),
        page.protected and h("p", pages.badge("Protected", "warn"), " Only administrators can change this page."),
        h("p", "This page leads to ", _link(target), ".") if target else _shown(page.title, page.content, edit=True),
        h("p.muted.small", f"Last change: {_when(last.when)} by ", _editor(last.author), "."),
    ]
    return HtmlPage(page.title, body, actions=_actions(wiki, page))


def _tools(page: WikiPage, current: str) -> Markup:
    ways = {
        "Page": url(f"/page/{page.title}"),
        "Talk": url(f"/talk/{page.title}"),
        "History": url(f"/history/{page.title}"),
        "What links here": url(f"/links/{page.title}"),
    }
    links = [h("a", name, href=path, aria_current="page" if name == current else None) for name, path in ways.items()]
    return h("nav.pages", links, aria_label="About this page")


def _actions(wiki: Wiki, page: WikiPage) -> list[Html]:
    watching = page.title in wiki.watched
    watch = pages.post_button(
        "Stop watching" if watching else "Watch",
        "/watch",
        fields={"title": page.title, "on": "" if watching else 1},
    )
    edit = pages.menu(
        "Edit",
        *([h("a", "Edit facts", href=url(f"/edit-facts/{page.title}"))] if page.content.facts else []),
        h("a", "Edit categories", href=url(f"/edit-categories/{page.title}")),
        h("a", "Move page", href=url(f"/move/{page.title}")),
    )
    return [watch, edit]


def _shown(title: str, content: Content, *, edit: bool) -> Markup:
    kind = next((name.lower() for name in content.categories if name in KINDS), None)
    figure = kind and image(url(f"/pictures/{kind}/{title}.svg"), "picture", 250)
    box = content.facts and h("div.card.box", h("h2", "Facts"), figure or None, pages.described(content.facts))
    sections = [
        h(
            "section.card",
            h(
                "div.split",
                h("h2", heading),
                edit
                and h(
                    "a.small",
                    "Edit section",
                    href=url(f"/edit-section/{title}", section=number),
                    aria_label=f"Edit section {heading}",
                ),
            ),
            [h("p", _linked(block)) for block in text.split("\n\n")],
        )
        for number, (heading, text) in enumerate(content.sections)
    ]
    names = content.categories and h("p", "Categories: ", _between([_category(name) for name in content.categories]))
    return join(h("div.article", h("div", sections), box or None), names or None)


@site.get("/pictures/<kind>/<path:title>.svg")
def picture(wiki: Wiki, visit: Visit, kind: str, title: str) -> Response:
    return landscape(kind, title)


def _linked(text: str) -> list[Html]:
    """Return the text with each ``[[Title]]`` as a link."""
    return [_link(part) if i % 2 else part for i, part in enumerate(re.split(r"\[\[([^\[\]\n]{1,120})\]\]", text))]


def _between(items: list[Markup]) -> list[Html]:
    return [[", " if i else None, item] for i, item in enumerate(items)]


@site.get("/links/<path:title>")
def links(wiki: Wiki, visit: Visit, title: str) -> HtmlPage:
    page = wiki.page(title)
    found = wiki.links_to(page.title)
    shown = h("ul", [h("li", _link(other, stay=True)) for other in found]) if found else h("p", "No page links here.")
    return HtmlPage(f"What links to {page.title}", [_tools(page, "What links here"), pages.card(shown)])


@site.post("/watch")
def watch(wiki: Wiki, visit: Visit) -> Redirect:
    title, on = visit.line("title", "The title"), bool(visit.form.get("on"))
    wiki.watch(title, on)
    return Redirect(url(f"/page/{title}", stay=1), f"You watch {title}." if on else f"You no longer watch {title}.")


# History


@site.get("/history/<path:title>")
def history(wiki: Wiki, visit: Visit, title: str) -> HtmlPage:
    page = wiki.page(title)
    part = pages.paginate(page.revisions[::-1], visit.page(), VERSIONS_PER_PAGE)
    rows: list[list[Html]] = [
        [
            h("a", f"Version {revision.number}", href=f"/version/{revision.number}"),
            _when(revision.when),
            _editor(revision.author),
            revision.summary,
            pages.badge("current", "good") if revision is page.revisions[-1] else None,
        ]
        for revision in part.items
    ]
    body = [
        _tools(page, "History"),
        h("p.muted", plural(len(page.revisions), "version")),
        pages.table(["Version", "When", "Editor", "Summary", ""], rows),
        pages.page_links(part, f"/history/{title}"),
    ]
    return HtmlPage(f"History of {page.title}", body)


@site.get("/version/<int:number>")
def version(wiki: Wiki, visit: Visit, number: int) -> HtmlPage:
    page, revision = wiki.revision(number)
    newest = revision is page.revisions[-1]
    restore = (
        None
        if newest
        else pages.post_button(
            "Restore this version", f"/version/{number}/restore", confirm=f"Make version {number} the current one?"
        )
    )
    note = h("p.muted", f"Version {number} of {_when(revision.when)} by ", _editor(revision.author), ".")
    facts = _shown(page.title, revision.content, edit=False)
    trail = [(page.title, url(f"/page/{page.title}")), ("History", url(f"/history/{page.title}"))]
    return HtmlPage(f"{page.title}, version {number}", [note, facts], trail=trail, actions=restore)


@site.post("/version/<int:number>/restore")
def restore(wiki: Wiki, visit: Visit, number: int) -> Redirect:
    page = wiki.restore(number)
    return Redirect(url(f"/page/{page.title}", stay=1), f"Version {number} is the current one again.")


# Editing


@site.get("/edit-facts/<path:title>")
def edit_facts(wiki: Wiki, visit: Visit, title: str) -> HtmlPage:
    page = _editable(wiki, title)
    fields = [pages.field(name, f"fact-{i}", value) for i, (name, value) in enumerate(page.content.facts)]
    return _edit_page(page, f"Edit facts of {title}", "/edit-facts", fields)


@site.post("/edit-facts/<path:title>")
def save_facts(wiki: Wiki, visit: Visit, title: str) -> Redirect:
    page = wiki.page(title)
    facts = tuple((name, visit.line(f"fact-{i}", name)) for i, (name, _) in enumerate(page.content.facts))
    return _save(wiki, visit, page, replace(page.content, facts=facts))


@site.get("/edit-section/<path:title>")
def edit_section(wiki: Wiki, visit: Visit, title: str) -> HtmlPage:
    page = _editable(wiki, title)
    number = _section(page, visit.asked("section"))
    heading, text = page.content.sections[number]
    fields = [pages.hidden("section", number), pages.text_area("Text", "text", text, hint="[[Title]] makes a link.")]
    return _edit_page(page, f"Edit section {heading} of {title}", "/edit-section", fields)


@site.post("/edit-section/<path:title>")
def save_section(wiki: Wiki, visit: Visit, title: str) -> Redirect:
    page = wiki.page(title)
    heading, _ = page.content.sections[_section(page, visit.form.get("section", ""))]
    return _save(wiki, visit, page, page.content.with_section(heading, visit.text("text", "The text")))


@site.get("/edit-categories/<path:title>")
def edit_categories(wiki: Wiki, visit: Visit, title: str) -> HtmlPage:
    page = _editable(wiki, title)
    boxes = [
        pages.checkbox(name, "category", value=name, checked=name in page.content.categories)
        for name in wiki.categories()
    ]
    fields = h("fieldset", h("legend", "Categories"), boxes)
    return _edit_page(page, f"Edit categories of {title}", "/edit-categories", fields)


@site.post("/edit-categories/<path:title>")
def save_categories(wiki: Wiki, visit: Visit, title: str) -> Redirect:
    page = wiki.page(title)
    chosen = set(visit.values("category"))
    known = [name for name in wiki.categories() if name in chosen]
    if not known:
        raise FormError("A page is in one category at least.")
    # The original order, so that ticking and unticking changes nothing.
    kept = [name for name in page.content.categories if name in chosen]
    categories = (*kept, *(name for name in known if name not in kept))
    return _save(wiki, visit, page, replace(page.content, categories=categories))


@site.get("/move/<path:title>")
def move_form(wiki: Wiki, visit: Visit, title: str) -> HtmlPage:
    page = _editable(wiki, title)
    fields = form(
        url(f"/move/{title}"),
        pages.field("New title", "new", title, hint="The old title will lead to the page."),
        pages.button("Move page"),
    )
    return HtmlPage(f"Move {title}", pages.card(fields), trail=[(page.title, url(f"/page/{page.title}"))])


@site.post("/move/<path:title>")
def move(wiki: Wiki, visit: Visit, title: str) -> Redirect:
    new = visit.line("new", "The new title", limit=80)
    wiki.move(title, new)
    return Redirect(url(f"/page/{new}"), f"{title} is now called {new}.")


@site.get("/new")
def new_page(wiki: Wiki, visit: Visit) -> HtmlPage:
    names = wiki.categories()
    text = form(
        "/new",
        pages.field("Title", "title"),
        pages.choice("Category", "category", names, names[0]),
        pages.text_area("Text", "text", hint="[[Title]] makes a link."),
        pages.field("Summary", "summary"),
        pages.button("Create page"),
    )
    lead = form(
        "/new-redirect",
        pages.field("Title", "title", key="redirect"),
        pages.field("Leads to", "target"),
        pages.button("Create redirect"),
    )
    return HtmlPage("New page", pages.tabs(("Page with text", pages.card(text)), ("Redirect", pages.card(lead))))


@site.post("/new")
def create(wiki: Wiki, visit: Visit) -> Redirect:
    title = visit.line("title", "The title", limit=80)
    name = visit.line("category", "The category")
    if name not in wiki.categories():
        raise FormError("Choose a category.")
    text = visit.text("text", "The text")
    content = Content(sections=(("Overview", text),), categories=(name,))
    wiki.create(title, content, visit.line("summary", "The summary", required=False))
    return Redirect(url(f"/page/{title}"), f"The page {title} is created.")


@site.post("/new-redirect")
def create_redirect(wiki: Wiki, visit: Visit) -> Redirect:
    title, target = visit.line("title", "The title", limit=80), visit.line("target", "The target", limit=80)
    wiki.create(title, Content(redirect=target), "")
    return Redirect(url(f"/page/{title}", stay=1), f"{title} now leads to {target}.")


def _editable(wiki: Wiki, title: str) -> WikiPage:
    page = wiki.page(title)
    if page.protected:
        raise FormError(f"The page {page.title} is protected: only administrators can change it.")
    return page


def _section(page: WikiPage, asked: str) -> int:
    number = whole_number(asked)
    if number is None or not 0 <= number < len(page.content.sections):
        raise NotFound(f"The page {page.title} has no such section.")
    return number


def _edit_page(page: WikiPage, heading: str, path: str, fields: Html) -> HtmlPage:
    body = form(url(f"{path}/{page.title}"), fields, pages.field("Summary", "summary"), pages.button("Save changes"))
    return HtmlPage(heading, pages.card(body), trail=[(page.title, url(f"/page/{page.title}"))])


def _save(wiki: Wiki, visit: Visit, page: WikiPage, content: Content) -> Redirect:
    wiki.edit(page.title, content, visit.line("summary", "The summary", required=False))
    return Redirect(url(f"/page/{page.title}", stay=1), "Your changes are saved.")


# Talk


@site.get("/talk/<path:title>")
def talk(wiki: Wiki, visit: Visit, title: str) -> HtmlPage:
    page = wiki.page(title)
    comments = [
        pages.card(h("h2", heading), pages.paragraphs(text), h("p.muted", "by ", _editor(author)))
        for author, heading, text in page.talk
    ]
    write = form(
        url(f"/talk/{title}"),
        h("h2", "Add a comment"),
        pages.field("Heading", "heading"),
        pages.text_area("Comment", "text", rows=4),
        pages.button("Add comment"),
    )
    body = [_tools(page, "Talk"), comments or h("p", "Nobody has written here yet."), pages.card(write)]
    return HtmlPage(f"Talk: {page.title}", body)


@site.post("/talk/<path:title>")
def add_comment(wiki: Wiki, visit: Visit, title: str) -> Redirect:
    wiki.comment(title, visit.line("heading", "The heading", limit=120), visit.text("text", "The comment"))
    return Redirect(url(f"/talk/{title}"), "Your comment is added.")


def _link(title: str, *, stay: bool = False) -> Markup:
    return h("a", title, href=url(f"/page/{title}", stay=1 if stay else None))


def _category(name: str) -> Markup:
    return h("a", name, href=url(f"/category/{name}"))


def _editor(name: str) -> Markup:
    return h("a", name, href=url(f"/user/{name}"))


def _when(moment: datetime) -> str:
    return f"{short_date(moment.date())}, {moment:%H:%M}"
