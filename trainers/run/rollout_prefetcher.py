"""Collects the episodes of each step, on demand or some steps ahead, distributed over the ranks of a run.

With ``steps_ahead=1`` the episodes of step n + 1 are collected while the model trains on those of step n. A weight
sync waits for them to end, so that all episodes of a step are sampled with the same weights: baselines stay
comparable, and no token is more than one weight sync old.

With more steps ahead, the episodes of steps n + 1, n + 2, … start before those of step n have ended, and weight syncs
change the weights of those in progress. No token is more than ``steps_ahead`` weight syncs old.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from rllm_gym.samplers.protocol import SamplerError
from trainers.algorithms import AlgorithmRun
from trainers.config import RoleAssignment, TrainConfig
from trainers.process_group import ProcessGroup
from trainers.rollouts.collector import RolloutAbandoned, RolloutBatch, RolloutCollector, concatenate
from trainers.rollouts.curriculum import TaskCurriculum
from trainers.run.weight_publisher import WeightPublisher
from trainers.samples import Sample, samples_of, with_length_penalty


@dataclass(slots=True)
class _PendingRollout:
    step: int
    tasks: list[int]
    first: int = 0  # position of the first task in the step
    future: Future[RolloutBatch] | None = None
    sampler: Any = None  # when it was started


@dataclass(slots=True)
class RolloutPrefetcher:
    """Selects tasks and collects their episodes. Selected tasks that were not trained on yet are stored in checkpoints.

    Attributes:
        collector: Runs the episodes.
        publisher: Replaces a sampler that died.
        curriculum: Selects the tasks.
        algorithm: Defines the episodes of each task.
        assignment: Roles of the run.
        config: Options of the run.
        ranks: The ranks that share the work.
    """

    collector: RolloutCollector
    publisher: WeightPublisher
    curriculum: TaskCurriculum
    algorithm: AlgorithmRun
    assignment: RoleAssignment
    config: TrainConfig
    ranks: ProcessGroup
    _pending: deque[_PendingRollout] = field(default_factory=deque, init=False)
    _steps_ahead: int = field(init=False)

    def __post_init__(self) -> None:
        self._steps_ahead = self.config.asynchrony.steps_ahead
        self.publisher.on_replaced = self._restart_later

    def get(self, step: int) -> RolloutBatch:
        """Return the episodes of a step, and start those of later steps if the run collects ahead.

        Raises:
            RolloutAbandoned: This rank or another one was asked to stop.
            SamplerError: The sampler died, and so did its replacements.
        """
        if self._steps_ahead > 1:
            self._start_steps(step, step + self._steps_ahead)
        batch = self._collect(self._pending.popleft() if self._pending else self._next_tasks(step))
        if self._steps_ahead == 1:
            self._start_steps(step + 1, step + 1)
        return batch

    def get_more(self, step: int, groups: int, *, first: int) -> RolloutBatch:
        """Collect episodes of additional tasks in a step whose tasks were too easy or too hard. Raises as :meth:`get`.

        Args:
            step: The step.
            groups: Number of tasks.
            first: Number of tasks the step had before.
        """
        pending = _PendingRollout(step, self.curriculum.next_fresh_tasks(groups), first)
        self._start(pending, urgent=True)
        return self._collect(pending)

    def samples(self, batch: RolloutBatch) -> list[Sample]:
        """Convert the episodes that are not too stale to samples."""
        adapter_of = self.assignment.weights if self.collector.train_env.workflow is not None else None
        options = self.config.algorithm
        samples = samples_of(batch.fresh, options.format_penalty, adapter_of)
        return with_length_penalty(samples, options.length_penalty)

    def wait(self) -> None:
        """Wait until no episodes are in progress whose weights must not change. Errors are raised when the episodes are
        taken.
        """
        for pending in self._pending:
            if self._steps_ahead == 1 and pending.future is not None:
                self._finish(pending)

    def state_dict(self) -> dict[str, Any]:
        return {"pending": [(pending.step, pending.tasks) for pending in self._pending]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pending.extend(_PendingRollout(step, list(tasks)) for step, tasks in state["pending"])

    def _start_steps(self, first: int, last: int) -> None:
        """Start the episodes of the steps ``first`` to ``last`` that were not started yet."""
        first = self._pending[-1].step + 1 if self._pending else first
        self._pending.extend(self._next_tasks(step) for step in range(first, min(last + 1, self.config.steps)))
        for pending in self._pending:
            if pending.future is None and pending.step <= last:
                self._start(pending)

    def _next_tasks(self, step: int) -> _PendingRollout:
        return _PendingRollout(step, self.curriculum.next_tasks(step, self.config.algorithm.groups_per_step))

    def _start(self, pending: _PendingRollout, *, urgent: bool = False) -> Future[RolloutBatch]:
        span = self.ranks.local_range(len(pending.tasks))
        mine = pending.tasks[span.start : span.stop]
        pending.sampler = self.collector.sampler
        first = pending.first + span.start
        pending.future = self.collector.start(
            pending.step, mine, self.algorithm.rollout_plan(), first=first, urgent=urgent
        )
        return pending.future

    def _collect(self, pending: _PendingRollout) -> RolloutBatch:
        """Wait for this rank's part and exchange it with the other ranks."""
        parts = self.ranks.all_gather(self._finish(pending))
        complete = [part for part in parts if part is not None]
        if len(complete) < len(parts):
            raise RolloutAbandoned("the run was asked to stop")
        batch = concatenate(complete, at_once=True)
        if not self._steps_ahead:
            return batch
        return replace(batch, min_weight_sync=self.collector.weight_syncs - self._steps_ahead)

    def _finish(self, pending: _PendingRollout) -> RolloutBatch | None:
        """Wait for this rank's part; restart it if the sampler died. ``None`` if the rollout was abandoned."""
        while True:
            future = pending.future or self._start(pending)
            try:
                return future.result()
            except RolloutAbandoned:
                return None
            except SamplerError as error:
                pending.future = None
                if pending.sampler is self.collector.sampler:  # another step may have replaced it already
                    self.publisher.replace_sampler(error)
            except BaseException:
                future.cancel()  # Ctrl-C while waiting
                raise

    def _restart_later(self) -> None:
        """Cancel the episodes of later steps, which are started again: the new sampler counts its weight versions from
        the beginning."""
        for pending in self._pending:
            if pending.future is not None:
                pending.future.cancel()
                pending.future = None
