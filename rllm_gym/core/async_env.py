"""Base class of text environments that are implemented with coroutines, with a synchronous interface as well."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.core.env import InvalidAction, Outcome, TextEnv
from rllm_gym.core.per_process import PerProcess
from rllm_gym.core.task import Task


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
        task = self._start_episode(seed, options)
        return self._record_reset(await self._async_begin(task))

    async def async_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Execute one step, as :meth:`step`, but as a coroutine."""
        self._check_action(action)
        try:
            self._check_length(action)
            outcome = await self._async_act(action)
        except InvalidAction as error:
            return self._record(action, error)
        except BaseException:  # the state of the environment is unknown
            self._done = True
            raise
        return self._record(action, outcome)

    async def async_close(self) -> None:
        """Close the environment, as :meth:`close`, but as a coroutine."""
        await self._async_end()

    # Synchronous interface, for code without an event loop

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return shared_loop().run(self.async_reset(seed=seed, options=options))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return shared_loop().run(self.async_step(action))

    def _begin(self, task: Task) -> str:
        return shared_loop().run(self._async_begin(task))

    def _act(self, action: str) -> Outcome:
        return shared_loop().run(self._async_act(action))

    def close(self) -> None:
        shared_loop().run(self.async_close())


_loop = PerProcess(lambda: BackgroundLoop("async-environments"))


def shared_loop() -> BackgroundLoop:
    """Return the event loop in a background thread on which the process runs coroutines of synchronous callers."""
    return _loop()
