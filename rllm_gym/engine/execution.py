"""The engine: many episodes at once, each in its own worker, streamed as they finish; everything that waits ends."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self

import gymnasium
from gymnasium.envs.registration import EnvSpec

from rllm_gym.agents import BaseAgent, default_agent
from rllm_gym.chat.renderer import ChatRenderer
from rllm_gym.core import Episode, Task
from rllm_gym.engine.crew import Crew, Result
from rllm_gym.engine.host import resolve
from rllm_gym.engine.slot import Slot
from rllm_gym.engine.spec import Budget, Deadlines, EpisodeSpec
from rllm_gym.engine.stats import EngineStats
from rllm_gym.samplers.protocol import Sampler, SamplingParams
from rllm_gym.workers import WorkerPool

TaskLike = EpisodeSpec | int | str | Task | Mapping[str, Any] | None
Specs = Iterable[TaskLike] | AsyncIterable[TaskLike]


class AgentExecutionEngine:
    """Runs episodes: environment, agent and sampler, ``n_parallel`` at a time.

    >>> engine = AgentExecutionEngine(env="rllm/Math-v0", sampler=sampler)            # doctest: +SKIP
    >>> async with engine:                                                            # doctest: +SKIP
    ...     async for episode in engine.stream(range(100)):
    ...         print(episode.task_id, episode.reward, episode.stop_reason)

    Inside ``with`` or ``async with`` workers and environments serve several runs; outside of it every run starts
    and ends its own. The sampler belongs to whoever made it.

    **Faults.** When the world breaks (an exception, a passed deadline, a dead worker, garbage in place of a
    5-tuple) the episode begins again on a fresh environment with the same seeds; past ``retries`` it comes back
    with ``StopReason.FAULT``, ``trainable`` False, and no reward. Every fault is counted in ``stats.faults``.
    An exception of the agent's own code ends the episode as ``StopReason.AGENT_ERROR``.

    Args:
        env: A Gymnasium id, an ``EnvSpec``, or something callable that returns an environment (a class, a function).
        sampler: What draws replies.
        env_kwargs: Keyword arguments of the environment.
        agent: An agent class or factory without arguments; ``None`` picks one by the environment's family.
        renderer: Makes token ids of messages. ``None`` makes one of ``tokenizer`` (or the sampler's own).
        tokenizer: A Hugging Face tokenizer with a chat template.
        sampling_params: How replies are drawn. The token that ends a turn of the template is a stop id in any case.
        n_parallel: Episodes that run at a time in one run, and results that may wait to be read.
        workers: ``"thread"``, or ``"process"``, which a hang or a crash cannot outlive.
        memory_mb: Cap for each worker process; ``None`` for none.
        max_turns, max_prompt_tokens, max_response_tokens, max_context_tokens: As :class:`Budget`.
        deadlines: Seconds for each phase.
        retries: Times an episode may begin again after a fault.
        reuse_envs: Whether an environment serves further episodes after a clean end. ``None``: those named by an
            ``rllm/`` id do; any other is made for one episode and closed before its result is delivered, so that
            a fault in ``close`` counts against that episode.
        on_sampler_error: ``"raise"`` ends the run with the sampler's error, ``"drop"`` makes it a fault of the
            episode, without retries.
        seed: Root of the seeds of episodes that name none.
        deterministic: Sample in rounds, so that the batches depend on the episodes alone and not on timing, and
            deliver results in the order of the specs. Slower: everyone waits for the slowest environment.
        progress: Show a progress bar on stderr.

    Raises:
        gymnasium.error.Error: There is no such id.
        ValueError: An argument is out of range, or one could have no effect.
    """

    def __init__(
        self,
        env: str | EnvSpec | Callable[..., gymnasium.Env[Any, Any]],
        *,
        sampler: Sampler,
        env_kwargs: Mapping[str, Any] | None = None,
        agent: Callable[[], BaseAgent] | None = None,
        renderer: ChatRenderer | None = None,
        tokenizer: Any = None,
        sampling_params: SamplingParams | None = None,
        n_parallel: int = 64,
        workers: Literal["thread", "process"] = "thread",
        memory_mb: int | None = None,
        max_turns: int | None = None,
        max_prompt_tokens: int | None = None,
        max_response_tokens: int | None = None,
        max_context_tokens: int | None = None,
        deadlines: Deadlines | None = None,
        retries: int = 2,
        reuse_envs: bool | None = None,
        on_sampler_error: Literal["raise", "drop"] = "raise",
        seed: int = 0,
        deterministic: bool = False,
        progress: bool = False,
    ) -> None:
        if n_parallel < 1:
            raise ValueError(f"n_parallel={n_parallel!r} must be at least 1")
        if workers not in ("thread", "process"):
            raise ValueError(f"workers={workers!r} must be 'thread' or 'process'")
        if retries < 0:
            raise ValueError(f"retries={retries!r} must be 0 or more")
        if on_sampler_error not in ("raise", "drop"):
            raise ValueError(f"on_sampler_error={on_sampler_error!r} must be 'raise' or 'drop'")
        if memory_mb is not None and workers != "process":
            raise ValueError(f"memory_mb={memory_mb!r} needs workers='process'; threads share this process's memory")
        self.source = resolve(env)
        self.env_id = _name(self.source)
        self.env_kwargs = dict(env_kwargs or {})
        self.make_agent: Callable[[], BaseAgent] = agent or default_agent(self.env_id)
        self.sampler = sampler
        self.renderer = renderer or _renderer(sampler, tokenizer)
        self.params = _ending_turns(sampling_params or SamplingParams(), self.renderer)
        self.n_parallel = n_parallel
        self.workers = workers
        self.memory_mb = memory_mb
        self.budget = Budget(max_turns, max_prompt_tokens, max_response_tokens, max_context_tokens)
        if self.renderer is None and self.budget != Budget(max_turns):
            raise ValueError(
                "token limits need token ids, and this sampler takes messages only: give a tokenizer or a renderer, "
                "or leave max_prompt_tokens, max_response_tokens and max_context_tokens out"
            )
        self.deadlines = deadlines or Deadlines()
        self.retries = retries
        self.reuse_envs = self.env_id.startswith("rllm/") if reuse_envs is None else reuse_envs
        self.on_sampler_error = on_sampler_error
        self.seed = seed
        self.deterministic = deterministic
        self.progress = progress
        self.stats = EngineStats()
        self._runs = itertools.count()
        self._running = 0
        self._kept_open = False
        self.made = threading.Event()  # whether any environment was ever made
        self._lock = threading.Lock()
        self._pool: WorkerPool | None = None
        self._idle: list[Slot] = []

    # Running ----------------------------------------------------------------------------------------------

    async def stream(self, specs: Specs) -> AsyncIterator[Episode]:
        """Episodes as they finish (``deterministic``: in the order of the specs).

        Specs are taken one by one as places become free, and no more than ``n_parallel`` results wait to be read:
        a slow reader slows the engine down. Leaving the loop early ends everything that still runs.

        Args:
            specs: What to run: :class:`EpisodeSpec`, or tasks alone.

        Raises:
            SamplerError: The sampler cannot serve.
            EnvironmentUnavailable: No environment could be made at all.
            ValueError: Two specs have the same ``episode_id``.
        """
        async with aclosing(self._run(specs)) as results:
            async for _, episode, _ in results:
                yield episode

    async def stream_with_agents(self, specs: Specs) -> AsyncIterator[Result]:
        """:meth:`stream` with the position of the spec and the agent that played it (``None`` if none did)."""
        async with aclosing(self._run(specs)) as results:
            async for result in results:
                yield result

    async def run(self, specs: Specs) -> list[Episode]:
        """All episodes, in the order of the specs. Raises as :meth:`stream`."""
        async with aclosing(self._run(specs)) as results:
            episodes = [result async for result in results]
        return [episode for _, episode, _ in sorted(episodes, key=lambda result: result[0])]

    def run_sync(self, specs: Specs) -> list[Episode]:
        """:meth:`run` for code without an event loop.

        Raises:
            RuntimeError: An event loop runs in this thread (a notebook): ``await engine.run(specs)`` there.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(specs))
        raise RuntimeError("an event loop is already running here: use `await engine.run(specs)` instead of run_sync")

    async def _run(self, specs: Specs) -> AsyncGenerator[Result, None]:
        began = time.perf_counter()
        self._running += 1
        crew = Crew(self, specs, run=next(self._runs))
        try:
            async for result in crew.results():
                yield result
        finally:
            await crew.aclose()
            self._running -= 1
            if not self._kept_open and not self._running:
                await self.aclose()
            self.stats.wall += time.perf_counter() - began

    # Places -----------------------------------------------------------------------------------------------

    def take_slot(self) -> Slot:
        """A place with a worker, an idle one if there is one."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if self._pool is None:
                # n_parallel bounds each run; the pool itself need not.
                self._pool = WorkerPool(
                    self.workers,
                    max_workers=1_000_000,
                    memory_mb=self.memory_mb,
                    name=f"{self.env_id} environment",
                    preload=("rllm_gym.engine.host",) if self.workers == "process" else (),
                )
            return Slot(
                self._pool,
                self.source,
                self.env_kwargs,
                self.deadlines,
                reuse=self.reuse_envs,
                made=self.made,
                stats=self.stats,
            )

    def give_back(self, slot: Slot) -> None:
        """The place is free again."""
        with self._lock:
            self._idle.append(slot)

    # Life -------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close every environment and end every worker, each within its deadline. Safe to call twice."""
        with self._lock:
            slots, self._idle = self._idle, []
        try:
            await asyncio.gather(*(slot.aclose() for slot in slots))
        finally:
            with self._lock:
                pool, self._pool = self._pool, None
            if pool is not None:
                await pool.aclose()

    def close(self) -> None:
        """:meth:`aclose` for code without an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self.aclose())
            return
        raise RuntimeError("an event loop is already running here: use `await engine.aclose()`")

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


def _name(source: EnvSpec | Callable[..., Any]) -> str:
    return source.id if isinstance(source, EnvSpec) else getattr(source, "__qualname__", type(source).__name__)


def _renderer(sampler: Sampler, tokenizer: Any) -> ChatRenderer | None:
    tokenizer = tokenizer if tokenizer is not None else getattr(sampler, "tokenizer", None)
    if tokenizer is not None:
        return ChatRenderer(tokenizer)
    if sampler.returns_tokens:
        raise ValueError(
            f"{type(sampler).__name__} takes token ids: give the tokenizer of its model with tokenizer=, or a renderer"
        )
    return None


def _ending_turns(params: SamplingParams, renderer: ChatRenderer | None) -> SamplingParams:
    """The same, and a reply ends where the template ends a turn: a base model's own end of text is another token."""
    end_of_turn = renderer.end_of_turn_id if renderer is not None else None
    if end_of_turn is None or end_of_turn in params.stop_token_ids:
        return params
    return replace(params, stop_token_ids=(*params.stop_token_ids, end_of_turn))
