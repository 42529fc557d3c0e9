"""Semantic versions (semver.org, 2.0.0)."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from pickver.errors import VersionError

_NUMBER = r"(?:0|[1-9]\d*)"
_LABEL = rf"(?:{_NUMBER}|\d*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(
    rf"v?({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_LABEL}(?:\.{_LABEL})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)


@functools.total_ordering
@dataclass(frozen=True)
class Version:
    """A version; build metadata is shown and does not count in comparisons."""

    major: int
    minor: int
    patch: int
    pre: tuple[int | str, ...] = ()
    build: str = ""

    @property
    def release(self) -> tuple[int, int, int]:
        return self.major, self.minor, self.patch

    @property
    def is_prerelease(self) -> bool:
        return bool(self.pre)

    def __str__(self) -> str:
        text = ".".join(map(str, self.release))
        if self.pre:
            text += "-" + ".".join(map(str, self.pre))
        return f"{text}+{self.build}" if self.build else text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key() == other._key()

    def __lt__(self, other: Version) -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        # A release comes after its pre-releases; numbers come before words; a longer pre-release after its beginning.
        labels = tuple((1, 0, label) if isinstance(label, str) else (0, label, "") for label in self.pre)
        return self.release, not self.pre, labels

    def next_major(self) -> Version:
        return Version(self.major + 1, 0, 0)

    def next_minor(self) -> Version:
        return Version(self.major, self.minor + 1, 0)

    def next_patch(self) -> Version:
        """The next release: of a pre-release it is the release itself."""
        return Version(self.major, self.minor, self.patch + (0 if self.pre else 1))


def parse_version(text: str) -> Version:
    """Read ``"1.2.3"``, ``"v1.2.3-rc.1+build.5"``; all three numbers are needed."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise VersionError(f"not a version: {text.strip()!r}")
    major, minor, patch, pre, build = match.groups()
    labels = tuple(int(label) if label.isdigit() else label for label in pre.split(".")) if pre else ()
    return Version(int(major), int(minor), int(patch), labels, build or "")
