"""Pictures of the built-in sites: drawn by the site, the same for the same data, never part of what a text says."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from rllm_gym.envs.web.sites import SITES, TEMPLATES
from rllm_gym.envs.web.sites.http import Request
from rllm_gym.envs.web.sites.shop.generate import CATEGORIES
from rllm_gym.envs.web.sites.shop.pictures import _INKS, _SHAPES
from rllm_gym.envs.web.sites.task import SiteState
from tests.sites.html_walker import SiteDriver

FIRST = {name.partition("/")[0]: template for name, template in reversed(TEMPLATES.items())}
PAGES = {
    "shop": ("/", "/search"),
    "forum": ("/members", "/search"),
    "wiki": ("/table/towns", "/table/rivers", "/table/mountains"),
    "mail": ("/",),
    "tracker": ("/people", "/search?q=a"),
}


def pictures(site: SiteState) -> dict[str, bytes]:
    """Return the pictures of some pages and of some pages that they link to, by path."""
    (origin, handler), *_ = site.handlers().items()
    paths = PAGES[origin.removeprefix("http://").removesuffix(".test")]
    driver = SiteDriver(site, origin + paths[0])
    found: dict[str, bytes] = {}
    waiting = [origin + path for path in paths]
    for depth in range(2):
        links: list[str] = []
        for address in waiting:
            driver.get(address)
            nodes = list(driver.page.walk())
            hrefs = [str(n.attributes["href"]) for n in nodes if n.tag == "a" and n.attributes.get("href")]
            links += [origin + href for href in hrefs if href.startswith(("/product", "/user", "/thread", "/page/"))][
                :4
            ]
            for node in nodes:
                if node.tag == "img":
                    path = str(node.attributes["src"])
                    assert (node.attributes["alt"], node.attributes["aria-hidden"]) == ("", "true"), path
                    response = handler(Request("GET", origin + path))
                    assert (response.status, response.headers["content-type"]) == (200, "image/svg+xml"), path
                    found[path] = response.body
        waiting = links if depth == 0 else []
    return found


@pytest.mark.parametrize("site", PAGES)
def test_pictures_are_small_drawings_that_are_the_same_for_the_same_data(site: str) -> None:
    found = pictures(FIRST[site].build(3, 1))
    assert len(set(found.values())) >= 3
    for path, drawing in found.items():
        assert len(drawing) < 12_000, path
        root = ElementTree.fromstring(drawing)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert b"href" not in drawing
    assert pictures(FIRST[site].build(3, 1)) == found


def test_every_kind_of_product_has_a_drawing_of_its_own() -> None:
    assert set(_SHAPES) == {noun for nouns in CATEGORIES.values() for noun in nouns}
    assert len(set(_SHAPES.values())) == len(_SHAPES)
    assert {colour for product in FIRST["shop"].build(1, 5).products.values() for colour in product.colours} <= set(
        _INKS
    )


def test_a_name_in_the_address_of_a_picture_is_only_data() -> None:
    for site, folder in (("forum", "people"), ("mail", "people"), ("tracker", "people"), ("wiki", "towns")):
        origin, handler = next(iter(FIRST[site].build(3, 1).handlers().items()))
        for name in ("<script>alert(1)</script>", "../../../etc/passwd", "x" * 3_000, "\x00\udcff", "{name}", "٣"):
            quoted = quote(name.encode("utf-8", "surrogateescape"))
            response = handler(Request("GET", f"{origin}/pictures/{folder}/{quoted}.svg"))
            assert (response.status, response.headers["content-type"]) == (200, "image/svg+xml"), (site, name)
            assert len(response.body) < 12_000
            assert b"script" not in response.body
    handler = next(iter(FIRST["shop"].build(3, 1).handlers().values()))
    for name in ("0", "999999999", "x", "../1", ""):
        assert handler(Request("GET", f"http://shop.test/pictures/{name}.svg")).status == 404, name


def test_the_documentation_shows_every_site_in_a_small_screenshot() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs/web.md").read_text("utf-8")
    for site in SITES:
        if site != "desk":  # combines others
            assert f"(images/sites/{site}.png)" in text
            content = (root / f"docs/images/sites/{site}.png").read_bytes()
            assert content.startswith(b"\x89PNG")
            assert int.from_bytes(content[16:20]) <= 1_000  # its width
            assert len(content) <= 60_000, site
