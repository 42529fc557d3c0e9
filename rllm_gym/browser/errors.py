"""What can break in a browser, as a fault of the world; what a page or a model does wrong is none."""

from __future__ import annotations

from rllm_gym.core.errors import EnvironmentFault


class BrowserFault(EnvironmentFault):
    """The browser broke under an episode. The other episodes go on, and the next one gets a browser that works.

    ``kind`` is ``"browser_unavailable"`` (none can be started here), ``"browser_died"`` (its process ended),
    ``"page_crashed"`` (a renderer died and no new one could be had) or ``"browser_deadline"`` (it did not answer).
    """


class SiteFault(EnvironmentFault):
    """A site of the task raised an exception or cannot be reached where the task begins; ``kind`` is ``"site"``."""

    def __init__(self, message: str, *, kind: str = "site") -> None:
        super().__init__(message, kind=kind)
