"""Actions on a page with real mouse and keyboard events. Impossible actions return an error message."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import mimetypes
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from rllm_gym.envs.web.browser.drag import Drag
from rllm_gym.envs.web.browser.isolated_world import INPUT_S, DocumentGone
from rllm_gym.envs.web.browser.key_names import UnknownKey, checked_key, clipboard_command
from rllm_gym.envs.web.browser.keyboard import MODIFIERS, hold_key, modifier_bits, press_key, type_text
from rllm_gym.envs.web.browser.load_state import ActivityMark, wait_for_cover, wait_until_settled
from rllm_gym.envs.web.browser.network_policy import NetworkPolicy
from rllm_gym.envs.web.browser.observation import ElementRegistry, Tab
from rllm_gym.envs.web.browser.page_text import on_one_line, quoted, short_description
from rllm_gym.envs.web.browser.tabs import MAX_TABS
from rllm_gym.parsing.browser_actions import BrowserAction

if TYPE_CHECKING:
    from rllm_gym.envs.web.browser.pages import Page

_WINDOW_S = 3.0
_WAIT_S = 1.0
_MAX_WAIT_MS = 10_000
_CHOOSER_S = 3.0
_MAX_HELD = 4
_TEXT_CHARS = 100_000
_TYPED_CHARS = 2_000
_MAX_FRAME_DEPTH = 20


class ActionFailed(Exception):
    """An action that cannot be carried out. The message is for the model."""


async def act(
    registry: ElementRegistry, viewport: tuple[int, int], action: BrowserAction, since: ActivityMark | None = None
) -> str:
    """Carry out an action in the active tab and wait until everything it started has ended.

    Args:
        registry: The state of the session's observations.
        viewport: Width and height in pixels.
        action: Any action except ``answer`` and ``report_infeasible``, which do not concern the browser.
        since: Also wait for what the tab has started since then, by default since now.

    Returns:
        ``""``, or a full explanation of why the action is impossible.

    Raises:
        BrowserFault: The browser failed.
        ValueError: There is no such action here.
    """
    handler = _HANDLERS.get(action.name)
    if handler is None:
        raise ValueError(f"unknown browser action {action.name!r}; available actions: {', '.join(_HANDLERS)}")
    tabs = registry.tabs
    tab = await registry.tab(tabs.page)
    opened: list[Page] = []
    arrived = asyncio.Event()

    def window(page: Page) -> None:
        opened.append(page)
        arrived.set()

    tabs.context.on("page", window)
    try:
        since = since or tab.activity.mark()
        try:
            await handler(_ActionContext(registry, tab, viewport), action)
        except ActionFailed as error:
            return str(error)
        except DocumentGone:
            pass  # the page disappeared during the action, as happens when the action leaves the page
        await _wait_for_effects(registry, tab, since, opened, arrived)
    finally:
        tabs.context.remove_listener("page", window)
    left = [*tab.activity.failed(since), *tab.activity.opened(since)]
    outside = [url for url in left if not _is_allowed(tabs.network_policy, url)]
    if outside:
        return f"The page tried to open {quoted(outside[-1][:300])}, which is outside of this task."
    return ""


async def _wait_for_effects(
    registry: ElementRegistry,
    tab: Tab,
    since: ActivityMark,
    opened: list[Page],
    arrived: asyncio.Event,
) -> None:
    """Wait for the page that was acted on, for the windows it opened, and for the page that is now active."""
    tabs, note = registry.tabs, ""
    if tab.page in tabs.pages:
        note = await wait_until_settled(tab.isolated, tab.activity, since, tabs.scripts_stopped)
    try:
        async with asyncio.timeout(_WINDOW_S):
            while len(opened) < sum(_is_allowed(tabs.network_policy, url) for url in tab.activity.opened(since)):
                arrived.clear()
                await arrived.wait()
    except TimeoutError:
        pass  # a window that was blocked
    if tabs.page is not tab.page and tabs.pages:
        front = await registry.tab(tabs.page)
        mark = front.activity.mark()
        note = await wait_until_settled(front.isolated, front.activity, mark, tabs.scripts_stopped)
    if note:
        tabs.note(note)


def _is_allowed(policy: NetworkPolicy, url: str) -> bool:
    return url in ("", "about:blank") or policy.is_allowed(url)


# Execution of one action


class _ActionContext:
    """The active tab during one action."""

    def __init__(self, registry: ElementRegistry, tab: Tab, viewport: tuple[int, int]) -> None:
        self.registry = registry
        self.tabs = registry.tabs
        self.tab = tab
        self.viewport = viewport

    async def on_element(self, number: int | None, call: str, *arguments: Any) -> dict[str, Any]:
        """Call a function of ``act.js`` on an element.

        Raises:
            ActionFailed: There is no such element, or it does not allow this use.
        """
        assert number is not None
        frame = self.frame_of(number)
        answer = await self._uncovered(frame, call, number, *arguments)
        if answer.get("gone"):
            raise ActionFailed(f"{self._describe(number)} is no longer on the page. {self._nearest(number)}")
        if "error" in answer:
            raise ActionFailed(f"{self._describe(number)} {answer['error']}.{_options(answer)}")
        if "cover" in answer:
            raise ActionFailed(f"{self._describe(number)} is covered by {_covering_element(answer['cover'])}.")
        return answer

    async def _uncovered(self, frame: str, call: str, *arguments: Any) -> dict[str, Any]:
        """Call a function of ``act.js``, a second time if something covers what it looks for and may go away."""
        answer: dict[str, Any] = await self.tab.isolated.call(call, *arguments, frame=frame)
        if "cover" in answer:
            with contextlib.suppress(DocumentGone):  # the element was not reached before the page left
                await wait_for_cover(self.tab.isolated, frame, self.tabs.scripts_stopped)
                answer = await self.tab.isolated.call(call, *arguments, frame=frame)
        return answer

    async def point_of(self, number: int | None, call: str = "locate", *arguments: Any) -> tuple[float, float]:
        """Scroll to an element; return the position in the viewport at which the mouse can reach it."""
        found = await self.on_element(number, call, *arguments)
        assert number is not None
        return await self._in_viewport(number, found["x"], found["y"])

    async def _in_viewport(self, number: int, x: float, y: float) -> tuple[float, float]:
        """Convert a position in a frame's document to one in the viewport."""
        frame = self.frame_of(number)
        for parent, index in await self._parent_frames(frame):
            found = await self._uncovered(parent, "frameAt", index, x, y)
            if "x" not in found:
                cover = (
                    f"covered by {_covering_element(found['cover'])}"
                    if "cover" in found
                    else "in a frame that is not shown"
                )
                raise ActionFailed(f"{self._describe(number)} is {cover}.")
            x, y = found["x"], found["y"]
        return x, y

    async def _parent_frames(self, frame: str) -> list[tuple[str, int]]:
        """Return the path from a frame to the main one: each parent, and the index of the child frame in it."""
        isolated = self.tab.isolated
        if frame == isolated.main_frame:
            return []
        parents: dict[str, str] = {}
        waiting = [await isolated.frames()]
        while waiting:
            node = waiting.pop()
            for child in node.get("childFrames", ()):
                parents[child["frame"]["id"]] = node["frame"]["id"]
                waiting.append(child)
        path: list[tuple[str, int]] = []
        while frame in parents and len(path) < _MAX_FRAME_DEPTH:
            path.append((parents[frame], (await isolated.call("position", frame=frame))["own"]))
            frame = parents[frame]
        return path

    @property
    def bits(self) -> int:
        """The protocol's bits of the modifiers that are held."""
        return modifier_bits(self.registry.held)

    def open_drag(self) -> Drag | None:
        """Return the drag of the left button that is held in this tab."""
        drag = self.registry.drag
        if drag is None or drag.isolated is not self.tab.isolated:
            return None
        drag.modifiers = self.bits
        return drag

    def key(self, text: str) -> str:
        try:
            return checked_key(text)
        except UnknownKey as error:
            raise ActionFailed(str(error)) from None

    async def clipboard(self, key: str) -> bool:
        """Copy, cut or paste with the clipboard of the episode, if that is what a key does."""
        command = clipboard_command(key)
        if not command:
            return False
        isolated, frame = self.tab.isolated, await self.focused_frame()
        if command != "paste":
            self.registry.clipboard = (await isolated.call("copySelection", command, frame=frame))["text"]
        elif (await isolated.call("paste", self.registry.clipboard, frame=frame))["insert"]:
            await isolated.send("Input.insertText", text=self.registry.clipboard)
        return True

    def frame_of(self, number: int) -> str:
        location = self.registry.locations.get(number)
        if location is None:
            raise ActionFailed(f"There is no element {number} on the page. {self._nearest(number)}")
        page, frame = location
        if page is not self.tab.page:
            if page not in self.tabs.pages:
                raise ActionFailed(f"Element {number} was in a tab that is closed. {self._nearest(number)}")
            index = self.tabs.pages.index(page)
            raise ActionFailed(f"Element {number} is in tab {index}; switch_tab({index}) first.")
        return frame

    def _describe(self, number: int) -> str:
        node = self.registry.shown.get(number)
        return f"Element {short_description(node)}" if node else f"Element {number}"

    def _nearest(self, number: int) -> str:
        shown = self.registry.shown
        others = sorted((other for other in shown if other != number), key=lambda other: (abs(other - number), other))
        if not others:
            return "There is no element to act on."
        near = ", ".join(short_description(shown[other]) for other in others[:3])
        return f"The nearest numbers are {near}."

    async def mouse(self, x: float, y: float, *events: dict[str, Any], held: Sequence[str] = ()) -> None:
        """Move the mouse to a position, and send further mouse events of the browser itself there, in order."""
        cdp = self.tab.isolated
        self.registry.mouse = (x, y)
        place = {"x": x, "y": y, "modifiers": modifier_bits([*self.registry.held, *held])}
        await asyncio.gather(
            *(
                cdp.send("Input.dispatchMouseEvent", deadline_s=INPUT_S, **place, **event)
                for event in ({"type": "mouseMoved"}, *events)
            )
        )

    async def click_at(self, x: float, y: float, action: BrowserAction, count: int = 1) -> None:
        """Click with the action's button and modifiers."""
        button = action.option or "left"
        held = ["Control" if key == "ControlOrMeta" else key for key in action.modifiers]
        events: list[dict[str, Any]] = []
        for item in range(1, count + 1):
            pressed = {"button": button, "clickCount": item}
            events += [{"type": "mousePressed", **pressed}, {"type": "mouseReleased", **pressed}]
        await self.mouse(x, y, *events, held=held)

    def place(self, x: float | None, y: float | None) -> tuple[float, float]:
        """Return a position that a model gave, if it is in the view."""
        width, height = self.viewport
        x, y = x or 0.0, y or 0.0
        if not (0 <= x < width and 0 <= y < height):
            raise ActionFailed(f"({x:g}, {y:g}) is outside of the view, which is {width} x {height} pixels.")
        return x, y

    async def all_frames(self) -> list[str]:
        """Return the main frame and at most twenty others, in which a drag from a position may start."""
        names: list[str] = []
        waiting = [await self.tab.isolated.frames()]
        while waiting and len(names) <= _MAX_FRAME_DEPTH:
            node = waiting.pop(0)
            names.append(node["frame"]["id"])
            waiting.extend(node.get("childFrames", ()))
        return names

    async def focused_frame(self) -> str:
        """Return the frame that has the focus."""
        isolated, node = self.tab.isolated, await self.tab.isolated.frames()
        while True:
            frame: str = node["frame"]["id"]
            index = (await isolated.call("focusedFrame", frame=frame))["index"]
            if index is None:
                return frame
            for child in node.get("childFrames", ()):
                with contextlib.suppress(DocumentGone):
                    if (await isolated.call("position", frame=child["frame"]["id"]))["own"] == index:
                        node = child
                        break
            else:
                return frame


