"""The built-in web sites: pages written in Python, state that can be compared, and tasks on them. No browser here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rllm_gym.sites.errand import Errand, Template, World

if TYPE_CHECKING:
    TEMPLATES: dict[str, Template]

SITES: tuple[str, ...] = ("shop", "forum", "wiki", "calendar", "mail", "tracker", "admin", "desk")
"""The rooms of this package, each a module with its ``TEMPLATES``, in the order they are listed."""

__all__ = ["SITES", "TEMPLATES", "Errand", "Template", "World", "templates"]


@cache
def templates() -> dict[str, Template]:
    """Every template of every site, by name. The same dictionary each time; also as ``rllm_gym.sites.TEMPLATES``."""
    collected: dict[str, Template] = {}
    for site in SITES:
        for template in import_module(f"rllm_gym.sites.{site}").TEMPLATES:
            if template.name in collected:
                raise ValueError(f"two templates are called {template.name!r}; the names of templates are unique")
            collected[template.name] = template
    return collected


def __getattr__(name: str) -> Any:
    if name == "TEMPLATES":  # made when it is asked for: the sites are not needed to import this package
        return templates()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
