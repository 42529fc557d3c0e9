"""Contexts and pages of the browser: opening, events and closing, as far as episodes need them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rllm_gym.envs.web.browser.cdp import GONE, CDPConnection, CDPSession, ProtocolError

_MAX_KEPT = 100
_MAX_EARLY_EVENTS = 1_000
_ATTACH = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
_ONLY_PAGES = [{"type": "page"}]
_FRAMES_AND_WORKERS = [{"type": "iframe"}, {"type": "worker"}]  # a paused worker never continues by itself

# Pages look the same whatever the settings of the machine.
_LOOKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Emulation.setUserAgentOverride", {"userAgent": "", "acceptLanguage": "en-US"}),
    ("Emulation.setLocaleOverride", {"locale": "en-US"}),
    ("Emulation.setTimezoneOverride", {"timezoneId": "UTC"}),
    (
        "Emulation.setEmulatedMedia",
        {
            "media": "",
            "features": [
                {"name": "prefers-color-scheme", "value": "light"},
                {"name": "prefers-reduced-motion", "value": "reduce"},
                {"name": "forced-colors", "value": "none"},
                {"name": "prefers-contrast", "value": "no-preference"},
            ],
        },
    ),
    (
        "Page.setFontFamilies",
        {
            "fontFamilies": {
                "standard": "Times New Roman",
                "serif": "Times New Roman",
                "sansSerif": "Arial",
                "fixed": "Monospace",
                "cursive": "Comic Sans MS",
                "fantasy": "Impact",
            }
        },
    ),
)


class PageClosed(ProtocolError):
    """The page is closed."""


class _EventEmitter:
    """A registry of listeners by event name."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[[Any], object]]] = {}

    def on(self, event: str, listener: Callable[[Any], object]) -> None:
        self._listeners.setdefault(event, []).append(listener)

    def remove_listener(self, event: str, listener: Callable[[Any], object]) -> None:
        self._listeners[event].remove(listener)

    def emit(self, event: str, what: Any) -> None:
        for listener in tuple(self._listeners.get(event, ())):
            listener(what)


class Contexts:
    """All contexts of one browser; assigns each reported page to its context."""

    def __init__(self, connection: CDPConnection) -> None:
        self._connection = connection
        self._contexts: dict[str, BrowserContext] = {}
        self._pages: dict[str, Page] = {}  # by session name

    def __len__(self) -> int:
        return len(self._contexts)

    async def start(self) -> None:
        root = self._connection.root
        root.on("Target.attachedToTarget", self._attached)
        root.on("Target.detachedFromTarget", self._detached)
        root.on("Browser.downloadWillBegin", self._download)
        root.on("Target.targetCrashed", self._crashed)
        self._connection.closed.add_done_callback(lambda _: self._all_gone())
        await root.send("Target.setAutoAttach", {**_ATTACH, "filter": _ONLY_PAGES})
        # Only these events tell how a page's process ended.
        await root.send("Target.setDiscoverTargets", {"discover": True, "filter": _ONLY_PAGES})

    async def new(self, *, proxy: str, viewport: tuple[int, int], init_script: str) -> BrowserContext:
        """Create a context without pages that shares nothing with others.

        Args:
            proxy: ``http://host:port``; all traffic goes through it.
            viewport: Width and height of its pages in pixels.
            init_script: Runs in each document before the document's own scripts.
        """
        root = self._connection.root
        wanted = {"disposeOnDetach": True, "proxyServer": proxy, "proxyBypassList": "<-loopback>"}
        name: str = (await root.send("Target.createBrowserContext", wanted))["browserContextId"]
        context = self._contexts[name] = BrowserContext(self, root, name, viewport, init_script)
        try:
            await asyncio.gather(
                root.send_nowait(
                    "Browser.setDownloadBehavior",
                    {"behavior": "deny", "browserContextId": name, "eventsEnabled": True},
                ),
                root.send_nowait("Browser.grantPermissions", {"permissions": [], "browserContextId": name}),
            )
        except BaseException:
            self.forget(context)
            root.send_nowait("Target.disposeBrowserContext", {"browserContextId": name})
            raise
        return context

    def forget(self, context: BrowserContext) -> None:
        self._contexts.pop(context.name, None)

    def _attached(self, event: dict[str, Any]) -> None:
        target, name = event["targetInfo"], event["sessionId"]
        context = self._contexts.get(target.get("browserContextId", ""))
        if target["type"] != "page":
            return
        session = self._connection.session(name)
        if context is None:  # a page that opens while its context closes
            session.send_nowait("Runtime.runIfWaitingForDebugger")
            return
        page = self._pages[name] = Page(context, session, self._connection, target)
        context.opening(page)

    def _detached(self, event: dict[str, Any]) -> None:
        self._connection.end_session(event["sessionId"])
        page = self._pages.pop(event["sessionId"], None)
        if page is not None:
            page.gone()

    def _crashed(self, event: dict[str, Any]) -> None:
        for page in tuple(self._pages.values()):
            if page.target == event["targetId"]:
                page.killed = event["status"] == "killed"
                page.emit("crash", page)

    def _all_gone(self) -> None:
        pages, self._pages = self._pages, {}
        for page in pages.values():
            page.gone()

    def _download(self, event: dict[str, Any]) -> None:
        for page in self._pages.values():
            if event.get("frameId") in page.frames:
                page.emit("download", Download(event.get("suggestedFilename", "")))
                return


