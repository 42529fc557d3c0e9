"""Base class of text environments that are implemented with coroutines, with a synchronous interface as well."""

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
    """A :class:`TextEnv` implemented with coroutines. Subclasses write :meth:`_async_begin` and :meth:`_async_act`.

    ``await env.async_reset(…)``, ``await env.async_step(…)`` and ``await env.async_close()`` do the same as ``reset``,
    ``step`` and ``close``. The synchronous methods run the coroutines on one event loop in a background thread that all
    such environments of the process share. An environment stays on the event loop on which it was reset, because its
    connections are bound to that loop.
    """

    bound_to_loop: ClassVar[bool] = True
    """Whether the environment may be used only from the event loop it was first used from. The engine creates a new
    environment per episode if this is ``True``; if ``False``, one environment can serve many episodes."""

    _ready: Any = None

    @abstractmethod
    async def _async_begin(self, task: Task) -> str:
        """Set the environment up, as :meth:`TextEnv._begin`, but as a coroutine."""

    @abstractmethod
    async def _async_act(self, action: str) -> Outcome:
        """Execute one action, as :meth:`TextEnv._act`, but as a coroutine."""

    async def _async_end(self) -> None:
        """Release the resources of the environment."""
        return

    async def async_reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode, as :meth:`reset`, but as a coroutine."""
        gymnasium.Env.reset(self, seed=seed)
        task = self._choose_task(options)
        self._done = True  # until the environment is set up
        self._ready = await self._async_begin(task)
        return super().reset(options={"task": task})

    async def async_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Execute one step, as :meth:`step`, but as a coroutine."""
        readable = isinstance(action, str) and len(action) <= self.action_space.max_length  # type: ignore[attr-defined]
        if readable and not self._done:
            try:
                self._ready = await self._async_act(action)
            except InvalidAction as error:
                self._ready = error
            except BaseException:
                self._done = True
                raise
        return super().step(action)

    async def async_close(self) -> None:
        """Close the environment, as :meth:`close`, but as a coroutine."""
        await self._async_end()

    # Synchronous interface, for code without an event loop

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return _on_shared_loop(self.async_reset(seed=seed, options=options))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return _on_shared_loop(self.async_step(action))

    def close(self) -> None:
        _on_shared_loop(self.async_close())

    # TextEnv does the bookkeeping. By the time it calls these methods, the coroutine has already been awaited.

    def _begin(self, task: Task) -> str:
        return self._take_ready()  # type: ignore[no-any-return]

    def _act(self, action: str) -> Outcome:
        return self._take_ready()  # type: ignore[no-any-return]

    def _take_ready(self) -> Any:
        ready, self._ready = self._ready, None
        if isinstance(ready, InvalidAction):
            raise ready
        return ready


_lock = threading.Lock()
_shared: asyncio.AbstractEventLoop | None = None


def _forget_loop() -> None:
    # After a fork the child process has the loop object, but not the thread that runs it.
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
        future.cancel()  # do not leave the coroutine running after an interrupted wait
        raise
