"""Waiting for what an action began and nothing else: navigations, requests, changes of the page. With deadlines."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from rllm_gym.browser.observation_world import World, WorldLost

LOADING_S = 10.0
"""Seconds that navigations and loading may take after an action."""

REQUESTS_S = 3.0
"""Seconds that requests of a page's scripts may take, counted from the action."""

_CHANGES_MS = 1_000
# A navigation that was asked for and never begins: a mailto: link, one that the page took back.
_ASKED_S = 1.0
# What goes on for as long as it likes, and nobody waits for.
_ENDLESS = frozenset(("EventSource", "WebSocket", "Ping", "Media", "Prefetch", "CSPViolationReport", "TextTrack"))
_MOST_REQUESTS = 10_000


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment in the life of a page: what was under way then is not waited for."""

    at: float
    requests: frozenset[str]
    loads: int
    windows: int


class Activity:
    """What a page is at, told by the events of its CDP session. Listens from its making on.

    Attributes:
        windows: How many windows it has opened.
        given_up: Its document never came to its end within the deadline; it is not waited for again.
    """

    def __init__(self, cdp: Any) -> None:
        self.windows = 0
        self.given_up = False
        self._asked: dict[str, float] = {}
        self._begun: dict[str, int] = {}  # frame -> which of all loads it is
        self._loads = 0
        self._requests: set[str] = set()
        self._changed = asyncio.Event()
        self._cdp = cdp
        cdp.on("Page.frameScheduledNavigation", self._scheduled)
        cdp.on("Page.frameRequestedNavigation", self._requested)
        cdp.on("Page.frameStartedNavigating", lambda event: self._begins(event["frameId"]))
        cdp.on("Page.frameStartedLoading", lambda event: self._begins(event["frameId"]))
        cdp.on("Page.frameStoppedLoading", lambda event: self._ended(event["frameId"]))
        cdp.on("Page.frameDetached", lambda event: self._ended(event["frameId"]))
        cdp.on("Page.frameClearedScheduledNavigation", lambda event: self._taken_back(event["frameId"]))
        cdp.on("Page.navigatedWithinDocument", lambda event: self._taken_back(event["frameId"]))
        cdp.on("Page.windowOpen", lambda event: self._opens_window())
        cdp.on("Network.requestWillBeSent", self._request)
        cdp.on("Network.loadingFinished", lambda event: self._answered(event["requestId"]))
        cdp.on("Network.loadingFailed", lambda event: self._answered(event["requestId"]))

    def mark(self) -> Mark:
        """This moment."""
        return Mark(asyncio.get_running_loop().time(), frozenset(self._requests), self._loads, self.windows)

    def navigating(self, since: Mark) -> bool:
        """Whether a document is about to be replaced, or one is being loaded that was begun since then."""
        now = asyncio.get_running_loop().time()
        self._asked = {frame: at for frame, at in self._asked.items() if now - at < _ASKED_S}
        return bool(self._asked) or any(load > since.loads for load in self._begun.values())

    def requesting(self, since: Mark) -> bool:
        """Whether something that was asked for since then is still awaited."""
        return not self._requests <= since.requests

    async def change(self, seconds: float) -> None:
        """Until something begins or ends, or the time is over."""
        self._changed.clear()
        # What was asked for and never began is forgotten after a while, without any event.
        wait = min(seconds, _ASKED_S) if self._asked else seconds
        try:
            async with asyncio.timeout(max(wait, 0.0)):
                await self._changed.wait()
        except TimeoutError:
            return

    def _scheduled(self, event: dict[str, Any]) -> None:
        if event.get("delay", 0) <= _ASKED_S:
            self._asks(event["frameId"])

    def _requested(self, event: dict[str, Any]) -> None:
        if event.get("disposition", "currentTab") == "currentTab" and not event["url"].startswith("javascript:"):
            self._asks(event["frameId"])

    def _asks(self, frame: str) -> None:
        self._asked.setdefault(frame, asyncio.get_running_loop().time())
        self._changed.set()

    def _begins(self, frame: str) -> None:
        self._loads += 1
        self._begun[frame] = self._loads
        self.given_up = False
        self._asked.pop(frame, None)
        self._changed.set()

    def _ended(self, frame: str) -> None:
        self._begun.pop(frame, None)
        self._taken_back(frame)

    def _taken_back(self, frame: str) -> None:
        self._asked.pop(frame, None)
        self._changed.set()

    def _opens_window(self) -> None:
        self.windows += 1
        self._changed.set()

    def _request(self, event: dict[str, Any]) -> None:
        if event.get("type") not in _ENDLESS and len(self._requests) < _MOST_REQUESTS:
            self._requests.add(event["requestId"])

    def _answered(self, request: str) -> None:
        self._requests.discard(request)
        self._changed.set()


async def settle(world: World, activity: Activity, since: Mark) -> str:
    """Wait until a page has ended what it began since a moment.

    Returns:
        ``""``, or a note where it has not within the deadlines: the page is then shown as it is.

    Raises:
        BrowserFault: It does not answer.
    """
    clock = asyncio.get_running_loop().time
    end = since.at + LOADING_S
    while (left := end - clock()) > 0:
        if activity.navigating(since):
            await activity.change(left)
            continue
        try:
            loading = 0 if activity.given_up else int(left * 1_000)
            state = await world.call("still", _CHANGES_MS, loading)
        except WorldLost:
            continue  # a navigation, whose events come before the next answer
        if activity.navigating(since):
            continue
        left = since.at + REQUESTS_S - clock()
        if activity.requesting(since):
            if left > 0:
                await activity.change(left)
                continue
            return "The page is still waiting for answers from its site; wait() if something is missing."
        if state["loaded"]:
            return ""
        break
    activity.given_up = True
    return "The page is still loading; wait() if something is missing."
