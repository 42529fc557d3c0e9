"""The worlds of one running episode of a workflow: as many environments and games as it asks for, kept for the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import EnvSpec

from rllm_gym.engine.slot import Slot

if TYPE_CHECKING:
    from rllm_gym.engine.base import BaseEngine

_KEPT = 16  # worlds that wait for a further episode


class Stage:
    """A place for the worlds of one episode at a time.

    Args:
        engine: Whose workers are used.
    """

    def __init__(self, engine: BaseEngine) -> None:
        self._engine = engine
        self._standing: list[tuple[tuple[Any, ...], Slot]] = []  # of this episode
        self._idle: list[tuple[tuple[Any, ...], Slot]] = []  # the most recently used first

    def take(
        self, source: EnvSpec | Callable[..., Any] | str, kwargs: Mapping[str, Any], *, name: str, host: Any
    ) -> Slot:
        """A slot for a world of this kind, one that served before if there is one."""
        kind = (host, source, dict(kwargs))
        for place, (of, idle) in enumerate(self._idle):
            if _same(of, kind):
                slot = idle
                del self._idle[place]
                break
        else:
            slot = self._engine.new_slot(source, kwargs, env_id=name, host=host)
        self._standing.append((kind, slot))
        return slot

    async def end(self) -> None:
        """The episode ended cleanly: close its worlds, or keep them for the next one.

        Raises:
            EnvironmentFault: Closing one raised or was late.
        """
        await _all(slot.end() for _, slot in self._standing)
        await self._put_away()

    async def discard(self) -> None:
        await _all(slot.discard() for _, slot in self._standing)
        await self._put_away()

    async def aclose(self) -> None:
        slots = [slot for _, slot in (*self._standing, *self._idle)]
        self._standing, self._idle = [], []
        await _all(slot.aclose() for slot in slots)

    async def _put_away(self) -> None:
        worlds = [*self._standing, *self._idle]
        self._standing, self._idle = [], worlds[:_KEPT]
        await _all(slot.aclose() for _, slot in worlds[_KEPT:])


async def _all(awaitables: Iterable[Awaitable[None]]) -> None:
    """Wait for all of them, then raise the first error."""
    waiting = list(awaitables)
    if len(waiting) == 1:
        await waiting[0]
    elif waiting:
        results: list[Any] = await asyncio.gather(*waiting, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arguments that cannot be compared, arrays for one
        return False
