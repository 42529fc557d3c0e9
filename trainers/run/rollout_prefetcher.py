"""Collects the episodes of each step, on demand or one step ahead, distributed over the ranks of a run.

With ``steps_ahead=1`` the episodes of step n + 1 are collected while the model trains on those of step n. A weight
sync waits for them to end, so that all episodes of a step are sampled with the same weights: baselines stay
comparable, and no token is more than one weight sync old.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import Episode
from rllm_gym.engine import EngineStats
from rllm_gym.samplers.protocol import SamplerError
from trainers.algorithms import RolloutRequest
from trainers.curriculum import TaskCurriculum
from trainers.rollouts import RolloutAbandoned, RolloutResult, Rollouts
from trainers.run.process_group import ProcessGroup


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The episodes of one step.

    Attributes:
        groups: The ids of its groups, in order, and the training task of each.
        episodes: All episodes, ordered by group.
        stats: Statistics of the engines.
        weight_syncs: For each episode, the number of the weight sync of the oldest weights that sampled it.
    """

    groups: dict[str, int]
    episodes: list[Episode]
    stats: EngineStats
    weight_syncs: list[int]

    @property
    def tasks(self) -> list[int]:
        """The training tasks, one per group."""
        return list(self.groups.values())

    def __add__(self, more: RolloutBatch) -> RolloutBatch:
        """Append further groups of the same step."""
        return RolloutBatch(
            self.groups | more.groups,
            self.episodes + more.episodes,
            sum_stats([self.stats, more.stats], at_once=False),
            self.weight_syncs + more.weight_syncs,
        )

    def sampled_since(self, weight_sync: int) -> list[Episode]:
        """Return the episodes whose tokens were all sampled with the weights of this weight sync or later ones."""
        return [episode for episode, sync in zip(self.episodes, self.weight_syncs, strict=True) if sync >= weight_sync]


@dataclass(slots=True)
class _PendingRollout:
    step: int
    tasks: list[int]
    first: int = 0  # position of the first task in the step
    future: Future[RolloutResult] | None = None


class RolloutPrefetcher:
    """Selects tasks and collects their episodes. Selected tasks that were not trained on yet are stored in checkpoints.

    Args:
        rollouts: Runs the episodes.
        curriculum: Selects the tasks.
        rollout_plans: Returns the episodes to run for each of some tasks.
        groups: Number of tasks per step.
        steps: Number of steps of the run.
        steps_ahead: 0 to start a step's episodes when they are requested, 1 to start them one step earlier.
        restart_sampler: Called when the sampler died: replaces it by a new one with the current weights, or raises.
        ranks: The ranks that share the work.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        curriculum: TaskCurriculum,
        *,
        rollout_plans: Callable[[Sequence[int]], Sequence[Sequence[RolloutRequest]]],
        groups: int,
        steps: int,
        steps_ahead: int,
        restart_sampler: Callable[[SamplerError], None],
        ranks: ProcessGroup,
    ) -> None:
        self._rollouts = rollouts
        self._curriculum = curriculum
        self._rollout_plans = rollout_plans
        self._groups = groups
        self._steps = steps
        self._steps_ahead = steps_ahead
        self._restart_sampler = restart_sampler
        self._ranks = ranks
        self._next: _PendingRollout | None = None

    def get(self, step: int) -> RolloutBatch:
        """Return the episodes of a step, and start those of the next step if the run collects ahead.

        Raises:
            RolloutAbandoned: This rank or another one was asked to stop.
            SamplerError: The sampler died, and so did its replacements.
        """
        pending, self._next = self._next or self._next_tasks(step, self._groups), None
        batch = self._collect(pending)
        if self._steps_ahead and step + 1 < self._steps:
            self._next = self._next_tasks(step + 1, self._groups)
            self._start(self._next)
        return batch

    def get_more(self, step: int, groups: int, *, first: int) -> RolloutBatch:
        """Collect episodes of additional tasks in a step whose tasks were too easy or too hard. Raises as :meth:`get`.

        Args:
            step: The step.
            groups: Number of tasks.
            first: Number of tasks the step had before.
        """
        return self._collect(_PendingRollout(step, self._curriculum.next_fresh_tasks(groups), first))

    def wait(self) -> None:
        """Wait until no episodes are in progress. Errors are raised when the episodes are taken."""
        if self._next is not None and self._next.future is not None:
            self._finish(self._next)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._next is None else {"step": self._next.step, "tasks": self._next.tasks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._next = _PendingRollout(state["step"], list(state["tasks"]))

    def _next_tasks(self, step: int, groups: int) -> _PendingRollout:
        return _PendingRollout(step, self._curriculum.next_tasks(step, groups))

    def _start(self, pending: _PendingRollout) -> Future[RolloutResult]:
        span = self._ranks.local_range(len(pending.tasks))
        mine = pending.tasks[span.start : span.stop]
        pending.future = self._rollouts.start(
            pending.step, mine, self._rollout_plans(mine), first=pending.first + span.start
        )
        return pending.future

    def _collect(self, pending: _PendingRollout) -> RolloutBatch:
        """Wait for this rank's part and exchange it with the other ranks."""
        parts = self._ranks.all_gather(self._finish(pending))
        complete = [part for part in parts if part is not None]
        if len(complete) < len(parts):
            raise RolloutAbandoned("the run was asked to stop")
        episodes = [episode for part in complete for episode in part.episodes]
        num_syncs = [weight_sync for part in complete for weight_sync in part.weight_syncs]
        groups = {
            self._rollouts.group_id(pending.step, position, task): task
            for position, task in enumerate(pending.tasks, pending.first)
        }
        return RolloutBatch(groups, episodes, sum_stats([part.stats for part in complete]), num_syncs)

    def _finish(self, pending: _PendingRollout) -> RolloutResult | None:
        """Wait for this rank's part; restart it if the sampler died. ``None`` if the rollout was abandoned."""
        while True:
            future = pending.future or self._start(pending)
            try:
                return future.result()
            except RolloutAbandoned:
                return None
            except SamplerError as error:
                pending.future = None
                self._restart_sampler(error)
            except BaseException:
                future.cancel()  # Ctrl-C while waiting
                raise


def sum_stats(parts: Sequence[EngineStats], *, at_once: bool = True) -> EngineStats:
    """Sum the statistics of engines that ran concurrently (``at_once``) or one after the other. Concurrent wall
    times are not added up."""
    total = parts[0].copy()
    for part in parts[1:]:
        for name in EngineStats.__slots__:
            setattr(total, name, getattr(total, name) + getattr(part, name))
    if at_once:
        total.wall = max(part.wall for part in parts)
    return total
