"""Picks one version of every package that is needed, the newest that fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pickver.errors import NoSolution
from pickver.index import Index
from pickver.requirement import Requirement, normalize, parse_requirement
from pickver.version import Version

# Who asked (a package with its version, or nobody), and what for.
Wish = tuple[str, Requirement]


def resolve(
    index: Index, requirements: Sequence[str], *, locked: Mapping[str, Version] | None = None
) -> dict[str, Version]:
    """A version for every package that is needed, by name in alphabetical order.

    Args:
        index: The packages there are.
        requirements: What is asked for, such as ``["web ^2.0", "log"]``.
        locked: Versions that are kept if they fit, also withdrawn ones.

    Raises:
        NoSolution: No versions fit together.
    """
    wishes = [("you", parse_requirement(text)) for text in requirements]
    kept = {normalize(package): version for package, version in (locked or {}).items()}
    chosen = _Search(index, kept).solve({}, wishes)
    return dict(sorted(chosen.items()))


class _Search:
    """Tries versions package by package and goes back when none is left."""

    def __init__(self, index: Index, locked: Mapping[str, Version]) -> None:
        self.index = index
        self.locked = locked

    def solve(self, chosen: dict[str, Version], wishes: list[Wish]) -> dict[str, Version]:
        package = self._next_package(chosen, wishes)
        if package is None:
            return chosen
        failure: NoSolution | None = None
        for version in self._candidates(package, wishes):
            extras = {extra for _, wish in wishes if wish.package == package for extra in wish.extras}
            needs = self.index.release(package, version).needs(sorted(extras))
            more = [*wishes, *((f"{package} {version}", need) for need in needs)]
            try:
                self._check(chosen | {package: version}, more)
                return self.solve(chosen | {package: version}, more)
            except NoSolution as error:
                failure = failure or error
        raise failure or NoSolution(self._why(package, wishes), package)

    def _next_package(self, chosen: Mapping[str, Version], wishes: Sequence[Wish]) -> str | None:
        """The first package asked for that has no version yet."""
        return next((wish.package for _, wish in wishes if wish.package not in chosen), None)

    def _candidates(self, package: str, wishes: Sequence[Wish]) -> list[Version]:
        """The versions that everybody who has asked so far can live with, the best first."""
        versions = self.index.versions(package)
        locked = self.locked.get(package)
        if locked is not None and locked in self.index.versions(package, withdrawn=True):
            versions = [locked, *(version for version in versions if version != locked)]
        ranges = [wish.range for _, wish in wishes if wish.package == package]
        return [version for version in versions if all(version in allowed for allowed in ranges)]

    def _check(self, chosen: Mapping[str, Version], wishes: Sequence[Wish]) -> None:
        """Whether what was chosen before suits what was asked for since."""
        for who, wish in wishes:
            if wish.package in chosen and chosen[wish.package] not in wish.range:
                raise NoSolution(
                    f"{who} needs {wish}, but {wish.package} {chosen[wish.package]} was chosen", wish.package
                )

    def _why(self, package: str, wishes: Sequence[Wish]) -> str:
        asked = "; ".join(f"{who} needs {wish}" for who, wish in wishes if wish.package == package)
        if not self.index.versions(package, withdrawn=True):
            return f"there is no package {package}: {asked}"
        return f"no version of {package} fits: {asked}"
