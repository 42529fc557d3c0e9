"""What a reply asks a browser to do: one action by name, with literals for arguments. Parsed, never executed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrowserAction:
    """One action of a turn.

    Attributes:
        name: ``click``, ``fill`` … as in :data:`ACTIONS`.
        element: The number of the element on the page, where the action takes one.
        text: The text, option, key, URL, direction or answer, where it takes one.
        index: The tab, where it takes one.
        option: A further word where the action takes one (``click(3, "right")``, ``scroll`` within an element).
    """

    name: str
    element: int | None = None
    text: str | None = None
    index: int | None = None
    option: str | None = None
