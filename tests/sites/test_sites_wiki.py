"""The wiki: old versions, redirects and links work."""

from __future__ import annotations

import pytest

from rllm_gym.envs.web.sites.errors import FormError
from rllm_gym.envs.web.sites.moves import Click
from rllm_gym.envs.web.sites.wiki import build
from rllm_gym.envs.web.sites.wiki.state import Content
from tests.sites.html_walker import SiteDriver


def test_protected_pages_and_taken_titles_are_refused() -> None:
    wiki = build(1, 2)
    page = next(p for p in wiki.pages.values() if p.protected and p.content.facts)
    other = next(p for p in wiki.pages.values() if not p.protected and p.content.facts)
    name = page.content.facts[0][0]
    before = wiki.facts()
    for refused in (
        lambda: wiki.edit_fact(page.title, name, "1", ""),
        lambda: wiki.move(page.title, "Elsewhere"),
        lambda: wiki.restore(page.revisions[0].number),
        lambda: wiki.move(other.title, page.title.upper()),
        lambda: wiki.create("A/B", Content(), ""),
        lambda: wiki.create("Fine", Content(redirect="Nowhere"), ""),
        lambda: wiki.edit(other.title, other.content, "nothing changed"),
    ):
        with pytest.raises(FormError):
            refused()
    assert wiki.facts() == before


def test_a_moved_page_keeps_its_versions_and_the_old_title_leads_to_it() -> None:
    wiki = build(1, 1)
    page = next(p for p in wiki.pages.values() if not p.protected and p.content.facts)
    old, versions = page.title, list(page.revisions)
    wiki.move(old, "A new name: 50% of it?")
    driver = SiteDriver(wiki, f"http://wiki.test/page/{old.replace(' ', '%20')}")
    assert "A new name: 50% of it?" in [node.text for node in driver.page.walk() if node.tag == "h1"]
    driver.do(Click("link", "History"))
    assert sum(node.text.startswith("Version ") for node in driver.page.walk() if node.tag == "a") == min(
        8, len(versions)
    )


def test_circular_redirects_end() -> None:
    wiki = build(1, 1)
    wiki.create("First", Content(redirect=sorted(wiki.pages)[0]), "")
    wiki.create("Second", Content(redirect="First"), "")
    wiki.edit("First", Content(redirect="Second"), "")
    for title in ("First", "Second"):
        assert f"<h1>{title}</h1>" in str(SiteDriver(wiki, f"http://wiki.test/page/{title}").responses[-1][1].body)


def test_restoring_by_hand_equals_restoring_a_version() -> None:
    """If summaries do not count, an edit by hand equals a restored version; if they do, it does not."""
    for counts in (False, True):
        wiki, copy = build(4, 1, summaries_count=counts), build(4, 1, summaries_count=counts)
        page = next(p for p in wiki.pages.values() if p.revisions[-1].author == wiki.vandal)
        good = next(r for r in reversed(page.revisions) if r.author != wiki.vandal)
        copy.restore(good.number)
        wiki.edit(page.title, good.content, "by hand")
        assert (wiki.facts() == copy.facts()) is not counts


def test_only_links_of_a_text_become_markup() -> None:
    wiki = build(2, 1)
    page = next(p for p in wiki.pages.values() if not p.protected and p.content.sections)
    heading = page.content.sections[0][0]
    wiki.edit_section(page.title, heading, "[[<i>x</i>]] [[a]] <img src=x onerror=alert(1)> [[b", "")
    body = SiteDriver(wiki, f"http://wiki.test/page/{page.title.replace(' ', '%20')}").responses[-1][1].body.decode()
    assert "<img src=x" not in body
    assert "<i>" not in body
    assert 'href="/page/a"' in body


def test_no_two_pages_tie_for_the_answer_of_a_task() -> None:
    for seed in range(5):
        wiki = build(seed, 3)
        for kind, name in (("Towns", "Population"), ("Rivers", "Length"), ("Mountains", "Height")):
            values = [page.content.fact(name) for page in wiki.of_kind(kind)]
            assert len(values) == len(set(values)) > 10