class BrowserContext(_EventEmitter):
    """An isolated context. Its event ``page`` reports each page that is ready.

    Attributes:
        viewport: Width and height of its pages in pixels.
        init_script: Runs in each document before the document's own scripts.
    """

    def __init__(
        self, contexts: Contexts, root: CDPSession, name: str, viewport: tuple[int, int], init_script: str
    ) -> None:
        super().__init__()
        self.name = name
        self.viewport = viewport
        self.init_script = init_script
        self.pages: list[Page] = []
        self._contexts = contexts
        self._root = root
        self._coming: dict[str, asyncio.Task[Page]] = {}  # by target

    async def new_page(self) -> Page:
        """Open an empty page.

        Raises:
            ProtocolError: The context is closed.
        """
        width, height = self.viewport
        # Each page has its own window: a full Chromium refuses a size for a second tab of a window.
        size = {"width": width, "height": height, "newWindow": True}
        wanted = {"url": "about:blank", "browserContextId": self.name, **size}
        target: str = (await self._root.send("Target.createTarget", wanted))["targetId"]
        # The browser reports a page before it answers; ``_coming`` keeps it until this wait.
        coming = self._coming.get(target)
        if coming is None:
            raise PageClosed(GONE)
        page = await asyncio.shield(coming)
        if page.is_closed():
            raise PageClosed(GONE)
        return page

    async def close(self) -> None:
        """Close the context and delete what it stored."""
        self._contexts.forget(self)
        await self._root.send("Target.disposeBrowserContext", {"browserContextId": self.name})

    def opening(self, page: Page) -> None:
        """Handle a new page, which is paused until it is set up."""
        self._coming[page.target] = asyncio.ensure_future(self._ready(page))

    def gone(self, page: Page) -> None:
        """Handle a closed page."""
        if page in self.pages:
            self.pages.remove(page)
        self._coming.pop(page.target, None)

    async def _ready(self, page: Page) -> Page:
        await page.ready()
        if not page.is_closed():
            self.pages.append(page)
            self.emit("page", page)
        page.announced()
        return page


@dataclass(frozen=True, slots=True)
class Download:
    """A file download started by a page."""

    suggested_filename: str


@dataclass(frozen=True, slots=True)
class Dialog:
    """A dialog waiting for an answer: ``type`` is ``alert``, ``confirm``, ``prompt`` or ``beforeunload``."""

    page: Page
    session: CDPSession
    type: str
    message: str
    default_value: str

    async def accept(self, text: str | None = None) -> None:
        answer = {"accept": True} if text is None else {"accept": True, "promptText": text}
        await self.session.send("Page.handleJavaScriptDialog", answer)

    async def dismiss(self) -> None:
        await self.session.send("Page.handleJavaScriptDialog", {"accept": False})


