"""``EpisodeQueue``: runs the episodes of several steps at the same time, those of earlier steps first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from rllm_gym.core import Episode
from rllm_gym.engine import AgentExecutionEngine, AgentWorkflowEngine, EpisodeSpec


class EpisodeQueue:
    """Limits the episodes of all concurrent runs of an engine. The episodes of a run start after all those of earlier
    runs have started; so the last, slow ones of a step leave no capacity unused.

    Args:
        parallel: Maximum number of episodes in progress.
    """

    def __init__(self, parallel: int) -> None:
        self._free = asyncio.Semaphore(parallel)
        self._all_started = asyncio.Event()
        self._all_started.set()

    async def run(
        self, engine: AgentExecutionEngine | AgentWorkflowEngine, specs: Sequence[EpisodeSpec], *, urgent: bool = False
    ) -> list[Episode]:
        """Return the episodes, in order.

        Args:
            engine: The engine.
            specs: The episodes to run; each has an id.
            urgent: Start as soon as capacity is free.
        """
        before, all_started = self._all_started, asyncio.Event()
        if not urgent:
            self._all_started = all_started
        in_progress = 0

        async def started() -> AsyncIterator[EpisodeSpec]:
            nonlocal in_progress
            if not urgent:
                await before.wait()
            for spec in specs:
                await self._free.acquire()
                in_progress += 1
                yield spec
            all_started.set()

        episodes: dict[str, Episode] = {}
        try:
            async with aclosing(engine.stream(started())) as results:
                async for episode in results:
                    self._free.release()
                    in_progress -= 1
                    episodes[episode.episode_id] = episode
        finally:
            all_started.set()
            for _ in range(in_progress):
                self._free.release()
        return [episodes[spec.episode_id] for spec in specs]
