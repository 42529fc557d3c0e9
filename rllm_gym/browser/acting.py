"""Actions on a page with real mouse and keyboard events. Impossible actions return an error message."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from rllm_gym.browser.acting_drag import Drag
from rllm_gym.browser.acting_keyboard import press_key, type_text
from rllm_gym.browser.acting_keys import UnknownKey, checked_key
from rllm_gym.browser.observation import Sight, Tab, sight_of
from rllm_gym.browser.observation_text import in_short, on_one_line, quoted
from rllm_gym.browser.observation_world import INPUT_S, WorldLost
from rllm_gym.browser.settling import Mark, settle
from rllm_gym.browser.tabs import MOST_TABS
from rllm_gym.parsing.browser_actions import BrowserAction

if TYPE_CHECKING:
    from rllm_gym.browser.pages import Page
    from rllm_gym.browser.session import BrowserSession

_WINDOW_S = 3.0
_WAIT_S = 1.0
_TEXT_CHARS = 100_000
_TYPED_CHARS = 2_000
_MOST_FRAMES_DEEP = 20


class CannotAct(Exception):
    """An action that cannot be carried out. The message is for the model."""


async def act(session: BrowserSession, action: BrowserAction) -> str:
    """Carry out an action in the active tab and wait until everything it started has ended.

    Args:
        session: The session of the tab.
        action: Any action except ``answer`` and ``report_infeasible``, which do not concern the browser.

    Returns:
        ``""``, or a full explanation of why the action is impossible.

    Raises:
        BrowserFault: The browser failed.
        ValueError: There is no such action here.
    """
    doing = _DOING.get(action.name)
    if doing is None:
        raise ValueError(f"{action.name!r} is not an action of a browser; there are {', '.join(_DOING)}")
    sight = sight_of(session)
    tab = await sight.tab(session, session.page)
    opened: list[Page] = []
    arrived = asyncio.Event()

    def window(page: Page) -> None:
        opened.append(page)
        arrived.set()

    session.tabs.context.on("page", window)
    try:
        since = tab.activity.mark()
        try:
            await doing(_Turn(session, sight, tab), action)
        except CannotAct as error:
            return str(error)
        except WorldLost:
            pass  # the page disappeared during the action, as happens when the action leaves the page
        await _settled(session, sight, tab, since, opened, arrived)
    finally:
        session.tabs.context.remove_listener("page", window)
    left = [*tab.activity.failed(since), *tab.activity.opened(since)]
    outside = [url for url in left if not _within(session, url)]
    if outside:
        return f"The page tried to open {quoted(outside[-1][:300])}, which is outside of this task."
    return ""


async def _settled(
    session: BrowserSession, sight: Sight, tab: Tab, since: Mark, opened: list[Page], arrived: asyncio.Event
) -> None:
    """Wait for the page that was acted on, for the windows it opened, and for the page that is now active."""
    note = ""
    if tab.page in session.pages:
        note = await settle(tab.world, tab.activity, since)
    try:
        async with asyncio.timeout(_WINDOW_S):
            while len(opened) < sum(_within(session, url) for url in tab.activity.opened(since)):
                arrived.clear()
                await arrived.wait()
    except TimeoutError:
        pass  # a window that was blocked
    if session.page is not tab.page and session.pages:
        front = await sight.tab(session, session.page)
        note = await settle(front.world, front.activity, front.activity.mark())
    if note:
        session.tabs.note(note)


def _within(session: BrowserSession, url: str) -> bool:
    return url in ("", "about:blank") or session.walls.admits(url)


# Execution of one action


class _Turn:
    """The active tab during one action."""

    def __init__(self, session: BrowserSession, sight: Sight, tab: Tab) -> None:
        self.session = session
        self.sight = sight
        self.tab = tab

    async def on_element(self, number: int | None, call: str, *arguments: Any) -> dict[str, Any]:
        """Call a function of ``act.js`` on an element.

        Raises:
            CannotAct: There is no such element, or it does not allow this use.
        """
        assert number is not None
        frame = self.frame_of(number)
        answer: dict[str, Any] = await self.tab.world.call(call, number, *arguments, frame=frame)
        if answer.get("gone"):
            raise CannotAct(f"{self._called(number)} is no longer on the page. {self._nearest(number)}")
        if "error" in answer:
            raise CannotAct(f"{self._called(number)} {answer['error']}.{_options(answer)}")
        if "cover" in answer:
            raise CannotAct(f"{self._called(number)} is covered by {_cover(answer['cover'])}.")
        return answer

    async def place_of(self, number: int | None, call: str = "locate", *arguments: Any) -> tuple[float, float]:
        """Scroll to an element; return the position in the viewport at which the mouse can reach it."""
        found = await self.on_element(number, call, *arguments)
        assert number is not None
        return await self._in_viewport(number, found["x"], found["y"])

    async def _in_viewport(self, number: int, x: float, y: float) -> tuple[float, float]:
        """Convert a position in a frame's document to one in the viewport."""
        frame = self.frame_of(number)
        for parent, index in await self._way_up(frame):
            found = await self.tab.world.call("frameAt", index, x, y, frame=parent)
            if "x" not in found:
                cover = f"covered by {_cover(found['cover'])}" if "cover" in found else "in a frame that is not shown"
                raise CannotAct(f"{self._called(number)} is {cover}.")
            x, y = found["x"], found["y"]
        return x, y

    async def _way_up(self, frame: str) -> list[tuple[str, int]]:
        """Return the path from a frame to the main one: each parent, and the index of the child frame in it."""
        world = self.tab.world
        if frame == world.main_frame:
            return []
        parents: dict[str, str] = {}
        waiting = [await world.frames()]
        while waiting:
            node = waiting.pop()
            for child in node.get("childFrames", ()):
                parents[child["frame"]["id"]] = node["frame"]["id"]
                waiting.append(child)
        way: list[tuple[str, int]] = []
        while frame in parents and len(way) < _MOST_FRAMES_DEEP:
            way.append((parents[frame], (await world.call("position", frame=frame))["own"]))
            frame = parents[frame]
        return way

    def frame_of(self, number: int) -> str:
        place = self.sight.places.get(number)
        if place is None:
            raise CannotAct(f"There is no element {number} on the page. {self._nearest(number)}")
        page, frame = place
        if page is not self.tab.page:
            if page not in self.session.pages:
                raise CannotAct(f"Element {number} was in a tab that is closed. {self._nearest(number)}")
            index = self.session.pages.index(page)
            raise CannotAct(f"Element {number} is in tab {index}; switch_tab({index}) first.")
        return frame

    def _called(self, number: int) -> str:
        node = self.sight.shown.get(number)
        return f"Element {in_short(node)}" if node else f"Element {number}"

    def _nearest(self, number: int) -> str:
        shown = self.sight.shown
        others = sorted((other for other in shown if other != number), key=lambda other: (abs(other - number), other))
        if not others:
            return "There is no element to act on."
        near = ", ".join(in_short(shown[other]) for other in others[:3])
        return f"The nearest numbers are {near}."

    async def mouse(self, *events: dict[str, Any]) -> None:
        """Send mouse events of the browser itself, in order."""
        cdp = self.tab.world
        await asyncio.gather(*(cdp.send("Input.dispatchMouseEvent", deadline_s=INPUT_S, **event) for event in events))

    async def click_at(self, x: float, y: float, button: str = "left", count: int = 1) -> None:
        events: list[dict[str, Any]] = [{"type": "mouseMoved", "x": x, "y": y}]
        for each in range(1, count + 1):
            pressed = {"x": x, "y": y, "button": button, "clickCount": each}
            events += [{"type": "mousePressed", **pressed}, {"type": "mouseReleased", **pressed}]
        await self.mouse(*events)


