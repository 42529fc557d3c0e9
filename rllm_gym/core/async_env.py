"""Text environments whose world is asynchronous: coroutines for the engine, and the same as ordinary methods."""

from __future__ import annotations

import asyncio
import os
import threading
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

import gymnasium

from rllm_gym.core.env import InvalidAction, Outcome, TextEnv
from rllm_gym.core.task import Task

T = TypeVar("T")


class AsyncTextEnv(TextEnv):
    """A :class:`TextEnv` whose world is reached by coroutines. Write :meth:`_async_begin` and :meth:`_async_act`.

    ``await env.async_reset(…)``, ``await env.async_step(…)`` and ``await env.async_close()`` do what ``reset``,
    ``step`` and ``close`` do; those run the coroutines on one event loop, in a thread of its own, that all such
    environments of the process share. An environment stays on the loop of its reset: connections belong to a loop.
    """

    bound_to_loop: ClassVar[bool] = True
    """Whether it must not be used from another event loop than the one it was used from first. The engine makes such
    an environment anew for each episode; one that says ``False`` serves many."""

    _ready: Any = None

    @abstractmethod
    async def _async_begin(self, task: Task) -> str:
        """:meth:`TextEnv._begin`, awaited."""

    @abstractmethod
    async def _async_act(self, action: str) -> Outcome:
        """:meth:`TextEnv._act`, awaited."""

    async def _async_end(self) -> None:
        """Free what the world holds."""
        return

    async def async_reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """:meth:`reset`, awaited."""
        gymnasium.Env.reset(self, seed=seed)
        task = self._choose_task(options)
        self._over = True  # until the world stands
        self._ready = await self._async_begin(task)
        return super().reset(options={"task": task})

    async def async_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """:meth:`step`, awaited."""
        readable = isinstance(action, str) and len(action) <= self.action_space.max_length  # type: ignore[attr-defined]
        if readable and not self._over:
            try:
                self._ready = await self._async_act(action)
            except InvalidAction as error:
                self._ready = error
            except BaseException:
                self._over = True
                raise
        return super().step(action)

    async def async_close(self) -> None:
        """:meth:`close`, awaited."""
        await self._async_end()

    # The same, for code without an event loop -------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return _on_shared_loop(self.async_reset(seed=seed, options=options))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return _on_shared_loop(self.async_step(action))

    def close(self) -> None:
        _on_shared_loop(self.async_close())

    # TextEnv keeps the books; what it asks for has been awaited already.

    def _begin(self, task: Task) -> str:
        return self._take()  # type: ignore[no-any-return]

    def _act(self, action: str) -> Outcome:
        return self._take()  # type: ignore[no-any-return]

    def _take(self) -> Any:
        ready, self._ready = self._ready, None
        if isinstance(ready, InvalidAction):
            raise ready
        return ready


_lock = threading.Lock()
_shared: asyncio.AbstractEventLoop | None = None


def _forget_loop() -> None:
    # A fork has the loop, but not the thread that runs it.
    global _lock, _shared
    _lock, _shared = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_loop)


def _on_shared_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    global _shared
    with _lock:
        if _shared is None or _shared.is_closed():
            _shared = asyncio.new_event_loop()
            threading.Thread(target=_shared.run_forever, name="async-environments", daemon=True).start()
    future = asyncio.run_coroutine_threadsafe(coroutine, _shared)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # an interrupted wait leaves nothing running
        raise