def _covering_element(cover: dict[str, Any]) -> str:
    text = f" {quoted(cover['text'])}" if cover["text"] else ""
    number = f"[{cover['number']}] " if cover.get("number") is not None else ""
    return f"{number}{cover['tag']}{text}, which has to be closed or scrolled away first"


def _options(answer: dict[str, Any]) -> str:
    if "options" not in answer:
        return ""
    more = f" and {answer['more']} more" if answer.get("more") else ""
    return f" It has {', '.join(map(quoted, answer['options'])) or 'none'}{more}."


# Mouse actions


async def _click(context: _ActionContext, action: BrowserAction) -> None:
    count = 2 if action.name == "dblclick" else 1
    await context.click_at(*await context.point_of(action.element, "clickable"), action, count)


async def _hover(context: _ActionContext, action: BrowserAction) -> None:
    await context.mouse(*await context.point_of(action.element, "locate", True))


async def _drag(context: _ActionContext, action: BrowserAction) -> None:
    by_place = action.name == "drag_to"
    end = context.place(action.to_x, action.to_y) if by_place else None
    if end is None:
        await context.point_of(action.target, "locate", True)
    start = await context.point_of(action.element)
    assert action.element is not None
    async with Drag(context.tab.isolated, [context.frame_of(action.element)], context.bits) as drag:
        await drag.press(*start)
        context.registry.mouse = end or await context.point_of(action.target, "locate", True)
        await drag.move_to(*context.registry.mouse)


