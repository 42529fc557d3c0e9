"""Environment faults of the browser. Mistakes of a page or a model are not faults."""

from __future__ import annotations

from rllm_gym.core.errors import EnvironmentFault


class BrowserFault(EnvironmentFault):
    """The browser failed during an episode. Other episodes continue, and the next one gets a working browser.

    ``kind`` is ``"browser_unavailable"`` (no browser can be started here), ``"browser_died"`` (its process ended),
    ``"page_crashed"`` (a renderer died, and not because of the model) or ``"browser_deadline"`` (it did not answer).
    """


class SiteFault(EnvironmentFault):
    """A site of the task raised an exception, or is unreachable at the start of the task; ``kind`` is ``"site"``."""

    def __init__(self, message: str, *, kind: str = "site") -> None:
        super().__init__(message, kind=kind)
