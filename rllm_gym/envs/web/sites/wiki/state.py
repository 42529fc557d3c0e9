"""The state of the wiki: pages with all their versions, talk pages, and the visitor's watch list.

Facts: the current content of every page (facts, sections, categories, redirect target), the comments on its talk page,
the watch list and, if the tasks specify one, the summary of the visitor's last change to each page.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from rllm_gym.envs.web.sites.errors import FormError, NotFound

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


@dataclass(frozen=True, slots=True)
class Revision:
    """One version of a page."""

    number: int
    author: str
    when: datetime
    summary: str
    content: Content


@dataclass(slots=True)
class WikiPage:
    """A page with its versions and talk page. If ``protected``, only administrators, not the visitor, can change it."""

    title: str
    revisions: list[Revision]
    protected: bool = False
    talk: list[tuple[str, str, str]] = field(default_factory=list)
    """(author, heading, text) of the comments, oldest first."""

    @property
    def content(self) -> Content:
        return self.revisions[-1].content


@dataclass
class Wiki:
    """The wiki with one visitor who may edit. ``vandal`` is the editor whose edits are nonsense."""

    now: datetime
    user: str
    editors: list[str]
    vandal: str
    pages: dict[str, WikiPage]
    next_revision: int
    summaries_count: bool
    watched: list[str] = field(default_factory=list)

    def facts(self) -> Any:
        pages = {
            title: [page.content.to_json(), page.protected, [list(comment) for comment in page.talk]]
            for title, page in sorted(self.pages.items())
        }
        summaries = {}
        if self.summaries_count:
            for title, page in sorted(self.pages.items()):
                own = [revision.summary for revision in page.revisions if revision.author == self.user]
                if own:
                    summaries[title] = own[-1]
        return {"pages": pages, "summaries": summaries, "watched": sorted(self.watched)}

    # Queries

    def page(self, title: str) -> WikiPage:
        if title not in self.pages:
            raise NotFound(f"There is no page called {title}.")
        return self.pages[title]

    def revision(self, number: int) -> tuple[WikiPage, Revision]:
        for page in self.pages.values():
            for revision in page.revisions:
                if revision.number == number:
                    return page, revision
        raise NotFound(f"There is no version {number}.")

    def of_kind(self, kind: str) -> list[WikiPage]:
        """Return the pages of a kind, sorted by title."""
        return [page for _, page in sorted(self.pages.items()) if kind in page.content.categories]

    def categories(self) -> list[str]:
        return sorted({name for page in self.pages.values() for name in page.content.categories})

    def links_to(self, title: str) -> list[str]:
        """Return the titles of the pages whose text links to this page, and of the redirects to it."""
        mark = f"[[{title}]]"
        return [
            other
            for other, page in sorted(self.pages.items())
            if page.content.redirect == title or any(mark in text for _, text in page.content.sections)
        ]

    def changes(self) -> list[tuple[WikiPage, Revision]]:
        """Return all versions of all pages, newest first."""
        found = [(page, revision) for page in self.pages.values() for revision in page.revisions]
        return sorted(found, key=lambda pair: pair[1].when, reverse=True)

    # Changes

    def edit(self, title: str, content: Content, summary: str) -> None:
        page = self.page(title)
        if page.protected:
            raise FormError(f"The page {title} is protected: only administrators can change it.")
        if page.content == content:
            raise FormError("Nothing was changed.")
        page.revisions.append(self._new_revision(content, summary))

    def edit_fact(self, title: str, name: str, value: str, summary: str) -> None:
        self.edit(title, self.page(title).content.with_fact(name, value), summary)

    def edit_section(self, title: str, heading: str, text: str, summary: str) -> None:
        self.edit(title, self.page(title).content.with_section(heading, text), summary)

    def restore(self, number: int) -> WikiPage:
        """Make an old version the newest one."""
        page, revision = self.revision(number)
        self.edit(page.title, revision.content, f"Restored version {number}")
        return page

    def create(self, title: str, content: Content, summary: str) -> None:
        if any(title.lower() == other.lower() for other in self.pages):
            raise FormError(f"There is a page called {title} already.")
        if any(c in title for c in "[]|#<>{}/\\") or title.startswith("."):
            raise FormError("A title must not hold any of [ ] | # < > { } / \\, and does not begin with a dot.")
        if content.redirect and content.redirect not in self.pages:
            raise FormError(f"There is no page called {content.redirect}.")
        self.pages[title] = WikiPage(title, [self._new_revision(content, summary)])

    def move(self, title: str, new_title: str) -> None:
        """Rename a page with all its versions, and make the old title a redirect to it."""
        page = self.page(title)
        if page.protected:
            raise FormError(f"The page {title} is protected: only administrators can move it.")
        self.create(new_title, Content(), "Moved")  # rejects invalid titles
        page.title = new_title
        self.pages[new_title] = page
        self.pages[title] = WikiPage(title, [self._new_revision(Content(redirect=new_title), "Moved")])
        self.watched = [new_title if watched == title else watched for watched in self.watched]

    def comment(self, title: str, heading: str, text: str) -> None:
        self.page(title).talk.append((self.user, heading, text))

    def watch(self, title: str, on: bool) -> None:
        self.page(title)
        if on and title not in self.watched:
            self.watched.append(title)
        elif not on and title in self.watched:
            self.watched.remove(title)

    def _new_revision(self, content: Content, summary: str) -> Revision:
        self.now += timedelta(minutes=1)
        self.next_revision += 1
        return Revision(self.next_revision, self.user, self.now, summary, content)


def kind_of(page: WikiPage) -> str | None:
    """Return ``"Towns"``, ``"Rivers"``, ``"Mountains"``, or ``None`` for a page of another kind."""
    return next((kind for kind in KINDS if kind in page.content.categories), None)