def _cover(cover: dict[str, Any]) -> str:
    text = f" {quoted(cover['text'])}" if cover["text"] else ""
    number = f"[{cover['number']}] " if cover.get("number") is not None else ""
    return f"{number}{cover['tag']}{text}, which has to be closed or scrolled away first"


def _options(answer: dict[str, Any]) -> str:
    if "options" not in answer:
        return ""
    more = f" and {answer['more']} more" if answer.get("more") else ""
    return f" It has {', '.join(map(quoted, answer['options'])) or 'none'}{more}."


# Mouse actions


async def _click(turn: _Turn, action: BrowserAction) -> None:
    await turn.click_at(*await turn.place_of(action.element, "clickable"), button=action.option or "left")


async def _dblclick(turn: _Turn, action: BrowserAction) -> None:
    await turn.click_at(*await turn.place_of(action.element, "clickable"), count=2)


async def _mouse_click(turn: _Turn, action: BrowserAction) -> None:
    width, height = turn.session.viewport
    x, y = action.x or 0.0, action.y or 0.0
    if not (0 <= x < width and 0 <= y < height):
        raise CannotAct(f"({x:g}, {y:g}) is outside of the screenshot, which is {width} x {height} pixels.")
    await turn.click_at(x, y, button=action.option or "left")


