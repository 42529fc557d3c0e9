"""``RolloutCollector``: collects the episodes of a run with its engines and sampler, and shuts them down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from rllm_gym.chat import ChatRenderer
from rllm_gym.core import Episode, Task, stream_seed
from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.engine import (
    AgentExecutionEngine,
    AgentWorkflowEngine,
    Deadlines,
    EngineStats,
    EpisodeSpec,
    Role,
)
from rllm_gym.samplers.protocol import Sampler, SamplingParams, WeightUpdate
from trainers.algorithms import RolloutRequest
from trainers.config import EnvConfig, RoleAssignment, SamplingConfig
from trainers.rollouts.episode_queue import EpisodeQueue
from trainers.samples import TokensMissing
from trainers.train_env import TrainEnv

_log = logging.getLogger(__name__)

Engine = AgentExecutionEngine | AgentWorkflowEngine


class RolloutAbandoned(RuntimeError):
    """The run is shutting down, and episodes in progress are discarded."""


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """Episodes of one step: those of one rank or of all, of one round of sampling or of several.

    Attributes:
        groups: The ids of its groups, in order, and the training task of each.
        episodes: All episodes, ordered by group.
        stats: Statistics of the engines since the batch before; if steps overlap, also of episodes of other steps.
        weight_syncs: For each episode, the number of the weight sync (from 1) of the oldest weights that sampled its
            tokens; 0 for weights before the first sync.
        min_weight_sync: Episodes of earlier weight syncs are too stale to train on.
    """

    groups: dict[str, int]
    episodes: list[Episode]
    stats: EngineStats
    weight_syncs: list[int]
    min_weight_sync: int = 0

    @property
    def tasks(self) -> list[int]:
        """The training tasks, one per group."""
        return list(self.groups.values())

    @property
    def fresh(self) -> list[Episode]:
        """The episodes that are not too stale to train on."""
        return [
            episode
            for episode, weight_sync in zip(self.episodes, self.weight_syncs, strict=True)
            if weight_sync >= self.min_weight_sync
        ]

    @property
    def oldest_sync(self) -> int:
        """The oldest weight sync of the episodes that are not too stale to train on; 0 if there are none."""
        fresh = [weight_sync for weight_sync in self.weight_syncs if weight_sync >= self.min_weight_sync]
        return min(fresh, default=0)

    def __add__(self, more: RolloutBatch) -> RolloutBatch:
        """Append a further round of the same step."""
        return concatenate([self, more], at_once=False)


def concatenate(parts: Sequence[RolloutBatch], *, at_once: bool) -> RolloutBatch:
    """Concatenate batches of the same step. The wall times of engines that ran concurrently (``at_once``) are not added
    up."""
    stats = parts[0].stats.copy()
    for part in parts[1:]:
        for name in EngineStats.__slots__:
            setattr(stats, name, getattr(stats, name) + getattr(part.stats, name))
    if at_once:
        stats.wall = max(part.stats.wall for part in parts)
    return RolloutBatch(
        {group: task for part in parts for group, task in part.groups.items()},
        [episode for part in parts for episode in part.episodes],
        stats,
        [weight_sync for part in parts for weight_sync in part.weight_syncs],
        parts[0].min_weight_sync,
    )


class RolloutCollector:
    """Collects episodes and serves the newest weights. Owns the engines and the sampler, which it also closes if it
    cannot be created; call :meth:`close`.

    Episodes run in a background thread: :meth:`start` returns immediately.

    Args:
        train_env: Environment, agent and tasks.
        sampler: Generates the replies.
        tokenizer: The model's tokenizer.
        env: Limits and workers.
        sampling: Sampling options.
        assignment: Options of a workflow's roles.
        seed: Seed of the environments' dynamics and the sampled tokens.
        deterministic: Whether to sample in rounds, in the order of the episodes.
        overlap: Whether the episodes of several steps may be in progress at the same time.

    Attributes:
        sampler: The current sampler.
        weight_syncs: Number of weight syncs.

    Raises:
        TokensMissing: The sampler does not return token ids and log-probs.
    """

    def __init__(
        self,
        train_env: TrainEnv,
        sampler: Sampler,
        tokenizer: Any,
        *,
        env: EnvConfig,
        sampling: SamplingConfig,
        assignment: RoleAssignment | None = None,
        seed: int,
        deterministic: bool,
        overlap: bool = False,
    ) -> None:
        self.train_env = train_env
        self.sampler = sampler
        self._seed = seed
        self._loop = BackgroundLoop("rollouts")
        self.weight_syncs = 0
        self._synced: dict[int, int] = {}  # weight version to number of its weight sync
        self._running: set[asyncio.Task[Any]] = set()
        self._abandoned = False
        self._queue = EpisodeQueue(env.parallel) if overlap else None
        self._sampling = sampling
        self._assignment = assignment
        with contextlib.ExitStack() as opened:  # each callback runs even if others fail
            opened.callback(self._loop.close)
            opened.callback(lambda: self._loop.run(self.sampler.close()))
            options: dict[str, Any] = {
                "env": train_env.env,
                "sampler": sampler,
                "renderer": ChatRenderer(tokenizer),
                "sampling_params": self._params(sampling.reply_limit),
                "n_parallel": env.parallel,
                "workers": env.workers,
                "max_turns": env.max_turns,
                "max_response_tokens": sampling.max_response_tokens,
                "max_context_tokens": sampling.context_length,
                "deadlines": Deadlines(
                    reset=env.step_timeout, step=env.step_timeout, close=env.step_timeout, episode=env.episode_timeout
                ),
                "seed": seed,
                "deterministic": deterministic,
            }

            def engine(kwargs: Mapping[str, Any]) -> Engine:
                if train_env.workflow is None:
                    return AgentExecutionEngine(env_kwargs=kwargs, agent=train_env.agent, **options)
                return AgentWorkflowEngine(train_env.workflow, env_kwargs=kwargs, roles=self._roles(()), **options)

            if not sampler.returns_tokens:
                raise TokensMissing(
                    f"{type(sampler).__name__} returns no token ids and log-probs, so its episodes can be evaluated "
                    "but not trained on; use the torch or vLLM sampler"
                )
            self._train, self._validation = engine(train_env.train_kwargs), engine(train_env.validation_kwargs)
            self._counted = {engine: engine.stats.copy() for engine in (self._train, self._validation)}
            for item in (self._train, self._validation):
                self._loop.run(item.__aenter__())
                opened.callback(self._close_engine, item)
            opened.callback(self._stop)
            self._opened = opened.pop_all()

    def _params(self, max_tokens: int) -> SamplingParams:
        return SamplingParams(temperature=self._sampling.temperature, max_tokens=max_tokens)

    def _roles(self, pool: Sequence[str]) -> dict[str, Role]:
        """Return the weights and sampling parameters of each role; opponents use those in the pool."""
        assignment = self._assignment
        assert assignment is not None
        roles = {}
        for name in self.train_env.roles:
            max_tokens = assignment.role(name).max_tokens
            weights = tuple(pool) if pool and name == assignment.opponents.role else assignment.weights(name)
            params = None if max_tokens is None else self._params(max_tokens)
            roles[name] = Role(weights=weights, trainable=assignment.trainable(name), params=params)
        return roles

    def start(
        self,
        step: int,
        indices: Sequence[int],
        plan: Sequence[RolloutRequest],
        *,
        first: int = 0,
        urgent: bool = False,
    ) -> Future[RolloutBatch]:
        """Start the episodes of a step: for each task those of the plan, as one group.

        The group at position ``p`` of the step has the id ``{task}@{step}.{p}``. Seeds are derived only from step
        and position, so that the same episodes are collected regardless of process and time.

        Args:
            step: The step.
            indices: Training tasks.
            plan: The episodes of each task.
            first: Position of the first task in the step.
            urgent: If steps overlap: the episodes need not wait until those of all earlier calls have started.
        """
        specs, groups = [], {}
        for position, index in enumerate(indices, first):
            task = self.train_env.train[index]
            name = f"{task.task_id if isinstance(task, Task) else index}@{step}.{position}"
            groups[name] = index
            for repeat, request in enumerate(plan):
                seed = stream_seed("episode", self._seed, step, position, repeat) % 2**32
                specs.append(_spec(task, seed, name, request.greedy, repeat))
        return self._loop.start(self._run(self._train, specs, groups, urgent=urgent))

    def validate(
        self, step: int, tasks: int, samples: int, *, greedy: bool, span: range | None = None
    ) -> list[Episode]:
        """Run the first ``tasks`` validation tasks, always with the same seeds; greedy episodes are marked.

        Args:
            step: The step, for the names of the episodes.
            tasks: Number of tasks, at most those available.
            samples: Stochastic episodes per task.
            greedy: Add one episode per task at temperature 0.
            span: Run only these of the tasks.
        """
        assert self.train_env.validation is not None
        specs = []
        for index in range(min(tasks, len(self.train_env.validation))) if span is None else span:
            task = self.train_env.validation[index]
            name = f"{task.task_id if isinstance(task, Task) else index}@validation{step}"
            for repeat in range(samples + greedy):
                seed = stream_seed("validation", self._seed, index, repeat) % 2**32
                specs.append(_spec(task, seed, name, repeat == samples, repeat))
        return self._loop.run(self._run(self._validation, specs, {})).episodes

    def replace_sampler(self, make: Callable[[], Sampler]) -> None:
        """Close the sampler, even if it is dead, and continue with a new one, which needs a weight sync.

        Raises:
            SamplerError: The new sampler did not start.
        """
        self._synced.clear()
        try:
            self._loop.run(self.sampler.close())
        except Exception as error:  # it is replaced because it is broken
            _log.warning("closing the failed sampler: %s: %s", type(error).__name__, error)
        self.sampler = self._train.sampler = self._validation.sampler = make()

    def sync_weights(self, updates: Sequence[WeightUpdate], *, again: bool = False) -> None:
        """Serve new weights, each under its name. All of them count as one weight sync; ``again`` repeats the last one
        for a new sampler.
        """
        self.weight_syncs += not again
        self._loop.run(self._sync_weights(updates, self.weight_syncs))

    async def _sync_weights(self, updates: Sequence[WeightUpdate], number: int) -> None:
        for update in updates:
            # In the loop in which episodes end: one with tokens of these weights must not end before this is noted.
            self._synced[await self.sampler.sync_weights(update)] = number

    def sleep(self) -> bool:
        """Free the sampler's GPU memory until :meth:`wake`; return whether it can. No episode may be in progress."""
        if not getattr(self.sampler, "can_sleep", False):
            return False
        self._loop.run(self.sampler.sleep())  # type: ignore[attr-defined]
        return True

    def wake(self) -> None:
        """Allocate the sampler's GPU memory again."""
        self._loop.run(self.sampler.wake())  # type: ignore[attr-defined]

    def serve_frozen(self, update: WeightUpdate) -> None:
        """Serve frozen weights under a name; the tokens they sample are not trained on."""
        self._loop.run(self.sampler.sync_weights(update))

    def drop(self, name: str) -> None:
        """Stop serving frozen weights."""
        self._loop.run(self.sampler.drop(name))

    def set_opponents(self, pool: Sequence[str]) -> None:
        """Set the names of the opponents for later episodes. No episode may be in progress."""
        for engine in (self._train, self._validation):
            assert isinstance(engine, AgentWorkflowEngine)
            engine.roles = self._roles(pool)

    def close(self) -> None:
        """Stop all workers and free the sampler. Safe to call twice."""
        self._opened.close()

    def abandon(self) -> None:
        """End all current and future episodes with :class:`RolloutAbandoned`. Safe to call in a signal handler."""
        self._abandoned = True
        self._loop.call_soon(self._cancel_running)

    def _cancel_running(self) -> None:
        for task in self._running:
            task.cancel()

    def _sampled_by(self, episode: Episode) -> int:
        versions = {
            step.tokens.weight_version
            for trajectory in episode.trajectories
            for step in trajectory.steps
            if trajectory.trainable and step.tokens is not None
        }
        return min((self._synced.get(version, 0) for version in versions), default=self.weight_syncs)

    def _close_engine(self, engine: Engine) -> None:
        self._loop.run(engine.aclose())

    def _stop(self) -> None:
        """Abandon all episodes and wait for their end."""
        self.abandon()
        self._loop.run(self._wait_until_idle())

    async def _wait_until_idle(self) -> None:
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _run(
        self, engine: Engine, specs: list[EpisodeSpec], groups: dict[str, int], *, urgent: bool = False
    ) -> RolloutBatch:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            if self._abandoned:
                raise RolloutAbandoned("the run was asked to stop")
            if self._queue is None or engine is self._validation:
                episodes = await engine.run(specs)
            else:
                episodes = await self._queue.run(engine, specs, urgent=urgent)
            weight_syncs = [self._sampled_by(episode) for episode in episodes]
            stats = engine.stats.since(self._counted[engine])
            self._counted[engine] = engine.stats.copy()
            return RolloutBatch(groups, episodes, stats, weight_syncs)
        except asyncio.CancelledError:
            if not self._abandoned:
                raise
            raise RolloutAbandoned("the run was asked to stop") from None
        finally:
            self._running.discard(task)


def _spec(task: Any, seed: int, group_id: str, greedy: bool, repeat: int) -> EpisodeSpec:
    """Return an episode of a task, which can be the spec of an environment without a task set."""
    spec = task if isinstance(task, EpisodeSpec) else EpisodeSpec(task, seed)
    return replace(spec, group_id=group_id, greedy=greedy, episode_id=f"{group_id}#{repeat}")
