"""The browser pool: browsers and contexts that are ready for episodes, with or without an event loop."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.core.per_process import PerProcess
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
    is killed by SIGKILL. Close the pool with ``with`` or :meth:`close`; an unclosed pool is closed when it is
    garbage-collected or the interpreter exits. A fork of this process cannot use it (``RuntimeError``).

    Args:
        executable: A Chromium or its headless shell; by default the first one found, see
            :func:`~rllm_gym.envs.web.browser.executable.find_chromium`.
        prewarm: Number of contexts to prepare while others are in use, at 16 MiB each.

    Raises:
        BrowserFault: There is no such browser here; the message says how to install one.
        ValueError: ``prewarm`` is below 0.

    >>> with BrowserPool() as pool:                                              # doctest: +SKIP
    ...     session = await pool.open(sites={"http://shop.test": shop})
    ...     await session.goto("http://shop.test/")
    """

    def __init__(self, executable: str | os.PathLike[str] | None = None, *, prewarm: int = 2) -> None:
        if prewarm < 0:
            raise ValueError(f"prewarm={prewarm!r} must be at least 0")
        self.executable = find_chromium(executable)
        self._pid = os.getpid()
        self._loop = BackgroundLoop("rllm-gym browser")
        # The loop and the contexts hold no reference to the pool, so that an unclosed pool can be collected and closed.
        self._contexts = self._loop.run(_new_context_pool(self.executable, prewarm))
        self._finalizer = weakref.finalize(self, _close, self._loop, self._contexts, self._pid)

    async def open(
        self,
        *,
        sites: Mapping[str, Handler] | None = None,
        origins: Sequence[str] = (),
        servers: Mapping[str, int] | None = None,
        viewport: tuple[int, int] = (1280, 720),
        files: Mapping[str, bytes] | None = None,
    ) -> BrowserSession:
        """Open a session in its own context, with one blank tab.

        Args:
            sites: Request handlers of this process by origin (``"http://shop.test"``).
            origins: Real servers that the session may reach (``"http://127.0.0.1:8000"``). It reaches nothing else.
            servers: Ports of 127.0.0.1 that serve other origins (``{"http://shop.localhost": 8000}``).
            viewport: Width and height in pixels, 64 to 4096 each.
            files: What can be uploaded, by name.

        Raises:
            BrowserFault: No browser is available.
            RuntimeError: The pool belongs to another process, or is closed.
            ValueError: An origin or the viewport is invalid.
        """
        self._check_owner()
        if len(viewport) != 2 or not all(isinstance(side, int) and _SIDES[0] <= side <= _SIDES[1] for side in viewport):
            raise ValueError(f"viewport={viewport!r} must be two integers from {_SIDES[0]} to {_SIDES[1]}")
        sites, servers = dict(sites or {}), dict(servers or {})
        NetworkPolicy().allow(sites, origins, servers)
        return await self._loop.arun(
            _open(self._loop, self._contexts, sites, origins, servers, viewport, dict(files or {}))
        )

    def close(self) -> None:
        """End the browsers. Open sessions raise ``BrowserFault`` from then on. Closing twice is allowed."""
        self._finalizer()

    def _check_owner(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(f"this BrowserPool belongs to process {self._pid}; create a new pool after a fork")
        if not self._finalizer.alive:
            raise RuntimeError("this BrowserPool is closed; create a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


_shared: dict[str, BrowserPool] = {}
_shared_lock = PerProcess(threading.Lock)


def shared_pool(executable: str | os.PathLike[str] | None = None) -> BrowserPool:
    """Return the pool shared by all environments of this process with the same browser; re-created after a fork.

    Raises:
        BrowserFault: There is no such browser here; the message says how to install one.
    """
    found = str(find_chromium(executable))
    with _shared_lock():
        pool = _shared.get(found)
        if pool is None or pool._pid != os.getpid() or not pool._finalizer.alive:
            pool = _shared[found] = BrowserPool(found)
        return pool


async def _new_context_pool(executable: Path, prewarm: int) -> ContextPool:
    return ContextPool(executable, prewarm)


async def _open(
    loop: BackgroundLoop,
    contexts: ContextPool,
    sites: Mapping[str, Handler],
    origins: Sequence[str],
    servers: Mapping[str, int],
    viewport: tuple[int, int],
    files: Mapping[str, bytes],
) -> BrowserSession:
    context = await contexts.acquire(viewport)
    try:
        context.network_policy.allow(sites, origins, servers)
    except BaseException:
        context.discard()
        raise
    return BrowserSession(loop, context, viewport, files)


def _close(loop: BackgroundLoop, contexts: ContextPool, pid: int) -> None:
    if pid == os.getpid():
        loop.run(contexts.close())
        loop.close()
