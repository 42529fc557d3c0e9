"""What a check sees of the browser when an episode ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllm_gym.browser.observation import Element


@dataclass(frozen=True)
class PageState:
    """The active page at the end of an episode, and a way to ask it more.

    What the model saw and what a check sees is the same page: nothing of it can be forged by the page's own scripts
    except what the page really shows.

    Attributes:
        url: Of the active tab.
        title: Of its document.
        text: The observation of it, as the model gets it.
        elements: What can be acted on, by number: role, name and value.
        html: The document as markup, its first 2,000,000 characters; ``""`` where it cannot be read.
        tabs: URLs of the open tabs, of which ``url`` is one.
        goal: What the model was asked for.
        infeasible: The reason that ``report_infeasible`` gave, or ``None``.
        data: The row's own ``data``.
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
    _evaluate: Callable[[str], Any]

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the active page, as JSON: ``state.evaluate("localStorage.length")``.

        It runs in a world of its own: it sees the document, storage and cookies, not the variables of the page's
        scripts. Blocks; a check runs in a thread of its own, so this holds nothing up. A promise is awaited.

        Raises:
            BrowserFault: The browser did not answer.
            ValueError: The expression raised; its message is the error's.
        """
        return self._evaluate(expression)