async def _scroll_to(context: _ActionContext, action: BrowserAction) -> None:
    await context.on_element(action.element, "scrollTo")


async def _at_place(context: _ActionContext, action: BrowserAction) -> None:
    x, y = context.place(action.x, action.y)
    if action.name == "mouse_move":
        if (drag := context.open_drag()) is not None:
            context.registry.mouse = (x, y)
            await drag.move_to(x, y, 1)
        else:
            await context.mouse(x, y)
    else:
        await context.click_at(x, y, action, 2 if action.name == "mouse_dblclick" else 1)


async def _mouse_down(context: _ActionContext, action: BrowserAction) -> None:
    x, y = context.place(action.x, action.y)
    if context.open_drag() is not None:
        raise ActionFailed("The left button is held already; mouse_up(x, y) releases it.")
    if action.option in (None, "left"):
        if (other := context.registry.drag) is not None:  # of another tab, which may be closed or hang
            context.registry.drag = None
            with contextlib.suppress(Exception):
                await other.end()
        drag = Drag(context.tab.isolated, await context.all_frames(), context.bits)
        await drag.begin()
        context.registry.mouse, context.registry.drag = (x, y), drag
        await drag.press(x, y)
    else:
        await context.mouse(x, y, {"type": "mousePressed", "button": action.option, "clickCount": 1})


