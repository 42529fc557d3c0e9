"""The packages there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pickver.errors import IndexFormatError, PickverError
from pickver.requirement import Requirement, normalize, parse_requirement
from pickver.version import Version, parse_version


@dataclass
class Release:
    """One version of a package and what it needs; ``extras`` maps a feature to what it needs in addition."""

    package: str
    version: Version
    requires: list[Requirement] = field(default_factory=list)
    extras: dict[str, list[Requirement]] = field(default_factory=dict)
    withdrawn: bool = False

    def needs(self, extras: Iterable[str] = ()) -> list[Requirement]:
        """The requirements with those of the chosen features; a feature that is not there needs nothing."""
        return self.requires + [needed for extra in extras for needed in self.extras.get(extra, [])]


class Index:
    """Releases by package."""

    def __init__(self) -> None:
        self._releases: dict[str, dict[Version, Release]] = {}

    def add(self, release: Release) -> None:
        self._releases.setdefault(release.package, {})[release.version] = release

    def versions(self, package: str, *, withdrawn: bool = False) -> list[Version]:
        """The versions of a package, newest first. Withdrawn ones only if asked for."""
        releases = self._releases.get(normalize(package), {}).values()
        return sorted((release.version for release in releases if withdrawn or not release.withdrawn), reverse=True)

    def release(self, package: str, version: Version) -> Release:
        return self._releases[normalize(package)][version]

    @classmethod
    def from_text(cls, text: str) -> Index:
        """Read a list of packages.

        ``web 2.3.0`` begins a release, ``web 2.2.0 withdrawn`` one that should not be chosen. Indented lines are what
        it needs: ``log ^1.0``, or ``tls: crypto >=3`` for the feature ``tls``. ``#`` begins a comment.
        """
        index = cls()
        release: Release | None = None
        for number, raw in enumerate(text.splitlines(), start=1):
            line = raw.split("#", 1)[0].rstrip()
            if not line:
                continue
            try:
                if not line[0].isspace():
                    release = _read_release(line)
                    index.add(release)
                elif release is None:
                    raise IndexFormatError("a requirement before any release", number)
                else:
                    _read_need(release, line.strip())
            except IndexFormatError:
                raise
            except PickverError as error:
                raise IndexFormatError(str(error), number) from error
        return index


def _read_release(line: str) -> Release:
    name, _, rest = line.partition(" ")
    version, _, mark = rest.strip().partition(" ")
    if mark.strip() not in ("", "withdrawn"):
        raise PickverError(f"{mark.strip()!r} is not 'withdrawn'")
    return Release(normalize(name), parse_version(version), withdrawn=bool(mark.strip()))


def _read_need(release: Release, line: str) -> None:
    extra, colon, need = line.partition(":")
    if colon:
        release.extras.setdefault(extra.strip(), []).append(parse_requirement(need))
    else:
        release.requires.append(parse_requirement(line))
