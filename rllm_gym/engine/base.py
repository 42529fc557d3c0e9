"""The base class of the engines, and one run: concurrent loops that run one episode after another, with retries."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sized
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from rllm_gym.agents import BaseAgent
from rllm_gym.chat.renderer import ChatRenderer
from rllm_gym.core import EnvironmentFault, Episode, StopReason, TaskError
from rllm_gym.engine.attempt import AgentError, Attempt, EnvLease, empty_episode
from rllm_gym.engine.env_pool import EnvPool
from rllm_gym.engine.options import EngineOptions
from rllm_gym.engine.progress import RunProgress
from rllm_gym.engine.sampler_client import SamplerClient
from rllm_gym.engine.sampling_barrier import SamplingBarrier
from rllm_gym.engine.spec import Budget, EpisodeSpec, Specs, as_spec
from rllm_gym.engine.stats import EngineStats
from rllm_gym.runtime.fault_log import count_fault, log_repeated
from rllm_gym.samplers.protocol import Sampler, SamplerError, SamplingParams

_log = logging.getLogger(__name__)

EpisodeResult = tuple[int, Episode, BaseAgent | None]
"""Position of the spec, its episode, and the agent of the last attempt."""


class EnvironmentUnavailable(RuntimeError):
    """Raised if no environment could be created at all: a wrong argument, import or file. Names the reason."""


class BaseEngine(ABC):
    """Runs up to ``n_parallel`` episodes concurrently. A subclass defines one attempt at an episode.

    Args:
        env_id: The name of the environment in episodes and messages.
        sampler: Samples the replies.
        options: The options of the engine.
        settle_turns: Number of event loop iterations that a deterministic round waits for tasks that may still request
            a reply.
    """

    def __init__(self, *, env_id: str, sampler: Sampler, options: EngineOptions, settle_turns: int = 0) -> None:
        if not callable(getattr(sampler, "sample", None)):
            raise TypeError(
                f"sampler={sampler!r:.80} must be a sampler, such as TorchSampler(path) or ScriptedSampler(function)"
            )
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
        self._counted_until = 0.0
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

    async def stream(self, specs: Specs) -> AsyncGenerator[Episode, None]:
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

    async def _run(self, specs: Specs) -> AsyncGenerator[EpisodeResult, None]:
        self._count_wall_time()
        self._running += 1
        engine_run = EngineRun(self, specs, run=next(self._runs))
        try:
            async for result in engine_run.results():
                yield result
        finally:
            await engine_run.aclose()
            self._count_wall_time()
            self._running -= 1
            if not self._kept_open and not self._running:
                await self.aclose()

    def _count_wall_time(self) -> None:
        """Add the time since the last call to the statistics, if a run was in progress."""
        now = time.perf_counter()
        self.stats.wall += now - self._counted_until if self._running else 0.0
        self._counted_until = now

    # Environments

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


class EngineRun:
    """Runs the specs of one run.

    Args:
        engine: The engine whose environments and sampler are used and whose stats are updated.
        specs: The episodes to run.
        run: Number of the run within the engine; makes the names of conversations unique.
    """

    def __init__(self, engine: BaseEngine, specs: Specs, *, run: int) -> None:
        self._engine = engine
        self._run = run
        self._specs = _enumerate_specs(specs)
        self._spec_lock = asyncio.Lock()
        self._ids: set[str] = set()
        self._done: asyncio.Queue[EpisodeResult | None] = asyncio.Queue(maxsize=engine.options.n_parallel)
        self._barrier: SamplingBarrier | None = None
        self._work: asyncio.Task[None] | None = None
        self._reader_stopped = False  # whether the reader has stopped reading results
        total = len(specs) if isinstance(specs, Sized) else None
        self._progress = RunProgress(engine.options.progress, total, engine.stats)

    async def results(self) -> AsyncIterator[EpisodeResult]:
        """Yield results as they finish; in deterministic runs in the order of the specs."""
        self._work = asyncio.create_task(self._run_all())
        waiting: dict[int, EpisodeResult] = {}
        position = 0
        with self._progress:
            while (result := await self._done.get()) is not None:
                self._progress.advance()
                if not self._engine.options.deterministic:
                    yield result
                    continue
                waiting[result[0]] = result
                while position in waiting:
                    yield waiting.pop(position)
                    position += 1
        await self._work  # re-raise the error that ended the run

    async def aclose(self) -> None:
        """Cancel what is still running and release its sampler caches."""
        self._reader_stopped = True
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    # Private methods

    async def _run_all(self) -> None:
        try:
            async with asyncio.TaskGroup() as loops:
                if self._engine.options.deterministic:
                    self._barrier = SamplingBarrier(self._engine.sampler, settle_turns=self._engine.settle_turns)
                for _ in range(self._engine.options.n_parallel):
                    taken = await self._next_spec()
                    if taken is None:
                        break
                    if self._barrier is not None:
                        self._barrier.register()
                    loops.create_task(self._episode_loop(*taken))
                if self._barrier is not None:
                    self._barrier.start()
        except BaseExceptionGroup as errors:
            # Report one error only; the others are mostly its consequences.
            raise errors.exceptions[0] from None
        finally:
            if self._barrier is not None:
                await self._barrier.aclose()
            if not self._reader_stopped:
                await self._done.put(None)

    async def _episode_loop(self, index: int, spec: EpisodeSpec) -> None:
        while True:
            lease = self._engine.acquire_lease()
            try:
                episode, agent = await self._run_episode(index, spec, lease)
            except BaseException:
                await lease.aclose()
                raise
            # Not kept while waiting for the next spec, which may take long.
            self._engine.release_lease(lease)
            self._record(episode)
            await self._done.put((index, episode, agent))
            taken = await self._next_spec()
            if taken is None:
                break
            index, spec = taken
        if self._barrier is not None:
            self._barrier.leave()

    async def _next_spec(self) -> tuple[int, EpisodeSpec] | None:
        async with self._spec_lock:
            taken = await anext(self._specs, None)
        if taken is None:
            return None
        index, item = taken
        spec = as_spec(item, run_seed=self._engine.options.seed, index=index)
        if not spec.episode_id:
            spec = replace(spec, episode_id=f"{self._run}-{index}")
        if spec.episode_id in self._ids:
            raise ValueError(f"two specs have the episode_id {spec.episode_id!r}; ids are unique within a run")
        self._ids.add(spec.episode_id)
        return index, spec

    async def _run_episode(self, index: int, spec: EpisodeSpec, lease: EnvLease) -> tuple[Episode, BaseAgent | None]:
        """Run a spec, with retries on a fresh environment after a fault, and return its record."""
        engine = self._engine
        began = time.perf_counter()
        sampler_client = SamplerClient(index, engine.sampler, self._barrier)
        attempts = 0
        attempt: Attempt | None = None
        stop_reason: StopReason | None = None
        message: str | None = None
        try:
            async with asyncio.timeout(engine.options.deadlines.episode) as deadline:
                while stop_reason is None:
                    attempts += 1
                    try:
                        name = f"{self._run}/{spec.episode_id}/{attempts}"
                        attempt = engine.attempt(spec, lease, name, sampler_client)
                        await self._run_attempt(attempt, sampler_client)
                        stop_reason = attempt.stop_reason
                    except EnvironmentFault as fault:
                        if attempts > engine.options.retries:
                            raise
                        await lease.discard()
                        self._count_fault(fault.kind, spec, fault)
                        engine.stats.retries += 1
        except (EnvironmentFault, TaskError, AgentError, SamplerError) as error:
            stop_reason, message = self._classify_error(error, spec)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            if attempt is not None and attempt.error is not None:
                # The deadline passed during the cleanup after an error. Report that error, not the timeout.
                stop_reason, message = self._classify_error(attempt.error, spec)
            elif attempt is not None and attempt.started:
                stop_reason = StopReason.TIMEOUT
            else:
                self._count_fault("episode_deadline", spec, error)
                stop_reason = StopReason.FAULT
                message = f"no turn was completed within the episode deadline of {engine.options.deadlines.episode:g} s"
        if message is not None or stop_reason is StopReason.TIMEOUT:
            await lease.discard()
        seconds = time.perf_counter() - began
        if attempt is None:
            return empty_episode(
                spec, stop_reason, message, env_id=engine.env_id, attempts=attempts, seconds=seconds
            ), None
        engine.stats.prompt_tokens += attempt.prompt_tokens
        engine.stats.sampled_tokens += attempt.sampled_tokens
        engine.stats.seconds.update(attempt.seconds)
        episode = attempt.to_episode(stop_reason, message, env_id=engine.env_id, attempts=attempts, seconds=seconds)
        episode.usage = attempt.usage
        return episode, attempt.agent

    def _classify_error(self, error: Exception, spec: EpisodeSpec) -> tuple[StopReason, str]:
        """Return the stop reason and the message for an error; re-raise errors that end the run."""
        kind, stop_reason = "agent", StopReason.AGENT_ERROR
        if isinstance(error, EnvironmentFault):
            kind, stop_reason = error.kind, StopReason.FAULT
        elif isinstance(error, TaskError):
            # The same task fails in the same way on every environment, so it is not retried.
            kind, stop_reason = "task", StopReason.FAULT
        elif isinstance(error, SamplerError):
            if self._engine.options.on_sampler_error == "raise":
                raise error
            kind, stop_reason = "sampler", StopReason.FAULT
        elif not isinstance(error, AgentError):
            raise error
        self._count_fault(kind, spec, error)
        if isinstance(error, EnvironmentFault) and not self._engine.env_pool.env_made.is_set():
            raise EnvironmentUnavailable(f"no environment could be created: {error}") from error
        return stop_reason, str(error)

    def _count_fault(self, kind: str, spec: EpisodeSpec, error: Exception) -> None:
        count_fault(_log, self._engine.stats.faults, kind, f"episode {spec.episode_id}: fault ({kind}): {error}")

    async def _run_attempt(self, attempt: Attempt, sampler_client: SamplerClient) -> None:
        try:
            await attempt.run()
        except Exception as error:
            attempt.error = error
            raise
        finally:
            for conversation in attempt.conversations:
                await sampler_client.release(conversation)

    def _record(self, episode: Episode) -> None:
        stats = self._engine.stats
        stats.episodes += 1
        stats.turns += episode.num_turns
        stats.stop_reasons[episode.stop_reason.value] += 1
        if episode.trainable:
            stats.rewards += episode.reward
        else:
            stats.dropped += 1
            reason = ": ".join(filter(None, [episode.stop_reason.value or "not ended", episode.fault]))
            attempts = f"{episode.attempts} attempt{'s' * (episode.attempts != 1)}"
            text = f"episode {episode.episode_id}: dropped after {attempts}: {reason}"
            log_repeated(_log, stats.dropped, text, "dropped episodes")


async def _enumerate_specs(specs: Specs) -> AsyncGenerator[tuple[int, Any], None]:
    index = 0
    if isinstance(specs, AsyncIterable):
        async for item in specs:
            yield index, item
            index += 1
    else:
        for item in specs:
            yield index, item
            index += 1


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