async def _mouse_up(context: _ActionContext, action: BrowserAction) -> None:
    x, y = context.place(action.x, action.y)
    if action.option in (None, "left") and (drag := context.open_drag()) is not None:
        context.registry.mouse, context.registry.drag = (x, y), None
        try:
            await drag.move_to(x, y, 1)
        finally:
            await drag.end()
    else:
        await context.mouse(x, y, {"type": "mouseReleased", "button": action.option or "left", "clickCount": 1})


async def _drag_places(context: _ActionContext, action: BrowserAction) -> None:
    start, end = context.place(action.x, action.y), context.place(action.to_x, action.to_y)
    async with Drag(context.tab.isolated, await context.all_frames(), context.bits) as drag:
        await drag.press(*start)
        context.registry.mouse = end
        await drag.move_to(*end)


async def _wheel(context: _ActionContext, action: BrowserAction) -> None:
    event = {"type": "mouseWheel", "deltaX": action.x or 0.0, "deltaY": action.y or 0.0}
    await context.mouse(*context.registry.mouse, event)


async def _set_checked(context: _ActionContext, action: BrowserAction) -> None:
    wanted = action.name == "check"
    state = await context.on_element(action.element, "checked")
    if state["checked"] == wanted:
        return
    if not wanted and state["kind"] == "radio":
        raise ActionFailed("A radio button is unchosen by choosing another one of its group.")
    await context.click_at(*await context.point_of(action.element, "clickable"), action)


# Fields and keys


async def _fill(context: _ActionContext, action: BrowserAction) -> None:
    text = (action.text or "") if action.name == "fill" else ""
    if len(text) > _TEXT_CHARS:
        raise ActionFailed(f"The text has {len(text)} characters; fill takes at most {_TEXT_CHARS}.")
    ready = await context.on_element(action.element, "prepare", text, "all")
    if ready.get("byClick"):
        await _click_to_edit(context, action)
        await press_key(context.tab.isolated, checked_key("Control+a"))
        await press_key(context.tab.isolated, checked_key("Delete"))
    if ready.get("byClick") or ready["type"]:
        last = text[-1:] if action.by_keys else ""
        await context.tab.isolated.send("Input.insertText", text=text[: len(text) - len(last)])
        await type_text(context.tab.isolated, last)
    if not ready.get("byClick") and ready["type"]:
        await context.on_element(action.element, "verify", text)


async def _type(context: _ActionContext, action: BrowserAction) -> None:
    text = action.text or ""
    if len(text) > _TYPED_CHARS:
        raise ActionFailed(f"The text has {len(text)} characters; type takes at most {_TYPED_CHARS}, use fill.")
    if action.element is not None:
        ready = await context.on_element(action.element, "prepare", text, "end")
        if ready.get("byClick"):
            await _click_to_edit(context, action)
    await type_text(context.tab.isolated, text)


async def _click_to_edit(context: _ActionContext, action: BrowserAction) -> None:
    """Click an element that is not a field, such as a code editor, and check that a field in it then has the focus."""
    await context.click_at(*await context.point_of(action.element, "clickable"), action)
    await context.on_element(action.element, "editing")


