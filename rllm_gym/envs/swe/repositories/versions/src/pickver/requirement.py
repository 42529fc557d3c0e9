"""A package and the versions of it that will do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pickver.errors import RangeError
from pickver.ranges import Range, parse_range

_REQUIREMENT = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)\s*(?:\[([a-z0-9_, -]*)\])?\s*((?:[\^~<>=!*]|\d|v\d).*)?")


@dataclass(frozen=True)
class Requirement:
    """``extras`` are names of additional features; they bring requirements of their own."""

    package: str
    range: Range
    extras: tuple[str, ...] = ()

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.package}{extras} {self.range}"


def parse_requirement(text: str) -> Requirement:
    """Read ``"web[tls,http2] ^2.0"``; without a range any version will do."""
    match = _REQUIREMENT.fullmatch(text.strip())
    if match is None:
        raise RangeError(f"not a requirement: {text.strip()!r}")
    name, extras, versions = match.groups()
    names = sorted({extra.strip() for extra in (extras or "").split(",")} - {""})
    return Requirement(normalize(name), parse_range(versions or "*"), tuple(names))


def normalize(name: str) -> str:
    """Package names are the same whatever their case and whether they are written with ``-``, ``_`` or ``.``."""
    return re.sub(r"[-_.]+", "-", name).lower()
