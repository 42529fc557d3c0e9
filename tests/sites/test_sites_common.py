"""What all built-in sites share: markup, routes, forms, limits; and no request can break a site."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from random import Random
from urllib.parse import quote_from_bytes, urlencode

import pytest

from rllm_gym.envs.web import sites
from rllm_gym.envs.web.sites import SITES, TEMPLATES
from rllm_gym.envs.web.sites.errors import FormError, NotFound
from rllm_gym.envs.web.sites.http import Request, Response
from rllm_gym.envs.web.sites.markup import h, url
from rllm_gym.envs.web.sites.pages import Frame, HtmlPage, paginate, render, sort_heading, suggest_field, text_area
from rllm_gym.envs.web.sites.site import MAX_POSTS, Redirect, Site, Visit
from tests.sites.html_walker import SiteDriver, parse
from tests.sites.task_checks import MANY_SEEDS, check_tasks

FIRST_OF_SITE = {name.partition("/")[0]: name for name in reversed(TEMPLATES)}


# Markup


def test_text_of_a_site_never_becomes_markup() -> None:
    element = h("p.a.b", "<script>", ["&", None, False, 0], title='"><img src=x>', hidden=True, data_x=None)
    assert element == '<p class="a b" title="&quot;&gt;&lt;img src=x&gt;" hidden>&lt;script&gt;&amp;0</p>'


def test_no_style_sheet_changes_what_elements_are_called() -> None:
    """Accessibility trees, by which other agents find elements, have transformed and generated texts."""
    sheets = [*Path(sites.__file__).parent.rglob("*.css")]
    assert len(sheets) == 8
    for sheet in sheets:
        rules = re.sub(r"/\*.*?\*/", "", sheet.read_text("utf-8"), flags=re.DOTALL)
        assert not re.search(r"text-transform|(?<![-\w])content:", rules), sheet


def test_addresses_are_quoted_once() -> None:
    assert url("/page/50% of it?", page=2, sort="") == "/page/50%25%20of%20it%3F?page=2"
    assert 'href="/table/a%20b?sort=-Name"' in sort_heading("Name", "Name", "Name", "/table/a b")


def test_a_text_area_keeps_the_first_empty_line() -> None:
    page = parse(f"<div>{text_area('Text', 'text', chr(10) + 'second')}</div>")
    area = next(node for node in page.walk() if node.tag == "textarea")
    # The HTML parser drops one line break after the tag.
    assert "".join(c for c in area.children if isinstance(c, str)) == "\n\nsecond"


def test_a_page_number_out_of_range_is_clamped() -> None:
    for page, shown, items in ((-3, 1, [0, 1]), (2, 2, [2, 3]), (99, 3, [4])):
        part = paginate(range(5), page, 2)
        assert (part.page, part.pages, list(part.items)) == (shown, 3, items), page


# A site


def _site() -> Site[list[str]]:
    site: Site[list[str]] = Site(
        "http://notes.test", lambda state: Frame("Notes", "#333", [("All", "/")], date(2025, 3, 4), "Ada")
    )

    @site.get("/")
    def notes(state: list[str], visit: Visit) -> HtmlPage:
        return HtmlPage("Notes", [h("p", note) for note in state])

    @site.get("/note/<int:number>/<name>")
    def note(state: list[str], visit: Visit, number: int, name: str) -> HtmlPage:
        return HtmlPage(f"{number} {name}", suggest_field("To", "to", "/suggest"))

    @site.get("/file/<path:name>")
    def file(state: list[str], visit: Visit, name: str) -> HtmlPage:
        if name == "none":
            raise NotFound("There is no file none.")
        return HtmlPage(name, "")

    @site.post("/")
    def add(state: list[str], visit: Visit) -> Redirect:
        state.append(visit.line("note", "The note", limit=20))
        return Redirect("/", "Noted.")

    @site.post("/amount")
    def amount(state: list[str], visit: Visit) -> Redirect:
        visit.number("n", "The amount", low=1, high=9)
        raise FormError("Never.")

    return site


def _post(handler, fields: dict[str, str], path: str = "/", **headers: str) -> Response:
    return handler(Request("POST", f"http://notes.test{path}", headers, urlencode(fields).encode()))


def _get(handler, path: str) -> Response:
    return handler(Request("GET", f"http://notes.test{path}"))


def test_paths_are_split_and_unquoted() -> None:
    handler = _site().handler([])
    assert "<h1>12 a b/c</h1>" in _get(handler, "/note/12/a%20b%2Fc").body.decode()
    assert "<h1>x/y</h1>" in _get(handler, "/file/x/y").body.decode()
    for missing in ("/note/x/y", "/note/1234567890/y", "/note/٣/y", "/none", "//", "/file/none"):
        assert _get(handler, missing).status == 404, missing
    assert handler(Request("DELETE", "http://notes.test/")).status == 404


def test_a_form_redirects_and_shows_its_message_once() -> None:
    state: list[str] = []
    handler = _site().handler(state)
    answer = _post(handler, {"note": "  buy <milk>\t"})
    assert (answer.status, answer.headers["location"], state) == (303, "/", ["buy <milk>"])
    first, second = _get(handler, "/").body.decode(), _get(handler, "/").body.decode()
    assert "Noted." in first
    assert "Noted." not in second
    assert "buy &lt;milk&gt;" in second


def test_a_refused_form_redirects_back_with_the_reason() -> None:
    state: list[str] = []
    handler = _site().handler(state)
    _get(handler, "/note/1/x")
    # From the referer if it is of this site, else the page that was viewed last.
    for referer, back in [
        ("http://notes.test/file/y?a=1", "/file/y?a=1"),
        ("http://evil.test/z", "/note/1/x"),
        ("http://notes.test//evil.test/z", "/evil.test/z"),
        ("http://[", "/note/1/x"),
    ]:
        assert _post(handler, {"note": "x" * 30}, referer=referer).headers["location"] == back
    assert "too long: 30 characters, at most 20" in _get(handler, "/").body.decode()
    for amount in ("", "0", "10", "1.5", "٣", "9" * 50):
        _post(handler, {"n": amount}, "/amount")
        assert "whole number from 1 to 9" in _get(handler, "/").body.decode(), amount
    assert state == []


def test_requests_of_one_episode_are_bounded() -> None:
    state: list[str] = []
    handler = _site().handler(state)
    assert handler(Request("POST", "http://notes.test/", {}, b"note=" + b"x" * 200_000)).status == 413
    assert _get(handler, "/" + "x" * 9_000).status == 414
    statuses = [_post(handler, {"note": "n"}).status for _ in range(MAX_POSTS + 5)]
    assert set(statuses[:MAX_POSTS]) == {303}
    assert set(statuses[MAX_POSTS:]) == {429}
    assert len(state) == MAX_POSTS
    # Another episode at the same site has its own limit.
    assert _post(_site().handler([]), {"note": "n"}).status == 303


def test_every_field_of_a_page_has_a_label() -> None:
    page = parse(render(Frame("N", "#000", [], date(2025, 1, 1)), HtmlPage("T", suggest_field("To", "to", "/s"))))
    labels = {node.attributes.get("for") for node in page.walk() if node.tag == "label"}
    fields = [n for n in page.walk() if n.tag in ("input", "select", "textarea") and "aria-label" not in n.attributes]
    assert fields
    assert all(field.attributes["id"] in labels for field in fields)


# Every site


SLOW = ("forum", "wiki")


@pytest.mark.parametrize(
    "site", [pytest.param(site, marks=pytest.mark.long) if site in SLOW else site for site in SITES]
)
def test_the_solution_is_rewarded_and_a_near_miss_is_not(site: str) -> None:
    check_tasks(site, [4])  # the fifth level


@pytest.mark.long
@pytest.mark.parametrize("site", SITES)
def test_the_solution_of_many_seeds(site: str) -> None:
    check_tasks(site, MANY_SEEDS)


def _everything(names: list[str]) -> str:
    """Return a digest of goals, moves, start pages and facts."""
    digest = hashlib.sha256()
    for name in names:
        template = TEMPLATES[name]
        site_state = template.build(5, 1)
        task = template.make_task(site_state, Random(5), 1)
        handlers = site_state.handlers()
        page = next(iter(handlers.values()))(Request("GET", task.start)).body
        digest.update(repr((task.goal, task.moves, task.answer, site_state.facts())).encode() + page)
    return digest.hexdigest()


def test_another_process_makes_the_same_sites_and_tasks() -> None:
    """The other process hashes strings differently; two tasks of every site."""
    names = [name for site in SITES for name in [n for n in TEMPLATES if n.startswith(f"{site}/")][:7:4]]
    code = f"from tests.sites.test_sites_common import _everything; print(_everything({names!r}))"
    environment = {"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path)}
    reported = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=240, env=environment
    )
    assert reported.stdout.strip() == _everything(names)


def test_viewing_pages_changes_nothing_and_every_link_works() -> None:
    for site in SITES:
        look_at_everything(site)


def look_at_everything(site: str) -> None:
    template = TEMPLATES[FIRST_OF_SITE[site]]
    site_state, untouched = template.build(3, 1), template.build(3, 1)
    origin, handler = next(iter(site_state.handlers().items()))
    seen, waiting = set(), [f"{origin}/"]
    while waiting and len(seen) < 70:
        address = waiting.pop(0)
        if address in seen:
            continue
        seen.add(address)
        response = handler(Request("GET", address))
        if response.status == 303:
            waiting.append(origin + response.headers["location"])
            continue
        assert response.status == 200, address
        if "text/html" not in response.headers.get("content-type", ""):
            continue
        page = parse(response.body.decode())
        links = [node.attributes["href"] or "" for node in page.walk() if node.tag == "a" and "href" in node.attributes]
        waiting += [origin + link.split("#")[0] for link in links if link.startswith("/")]
    assert len(seen) > 20, site
    assert site_state.facts() == untouched.facts(), site


def test_no_request_breaks_a_site() -> None:
    for site in SITES:
        send_junk(site)


def send_junk(site: str) -> None:
    template = TEMPLATES[FIRST_OF_SITE[site]]
    site_state = template.build(4, 1)
    origin, handler = next(iter(site_state.handlers().items()))
    driver = SiteDriver(site_state, f"{origin}/")
    rng = Random(site)
    junk = [
        "",
        "\x00",
        "💥" * 50,
        "<script>alert(1)</script>",
        "-1",
        "9" * 30,
        "%",
        "../..",
        "٣",
        "\u202e",
        "A" * 6_000,
    ]
    # Every form of some pages with junk in every field, then arbitrary bytes.
    links = [n.attributes["href"] or "" for n in driver.page.walk() if n.tag == "a" and "href" in n.attributes]
    forms: list[tuple[str, str, list[str]]] = []
    for link in {link for link in links if link.startswith("/")}:
        body = handler(Request("GET", origin + link)).body.decode()
        for node in parse(body).walk():
            if node.tag == "form":
                names = [n.attributes["name"] or "" for n in node.walk() if "name" in n.attributes]
                forms.append(
                    ((node.attributes.get("method") or "get").upper(), node.attributes.get("action") or link, names)
                )
    assert forms, site
    for method, action, names in forms[:60]:
        for _ in range(2):
            fields = urlencode({name: rng.choice(junk) for name in names})
            target = origin + action.split("?")[0]
            request = (
                Request("POST", target, {"referer": rng.choice(junk)}, fields.encode())
                if method == "POST"
                else Request("GET", f"{target}?{fields}")
            )
            assert handler(request).status in (200, 303, 400, 404, 414, 429), request
    for _ in range(150):
        raw = rng.randbytes(rng.randint(0, 40))
        path = rng.choice(sorted({action for _, action, _ in forms})).split("?")[0]
        handler(Request("GET", f"{origin}{path}/{quote_from_bytes(raw)}?{quote_from_bytes(raw, safe='=&')}"))
        handler(Request("POST", origin + path, {}, raw))
    page = handler(Request("GET", f"{origin}/"))
    assert page.status == 200, site
    assert "<script>alert(1)" not in page.body.decode(), site
    site_state.facts()