async def _select(context: _ActionContext, action: BrowserAction) -> None:
    await context.on_element(action.element, "select", list(action.options or (action.text or "",)))


async def _press(context: _ActionContext, action: BrowserAction) -> None:
    key = context.key("+".join([*context.registry.held, action.text or ""]))
    if action.element is not None:
        await context.on_element(action.element, "focus")
    if not await context.clipboard(key):
        await press_key(context.tab.isolated, key)


async def _hold(context: _ActionContext, action: BrowserAction) -> None:
    held, key = context.registry.held, context.key(action.text or "")
    if len(key) > 1 and "+" in key:
        raise ActionFailed(f"{key} is a combination; hold its keys one after another, or use press.")
    if action.name == "keyboard_up":
        if key in held:
            held.remove(key)
        await hold_key(context.tab.isolated, key, held, down=False)
    elif not await context.clipboard("+".join([*held, key])):
        if key in held or len(held) >= _MAX_HELD:
            raise ActionFailed(f"The keys {', '.join(held)} are held already; keyboard_up(…) releases one.")
        if key in MODIFIERS:
            held.append(key)
        await hold_key(context.tab.isolated, key, held, down=True)


async def _select_text(context: _ActionContext, action: BrowserAction) -> None:
    if action.element is not None:
        await context.on_element(action.element, "selectText", action.text)
    elif "error" in (await context.tab.isolated.call("selectText", None, action.text)):
        raise ActionFailed(f"The page does not contain {quoted((action.text or '')[:200])}.")


async def _upload(context: _ActionContext, action: BrowserAction) -> None:
    known, names = context.tabs.files, ", ".join(map(quoted, context.tabs.files))
    for name in action.options:
        if name not in known:
            raise ActionFailed(
                f"There is no file {quoted(name[:100])}; the files of the task are {names}."
                if known
                else "This task has no files to upload."
            )
    files = [
        {
            "name": name,
            "type": mimetypes.guess_type(name)[0] or "application/octet-stream",
            "content": base64.b64encode(known[name]).decode(),
        }
        for name in action.options
    ]
    if action.name == "upload_file":
        answer = await context.on_element(action.element, "upload", files)
        if "chooser" not in answer:
            return
        x, y = await context.point_of(action.element)
    else:
        x, y = context.place(action.x, action.y)
    # Many pages hide their file field: a click on a button asks for files.
    context.tabs.chooser = asyncio.get_running_loop().create_future()
    try:
        await context.click_at(x, y, BrowserAction("click"))
        async with asyncio.timeout(_CHOOSER_S):
            asked = await context.tabs.chooser
    except TimeoutError:
        raise ActionFailed("It did not ask for a file when it was clicked.") from None
    finally:
        context.tabs.chooser = None
    if "backendNodeId" not in asked:
        raise ActionFailed("It asked for a file without a field for files, which cannot be answered here.")
    answer = await context.tab.isolated.call_on_node(asked["frameId"], asked["backendNodeId"], "setFiles", files)
    if "error" in answer:
        raise ActionFailed(f"The field {answer['error']}.")


async def _focus(context: _ActionContext, action: BrowserAction) -> None:
    await context.on_element(action.element, "focus")


async def _scroll(context: _ActionContext, action: BrowserAction) -> None:
    frame = None if action.element is None else context.frame_of(action.element)
    answer = await context.tab.isolated.call("scroll", action.element, action.text, frame=frame)
    if answer.get("gone"):
        raise ActionFailed(f"Element {action.element} is no longer on the page.")
    if "error" in answer:
        raise ActionFailed(f"{answer['error']}.")


async def _wait(context: _ActionContext, action: BrowserAction) -> None:
    await asyncio.sleep(_WAIT_S if action.ms is None else min(max(action.ms, 0.0), _MAX_WAIT_MS) / 1_000)


async def _handle_dialog(context: _ActionContext, action: BrowserAction) -> None:
    raise ActionFailed("No dialog of the browser is open; act on the elements of a dialog of the page.")


# Navigation and tabs


async def _goto(context: _ActionContext, action: BrowserAction) -> None:
    await _open(context, context.tab, await _allowed(context, action.text or ""))


async def _new_tab(context: _ActionContext, action: BrowserAction) -> None:
    tabs = context.tabs
    url = await _allowed(context, action.text) if action.text else None
    if len(tabs.pages) >= MAX_TABS:
        raise ActionFailed(f"There are {len(tabs.pages)} tabs already; close_tab() one first.")
    page = await tabs.context.new_page()
    tabs.bring_to_front(page)
    if url is not None:
        await _open(context, await context.registry.tab(page), url)


