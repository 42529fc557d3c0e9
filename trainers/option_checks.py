"""Helpers of the checks of options, and the error that lists all problems."""

from __future__ import annotations

import importlib
from typing import Any


class ConfigError(ValueError):
    """An option is unknown, impossible, or would have no effect. The message names the option and how to fix it."""


def positive(section: object, prefix: str, names: tuple[str, ...], problems: list[str]) -> None:
    """Report options that are not above 0; ``None`` is accepted."""
    for name in names:
        value = getattr(section, name)
        if value is not None and not value > 0:
            problems.append(f"{prefix}{name}={value!r} must be above 0")


def idle(section: object, prefix: str, names: tuple[str, ...], unless: str, problems: list[str]) -> None:
    """Report options that were set although nothing reads them under the other settings."""
    for name in names:
        if getattr(section, name) != default(section, name):
            problems.append(f"{prefix}{name}={getattr(section, name)!r} has no effect {unless}; remove it")


def default(section: object, name: str) -> Any:
    """Return the default of an option."""
    return getattr(type(section)(), name)


def raise_if_any(problems: list[str], where: str = "configuration") -> None:
    """Raise an error that lists all problems of the configuration ``where``, if there are any.

    Raises:
        ConfigError: There are problems.
    """
    if problems:
        raise ConfigError(f"invalid {where}:\n" + "\n".join(f"  - {problem}" for problem in problems))


def import_object(path: str, option: str) -> Any:
    """Import the object named ``module:name``.

    Raises:
        ConfigError: It cannot be imported.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{option}={path!r} cannot be imported ({error}); write module:name") from error
