"""The built-in web sites: pages generated in Python, state that can be compared, and tasks. Contains no browser code.

The modules here are shared by all sites; :mod:`~rllm_gym.envs.web.sites.task` and :mod:`~rllm_gym.envs.web.sites.moves`
have the types. Each site is a package of four modules, each of which imports only those before it:

- ``state.py``: dataclasses with the content of the site, the changes that a visitor can make, and ``facts()``;
- ``pages.py``: ``ORIGIN``, the routes of a :class:`~rllm_gym.envs.web.sites.site.Site`, and the state with its
  ``handlers()``, a :class:`~rllm_gym.envs.web.sites.site.SiteApp` such as ``ShopApp``;
- ``generate.py``: ``build(seed, difficulty)``, which returns that state, and the words that it draws from;
- ``tasks.py``: one function ``make_task(state, rng, difficulty)`` per task, and ``TEMPLATES``.

Its layout is in ``style.css``, used in addition to the common one. What only the tasks of one template need, such as a
field for files, is shown only if the state says so: the pages of the other templates stay as they are.

Its ``__init__`` exports ``ORIGIN``, ``TEMPLATES``, ``build`` and the state with its pages; its name is added to
:data:`SITES`. A long part of the pages can be a module of its own (``admin/tables.py``). ``desk`` combines other sites,
so it has no pages and exports only ``TEMPLATES``.
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