async def _hover(turn: _Turn, action: BrowserAction) -> None:
    x, y = await turn.place_of(action.element, "locate", True)
    await turn.mouse({"type": "mouseMoved", "x": x, "y": y})


async def _drag(turn: _Turn, action: BrowserAction) -> None:
    await turn.place_of(action.target, "locate", True)
    start = await turn.place_of(action.element)
    assert action.element is not None
    async with Drag(turn.tab.world, turn.frame_of(action.element)) as drag:
        await drag.begin(*start)
        await drag.to(*await turn.place_of(action.target, "locate", True))


async def _set_checked(turn: _Turn, action: BrowserAction) -> None:
    wanted = action.name == "check"
    state = await turn.on_element(action.element, "checked")
    if state["checked"] == wanted:
        return
    if not wanted and state["kind"] == "radio":
        raise CannotAct("A radio button is unchosen by choosing another one of its group.")
    await turn.click_at(*await turn.place_of(action.element, "clickable"))


# Fields and keys


async def _fill(turn: _Turn, action: BrowserAction) -> None:
    text = (action.text or "") if action.name == "fill" else ""
    if len(text) > _TEXT_CHARS:
        raise CannotAct(f"The text has {len(text)} characters; fill takes at most {_TEXT_CHARS}.")
    ready = await turn.on_element(action.element, "prepare", text, "all")
    if ready["type"]:
        await turn.tab.world.send("Input.insertText", text=text)
        await turn.on_element(action.element, "verify", text)


async def _type(turn: _Turn, action: BrowserAction) -> None:
    text = action.text or ""
    if len(text) > _TYPED_CHARS:
        raise CannotAct(f"The text has {len(text)} characters; type takes at most {_TYPED_CHARS}, use fill.")
    await turn.on_element(action.element, "prepare", text, "end")
    await type_text(turn.tab.world, text)


async def _select(turn: _Turn, action: BrowserAction) -> None:
    await turn.on_element(action.element, "select", list(action.options or (action.text or "",)))


async def _press(turn: _Turn, action: BrowserAction) -> None:
    try:
        key = checked_key(action.text or "")
    except UnknownKey as error:
        raise CannotAct(str(error)) from None
    if action.element is not None:
        await turn.on_element(action.element, "focus")
    await press_key(turn.tab.world, key)


async def _focus(turn: _Turn, action: BrowserAction) -> None:
    await turn.on_element(action.element, "focus")


async def _scroll(turn: _Turn, action: BrowserAction) -> None:
    frame = None if action.element is None else turn.frame_of(action.element)
    answer = await turn.tab.world.call("scroll", action.element, action.text, frame=frame)
    if answer.get("gone"):
        raise CannotAct(f"Element {action.element} is no longer on the page.")
    if "error" in answer:
        raise CannotAct(f"{answer['error']}.")


async def _wait(turn: _Turn, action: BrowserAction) -> None:
    await asyncio.sleep(_WAIT_S)


# Navigation and tabs


async def _goto(turn: _Turn, action: BrowserAction) -> None:
    await _open(turn, turn.tab, await _allowed(turn, action.text or ""))


async def _new_tab(turn: _Turn, action: BrowserAction) -> None:
    session = turn.session
    url = await _allowed(turn, action.text) if action.text else None
    if len(session.pages) >= MOST_TABS:
        raise CannotAct(f"There are {len(session.pages)} tabs already; close_tab() one first.")
    page = await session.tabs.context.new_page()
    session.tabs.bring_to_front(page)
    if url is not None:
        await _open(turn, await turn.sight.tab(session, page), url)


