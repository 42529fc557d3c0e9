"""Option names of other trainers, with the options here that have the same meaning, or what to write instead.

They are not accepted; the error message for an unknown option uses them. The names are in ``other_names.yaml``.
"""

from __future__ import annotations

import functools
from pathlib import Path

import yaml


@functools.cache
def _names() -> dict[str, dict[str, str]]:
    names: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return names


def options_named(name: str) -> list[str]:
    """Return the options with the meaning of another trainer's, the best match of each configuration type first."""
    return _names()["same_meaning"].get(name, "").split()


def instead_of(name: str) -> str:
    """Return what to write instead of a name for which there is no option; empty if it is unknown."""
    return _names()["no_option"].get(name, "")
