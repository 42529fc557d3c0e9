"""Keeps what was picked in a file."""

from __future__ import annotations

from collections.abc import Mapping

from pickver.errors import IndexFormatError, VersionError
from pickver.requirement import normalize
from pickver.version import Version, parse_version

HEADER = "# picked by pickver; do not edit"


def write_lock(chosen: Mapping[str, Version]) -> str:
    """One ``name==version`` a line, in alphabetical order."""
    lines = [f"{package}=={version}" for package, version in sorted(chosen.items())]
    return "\n".join([HEADER, *lines]) + "\n"


def read_lock(text: str) -> dict[str, Version]:
    """What :func:`write_lock` has written."""
    chosen: dict[str, Version] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, separator, version = line.partition("==")
        if not separator:
            raise IndexFormatError(f"expected name==version, found {line!r}", number)
        package = normalize(name.strip())
        if package in chosen:
            raise IndexFormatError(f"{package} occurs twice", number)
        try:
            chosen[package] = parse_version(version)
        except VersionError as error:
            raise IndexFormatError(str(error), number) from error
    return chosen
