"""The base class of the engines: takes episode specs, returns episodes, and cleans up everything it started."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from rllm_gym.chat.renderer import ChatRenderer
from rllm_gym.core import Episode
from rllm_gym.engine.attempt import Attempt, EnvLease
from rllm_gym.engine.engine_run import EngineRun, Result
from rllm_gym.engine.env_pool import EnvPool
from rllm_gym.engine.options import EngineOptions
from rllm_gym.engine.sampler_client import SamplerClient
from rllm_gym.engine.spec import Budget, EpisodeSpec, Specs
from rllm_gym.engine.stats import EngineStats
from rllm_gym.samplers.protocol import Sampler, SamplingParams


class BaseEngine(ABC):
    """Runs up to ``n_parallel`` episodes concurrently. A subclass defines one attempt at an episode.

    Args:
        env_id: The name of the environment in episodes and messages.
        sampler: Draws the replies.
        options: The options of the engine.
        settle_turns: Number of event loop iterations that a deterministic round waits for tasks that may still request
            a reply.
    """

    def __init__(self, *, env_id: str, sampler: Sampler, options: EngineOptions, settle_turns: int = 0) -> None:
        self.env_id = env_id
        self.sampler = sampler
        self.options = options
        self.budget = options.budget
        self.renderer = options.renderer or _renderer(sampler, options.tokenizer)
        self.params = self.with_turn_end(options.sampling_params)
        if self.renderer is None and self.budget != Budget(self.budget.max_turns):
            raise ValueError(
                "token limits need token ids, but this sampler takes only messages: pass tokenizer= or "
                "renderer=, or remove max_prompt_tokens, max_response_tokens and max_context_tokens"
            )
        self.settle_turns = settle_turns
        self.stats = EngineStats()
        self.env_pool = EnvPool(
            options.workers,
            memory_mb=options.memory_mb,
            name=f"{env_id} environment",
            deadlines=options.deadlines,
            reuse=options.reuse_envs,
            stats=self.stats,
        )
        self._runs = itertools.count()
        self._running = 0
        self._kept_open = False
        self._lock = threading.RLock()
        self._idle: list[EnvLease] = []

    @abstractmethod
    def attempt(self, spec: EpisodeSpec, lease: Any, name: str, sampler_client: SamplerClient) -> Attempt:
        """Create one attempt at an episode, ready to run.

        Args:
            spec: The episode to run; its seed and id are set.
            lease: Holds the environments of the attempt; created by :meth:`new_lease`.
            name: Unique in the lifetime of the sampler. The names of its conversations start with it.
            sampler_client: Where the attempt requests replies.

        Raises:
            AgentError: The user's code could not create the agent or the workflow.
        """

    @abstractmethod
    def new_lease(self) -> EnvLease:
        """Create the object that holds the environments of one running episode."""

    def with_turn_end(self, params: SamplingParams) -> SamplingParams:
        """Add the end-of-turn token of the chat template to the stop ids: a base model's own EOS token may differ."""
        end_of_turn = self.renderer.end_of_turn_id if self.renderer is not None else None
        if end_of_turn is None or end_of_turn in params.stop_token_ids:
            return params
        return replace(params, stop_token_ids=(*params.stop_token_ids, end_of_turn))

    # Running episodes

    async def stream(self, specs: Specs) -> AsyncIterator[Episode]:
        """Yield episodes as they finish (``deterministic``: in the order of the specs).

        Specs are taken one by one as capacity becomes free, and at most ``n_parallel`` results wait to be read, so a
        slow reader slows the engine down. Leaving the loop early cancels everything that is still running.

        Args:
            specs: The episodes to run: :class:`EpisodeSpec` objects or tasks.

        Raises:
            SamplerError: The sampler failed.
            EnvironmentUnavailable: No environment could be created at all.
            ValueError: Two specs have the same ``episode_id``.
        """
        async with aclosing(self._run(specs)) as results:
            async for _, episode, _ in results:
                yield episode

    async def run(self, specs: Specs) -> list[Episode]:
        """Return all episodes, in the order of the specs. Raises the same errors as :meth:`stream`."""
        async with aclosing(self._run(specs)) as results:
            episodes = [result async for result in results]
        return [episode for _, episode, _ in sorted(episodes, key=lambda result: result[0])]

    def run_sync(self, specs: Specs) -> list[Episode]:
        """Run :meth:`run` from code without an event loop.

        Raises:
            RuntimeError: An event loop is running in this thread (a notebook): use ``await engine.run(specs)`` there.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(specs))
        raise RuntimeError(
            "an event loop is already running in this thread: use `await engine.run(specs)` instead of run_sync()"
        )

    async def _run(self, specs: Specs) -> AsyncGenerator[Result, None]:
        began = time.perf_counter()
        self._running += 1
        engine_run = EngineRun(self, specs, run=next(self._runs))
        try:
            async for result in engine_run.results():
                yield result
        finally:
            await engine_run.aclose()
            self._running -= 1
            if not self._kept_open and not self._running:
                await self.aclose()
            self.stats.wall += time.perf_counter() - began

    # Environments

    @property
    def env_made(self) -> bool:
        """Whether any environment was ever created."""
        return self.env_pool.env_made.is_set()

    def acquire_lease(self) -> EnvLease:
        """Return the environments of an earlier episode if some are idle, else new ones."""
        with self._lock:
            return self._idle.pop() if self._idle else self.new_lease()

    def release_lease(self, lease: EnvLease) -> None:
        """Return ``lease`` to the idle list."""
        with self._lock:
            self._idle.append(lease)

    # Closing

    async def aclose(self) -> None:
        """Close every environment and stop every worker, each within its deadline. Can be called more than once."""
        with self._lock:
            leases, self._idle = self._idle, []
        try:
            await asyncio.gather(*(lease.aclose() for lease in leases))
        finally:
            await self.env_pool.aclose()

    def close(self) -> None:
        """Run :meth:`aclose` from code without an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self.aclose())
            return
        raise RuntimeError(
            "an event loop is already running in this thread: use `await engine.aclose()` instead of close()"
        )

    async def __aenter__(self) -> Self:
        self._kept_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept_open = False
        await self.aclose()

    def __enter__(self) -> Self:
        self._kept_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept_open = False
        self.close()


def _renderer(sampler: Sampler, tokenizer: Any) -> ChatRenderer | None:
    tokenizer = tokenizer if tokenizer is not None else getattr(sampler, "tokenizer", None)
    if tokenizer is not None:
        return ChatRenderer(tokenizer)
    if sampler.returns_tokens:
        raise ValueError(
            f"{type(sampler).__name__} needs token ids: pass the tokenizer of its model as tokenizer=, or "
            "pass renderer="
        )
    return None
