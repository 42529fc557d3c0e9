"""The browser state that a check receives when an episode ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllm_gym.parsing.browser_actions import BrowserAction

if TYPE_CHECKING:
    from rllm_gym.envs.web.browser.observation import Element


@dataclass(frozen=True, slots=True)
class TakenAction:
    """One turn of the model.

    Attributes:
        action: The action.
        url: URL of the page on which it was taken.
        error: Why it failed; ``""`` if it did not.
    """

    action: BrowserAction
    url: str
    error: str


@dataclass(frozen=True)
class PageState:
    """The active page at the end of an episode, with a method to query it further.

    The check sees the same page as the model: the page's scripts cannot forge anything except what the page really
    shows.

    Attributes:
        url: URL of the active tab.
        title: Title of its document.
        text: Its observation, as shown to the model.
        elements: Interactive elements by number: role, name and value.
        html: The document as markup, its first 2,000,000 characters; ``""`` if it cannot be read.
        tabs: URLs of the open tabs, including ``url``.
        goal: The goal, as shown to the model.
        infeasible: The reason given to ``report_infeasible``, or ``None``.
        data: The row's own ``data``.
        actions: What the model did, in order, without the action that ended the episode.
        workspace: The directory of the row's server, or ``None``.
        server_url: The start page at the server's own address, for requests of the check; ``""`` without a server.
    """

    url: str
    title: str
    text: str
    elements: Mapping[int, Element]
    html: str
    tabs: tuple[str, ...]
    goal: str
    infeasible: str | None
    data: Mapping[str, Any]
    actions: tuple[TakenAction, ...]
    workspace: Path | None
    server_url: str
    _evaluate: Callable[[str], Any]

    def evaluate(self, expression: str) -> Any:
        """Return the JSON value of a JavaScript expression in the active page, ``evaluate("localStorage.length")``.

        The expression runs in an isolated world: it sees the document, storage and cookies, not the variables of the
        page's scripts. A promise is awaited. The call blocks, which is harmless because a check runs in its own thread.

        Raises:
            BrowserFault: The browser did not answer.
            ValueError: The expression raised; the message is that of its error.
        """
        return self._evaluate(expression)
