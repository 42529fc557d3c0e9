"""Waits, with deadlines, for exactly what an action started: navigations, requests and changes of the page."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from rllm_gym.envs.web.browser.isolated_world import DocumentGone, IsolatedWorlds

LOADING_S = 10.0
"""Seconds that navigations and loading may take after an action."""

REQUESTS_S = 3.0
"""Seconds that requests of a page's scripts may take, counted from the action."""

_CHANGES_MS = 1_000
# Without changes for so many frames, a cover stays. An animation by timers leaves out frames on a busy machine.
_COVERED_FRAMES = 8
# For a navigation that was requested and never begins: a mailto: link, or one that the page cancelled.
_NAVIGATION_START_S = 1.0
# Requests of unlimited duration, which are not waited for.
_ENDLESS = frozenset(("EventSource", "WebSocket", "Ping", "Media", "Prefetch", "CSPViolationReport", "TextTrack"))
_MAX_REQUESTS = 10_000
_MAX_KEPT = 20
_MAX_DOCUMENTS = 10


@dataclass(frozen=True, slots=True)
class ActivityMark:
    """A point in the activity of a page. What was already running then is not waited for."""

    at: float
    requests: frozenset[str]
    loads: int
    windows: int
    failures: int
    documents: int


class PageActivity:
    """The activity of a page, tracked by the events of its CDP session from construction on.

    Attributes:
        abandoned: Its document did not finish loading within the deadline; it is not waited for again.
    """

    def __init__(self, cdp: Any) -> None:
        self.abandoned = False
        self._requested_navigations: dict[str, float] = {}
        self._started_loads: dict[str, int] = {}  # frame -> sequence number of its load
        self._loads = 0
        self._requests: dict[str, tuple[str, str]] = {}  # request -> frame and load it belongs to
        self._documents: dict[str, str] = {}  # request -> URL
        self._failed: deque[str] = deque(maxlen=_MAX_KEPT)
        self._failures = 0
        self._replacements = 0
        self._opened: deque[str] = deque(maxlen=_MAX_KEPT)
        self._windows = 0
        self._changed = asyncio.Event()
        self._cdp = cdp
        cdp.on("Page.frameScheduledNavigation", self._scheduled)
        cdp.on("Page.frameRequestedNavigation", self._requested)
        cdp.on("Page.frameStartedNavigating", lambda event: self._begins(event["frameId"]))
        cdp.on("Page.frameStartedLoading", lambda event: self._begins(event["frameId"]))
        cdp.on("Page.frameNavigated", lambda event: self._replaced(event["frame"]))
        cdp.on("Page.frameStoppedLoading", lambda event: self._ended(event["frameId"]))
        cdp.on("Page.frameDetached", lambda event: self._detached(event["frameId"]))
        cdp.on("Page.frameClearedScheduledNavigation", lambda event: self._cancelled(event["frameId"]))
        cdp.on("Page.navigatedWithinDocument", lambda event: self._cancelled(event["frameId"]))
        cdp.on("Page.windowOpen", self._opens_window)
        cdp.on("Network.requestWillBeSent", self._request)
        cdp.on("Network.loadingFinished", lambda event: self._answered(event["requestId"]))
        cdp.on("Network.loadingFailed", self._request_failed)

    def mark(self) -> ActivityMark:
        """Return the current point in the page's activity."""
        return ActivityMark(
            at=asyncio.get_running_loop().time(),
            requests=frozenset(self._requests),
            loads=self._loads,
            windows=self._windows,
            failures=self._failures,
            documents=self._replacements,
        )

    def navigating(self, since: ActivityMark) -> bool:
        """Return whether a navigation is pending, or a load that started after ``since`` continues."""
        now = asyncio.get_running_loop().time()
        self._requested_navigations = {
            frame: at for frame, at in self._requested_navigations.items() if now - at < _NAVIGATION_START_S
        }
        return bool(self._requested_navigations) or any(load > since.loads for load in self._started_loads.values())

    def requesting(self, since: ActivityMark) -> bool:
        """Return whether a request made after ``since`` is unanswered."""
        return not self._requests.keys() <= since.requests

    def failed(self, since: ActivityMark) -> list[str]:
        """Return the latest URLs of documents that were requested after ``since`` and failed."""
        return _last(self._failed, self._failures - since.failures)

    def opened(self, since: ActivityMark) -> list[str]:
        """Return the latest URLs of windows that were opened after ``since``."""
        return _last(self._opened, self._windows - since.windows)

    def replaces_endlessly(self, since: ActivityMark) -> bool:
        """Return whether the page has replaced its document so often after ``since`` that it seems endless."""
        return self._replacements - since.documents > _MAX_DOCUMENTS

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until something starts or ends, or the timeout expires."""
        self._changed.clear()
        # A navigation that was requested and never began is dropped after a while, without any event.
        wait = min(seconds, _NAVIGATION_START_S) if self._requested_navigations else seconds
        try:
            async with asyncio.timeout(max(wait, 0.0)):
                await self._changed.wait()
        except TimeoutError:
            return

    def _scheduled(self, event: dict[str, Any]) -> None:
        if event.get("delay", 0) <= _NAVIGATION_START_S:
            self._add_navigation(event["frameId"])

    def _requested(self, event: dict[str, Any]) -> None:
        if event.get("disposition", "currentTab") == "currentTab" and not event["url"].startswith("javascript:"):
            self._add_navigation(event["frameId"])

    def _add_navigation(self, frame: str) -> None:
        self._requested_navigations.setdefault(frame, asyncio.get_running_loop().time())
        self._changed.set()

    def _begins(self, frame: str) -> None:
        self._loads += 1
        self._started_loads[frame] = self._loads
        self.abandoned = False
        self._requested_navigations.pop(frame, None)
        self._changed.set()

    def _replaced(self, frame: dict[str, Any]) -> None:
        """Handle a new document: requests of the old one get no further events."""
        mine, load = frame["id"], frame.get("loaderId", "")
        if "parentId" not in frame:
            self._replacements += 1
        self._requests = {
            request: (owner, its) for request, (owner, its) in self._requests.items() if owner != mine or its == load
        }
        self._changed.set()

    def _ended(self, frame: str) -> None:
        self._started_loads.pop(frame, None)
        self._cancelled(frame)

    def _detached(self, frame: str) -> None:
        """Handle a frame that was removed or moved to another process: its requests get no further events here."""
        self._requests = {request: owner for request, owner in self._requests.items() if owner[0] != frame}
        self._ended(frame)

    def _cancelled(self, frame: str) -> None:
        self._requested_navigations.pop(frame, None)
        self._changed.set()

    def _opens_window(self, event: dict[str, Any]) -> None:
        self._opened.append(event["url"])
        self._windows += 1
        self._changed.set()

    def _request(self, event: dict[str, Any]) -> None:
        # A request without a loader is the script of a worker. Chromium reports its end to the worker only.
        load = event.get("loaderId")
        if load and event.get("type") not in _ENDLESS and len(self._requests) < _MAX_REQUESTS:
            self._requests[event["requestId"]] = (event.get("frameId", ""), load)
            if event.get("type") == "Document":
                self._documents[event["requestId"]] = event["request"]["url"]

    def _request_failed(self, event: dict[str, Any]) -> None:
        url = self._documents.get(event["requestId"])
        if url is not None:
            self._failed.append(url)
            self._failures += 1
        self._answered(event["requestId"])

    def _answered(self, request: str) -> None:
        self._requests.pop(request, None)
        self._documents.pop(request, None)
        self._changed.set()


def _last(urls: deque[str], count: int) -> list[str]:
    return list(urls)[-count:] if count > 0 else []


async def wait_until_settled(
    isolated: IsolatedWorlds, activity: PageActivity, since: ActivityMark, stopped: asyncio.Event
) -> str:
    """Wait until a page has finished what it started after ``since``.

    Args:
        isolated: The page's isolated worlds.
        activity: The page's activity.
        since: What was already running then is not waited for.
        stopped: Set when the scripts of all pages are stopped, so that nothing changes and ours would not end.

    Returns:
        ``""``, or a note if it has not finished within the deadlines: the page is then shown as it is.

    Raises:
        BrowserFault: It does not answer.
    """
    clock = asyncio.get_running_loop().time
    end = since.at + LOADING_S
    while (left := end - clock()) > 0 and not activity.replaces_endlessly(since):
        if activity.navigating(since):
            await activity.wait_for_change(left)
            continue
        try:
            loading = 0 if activity.abandoned else int(left * 1_000)
            state = await _unless(stopped, isolated.call("still", _CHANGES_MS, loading))
        except DocumentGone:
            continue  # a navigation, whose events come before the next answer
        if activity.navigating(since):
            continue
        if state is None:
            return ""
        left = since.at + REQUESTS_S - clock()
        if activity.requesting(since):
            if left > 0:
                await activity.wait_for_change(left)
                continue
            return "The page is still waiting for answers from its site; wait() if something is missing."
        if state["loaded"]:
            return ""
        break
    activity.abandoned = True
    return "The page is still loading; wait() if something is missing."


async def wait_for_cover(isolated: IsolatedWorlds, frame: str, stopped: asyncio.Event) -> None:
    """Wait while a page changes, as a list does that fades out, so that what it covers becomes free."""
    await _unless(stopped, isolated.call("still", _CHANGES_MS, 0, _COVERED_FRAMES, frame=frame))


async def _unless(stopped: asyncio.Event, operation: Coroutine[Any, Any, Any]) -> Any | None:
    """Return the result of an operation, or ``None`` if the event is set first."""
    tasks = [asyncio.ensure_future(operation), asyncio.ensure_future(stopped.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
