"""A running browser and prepared contexts on the pool's own loop: created in advance, used once, discarded."""

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
from rllm_gym.envs.web.browser.isolated_world import LISTENER_EVENT
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
        executable: The Chromium to start, and to start again when it dies.
        prewarm: Number of contexts to prepare in addition to those in use, after the first request.
    """

    def __init__(self, executable: Path, prewarm: int) -> None:
        self._executable = executable
        self._prewarm = prewarm
        self._chromium: Chromium | None = None
        self._viewport: Viewport | None = None
        self._ready: deque[PooledContext] = deque()
        self._out: set[PooledContext] = set()
        self._creating = 0
        # More at a time only delay each other in the browser, in no particular order.
        self._creation_slots = asyncio.Semaphore(4)
        self._starting = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.closed = False

    async def acquire(self, viewport: Viewport) -> PooledContext:
        """Return an unused context.

        Raises:
            BrowserFault: No context is available.
        """
        taking = asyncio.ensure_future(self._acquire(viewport))
        try:
            context = await asyncio.shield(taking)
        except BaseException:
            # The caller was cancelled; a partly created context can only be discarded once it is complete.
            taking.add_done_callback(_discard_unwanted)
            raise
        self._out.add(context)
        self._start_background(self._refill(viewport))
        return context

    async def _acquire(self, viewport: Viewport) -> PooledContext:
        for _ in range(2):
            while self._ready and self._viewport == viewport:
                context = self._ready.popleft()
                if not context.chromium.dead and not context.page.is_closed():
                    return context
            chromium = await self._browser()
            try:
                async with self._creation_slots:
                    return await self._create_context(chromium, viewport)
            except Exception as error:
                if await chromium.alive():
                    raise BrowserFault(f"cannot open a browser context: {error}", kind="browser_died") from error
        raise BrowserFault(f"{self._executable} exits right after its start", kind="browser_died")

    async def _browser(self) -> Chromium:
        async with self._starting:
            if self.closed:
                raise BrowserFault("this BrowserPool is closed; create a new one", kind="browser_died")
            if self._chromium is None or self._chromium.dead:
                if self._chromium is not None:
                    self._start_background(self._chromium.close())
                    self._chromium = None
                    self._discard_ready()
                self._chromium = await Chromium.start(self._executable)
            return self._chromium

    async def _create_context(self, chromium: Chromium, viewport: Viewport) -> PooledContext:
        network_policy = NetworkPolicy()
        proxy = NetworkProxy(network_policy)
        try:
            await proxy.start()
            async with asyncio.timeout(_CREATE_S):
                address = f"http://{chromium.proxy_host}:{proxy.port}"
                context = await chromium.contexts.new(proxy=address, viewport=viewport, init_script=_init_script())
                page = await context.new_page()
        except BaseException:
            proxy.close()
            raise
        return PooledContext(self, chromium, context, page, network_policy, proxy)

    async def _refill(self, viewport: Viewport) -> None:
        if self._viewport != viewport:
            self._discard_ready()
            self._viewport = viewport
        while not self.closed and self._viewport == viewport and len(self._ready) + self._creating < self._prewarm:
            self._creating += 1
            try:
                chromium = self._chromium
                if chromium is None or chromium.dead:
                    return
                async with self._creation_slots:
                    context = await self._create_context(chromium, viewport)
            except Exception:
                return  # the next caller creates it and gets the error
            finally:
                self._creating -= 1
            if self.closed or self._viewport != viewport or self._chromium is not chromium:
                context.discard()
            else:
                self._ready.append(context)

    def discard(self, context: PooledContext) -> None:
        self._out.discard(context)
        context.proxy.close()
        self._start_background(_close_context(context))

    async def close(self) -> None:
        """End every browser. Open sessions raise from then on."""
        self.closed = True
        async with self._starting:
            for task in self._tasks - {asyncio.current_task()}:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._chromium is not None:
                await self._chromium.close()
            for context in (*self._ready, *self._out):
                context.proxy.close()

    def _discard_ready(self) -> None:
        for context in self._ready:
            context.discard()
        self._ready.clear()

    def _start_background(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _discard_unwanted(taking: asyncio.Future[PooledContext]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        taking.result().discard()


@cache
def _init_script() -> str:
    folder = files("rllm_gym.envs.web.browser")
    scripts = [folder.joinpath(name).read_text(encoding="utf-8") for name in ("listeners.js", "init.js")]
    return "\n".join(scripts).replace("LISTENER_EVENT", LISTENER_EVENT)


async def _close_context(context: PooledContext) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_DISCARD_S):
            await context.context.close()