class Page(_EventEmitter):
    """A tab, or a window that a page opened.

    Its events: ``close``, ``crash`` and ``dialogclosed`` (with the page), ``dialog``, ``download``, ``filechooser``,
    and ``navigated`` (with the page) when its URL has changed.

    Attributes:
        session: For commands of the protocol.
        target: Its name, which is also the name of its main frame.
        url: URL of its document.
        frames: Names of its frames.
        killed: Its process was ended by a signal from outside, which no script in it can cause.
    """

    def __init__(
        self, context: BrowserContext, session: CDPSession, connection: CDPConnection, target: dict[str, Any]
    ) -> None:
        super().__init__()
        self.session = session
        self.target: str = target["targetId"]
        self.url = "about:blank"
        self.frames = {self.target}
        self.killed = False
        self._context = context
        self._connection = connection
        self._closed = False
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loaded = asyncio.Event()
        self._news = asyncio.Event()
        self._commits: deque[str] = deque(maxlen=_MAX_KEPT)  # the latest loads of the main frame
        self._started_loads: deque[str] = deque(maxlen=_MAX_KEPT)  # the loads started there
        self._early: list[tuple[str, Any]] | None = []  # events from before the page was announced
        self._background: set[asyncio.Task[None]] = set()
        session.on("Page.frameNavigated", self._navigated)
        session.on("Page.frameStartedNavigating", self._begins)
        session.on("Page.navigatedWithinDocument", self._moved)
        session.on("Page.loadEventFired", lambda event: self._loaded.set())
        self._follow(session)

    async def ready(self) -> None:
        """Apply the settings of every page, resume it, and wait for a document: the first one has no URL."""
        width, height = self._context.viewport
        metrics = {"width": width, "height": height, "screenWidth": width, "screenHeight": height}
        orientation = {"angle": 0, "type": "landscapePrimary" if width > height else "portraitPrimary"}
        tree = self.session.send_nowait("Page.getFrameTree")
        await self._set_up(
            self.session,
            ("Emulation.setDeviceMetricsOverride",
             {**metrics, "mobile": False, "deviceScaleFactor": 1, "screenOrientation": orientation}),
            ("Emulation.setFocusEmulationEnabled", {"enabled": True}),
        )  # fmt: skip
        with contextlib.suppress(ProtocolError):
            first = (await tree)["frameTree"]["frame"]["url"]
            while first in ("", ":") and not self._commits:
                await self._next()

    def emit(self, event: str, what: Any) -> None:
        if self._early is None:
            super().emit(event, what)
        elif len(self._early) < _MAX_EARLY_EVENTS:
            self._early.append((event, what))

    def announced(self) -> None:
        """Announce the page: emit the events that happened before."""
        early, self._early = self._early, None
        for event, what in early or ():
            self.emit(event, what)

    async def goto(self, url: str, *, seconds: float) -> None:
        """Open a URL and wait until its document has arrived, not until it has loaded.

        Args:
            url: The URL.
            seconds: Timeout.

        Raises:
            ProtocolError: The page cannot be opened (``net::…``), was "interrupted by another navigation", or is
                closed.
        """
        self._commits.clear()
        self._started_loads.clear()
        try:
            async with asyncio.timeout(seconds):
                answer = await self.session.send("Page.navigate", {"url": url})
                load = answer.get("loaderId")
                if failure := answer.get("errorText"):
                    if failure == "net::ERR_ABORTED" and len(set(self._started_loads) - {load}) > 0:
                        raise ProtocolError(f"{url}: interrupted by another navigation")
                    raise ProtocolError(f"{failure} at {url}")
                while load is not None and load not in self._commits:
                    if self._superseded(load):
                        raise ProtocolError(f"{url}: interrupted by another navigation")
                    await self._next()
        except TimeoutError:
            raise ProtocolError(f"{url} did not answer within {seconds:g} s") from None

    def _superseded(self, load: str) -> bool:
        """Return whether a load started after this one has arrived. One started before it may still arrive first."""
        loads = list(self._started_loads)
        later = loads[loads.index(load) + 1 :] if load in loads else list(self._commits)
        return any(commit in later for commit in self._commits)

    async def loaded(self, seconds: float) -> bool:
        """Wait until the document is loaded or the timeout expires. Returns whether it is loaded."""
        try:
            async with asyncio.timeout(seconds):
                await self._loaded.wait()
        except TimeoutError:
            return False
        return True

    async def go_back(self, *, seconds: float) -> None:
        """Go back in the history, if possible, and wait until the document has arrived."""
        history = await self.session.send("Page.getNavigationHistory")
        at = history["currentIndex"] - 1
        if at < 0:
            return
        self._commits.clear()
        async with asyncio.timeout(seconds):
            await self.session.send("Page.navigateToHistoryEntry", {"entryId": history["entries"][at]["id"]})
            while not self._commits:
                await self._next()

    async def close(self) -> None:
        """Close the page and wait until it is closed."""
        if not self._closed:
            await self._connection.root.send("Target.closeTarget", {"targetId": self.target})
            await asyncio.shield(self._gone)

    def is_closed(self) -> bool:
        return self._closed

    def gone(self) -> None:
        """Handle the closing of the page by the browser."""
        if self._closed:
            return
        self._closed = True
        self._news.set()
        self._context.gone(self)
        if not self._gone.done():
            self._gone.set_result(None)
        self.emit("close", self)

    async def _set_up(self, session: CDPSession, *more: tuple[str, dict[str, Any]]) -> None:
        commands: list[tuple[str, dict[str, Any]]] = [
            ("Page.enable", {}),
            ("Target.setAutoAttach", {**_ATTACH, "filter": _FRAMES_AND_WORKERS}),
            *_LOOKS,
            *more,
            ("Page.setInterceptFileChooserDialog", {"enabled": True}),
            (
                "Page.addScriptToEvaluateOnNewDocument",
                {"source": self._context.init_script, "runImmediately": True},
            ),
            ("Runtime.runIfWaitingForDebugger", {}),
        ]
        answers = [session.send_nowait(*command) for command in commands]
        # Pages of one process share settings: the second page to set one is refused. A closed page is detected
        # elsewhere.
        await asyncio.gather(*answers, return_exceptions=True)

    def _follow(self, session: CDPSession) -> None:
        """Subscribe to the events of every document of the page, in any process."""
        session.on("Page.frameAttached", lambda event: self.frames.add(event["frameId"]))
        session.on("Page.frameDetached", self._frame_gone)
        session.on("Page.javascriptDialogOpening", lambda event: self._dialog(session, event))
        session.on("Page.javascriptDialogClosed", lambda event: self.emit("dialogclosed", self))
        session.on("Page.fileChooserOpened", lambda event: self.emit("filechooser", event))
        session.on("Target.attachedToTarget", self._frame_attached)
        session.on("Target.detachedFromTarget", lambda event: self._connection.end_session(event["sessionId"]))

    def _frame_attached(self, event: dict[str, Any]) -> None:
        """Handle a worker, or a frame with its own process."""
        session = self._connection.session(event["sessionId"])
        if event["targetInfo"]["type"] != "iframe":
            session.send_nowait("Runtime.runIfWaitingForDebugger")
            return
        self._follow(session)
        self.frames.add(event["targetInfo"]["targetId"])
        task = asyncio.ensure_future(self._set_up(session))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _frame_gone(self, event: dict[str, Any]) -> None:
        if event.get("reason") != "swap" and event["frameId"] != self.target:
            self.frames.discard(event["frameId"])

    def _navigated(self, event: dict[str, Any]) -> None:
        frame = event["frame"]
        if "parentId" in frame:
            return
        self.url = frame["url"] + frame.get("urlFragment", "")
        self._loaded.clear()
        self._commits.append(frame.get("loaderId", ""))
        self._news.set()
        self.emit("navigated", self)

    def _moved(self, event: dict[str, Any]) -> None:
        if event["frameId"] == self.target:
            self.url = event["url"]
            self.emit("navigated", self)

    def _begins(self, event: dict[str, Any]) -> None:
        if event["frameId"] == self.target:
            self._started_loads.append(event.get("loaderId", ""))

    async def _next(self) -> None:
        """Wait for the next event."""
        if self._closed:
            raise PageClosed(GONE)
        self._news.clear()
        await self._news.wait()
        if self._closed:
            raise PageClosed(GONE)

    def _dialog(self, session: CDPSession, event: dict[str, Any]) -> None:
        dialog = Dialog(self, session, event["type"], event.get("message", ""), event.get("defaultPrompt", ""))
        self.emit("dialog", dialog)
