"""The browser pool: browsers and contexts that are ready for episodes, with or without an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.envs.web.browser.context_pool import ContextPool
from rllm_gym.envs.web.browser.executable import find_chromium
from rllm_gym.envs.web.browser.network_policy import NetworkPolicy
from rllm_gym.envs.web.browser.session import BrowserSession
from rllm_gym.envs.web.sites.http import Handler

_SIDES = (64, 4096)


class BrowserPool:
    """A pool of isolated browser sessions: one Chromium process, started on demand, and a fresh context per session.

    If a Chromium dies, the episodes in it raise a fault, and the next session gets a new one. Everything runs on the
    pool's own event loop, so that sessions can be used from any loop. The processes end with this process, even if it
    is killed by SIGKILL. Close the pool with ``with``, ``async with``, :meth:`close` or :meth:`aclose`; an unclosed
    pool is closed when it is garbage-collected or the interpreter exits. A fork of this process cannot use it
    (``RuntimeError``).

    Args:
        executable: A Chromium or its headless shell; by default the first one found, see
            :func:`~rllm_gym.envs.web.browser.executable.find_chromium`.
        browsers: Number of Chromium processes; more than one helps on machines with many processors.
        prewarm: Number of contexts that each Chromium prepares while others are in use, at 16 MiB each.

    Raises:
        BrowserFault: There is no such browser here; the message says how to install one.
        ValueError: ``browsers`` below 1 or ``prewarm`` below 0.

    >>> with BrowserPool() as pool:                                              # doctest: +SKIP
    ...     session = await pool.open(sites={"http://shop.test": shop})
    ...     await session.goto("http://shop.test/")
    """

    def __init__(
        self, executable: str | os.PathLike[str] | None = None, *, browsers: int = 1, prewarm: int = 2
    ) -> None:
        if browsers < 1 or prewarm < 0:
            raise ValueError(f"browsers={browsers!r} must be at least 1, and prewarm={prewarm!r} at least 0")
        self.executable = find_chromium(executable)
        self._pid = os.getpid()
        self._loop = BackgroundLoop("rllm-gym browser")
        # The loop and the contexts hold no reference to the pool, so that an unclosed pool can be collected and closed.
        self._contexts = self._loop.run(_new_context_pool(self, browsers, prewarm))
        self._finalizer = weakref.finalize(self, _close, self._loop, self._contexts, self._pid)

    async def open(
        self,
        *,
        sites: Mapping[str, Handler] | None = None,
        origins: Sequence[str] = (),
        viewport: tuple[int, int] = (1280, 720),
        init_script: str | None = None,
    ) -> BrowserSession:
        """Open a session in its own context, with one blank tab.

        Args:
            sites: Request handlers of this process by origin (``"http://shop.test"``).
            origins: Real servers that the session may reach (``"http://127.0.0.1:8000"``). It reaches nothing else.
            viewport: Width and height in pixels, 64 to 4096 each.
            init_script: JavaScript that runs in every frame before the page's own scripts.

        Raises:
            BrowserFault: No browser is available.
            RuntimeError: The pool belongs to another process, or is closed.
            ValueError: An origin or the viewport is invalid.
        """
        self._check_owner()
        if len(viewport) != 2 or not all(isinstance(side, int) and _SIDES[0] <= side <= _SIDES[1] for side in viewport):
            raise ValueError(f"viewport={viewport!r} must be two integers from {_SIDES[0]} to {_SIDES[1]}")
        NetworkPolicy().allow(sites or {}, origins)
        opening = _open(self._loop, self._contexts, dict(sites or {}), origins, viewport, init_script)
        return await self._loop.arun(opening)

    def close(self) -> None:
        """End the browsers. Open sessions raise ``BrowserFault`` from then on. Closing twice is allowed."""
        self._finalizer()

    async def aclose(self) -> None:
        """Run :meth:`close` without blocking the event loop."""
        await asyncio.to_thread(self.close)

    def _check_owner(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(f"this BrowserPool belongs to process {self._pid}; create a new pool after a fork")
        if not self._finalizer.alive:
            raise RuntimeError("this BrowserPool is closed; create a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()


_shared: dict[str, BrowserPool] = {}
_shared_lock = threading.Lock()


def shared_pool(executable: str | os.PathLike[str] | None = None) -> BrowserPool:
    """Return the pool shared by all environments of this process with the same browser; re-created after a fork.

    Raises:
        BrowserFault: There is no such browser here; the message says how to install one.
    """
    found = str(find_chromium(executable))
    with _shared_lock:
        pool = _shared.get(found)
        if pool is None or pool._pid != os.getpid() or not pool._finalizer.alive:
            pool = _shared[found] = BrowserPool(found)
        return pool


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)


async def _new_context_pool(pool: BrowserPool, browsers: int, prewarm: int) -> ContextPool:
    return ContextPool(pool.executable, browsers, prewarm)


async def _open(
    loop: BackgroundLoop,
    contexts: ContextPool,
    sites: Mapping[str, Handler],
    origins: Sequence[str],
    viewport: tuple[int, int],
    init_script: str | None,
) -> BrowserSession:
    context = await contexts.acquire(viewport)
    try:
        context.network_policy.allow(sites, origins)
        if init_script is not None:
            await context.context.add_init_script(init_script)
    except BaseException:
        context.discard()
        raise
    return BrowserSession(loop, context, viewport)


def _close(loop: BackgroundLoop, contexts: ContextPool, pid: int) -> None:
    if pid == os.getpid():
        loop.run(contexts.close())
        loop.close()