async def _open(turn: _Turn, tab: Tab, url: str) -> None:
    answer = await tab.world.send("Page.navigate", url=url)
    if answer.get("errorText") and answer["errorText"] != "net::ERR_ABORTED":
        raise CannotAct(f"{on_one_line(url[:300])} could not be opened: {answer['errorText']}.")


async def _allowed(turn: _Turn, text: str) -> str:
    """Return the URL that Chromium makes of a text, if the task allows opening it.

    Raises:
        CannotAct: It is not a URL, or the task does not allow it.
    """
    shown = quoted(text[:300])
    walls = turn.session.walls
    allowed = ", ".join(sorted((*walls.sites, *walls.origins))) or "none"
    host = text.strip().split("/", 1)[0].lower()
    for origin in (*walls.sites, *walls.origins):
        if host and host == origin.partition("://")[2]:
            text = f"{origin.partition('://')[0]}://{text.strip()}"
    found = await _resolved(turn, text)
    if "error" in found:
        raise CannotAct(f"{shown} is not a URL. This task's sites are {allowed}.")
    if found["scheme"] not in ("http", "https"):
        raise CannotAct(f"{shown} is a {found['scheme'][:40]}: address; only http and https can be opened.")
    if found["user"]:
        raise CannotAct(f"{shown} holds a user name before the @; leave it out.")
    if not walls.admits(found["url"]):
        raise CannotAct(f"{shown} is outside of this task, whose sites are {allowed}.")
    url: str = found["url"]
    return url


async def _resolved(turn: _Turn, text: str) -> dict[str, Any]:
    world, walls = turn.tab.world, turn.session.walls
    base = turn.sight.base or f"{next(iter((*walls.sites, *walls.origins)), 'about:blank')}/"
    while True:
        try:
            found: dict[str, Any] = await world.call("resolve", text, base)
            return found
        except WorldLost:  # another page is replacing this one, possibly endlessly
            with contextlib.suppress(WorldLost):
                await world.send("Page.stopLoading")


async def _through_history(turn: _Turn, action: BrowserAction) -> None:
    history = await turn.tab.world.send("Page.getNavigationHistory")
    step = -1 if action.name == "back" else 1
    at = history["currentIndex"] + step
    entries = history["entries"]
    if not 0 <= at < len(entries) or (step < 0 and entries[at]["url"] == "about:blank"):
        raise CannotAct(f"There is no page to go {action.name} to.")
    await turn.tab.world.send("Page.navigateToHistoryEntry", entryId=entries[at]["id"])


async def _reload(turn: _Turn, action: BrowserAction) -> None:
    await turn.tab.world.send("Page.reload")


async def _close_tab(turn: _Turn, action: BrowserAction) -> None:
    page = _tab(turn, action.index)
    if len(turn.session.pages) == 1:
        raise CannotAct("This is the only tab; it cannot be closed.")
    await page.close()


async def _switch_tab(turn: _Turn, action: BrowserAction) -> None:
    turn.session.tabs.bring_to_front(_tab(turn, action.index))


def _tab(turn: _Turn, index: int | None) -> Page:
    pages = turn.session.pages
    if index is None:
        return turn.tab.page
    if not 0 <= index < len(pages):
        raise CannotAct(
            f"There is no tab {index}; there are 0 to {len(pages) - 1}."
            if len(pages) > 1
            else f"There is no tab {index}; there is only tab 0."
        )
    return pages[index]


_DOING: dict[str, Callable[[_Turn, BrowserAction], Awaitable[None]]] = {
    "click": _click,
    "dblclick": _dblclick,
    "mouse_click": _mouse_click,
    "hover": _hover,
    "drag": _drag,
    "check": _set_checked,
    "uncheck": _set_checked,
    "fill": _fill,
    "clear": _fill,
    "type": _type,
    "select": _select,
    "press": _press,
    "focus": _focus,
    "scroll": _scroll,
    "wait": _wait,
    "goto": _goto,
    "new_tab": _new_tab,
    "back": _through_history,
    "forward": _through_history,
    "reload": _reload,
    "close_tab": _close_tab,
    "switch_tab": _switch_tab,
}
