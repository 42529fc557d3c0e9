"""Running browsers and prepared contexts on the pool's own loop: created in advance, used once, discarded."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllm_gym.envs.web.browser.chromium import Chromium
from rllm_gym.envs.web.browser.errors import BrowserFault
from rllm_gym.envs.web.browser.network_policy import NetworkPolicy
from rllm_gym.envs.web.browser.proxy import NetworkProxy

if TYPE_CHECKING:
    from rllm_gym.envs.web.browser.pages import BrowserContext, Page

Viewport = tuple[int, int]

_CREATE_S = 60.0
_DISCARD_S = 10.0


class PooledContext:
    """A fresh browser context with one blank page, whose network policy does not allow anything yet."""

    def __init__(
        self,
        pool: ContextPool,
        chromium: Chromium,
        context: BrowserContext,
        page: Page,
        network_policy: NetworkPolicy,
        proxy: NetworkProxy,
    ) -> None:
        self._pool = pool
        self.proxy = proxy
        self.chromium = chromium
        self.context = context
        self.page = page
        self.network_policy = network_policy
        self._gone = False

    @property
    def lost(self) -> bool:
        """Whether the pool has been closed."""
        return self._pool.closed

    def discard(self) -> None:
        """Discard the context without waiting. May be called twice; on the pool's loop."""
        if not self._gone:
            self._gone = True
            self._pool.discard(self)


class ContextPool:
    """The resources of a pool. Runs on one event loop.

    Args:
        executable: The Chromium to start.
        browsers: Number of browsers.
        prewarm: Number of contexts that each browser prepares in addition to those in use, after the first request.
    """

    def __init__(self, executable: Path, browsers: int, prewarm: int) -> None:
        self._executable = executable
        self._prewarm = prewarm
        self._slots = [_BrowserSlot() for _ in range(browsers)]
        self._starting = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.closed = False

    async def acquire(self, viewport: Viewport) -> PooledContext:
        """Return an unused context.

        Raises:
            BrowserFault: No context is available.
        """
        slot = min(self._slots, key=lambda slot: slot.used)
        slot.used += 1
        taking = asyncio.ensure_future(self._acquire(slot, viewport))
        try:
            context = await asyncio.shield(taking)
        except BaseException:
            slot.used -= 1
            # The caller was cancelled; a partly created context can only be discarded once it is complete.
            taking.add_done_callback(_discard_unwanted)
            raise
        slot.out.add(context)
        self._start_background(self._refill(slot, viewport))
        return context

    async def _acquire(self, slot: _BrowserSlot, viewport: Viewport) -> PooledContext:
        for _ in range(2):
            while slot.ready and slot.viewport == viewport:
                context = slot.ready.popleft()
                if not context.chromium.dead and not context.page.is_closed():
                    return context
            chromium = await self._browser(slot)
            try:
                async with slot.creation_slots:
                    return await self._create_context(chromium, viewport)
            except Exception as error:
                if await chromium.alive():
                    raise BrowserFault(f"cannot open a browser context: {error}", kind="browser_died") from error
        raise BrowserFault(f"{self._executable} exits right after its start", kind="browser_died")

    async def _browser(self, slot: _BrowserSlot) -> Chromium:
        async with self._starting:
            if self.closed:
                raise BrowserFault("this BrowserPool is closed; create a new one", kind="browser_died")
            if slot.chromium is None or slot.chromium.dead:
                if slot.chromium is not None:
                    self._start_background(slot.chromium.close())
                    slot.chromium = None
                    slot.discard_ready()
                slot.chromium = await Chromium.start(self._executable)
            return slot.chromium

    async def _create_context(self, chromium: Chromium, viewport: Viewport) -> PooledContext:
        network_policy = NetworkPolicy()
        proxy = NetworkProxy(network_policy)
        try:
            await proxy.start()
            async with asyncio.timeout(_CREATE_S):
                address = f"http://{chromium.proxy_host}:{proxy.port}"
                context = await chromium.contexts.new(proxy=address, viewport=viewport)
                await context.add_init_script(_init_script())
                page = await context.new_page()
        except BaseException:
            proxy.close()
            raise
        return PooledContext(self, chromium, context, page, network_policy, proxy)

    async def _refill(self, slot: _BrowserSlot, viewport: Viewport) -> None:
        if slot.viewport != viewport:
            slot.discard_ready()
            slot.viewport = viewport
        while not self.closed and slot.viewport == viewport and len(slot.ready) + slot.creating < self._prewarm:
            slot.creating += 1
            try:
                chromium = slot.chromium
                if chromium is None or chromium.dead:
                    return
                async with slot.creation_slots:
                    context = await self._create_context(chromium, viewport)
            except Exception:
                return  # the next caller creates it and gets the error
            finally:
                slot.creating -= 1
            if self.closed or slot.viewport != viewport or slot.chromium is not chromium:
                context.discard()
            else:
                slot.ready.append(context)

    def discard(self, context: PooledContext) -> None:
        for slot in self._slots:
            if context in slot.out:
                slot.out.discard(context)
                slot.used -= 1
        context.proxy.close()
        self._start_background(_close_context(context))

    async def close(self) -> None:
        """End every browser. Open sessions raise from then on."""
        self.closed = True
        async with self._starting:
            for task in self._tasks - {asyncio.current_task()}:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.gather(*(slot.chromium.close() for slot in self._slots if slot.chromium is not None))
            for context in [context for slot in self._slots for context in (*slot.ready, *slot.out)]:
                context.proxy.close()

    def _start_background(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _discard_unwanted(taking: asyncio.Future[PooledContext]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        taking.result().discard()


class _BrowserSlot:
    """The slot of one browser. It may be empty, and is refilled when the browser dies."""

    def __init__(self) -> None:
        self.chromium: Chromium | None = None
        self.viewport: Viewport | None = None
        self.ready: deque[PooledContext] = deque()
        self.out: set[PooledContext] = set()
        self.used = 0
        self.creating = 0
        # More at a time only delay each other in the browser, in no particular order.
        self.creation_slots = asyncio.Semaphore(4)

    def discard_ready(self) -> None:
        for context in self.ready:
            context.discard()
        self.ready.clear()


@cache
def _init_script() -> str:
    return files("rllm_gym.envs.web.browser").joinpath("init.js").read_text(encoding="utf-8")


async def _close_context(context: PooledContext) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_DISCARD_S):
            await context.context.close()
