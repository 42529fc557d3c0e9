"""Running browsers and prepared contexts on the pool's own loop: created in advance, used once, discarded."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllm_gym.browser.chromium import Chromium
from rllm_gym.browser.errors import BrowserFault
from rllm_gym.browser.gateway import Gateway
from rllm_gym.browser.walls import Walls

if TYPE_CHECKING:
    from rllm_gym.browser.pages import Context, Page

Viewport = tuple[int, int]

_MAKE_S = 60.0
_DISCARD_S = 10.0


class Stand:
    """A fresh browser context with one blank page, whose network policy does not allow anything yet."""

    def __init__(
        self, stock: Stock, chromium: Chromium, context: Context, page: Page, walls: Walls, gateway: Gateway
    ) -> None:
        self._stock = stock
        self.gateway = gateway
        self.chromium = chromium
        self.context = context
        self.page = page
        self.walls = walls
        self._gone = False

    @property
    def lost(self) -> bool:
        """Whether the pool has been closed."""
        return self._stock.closed

    def discard(self) -> None:
        """Discard the context without waiting. May be called twice; on the pool's loop."""
        if not self._gone:
            self._gone = True
            self._stock.throw_away(self)


class Stock:
    """The resources of a pool. Runs on one event loop.

    Args:
        executable: The Chromium to start.
        browsers: Number of browsers.
        ahead: Number of contexts that each browser prepares in addition to those in use, after the first request.
    """

    def __init__(self, executable: Path, browsers: int, ahead: int) -> None:
        self._executable = executable
        self._ahead = ahead
        self._slots = [_Slot() for _ in range(browsers)]
        self._starting = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.closed = False

    async def take(self, viewport: Viewport) -> Stand:
        """Return an unused context.

        Raises:
            BrowserFault: No context is available.
        """
        slot = min(self._slots, key=lambda slot: slot.used)
        slot.used += 1
        taking = asyncio.ensure_future(self._take(slot, viewport))
        try:
            stand = await asyncio.shield(taking)
        except BaseException:
            slot.used -= 1
            # The caller was cancelled; a partly created context can only be discarded once it is complete.
            taking.add_done_callback(_discard_unwanted)
            raise
        slot.out.add(stand)
        self._do(self._refill(slot, viewport))
        return stand

    async def _take(self, slot: _Slot, viewport: Viewport) -> Stand:
        for _ in range(2):
            while slot.ready and slot.viewport == viewport:
                stand = slot.ready.popleft()
                if not stand.chromium.dead and not stand.page.is_closed():
                    return stand
            chromium = await self._running(slot)
            try:
                async with slot.making:
                    return await self._make(chromium, viewport)
            except Exception as error:
                if await chromium.alive():
                    raise BrowserFault(f"no browser context can be opened: {error}", kind="browser_died") from error
        raise BrowserFault(f"{self._executable} dies as soon as it is started", kind="browser_died")

    async def _running(self, slot: _Slot) -> Chromium:
        async with self._starting:
            if self.closed:
                raise BrowserFault("this BrowserPool is closed; make a new one", kind="browser_died")
            if slot.chromium is None or slot.chromium.dead:
                if slot.chromium is not None:
                    self._do(slot.chromium.close())
                    slot.chromium = None
                    slot.discard_ready()
                slot.chromium = await Chromium.start(self._executable)
            return slot.chromium

    async def _make(self, chromium: Chromium, viewport: Viewport) -> Stand:
        walls = Walls()
        gateway = Gateway(walls)
        try:
            await gateway.start()
            async with asyncio.timeout(_MAKE_S):
                proxy = f"http://{chromium.gateway_host}:{gateway.port}"
                context = await chromium.contexts.new(proxy=proxy, viewport=viewport)
                await context.add_init_script(_quiet_pages())
                page = await context.new_page()
        except BaseException:
            gateway.close()
            raise
        return Stand(self, chromium, context, page, walls, gateway)

    async def _refill(self, slot: _Slot, viewport: Viewport) -> None:
        if slot.viewport != viewport:
            slot.discard_ready()
            slot.viewport = viewport
        while not self.closed and slot.viewport == viewport and len(slot.ready) + slot.being_made < self._ahead:
            slot.being_made += 1
            try:
                chromium = slot.chromium
                if chromium is None or chromium.dead:
                    return
                async with slot.making:
                    stand = await self._make(chromium, viewport)
            except Exception:
                return  # the next caller creates it and gets the error
            finally:
                slot.being_made -= 1
            if self.closed or slot.viewport != viewport or slot.chromium is not chromium:
                stand.discard()
            else:
                slot.ready.append(stand)

    def throw_away(self, stand: Stand) -> None:
        for slot in self._slots:
            if stand in slot.out:
                slot.out.discard(stand)
                slot.used -= 1
        stand.gateway.close()
        self._do(_close_context(stand))

    async def close(self) -> None:
        """End every browser. Open sessions raise from then on."""
        self.closed = True
        async with self._starting:
            for task in self._tasks - {asyncio.current_task()}:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.gather(*(slot.chromium.close() for slot in self._slots if slot.chromium is not None))
            for stand in [stand for slot in self._slots for stand in (*slot.ready, *slot.out)]:
                stand.gateway.close()

    def _do(self, chore: Any) -> None:
        task = asyncio.ensure_future(chore)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _discard_unwanted(taking: asyncio.Future[Stand]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        taking.result().discard()


class _Slot:
    """The slot of one browser. It may be empty, and is refilled when the browser dies."""

    def __init__(self) -> None:
        self.chromium: Chromium | None = None
        self.viewport: Viewport | None = None
        self.ready: deque[Stand] = deque()
        self.out: set[Stand] = set()
        self.used = 0
        self.being_made = 0
        # More at a time only delay each other in the browser, in no particular order.
        self.making = asyncio.Semaphore(4)

    def discard_ready(self) -> None:
        for stand in self.ready:
            stand.discard()
        self.ready.clear()


@cache
def _quiet_pages() -> str:
    return files("rllm_gym.browser").joinpath("quiet.js").read_text(encoding="utf-8")


async def _close_context(stand: Stand) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_DISCARD_S):
            await stand.context.close()
