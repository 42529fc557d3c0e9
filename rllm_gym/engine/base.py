"""What every engine is: specs go in, episodes come out, and what runs meanwhile has an owner that ends it."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self

from gymnasium.envs.registration import EnvSpec

from rllm_gym.chat.renderer import ChatRenderer
from rllm_gym.core import Episode, Task
from rllm_gym.engine.crew import Attempt, Crew, Place, Result, Seat
from rllm_gym.engine.host import EnvironmentHost
from rllm_gym.engine.slot import Slot
from rllm_gym.engine.spec import Budget, Deadlines, EpisodeSpec
from rllm_gym.engine.stats import EngineStats
from rllm_gym.samplers.protocol import Sampler, SamplingParams
from rllm_gym.workers import KINDS, Kind, WorkerPool

TaskLike = EpisodeSpec | int | str | Task | Mapping[str, Any] | None
Specs = Iterable[TaskLike] | AsyncIterable[TaskLike]


class BaseEngine(ABC):
    """Runs episodes, ``n_parallel`` at a time; a subclass says what one attempt at an episode is.

    Args:
        env_id: What its episodes and messages call the environment.
        budget: Where conversations are cut off.
        settle: Turns of the event loop a deterministic round waits for tasks that may still ask for a reply.
        **others: As :class:`~rllm_gym.engine.AgentExecutionEngine` has them.
    """

    def __init__(
        self,
        *,
        env_id: str,
        sampler: Sampler,
        renderer: ChatRenderer | None,
        tokenizer: Any,
        sampling_params: SamplingParams | None,
        n_parallel: int,
        workers: Kind,
        memory_mb: int | None,
        budget: Budget,
        deadlines: Deadlines | None,
        retries: int,
        reuse_envs: bool | None,
        on_sampler_error: Literal["raise", "drop"],
        seed: int,
        deterministic: bool,
        progress: bool,
        settle: int = 0,
    ) -> None:
        if n_parallel < 1:
            raise ValueError(f"n_parallel={n_parallel!r} must be at least 1")
        if workers not in KINDS:
            raise ValueError(f"workers={workers!r} must be one of {', '.join(map(repr, KINDS))}")
        if retries < 0:
            raise ValueError(f"retries={retries!r} must be 0 or more")
        if on_sampler_error not in ("raise", "drop"):
            raise ValueError(f"on_sampler_error={on_sampler_error!r} must be 'raise' or 'drop'")
        if memory_mb is not None and workers == "thread":
            raise ValueError(
                f"memory_mb={memory_mb!r} needs workers='process' or 'ray'; threads share this process's memory"
            )
        if deadlines is not None and not isinstance(deadlines, Deadlines):
            raise TypeError(f"deadlines={deadlines!r} must be a Deadlines, such as Deadlines(step=5.0)")
        self.env_id = env_id
        self.sampler = sampler
        self.renderer = renderer or _renderer(sampler, tokenizer)
        self.params = self.ending_turns(sampling_params or SamplingParams())
        self.n_parallel = n_parallel
        self.workers = workers
        self.memory_mb = memory_mb
        self.budget = budget
        if self.renderer is None and budget != Budget(budget.max_turns):
            raise ValueError(
                "token limits need token ids, and this sampler takes messages only: give a tokenizer or a renderer, "
                "or leave max_prompt_tokens, max_response_tokens and max_context_tokens out"
            )
        self.deadlines = deadlines or Deadlines()
        self.retries = retries
        self.reuse_envs = reuse_envs
        self.on_sampler_error = on_sampler_error
        self.seed = seed
        self.deterministic = deterministic
        self.progress = progress
        self.settle = settle
        self.stats = EngineStats()
        self._runs = itertools.count()
        self._running = 0
        self._kept_open = False
        self.made = threading.Event()  # whether any environment was ever made
        self._lock = threading.RLock()
        self._pool: WorkerPool | None = None
        self._idle: list[Place] = []

    @abstractmethod
    def attempt(self, spec: EpisodeSpec, place: Any, name: str, seat: Seat) -> Attempt:
        """One attempt at an episode, ready to play.

        Args:
            spec: What to run; seed and id are set.
            place: Where its worlds live; what :meth:`new_place` made.
            name: Unique in the life of the sampler; the names of its conversations begin with it.
            seat: Where it asks for replies.

        Raises:
            AgentFailed: The user's code could not make what plays.
        """

    @abstractmethod
    def new_place(self) -> Place:
        """Room for the worlds of one running episode."""

    def ending_turns(self, params: SamplingParams) -> SamplingParams:
        """The same, and a reply ends where the template ends a turn: a base model's end of text is another token."""
        end_of_turn = self.renderer.end_of_turn_id if self.renderer is not None else None
        if end_of_turn is None or end_of_turn in params.stop_token_ids:
            return params
        return replace(params, stop_token_ids=(*params.stop_token_ids, end_of_turn))

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

    def take_place(self) -> Place:
        """Room for an episode, idle if there is some."""
        with self._lock:
            return self._idle.pop() if self._idle else self.new_place()

    def give_back(self, place: Place) -> None:
        """The place is free again."""
        with self._lock:
            self._idle.append(place)

    def pool(self) -> WorkerPool:
        """The workers of all places."""
        with self._lock:
            if self._pool is None:
                # n_parallel bounds each run; the pool itself need not.
                self._pool = WorkerPool(
                    self.workers,
                    max_workers=1_000_000,
                    memory_mb=self.memory_mb,
                    name=f"{self.env_id} environment",
                    preload=() if self.workers == "thread" else ("rllm_gym.engine.host",),
                )
            return self._pool

    def new_slot(
        self,
        source: EnvSpec | str | Callable[..., Any],
        kwargs: Mapping[str, Any],
        *,
        env_id: str,
        host: Callable[..., Any] = EnvironmentHost,
    ) -> Slot:
        """A worker for one environment."""
        reuse = env_id.startswith("rllm/") if self.reuse_envs is None else self.reuse_envs
        return Slot(
            self.pool(), source, kwargs, self.deadlines, reuse=reuse, made=self.made, stats=self.stats, host=host
        )

    # Life -------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close every environment and end every worker, each within its deadline. Safe to call twice."""
        with self._lock:
            places, self._idle = self._idle, []
        try:
            await asyncio.gather(*(place.aclose() for place in places))
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


def _renderer(sampler: Sampler, tokenizer: Any) -> ChatRenderer | None:
    tokenizer = tokenizer if tokenizer is not None else getattr(sampler, "tokenizer", None)
    if tokenizer is not None:
        return ChatRenderer(tokenizer)
    if sampler.returns_tokens:
        raise ValueError(
            f"{type(sampler).__name__} takes token ids: give the tokenizer of its model with tokenizer=, or a renderer"
        )
    return None