async def _open(context: _ActionContext, tab: Tab, url: str) -> None:
    answer = await tab.isolated.send("Page.navigate", url=url)
    if answer.get("errorText") and answer["errorText"] != "net::ERR_ABORTED":
        raise ActionFailed(f"{on_one_line(url[:300])} could not be opened: {answer['errorText']}.")


async def _allowed(context: _ActionContext, text: str) -> str:
    """Return the URL that Chromium makes of a text, if the task allows opening it.

    Raises:
        ActionFailed: It is not a URL, or the task does not allow it.
    """
    shown = quoted(text[:300])
    policy = context.tabs.network_policy
    allowed = ", ".join(sorted((*policy.sites, *policy.origins))) or "none"
    host = text.strip().split("/", 1)[0].lower()
    for origin in (*policy.sites, *policy.origins):
        if host and host == origin.partition("://")[2]:
            text = f"{origin.partition('://')[0]}://{text.strip()}"
    found = await _resolved(context, text)
    if "error" in found:
        raise ActionFailed(f"{shown} is not a URL. This task's sites are {allowed}.")
    if found["scheme"] not in ("http", "https"):
        raise ActionFailed(f"{shown} is a {found['scheme'][:40]}: address; only http and https can be opened.")
    if found["user"]:
        raise ActionFailed(f"{shown} holds a user name before the @; leave it out.")
    if not policy.is_allowed(found["url"]):
        raise ActionFailed(f"{shown} is outside of this task, whose sites are {allowed}.")
    url: str = found["url"]
    return url


async def _resolved(context: _ActionContext, text: str) -> dict[str, Any]:
    isolated, policy = context.tab.isolated, context.tabs.network_policy
    base = context.registry.base or f"{next(iter((*policy.sites, *policy.origins)), 'about:blank')}/"
    while True:
        try:
            found: dict[str, Any] = await isolated.call("resolve", text, base)
            return found
        except DocumentGone:  # another page is replacing this one, possibly endlessly
            with contextlib.suppress(DocumentGone):
                await isolated.send("Page.stopLoading")


async def _through_history(context: _ActionContext, action: BrowserAction) -> None:
    history = await context.tab.isolated.send("Page.getNavigationHistory")
    step = -1 if action.name == "back" else 1
    at = history["currentIndex"] + step
    entries = history["entries"]
    if not 0 <= at < len(entries) or (step < 0 and entries[at]["url"] == "about:blank"):
        raise ActionFailed(f"There is no page to go {action.name} to.")
    await context.tab.isolated.send("Page.navigateToHistoryEntry", entryId=entries[at]["id"])


async def _reload(context: _ActionContext, action: BrowserAction) -> None:
    await context.tab.isolated.send("Page.reload")


async def _close_tab(context: _ActionContext, action: BrowserAction) -> None:
    page = _tab(context, action.index)
    if len(context.tabs.pages) == 1:
        raise ActionFailed("This is the only tab; it cannot be closed.")
    await page.close()


async def _switch_tab(context: _ActionContext, action: BrowserAction) -> None:
    context.tabs.bring_to_front(_tab(context, action.index))


def _tab(context: _ActionContext, index: int | None) -> Page:
    pages = context.tabs.pages
    if index is None:
        return context.tab.page
    if not 0 <= index < len(pages):
        raise ActionFailed(
            f"There is no tab {index}; there are 0 to {len(pages) - 1}."
            if len(pages) > 1
            else f"There is no tab {index}; there is only tab 0."
        )
    return pages[index]


_HANDLERS: dict[str, Callable[[_ActionContext, BrowserAction], Awaitable[None]]] = {
    "click": _click,
    "dblclick": _click,
    "mouse_move": _at_place,
    "mouse_click": _at_place,
    "mouse_dblclick": _at_place,
    "mouse_down": _mouse_down,
    "mouse_up": _mouse_up,
    "mouse_drag_and_drop": _drag_places,
    "mouse_wheel": _wheel,
    "hover": _hover,
    "drag": _drag,
    "drag_to": _drag,
    "upload_file": _upload,
    "mouse_upload_file": _upload,
    "handle_dialog": _handle_dialog,
    "keyboard_down": _hold,
    "keyboard_up": _hold,
    "select_text": _select_text,
    "scroll_to": _scroll_to,
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
