"""Pictures of the built-in sites: SVG drawn from the data, the same for the same data, and decoration only.

A picture is a function of the address that names it and of data that never changes, so that a browser may keep it. No
file is read. The text of an observation leaves pictures out: they have no name and are hidden from assistive software.
"""

from __future__ import annotations

from random import Random
from zlib import crc32

from rllm_gym.envs.web.sites.http import Response
from rllm_gym.envs.web.sites.markup import Content, Markup, h, join, url

_HUES = ("#b3452c", "#2f6db0", "#2f7d4f", "#8a4fa3", "#a06a12", "#1f7a80", "#b03a6b", "#5b6472")
_HEADERS = {"content-type": "image/svg+xml", "cache-control": "max-age=86400"}


def image(path: str, kind: str, size: int) -> Markup:
    """Return a decorative image. ``kind`` is its class; ``size`` its width, and of an avatar also its height."""
    height = size if kind == "avatar" else size * 3 // 4
    return h(f"img.{kind}", src=path, alt="", aria_hidden="true", width=size, height=height)


def svg(width: int, height: int, *shapes: Content) -> Response:
    """Return shapes as the response to a request for a picture."""
    drawing = h("svg", *shapes, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}")
    return Response(drawing.encode(), headers=_HEADERS)


def drawing_rng(name: str) -> Random:
    """Return the random numbers for the picture of a name: the same in every process."""
    return Random(crc32(name.encode("utf-8", "replace")))


def path(data: str, fill: str, **attributes: object) -> Markup:
    """Return a closed shape."""
    return h("path", d=data, fill=fill, **attributes)


def line(data: str, colour: str, width: float = 3) -> Markup:
    """Return a line with round ends."""
    return h("path", d=data, fill="none", stroke=colour, stroke_width=width, stroke_linecap="round")


# People


def avatar(name: str, size: int = 32) -> Markup:
    """Return the image of a person; the site serves :func:`portrait` at ``/pictures/people/<path:name>.svg``."""
    return image(url(f"/pictures/people/{name}.svg"), "avatar", size)


def portrait(name: str) -> Response:
    """Return a face with a background, hair, skin and clothes that depend on the name."""
    rng = drawing_rng(name)
    skin = rng.choice(("#f6d7bd", "#e5b48e", "#c68a5e", "#95613d", "#6b4429"))
    hair = rng.choice(("#2b1d14", "#5a3a1e", "#a3712f", "#c9a24b", "#7a7a7a", "#1f2430"))
    ground, clothes = rng.sample(_HUES, 2)
    top = rng.choice(
        (
            "M14 26C12 8 52 8 50 26C42 18 24 20 14 26Z",
            "M13 34C8 6 56 6 51 34L48 22C38 16 26 16 16 22Z",
            "M15 25C18 6 48 8 49 24C40 25 30 14 15 25Z",
            "M11 46C8 4 56 4 53 46L46 44L46 24L18 24L18 44Z",
        )
    )
    return svg(
        64,
        64,
        h("rect", width=64, height=64, fill=ground),
        path("M8 64C8 44 56 44 56 64Z", clothes),
        h("ellipse", cx=32, cy=31, rx=15, ry=18, fill=skin),
        path(top, hair),
        h("circle", cx=26, cy=32, r=2, fill="#222"),
        h("circle", cx=38, cy=32, r=2, fill="#222"),
        line(rng.choice(("M26 40Q32 45 38 40", "M27 41H37", "M26 40Q32 48 38 40Z")), "#7a3b2e", 2),
    )


# Places


def landscape(kind: str, name: str) -> Response:
    """Return a view of a town, a river or a mountain; of anything else, hills."""
    rng = drawing_rng(f"{kind}/{name}")
    sky, ground = rng.choice((("#cfe3f2", "#7fa36b"), ("#f6dfc3", "#8b9a5b"), ("#d9dcec", "#6f8f86")))
    sun = h("circle", cx=rng.randrange(20, 180), cy=rng.randrange(20, 45), r=12, fill="#f7c55b")
    hills = [
        path(f"M0 {y}Q50 {y - rng.randrange(10, 40)} 100 {y}T200 {y}V150H0Z", ground, fill_opacity=0.55)
        for y in (95, 110)
    ]
    draw = {"towns": _town, "rivers": _river, "mountains": _mountain}.get(kind)
    return svg(200, 150, h("rect", width=200, height=150, fill=sky), sun, hills, draw(rng) if draw else None)


def _town(rng: Random) -> Markup:
    houses: list[Content] = []
    left = 8
    while left < 180:
        width, top = rng.randrange(16, 30), rng.randrange(70, 112)
        wall = rng.choice(("#e9dcc4", "#d8c3a5", "#c9b8a8", "#efe6d8"))
        houses.append(h("rect", x=left, y=top, width=width, height=142 - top, fill=wall))
        roof = f"M{left - 2} {top}L{left + width / 2} {top - rng.randrange(8, 26)}L{left + width + 2} {top}Z"
        houses.append(path(roof, rng.choice(("#8c3f2d", "#6d4a3a", "#4f5666"))))
        windows = range(top + 8, 130, 14)
        houses.append([h("rect", x=left + width / 2 - 3, y=y, width=6, height=7, fill="#5a6b7d") for y in windows])
        left += width + rng.randrange(0, 6)
    return join(houses, h("rect", y=140, width=200, height=10, fill="#8d8a7c"))


def _river(rng: Random) -> Markup:
    a, b, c = (rng.randrange(30, 170) for _ in range(3))
    bends = f"M{a} 96C{b} 110 {c} 118 {200 - a} 150"
    trees = [
        path(f"M{x} {y}l7 -18l7 18Z", "#3f6b45")
        for x, y in ((rng.randrange(0, 186), rng.randrange(104, 146)) for _ in range(8))
    ]
    return join(line(bends, "#4d8fc4", 20), line(bends, "#8fbfe2", 5), trees)


def _mountain(rng: Random) -> Markup:
    peaks: list[Content] = []
    for rock in ("#8a8f9c", "#6c7280"):
        x, top, half = rng.randrange(60, 140), rng.randrange(18, 50), rng.randrange(60, 95)
        peaks.append(path(f"M{x - half} 142L{x} {top}L{x + half} 142Z", rock))
        snow = half * 24 / (142 - top)
        peaks.append(path(f"M{x} {top}L{x + snow:.1f} {top + 24}L{x} {top + 16}L{x - snow:.1f} {top + 24}Z", "#fff"))
    return join(peaks)
