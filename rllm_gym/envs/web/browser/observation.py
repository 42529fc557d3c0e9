"""Observations: the pages of a session as text with numbered elements. Reads the page without changing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rllm_gym.envs.web.browser.drag import Drag
from rllm_gym.envs.web.browser.isolated_world import DocumentGone, IsolatedWorlds
from rllm_gym.envs.web.browser.load_state import ActivityMark, PageActivity
from rllm_gym.envs.web.browser.page_text import Node, fit_lines, on_one_line, outline_lines, quoted, short_description
from rllm_gym.envs.web.browser.tabs import TabSet

if TYPE_CHECKING:
    from rllm_gym.envs.web.browser.pages import Page

CHARS = 20_000
"""Default maximum length of an observation in characters."""

_NODES = 20_000
_TREE_CHARS = 300_000
_MAX_FRAMES = 20
_URL_CHARS = 1_000
_TRIES = 8
_DIALOG_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a page that can be acted on.

    Attributes:
        number: The element's number in actions. It is kept for the element's lifetime and never reused.
        role: ``button``, ``link``, ``textbox`` …; ``clickable`` if only a listener or cursor indicates that it can be
            clicked, ``area`` for other uses of the mouse, which the attribute ``for`` names: ``hover``,
            ``right-click``, ``drop``, and ``click`` or ``drag`` if a container listens for the element.
        name: Its name on the page.
        value: The content of a field; for a list the chosen options, separated by line breaks.
        options: The first fifty options of a list.
        flags: ``checked``, ``disabled``, ``focused`` … in display order.
        attributes: Other displayed attributes, such as ``type`` or ``placeholder``.
        text: The element as displayed in the observation.
        box: Its left and upper edge, width and height in the view, in pixels, if boxes were requested.
    """

    number: int
    role: str
    name: str
    value: str = ""
    options: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    box: tuple[int, int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class PageView:
    """A snapshot of the active tab.

    Attributes:
        text: The observation for the model: URL, title, tabs, events, and the page as an outline.
        url: URL of the document.
        title: Title of the document, on one line.
        elements: Elements that can be acted on, by number, including those omitted from the text.
        tabs: URLs of all tabs in order.
        active: Index of the active tab.
        left_out: Number of lines omitted from the text.
        image: Height x width x 3 bytes, if a screenshot was requested.
        is_dialog: Whether a dialog of the browser is shown instead of the page, which cannot be seen until it is
            answered.
    """

    text: str
    url: str
    title: str
    elements: Mapping[int, Element]
    tabs: tuple[str, ...] = ()
    active: int = 0
    left_out: int = 0
    image: npt.NDArray[np.uint8] | None = None
    is_dialog: bool = False


@dataclass(frozen=True, slots=True)
class Tab:
    """A page, the isolated world in it, and its activity."""

    page: Page
    isolated: IsolatedWorlds
    activity: PageActivity


class ElementRegistry:
    """The state of a session's observations: the observed tabs, and the assigned numbers.

    Attributes:
        tabs: The session's tabs.
        next_number: Number for the next new element.
        locations: Tab and frame of each numbered element of the latest views.
        shown: The numbered elements of the latest view.
        titles: Titles of the observed tabs.
        base: URL of the latest observed page that has one.
        mouse: Where the mouse is.
        held: Keys that are held.
        drag: The drag with a mouse button that is held.
        clipboard: The text that was copied last.
    """

    def __init__(self, tabs: TabSet) -> None:
        self.tabs = tabs
        self.next_number = 1
        self.locations: dict[int, tuple[Page, str]] = {}
        self.shown: dict[int, Node] = {}
        self.titles: dict[Page, str] = {}
        self.base = ""
        self.mouse = (0.0, 0.0)
        self.held: list[str] = []
        self.drag: Drag | None = None
        self.clipboard = ""
        self._tabs: dict[Page, Tab] = {}

    async def tab(self, page: Page) -> Tab:
        """Return what is needed to observe and use a tab. Its events are tracked from the first call on."""
        tab = self._tabs.get(page)
        if tab is None:
            cdp = self.tabs.cdp(page)
            tab = Tab(page, IsolatedWorlds(cdp, page.target), PageActivity(cdp))
            await cdp.send("Network.enable", {"maxTotalBufferSize": 0, "maxResourceBufferSize": 0})
            self._tabs = {other: known for other, known in self._tabs.items() if other in self.tabs.pages}
            self.titles = {other: title for other, title in self.titles.items() if other in self.tabs.pages}
            self._tabs[page] = tab
        return tab

    def mark(self, page: Page) -> ActivityMark | None:
        """Return the present in the activity of a tab that has been observed."""
        tab = self._tabs.get(page)
        return None if tab is None else tab.activity.mark()


async def observe(registry: ElementRegistry, *, chars: int = CHARS, boxes: bool = False) -> PageView:
    """Observe the active tab, without a screenshot.

    Args:
        registry: The state of the session's observations, which is updated.
        chars: Maximum characters of text.
        boxes: Locate elements and shapes.

    Raises:
        BrowserFault: The page does not answer.
    """
    tabs = registry.tabs
    page = tabs.page
    isolated = (await registry.tab(page)).isolated
    seen = _PageSnapshot([], page.url, "", (0, 0, 0, 0), False, False, [])
    for attempt in range(_TRIES):
        if attempt == _TRIES // 2:
            tabs.note("The page was replaced by another again and again; it was stopped.")
        try:
            if attempt >= _TRIES // 2:
                await isolated.send("Page.stopLoading")
            seen = await _page_snapshot(registry, isolated, boxes)
            break
        except DocumentGone:  # another document is replacing it
            continue
    if seen.url.startswith("http"):
        registry.base = seen.url
    numbered = {node["n"]: node for node, _ in seen.numbered}
    # Numbers of other tabs stay known: an action on one of them gets an error message that names the element's tab.
    registry.locations = {n: location for n, location in registry.locations.items() if location[0] is not page}
    registry.locations.update({node["n"]: (page, frame) for node, frame in seen.numbered})
    registry.shown = numbered
    registry.titles[page] = seen.title
    head = _head(registry, seen)
    # Blank lines separate the page from the text of the environment.
    max_chars = chars - sum(len(line) + 1 for line in head)
    lines, left_out = fit_lines(outline_lines(seen.tree), max(max_chars, 500))
    if not lines:
        lines = ["(The page is empty.)"]
    return PageView(
        text="\n".join([*head, *lines]),
        url=seen.url,
        title=seen.title,
        elements={number: _element(node) for number, node in numbered.items()},
        tabs=tuple(item.url for item in tabs.pages),
        active=tabs.pages.index(page) if page in tabs.pages else 0,
        left_out=left_out,
    )


HOW_TO_ANSWER = 'Answer it with handle_dialog("accept") or handle_dialog("dismiss").'


def observe_dialog(registry: ElementRegistry) -> PageView:
    """Return a view of the dialog that waits for an answer. The page behind it cannot be read."""
    tabs = registry.tabs
    dialog = tabs.waiting[0]
    about = f"Dialog ({dialog.type}): {quoted(dialog.message[:_DIALOG_CHARS])}"
    if dialog.type == "prompt":
        about += f" value={quoted(dialog.default_value[:_DIALOG_CHARS])}"
    lines = [
        f"URL: {on_one_line(tabs.page.url[:_URL_CHARS])}",
        *(f"Note: {on_one_line(note)}" for note in tabs.take_notes()),
        about,
        HOW_TO_ANSWER if dialog.type != "prompt" else f'{HOW_TO_ANSWER[:-1]}, or handle_dialog("accept", "text").',
        "Page:",
        "(The page cannot be seen until the dialog is answered.)",
    ]
    return PageView(
        text="\n".join(lines),
        url=tabs.page.url,
        title=registry.titles.get(tabs.page, ""),
        elements={},
        tabs=tuple(item.url for item in tabs.pages),
        active=tabs.pages.index(tabs.page) if tabs.page in tabs.pages else 0,
        is_dialog=True,
    )


# The document and its frames


@dataclass
class _PageSnapshot:
    tree: list[Node]
    url: str
    title: str
    scroll: Sequence[int]
    cut: bool
    modal: bool
    numbered: list[tuple[Node, str]]


async def _page_snapshot(registry: ElementRegistry, isolated: IsolatedWorlds, boxes: bool) -> _PageSnapshot:
    seen = await _document(registry, isolated, isolated.main_frame, boxes)
    numbered: list[tuple[Node, str]] = []
    budget = [_MAX_FRAMES]
    frame_slots = _elements_and_frames(seen["tree"], isolated.main_frame, numbered)
    if frame_slots:
        await _fill(registry, isolated, frame_slots, await isolated.frames(), numbered, budget, boxes)
    if boxes:
        _place_boxes(seen["tree"])
    return _PageSnapshot(
        seen["tree"], seen["url"], seen["title"], seen["scroll"], seen["cut"] or budget[0] < 0, seen["modal"], numbered
    )


def _elements_and_frames(tree: list[Node], frame: str, numbered: list[tuple[Node, str]]) -> dict[int, dict[str, Any]]:
    """Collect the numbered elements of a document; return its frames by index."""
    frame_slots: dict[int, dict[str, Any]] = {}
    waiting = list(reversed(tree))
    while waiting:
        node = waiting.pop()
        if "n" in node:
            numbered.append((node, frame))
        if "frame" in node:
            frame_slots[node["frame"]] = node  # type: ignore[assignment]
        waiting.extend(reversed(node.get("c", ())))
    return frame_slots


async def _fill(
    registry: ElementRegistry,
    isolated: IsolatedWorlds,
    frame_slots: Mapping[int, dict[str, Any]],
    frames: Mapping[str, Any],
    numbered: list[tuple[Node, str]],
    budget: list[int],
    boxes: bool,
) -> None:
    """Insert the content of each frame's document into the tree."""
    for child in frames.get("childFrames", ()):
        budget[0] -= 1
        if budget[0] < 0:
            return
        frame = child["frame"]["id"]
        try:
            seen = await _document(registry, isolated, frame, boxes)
            if seen["own"] not in frame_slots:
                continue
            inner = _elements_and_frames(seen["tree"], frame, numbered)
            if inner:
                await _fill(registry, isolated, inner, child, numbered, budget, boxes)
            frame_slots[seen["own"]]["c"] = seen["tree"]
        except DocumentGone:
            continue  # the frame disappeared or is loading; the page is shown without it


def _place_boxes(tree: list[Node]) -> None:
    """Convert the positions in the documents of frames to positions in the view, and show them."""
    waiting: list[tuple[Any, float, float, float]] = [(node, 0.0, 0.0, 1.0) for node in tree]
    while waiting:
        node, left, top, scale = waiting.pop()
        if "p" in node:
            x, y, width, height = node["p"]
            node["p"] = tuple(round(n) for n in (left + x * scale, top + y * scale, width * scale, height * scale))
            shown = {"box": "{},{} {}x{}".format(*node["p"])}
            if "q" in node:
                points = (f"{left + x * scale:.0f},{top + y * scale:.0f}" for x, y in node["q"])
                shown["points"] = " ".join(points)
            node["a"] = {**node.get("a", {}), **shown}
        if "at" in node:
            x, y, own = node["at"]
            left, top, scale = left + x * scale, top + y * scale, scale * own
        waiting.extend((child, left, top, scale) for child in node.get("c", ()))


async def _document(registry: ElementRegistry, isolated: IsolatedWorlds, frame: str, boxes: bool) -> dict[str, Any]:
    """Return one frame's document."""
    seen = await _tree(registry, isolated, frame, boxes)
    # Only rarely does the browser provide something that the page's document does not.
    if seen["hosts"] and await isolated.open_closed_trees(frame):
        seen = await _tree(registry, isolated, frame, boxes)
    return seen


async def _tree(registry: ElementRegistry, isolated: IsolatedWorlds, frame: str, boxes: bool) -> dict[str, Any]:
    limits = {"first": registry.next_number, "nodes": _NODES, "chars": _TREE_CHARS, "boxes": boxes}
    # If the answer is lost, its numbers are never reused.
    registry.next_number += _NODES
    seen: dict[str, Any] = await isolated.call("observe", limits, frame=frame)
    registry.next_number = seen["next"]
    return seen


def _element(node: Node) -> Element:
    value = node.get("v", "")
    return Element(
        number=node["n"],
        role=node["r"],
        name=node.get("s", ""),
        value="\n".join(value) if isinstance(value, list) else value,
        options=tuple(node.get("o", ())),
        flags=tuple(node.get("f", ())),
        attributes=node.get("a", {}),
        text=short_description(node) + (f" box={quoted(node['a']['box'])}" if "p" in node else ""),
        box=node.get("p"),
    )


# The header above the page


def _head(registry: ElementRegistry, seen: _PageSnapshot) -> list[str]:
    head = [f"URL: {on_one_line(seen.url[:_URL_CHARS])}", f"Title: {quoted(seen.title)}"]
    if len(registry.tabs.pages) > 1:
        names = []
        for index, page in enumerate(registry.tabs.pages):
            name = quoted(registry.titles[page]) if page in registry.titles else on_one_line(page.url[:200])
            names.append(f"{index} {name}{' (active)' if page is registry.tabs.page else ''}")
        head.append(f"Tabs: {', '.join(names)}")
    down, height, right, width = seen.scroll
    if height > 0:
        head.append(f"Scrolled: {down} of {height} px")
    if width > 0:
        head.append(f"Scrolled to the right: {right} of {width} px")
    head += [f"Note: {on_one_line(note)}" for note in registry.tabs.take_notes()]
    if seen.modal:
        head.append("Note: A dialog is open; the rest of the page cannot be used until it is closed.")
    if seen.cut:
        head.append("Note: The page is very large; only its first part is listed.")
    return [*head, "Page:"]
