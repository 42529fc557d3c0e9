"""What every check of options uses: one error that lists all problems, and a few sentences they share."""

from __future__ import annotations

from typing import Any


class ConfigError(ValueError):
    """An option that is unknown, impossible, or would do nothing; names it and the way out."""


def positive(section: object, prefix: str, names: tuple[str, ...], problems: list[str]) -> None:
    """Options that must be above 0; ``None`` is let through."""
    for name in names:
        value = getattr(section, name)
        if value is not None and not value > 0:
            problems.append(f"{prefix}{name}={value!r} must be above 0")


def idle(section: object, prefix: str, names: tuple[str, ...], unless: str, problems: list[str]) -> None:
    """Options that were set although nothing reads them under the other settings."""
    for name in names:
        if getattr(section, name) != default(section, name):
            problems.append(f"{prefix}{name}={getattr(section, name)!r} does nothing {unless}; leave it out")


def default(section: object, name: str) -> Any:
    """What an option is if nobody sets it."""
    return getattr(type(section)(), name)


def raise_if_any(problems: list[str]) -> None:
    """
    Raises:
        ConfigError: There are problems; all of them are listed.
    """
    if problems:
        raise ConfigError("the configuration cannot be used:\n" + "\n".join(f"  - {problem}" for problem in problems))
