"""Ranges of versions, as ``docs/ranges.md`` describes them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pickver.errors import RangeError, VersionError
from pickver.version import Version, parse_version

_PART = re.compile(r"(<=|>=|!=|<|>|=|\^|~)?\s*v?(\d+|\*)(?:\.(\d+|\*))?(?:\.(\d+|\*))?(-[0-9A-Za-z.-]+)?")
_COMPARE: dict[str, Callable[[Version, Version], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Bound:
    """A comparison with one version."""

    operator: str
    version: Version

    def allows(self, version: Version) -> bool:
        return _COMPARE[self.operator](version, self.version)

    def __str__(self) -> str:
        return f"{self.operator}{self.version}"


@dataclass(frozen=True)
class Range:
    """Alternatives, each a set of bounds that must all hold."""

    alternatives: tuple[tuple[Bound, ...], ...]
    text: str

    def __contains__(self, version: Version) -> bool:
        return any(
            all(bound.allows(version) for bound in bounds) and _may_be_chosen(version, bounds)
            for bounds in self.alternatives
        )

    def __str__(self) -> str:
        return self.text

    def best(self, versions: Iterable[Version]) -> Version | None:
        """The newest of the versions that is in the range."""
        return max((version for version in versions if version in self), default=None)


def _may_be_chosen(version: Version, bounds: tuple[Bound, ...]) -> bool:
    """Pre-releases need a bound that names a pre-release of the same release."""
    if not version.is_prerelease:
        return True
    return any(bound.version.is_prerelease and bound.version.release == version.release for bound in bounds)


def parse_range(text: str) -> Range:
    """Read a range; :class:`~pickver.errors.RangeError` if it is none."""
    alternatives = []
    for alternative in text.split("||"):
        bounds: list[Bound] = []
        place = 0
        alternative = alternative.strip()
        if not alternative:
            raise RangeError(f"an empty range in {text!r}")
        while place < len(alternative):
            match = _PART.match(alternative, place)
            if match is None:
                raise RangeError(f"cannot read {alternative[place:]!r} in the range {text!r}")
            bounds += _bounds(match, text)
            place = match.end()
            separator = re.compile(r"\s*,\s*|\s+").match(alternative, place)
            if separator is not None:
                place = separator.end()
            elif place < len(alternative):
                raise RangeError(f"cannot read {alternative[place:]!r} in the range {text!r}")
        alternatives.append(tuple(bounds))
    return Range(tuple(alternatives), text.strip())


def _bounds(match: re.Match[str], text: str) -> list[Bound]:
    """The bounds that one part of a range stands for."""
    symbol, *numbers, pre = match.groups()
    given = [number for number in numbers if number is not None]
    if "*" in given:
        if symbol not in (None, "=") or pre or any(number != "*" for number in given[given.index("*") :]):
            raise RangeError(f"a star stands at the end and alone: {match[0]!r} in {text!r}")
        given = given[: given.index("*")]
        if not given:
            return [Bound(">=", Version(0, 0, 0))]
        low = _version(given, "", text)
        return [Bound(">=", low), Bound("<", low.next_major() if len(given) == 1 else low.next_minor())]
    low = _version(given, pre or "", text)
    if symbol == "^":
        return [Bound(">=", low), Bound("<", _next_breaking(low, len(given)))]
    if symbol == "~":
        return [Bound(">=", low), Bound("<", low.next_major() if len(given) == 1 else low.next_minor())]
    return [Bound(symbol or "=", low)]


def _next_breaking(low: Version, given: int) -> Version:
    """The first version that may break what works with ``low``."""
    if low.major > 0 or given == 1:
        return low.next_major()
    if low.minor > 0 or given == 2:
        return low.next_minor()
    return Version(0, 0, low.patch + 1)


def _version(numbers: list[str], pre: str, text: str) -> Version:
    try:
        return parse_version(".".join([*numbers, "0", "0"][:3]) + pre)
    except VersionError as error:
        raise RangeError(f"{error} in the range {text!r}") from error
