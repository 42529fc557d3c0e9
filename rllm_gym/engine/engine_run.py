"""One run of an engine: concurrent loops that run one episode after another, with retries and a queue of results."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sized
from dataclasses import replace
from typing import Any, Protocol

from rllm_gym.agents import BaseAgent
from rllm_gym.core import EnvironmentFault, Episode, StopReason, TaskError
from rllm_gym.engine.attempt import AgentError, Attempt, EnvLease, empty_episode
from rllm_gym.engine.options import EngineOptions
from rllm_gym.engine.progress import RunProgress
from rllm_gym.engine.sampler_client import SamplerClient
from rllm_gym.engine.sampling_barrier import SamplingBarrier
from rllm_gym.engine.spec import EpisodeSpec, Specs, as_spec
from rllm_gym.engine.stats import EngineStats
from rllm_gym.samplers.protocol import Sampler, SamplerError

_log = logging.getLogger(__name__)

_MAX_LOGGED_FAULTS = 20  # faults per kind that are logged as warnings

Result = tuple[int, Episode, BaseAgent | None]
"""Position of the spec, its episode, and the agent of the last attempt."""


class EnvironmentUnavailable(RuntimeError):
    """Raised if no environment could be created at all: a wrong argument, import or file. Names the reason."""


class RunnableEngine(Protocol):
    """What a run reads and calls of its engine, see :class:`~rllm_gym.engine.base.BaseEngine`."""

    env_id: str
    sampler: Sampler
    options: EngineOptions
    settle_turns: int
    stats: EngineStats

    @property
    def env_made(self) -> bool:
        """Whether any environment was ever created."""

    def acquire_lease(self) -> EnvLease:
        """Return the environments of an earlier episode if some are idle, else new ones."""

    def release_lease(self, lease: EnvLease) -> None:
        """Take the environments back for another episode."""

    def attempt(self, spec: EpisodeSpec, lease: Any, name: str, sampler_client: SamplerClient) -> Attempt:
        """Create one attempt at an episode, ready to run."""


class EngineRun:
    """Runs the specs of one run.

    Args:
        engine: The engine whose environments and sampler are used and whose stats are updated.
        specs: The episodes to run.
        run: Number of the run within the engine; makes the names of conversations unique.
    """

    def __init__(self, engine: RunnableEngine, specs: Specs, *, run: int) -> None:
        self._engine = engine
        self._run = run
        self._specs = _enumerate_specs(specs)
        self._spec_lock = asyncio.Lock()
        self._ids: set[str] = set()
        self._done: asyncio.Queue[Result | None] = asyncio.Queue(maxsize=engine.options.n_parallel)
        self._barrier: SamplingBarrier | None = None
        self._work: asyncio.Task[None] | None = None
        self._reader_stopped = False  # whether the reader has stopped reading results
        total = len(specs) if isinstance(specs, Sized) else None
        self._progress = RunProgress(engine.options.progress, total, engine.stats)

    async def results(self) -> AsyncIterator[Result]:
        """Yield results as they finish; in deterministic runs in the order of the specs."""
        self._work = asyncio.create_task(self._run_all())
        waiting: dict[int, Result] = {}
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
        lease = self._engine.acquire_lease()
        try:
            while True:
                episode, agent = await self._run_episode(index, spec, lease)
                self._record(episode)
                await self._done.put((index, episode, agent))
                taken = await self._next_spec()
                if taken is None:
                    break
                index, spec = taken
        except BaseException:
            await lease.aclose()
            raise
        self._engine.release_lease(lease)
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
        if isinstance(error, EnvironmentFault) and not self._engine.env_made:
            raise EnvironmentUnavailable(f"no environment could be created: {error}") from error
        return stop_reason, str(error)

    def _count_fault(self, kind: str, spec: EpisodeSpec, error: Exception) -> None:
        faults = self._engine.stats.faults
        faults[kind] += 1
        # Limit the number of warnings when an environment fails very often.
        level = logging.WARNING if faults[kind] <= _MAX_LOGGED_FAULTS else logging.DEBUG
        more = "; further faults of this kind are counted, but not logged" if faults[kind] == _MAX_LOGGED_FAULTS else ""
        _log.log(level, "episode %s: fault (%s): %s%s", spec.episode_id, kind, error, more)

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
            level = logging.WARNING if stats.dropped <= _MAX_LOGGED_FAULTS else logging.DEBUG
            more = "; further dropped episodes are not logged" if stats.dropped == _MAX_LOGGED_FAULTS else ""
            reason = ": ".join(filter(None, [episode.stop_reason.value or "not ended", episode.fault]))
            text = "episode %s: dropped after %d attempt%s: %s%s"
            plural = "s" * (episode.attempts != 1)
            _log.log(level, text, episode.episode_id, episode.attempts, plural, reason, more)


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
