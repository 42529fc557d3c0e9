"""The built-in web sites: pages generated in Python, state that can be compared, and tasks. Contains no browser code.

See :mod:`rllm_gym.envs.web.sites.task` for the types and :mod:`rllm_gym.envs.web` for the environment that uses them.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rllm_gym.envs.web.sites.task import SiteState, WebTask, WebTaskTemplate

if TYPE_CHECKING:
    TEMPLATES: dict[str, WebTaskTemplate]

SITES: tuple[str, ...] = ("shop", "forum", "wiki", "calendar", "mail", "tracker", "admin", "desk")
"""Names of the built-in sites in listing order; each is a module with ``TEMPLATES``."""

__all__ = ["SITES", "TEMPLATES", "SiteState", "WebTask", "WebTaskTemplate", "templates"]


@cache
def templates() -> dict[str, WebTaskTemplate]:
    """Return the templates of all sites by name, the same dictionary each time (also ``sites.TEMPLATES``)."""
    collected: dict[str, WebTaskTemplate] = {}
    for site in SITES:
        for template in import_module(f"rllm_gym.envs.web.sites.{site}").TEMPLATES:
            if template.name in collected:
                raise ValueError(f"duplicate template name {template.name!r}")
            collected[template.name] = template
    return collected


def __getattr__(name: str) -> Any:
    if name == "TEMPLATES":  # created on first access: importing this package does not require the sites
        return templates()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
